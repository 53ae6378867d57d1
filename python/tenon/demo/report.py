# SPDX-License-Identifier: Apache-2.0
"""The output of the demo: a progress bar during the training, and a table at the end."""

from __future__ import annotations

import sys
from typing import Any

from tenon._tools.terminal import Table, lines


class OneLine:
    """In place of tqdm's bar: one line, at the end."""

    def __init__(self, total: int, text: str) -> None:
        self._text, self._total, self._done, self._postfix = text, total, 0, ""

    def update(self, n: int) -> None:
        self._done += n

    def set_postfix_str(self, s: str, refresh: bool) -> None:
        self._postfix = s

    def close(self) -> None:
        print(f"{self._text}: {self._done}/{self._total} {self._postfix}".rstrip(), file=sys.stderr)


def progress(total: int, text: str, unit: str) -> Any:
    """A progress bar on standard error: tqdm's where it is installed."""
    try:
        from tqdm import tqdm  # type: ignore[import-untyped]
    except ImportError:
        return OneLine(total, text)
    pause = 0.2 if sys.stderr.isatty() else 5.0
    return tqdm(total=total, desc=text, unit=" " + unit, mininterval=pause, file=sys.stderr)


def table(result: dict[str, Any]) -> str:
    """The demo's result as text, beside the goals."""
    rows = [
        ("accuracy on held-out digits", f"{result['accuracy']:.1%}", ">= 97 %"),
        ("host copies per batch", f"{result['host_copies_per_batch']:.2f}", "0.00"),
        ("page faults per batch", f"{result['page_faults_per_batch']:.2f}", "<= 0.5"),
    ]
    processes = "process" if result["workers"] == 1 else "processes"
    head = (
        f"{result['batches']} batches of {result['batch_bytes']} bytes in {result['seconds']:.1f} s "
        f"({result['framework']}, {result['slots']} slots, {result['workers']} worker {processes})"
    )
    measured = Table(("", "measured", "goal"), rows)
    return "\n".join(lines([head, "", measured, "", f"copies: {result['host_copies_method']}"]))
