# SPDX-License-Identifier: Apache-2.0
"""``tenon plot``: draws a trace with matplotlib. Groups and lanes are those of the trace, in the same
order."""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import EngFormatter

from .observers import plain

_FORMATS = (".svg", ".png")
_WIDTH, _ROW, _MOST_HEIGHT = 16.0, 0.19, 400.0  # inches; of the figure, of a row, of the figure
_MOST_LANES = 64  # of one group: the busiest
_MOST_DEPTH = 8
_MOST_LETTERS = 40  # of a lane's name
_LETTERS = 220  # of a slice's name, if the slice took all of the time
_MOST_PATHS = 2000  # of one row: above, its bars are an image, so that the file stays small
_SAME = 6e-4  # microseconds: times are written to a nanosecond, and sums of them are not exact

# Category of the trace -> (colour, what the legend says).
_KINDS = {
    "op": ("#4e79a7", "op"),
    "op waits": ("#a0cbe8", "ops that wait"),
    "op completes": ("#86bcb6", "op, after its return"),
    "device": ("#9c755f", "work on a device"),
    "wait": ("#bab0ac", "thread waits"),
    "lease": ("#76b7b2", "lease"),
    "lease waits": ("#d7b5a6", "waits for a lease"),
    "fill": ("#59a14f", "fill"),
    "blocked": ("#f28e2b", "worker without a slot"),
    "starved": ("#ff9d9a", "consumer starved"),
    "filling": ("#8cd17d", "slot: filling"),
    "ready": ("#f1ce63", "slot: ready"),
    "held": ("#b07aa1", "slot: held"),
    "failed": ("#d6001c", "failed, or skipped"),
}
_OTHER = ("#9c9ede", "other")


@dataclasses.dataclass
class _Slice:
    begin: float  # microseconds
    end: float
    name: str
    kind: str
    depth: int = 0


@dataclasses.dataclass
class _Lane:
    name: str
    index: float
    slices: list[_Slice]

    @property
    def rows(self) -> int:
        return 1 + max(s.depth for s in self.slices)


@dataclasses.dataclass
class _Group:
    name: str
    index: float
    lanes: list[_Lane]
    waits: list[tuple[float, float]]  # of ops

    def shown(self) -> list[_Lane]:
        """The busiest lanes, in order."""
        busiest = sorted(self.lanes, key=lambda lane: -sum(s.end - s.begin for s in lane.slices))
        kept = {id(lane) for lane in busiest[:_MOST_LANES]}
        return [lane for lane in self.lanes if id(lane) in kept]


def draw_file(trace: str, picture: str) -> str:
    """Draws a trace to an SVG or PNG file and returns a summary.

    Raises
    ------
    OSError
        A file cannot be read, or written.
    ValueError
        The file is not a trace, or has no events; or the name of the picture has another extension.
    """
    form = Path(picture).suffix.lower()
    if form not in _FORMATS:
        raise ValueError(f"{picture} is no picture: give it a name that ends in .svg or .png")
    data = Path(trace).read_bytes()
    try:
        document = json.loads(data)
    except (ValueError, RecursionError) as error:
        what = (
            "it is empty: a trace is written when it ends" if not data.strip() else f"it is no JSON ({error})"
        )
        raise ValueError(f"{trace} is no trace: {what}") from None
    figure, summary = draw(document, trace)
    # Text stays text. If a font lacks a letter, matplotlib warns and draws a box.
    with matplotlib.rc_context({"svg.fonttype": "none"}), warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        figure.savefig(picture, format=form[1:])
    return f"{picture}: {summary}"


