# SPDX-License-Identifier: Apache-2.0
"""``tenon plot``: a trace as an SVG picture.

Lanes are those of the trace, in its order. What is narrower than a pixel is drawn together with its
neighbours, so that the picture's size depends on its width and its lanes and not on the number of events.
"""

from __future__ import annotations

import dataclasses
import json
import math
import re
from collections.abc import Iterable, Iterator
from html import escape
from typing import Any

_WIDTH = 1480
_LEFT, _RIGHT = 250, 24
_ROW, _GAP = 15, 4  # of a lane's row; between lanes
_CHART = 34  # of the number of ops that wait
_MOST_LANES = 64  # of one group: the busiest
_MOST_DEPTH = 8
_LETTER = 6.3  # a letter's width
_SAME = 6e-4  # microseconds: times are written to a nanosecond, and sums of them are not exact

# Category of the trace -> (colour, what the legend says).
_KINDS = {
    "op": ("#4e79a7", "op"),
    "op waits": ("#a0cbe8", "ops that wait"),
    "op completes": ("#86bcb6", "op, after its return"),
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

_STYLE = (
    "text{font:11px system-ui,-apple-system,'Segoe UI',Helvetica,Arial,sans-serif;fill:#333}"
    ".t{font-size:15px;font-weight:600}.g{font-weight:600}.s{fill:#777}.n{font-size:10px;fill:#fff}"
    ".d{font-size:10px;fill:#222}.l{text-anchor:end}.m{text-anchor:middle}.w{fill:#b00020}"
)


@dataclasses.dataclass
class _Slice:
    begin: float  # microseconds
    end: float
    name: str
    kind: str
    details: str = ""
    depth: int = 0


@dataclasses.dataclass
class _Lane:
    name: str
    index: float
    slices: list[_Slice]


@dataclasses.dataclass
class _Group:
    name: str
    index: float
    lanes: list[_Lane]
    waits: list[tuple[float, float]]  # of ops


def draw_file(trace: str, svg: str) -> str:
    """Draws a trace and says what was drawn.

    Raises
    ------
    OSError
        A file cannot be read, or written.
    ValueError
        The file is no trace, or has no events.
    """
    with open(trace, "rb") as file:
        data = file.read()
    try:
        document = json.loads(data)
    except (ValueError, RecursionError) as error:
        what = (
            "it is empty: a trace is written when it ends" if not data.strip() else f"it is no JSON ({error})"
        )
        raise ValueError(f"{trace} is no trace: {what}") from None
    picture, summary = draw(document, trace)
    with open(svg, "w", encoding="utf-8") as file:
        file.write(picture)
    return f"{svg}: {summary}"


def draw(document: Any, title: str) -> tuple[str, str]:
    """The picture of a trace that was read, and what is in it. Fails with ValueError."""
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
    about = document.get("otherData") if isinstance(document, dict) else None
    lost = about.get("lost", 0) if isinstance(about, dict) else 0
    picture = _Picture(groups, begin, max(end - begin, 1e-3), title, lost if isinstance(lost, int) else 0)
    lanes = sum(len(group.lanes) for group in groups)
    return picture.text(), f"{len(slices)} slices in {lanes} lanes, {time_text(end - begin)}"


def time_text(us: float) -> str:
    for unit, size in (("s", 1e6), ("ms", 1e3)):
        if us >= size:
            return f"{us / size:.4g} {unit}"
    return f"{us:.4g} us"


# Reading.


def _number(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        raise TypeError(f"a number: {value!r}")
    return float(value)


def _details(arguments: Any) -> str:
    if not isinstance(arguments, dict):
        return ""
    return "\n".join(f"{key}: {value}" for key, value in arguments.items() if value != "")


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
            slice_ = _Slice(
                begin,
                begin + max(_number(event.get("dur", 0)), 0.0),
                str(event.get("name", "")),
                kind,
                _details(arguments),
            )
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
        groups[process] = _Group(str(name), _number(index), [], waits.get(process, []))
    for (process, thread), slices in lanes.items():
        name = names.get(("thread_name", process, thread), f"thread {thread}")
        index = names.get(("thread_sort_index", process, thread), 0)
        slices.sort(key=lambda s: (s.begin, -s.end))
        _stack(slices)
        groups[process].lanes.append(_Lane(str(name), _number(index), slices))
    for group in groups.values():
        group.lanes.sort(key=lambda lane: lane.index)
    return sorted(groups.values(), key=lambda group: group.index)


def _stack(slices: list[_Slice]) -> None:
    """What lies inside of another slice, is drawn a row below it."""
    around: list[float] = []
    for slice_ in slices:
        while around and around[-1] <= slice_.begin + _SAME:
            around.pop()
        slice_.depth = min(len(around), _MOST_DEPTH - 1)
        around.append(slice_.end)


# Drawing.


def _text(text: str) -> str:
    """As XML 1.0 can have it."""
    return escape(re.sub(r"[^\t\n\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]", "\ufffd", text))


def _ticks(span: float) -> float:
    """A round distance, of which the span has about ten."""
    power: float = 10.0 ** math.floor(math.log10(span / 10))
    return next(power * factor for factor in (1, 2, 5, 10) if power * factor * 12 >= span)


def _is_dark(colour: str) -> bool:
    red, green, blue = (int(colour[i : i + 2], 16) for i in (1, 3, 5))
    return 0.3 * red + 0.59 * green + 0.11 * blue < 140


class _Picture:
    def __init__(self, groups: list[_Group], begin: float, span: float, title: str, lost: int) -> None:
        self._groups = groups
        self._begin = begin
        self._span = span
        self._title = title
        self._lost = lost
        self._scale = (_WIDTH - _LEFT - _RIGHT) / span
        self._parts: list[str] = []
        self._y = 0.0

    def text(self) -> str:
        self._y = 84.0
        for group in self._groups:
            self._draw_group(group)
        height = self._y + 16
        head = [
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{height:.0f}" '
            f'viewBox="0 0 {_WIDTH} {height:.0f}">',
            f"<style>{_STYLE}</style>",
            f'<rect width="{_WIDTH}" height="{height:.0f}" fill="#fff"/>',
            *self._heading(),
            *self._axis(height - 12),
        ]
        return "\n".join([*head, *self._parts, "</svg>", ""])

    def _x(self, us: float) -> float:
        return _LEFT + (us - self._begin) * self._scale

    def _heading(self) -> Iterator[str]:
        count = sum(len(lane.slices) for group in self._groups for lane in group.lanes)
        yield f'<text class="t" x="16" y="26">{_text(self._title)}</text>'
        lost = f" &#183; <tspan class='w'>{self._lost} events lost: the trace was full</tspan>" * bool(
            self._lost
        )
        yield (
            f'<text class="s l" x="{_WIDTH - _RIGHT}" y="26">{time_text(self._span)} &#183; {count} slices'
            f"{lost}</text>"
        )
        used = {s.kind for group in self._groups for lane in group.lanes for s in lane.slices}
        if any(group.waits for group in self._groups):
            used.add("op waits")
        entries = [_KINDS[kind] for kind in _KINDS if kind in used]
        if used - set(_KINDS):
            entries.append(_OTHER)
        x = 16.0
        for colour, label in entries:
            yield f'<rect x="{x:.0f}" y="41" width="11" height="11" rx="2" fill="{colour}"/>'
            yield f'<text x="{x + 16:.0f}" y="50">{label}</text>'
            x += 32 + _LETTER * len(label)

    def _axis(self, bottom: float) -> Iterator[str]:
        step = _ticks(self._span)
        for i in range(int(self._span / step) + 1):
            x = self._x(self._begin + i * step)
            yield f'<line x1="{x:.1f}" y1="76" x2="{x:.1f}" y2="{bottom:.0f}" stroke="#e6e6e6"/>'
            label = "0" if i == 0 else time_text(i * step)
            yield f'<text class="s m" x="{x:.1f}" y="71">{label}</text>'

    def _draw_group(self, group: _Group) -> None:
        y = self._y
        self._parts.append(
            f'<rect x="0" y="{y:.0f}" width="{_WIDTH}" height="20" fill="#f3f4f6"/>'
            f'<text class="g" x="16" y="{y + 14:.0f}">{_text(group.name)}</text>'
        )
        self._y += 24
        if group.waits:
            self._draw_waits(group.waits)
        lanes = group.lanes
        if len(lanes) > _MOST_LANES:
            busiest = sorted(lanes, key=lambda lane: -sum(s.end - s.begin for s in lane.slices))
            kept = {id(lane) for lane in busiest[:_MOST_LANES]}
            lanes = [lane for lane in lanes if id(lane) in kept]
        for lane in lanes:
            self._draw_lane(lane)
        if len(lanes) < len(group.lanes):
            more = len(group.lanes) - len(lanes)
            self._parts.append(
                f'<text class="s l" x="{_LEFT - 10}" y="{self._y + 11:.0f}">and {more} lanes with less</text>'
            )
            self._y += _ROW + _GAP
        self._y += 10

    def _label(self, name: str, height: float) -> None:
        most = int((_LEFT - 30) / _LETTER)
        shown = name if len(name) <= most else name[: most - 1] + "\u2026"
        self._parts.append(
            f'<text class="l" x="{_LEFT - 10}" y="{self._y + min(height, _ROW) / 2 + 4:.1f}">'
            f"<title>{_text(name)}</title>{_text(shown)}</text>"
        )

    def _draw_lane(self, lane: _Lane) -> None:
        rows = 1 + max((s.depth for s in lane.slices), default=0)
        self._label(lane.name, rows * _ROW)
        self._parts.append(
            f'<line x1="{_LEFT}" y1="{self._y + rows * _ROW + _GAP / 2:.1f}" x2="{_WIDTH - _RIGHT}" '
            f'y2="{self._y + rows * _ROW + _GAP / 2:.1f}" stroke="#f0f0f0"/>'
        )
        for depth in range(rows):
            self._draw_row([s for s in lane.slices if s.depth == depth], self._y + depth * _ROW)
        self._y += rows * _ROW + _GAP

    def _draw_row(self, slices: Iterable[_Slice], y: float) -> None:
        together: list[_Slice] = []  # too narrow to be drawn alone
        for slice_ in slices:
            is_narrow = (slice_.end - slice_.begin) * self._scale < 1
            if together and (not is_narrow or self._x(slice_.end) - self._x(together[0].begin) > 1):
                self._draw_together(together, y)
                together = []
            if is_narrow:
                together.append(slice_)
            else:
                self._draw_slice(slice_, y)
        if together:
            self._draw_together(together, y)

    def _rect(self, x: float, width: float, y: float, kind: str, title: str, opacity: float = 1) -> None:
        colour = _KINDS.get(kind, _OTHER)[0]
        faint = f' fill-opacity="{opacity:.2f}"' if opacity < 1 else ""
        round_ = ' rx="2"' if width > 4 else ""
        self._parts.append(
            f'<rect x="{x:.2f}" y="{y:.1f}" width="{width:.2f}" height="{_ROW - 1}"{round_} '
            f'fill="{colour}"{faint}>'
            f"<title>{_text(title)}</title></rect>"
        )

    def _draw_slice(self, slice_: _Slice, y: float) -> None:
        x, width = self._x(slice_.begin), (slice_.end - slice_.begin) * self._scale
        title = f"{slice_.name}: {time_text(slice_.end - slice_.begin)}, at {time_text(slice_.begin)}"
        self._rect(x, max(width - 0.3, 0.7), y, slice_.kind, f"{title}\n{slice_.details}".rstrip())
        letters = int((width - 8) / _LETTER)
        if letters < 2:
            return
        name = slice_.name if len(slice_.name) <= letters else slice_.name[: letters - 1] + "\u2026"
        style = "n" if _is_dark(_KINDS.get(slice_.kind, _OTHER)[0]) else "d"
        self._parts.append(f'<text class="{style}" x="{x + 4:.1f}" y="{y + 10.5:.1f}">{_text(name)}</text>')

    def _draw_together(self, slices: list[_Slice], y: float) -> None:
        times: dict[str, float] = {}
        for slice_ in slices:
            times[slice_.kind] = times.get(slice_.kind, 0.0) + slice_.end - slice_.begin
        kind = "failed" if "failed" in times else max(times, key=lambda kind: times[kind])
        x = self._x(slices[0].begin)
        if len(slices) == 1:
            only = slices[0]
            title = (
                f"{only.name}: {time_text(only.end - only.begin)}, at {time_text(only.begin)}\n{only.details}"
            )
        else:
            title = (
                f"{len(slices)} of {time_text(sum(times.values()))} together, at {time_text(slices[0].begin)}"
            )
        share = sum(times.values()) * self._scale
        self._rect(x, 1, y, kind, title.rstrip(), min(1.0, 0.45 + share))

    def _draw_waits(self, waits: list[tuple[float, float]]) -> None:
        columns = _WIDTH - _LEFT - _RIGHT
        steps = [0] * (columns + 2)
        for begin, end in waits:
            first = min(int((begin - self._begin) * self._scale), columns)
            last = min(int((end - self._begin) * self._scale), columns)
            steps[first] += 1
            steps[last + 1] -= 1
        counts, now = [], 0
        for step in steps[: columns + 1]:
            now += step
            counts.append(now)
        most = max(counts)
        self._label("ops that wait", _CHART)
        base = self._y + _CHART - 2
        path, before = [f"M{_LEFT} {base:.0f}"], 0
        for column, count in enumerate(counts):
            if count != before:
                path.append(f"H{_LEFT + column}V{base - (_CHART - 4) * count / most:.1f}")
                before = count
        path.append(f"H{_LEFT + columns}V{base:.0f}Z")
        self._parts.append(
            f'<path d="{"".join(path)}" fill="{_KINDS["op waits"][0]}">'
            f"<title>up to {most} ops wait at a time, of {len(waits)}</title></path>"
            f'<text class="s l" x="{_LEFT - 10}" y="{self._y + 25:.0f}">up to {most}</text>'
        )
        self._y += _CHART + _GAP
