# SPDX-License-Identifier: Apache-2.0
"""Tens of thousands of batches leave the memory and the descriptors of consumer and workers as they were."""

import contextlib
import gc
import os
from collections import Counter
from pathlib import Path
from typing import NamedTuple

import live
import native_library
import numpy as np
import pytest
import soak

import tenon as tn

ROWS = 32
SCHEMA = tn.schema(data=("f4", (ROWS, 8)), label=("i8", (ROWS,)))
FILL = "int fill(float *data, int64_t *label, size_t n, uint64_t index, uint64_t epoch)"
PAGE = os.sysconf("SC_PAGESIZE")


def native():
    return tn.c_function(native_library.generators(), FILL, threadsafe=True)


@tn.worker(SCHEMA)
def python(batches):
    for batch in batches:
        batch.label[...] = batch.epoch * 10_000 + batch.index * 100 + np.arange(ROWS)


class Held(NamedTuple):
    """What consumer and workers hold."""

    counts: list[int]  # threads and Tenon's objects
    descriptors: list[Counter[str]]  # of each process: what its file descriptors refer to
    sizes: list[int]  # bytes in memory, of each process


def descriptors(pid):
    targets: Counter[str] = Counter()
    for descriptor in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # closed meanwhile, as the one of this folder
            targets[os.readlink(descriptor)] += 1
    return targets


def held(pids):
    gc.collect()
    sizes = [int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * PAGE for pid in pids]
    return Held([live.n_threads(), *live.counts()], [descriptors(pid) for pid in pids], sizes)


def held_at_rest(pids):
    """The same, when two looks agree: a slot that is filled for the first time opens files for a moment."""
    now = held(pids)
    for _ in range(100):
        before, now = now, held(pids)
        if now[:2] == before[:2]:
            break
    return now


KINDS = {
    "native, threads": (native, False, soak.times(1_000_000, 100_000)),
    "native, processes": (native, True, soak.times(1_000_000, 100_000)),
    "Python, threads": (python, False, soak.times(100_000, 30_000)),
    "Python, processes": (python, "fork", soak.times(100_000, 30_000)),
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("way", ["itself", "numpy"])
def test_memory_and_descriptors_stay_as_they_are(kind, way):
    make, processes, batches = KINDS[kind]
    epochs = 10
    with tn.Feed(make(), SCHEMA, workers=2, processes=processes, batches=batches // epochs) as feed:
        consumer = feed if way == "itself" else feed.numpy()

        def epoch(number):
            for index, batch in enumerate(consumer):
                if index % 997 == 0:
                    label = batch[1] if way == "numpy" else batch.label.numpy()
                    assert label[1] == number * 10_000 + index * 100 + 1

        epoch(0)
        workers = [feed._native.worker(w)["pid"] for w in range(2)]
        pids = [os.getpid(), *(pid for pid in workers if pid not in (0, os.getpid()))]
        assert (len(pids) > 1) == bool(processes)
        before = held_at_rest(pids)
        slots = feed.stats().memory
        for number in range(1, epochs):
            epoch(number)
        after = held_at_rest(pids)
        # What an earlier test left may go meanwhile, as a segment that was closed late. Nothing may come.
        assert all(a <= b for b, a in zip(before.counts, after.counts, strict=True)), (before, after)
        new = [a - b for b, a in zip(before.descriptors, after.descriptors, strict=True)]
        assert new == [Counter()] * len(pids)
        assert all(a - b < 4 << 20 for b, a in zip(before.sizes, after.sizes, strict=True))
        assert feed.stats().memory == slots
        assert feed.stats().batches == batches
