# SPDX-License-Identifier: Apache-2.0
"""The ways from a generator to a model: generators of batches, which are lists of torch tensors.

Each begins its workers at its first batch and ends them when it is closed. Those that start processes by
fork come first, before there are threads.
"""

import contextlib
import ctypes
import functools
import itertools
import multiprocessing
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec

import mxnet_peer
import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, get_worker_info

import tenon as tn

QUEUE_DEPTH = 4


@dataclass(frozen=True)
class Contender:
    """begin() is a generator of batches. expected(k): the contents of batch k, by default those of the job.
    needs: a module that it needs. is_spawned: processes begin anew, and import torch."""

    name: str
    begin: Callable
    expected: Callable | None = None
    needs: str | None = None
    is_spawned: bool = False

    def is_missing(self):
        return self.needs is not None and find_spec(self.needs) is None


class Reader:
    """The consumer: one byte of every page of every array, through one call."""

    def __init__(self, library, job):
        nbytes = [np.dtype(dtype).itemsize * int(np.prod(shape)) for dtype, shape in job.fields.values()]
        self.count = len(nbytes)
        self.nbytes = (ctypes.c_size_t * self.count)(*nbytes)
        self.pointers = (ctypes.c_void_p * self.count)()
        self.read = ctypes.CDLL(str(library)).read_pages
        self.read.restype = ctypes.c_uint64

    def __call__(self, tensors):
        for k, tensor in enumerate(tensors):
            self.pointers[k] = tensor.data_ptr()
        self.read(self.pointers, self.nbytes, self.count)


# ---------------------------------------------------------------------------- in the consumer's own thread


def warm_buffers(job, count):
    """Batches that are kept are overwritten: an upper limit of the speed, which is of no use for training."""
    # NumPy asks for huge pages, which are faster.
    buffers = [[torch.from_numpy(array) for array in job.new_arrays()] for _ in range(count)]
    writers = [job.writer(tensors) for tensors in buffers]
    for write in writers:
        write(0)
    for index in itertools.count():
        writers[index % count](index)
        yield buffers[index % count]


def fresh_arrays(job):
    for index in itertools.count():
        yield [torch.from_numpy(array) for array in job.arrays(index)]


# --------------------------------------------------------------------------------------------- DataLoader


class Batches(IterableDataset):
    """Whole batches. is_shared: tensors in shared memory, filled in place."""

    def __init__(self, job, is_shared):
        self.job, self.is_shared = job, is_shared

    def __iter__(self):
        worker = get_worker_info()
        first, step = (worker.id, worker.num_workers) if worker else (0, 1)
        for index in itertools.count(first, step):
            if not self.is_shared:
                yield self.job.tensors(index)
                continue
            tensors = [tensor.share_memory_() for tensor in self.job.new_tensors()]
            self.job.writer(tensors)(index)
            yield tensors


class Samples(Dataset):
    """One row at a time; the loader stacks them."""

    def __init__(self, make):
        self.make = make

    def __len__(self):
        return 1 << 40

    def __getitem__(self, index):
        return [torch.as_tensor(array[0]) for array in self.make(index, 1)]


class InOrder(torch.utils.data.Sampler):
    def __iter__(self):
        return itertools.count()


def loaded(dataset, workers, loader=DataLoader, **options):
    """loader: PyTorch's, or Tenon's."""
    if workers:
        options = {"multiprocessing_context": "fork", **options}
    batches = iter(loader(dataset, num_workers=workers, **options))
    try:
        yield from batches
    finally:
        if loader is DataLoader and workers:
            batches._shutdown_workers()


def whole(job, workers, is_shared=False, **options):
    return loaded(Batches(job, is_shared), workers, batch_size=None, **options)


def stacked(job, make, workers, **options):
    """make(index, rows): tensors or NumPy arrays."""
    return loaded(Samples(make), workers, batch_size=job.rows, sampler=InOrder(), **options)


# ------------------------------------------------------------------------------------------ queue and feed


def produce(queue, job):
    for index in itertools.count():
        queue.put(job.arrays(index))


