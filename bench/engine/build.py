# SPDX-License-Identifier: Apache-2.0
"""Builds the libraries in native/. Peers that are headers alone are found by environment variables."""

import os
from pathlib import Path

import mxnet_peer
import native_build

FOLDER = native_build.folder_of("engine")
# The folder of the headers of each.
VARIABLES = ("TENON_BENCH_TASKFLOW", "TENON_BENCH_STDEXEC")


def build():
    source = Path(__file__).resolve().parent / "native"
    variables = {name: os.environ.get(name, "") for name in VARIABLES}
    library = mxnet_peer.LIBRARY if mxnet_peer.LIBRARY.exists() else ""
    native_build.build(source, FOLDER, TENON_BENCH_MXNET=library, **variables)
