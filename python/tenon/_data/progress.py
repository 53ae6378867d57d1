# SPDX-License-Identifier: Apache-2.0
"""ProgressBar bars of a feed's epochs: ``progress=`` of `Feed`."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from .._errors import log

if TYPE_CHECKING:
    from .statistics import Meter


_TEXT_SECONDS = 0.5


def is_bar(progress: Any) -> bool:
    """Whether it is a bar, and not a function that makes one."""
    return not isinstance(progress, type) and callable(getattr(progress, "update", None))


def check(progress: Any) -> None:
    if progress is not None and not is_bar(progress) and not callable(progress):
        raise TypeError(
            f"progress is {type(progress).__name__}: it must be a bar with update(n), or what makes one "
            "when it is called with total=, as tqdm.tqdm"
        )


class ProgressBar:
    """The bar of one epoch. An exception of the bar is logged once and ends the bar; no batch is lost.

    A batch is counted when the consumer requests the next one. So an interrupt while the bar is drawn loses
    no batch either.
    """

    def __init__(self, progress: Any, meter: Meter, done: int, total: int | None) -> None:
        self._bar: Any = None
        self._close: Callable[[], object] | None = None
        self._meter = meter
        self._is_due = False
        self._told_at = time.monotonic()
        try:
            if is_bar(progress):
                self._bar = progress
            else:
                self._bar = progress(total=total)
                self._close = getattr(self._bar, "close", None)
            if done:
                self._bar.update(done)
        except Exception as error:
            self._give_up(error)

    def note_delivery(self) -> None:
        self._is_due = True

    def catch_up(self) -> None:
        """Counts the delivered batch, unless it was counted already."""
        if not self._is_due or self._bar is None:
            return
        self._is_due = False
        try:
            self._bar.update(1)
            now = time.monotonic()
            tell = getattr(self._bar, "set_postfix_str", None)
            if tell is not None and now - self._told_at >= _TEXT_SECONDS:
                self._told_at = now
                total = self._meter.look(is_call=False).total
                tell(f"{total.gb_per_s:.3g} GB/s, {total.verdict}")
        except Exception as error:
            self._give_up(error)

    def end(self) -> None:
        """Closes a bar that the feed has made. Idempotent."""
        self._bar, close, self._close = None, self._close, None
        if close is not None:
            try:
                close()
            except Exception as error:
                self._give_up(error)

    def _give_up(self, error: Exception) -> None:
        self._bar = None
        text = f"{type(error).__name__}: {error}"  # a record with the error keeps its frames, and batches
        log.warning("the progress bar of a feed failed and is left out: %s", text)
