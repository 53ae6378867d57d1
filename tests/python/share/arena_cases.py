# SPDX-License-Identifier: Apache-2.0
"""The arenas of the tests: in memory of their own, in shared memory, over a buffer."""

import pytest

import tenon as tn

LAYOUTS = {
    "features": {"A": ("f4", (1000,)), "B": ("f4", (10, 3)), "C": ("f4", ())},
    "counts": {"D": ("i4", (500,)), "E": ("i8", (20,))},
}


def _own():
    return tn.Arena(LAYOUTS)


def _shared():
    return tn.Arena(LAYOUTS, shared=True)


def _over_buffer():
    return tn.Arena(LAYOUTS, buffer=bytearray(8192))


# Functions, for pytest would keep arenas beyond the tests.
each_arena = pytest.mark.parametrize("make_arena", [_own, _shared, _over_buffer])
