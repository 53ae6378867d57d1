# SPDX-License-Identifier: Apache-2.0
"""The library that is built of native/, by ctypes: its contenders and its steps."""

import ctypes
from itertools import count, takewhile

from . import build

# In the order of the enumeration Case in native/bench.h.
INDEPENDENT, CHAIN, READS_WRITE, TRIP, RESTED_TRIP = range(5)

_library = ctypes.CDLL(build.FOLDER / "engine_bench.so")
_Count = ctypes.POINTER(ctypes.c_int64)
_SIGNATURES = {
    "bench_contender": (ctypes.c_char_p, ctypes.c_size_t),
    "bench_step": (ctypes.c_char_p, ctypes.c_size_t),
    "bench_last_error": (ctypes.c_char_p,),
    "bench_elapsed_ns": (ctypes.c_int64, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int64),
    "bench_step_ns": (ctypes.c_int64, ctypes.c_size_t, ctypes.c_int64),
    "bench_check": (
        *(ctypes.c_int64, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int64),
        *(_Count, _Count),
    ),
}
for _name, (_result, *_arguments) in _SIGNATURES.items():
    _function = getattr(_library, _name)
    _function.restype, _function.argtypes = _result, _arguments


def _names(function):
    return [name.decode() for name in takewhile(bool, map(function, count()))]


CONTENDERS = _names(_library.bench_contender)
STEPS = _names(_library.bench_step)


def _checked(result):
    if result < 0:
        raise RuntimeError(_library.bench_last_error().decode())
    return result


def elapsed_ns(contender, case, workers, n):
    """Nanoseconds for n ops."""
    return _checked(_library.bench_elapsed_ns(CONTENDERS.index(contender), case, workers, n))


def step_ns(step, n):
    """Nanoseconds for n steps."""
    return _checked(_library.bench_step_ns(STEPS.index(step), n))


def check(contender, case, workers, n):
    """How many of n bodies ran, and how many saw values that no serial order gives."""
    bodies, violations = ctypes.c_int64(), ctypes.c_int64()
    i = CONTENDERS.index(contender)
    _checked(_library.bench_check(i, case, workers, n, ctypes.byref(bodies), ctypes.byref(violations)))
    return bodies.value, violations.value
