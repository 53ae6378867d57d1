# SPDX-License-Identifier: Apache-2.0
"""The chart of docs/benchmarks.md: SVG whose colours can be read on white and on black."""

import statistics
from html import escape

from . import goals
from .parts import PARTS

COLUMNS, PANEL_WIDTH, GAP = 2, 440, 24
LABEL_WIDTH, BAR_WIDTH = 128, 180  # of the largest ratio, or of 1
ROW, BAR, TITLE = 18, 11, 40
TENON, PEER, INK = "#2f7fd8", "#97a0aa", "#707a85"

PEERS = (
    ("SPDL", "SPDL"),
    ("grain", "grain"),
    ("DataLoader", "DataLoader"),
    ("mp.Queue", "multiprocessing.Queue"),
    ("a fresh np.empty", "np.empty"),
)


def bars_of(seconds):
    """(label, name, is Tenon's): the best setting of each contender."""
    ours = [(f"Tenon, {kind}", goals.of_feed(seconds, kind[:6]), True) for kind in ("threads", "processes")]
    theirs = [(label, goals.best(seconds, word), False) for label, word in PEERS]
    return [bar for bar in [*ours, *theirs] if bar[1] is not None]


def text(x, y, words, size=12, anchor="start", weight="normal"):
    return (
        f'<text x="{x:g}" y="{y:g}" font-size="{size}" text-anchor="{anchor}" font-weight="{weight}">'
        f"{escape(words)}</text>"
    )


def rectangle(x, y, width, colour):
    return f'<rect x="{x:g}" y="{y:g}" width="{max(width, 1):.1f}" height="{BAR}" rx="2" fill="{colour}"/>'


def panel(part, seconds, left, top):
    reference = goals.reference_of(seconds)
    bars = [(*bar, goals.ratio(seconds, bar[1], reference)) for bar in bars_of(seconds)]
    scale = BAR_WIDTH / max(1, *(ratio for *_, ratio in bars))
    zero, bottom = left + LABEL_WIDTH, top + TITLE + ROW * len(bars)
    lines = [
        text(left, top + 13, part.title, 13, weight="bold"),
        text(left, top + 29, f"1 = {reference}", 11),
    ]
    for i, (label, name, is_ours, ratio) in enumerate(bars):
        y = top + TITLE + ROW * i
        speed = goals.speed_text(part.per_batch / statistics.median(seconds[name]))
        lines += [
            text(zero - 6, y + BAR - 1, label, anchor="end"),
            rectangle(zero, y, scale * ratio, TENON if is_ours else PEER),
            text(zero + BAR_WIDTH + 8, y + BAR - 1, f"{ratio:.2g}: {speed} {part.unit}", 11),
        ]
    line = f"M{zero + scale:.1f} {top + TITLE - 4}V{bottom - 2}"
    lines.append(f'<path d="{line}" stroke="{INK}" stroke-dasharray="3 3"/>')
    return lines, bottom


def draw(found):
    """found: part -> name -> seconds per batch."""
    lines, top, height = [], 8, 0
    for i, (name, seconds) in enumerate(found.items()):
        if i % COLUMNS == 0 and i:
            top = height + GAP
        drawn, bottom = panel(PARTS[name], seconds, 12 + i % COLUMNS * (PANEL_WIDTH + GAP), top)
        lines += drawn
        height = max(height, bottom)
    width = COLUMNS * (PANEL_WIDTH + GAP)
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height + 8}" '
        f'font-family="system-ui, sans-serif" fill="{INK}" role="img">'
    )
    title = "<title>Speeds of feeds and of their peers, as multiples of a ceiling</title>"
    return "\n".join([head, title, *lines, "</svg>"]) + "\n"
