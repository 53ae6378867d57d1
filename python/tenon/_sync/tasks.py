# SPDX-License-Identifier: Apache-2.0
"""Waits of asyncio tasks: without a thread; the thread that ends the awaited work wakes the task."""

from __future__ import annotations

import re
import sys
import threading
import time
from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, Any

from .. import _core
from .._errors import log

if TYPE_CHECKING:
    import asyncio


_OUTLIVED_SECONDS = 1.0  # after which views that outlived their block are reported
_MAX_POLL_SECONDS = 0.02
_HELP_SECONDS = 0.001  # between looks for ready ops, if the engine has no threads
_RETAINED_SECONDS = 0.05
_MOST_REPORTS = 100  # that are remembered

# The reports of waits without durations and ages: when it was logged last, and for which waiter.
_reported: dict[str, tuple[float, int]] = {}


def report(text: str, waiter: int | None = None) -> None:
    """Logs what a thread or task waits for. One of all that wait for the same is logged, as long as it waits.
    ``waiter``: its identity; None: this thread."""
    waiter = threading.get_ident() if waiter is None else waiter
    key = re.sub(r"\b[\d.]+ m?s\b", "", text)
    now, period = time.monotonic(), _core.set_report_seconds(0)
    when, logged = _reported.get(key, (now, waiter))
    if logged != waiter and now - when < 1.5 * period:
        return
    if len(_reported) >= _MOST_REPORTS:
        _reported.clear()
    _reported[key] = now, waiter
    log.warning("%s", text)


def current_task() -> asyncio.Task[Any] | None:
    """The asyncio task that this thread runs."""
    events = sys.modules.get("asyncio.events")  # the code that runs a loop has imported it
    running_loop = getattr(events, "_get_running_loop", None)  # None while another thread imports it
    if running_loop is None or running_loop() is None:
        return None
    import asyncio

    return asyncio.current_task()


def number_of(task: asyncio.Task[Any] | None) -> int:
    """The number of a task in the library. No other task ever gets it."""
    return 0 if task is None else _core.number_of_task(task)


class Signal:
    """An event that a task waits for, once.

    Parameters
    ----------
    report : callable
        A function of the library, called in the thread of the loop: reports views that outlived their block
        and are in the way. With True, returns what the task waits for, in words; empty if nothing is in its
        way.
    """

    def __init__(self, report: Callable[[bool], str]) -> None:
        import asyncio

        self._loop = asyncio.get_running_loop()
        self._future: asyncio.Future[None] = self._loop.create_future()
        self._ask = report
        self._timer = _core.ReportTimer()
        self._next_report: asyncio.TimerHandle | None = None
        self._is_over = False

    def set(self) -> bool:
        """Wakes the task. May be called from any thread. False: the loop is closed, and no task waits."""
        try:
            self._loop.call_soon_threadsafe(self._end)
        except RuntimeError:
            if not self._loop.is_closed():
                raise
            return False
        return True

    def wait(self) -> Generator[Any, None, None]:
        """Waits until it is set. Runs ops meanwhile if the engine has no threads."""
        self._report_later(_OUTLIVED_SECONDS)
        try:
            self._help()
            self._release_retained()
            yield from self._future
        finally:
            self._is_over = True
            if self._next_report is not None:
                self._next_report.cancel()

    def __await__(self) -> Generator[Any, None, None]:
        return self.wait()

    def _end(self) -> None:
        if not self._future.done():
            self._future.set_result(None)

    def _help(self) -> None:
        if self._is_over or self._future.done():
            return
        ran = _core.help()
        if ran > 0:
            self._loop.call_soon(self._help)
        elif ran == 0:
            self._loop.call_later(_HELP_SECONDS, self._help)

    def _release_retained(self) -> None:
        """The array of an ended block may be in the way, to which only names refer by now. A wait of a thread
        looks, too (poll_wait, python/src/waiting.cc)."""
        if self._is_over or self._future.done():
            return
        pause = _RETAINED_SECONDS if _core.release_retained() else _OUTLIVED_SECONDS
        self._loop.call_later(pause, self._release_retained)

    def _report_later(self, seconds: float) -> None:
        self._next_report = self._loop.call_later(seconds, self._report)

    def _report(self) -> None:
        behind = self._ask(self._timer.is_due())
        if behind:
            report(f"waiting for {self._timer.text()} behind {behind}", id(self))
        if not self._is_over:
            self._report_later(self._timer.left())


async def until_empty(find: Callable[[], str]) -> None:
    """Polls until ``find`` returns an empty text. ``find``: what there is to wait for, in words."""
    import asyncio

    timer, pause = _core.ReportTimer(), 0.0
    while found := find():
        if timer.is_due():
            report(f"waiting for {timer.text()} behind {found}", id(timer))
        await asyncio.sleep(pause)
        pause = min(2 * pause + 0.0001, _MAX_POLL_SECONDS)
