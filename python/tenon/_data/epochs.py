# SPDX-License-Identifier: Apache-2.0
"""One pass over a feed."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NoReturn, Protocol, Self

from .._core import Batch, NativeEpoch, NativeFeed, Schema
from .._errors import LeaseConflict, OpError, TenonError, is_of_user, log
from . import closing
from .progress import ProgressBar

if TYPE_CHECKING:
    import threading

    from .workers import Inline


_REPLACED = (
    "this iterator has ended, because another iteration over the feed has begun: a feed delivers one epoch "
    "at a time"
)
_INTERRUPTED = (
    "this iterator has ended, because it was interrupted (as by Ctrl-C) where it made or handed out a batch, "
    "which is lost: iterate over the feed again"
)


class HasEpochs(Protocol):
    """A feed of this process or of another one, as its iterations see it."""

    _epoch: weakref.ref[Iteration] | None  # None: no iteration has begun

    def _live_epoch(self) -> Iteration | None: ...


class OwnFeed(HasEpochs, Protocol):
    """A feed of this process, as its iterations and its server see it."""

    name: str | None
    schema: Schema
    batches: int | None
    timeout: float | None
    _native: NativeFeed
    _inline: Inline | None
    _ranks: tuple[int, int]
    _server: Any
    _mode: str | None
    _serving: threading.Lock
    _identity: dict[str, Any]

    def state_dict(self) -> dict[str, Any]: ...
    def load_state_dict(self, state: dict[str, Any]) -> None: ...
    def _begin_epoch(self, device: str | None) -> None: ...
    def _progress_bar(self) -> ProgressBar | None: ...
    def _name(self) -> str: ...


class Iteration(NativeEpoch):
    """The one live iterator of a feed, of this process or of another one."""

    _feed: Any = None  # None: it has ended, or its constructor has raised
    _way_to_end = ", or feed.end()"
    _way_to_several = ", so make a feed for each of several loops that run at the same time"
    _is_replaced = False
    _has_lost_batch = False

    @classmethod
    def _replace(cls, feed: HasEpochs) -> None:
        """Ends the live iterator of the feed for another one."""
        live = feed._live_epoch()
        if live is None:
            return
        if live._is_in_next:
            raise TenonError(
                f"another thread waits for a batch of this feed: end its loop first{cls._way_to_end}"
            )
        live._end()
        live._is_replaced = True

    def _step(self, error: BaseException | None, is_delivered: bool) -> Any:
        """The next batch, if the native part has none.

        error: raised instead, after a failure of the native part; is_delivered: the conversion of a batch has
        failed.
        """
        raise NotImplementedError

    def _begin(self, feed: HasEpochs, convert: Callable[[Any], Any]) -> None:
        self._feed = feed
        self._convert = convert
        feed._epoch = weakref.ref(self)

    def __iter__(self) -> Self:
        return self

    def _stop(self) -> NoReturn:
        """Raises what `__next__` raises after the end of the iterator."""
        if self._is_replaced:
            raise TenonError(_REPLACED + self._way_to_several)
        if self._has_lost_batch:
            raise TenonError(_INTERRUPTED)
        raise StopIteration

    def _leave(self) -> None:
        """Takes no more batches."""
        if self._feed is not None:
            self._detach()
        self._feed = None

    def _end(self) -> None:
        self._leave()


class Epoch(Iteration):
    """The one live iterator of a feed of this process."""

    _progress: ProgressBar | None = None

    def __init__(self, feed: OwnFeed, convert: Callable[[Batch], Any], device: str | None = None) -> None:
        super().__init__()
        self._replace(feed)
        feed._begin_epoch(device)
        self._begin(feed, convert)
        self._progress = feed._progress_bar()
        self._next = _next_of(feed._native)

    def _step(self, error: BaseException | None, is_delivered: bool) -> Any:
        feed = self._feed
        if feed is None:
            if error is None:
                self._stop()
            # Another thread has ended it meanwhile.
            try:
                raise error
            finally:
                error = None
        progress = self._progress
        if progress is not None:
            progress.catch_up()
        batch = None
        try:
            self._is_in_next = True
            if error is not None:
                try:
                    raise error
                finally:
                    error = None  # else the error would refer to itself, by this frame
            try:
                batch = self._next(feed.timeout, log.warning)
            finally:
                interrupt = None if feed._inline is None else feed._inline.take_interrupt()
                if interrupt is not None:
                    self._end()
                    self._has_lost_batch = True
                    try:
                        raise interrupt
                    finally:
                        interrupt = None  # its traceback refers to this frame
            if batch is not None:
                if progress is not None:
                    progress.note_delivery()
                return self._convert(batch)
        except (TimeoutError, LeaseConflict):
            if batch is not None or is_delivered:  # of the conversion, which has lost it
                self._end()
            raise  # of the wait: the caller may let go of batches, and try again
        except OpError as failure:
            if batch is None and not is_delivered:  # else its copy to a device has failed
                add_failure(failure, feed._name(), feed._native.failure())
            self._end()
            raise
        except ValueError as other:
            if batch is None and not is_delivered and is_of_user(other):  # of a signal handler, in the wait
                raise
            self._end()  # closed
            if closing.is_python_ending:  # by Python's end, under a daemon thread
                raise StopIteration from None
            raise
        except BaseException as other:
            # Of a wait, for example by Ctrl-C: the next call goes on. Else a batch is lost, or may be.
            is_of_wait = batch is None and not is_delivered and not isinstance(other, MemoryError)
            if not is_of_wait or feed._inline is not None:
                self._end()
                self._has_lost_batch |= not isinstance(other, Exception)
            raise
        finally:
            self._is_in_next = False
        self._leave()
        self._end_progress()
        raise StopIteration

    def _end(self) -> None:
        feed = self._feed
        self._leave()
        if feed is not None:
            feed._native.end()
            self._end_progress()

    def _end_progress(self) -> None:
        if self._progress is not None:
            self._progress.end()

    def __del__(self) -> None:
        self._end()


def add_failure(error: OpError, op: str, failure: dict[str, Any]) -> None:
    """Adds to an error what the feed knows about the failure. op: the name of the generator."""
    text = failure.pop("text")
    if text and text not in str(error):  # the message was cut
        error.args = (str(error).partition(": ")[0] + ": " + text, *error.args[1:])
    error.op = op
    error.__dict__.update(failure)


def _next_of(native: NativeFeed) -> Callable[[float | None, Callable[[str], object]], Batch | None]:
    def next_batch(timeout: float | None, warn: Callable[[str], object]) -> Batch | None:
        for generation in (1, 2):
            try:
                return native.next(timeout, warn)
            except LeaseConflict as error:
                if is_of_user(error):
                    raise
                gc.collect(generation)  # batches in dead cycles are not what the consumer holds
        return native.next(timeout, warn)

    return next_batch
