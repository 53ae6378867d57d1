# SPDX-License-Identifier: Apache-2.0
"""What the demo shows: a progress bar while it trains, and the tables at the end."""

from __future__ import annotations

import sys
from typing import Any, NamedTuple

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


class Goal(NamedTuple):
    """A figure of the result beside what is aimed at."""

    name: str
    measured: str
    aim: str
    is_met: bool


def goals(result: dict[str, Any]) -> list[Goal]:
    """What the demo aims at. A figure that was not measured misses nothing."""
    accuracy, copies = result["accuracy"], result["host_copies_per_batch"]
    faults, ratio = result["page_faults_per_batch"], result["in_memory_loop_ratio"]
    loader = result["dataloader_ratio"]
    loader_text = "-" if loader is None else f"{loader:.2f}"
    return [
        Goal("accuracy on held-out digits", f"{accuracy:.1%}", ">= 97 %", accuracy >= 0.97),
        Goal("host copies per batch", f"{copies:.2f}", "0.00", abs(copies) < 0.05),
        Goal("page faults per batch", f"{faults:.2f}", "<= 0.5", faults <= 0.5),
        Goal("speed / loop on data in memory", f"{ratio:.2f}", ">= 0.9", ratio >= 0.9),
        Goal("speed / PyTorch's DataLoader", loader_text, ">= 1.5", loader is None or loader >= 1.5),
    ]


def verdict(result: dict[str, Any]) -> str:
    """PASS, or the goals that the run has missed: the last line of the demo."""
    missed = [f"{one.name} is {one.measured} (goal: {one.aim})" for one in goals(result) if not one.is_met]
    if not missed:
        return "PASS"
    text = f"MISSED: {'; '.join(missed)}"
    return f"{text}. The figures of --quick are rough" if result["quick"] else text


def table(result: dict[str, Any]) -> str:
    """The demo's result as text, beside what is aimed at."""
    loader = result["dataloader_ratio"]
    rows = [one[:3] for one in goals(result)]
    speeds = [(name, f"{us:.0f}") for name, us in result["us_per_batch"].items()]
    processes = "process" if result["workers"] == 1 else "processes"
    head = (
        f"{result['batches']} batches of {result['batch_bytes']} bytes in {result['seconds']:.1f} s "
        f"({result['framework']}, {result['slots']} slots, {result['workers']} worker {processes})"
    )
    notes = [f"copies: {result['host_copies_method']}"]
    if loader is None:
        notes.append(f"DataLoader: {result['dataloader_reason']}")
    measured = Table(("", "measured", "goal"), rows)
    timed = Table(("training loop on", "us per batch"), speeds)
    return "\n".join(lines([head, "", measured, "", timed, "", *notes]))
