# SPDX-License-Identifier: Apache-2.0
"""The iterator of a `DataLoader` over a feed of worker processes."""

from __future__ import annotations

import collections
import contextlib
import itertools
import multiprocessing
import os
import pickle
import select
import signal
import types
import weakref
from collections.abc import Iterator
from typing import Any

import torch
import torch.utils.data
from torch.utils.data.dataloader import _DatasetKind as Kind

from .. import _core
from .._core import NativeFeed
from .._data import closing
from .._data.workers import Workers
from .._errors import OpError, is_of_user, log
from . import workers as work
from .generators import default_device, from_plain, to_plain
from .here import Quick
from .packing import Reader, bytes_of
from .state import Progress, cannot_go_on

SLOT_NBYTES = 256 << 20  # addresses of a slot, which takes memory where it is written
_BEYOND_WORKERS = 3  # slots for what the consumer has: two batches, and the next one
_NONE, _SKIPPED = object(), object()
_ON_ERROR_RAISE, _ON_STARVED_COPY = 0, 1


class AnswerProgress(Progress):
    """With workers. A mark says from where a worker can continue: the number of the answer that brought it,
    and its pickle. Answers since then are made again and dropped."""

    def __init__(self, loader: Any, former: Progress | None = None) -> None:
        super().__init__(loader, former)
        self._num_workers = loader.num_workers
        self._is_iterable = loader._dataset_kind == Kind.Iterable
        self.is_first_epoch = True  # of the workers
        self.base_seed: Any = 0
        self.received = 0  # answers by the consumer
        self.ahead: collections.deque[Any] = collections.deque()  # indices that are not answered yet
        self.marks: list[tuple[int, bytes] | None] = [None] * self._num_workers  # None: not known yet
        self.again: list[list[Any]] = [[] for _ in range(self._num_workers)]  # indices answered since
        self.exhausted: set[int] = set()
        self.peek: Any = None  # weak: gets marks that are not known yet

    def restore_dataset(self, loader: Any, state: dict[str, Any]) -> None:
        """Does nothing: the dataset is in the workers."""

    def receive(self, mark: bytes) -> None:
        """The next answer."""
        worker = self.received % self._num_workers
        index = self.ahead.popleft()
        if mark:
            self.marks[worker] = (self.received, mark)
            self.again[worker].clear()
        elif not self._is_iterable:
            self.again[worker].append(index)

    def state(self, loader: Any) -> dict[str, Any]:
        if None in self.marks and self.peek is not None and (batches := self.peek()) is not None:
            batches.look_ahead()
        marks = []
        for worker, told in enumerate(self.marks):
            place, mark = told or (-1, pickle.dumps({"error": "it has had no batch in this epoch"}))
            one = pickle.loads(mark) if mark else None
            if one is not None and "error" in one:
                raise RuntimeError(
                    f"DataLoader worker {worker} cannot give the state of its dataset: {one['error']}"
                )
            marks.append((place, one))
        return {
            **super().state(loader),
            "is_first_epoch": self.is_first_epoch,
            "base_seed": self.base_seed,
            "received": self.received,
            "ahead": to_plain(list(self.ahead)),
            "marks": marks,
            "again": to_plain(self.again),
            "exhausted": sorted(self.exhausted),
        }

    def restore_answers(self, state: dict[str, Any]) -> None:
        self.received = state["received"]
        self.ahead.extend(from_plain(state["ahead"]))
        self.marks = [(place, b"" if mark is None else pickle.dumps(mark)) for place, mark in state["marks"]]
        self.again = from_plain(state["again"])
        self.exhausted = set(state["exhausted"])
        self.is_first_epoch = state["is_first_epoch"]

    def first_again(self) -> int:
        """The number of the first answer that is made again: one of worker 0."""
        count = self._num_workers
        made: list[int] = [told[0] // count + 1 for told in self.marks if told is not None]
        return int(count * min([*made, self.received // count]))

    def requests_again(self, constant: Any) -> Iterator[Any]:
        since = [iter(indices) for indices in self.again]
        for place in range(self.first_again(), self.received):
            worker = place % self._num_workers
            told = self.marks[worker]
            if told is not None and place <= told[0]:
                yield _SKIPPED
            else:
                yield constant if self._is_iterable else next(since[worker], _SKIPPED)
        yield from list(self.ahead)


class _Source(Workers):
    """Starts processes. One that ends is not replaced: the requests that it had received are lost."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.ended: dict[int, dict[str, Any]] = {}  # by worker: how

    def start(self, worker: int, link: str) -> int:
        if worker in self.ended:
            raise RuntimeError("its process has ended with the requests that it had received")
        return super().start(worker, link)

    def reap(self, worker: int, pid: int) -> int:
        status = super().reap(worker, pid)
        exit_signal = max(status, 0) & 0x7F
        self.ended[worker] = {
            "pid": pid,
            "exit_signal": exit_signal or None,
            "exit_code": None if exit_signal or status < 0 else status >> 8,
        }
        return status


class Processes(Quick):
    """With worker processes: one feed, closed at the end of its epoch, or with the loader if it persists."""

    make_progress = AnswerProgress

    _is_in_step = False  # True in `next`, where it does not wait: the steps of a batch are not one

    def __init__(self, loader: Any, progress: AnswerProgress, state: dict[str, Any] | None = None) -> None:
        self.is_closed = True  # for __del__, when the next lines raise
        seeded: Any = loader if state is None or state["is_first_epoch"] else _WithoutSeed(loader)
        super().__init__(seeded)
        progress.iterate(self, self._sampler_iter)
        if state is None:
            progress.marks = [(-1, b"")] * self._num_workers
        else:
            self._base_seed = state["base_seed"]
            progress.restore_answers(state)
            self._go_on_sampler(loader, progress, state)
        progress.base_seed = self._base_seed
        self._peeked: collections.deque[Any] = collections.deque()
        self._requests: collections.deque[bytes] = collections.deque()  # not answered yet, in order
        self.is_closed = False
        self._ahead = max(loader.prefetch_factor or 0, 1) * self._num_workers
        context = loader.multiprocessing_context or multiprocessing.get_context()
        schema = _core.Schema({"bytes": ("u1", (SLOT_NBYTES,))})
        pipes = [context.Pipe(duplex=False) for _ in range(self._num_workers)]
        self._pipes = [sender for _, sender in pipes]
        self._room = [select.poll() for _ in pipes]
        for room, pipe in zip(self._room, self._pipes, strict=True):
            room.register(pipe.fileno(), select.POLLOUT)
        loop = work.Loop(_task(loader, progress), [receiver for receiver, _ in pipes])
        self._source = _Source(schema, loop, context, setup=loop.set_up)
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
        self._batches = map(
            self._native.next, itertools.repeat(self._timeout or None), itertools.repeat(log.warning)
        )
        closing.OPEN.add(self)
        self._number = -1
        self._begin(progress, is_new=state is None)

    def _go_on_sampler(self, loader: Any, progress: AnswerProgress, state: dict[str, Any]) -> None:
        if self._is_iterable():
            progress.restore_counts(state)
        elif state["is_finished"]:
            self._sampler_iter = iter(())
        else:
            progress.run_sampler(loader, self, state)
        self._num_yielded = progress.yielded

    def go_to_end(self) -> None:
        for _ in self:
            raise cannot_go_on("its epoch was at its end, but there is another batch")

    @property
    def is_over(self) -> bool:
        """No epoch can begin: it is closed, or was interrupted in a step."""
        return self.is_closed or self._is_in_step

    def _reset(self, loader: Any, first_iter: bool = False) -> None:
        with self._step():
            self._begin_again(loader, first_iter)

    def _begin_again(self, loader: Any, first_iter: bool) -> None:
        self._native.end()
        progress = AnswerProgress(loader, self.progress)
        progress.is_first_epoch = False
        progress.base_seed = self._base_seed
        super()._reset(loader, first_iter)
        progress.iterate(self, self._sampler_iter)
        loader._progress = progress
        self._peeked.clear()
        self._begin(progress)

    @contextlib.contextmanager
    def _step(self) -> Iterator[None]:
        """A step that is incomplete after an interrupt, but not after other exceptions."""
        self._is_in_step = True
        try:
            yield
        except Exception:
            self._is_in_step = False
            raise
        self._is_in_step = False

    @property
    def _workers(self) -> list[Any]:
        """The processes that run."""
        return list(self._source._processes.values())

    def _begin(self, progress: AnswerProgress, *, is_new: bool = True) -> None:
        self.progress = progress
        progress.peek = weakref.ref(self)
        self._drop_requests()
        self._waiting: list[collections.deque[bytes]] = [collections.deque() for _ in self._pipes]
        self._unanswered = [0] * self._num_workers  # requests of this epoch that were sent
        self._again: Any = iter(())
        self._place = -1 if is_new else progress.received  # before it, answers are dropped
        self._sent = self._received = 0 if is_new else progress.first_again()
        if not is_new:
            self._again = progress.requests_again(
                next(self._sampler_iter, None) if self._is_iterable() else None
            )
        self._number += 1  # of the epoch
        self._native.begin()
        first = self._sent
        for _ in range(self._ahead):
            self._send()
        while self._persistent_workers and self._sent < first + self._num_workers:
            self._request(work.SKIP)  # so each worker begins the epoch, and sends its mark

    def _is_iterable(self) -> bool:
        return bool(self._dataset_kind == Kind.Iterable)

    def _send(self) -> None:
        """The next index to the worker whose turn it is."""
        index = next(self._again, _NONE)
        if index is _NONE:
            if self._received <= self._place:
                return  # as many requests as there were at this place
            try:
                index = self.progress.next_index(self)
            except StopIteration:
                return
            self.progress.ahead.append(self.progress.last)
        self._request(work.SKIP if index is _SKIPPED else work.store_index(index))

    def _request(self, request: bytes) -> None:
        worker = self._sent % self._num_workers
        self._requests.append(request)
        self._sent += 1
        self._waiting[worker].append(request)
        self._pass_on(worker)

    def _pass_on(self, worker: int) -> None:
        """Sends the requests for which the pipe has room. A worker that waits for a slot reads none, and the
        consumer may have the slots. A worker that has answered all requests reads the next one."""
        waiting = self._waiting[worker]
        while waiting and (not self._unanswered[worker] or self._room[worker].poll(0)):
            self._unanswered[worker] += 1
            self._pipes[worker].send((self._number, waiting.popleft()))

    def _drop_requests(self) -> None:
        while self._requests:
            work.drop_index(self._requests.popleft())

    def look_ahead(self) -> None:
        """Takes answers until each worker has sent the mark of the start of the epoch."""
        marks = self.progress.marks
        with self._turn_here():
            while None in marks and not self.is_closed and self._received + len(self._peeked) < self._sent:
                worker = (self._received + len(self._peeked)) % self._num_workers
                self._take()
                begin = _parts_of(self._peeked[-1])[0]
                if begin:
                    marks[worker] = (-1, begin)

    def _next_data(self) -> Any:
        with self._turn_here():
            return self._next_in_turn()

    def _next_in_turn(self) -> Any:
        if self._is_in_step:
            self.close()
            raise RuntimeError(
                "the iteration was interrupted (KeyboardInterrupt) while it handed out a batch, and cannot "
                "go on. Iterate the loader again"
            )
        try:
            data = self._next_answer()
        except Exception:
            self._is_in_step = False
            raise
        self._is_in_step = False
        return data

    def _next_answer(self) -> Any:
        progress = self.progress
        while self._received < self._sent and len(progress.exhausted) < self._num_workers:
            if not self._peeked:
                self._take()
            self._is_in_step = True
            batch = self._peeked.popleft()
            self._received += 1
            request = self._requests.popleft()
            begin, mark, kind, answer = _parts_of(batch)
            worker = (self._received - 1) % self._num_workers
            self._unanswered[worker] -= 1
            if begin and progress.marks[worker] is None:
                progress.marks[worker] = (-1, begin)
            if kind == work.EXHAUSTED:
                progress.exhausted.add(worker)
            is_dropped = self._received <= self._place or request == work.SKIP
            if not is_dropped:
                progress.receive(mark)
            progress.received = max(progress.received, self._received)
            self._send()
            if is_dropped:
                self._is_in_step = False
                continue
            if kind == work.BATCH:
                data = Reader(batch.arrays[0], answer).load()
                progress.yielded += 1
                return self._pinned(data) if self._pin_memory else data
            if kind == work.FAILURE:
                raise _error_of(answer)
        self._received = self._sent
        progress.is_finished = not progress.ahead or len(progress.exhausted) == self._num_workers
        if not self._persistent_workers:
            self.close()
        raise StopIteration

    def _pinned(self, data: Any) -> Any:
        return torch.utils.data._utils.pin_memory.pin_memory(data, self._pin_memory_device)

    def _take(self) -> None:
        """Waits for the next answer. An interrupt cannot lose it between the feed and the deque: no Python
        code runs there."""
        if any(self._waiting):
            with self._step():
                for worker in range(self._num_workers):
                    self._pass_on(worker)
        try:
            self._peeked.extend(itertools.islice(self._batches, 1))
        except TimeoutError as error:
            if is_of_user(error):
                raise
            raise RuntimeError(f"DataLoader timed out after {self._timeout} seconds") from None
        except OpError as error:
            failure = self._native.failure()
            failure = self._source.ended.get(failure["worker"], failure)
            self._sent = self._received
            self.close()
            raise RuntimeError(_death_text(failure, str(error))) from None

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
                log.warning("%s", error)
            if os.getpid() == self._pid:
                self._drop_requests()

    _shutdown_workers = close

    def __del__(self) -> None:
        self.close()


def _parts_of(batch: _core.Batch) -> tuple[bytes, bytes, bytes, bytes]:
    """The marks of an answer, its kind and the rest of it."""
    answer = batch.attachment
    begin = mark = b""
    if answer[:1] == work.MARKED:
        end = 3 + int.from_bytes(answer[1:3], "little")
        begin, mark = pickle.loads(bytes_of(batch.arrays[0], answer[3:end]))
        answer = answer[end:]
    return begin, mark, answer[:1], answer[1:]


class _WithoutSeed:
    """A loader whose iterator draws the seed of workers from another generator: the seed is known."""

    def __init__(self, loader: Any) -> None:
        self._loader = loader
        self.generator = torch.Generator(default_device())  # where PyTorch draws it

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)


def _task(loader: Any, progress: AnswerProgress) -> work.Task:
    return work.Task(
        dataset=loader.dataset,
        is_iterable=loader._dataset_kind == Kind.Iterable,
        auto_collation=loader._auto_collation,
        collate_fn=loader.collate_fn,
        is_default_collate=loader._auto_collation and loader.collate_fn is torch.utils.data.default_collate,
        drop_last=loader.drop_last,
        base_seed=progress.base_seed,
        worker_init_fn=loader.worker_init_fn,
        num_workers=loader.num_workers,
        marks=[told[1] for told in progress.marks if told is not None],
    )


def _error_of(answer: bytes) -> BaseException:
    kind, text = pickle.loads(answer)
    try:
        if getattr(kind, "message", None):  # as PyTorch calls it
            return kind(message=text)  # type: ignore[no-any-return]
        error: BaseException = kind(_Text(text) if issubclass(kind, KeyError) else text)
    except Exception:
        return RuntimeError(text)
    return error


class _Text(str):
    """A text whose repr is the text: KeyError shows the repr of its argument."""

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
