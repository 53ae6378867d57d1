# SPDX-License-Identifier: Apache-2.0
"""Feeds whose batches go to other processes: the side that has the feed. `attached` is the other one.

Consumers receive batches from the table of the feed, which lies in shared memory with its slots: no batch
passes this process. The serving thread begins the epochs, notes the states of the generator, and gives back
what consumers that were killed had, all in `NativeFeed.serve_wait`.
"""

from __future__ import annotations

import itertools
import json
import os
import re
import threading
from typing import Any

from .. import _core
from .._errors import TenonError, log
from .._values import count, seconds
from .epochs import Iteration, OwnFeed

MODES = ("queue", "broadcast")
_NOTHING, _GATHERED, _EPOCH_ENDED, _OVER = range(4)  # what NativeFeed.serve_wait reports
_SLICE_SECONDS = 0.1  # between two looks for Ctrl-C

_numbers = itertools.count()

_NAME = re.compile(r"[A-Za-z0-9_.-]{1,95}")


def name_for(shared: bool | str, on_starved: str) -> str | None:
    """The name under which a feed is served; None: it is not."""
    if shared is False:
        return None
    if shared is not True and not isinstance(shared, str):
        raise TypeError(f"shared is {shared!r}: it must be False, True or a name")
    if shared == "":
        raise ValueError("shared is '': the name of a feed has at least one character")
    if shared is not True and not _NAME.fullmatch(shared):
        raise ValueError(
            f"shared is {shared!r}: the name of a feed has 1 to 95 letters, digits and the characters _ - ."
        )
    if on_starved not in ("wait", "raise"):
        raise ValueError(
            f"on_starved is {on_starved!r}, and the feed is shared: it keeps to its slots, as others map them"
        )
    return f"feed-{os.getpid()}-{next(_numbers)}" if shared is True else shared


def check(mode: str, epochs: int | None, consumers: int) -> None:
    """Checks the arguments of `Feed.serve`."""
    if mode not in MODES:
        raise ValueError(f"mode is {mode!r}: it must be one of {', '.join(MODES)}")
    if epochs is not None:
        count(epochs, "epochs")
    count(consumers, "consumers")


