# SPDX-License-Identifier: Apache-2.0
"""Builds native.c with the machine's C compiler and loads it, once per process.

`load()` gives the library with the GIL released around calls, `load(keep_gil=True)` with the GIL held.
"""

import atexit
import ctypes
import functools
import os
import pathlib
import shutil
import subprocess
import tempfile

SOURCE = pathlib.Path(__file__).with_name("native.c")
PATH_VARIABLE = "TENON_TEST_NATIVE"  # a library that a parent process has built


def compiler():
    return os.environ.get("CC") or shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")


@functools.cache
def path():
    """Of the built library. FileNotFoundError where there is no compiler."""
    built = os.environ.get(PATH_VARIABLE)
    if built and os.path.exists(built):
        return built
    if compiler() is None:
        raise FileNotFoundError("a C compiler: cc, gcc or clang")
    folder = tempfile.mkdtemp(prefix="tenon-native-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    built = os.path.join(folder, "native.so")
    command = [compiler(), "-std=gnu11", "-O1", "-g", "-Wall", "-Wextra", "-shared", "-fPIC", "-pthread"]
    subprocess.run([*command, str(SOURCE), "-o", built], check=True)
    return built


@functools.cache
def load(keep_gil=False):
    library = (ctypes.PyDLL if keep_gil else ctypes.CDLL)(path())
    pointer, integer = ctypes.c_void_p, ctypes.c_int
    library.call_on_thread.argtypes = (pointer, pointer)
    library.call_at_once.argtypes = (integer, pointer, pointer)
    library.call_when_woken.argtypes = (pointer, pointer, integer, integer)
    library.call_at_exit.argtypes = (pointer, pointer)
    library.call_at_exit_on_thread.argtypes = (pointer, pointer)
    library.new_tensor.argtypes = (ctypes.c_int64,)
    library.new_tensor.restype = pointer
    library.tensors_made.restype = ctypes.c_long
    library.tensors_deleted.restype = ctypes.c_long
    return library


def address_of(name):
    """Of a function of the library, for a slot of an exchange table."""
    return ctypes.cast(getattr(load(), name), ctypes.c_void_p).value
