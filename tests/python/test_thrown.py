# SPDX-License-Identifier: Apache-2.0
"""Refusals that ordinary calls of NumPy meet pass no exception of C++, which costs more than the call."""

import os
import subprocess
import sys

import native_library
import pytest

PROGRAM = """
import ctypes
import numpy as np, tenon as tn

thrown = ctypes.CDLL(None).thrown
thrown.restype = ctypes.c_int64


def count(call):
    before = thrown()
    try:
        call()
    except Exception:
        pass
    return thrown() - before


a = tn.full((4, 3), 7, "i4", shared=True)
row = a[1]
print(count(lambda: tn.zeros(-1)) > 0)
print([count(call) for call in (
    lambda: np.array(row), lambda: np.array(row, copy=True), lambda: np.array(row, "f8"),
    lambda: memoryview(row), lambda: hasattr(row, "__array_interface__"), lambda: hasattr(row, "std"))])
print(np.array(row).tolist(), np.array(row, "f8").tolist())
"""


@pytest.mark.slow
def test_a_copy_of_a_shared_array_by_numpy_throws_nothing():
    options = "-Wno-builtin-declaration-mismatch", "-Wl,--no-as-needed"
    source = native_library.SOURCES / "thrown.c"
    counter = native_library.compiled(source, *options, links=("stdc++",))
    command = [sys.executable, "-c", PROGRAM]
    environment = {**os.environ, "LD_PRELOAD": counter}
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    works, counts, values = done.stdout.splitlines()
    if works != "True":
        pytest.skip("the C++ library is a part of the extension, so that its exceptions cannot be counted")
    assert counts == str([0] * 6)
    assert values == "[7, 7, 7] [7.0, 7.0, 7.0]"
