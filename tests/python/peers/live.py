# SPDX-License-Identifier: Apache-2.0
"""What is alive in this process: Tenon's counts by its C ABI, the rest by the kernel and the C library."""

import ctypes
import functools
import gc
import os
from typing import NamedTuple

import tenon as tn


class Counts(NamedTuple):
    storages: int
    regions: int
    heap_nbytes: int
    views: int


class _Statistics(ctypes.Structure):
    _fields_ = (
        ("struct_size", ctypes.c_uint32),
        ("reserved", ctypes.c_uint32),
        *((name, ctypes.c_uint64) for name in (*Counts._fields, "failed_deleters")),
    )


@functools.cache
def library():
    """The libtenon.so that the package has loaded."""
    tn.zeros(1)
    with open("/proc/self/maps") as maps:
        paths = {line.split(maxsplit=5)[5].strip() for line in maps if "libtenon.so" in line}
    assert len(paths) == 1, paths
    return ctypes.CDLL(paths.pop())


def now():
    """What lives now, after every deferred release; cycles that wait for the garbage collector count too."""
    tn.zeros(0)  # a call into Tenon: it finishes what other threads have released
    statistics = _Statistics(struct_size=ctypes.sizeof(_Statistics))
    library().tenon_statistics_get(ctypes.byref(statistics))
    return Counts(*(getattr(statistics, name) for name in Counts._fields))


def counts():
    """What lives now, after every deferred release and the garbage collector."""
    gc.collect()
    return now()


def views():
    return now().views


def rss():
    """Bytes of this process in memory."""
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[1]) * os.sysconf("SC_PAGESIZE")


def n_file_descriptors():
    return len(os.listdir("/proc/self/fd"))


def n_threads():
    return len(os.listdir("/proc/self/task"))
