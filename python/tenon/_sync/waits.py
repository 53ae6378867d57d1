# SPDX-License-Identifier: Apache-2.0
"""Reports of waits that last long."""

from __future__ import annotations

import time

from .. import _core

REPORT_SECONDS = _core.REPORT_SECONDS


class ReportTimer:
    """When a wait that begins now is to be reported: every 5 s, as the library reports its own."""

    def __init__(self) -> None:
        self._began = time.monotonic()
        self._next = REPORT_SECONDS

    def seconds(self) -> float:
        """So long it has lasted."""
        return time.monotonic() - self._began

    def is_due(self) -> bool:
        """True once in each interval."""
        waited = self.seconds()
        if waited < self._next:
            return False
        self._next = next_report(waited)
        return True


def next_report(waited: float) -> float:
    """How long a wait that has lasted ``waited`` seconds will have lasted when it is reported next."""
    return (waited // REPORT_SECONDS + 1) * REPORT_SECONDS
