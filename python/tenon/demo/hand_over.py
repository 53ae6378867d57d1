# SPDX-License-Identifier: Apache-2.0
"""What the way from the C function's write to the framework's tensor costs: host copies and page faults.

The interpreter itself writes some hundred pages per batch, whatever the batch holds. So copies are counted on
batches of many megabytes, and what the same code writes for batches of one row is subtracted.
"""

from __future__ import annotations

import resource
import time
from collections.abc import Callable, Iterator
from typing import Any

import tenon as tn
from tenon.demo._copy_meter import payloads_written, why_unavailable
from tenon.demo.source import ROW_NBYTES, Source

_PAUSE, _LONGEST_FILL = 50, 60_000  # milliseconds

Batches = Callable[[tn.Feed], Iterator[Any]]


class _OneBatch:
    """Per call: gives back the batch before, takes the next one, waits until the free slot is filled again.

    So one call covers exactly one fill and one hand-over. Two slots, one worker.
    """

    def __init__(self, feed: tn.Feed, batches: Batches, change: Callable[[Any], Any] | None) -> None:
        self._feed = feed
        self._iterator = batches(feed)
        self._change = change
        self._held: list[Any] = []

    def __call__(self) -> None:
        self._held.clear()
        self._held.extend(next(self._iterator))
        if self._change:
            self._held.extend([self._change(field) for field in self._held])
        for _ in range(_LONGEST_FILL // _PAUSE):
            time.sleep(_PAUSE / 1000)  # few looks: each writes to the interpreter's heap
            if self._feed.stats().slots_ready > 0:
                return
        raise TimeoutError(f"the C function has not filled a batch within {_LONGEST_FILL / 1000} s")


def _address(array: Any) -> int:
    return int(array.data_ptr() if hasattr(array, "data_ptr") else array.ctypes.data)


def _pages_written(
    source: Source, batches: Batches, rows: int, rounds: int, change: Callable[[Any], Any] | None
) -> float:
    with (
        source.feed(rows, workers=1, slots=2, batches=None, seed=1) as feed,
        source.feed(1, workers=1, slots=2, batches=None, seed=1) as small,
    ):
        work = _OneBatch(feed, batches, change)
        control = _OneBatch(small, batches, change)
        return payloads_written(work, rows * ROW_NBYTES, control=control, rounds=rounds)


def _copies_by_address(source: Source, batches: Batches, rows: int) -> float:
    copied = 0
    count = 20
    with source.feed(rows, workers=1, slots=2, batches=count, seed=1) as feed:
        stats = feed.stats()
        for data, _ in batches(feed):
            offset = _address(data) - stats.memory
            copied += not 0 <= offset < stats.slots * stats.slot_nbytes
            del data, _
    return copied / count


def count_copies(
    source: Source, batches: Batches, copy: Callable[[Any], Any], rows: int, rounds: int
) -> tuple[float, float | None, str]:
    """Host copies per batch between the C function's write and what `batches` yields; the same with a `copy`
    of each array, to check that the meter sees what it should; and the method."""
    reason = why_unavailable()
    if reason is not None:
        method = f"pointer identity: the data's address lies in a slot ({reason})"
        return _copies_by_address(source, batches, rows), None, method
    per_batch = _pages_written(source, batches, rows, rounds, None) - 1
    check = _pages_written(source, batches, rows, 1, copy) - 1
    return per_batch, check, "page-write accounting: all writable memory of the process"


def _touch(data: Any, label: Any) -> None:
    data.reshape(-1)[::1024].sum()
    label[::512].sum()


def count_faults(feed: tn.Feed, batches: Batches, warm_up: int, count: int) -> float:
    """Minor page faults of the whole process per batch, in a loop that reads one number of every page."""
    iterator = batches(feed)
    for _ in range(warm_up):
        _touch(*next(iterator))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(count):
        _touch(*next(iterator))
    return (resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before) / count
