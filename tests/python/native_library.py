# SPDX-License-Identifier: Apache-2.0
"""Compiles C and C++ for the tests of native functions and feeds, once per process."""

import atexit
import functools
import os
import pathlib
import shutil
import subprocess
import tempfile

SOURCES = pathlib.Path(__file__).parent.parent / "native"
PATH_VARIABLE = "TENON_TEST_GENERATORS"  # the library of generators.c, for child processes


@functools.cache
def folder():
    made = tempfile.mkdtemp(prefix="tenon-generators-")
    atexit.register(shutil.rmtree, made, ignore_errors=True)
    return pathlib.Path(made)


def compiled(source, *options):
    """The path of a shared library made from a C or C++ file."""
    source = pathlib.Path(source)
    compiler = os.environ.get("CC", "cc") if source.suffix == ".c" else os.environ.get("CXX", "c++")
    library = folder() / f"{source.stem}.so"
    command = [compiler, "-O2", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-pthread", *options]
    subprocess.run([*command, str(source), "-o", str(library)], check=True)
    return str(library)


@functools.cache
def generators():
    return os.environ.get(PATH_VARIABLE) or compiled(SOURCES / "generators.c", "-std=gnu99", "-pedantic")
