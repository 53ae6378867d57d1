# SPDX-License-Identifier: Apache-2.0
"""What the demo shows: a progress bar while it trains, and the tables at the end."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from typing import Any, Protocol, TextIO


class Progress(Protocol):
    """What the demo asks of a progress bar; tqdm has it."""

    def update(self, n: int) -> Any: ...
    def set_postfix_str(self, s: str, refresh: bool) -> Any: ...
    def close(self) -> Any: ...


class PlainProgress:
    """A line that rewrites itself, ten times a second at most; only the last state where that cannot be."""

    def __init__(self, total: int, text: str, stream: TextIO) -> None:
        self._total = total
        self._text = text
        self._stream = stream
        self._done = 0
        self._postfix = ""
        self._shown = 0.0

    def update(self, n: int) -> None:
        self._done += n
        if self._stream.isatty() and time.monotonic() - self._shown > 0.1:
            self._shown = time.monotonic()
            self._show("\r", "")

    def set_postfix_str(self, s: str, refresh: bool) -> None:
        self._postfix = s
        if refresh and self._stream.isatty():
            self._show("\r", "")

    def close(self) -> None:
        self._show("\r" if self._stream.isatty() else "", "\n")

    def _show(self, begin: str, end: str) -> None:
        share = self._done / self._total
        bar = ("#" * round(30 * share)).ljust(30, ".")
        line = f"{self._text} [{bar}] {self._done}/{self._total} {self._postfix}"
        print(begin + line, end=end, file=self._stream, flush=True)


def progress(total: int, text: str, unit: str) -> Progress:
    """A progress bar on standard error: tqdm's where it is installed."""
    try:
        from tqdm import tqdm  # type: ignore[import-untyped]
    except ImportError:
        return PlainProgress(total, text, sys.stderr)
    pause = 0.2 if sys.stderr.isatty() else 5.0
    bar: Progress = tqdm(total=total, desc=text, unit=" " + unit, mininterval=pause, file=sys.stderr)
    return bar


def _columns(rows: Sequence[tuple[str, ...]]) -> list[str]:
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = []
    for row in rows:
        cells = [row[0].ljust(widths[0])] + [c.rjust(w) for c, w in zip(row[1:], widths[1:], strict=True)]
        lines.append("  " + "  ".join(cells).rstrip())
    return lines


def table(result: dict[str, Any]) -> str:
    """The demo's result as text, beside what is aimed at."""
    loader = result["dataloader_ratio"]
    rows = [
        ("", "measured", "goal"),
        ("accuracy on held-out digits", f"{result['accuracy']:.1%}", ">= 97 %"),
        ("host copies per batch", f"{result['host_copies_per_batch']:.2f}", "0.00"),
        ("page faults per batch", f"{result['page_faults_per_batch']:.2f}", "<= 0.5"),
        ("speed / loop on data in memory", f"{result['in_memory_loop_ratio']:.2f}", ">= 0.9"),
        ("speed / PyTorch's DataLoader", "-" if loader is None else f"{loader:.2f}", ">= 1.5"),
    ]
    speeds = [("training loop on", "us per batch")]
    speeds += [(name, f"{us:.0f}") for name, us in result["us_per_batch"].items()]
    processes = "process" if result["workers"] == 1 else "processes"
    head = (
        f"{result['batches']} batches of {result['batch_bytes']} bytes in {result['seconds']:.1f} s "
        f"({result['framework']}, {result['slots']} slots, {result['workers']} worker {processes})"
    )
    notes = [f"copies: {result['host_copies_method']}"]
    if loader is None:
        notes.append(f"DataLoader: {result['dataloader_reason']}")
    return "\n".join([head, "", *_columns(rows), "", *_columns(speeds), "", *notes])
