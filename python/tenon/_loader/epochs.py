# SPDX-License-Identifier: Apache-2.0
"""The iterators of a `DataLoader`: without workers, and over a feed of worker processes."""

from __future__ import annotations

import collections
import contextlib
import logging
import multiprocessing
import os
import signal
import types
import warnings
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from .. import _core
from .._core import NativeFeed
from .._data.workers import Workers
from .._errors import OpError
from . import workers as work
from .collate import find_torch
from .packing import Reader

if TYPE_CHECKING:
    from .loader import DataLoader

_log = logging.getLogger("tenon")

SLOT_NBYTES = 256 << 20  # addresses of a slot, which takes memory where it is written
_BEYOND_WORKERS = 3  # slots for what the consumer has: two batches, and the next one
_ON_ERROR_RAISE, _ON_STARVED_COPY = 0, 1


class Epoch:
    """The base class of the iterators."""

    def __init__(self, loader: DataLoader) -> None:
        self._torch = find_torch()
        self._pins = _may_pin(self._torch, loader)
        self._begin(loader)
        self._base_seed = _draw_seed(self._torch, loader.generator)

    def _begin(self, loader: DataLoader) -> None:
        self._sampler_iterator = iter(loader._index_sampler)
        self._index_sampler = loader._index_sampler
        self._dataset_name = repr(loader.dataset) if loader._said_length is not None else ""
        self._said_length = loader._said_length
        self._yielded = 0

    def __iter__(self) -> Any:
        return self

    def __len__(self) -> int:
        return len(self._index_sampler)

    def __next__(self) -> Any:
        data = self._next()
        if self._pins:
            from torch.utils.data._utils.pin_memory import pin_memory

            data = pin_memory(data)
        self._yielded += 1
        if self._said_length is not None and self._yielded > self._said_length:
            warnings.warn(
                f"Length of IterableDataset {self._dataset_name} was reported to be {self._said_length} "
                f"(when accessing len(dataloader)), but {self._yielded} samples have been fetched.",
                stacklevel=2,
            )
        return data

    def _next(self) -> Any:
        raise NotImplementedError

    def __getstate__(self) -> Any:
        raise NotImplementedError(f"{type(self).__name__} cannot be pickled")


class Here(Epoch):
    """Without workers."""

    def __init__(self, loader: DataLoader) -> None:
        if loader.timeout != 0:
            raise AssertionError("timeout needs num_workers > 0")
        super().__init__(loader)
        self._task = _task(loader, self._base_seed)
        self._fetcher = work.Fetcher(self._task)

    def _next(self) -> Any:
        return work.collate(self._task, self._fetcher.fetch(next(self._sampler_iterator)))


