# SPDX-License-Identifier: Apache-2.0
"""`PrefetchingIter`: threads that take the next batch while the consumer uses the current one."""

from __future__ import annotations

import atexit
import os
import threading
import time
import weakref
from typing import Any

from .. import _core
from .._errors import log
from .._values import seconds
from .batches import BatchIter, DataBatch, DataDesc

_CLOSED = "the PrefetchingIter is closed"
_CLOSE_SECONDS = 1.0
_LEAVE_SECONDS = 10.0  # more, for a thread that is not in its iterator
_LOOK_SECONDS = 1.0  # between two looks whether the thread is still there

_open_iterators: weakref.WeakSet[PrefetchingIter] = weakref.WeakSet()


class PrefetchingIter(BatchIter):
    """Takes the batches of iterators one batch ahead, with one thread for each iterator.

    A batch has the data and labels of all iterators, one after the other. It shares their memory. An
    exception of an iterator is raised at the position of its batch; the next call continues after it.
    Iterators that do not end together raise ValueError.

    The first batch, or `reset`, starts the threads. `close`, or the deletion of the PrefetchingIter, ends
    them. After the start, only these threads use the iterators, and `reset` while no batch is in progress. A
    batch is also taken while the consumer holds a lease, so an iterator must not wait for a lease of the
    consumer.

    Parameters
    ----------
    iters : DataIter or list of DataIter
        Other iterators with ``reset``, ``provide_data`` and ``provide_label`` are allowed too.
    rename_data, rename_label : list of dict, optional
        For each iterator a dict from old to new names of its arrays. Other arrays keep their names.

    Raises
    ------
    ValueError
        No iterators, or not one dict for each of them.
    """

    def __init__(
        self,
        iters: Any,
        rename_data: list[dict[str, str]] | None = None,
        rename_label: list[dict[str, str]] | None = None,
    ) -> None:
        self.iters: list[Any] = list(iters) if isinstance(iters, (list, tuple)) else [iters]
        if not self.iters:
            raise ValueError("there are no iterators to prefetch from")
        data = [one.provide_data for one in self.iters]
        label = [one.provide_label for one in self.iters]
        self.provide_data: list[DataDesc] = _renamed(data, rename_data, "rename_data")
        self.provide_label: list[DataDesc] = _renamed(label, rename_label, "rename_label")
        super().__init__((self.provide_data + self.provide_label)[0].shape[0])
        self._is_over = False
        self._is_fresh = False  # nothing was taken since reset()
        self._helpers = [_Helper(one, f"tenon prefetch {i}") for i, one in enumerate(self.iters)]
        weakref.finalize(self, _stop_all, self._helpers)  # not close(): that waits
        _open_iterators.add(self)

    def reset(self) -> None:
        """Drops the prefetched batches and resets the iterators. A second call in a row does nothing."""
        if self._is_fresh:
            return
        self.current_batch = None
        self._is_over = True  # should an iterator raise
        for helper in self._helpers:
            helper.drop()
        for one in self.iters:
            one.reset()
        self._is_over = False
        self._is_fresh = True
        self._request_all()

    def iter_next(self) -> bool:
        self.current_batch = None
        if self._is_over:
            return False
        self._is_fresh = False
        self._request_all()
        for helper in self._helpers:  # all, before one is taken: Ctrl-C in a wait loses nothing
            helper.wait()
        outcomes = [helper.take() for helper in self._helpers]
        self._is_over = any(outcome is _END for outcome in outcomes)
        if not self._is_over:
            self._request_all()
        try:
            for outcome in outcomes:
                if isinstance(outcome, BaseException):
                    raise outcome
            batches: list[DataBatch] = [outcome for outcome in outcomes if outcome is not _END]
            if not batches:
                return False
            self._check_equal(outcomes)
        finally:
            del outcomes, outcome  # the traceback of an error refers to this frame
        self.current_batch = DataBatch(
            [array for batch in batches for array in batch.data],
            [array for batch in batches for array in batch.label or []],
            batches[0].pad,
            batches[0].index,
            provide_data=self.provide_data,
            provide_label=self.provide_label,
        )
        return True

    def close(self, timeout: float = _CLOSE_SECONDS) -> None:
        """Ends the threads. Idempotent. Delivered batches stay valid. Later calls raise ValueError.

        Raises
        ------
        TimeoutError
            An iterator did not return within `timeout` seconds. Its thread is abandoned.
        """
        timeout = seconds(timeout, "timeout")
        _open_iterators.discard(self)
        _stop_all(self._helpers)
        deadline = time.monotonic() + timeout
        for helper in self._helpers:
            helper.join(max(0.0, deadline - time.monotonic()), timeout)

    def __enter__(self) -> PrefetchingIter:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _request_all(self) -> None:
        for helper in self._helpers:
            helper.request()

    def _check_equal(self, outcomes: list[Any]) -> None:
        if any(outcome is _END for outcome in outcomes):
            ended = [i for i, outcome in enumerate(outcomes) if outcome is _END]
            raise ValueError(f"iterators {ended} of {len(outcomes)} are at their end, and the others are not")
        pads = [outcome.pad for outcome in outcomes]
        if any(pad != pads[0] for pad in pads):
            raise ValueError(f"the iterators fill their batches up with different numbers of rows: {pads}")