def draw(document: Any, title: str) -> tuple[Figure, str]:
    """The picture of a trace, and a summary. Raises ValueError."""
    events = document.get("traceEvents") if isinstance(document, dict) else document
    if not isinstance(events, list) or not all(isinstance(event, dict) for event in events):
        raise ValueError(f"{title} is no trace: it has no list 'traceEvents'")
    try:
        groups = _groups_in(events)
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{title} is no trace: an event lacks or spoils {error}") from None
    slices = [s for group in groups for lane in group.lanes for s in lane.slices]
    waits = [wait for group in groups for wait in group.waits]
    if not slices and not waits:
        raise ValueError(f"{title} has no events: nothing went on while it ran")
    begin = min([s.begin for s in slices] + [wait[0] for wait in waits])
    end = max([s.end for s in slices] + [wait[1] for wait in waits])
    seconds = str(EngFormatter("s", places=3)((end - begin) * 1e-6))
    lanes = sum(len(group.lanes) for group in groups)
    summary = f"{len(slices)} slices in {lanes} lanes, {seconds}"
    about = document.get("otherData") if isinstance(document, dict) else None
    lost = about.get("lost", 0) if isinstance(about, dict) else 0
    note = plain(f", {lost} events lost: the trace was full") if lost else ""
    figure = _figure(groups, begin, max(end - begin, 1e-3), f"{plain(title)}: {summary}{note}")
    return figure, summary


# Reading.


