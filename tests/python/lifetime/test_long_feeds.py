# SPDX-License-Identifier: Apache-2.0
"""A hundred thousand batches leave the memory and the descriptors of consumer and workers as they were."""

import gc
import os
from pathlib import Path

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


def held(pids):
    """What consumer and workers hold: exact counts first, then bytes in memory."""
    gc.collect()
    counts = [live.n_file_descriptors(), live.n_threads(), *live.counts()]
    sizes = [live.rss()]
    for pid in pids:
        counts.append(len(os.listdir(f"/proc/{pid}/fd")))
        sizes.append(int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * PAGE)
    return counts, sizes


def held_at_rest(pids):
    """The same, when two looks agree: a slot that is filled for the first time opens files for a moment."""
    counts, sizes = held(pids)
    for _ in range(100):
        before, (counts, sizes) = counts, held(pids)
        if counts == before:
            break
    return counts, sizes


KINDS = {
    "native, threads": (native, False, soak.times(1_000_000, 100_000)),
    "native, processes": (native, True, soak.times(1_000_000, 100_000)),
    "Python, threads": (python, False, 100_000),
    "Python, processes": (python, "fork", 100_000),
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
        pids = [pid for w in range(2) if (pid := feed._native.worker(w)["pid"]) not in (0, os.getpid())]
        assert bool(pids) == bool(processes)
        counts, sizes = held_at_rest(pids)
        slots = feed.stats().memory
        for number in range(1, epochs):
            epoch(number)
        counts_after, sizes_after = held_at_rest(pids)
        assert counts_after == counts
        assert all(after - before < 4 << 20 for before, after in zip(sizes, sizes_after, strict=True))
        assert feed.stats().memory == slots
        assert feed.stats().batches == batches
