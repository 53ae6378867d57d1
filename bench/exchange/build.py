# SPDX-License-Identifier: Apache-2.0
"""Builds the extensions in native/ for this interpreter and puts them on sys.path."""

import sys
from pathlib import Path

import nanobind
import native_build

FOLDER = native_build.folder_of("exchange")


def build():
    source = Path(__file__).resolve().parent / "native"
    native_build.build(source, FOLDER, Python_EXECUTABLE=sys.executable, nanobind_DIR=nanobind.cmake_dir())


def use():
    sys.path.insert(0, str(FOLDER))
