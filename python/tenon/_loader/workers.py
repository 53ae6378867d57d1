# SPDX-License-Identifier: Apache-2.0
"""What the worker processes of a `DataLoader` do: fetch samples, collate them into the slot."""

from __future__ import annotations

import contextlib
import os
import pickle
import time
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.utils.data
from torch.utils.data.dataloader import _DatasetKind as Kind

from .._array.creation import empty
from .._data.forms import itself
from .._data.seeds import seed_generators
from .._errors import traceback_text
from . import packing
from .generators import global_generators, set_generators, states_of
from .state import (
    fetcher_state,
    has_place,
    is_stateful,
    restore_all,
    restore_fetcher,
    state_of,
)

ATTACHMENT_NBYTES = 1 << 14
INDEX_NBYTES = 1 << 11  # larger ones lie in a shared array, so that a few do not fill a pipe
LOOK_SECONDS = 2.0  # between two looks whether the consumer's process is there
NO_MORE = 1 << 62  # an epoch after all others
BATCH, FAILURE, EXHAUSTED, MARKED = b"B", b"F", b"E", b"M"  # the first byte of an attachment
MARK_SECONDS = 0.02  # between two marks of a dataset without a state: they cost 0.1 ms
SKIP = b""  # the request for an answer that the consumer drops


class Task(NamedTuple):
    """What the workers need of a loader. Goes to them by pickle."""

    dataset: Any
    is_iterable: bool
    auto_collation: bool
    collate_fn: Any
    is_default_collate: bool
    drop_last: bool
    base_seed: int
    worker_init_fn: Any
    num_workers: int
    marks: list[bytes]  # for each worker: from where it goes on in the first epoch; empty: from its start


class Loop:
    """The loop of a worker. A failure is passed on in place of its batch, and the loop continues."""

    def __init__(self, task: Task, pipes: list[Any]) -> None:
        self._task = task
        self._pipes = pipes  # to each worker, for (epoch, request)
        self._message: tuple[int, bytes] | None = None  # received, and not answered
        self._epoch = -1
        self._told_epoch = 0  # the consumer knows the mark of the start of epoch 0
        self._init_failure: bytes | None = None
        self._begin = b""  # the mark of the start of an epoch, not sent yet
        self._marked = time.monotonic()

    def set_up(self, worker: int) -> None:
        self._worker = worker
        self._known = self._task.marks[worker]
        self._parent = os.getppid()
        try:
            seed_worker(self._task, worker)
            if self._task.worker_init_fn is not None:
                self._task.worker_init_fn(worker)
        except Exception as error:
            self._init_failure = self._failure(error)

    def __call__(self, batches: Any) -> None:
        for batch in batches:
            request = self._receive(batch.epoch)
            if request is None:
                batch.rows = 0
            else:
                batch.attachment = self._fill(batch, request)
            del batch

    def _receive(self, epoch: int) -> bytes | None:
        """What to fill the next batch of an epoch from; None if the epoch has ended."""
        pipe = self._pipes[self._worker]
        while True:
            while self._message is None:
                if pipe.poll(LOOK_SECONDS):
                    self._message = pipe.recv()
                elif os.getppid() != self._parent:
                    return None
            of_epoch, request = self._message
            if of_epoch > epoch:
                return None
            self._message = None
            if of_epoch == epoch:
                return request

    def _fill(self, batch: Any, request: bytes) -> bytes:
        writer = packing.Writer(batch["bytes"], batch._native.commit)
        mark = b""
        try:
            answer = self._init_failure or self._pack(batch.epoch, request, writer)
            mark = self._mark(answer[:1])
        except Exception as error:
            answer = self._failure(error)
            forget_frames(error)
        writer.let_go()
        with contextlib.suppress(MemoryError):  # a later answer takes the mark of the start
            if self._begin or mark:
                told = writer.put(pickle.dumps((self._begin, mark)))
                answer = MARKED + len(told).to_bytes(2, "little") + told + answer
                self._begin = b""
        batch.rows = writer.used
        return answer

    def _pack(self, epoch: int, request: bytes, writer: packing.Writer) -> bytes:
        if epoch != self._epoch:
            self._begin_epoch(epoch)
        if request == SKIP:
            return BATCH
        try:
            samples = self._fetcher.fetch(load_index(request))
        except StopIteration:
            if not self._task.is_iterable:
                raise
            self._fetcher.ended = True
            return EXHAUSTED
        return BATCH + writer.pack(collate(self._task, samples, writer))

    def _begin_epoch(self, epoch: int) -> None:
        task = self._task
        mark: Any = pickle.loads(self._known) if self._known else None
        goes_on = epoch == 0 and bool(self._known) and not mark["begins"]
        if mark is not None:
            is_at_end = task.is_iterable and not goes_on  # of the epoch before
            restore_all([task.dataset], [mark["dataset"]], is_at_end=is_at_end)
            set_generators(global_generators(), mark["random"])
        if epoch > self._told_epoch:
            self._told_epoch = epoch
            self._begin = self._mark_of(lambda: {"begins": True, "dataset": state_of(task.dataset)})
        kind = Kind.Iterable if task.is_iterable else Kind.Map
        self._fetcher: Any = Kind.create_fetcher(
            kind, task.dataset, task.auto_collation, itself, task.drop_last
        )
        if goes_on:
            restore_fetcher(self._fetcher, mark)
            set_generators(global_generators(), mark["random"])
        self._known = b""
        self._epoch = epoch
        self._has_told_end = False
        iterator = getattr(self._fetcher, "dataset_iter", None)
        self._is_stateful = is_stateful(task.dataset) or is_stateful(iterator)

    def _mark(self, kind: bytes) -> bytes:
        """From where this worker can go on after the answer; empty: nothing new."""
        if kind == FAILURE or (kind == EXHAUSTED and self._has_told_end):
            return b""
        if kind == EXHAUSTED:
            self._has_told_end = True
        elif not self._is_stateful and (
            self._task.is_iterable or time.monotonic() - self._marked < MARK_SECONDS
        ):
            return b""
        self._marked = time.monotonic()
        return self._mark_of(lambda: {"begins": False, **fetcher_state(self._fetcher)})

    def _mark_of(self, make: Any) -> bytes:
        try:
            mark = make()
            if not mark["begins"] and self._task.is_iterable and not has_place(mark):
                return b""
            return pickle.dumps({**mark, "random": states_of(global_generators())})
        except Exception as error:  # of the dataset's; state_dict() raises it
            return pickle.dumps({"error": f"{type(error).__name__}: {error}"})

    def _failure(self, error: Exception) -> bytes:
        text = (
            f"Caught {type(error).__name__} in DataLoader worker process {self._worker}.\n"
            f"Original {traceback_text(error)}"
        )
        room = ATTACHMENT_NBYTES - 1024
        if len(text.encode()) > room:
            text = text.encode()[:room].decode(errors="ignore") + "..."
        try:
            return FAILURE + pickle.dumps((type(error), text))
        except Exception:
            return FAILURE + pickle.dumps((RuntimeError, text))