class Server:
    """One call of `Feed.serve`. The end of ``with feed.serve(background=True) as server: ...`` closes it.

    Attributes
    ----------
    name, mode : str
    epochs : int
        The number of finished epochs.
    batches : int
        The number of batches that consumers have received, or may receive now; each batch of a broadcast
        counts once. Updated every 0.1 s.
    """

    def __init__(self, feed: OwnFeed, mode: str, epochs: int | None, consumers: int) -> None:
        assert feed.name is not None
        self.name: str = feed.name
        self.mode: str = mode
        self.epochs: int = 0
        self.batches: int = 0
        self._feed = feed
        self._native = feed._native
        self._pid = os.getpid()
        self._most_epochs = epochs
        self._consumers = consumers
        self._before = self._native.serve_counts()["batches"]
        self._is_closing = False
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None

    def wait(self, timeout: float | None = None) -> None:
        """Waits until the epochs are over.

        Raises
        ------
        TimeoutError
            The epochs are not over after ``timeout`` seconds.
        """
        if timeout is not None:
            timeout = seconds(timeout, "timeout", ", or None")
        if self._thread is not None:
            self._thread.join(timeout)
            if self._thread.is_alive():
                raise TimeoutError(f"feed {self.name!r} has been served for {timeout} s, and is not over")
        error, self._error = self._error, None
        if error is not None:
            raise error

    def close(self) -> None:
        """Ends the loops of the consumers after the batches that are ready and that they may have. Batches
        that consumers have stay valid. Idempotent."""
        if self.is_running:
            self._is_closing = True
            self._native.serve_end()
        if self._thread is not None and self._thread is not threading.current_thread():
            self.wait()

    @property
    def is_running(self) -> bool:
        """False in a forked child: its end does not concern the consumers."""
        return self._feed._server is self and os.getpid() == self._pid

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        state = "running" if self.is_running else "over"
        return f"<tenon.Server of {self.name!r}, {self.mode}, {state}: {self.batches} batches>"

    # ------------------------------------------------------------------------- in the serving thread

    def _start_thread(self) -> None:
        thread = threading.Thread(target=self._run_thread, name="tenon serve", daemon=True)
        thread.start()
        self._thread = thread  # which another thread may join from now on

    def _run_thread(self) -> None:
        try:
            self._run()
        except BaseException as error:
            self._error = error
            log.error("feed %r is served no more: %s", self.name, error)

    def _run(self) -> None:
        bar = None
        timer, has_begun = _core.ReportTimer(), False
        try:
            while True:
                report = self._native.serve_wait(_SLICE_SECONDS)
                self._raise_interrupt()
                what, consumers, unread, has_failed, is_filled, batches = report
                added = max(batches - self._before - self.batches, 0)
                self.batches += added
                if bar is not None:
                    for _ in range(added):
                        bar.note_delivery()
                        bar.catch_up()
                if what == _OVER:
                    return
                if what == _NOTHING:
                    if has_begun and not is_filled:
                        timer = _core.ReportTimer()  # it does not wait for consumers
                    elif timer.is_due():
                        self._warn(timer.text(), has_begun, consumers, unread)
                    continue
                if what == _GATHERED:
                    self._seek()
                    has_begun = True
                else:
                    if has_failed:
                        failure = self._native.failure()
                        log.warning("feed %r goes on with its next epoch: %s", self.name, _text_of(failure))
                    self.epochs += 1
                if bar is not None:
                    bar.end()
                if self._most_epochs is not None and self.epochs >= self._most_epochs:
                    return
                bar = self._feed._progress_bar()
                self._native.serve_next()
                timer = _core.ReportTimer()
        except ValueError:
            if not self._is_closing:  # between two calls
                raise
        finally:
            if bar is not None:
                bar.end()
            if os.getpid() == self._pid:
                self._native.serve_end()
                self._feed._server = None

    def _raise_interrupt(self) -> None:
        """Of a fill in this thread, for a feed without workers."""
        inline = self._feed._inline
        interrupt = None if inline is None else inline.take_interrupt()
        if interrupt is not None:
            try:
                raise interrupt
            finally:
                interrupt = None  # its traceback refers to this frame

    def _warn(self, waited: str, has_begun: bool, consumers: int, unread: int) -> None:
        if not has_begun:
            log.warning(
                "feed %r has waited for %s for %d consumers before its first batch: %d have attached",
                self.name,
                waited,
                self._consumers,
                consumers,
            )
        else:
            log.warning(
                "feed %r has waited for %s for its %d consumers to end the epoch: %d batches are left",
                self.name,
                waited,
                consumers,
                unread,
            )

    def _seek(self) -> None:
        """Restores the state that consumers have loaded."""
        states = [state_of(found, self._feed._identity, found[5]) for found in self._native.serve_wanted()]
        for state in states:
            if state != states[0]:
                raise ValueError(
                    f"the consumers of feed {self.name!r} have loaded different states, {states[0]} and "
                    f"{state}: load the same one in each of them, or one in the feed that is served"
                )
        if states:
            self._feed.load_state_dict(states[0])


def state_of(found: tuple[Any, ...], identity: dict[str, Any], ranks: tuple[int, int]) -> dict[str, Any]:
    """As `Feed.state_dict` returns it. found: as `NativeAttached.state` returns it."""
    epoch, place, worker, ignored_index, states = found[:5]
    state = {"epoch": epoch, "next": place} | identity
    if states:
        state |= {"worker": worker, "states": states, "ranks": ranks}
    elif ignored_index:
        state["indexed"] = False
    return state


def _text_of(failure: dict[str, Any]) -> str:
    return f"batch {failure['index']} of epoch {failure['epoch']} has failed: {failure['text']}"


def serve(feed: OwnFeed, mode: str, epochs: int | None, consumers: int, background: bool) -> Server:
    if feed.name is None:
        raise ValueError('the feed has no name to be served under: make it with shared="name"')
    if feed._mode is not None and mode != feed._mode:
        raise ValueError(f"mode is {mode!r}, and feed {feed.name!r} was served as a {feed._mode} before")
    counts = feed._native.statistics()
    if counts["slots"] - max(counts["workers"], 1) < 1:
        raise ValueError(
            "the feed has 1 slot, and serving needs 2: one to fill while a consumer has the other"
        )
    note = json.dumps(
        {"batches": feed.batches, "order": feed._identity, "ranks": feed._ranks, "op": feed._name()}
    ).encode()
    with feed._serving:
        if feed._server is not None:
            raise TenonError(f"feed {feed.name!r} is being served already")
        Iteration._replace(feed)
        feed._native.serve(mode == "broadcast", consumers, note)
        feed._mode = mode
        server = feed._server = Server(feed, mode, epochs, consumers)
        if background:
            server._start_thread()
    if not background:
        server._run()
    return server


def facts_in(note: bytes) -> dict[str, Any]:
    """What the feed has noted for its consumers."""
    facts: dict[str, Any] = json.loads(note)
    return facts | {"ranks": tuple(facts["ranks"])}
