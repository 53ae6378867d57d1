# SPDX-License-Identifier: Apache-2.0
"""The chart of docs/benchmarks.md, drawn from the tables of speeds on that page.

Each panel has one quantity: the speed in the unit of its table. The colours can be read on white and black.

    python3 bench/feed/chart.py     draws docs/feed.svg again
"""

import re
from html import escape
from pathlib import Path

PAGE = Path(__file__).resolve().parents[2] / "docs/benchmarks.md"
CHART = PAGE.with_name("feed.svg")

COLUMNS, PANEL_WIDTH, GAP = 2, 440, 24
LABEL_WIDTH, BAR_WIDTH = 128, 200  # of the largest speed
ROW, BAR, TITLE = 18, 11, 40
TENON, PEER, INK = "#2f7fd8", "#97a0aa", "#707a85"

# Of each group, the fastest row is shown.
GROUPS = (
    ("Tenon, threads", re.compile(r"tenon\.Feed, \d threads?$")),
    ("Tenon, processes", re.compile(r"tenon\.Feed, \d process(es)?$")),
    ("SPDL", re.compile("SPDL")),
    ("grain", re.compile("grain")),
    ("DataLoader", re.compile("DataLoader")),
    ("mp.Queue", re.compile("multiprocessing.Queue")),
    ("a fresh np.empty", re.compile("np.empty")),
)
REFERENCES = re.compile(r"64 batches in memory$|6 warm buffers filled in turn$")
LONE_REFERENCE = re.compile(r"one warm buffer filled in place$")


def tables(page):
    """(title, unit, [(name, speed as text)], the fastest first) for each table of speeds."""
    section = page.split("### Speeds", 1)[1].split("### First batch", 1)[0]
    for table in re.findall(r"(?:^\|.*\n)+", section, re.M):
        header, _, *rows = ([cell.strip() for cell in row.split("|")[1:-1]] for row in table.splitlines())
        speeds = [(row[0], row[3]) for row in rows]
        yield header[0], header[3], sorted(speeds, key=lambda speed: -number(speed[1]))


def number(speed):
    return float(speed.replace(",", ""))


def first(speeds, pattern):
    return next(((name, speed) for name, speed in speeds if pattern.match(name)), None)


def text(x, y, words, size=12, anchor="start", weight="normal"):
    return (
        f'<text x="{x:g}" y="{y:g}" font-size="{size}" text-anchor="{anchor}" font-weight="{weight}">'
        f"{escape(words)}</text>"
    )


def rectangle(x, y, width, colour):
    return f'<rect x="{x:g}" y="{y:g}" width="{max(width, 1):.1f}" height="{BAR}" rx="2" fill="{colour}"/>'


def panel(title, unit, speeds, left, top):
    reference = first(speeds, REFERENCES) or first(speeds, LONE_REFERENCE)
    bars = [(label, found[1]) for label, pattern in GROUPS if (found := first(speeds, pattern))]
    scale = BAR_WIDTH / max(number(speed) for _, speed in [*bars, reference])
    zero, bottom = left + LABEL_WIDTH, top + TITLE + ROW * len(bars)
    lines = [
        text(left, top + 13, title, 13, weight="bold"),
        text(left, top + 29, f"{unit}; dashed: {reference[0]}, {reference[1]}", 11),
    ]
    for i, (label, speed) in enumerate(bars):
        y, width = top + TITLE + ROW * i, scale * number(speed)
        lines += [
            text(zero - 6, y + BAR - 1, label, anchor="end"),
            rectangle(zero, y, width, TENON if label.startswith("Tenon") else PEER),
            text(zero + BAR_WIDTH + 8, y + BAR - 1, speed, 11),
        ]
    line = f"M{zero + scale * number(reference[1]):.1f} {top + TITLE - 4}V{bottom - 2}"
    lines.append(f'<path d="{line}" stroke="{INK}" stroke-dasharray="3 3"/>')
    return lines, bottom


def draw(page):
    """page: the text with the tables."""
    lines, top, height = [], 8, 0
    for i, table in enumerate(tables(page)):
        if i % COLUMNS == 0 and i:
            top = height + GAP
        drawn, bottom = panel(*table, 12 + i % COLUMNS * (PANEL_WIDTH + GAP), top)
        lines += drawn
        height = max(height, bottom)
    width = COLUMNS * (PANEL_WIDTH + GAP)
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height + 8}" '
        f'font-family="system-ui, sans-serif" fill="{INK}" role="img">'
    )
    title = "<title>Speeds of feeds and of other loaders; each panel in its own unit</title>"
    return "\n".join([head, title, *lines, "</svg>"]) + "\n"


if __name__ == "__main__":
    CHART.write_text(draw(PAGE.read_text()))