def forget_frames(error: BaseException | None) -> None:
    """Drops tracebacks, whose frames have views of the slot."""
    while error is not None:
        error.__traceback__ = None
        error = error.__cause__ or error.__context__


def collate(task: Task, samples: Any, writer: packing.Writer) -> Any:
    """What ``collate_fn`` makes of the samples; the default one stacks tensors in the writer's slot."""
    if not task.is_default_collate:
        return task.collate_fn(samples)
    rules = torch.utils.data._utils.collate

    def stack(tensors: Any, *, collate_fn_map: Any = None) -> Any:
        if packing.stacks(tensors):
            return writer.stack(tensors)
        return rules.collate_tensor_fn(tensors, collate_fn_map=collate_fn_map)

    ways: dict[Any, Any] = dict(rules.default_collate_fn_map)
    if ways.get(torch.Tensor) is rules.collate_tensor_fn:
        ways[torch.Tensor] = stack
    return rules.collate(samples, collate_fn_map=ways)


def seed_worker(task: Task, worker: int) -> None:
    """Seeds as PyTorch's workers are seeded, and tells ``get_worker_info``."""
    seed = task.base_seed + worker
    torch_worker = torch.utils.data._utils.worker
    torch.set_num_threads(1)
    torch.manual_seed(seed)  # of devices, too
    seed_generators(seed, torch_worker._generate_state(task.base_seed, worker))
    torch_worker._worker_info = torch_worker.WorkerInfo(
        id=worker, num_workers=task.num_workers, seed=seed, dataset=task.dataset
    )


def store_index(index: Any) -> bytes:
    """An index for a worker: the bytes of its pickle, or where they lie."""
    data = pickle.dumps(index)
    if len(data) < INDEX_NBYTES:
        return b"I" + data
    return b"P" + packing.Writer(np.empty(0, np.uint8), packing.commit_nothing).pack(index)


def load_index(request: bytes) -> Any:
    if request[:1] == b"I":
        return pickle.loads(request[1:])
    return packing.Reader(empty((1,), "uint8"), request[1:]).load()


def drop_index(request: bytes) -> None:
    """Frees the shared array of an index that no worker will take. Else it lives as long as this process."""
    if request[:1] == b"P":
        with contextlib.suppress(FileNotFoundError, ValueError):  # it was taken
            load_index(request)
