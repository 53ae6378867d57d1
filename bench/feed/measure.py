# SPDX-License-Identifier: Apache-2.0
"""The contenders of bench/feed, and the seconds per batch of each: what workload.py runs as a program.

    measure.py LIBRARY CASE ROUNDS      prints a JSON object: name -> seconds per batch, one for each round

The consumer of each contender reads one number of every page of a batch. Contenders take turns within each
round; each is warm before it is timed.
"""

import ctypes
import itertools
import json
import multiprocessing
import sys
import time
from dataclasses import dataclass

import numpy as np
import torch
from torch.utils.data import DataLoader, IterableDataset

import tenon as tn

PAGE_FLOATS = 1024


@dataclass(frozen=True)
class Case:
    fields: int
    shape: tuple[int, ...]
    batches: int  # timed in a turn

    @property
    def row(self):
        return int(np.prod(self.shape[1:]))

    @property
    def nbytes(self):
        return self.fields * int(np.prod(self.shape)) * 4

    @property
    def prototype(self):
        if self.fields == 1:
            return "int fill(float *a00, size_t n, size_t per_row)"
        pointers = ", ".join(f"float *a{k:02}" for k in range(self.fields))
        return f"int fill_many({pointers}, size_t n, size_t per_row)"


CASES = {
    "38.5 MB": Case(1, (64, 3, 224, 224), 100),
    "16 KB": Case(1, (64, 64), 3000),
    "30 arrays of 16 KB": Case(30, (64, 64), 1000),
}


class Filler:
    """Calls the C function on arrays, by ctypes: the generator of those who have no other way."""

    def __init__(self, library, case):
        self.library, self.case = library, case
        self.function = None

    def __call__(self, arrays):
        if self.function is None:
            loaded = ctypes.CDLL(self.library)
            self.function = loaded.fill if self.case.fields == 1 else loaded.fill_many
        pointers = [
            ctypes.c_void_p(a.ctypes.data if isinstance(a, np.ndarray) else a.data_ptr()) for a in arrays
        ]
        rows, per_row = ctypes.c_size_t(self.case.shape[0]), ctypes.c_size_t(self.case.row)
        if self.function(*pointers, rows, per_row) != 0:
            raise RuntimeError("the generator failed")

    def __getstate__(self):
        return {"library": self.library, "case": self.case, "function": None}


def touch(arrays):
    for array in arrays:
        array.reshape(-1)[::PAGE_FLOATS].sum()


def warm_buffers(fill, case):
    arrays = [np.ones(case.shape, "f4") for _ in range(case.fields)]
    while True:
        fill(arrays)
        yield arrays


def fresh_buffers(fill, case):
    while True:
        arrays = [np.empty(case.shape, "f4") for _ in range(case.fields)]
        fill(arrays)
        yield [torch.from_numpy(array) for array in arrays]


def feed(library, case, workers, processes):
    generator = tn.c_function(library, case.prototype, threadsafe=True, per_row=case.row)
    schema = tn.schema(**{f"a{k:02}": ("f4", case.shape) for k in range(case.fields)})
    return tn.Feed(generator, schema, workers=workers, processes=processes)


class Batches(IterableDataset):
    """Whole batches. is_shared: tensors in shared memory, filled in place."""

    def __init__(self, fill, case, is_shared):
        self.fill, self.case, self.is_shared = fill, case, is_shared

    def __iter__(self):
        while True:
            tensors = [torch.empty(self.case.shape) for _ in range(self.case.fields)]
            if self.is_shared:
                tensors = [tensor.share_memory_() for tensor in tensors]
            self.fill(tensors)
            yield tensors


class Samples(torch.utils.data.Dataset):
    """One row at a time; the loader stacks them."""

    def __init__(self, fill, case):
        self.case = case
        self.fill = fill

    def __len__(self):
        return 1 << 40

    def __getitem__(self, index):
        row = Case(self.case.fields, (1, *self.case.shape[1:]), 0)
        arrays = [torch.empty(row.shape) for _ in range(row.fields)]
        self.fill.case = row
        self.fill(arrays)
        return [array[0] for array in arrays]


class InOrder(torch.utils.data.Sampler):
    def __iter__(self):
        return itertools.count()


def whole(fill, case, workers, is_shared):
    return iter(DataLoader(Batches(fill, case, is_shared), batch_size=None, num_workers=workers))


def stacked(library, case, workers):
    loader = DataLoader(
        Samples(Filler(library, case), case), batch_size=case.shape[0], sampler=InOrder(), num_workers=workers
    )
    return iter(loader)


def produce(queue, fill, case):
    while True:
        arrays = [np.empty(case.shape, "f4") for _ in range(case.fields)]
        fill(arrays)
        queue.put(arrays)


def queued(fill, case):
    context = multiprocessing.get_context("fork")
    queue = context.Queue(4)
    context.Process(target=produce, args=(queue, fill, case), daemon=True).start()
    while True:
        yield queue.get()


def contenders(library, case):
    """Those that fork come first, before there are threads."""
    fill = Filler(library, case)
    made = {}
    for workers in (1, 2):
        made[f"DataLoader, whole batches, {workers} workers"] = whole(fill, case, workers, False)
        made[f"DataLoader, share_memory_() in place, {workers} workers"] = whole(fill, case, workers, True)
    made["DataLoader, samples stacked, 2 workers"] = stacked(library, case, 2)
    made["multiprocessing.Queue of NumPy arrays"] = queued(fill, case)
    made["np.empty + ctypes + torch.from_numpy"] = fresh_buffers(fill, case)
    made["one warm buffer filled in place"] = warm_buffers(fill, case)
    for processes in (True, False):
        kind = "processes" if processes else "threads"
        for workers in (1, 2):
            made[f"tenon.Feed, {workers} {kind}"] = iter(feed(library, case, workers, processes).torch())
    return made


def per_batch(batches, n):
    begin = time.perf_counter()
    for arrays in itertools.islice(batches, n):
        touch(arrays)
    return (time.perf_counter() - begin) / n


def main():
    library, name, rounds = sys.argv[1], sys.argv[2], int(sys.argv[3])
    torch.set_num_threads(1)
    case = CASES[name]
    sources = contenders(library, case)
    # A slow one need not give as many as a fast one for a number as good: a turn takes half a second at most.
    counts = {}
    for source, batches in sources.items():
        per_batch(batches, 3)
        counts[source] = max(3, min(case.batches, int(0.5 / per_batch(batches, 5))))
    result = {source: [] for source in sources}
    names = list(sources)
    for i in range(rounds):
        first = i % len(names)
        for source in names[first:] + names[:first]:
            per_batch(sources[source], 5)
            result[source].append(per_batch(sources[source], counts[source]))
    print(json.dumps(result))
    sys.stdout.flush()


if __name__ == "__main__":
    main()
