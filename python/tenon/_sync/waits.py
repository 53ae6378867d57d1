# SPDX-License-Identifier: Apache-2.0
"""Reports of waits that last long."""

from __future__ import annotations

import time

from .. import _core

REPORT_SECONDS = _core.REPORT_SECONDS


class ReportTimer:
    """The times at which a wait that begins now is reported: every 5 s, as in the library."""

    def __init__(self) -> None:
        self._began = time.monotonic()
        self._next = REPORT_SECONDS

    def seconds(self) -> float:
        """The duration of the wait."""
        return time.monotonic() - self._began

    def is_due(self) -> bool:
        """True once in each interval."""
        waited = self.seconds()
        if waited < self._next:
            return False
        self._next = next_report(waited)
        return True


def next_report(waited: float) -> float:
    """The duration of a wait at its next report, after ``waited`` seconds."""
    return (waited // REPORT_SECONDS + 1) * REPORT_SECONDS