class Processes(Epoch):
    """With worker processes: one feed, closed at the end of its epoch, or with the loader if it persists."""

    def __init__(self, loader: DataLoader) -> None:
        self.is_closed = True  # for __del__, when the next lines raise
        super().__init__(loader)
        self._pid = os.getpid()
        self._timeout = loader.timeout
        self._persists = loader.persistent_workers
        self._num_workers = loader.num_workers
        self._requests: collections.deque[bytes] = collections.deque()  # not answered yet, in order
        self.is_closed = False
        task = _task(loader, self._base_seed)
        self._ahead = max(loader.prefetch_factor or 0, 1) * loader.num_workers
        self._context = loader.multiprocessing_context or multiprocessing.get_context()
        schema = _core.Schema({"bytes": ("u1", (SLOT_NBYTES,))})
        pipes = [self._context.Pipe(duplex=False) for _ in range(loader.num_workers)]
        self._pipes = [sender for _, sender in pipes]
        loop = work.Loop(task, [receiver for receiver, _ in pipes])
        self._workers = Workers(schema, loop, self._context, setup=loop.set_up)
        self._native = NativeFeed(
            source=self._workers,
            schema=schema,
            constants={},
            workers=loader.num_workers,
            slots=self._ahead + _BEYOND_WORKERS,
            batches=-1,
            seed=0,
            processes=True,
            round_robin=True,
            on_error=_ON_ERROR_RAISE,
            retries=1,
            on_starved=_ON_STARVED_COPY,
            fill_timeout_ns=0,
            attachment_nbytes=work.ATTACHMENT_NBYTES,
            name="DataLoader",
            prepares=False,
            sparse_slots=True,
        )
        from .._data import closing

        closing.OPEN.add(self)
        self._number = -1
        self._run(self._sampler_iterator)

    def reset(self, loader: DataLoader) -> None:
        self._native.end()
        self._begin(loader)
        self._run(self._sampler_iterator)

    def _run(self, indices: Iterator[Any]) -> None:
        self._exhausted: set[bytes] = set()
        self._indices = indices
        self._drop_requests()
        self._sent = self._received = 0
        self._number += 1  # of the epoch
        self._native.begin()
        for _ in range(self._ahead):
            self._send()

    def _send(self) -> None:
        """The next index to the worker whose turn it is."""
        for index in self._indices:
            request = work.store_index(index)
            self._pipes[self._sent % self._num_workers].send((self._number, request))
            self._requests.append(request)
            self._sent += 1
            return

    def _drop_requests(self) -> None:
        while self._requests:
            work.drop_index(self._requests.popleft())

    def _next(self) -> Any:
        while self._received < self._sent and len(self._exhausted) < self._num_workers:
            batch = self._take()
            self._received += 1
            self._requests.popleft()
            self._send()
            answer = batch.attachment
            kind, answer = answer[:1], answer[1:]
            if kind == work.BATCH:
                return Reader(batch.arrays[0], answer).load()
            if kind == work.FAILURE:
                raise _error_of(answer)
            self._exhausted.add(answer)
        self._received = self._sent
        if not self._persists:
            self.close()
        raise StopIteration

    def _take(self) -> _core.Batch:
        try:
            batch = self._native.next(self._timeout or None, _log.warning)
        except TimeoutError:
            raise RuntimeError(f"DataLoader timed out after {self._timeout} seconds") from None
        except OpError as error:
            failure = self._native.failure()
            self._sent = self._received
            self.close()
            raise RuntimeError(_death_text(failure, str(error))) from None
        assert batch is not None
        return batch

    def stats(self) -> types.SimpleNamespace:
        """As for a feed: see `tenon.Feed.stats`."""
        return types.SimpleNamespace(**self._native.statistics())

    def close(self, timeout: float = 1.0) -> None:
        """Ends the workers. Batches stay valid."""
        if self.is_closed:
            return
        self.is_closed = True
        if hasattr(self, "_native"):
            try:
                if os.getpid() == self._pid:
                    for pipe in self._pipes:
                        os.set_blocking(pipe.fileno(), False)
                        with contextlib.suppress(OSError):  # no process reads, and this one will be killed
                            pipe.send((work.NO_MORE, b""))
                self._native.close(timeout)
            except TimeoutError as error:
                _log.warning("%s", error)
            if os.getpid() == self._pid:
                self._drop_requests()

    def __del__(self) -> None:
        self.close()


def _may_pin(torch: Any, loader: DataLoader) -> bool:
    if not loader.pin_memory:
        return False
    if torch is None or not torch.accelerator.is_available():
        warnings.warn(
            "'pin_memory' argument is set as true but no accelerator is found, then device pinned memory "
            "won't be used.",
            stacklevel=4,
        )
        return False
    return True


def _draw_seed(torch: Any, generator: Any) -> int:
    if torch is not None:
        return int(torch.empty((), dtype=torch.int64).random_(generator=generator).item())
    if generator is None:
        return int(np.random.randint(0, 2**63 - 1, dtype=np.int64))
    return int(generator.integers(0, 2**63 - 1))


def _task(loader: DataLoader, base_seed: int) -> work.Task:
    return work.Task(
        dataset=loader.dataset,
        is_iterable=loader._is_iterable,
        auto_collation=loader._auto_collation,
        collate_fn=loader.collate_fn,
        is_default_collate=loader._collates_by_default,
        drop_last=loader.drop_last,
        base_seed=base_seed,
        worker_init_fn=loader.worker_init_fn,
        num_workers=loader.num_workers,
    )


def _error_of(answer: bytes) -> BaseException:
    import pickle

    kind, text = pickle.loads(answer)
    try:
        error: BaseException = kind(_Text(text) if issubclass(kind, KeyError) else text)
    except Exception:
        return RuntimeError(text)
    return error


class _Text(str):
    """Shown as it is also by KeyError, which shows the repr of its argument."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


def _death_text(failure: dict[str, Any], text: str) -> str:
    if failure["exit_signal"] is not None:
        name = signal.strsignal(failure["exit_signal"])
        return f"DataLoader worker (pid {failure['pid']}) is killed by signal: {name}. {text}"
    if failure["exit_code"] is not None:
        return f"DataLoader worker (pid(s) {failure['pid']}) exited unexpectedly. {text}"
    return text