def queued(job):
    context = multiprocessing.get_context("fork")
    queue = context.Queue(QUEUE_DEPTH)
    process = context.Process(target=produce, args=(queue, job), daemon=True)
    process.start()
    try:
        while True:
            yield [torch.from_numpy(array) for array in queue.get()]
    finally:
        process.kill()
        process.join()


def fed(feed):
    """The batches of a feed, which is closed with them."""
    with contextlib.closing(feed):
        yield from feed.torch()


def fill_by_writer(job, batch):
    job.writer(list(batch))(batch.index)


def fill_by_pillow(job, batch):
    for field, array in zip(batch, job.pillows(batch.index), strict=True):
        field[...] = array


def python_fed(job, workers, processes, fill=fill_by_writer):
    """fill(job, batch): a generator that is written in Python."""
    generator = functools.partial(fill, job)
    return fed(tn.Feed(generator, job.schema(), workers=workers, processes=processes))


def python_looped(job, workers, processes):
    """Its workers may also be several threads."""

    def loop(batches):
        for batch in batches:
            fill_by_writer(job, batch)

    generator = tn.worker(job.schema())(loop)()
    return fed(tn.Feed(generator, workers=workers, processes=processes))


# ------------------------------------------------------------------------------------------- SPDL and grain


def spdl_threads(make, workers):
    """make(index): NumPy arrays."""
    from spdl.pipeline import PipelineBuilder

    builder = PipelineBuilder().add_source(itertools.count())
    builder = builder.pipe(make, concurrency=workers, output_order="input").add_sink(QUEUE_DEPTH)
    pipeline = builder.build(num_threads=workers)
    with pipeline.auto_stop():
        for arrays in pipeline:
            yield [torch.from_numpy(array) for array in arrays]


class ReusedArrays:
    """Batches in one and the same arrays: the pool's segments take copies."""

    def __init__(self, job):
        self.job = job

    def __iter__(self):
        arrays = self.job.new_arrays()
        write = self.job.writer(arrays)
        for index in itertools.count():
            write(index)
            yield arrays

    def __call__(self):
        return self


def spdl_process(job):
    from spdl.pipeline import SharedMemorySegmentPool, iterate_in_subprocess

    segment_nbytes = job.nbytes + 4096 * len(job.fields)
    pool = SharedMemorySegmentPool(segment_nbytes, QUEUE_DEPTH + 2)
    batches = iterate_in_subprocess(ReusedArrays(job), buffer_size=QUEUE_DEPTH, arena=pool)
    for arrays in batches:
        yield [torch.from_numpy(array) for array in arrays]


def grain_batches(make, threads, processes):
    import grain
    from absl import flags

    flags.FLAGS.mark_as_parsed()
    options = grain.ReadOptions(num_threads=threads, prefetch_buffer_size=QUEUE_DEPTH)
    batches = grain.MapDataset.range(1 << 40).map(make).to_iter_dataset(options)
    if processes:
        batches = batches.mp_prefetch(
            grain.MultiprocessingOptions(num_workers=processes, per_worker_buffer_size=QUEUE_DEPTH // 2)
        )
    batches = iter(batches)
    try:
        for arrays in batches:
            yield [torch.from_numpy(array) for array in arrays]
    finally:
        if processes:
            batches.close()


# ------------------------------------------------------------------------------------------------------ MXNet


def mxnet_prefetched(job, convert):
    """An iterator as MXNet's users write it, one batch ahead in its thread. convert: a function of mx.nd."""
    mx = mxnet_peer.load()
    numbers, to_mxnet = itertools.count(), getattr(mx.nd, convert)

    class Batches(mx.io.DataIter):
        def __init__(self):
            super().__init__(job.rows)
            described = job.fields.items()
            self.provide_data = [mx.io.DataDesc(name, shape, dtype) for name, (dtype, shape) in described]
            self.provide_label = []

        def next(self):
            return mx.io.DataBatch([to_mxnet(array) for array in job.arrays(next(numbers))], [], 0)

    batches = mx.io.PrefetchingIter(Batches())
    try:
        for batch in batches:
            yield [torch.from_dlpack(array.to_dlpack_for_read()) for array in batch.data]
    finally:
        batches.__del__()
