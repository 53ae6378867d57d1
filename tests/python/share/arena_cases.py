# SPDX-License-Identifier: Apache-2.0
"""The arenas of the tests: in memory of their own, in shared memory, over a buffer."""

import random

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


# Functions, because pytest would keep arenas after the tests.
each_arena = pytest.mark.parametrize("make_arena", [_own, _shared, _over_buffer])


def arena_of_totals(n, shared):
    """An arena with a layout of floats and one of ints, each with the sum of its elements. Holds floats."""
    layouts = {
        "floats": {"a": ("f8", (n,)), "total": ("f8", ())},
        "ints": {"b": ("i4", (9 * n // 4,)), "total": ("i8", ())},
    }
    arena = tn.Arena(layouts, shared=shared)
    with arena.use("floats") as f:
        f.a, f.total = 0, 0
    return arena


def turns(arena, seed, n):
    """Uses random layouts. Oracle: all elements that are read are of one writer, with their sum."""
    numbers = random.Random(seed)
    reads = 0
    for turn in range(n):
        layout, field = numbers.choice([("floats", "a"), ("ints", "b")])
        if numbers.random() < 0.4:
            try:
                with arena.use(layout, "r", timeout=600) as f:
                    values = f[field]
                    assert (values == values[0]).all()
                    assert f.total == values.sum()
                    reads += 1
            except tn.LeaseConflict as error:
                assert "cannot be read" in str(error)
        else:
            with arena.use(layout, timeout=600) as f:
                f[field][:] = seed * 1000 + turn
                f.total[...] = f[field].sum()
    return reads