def _number(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        raise TypeError(f"a number: {value!r}")
    return float(value)


def _groups_in(events: list[dict[str, Any]]) -> list[_Group]:
    names: dict[tuple[str, Any, Any], Any] = {}
    lanes: dict[tuple[Any, Any], list[_Slice]] = {}
    waits: dict[Any, list[tuple[float, float]]] = {}
    open_waits: dict[tuple[Any, Any, Any], float] = {}
    for event in events:
        phase, process, thread = event.get("ph"), event.get("pid"), event.get("tid")
        if phase == "M":
            arguments = event.get("args") or {}
            is_lane = str(event["name"]).startswith("thread")
            value = arguments.get("name", arguments.get("sort_index"))
            names[str(event["name"]), process, thread if is_lane else None] = value
        elif phase == "X":
            begin = _number(event["ts"])
            arguments = event.get("args")
            kind = str(event.get("cat", ""))
            if isinstance(arguments, dict) and arguments.get("outcome") in ("failed", "skipped"):
                kind = "failed"
            end = begin + max(_number(event.get("dur", 0)), 0.0)
            slice_ = _Slice(begin, end, plain(str(event.get("name", ""))), kind)
            lanes.setdefault((process, thread), []).append(slice_)
        elif phase == "b" and event.get("cat") == "op waits":
            open_waits[process, event.get("cat"), event.get("id")] = _number(event["ts"])
        elif phase == "e":
            since = open_waits.pop((process, event.get("cat"), event.get("id")), None)
            if since is not None:
                waits.setdefault(process, []).append((since, _number(event["ts"])))
    groups = {}
    for process in {key[0] for key in lanes} | set(waits):
        name = names.get(("process_name", process, None), f"process {process}")
        index = names.get(("process_sort_index", process, None), 0)
        groups[process] = _Group(plain(str(name)), _number(index), [], waits.get(process, []))
    for (process, thread), slices in lanes.items():
        name = names.get(("thread_name", process, thread), f"thread {thread}")
        index = names.get(("thread_sort_index", process, thread), 0)
        slices.sort(key=lambda s: (s.begin, -s.end))
        _stack(slices)
        groups[process].lanes.append(_Lane(plain(str(name)), _number(index), slices))
    for group in groups.values():
        group.lanes.sort(key=lambda lane: lane.index)
    return sorted(groups.values(), key=lambda group: group.index)


def _stack(slices: list[_Slice]) -> None:
    """Puts each slice that is inside of another one a row below it."""
    around: list[float] = []
    for slice_ in slices:
        while around and around[-1] <= slice_.begin + _SAME:
            around.pop()
        slice_.depth = min(len(around), _MOST_DEPTH - 1)
        around.append(slice_.end)


# Drawing.


def _figure(groups: list[_Group], begin: float, span: float, title: str) -> Figure:
    lanes = [_lanes_of(group) for group in groups]
    rows = [1 + sum(height for _, height, _ in of_group) for of_group in lanes]  # and the group's name
    height = min(1.2 + _ROW * sum(rows), _MOST_HEIGHT)
    figure = Figure(figsize=(_WIDTH, height), layout="constrained")
    figure.suptitle(title, fontsize=10, parse_math=False)
    axes = figure.subplots(len(groups), 1, sharex=True, squeeze=False, height_ratios=rows)[:, 0]
    for group, of_group, ax in zip(groups, lanes, axes, strict=True):
        ax.set_title(group.name, loc="left", fontsize=9, fontweight="bold", parse_math=False)
        y, ticks, names = 0.0, [], []
        for name, height, content in of_group:
            ticks.append(y + 0.5)
            names.append(name if len(name) <= _MOST_LETTERS else name[: _MOST_LETTERS - 1] + "\u2026")
            if isinstance(content, _Lane):
                _draw_lane(ax, content, y, begin, span)
            elif content:
                _draw_waits(ax, content, y, begin)
            y += height
        ax.set_ylim(y, 0)
        ax.set_yticks(ticks, labels=names, fontsize=7, parse_math=False)
        ax.tick_params(left=False, labelsize=7)
        ax.grid(axis="x", color="#e6e6e6")
        ax.set_axisbelow(True)
        ax.spines[:].set_visible(False)
    axes[-1].set_xlim(0, span * 1e-6)
    axes[-1].xaxis.set_major_formatter(EngFormatter("s"))
    used = {s.kind for group in groups for lane in group.lanes for s in lane.slices}
    used |= {"op waits"} if any(group.waits for group in groups) else set()
    entries = [_KINDS[kind] for kind in _KINDS if kind in used] + [_OTHER] * bool(used - set(_KINDS))
    handles = [Patch(color=colour, label=label) for colour, label in entries]
    figure.legend(handles=handles, loc="outside lower left", ncols=len(handles), fontsize=8, frameon=False)
    return figure


def _lanes_of(group: _Group) -> list[tuple[str, int, _Lane | list[tuple[float, float]]]]:
    """(name, rows, what is in it) from top to bottom."""
    lanes: list[tuple[str, int, _Lane | list[tuple[float, float]]]] = []
    if group.waits:
        most = max(count for _, count in _counts(group.waits))
        lanes.append((f"ops that wait, up to {most}", 2, group.waits))
    shown = group.shown()
    lanes += [(lane.name, lane.rows, lane) for lane in shown]
    if len(shown) < len(group.lanes):
        lanes.append((f"and {len(group.lanes) - len(shown)} lanes with less", 1, []))
    return lanes


def _draw_lane(ax: Axes, lane: _Lane, y: float, begin: float, span: float) -> None:
    for depth in range(lane.rows):
        # Failures are drawn last, above the others, and never narrower than a line.
        slices = [s for s in lane.slices if s.depth == depth]
        slices.sort(key=lambda s: s.kind == "failed")
        ax.broken_barh(
            [((s.begin - begin) * 1e-6, (s.end - s.begin) * 1e-6) for s in slices],
            (y + depth + 0.05, 0.9),
            facecolors=[_KINDS.get(s.kind, _OTHER)[0] for s in slices],
            edgecolors="face",
            linewidths=[1.0 if s.kind == "failed" else 0.4 for s in slices],
            rasterized=len(slices) > _MOST_PATHS,
        )
        for s in slices:
            letters = int((s.end - s.begin) / span * _LETTERS)
            if letters > 2:
                name = s.name if len(s.name) <= letters else s.name[: letters - 1] + "\u2026"
                x = (s.begin - begin) * 1e-6
                ax.text(x, y + depth + 0.5, f" {name}", va="center", fontsize=6, parse_math=False)


def _counts(waits: list[tuple[float, float]]) -> Iterator[tuple[float, int]]:
    """(microseconds, how many wait from then on)."""
    changes = sorted([(begin, 1) for begin, _ in waits] + [(end, -1) for _, end in waits])
    return zip((at for at, _ in changes), itertools.accumulate(change for _, change in changes))


def _draw_waits(ax: Axes, waits: list[tuple[float, float]], y: float, begin: float) -> None:
    counts = list(_counts(waits))
    most = max(count for _, count in counts)
    ax.fill_between(
        [(at - begin) * 1e-6 for at, _ in counts],
        [y + 2 - 1.9 * count / most for _, count in counts],
        y + 2,
        step="post",
        color=_KINDS["op waits"][0],
        linewidth=0,
        rasterized=len(counts) > _MOST_PATHS,
    )
