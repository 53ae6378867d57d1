# SPDX-License-Identifier: Apache-2.0
"""The iterator of a `DataLoader` over a feed of worker processes."""

from __future__ import annotations

import collections
import contextlib
import logging
import multiprocessing
import os
import signal
import types
from typing import Any

from .. import _core
from .._core import NativeFeed
from .._data.workers import Workers
from .._errors import OpError
from . import workers as work
from .base import BaseIterator, Kind, default_collate, torch
from .packing import Reader

_log = logging.getLogger("tenon")

SLOT_NBYTES = 256 << 20  # addresses of a slot, which takes memory where it is written
_BEYOND_WORKERS = 3  # slots for what the consumer has: two batches, and the next one
_is_profiled: Any = None if torch is None else torch.autograd._profiler_enabled
_ON_ERROR_RAISE, _ON_STARVED_COPY = 0, 1


class Processes(BaseIterator):
    """With worker processes: one feed, closed at the end of its epoch, or with the loader if it persists."""

    def __init__(self, loader: Any) -> None:
        self.is_closed = True  # for __del__, when the next lines raise
        super().__init__(loader)
        self._pid = os.getpid()
        self._requests: collections.deque[bytes] = collections.deque()  # not answered yet, in order
        self.is_closed = False
        self._ahead = max(loader.prefetch_factor or 0, 1) * self._num_workers
        context = loader.multiprocessing_context or multiprocessing.get_context()
        schema = _core.Schema({"bytes": ("u1", (SLOT_NBYTES,))})
        pipes = [context.Pipe(duplex=False) for _ in range(self._num_workers)]
        self._pipes = [sender for _, sender in pipes]
        loop = work.Loop(_task(loader, self._base_seed), [receiver for receiver, _ in pipes])
        self._source = Workers(schema, loop, context, setup=loop.set_up)
        self._native = NativeFeed(
            source=self._source,
            schema=schema,
            constants={},
            workers=self._num_workers,
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
        self._begin()

    def _reset(self, loader: Any, first_iter: bool = False) -> None:
        self._native.end()
        super()._reset(loader, first_iter)
        self._begin()

    @property
    def _workers(self) -> list[Any]:
        """The processes that run."""
        return list(self._source._processes.values())

    def _begin(self) -> None:
        self._exhausted: set[bytes] = set()
        self._drop_requests()
        self._sent = self._received = 0
        self._number += 1  # of the epoch
        self._native.begin()
        for _ in range(self._ahead):
            self._send()

    def _send(self) -> None:
        """The next index to the worker whose turn it is."""
        try:
            index = next(self._sampler_iter)
        except StopIteration:
            return
        request = work.store_index(index)
        self._pipes[self._sent % self._num_workers].send((self._number, request))
        self._requests.append(request)
        self._sent += 1

    def _drop_requests(self) -> None:
        while self._requests:
            work.drop_index(self._requests.popleft())

    def __next__(self) -> Any:
        if self._IterableDataset_len_called is not None or (_is_profiled is not None and _is_profiled()):
            return super().__next__()  # which warns, and marks the batch in a profile
        data = self._next_data()
        self._num_yielded += 1
        return data

    def _next_data(self) -> Any:
        while self._received < self._sent and len(self._exhausted) < self._num_workers:
            batch = self._take()
            self._received += 1
            self._requests.popleft()
            self._send()
            answer = batch.attachment
            kind, answer = answer[:1], answer[1:]
            if kind == work.BATCH:
                data = Reader(batch.arrays[0], answer).load()
                return self._pinned(data) if self._pin_memory else data
            if kind == work.FAILURE:
                raise _error_of(answer)
            self._exhausted.add(answer)
        self._received = self._sent
        if not self._persistent_workers:
            self.close()
        raise StopIteration

    def _pinned(self, data: Any) -> Any:
        return torch.utils.data._utils.pin_memory.pin_memory(data, self._pin_memory_device)

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

    _shutdown_workers = close

    def __del__(self) -> None:
        self.close()


def _task(loader: Any, base_seed: int) -> work.Task:
    return work.Task(
        dataset=loader.dataset,
        is_iterable=loader._dataset_kind == Kind.Iterable,
        auto_collation=loader._auto_collation,
        collate_fn=loader.collate_fn,
        is_default_collate=loader._auto_collation and loader.collate_fn is default_collate,
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