_END: Any = type("_End", (), {"__repr__": lambda self: "the end"})()


class _Helper:
    """A thread that takes one batch of an iterator when it is asked to.

    It has no reference to the PrefetchingIter, which may be deleted while the thread lives. One consumer. In
    a forked child, where the thread does not exist, calls raise RuntimeError instead of waiting.
    """

    def __init__(self, iterator: Any, name: str) -> None:
        self._iterator = iterator
        self._process = os.getpid()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._changed = threading.Condition()
        # Guarded by _changed.
        self._is_requested = False  # from request() to take()
        self._is_wanted = False  # the thread has not begun with it
        self._is_stopped = False
        self._is_taking = False  # the thread is in the iterator
        self._outcome: Any = None  # a batch, _END, or what the iterator raised

    def request(self) -> None:
        """Requests the next batch, unless it is requested already."""
        self._check()
        with self._changed:
            if self._is_stopped:
                raise ValueError(_CLOSED)
            if self._is_requested:
                return
            self._is_requested = self._is_wanted = True
            self._changed.notify_all()
        if self._thread.ident is None:
            self._thread.start()

    def wait(self) -> None:
        """Waits for the batch that was requested, or for what the iterator raised."""
        timer = _core.ReportTimer()
        with self._changed:
            while self._outcome is None:
                if self._is_stopped:
                    raise ValueError("the PrefetchingIter was closed during the wait")
                if not self._thread.is_alive():
                    raise RuntimeError(f"the thread that takes the batches of {self._iterator!r} has ended")
                self._changed.wait(_LOOK_SECONDS)
                if self._outcome is None and timer.is_due():
                    log.warning("waiting for a batch of %r for %s", self._iterator, timer.text())

    def take(self) -> Any:
        with self._changed:
            if self._is_stopped:
                raise ValueError(_CLOSED)
            outcome, self._outcome = self._outcome, None
            self._is_requested = False
        return outcome

    def drop(self) -> None:
        """Waits for a batch that was requested, and drops it."""
        self._check()
        if self._is_stopped:
            raise ValueError(_CLOSED)
        if self._is_requested:
            self.wait()
            self.take()

    def stop(self) -> None:
        if os.getpid() != self._process:
            return
        with self._changed:  # reentrant, for a garbage collector that comes here from inside of it
            self._is_stopped = True
            self._outcome = None
            self._changed.notify_all()

    def join(self, seconds: float, given: float) -> None:
        if os.getpid() != self._process or self._thread.ident is None:
            return
        self._thread.join(seconds)
        if not self._is_taking:  # a busy machine
            self._thread.join(_LEAVE_SECONDS)
        if self._thread.is_alive():
            raise TimeoutError(
                f"{self._iterator!r} did not return within {given} s: its thread is left behind"
            )

    def _check(self) -> None:
        if os.getpid() != self._process:
            raise RuntimeError(
                "a forked child has no threads of its parent's: make the PrefetchingIter there"
            )

    def _run(self) -> None:
        while self._await_request():
            try:
                outcome: Any = next(self._iterator)
            except StopIteration:
                outcome = _END
            except BaseException as error:
                outcome = error
            with self._changed:
                if not self._is_stopped:
                    self._outcome = outcome
                self._is_taking = False
                self._changed.notify_all()
            del outcome  # the consumer's alone

    def _await_request(self) -> bool:
        with self._changed:
            self._changed.wait_for(lambda: self._is_wanted or self._is_stopped)
            self._is_wanted = False
            self._is_taking = not self._is_stopped
            return self._is_taking


def _stop_all(helpers: list[_Helper]) -> None:
    for helper in helpers:
        helper.stop()


def _renamed(
    described: list[list[Any]], names: list[dict[str, str]] | None, parameter: str
) -> list[DataDesc]:
    if names is not None and len(names) != len(described):
        raise ValueError(f"{parameter} has {len(names)} dicts for {len(described)} iterators")
    renames = names or [{} for _ in described]
    all_described = []
    for of_one, rename in zip(described, renames, strict=True):
        for description in of_one:
            given = description if isinstance(description, DataDesc) else DataDesc(*description)
            all_described.append(given._replace(name=rename.get(given.name, given.name)))
    return all_described


@atexit.register
def _close_all() -> None:
    for iterator in list(_open_iterators):
        try:
            iterator.close()
        except TimeoutError as error:
            log.warning("%s", error)
