# SPDX-License-Identifier: Apache-2.0
"""Waits of asyncio tasks: without a thread; the thread that ends the awaited work wakes the task."""

from __future__ import annotations

import asyncio
import logging
from asyncio import events
from collections.abc import Callable, Generator
from typing import Any

from .. import _core

_log = logging.getLogger("tenon")

_REPORT_SECONDS = 5.0
_HELP_SECONDS = 0.001  # between looks for work, where the engine has no threads of its own


def current_task() -> asyncio.Task[Any] | None:
    """The asyncio task that this thread runs."""
    return None if events._get_running_loop() is None else asyncio.current_task()


def number_of(task: asyncio.Task[Any] | None) -> int:
    """The number of a task in the library. A lease keeps its task alive, so no other task gets the same
    number."""
    return 0 if task is None else id(task)


class Signal:
    """An event that a task waits for, once.

    Parameters
    ----------
    describe : callable
        Returns the name of the awaited work, for the report of a long wait.
    """

    def __init__(self, describe: Callable[[], str]) -> None:
        self._loop = asyncio.get_running_loop()
        self._future: asyncio.Future[None] = self._loop.create_future()
        self._describe = describe
        self._report_timer: asyncio.TimerHandle | None = None
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
        self._report_later(self._loop.time())
        try:
            self._help()
            yield from self._future
        finally:
            self._is_over = True
            if self._report_timer is not None:
                self._report_timer.cancel()

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

    def _report_later(self, began: float) -> None:
        self._report_timer = self._loop.call_later(_REPORT_SECONDS, self._report, began)

    def _report(self, began: float) -> None:
        _log.warning("waiting for %d s for %s", self._loop.time() - began, self._describe())
        self._report_later(began)
