# SPDX-License-Identifier: Apache-2.0
"""Compiles C and C++ for the tests of native functions and feeds, once per process."""

import atexit
import functools
import os
import pathlib
import shutil
import subprocess
import tempfile
import threading

SOURCES = pathlib.Path(__file__).parent.parent / "native"
PATH_VARIABLE = "TENON_TEST_GENERATORS"  # the library of generators.c, for child processes
compiling = threading.RLock()  # functools.cache calls the function in each thread that finds no value


@functools.cache
def folder():
    made = tempfile.mkdtemp(prefix="tenon-generators-")
    atexit.register(shutil.rmtree, made, ignore_errors=True)
    return pathlib.Path(made)


def compiled(source, *options, name=None, links=()):
    """The path of a shared library made from a C or C++ file.

    name: of the library, by default the file's. links: libraries that it needs.
    """
    with compiling:
        return compiled_once(source, *options, name=name, links=links)


@functools.cache
def compiled_once(source, *options, name, links):
    source = pathlib.Path(source)
    compiler = os.environ.get("CC", "cc") if source.suffix == ".c" else os.environ.get("CXX", "c++")
    library = folder() / (f"{source.stem}.so" if name is None else f"lib{name}.so")
    command = [compiler, "-O2", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-pthread", *options]
    links = [f"-l{link}" for link in links]
    subprocess.run([*command, str(source), "-o", str(library), *links], check=True)
    return str(library)


def can_link(header, link):
    """Whether the system has a C library for builders."""
    command = [os.environ.get("CC", "cc"), "-x", "c", "-", "-shared", "-fPIC", f"-l{link}", "-o", os.devnull]
    return (
        subprocess.run(command, input=f"#include <{header}>\n", text=True, capture_output=True).returncode
        == 0
    )


@functools.cache
def generators():
    return os.environ.get(PATH_VARIABLE) or compiled(SOURCES / "generators.c", "-std=gnu99", "-pedantic")
