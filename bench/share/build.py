# SPDX-License-Identifier: Apache-2.0
"""Builds the libraries in native/, and the environment with the peers that pip installs."""

from pathlib import Path

import native_build
import peer_environment

FOLDER = native_build.folder_of("share")
LIBRARY = FOLDER / "native/share_bench.so"
TENON_LIBRARY = FOLDER / "native/share_tenon.so"
PYTHON = peer_environment.python_of("share")
RESULTS = FOLDER / "results.json"


def build():
    native_build.build(Path(__file__).resolve().parent / "native", LIBRARY.parent)
    peer_environment.prepare("share")
