# SPDX-License-Identifier: Apache-2.0
"""MXNet of the environment that tools/env.py mxnet makes, for the interpreter that runs a measurement."""

import sys
from importlib import import_module
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ROOT / "build/mxnet/lib/python3.11/site-packages"
LIBRARY = PACKAGES / "mxnet/libmxnet.so"
NAME = "MXNet 1.9.1 (in this run)"


def is_missing():
    return sys.version_info[:2] != (3, 11) or not LIBRARY.exists()


def load():
    """The module mxnet, with the NumPy that is imported here."""
    sys.path += [str(path) for path in (PACKAGES, ROOT / "examples") if str(path) not in sys.path]
    import_module("before_mxnet")
    return import_module("mxnet")
