# SPDX-License-Identifier: Apache-2.0
"""The output of commands: lines and tables, as plain text, or by rich on a terminal."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple


class Table(NamedTuple):
    """Cells are shown with `str`. A table without rows is not shown."""

    head: Sequence[str]
    rows: Sequence[Sequence[Any]]


Parts = Iterable[str | Table]


def lines(parts: Parts) -> Iterator[str]:
    """The parts as plain text, with aligned columns of tables."""
    for part in parts:
        if isinstance(part, str):
            yield part
            continue
        rows = [[str(cell) for cell in row] for row in (part.head, *part.rows)]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        for row in rows if part.rows else ():
            yield "  " + "  ".join(map(str.ljust, row, widths)).rstrip()


def console() -> Any:
    """rich's console; None if rich is not installed, or standard output is not a (capable) terminal."""
    if sys.stdout is None or not sys.stdout.isatty():
        return None
    try:
        from rich.console import Console
    except ImportError:
        return None
    found = Console()
    return None if found.is_dumb_terminal else found


def renderable(parts: Parts) -> Any:
    """The parts for rich, which wraps long lines."""
    from rich.console import Group
    from rich.table import Table as RichTable
    from rich.text import Text

    shown: list[Any] = []
    for part in parts:
        if isinstance(part, str):
            shown.append(Text(part, overflow="fold"))
            continue
        table = RichTable(*part.head, box=None, padding=(0, 0, 0, 2), header_style="bold")
        for row in part.rows:
            table.add_row(*(Text(str(cell)) for cell in row))
        if part.rows:
            shown.append(table)
    return Group(*shown)


def show(parts: Parts, clears: bool = False) -> None:
    """Prints the parts. clears: in place of what a terminal shows; elsewhere behind an empty line."""
    parts = list(parts)
    if clears:
        is_terminal = sys.stdout is not None and sys.stdout.isatty()
        is_capable = is_terminal and os.environ.get("TERM", "dumb") not in ("", "dumb", "unknown")
        print("\x1b[H\x1b[2J" if is_capable else "\n", end="")
    terminal = console()
    if terminal is None:
        print("\n".join(lines(parts)), flush=True)
    else:
        terminal.print(renderable(parts))
