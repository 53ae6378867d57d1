# SPDX-License-Identifier: Apache-2.0
"""``tenon top``: shows the feeds and the shared memory of this user repeatedly.

Like ``tenon ls`` it only reads: it joins no segment and waits for no process. Rates are differences between
two frames.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import re
import select
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

from .. import _core
from .._errors import TenonError
from . import terminal as _terminal
from .observers import Facts, age_text, command_text, counted, nbytes_text, plain, process_text, title
from .terminal import Table


class Top:
    """Makes frames. The first one has no rates."""

    def __init__(self) -> None:
        self._time: float | None = None
        self._feeds: dict[tuple[Any, ...], Facts] = {}
        self._channels: dict[str, Facts] = {}

    def look(self) -> Facts:
        """One frame: the object that ``--json`` prints."""
        now = time.monotonic()
        seconds = None if self._time is None else now - self._time
        damage = None
        try:
            seen = json.loads(_core.describe_shared())
            feeds, shared = seen["feeds"], seen["segments"]
        except (TenonError, OSError, MemoryError, ValueError) as error:
            feeds, shared, damage = [], [], str(error)
        for feed in feeds:
            _rate_feed(feed, self._feeds.get(_identity(feed)), seconds)
        segments = [_segment(segment, self._channels.get(segment["id"]), seconds) for segment in shared]
        self._time = now
        self._feeds = {_identity(feed): feed for feed in feeds}
        self._channels = {segment["id"]: segment["channel"] for segment in segments if segment["channel"]}
        return {"format": 1, "seconds": seconds, "feeds": feeds, "segments": segments, "damaged": damage}


def _identity(feed: Facts) -> tuple[Any, ...]:
    return feed["file"], feed["pid"], len(feed["workers"])


def _rate(now: int, before: int | None, seconds: float | None, modulus: int = 0) -> float | None:
    """The rate per second; None: there is no earlier value, or another object has taken its place."""
    if before is None or not seconds:
        return None
    moved = (now - before) % modulus if modulus else now - before
    return moved / seconds if moved >= 0 else None


def _rate_feed(feed: Facts, before: Facts | None, seconds: float | None) -> None:
    rates = []
    for i, worker in enumerate(feed["workers"]):
        last = None if before is None else before["workers"][i]["answered"]
        worker["fills_per_s"] = _rate(worker["answered"], last, seconds, 2**32)
        rates.append(worker["fills_per_s"])
    known = [rate for rate in rates if rate is not None]
    feed["fills_per_s"] = sum(known) if known else None
    feed["rows_per_s"] = None if feed["fills_per_s"] is None else feed["fills_per_s"] * feed["rows"]


def _segment(segment: Facts, before: Facts | None, seconds: float | None) -> Facts:
    leases = segment["leases"] or []
    ages = [lease["age_ns"] for lease in leases if lease["age_ns"] is not None]
    channel = segment["channel"]
    return {
        "id": segment["id"],
        "name": segment["name"],
        "kind": segment["kind"],
        "damaged": segment["damaged"],
        "file": segment["file"],
        "committed_nbytes": segment["committed_nbytes"],
        "processes": segment["processes"],
        "leases": sum(lease["state"] == "granted" for lease in leases),
        "waiting": sum(lease["state"] != "granted" for lease in leases),
        "oldest_lease_ns": max(ages, default=None),
        "channel": None if channel is None else _channel(channel, before, seconds),
    }


def _channel(channel: Facts, before: Facts | None, seconds: float | None) -> Facts:
    counts = {name: channel[name] for name in ("sent", "received", "dropped")}
    rates = {
        f"{name}_per_s": _rate(count, None if before is None else before[name], seconds)
        for name, count in counts.items()
    }
    states = [slot["state"] for slot in channel["slots"] or []]
    consumers = channel["consumers"] or []
    return {
        "damaged": channel["damaged"],
        "mode": channel["mode"],
        **counts,
        **rates,
        "slots": {state: states.count(state) for state in ("free", "ready", "held")},
        "producers": channel["producers"],
        "consumers": [{**one, "behind": max(0, channel["sent"] - one["cursor"])} for one in consumers],
    }


# ----------------------------------------------------------------------------------------- for people


SORTS = ("none", "name", "rate", "memory")

HELP = (
    "s             sort by name, rate or memory, or not at all",
    "/             show only what has a text: type it, then Enter; Esc ends it",
    "up, down      scroll by a line (also k, j)",
    "PgUp, PgDn    scroll by a screen (also b, Space)",
    "Home, End     the first and the last line (also g, G)",
    "?             this help",
    "q             ends it",
)


@dataclasses.dataclass
class View:
    """Which feeds and segments are shown, in which order, and from which line on. Keys change it."""

    sort: str = "none"
    filter: str = ""
    first: int = 0  # line, of those below the first one of a frame
    is_typing: bool = False  # the filter
    is_help: bool = False

    def press(self, key: str, page: int) -> None:
        """page: the number of lines that fit."""
        if self.is_typing:
            self._type(key)
        elif key == "/":
            self.is_typing, self.filter, self.first = True, "", 0
        elif key == "s":
            self.sort = SORTS[(SORTS.index(self.sort) + 1) % len(SORTS)]
        elif key == "?":
            self.is_help = not self.is_help
        elif key == "escape":
            self.is_help, self.filter = False, ""
        elif key in _STEPS:
            lines, pages = _STEPS[key]
            self.first = max(0, self.first + lines + pages * page)

    def _type(self, key: str) -> None:
        if key in ("enter", "escape"):
            self.is_typing = False
            self.filter = self.filter if key == "enter" else ""
        elif key == "backspace":
            self.filter = self.filter[:-1]
        elif len(key) == 1 and key.isprintable():
            self.filter += key

    def shows(self, block: list[str | Table]) -> bool:
        return self.filter.casefold() in "\n".join(_terminal.lines(block)).casefold()

    def key_of(self, facts: Facts) -> Any:
        """Of the order. Feeds and segments are alike in it."""
        if self.sort == "name":
            return command_text(facts) if "workers" in facts else facts["name"] or facts["id"] or ""
        if self.sort == "memory":
            return -((facts["nbytes"] if "workers" in facts else facts["committed_nbytes"]) or 0)
        if self.sort == "rate":
            moved = facts if "workers" in facts else facts["channel"] or {}
            return -(moved.get("fills_per_s") or moved.get("sent_per_s") or 0)
        return 0

    def text(self) -> str:
        """What it changes, for the first line of a frame."""
        order = "" if self.sort == "none" else f", by {self.sort}"
        cursor = "_" if self.is_typing else ""
        return order + (f", with: {plain(self.filter + cursor)}" if self.filter or cursor else "")


_END = 10**9
_STEPS = {
    "up": (-1, 0),
    "k": (-1, 0),
    "down": (1, 0),
    "j": (1, 0),
    "page up": (0, -1),
    "b": (0, -1),
    "page down": (0, 1),
    " ": (0, 1),
    "home": (-_END, 0),
    "g": (-_END, 0),
    "end": (_END, 0),
    "G": (_END, 0),
}


def parts(frame: Facts, view: View | None = None) -> Iterator[str | Table]:
    """A frame as lines and tables."""
    view = view or View()
    feeds, segments = len(frame["feeds"]), len(frame["segments"])
    kinds = f"{counted(feeds, 'feed')}, {counted(segments, 'shared segment')}"
    over = "" if frame["seconds"] is None else f", over {frame['seconds']:.2f} s"
    yield f"tenon top: {kinds}{over}{view.text()}"
    if frame["damaged"]:
        yield f"  feeds and shared memory cannot be shown: {plain(frame['damaged'])}"
    blocks = [(feed, list(_feed_parts(feed))) for feed in frame["feeds"]]
    blocks += [(segment, list(_segment_lines(segment))) for segment in frame["segments"]]
    for _, block in sorted(blocks, key=lambda pair: view.key_of(pair[0])):
        if view.shows(block):
            yield ""
            yield from block


def _feed_parts(feed: Facts) -> Iterator[str | Table]:
    if feed["damaged"]:
        yield f"feed in memory of {_openers(feed)}: damaged: {plain(feed['damaged'])}"
        return
    state = ", ended" if not feed["alive"] else ", closed" if feed["over"] else ""
    rates = f"{_number(feed['fills_per_s'])} fills/s, {_number(feed['rows_per_s'])} rows/s"
    yield f"feed of {feed['pid']} {command_text(feed)}{state}: {rates}, {_slots_text(feed)}"
    yield Table(
        ("WORKER", "STATE", "BATCH", "FILLS/S", "LAST FILL", "ASKED", "ANSWERED"),
        [
            (
                worker["worker"],
                worker["state"],
                "-" if worker["index"] is None else f"{worker['index']} of epoch {worker['epoch']}",
                _number(worker["fills_per_s"]),
                "-" if worker["last_fill_ns"] is None else f"{worker['last_fill_ns'] * 1e-6:.3g} ms",
                worker["asked"],
                worker["answered"],
            )
            for worker in feed["workers"]
        ],
    )
    if feed["processes"]:
        yield f"  open in: {_openers(feed)}"


def _openers(feed: Facts) -> str:
    return "; ".join(f"{process['pid']} {command_text(process)}" for process in feed["processes"])


def _slots_text(feed: Facts) -> str:
    return f"{feed['slots']} slots of {nbytes_text(feed['slot_nbytes'])}"


def _segment_lines(segment: Facts) -> Iterator[str]:
    yield title(segment)
    if segment["damaged"]:
        yield f"  damaged: {plain(segment['damaged'])}"
        return
    processes = "; ".join(map(process_text, segment["processes"]))
    age = segment["oldest_lease_ns"]
    oldest = "" if age is None else f" (the oldest for {age_text(age * 1e-9)})"
    yield f"  {nbytes_text(segment['committed_nbytes'])} of memory, open in: {processes}"
    if segment["leases"] or segment["waiting"]:
        yield f"  leases: {segment['leases']}{oldest}, waiting: {segment['waiting']}"
    channel = segment["channel"]
    if channel is None:
        return
    if channel["damaged"]:
        yield f"  channel: damaged: {plain(channel['damaged'])}"
        return
    counts = ", ".join(
        f"{name} {channel[name]} ({_number(channel[f'{name}_per_s'])}/s)"
        for name in ("sent", "received", "dropped")
    )
    slots = ", ".join(f"{count} {state}" for state, count in channel["slots"].items())
    yield f"  {plain(channel['mode'])}: {counts}; slots: {slots}"
    behind = ", ".join(f"{one['pid']} ({one['behind']} behind)" for one in channel["consumers"])
    yield f"  producers: {' '.join(map(str, channel['producers'])) or '-'}; consumers: {behind or '-'}"


def _number(rate: float | None) -> str:
    if rate is None:
        return "-"
    return f"{rate:.0f}" if rate >= 100 else f"{rate:.3g}"


# ----------------------------------------------------------------------------------------- the command


def run(interval: float, is_once: bool, is_json: bool, view: View | None = None) -> int:
    """Prints one frame, or frames until q, Ctrl-C or the end of the reader of a pipe."""
    top, screen = Top(), _Screen(view or View(), is_json)
    try:
        with _keys() as pressed, screen.open(is_once):
            top.look()
            while screen.wait(pressed, interval):
                screen.show(top.look())
                if is_once:
                    break
    except KeyboardInterrupt:
        pass
    except BrokenPipeError:
        # The rest of the buffer has no reader: without this, Python would report an error at its exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 0


class _Screen:
    """Shows frames: with rich in place of the previous one, else below it."""

    def __init__(self, view: View, is_json: bool) -> None:
        self._view = view
        self._is_json = is_json
        self._live: Any = None
        self._frame: Facts | None = None

    @contextlib.contextmanager
    def open(self, is_once: bool) -> Iterator[None]:
        terminal = None if is_once or self._is_json else _terminal.console()
        if terminal is None:
            yield
            return
        from rich.live import Live

        with Live(console=terminal, screen=True, auto_refresh=False) as self._live:
            yield

    def wait(self, pressed: Callable[[float], list[str]], seconds: float) -> bool:
        """Until the next frame is due, and handles keys. False: q was pressed."""
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            for key in pressed(left):
                if key == "q" and not self._view.is_typing:
                    return False
                self._view.press(key, self._page())
                if self._live is not None:
                    self._draw()
                elif key == "?":
                    _terminal.show([*HELP, ""])
        return True

    def show(self, frame: Facts) -> None:
        self._frame = frame
        if self._is_json:
            print(json.dumps(frame, allow_nan=False), flush=True)
        elif self._live is None:
            _terminal.show([*parts(frame, self._view), ""])
        else:
            self._draw()

    def _page(self) -> int:
        """Lines below the first one."""
        return 1 if self._live is None else max(1, self._live.console.size.height - 1)

    def _draw(self) -> None:
        if self._frame is None:
            return
        view, page = self._view, self._page()
        head, *lines = _terminal.styled(parts(self._frame, view))
        if view.is_help:
            lines = list(_terminal.styled(["", *HELP]))
        view.first = max(0, min(view.first, len(lines) - page))
        self._live.update(_terminal.group([head, *lines[view.first : view.first + page]]), refresh=True)


# What terminals send for keys that are no characters.
_SEQUENCES = {
    b"\x1b[A": "up",
    b"\x1bOA": "up",
    b"\x1b[B": "down",
    b"\x1bOB": "down",
    b"\x1b[5~": "page up",
    b"\x1b[6~": "page down",
    b"\x1b[H": "home",
    b"\x1bOH": "home",
    b"\x1b[1~": "home",
    b"\x1b[F": "end",
    b"\x1bOF": "end",
    b"\x1b[4~": "end",
}
_CHARACTERS = {"\x1b": "escape", "\n": "enter", "\r": "enter", "\x7f": "backspace", "\b": "backspace"}
_ONE_KEY = re.compile(rb"\x1b[\[O][0-9;]*[A-Za-z~]|[^\x80-\xff]|[\xc0-\xff][\x80-\xbf]*")


def keys_in(typed: bytes) -> list[str]:
    """The names of keys, or their characters. Sequences of other keys are left out."""
    found = []
    for one in _ONE_KEY.findall(typed):
        if one in _SEQUENCES:
            found.append(_SEQUENCES[one])
        elif len(one) == 1 or one[0] >= 0xC0:
            character = one.decode(errors="replace")
            found.append(_CHARACTERS.get(character, character))
    return found


@contextlib.contextmanager
def _keys() -> Iterator[Callable[[float], list[str]]]:
    """A function that waits for a number of seconds, or for keys, and returns those."""
    try:
        fd = sys.stdin.fileno()
        is_ours = os.isatty(fd) and os.getpgrp() == os.tcgetpgrp(fd)  # it is not in the background
    except (AttributeError, OSError, ValueError):  # closed, or replaced
        is_ours = False
    if not is_ours:
        yield _sleep
        return
    import termios
    import tty

    before = termios.tcgetattr(fd)
    tty.setcbreak(fd, termios.TCSANOW)

    def pressed(seconds: float) -> list[str]:
        if not select.select([fd], [], [], seconds)[0]:
            return []
        typed = os.read(fd, 64)
        return keys_in(typed) if typed else ["q"]  # the terminal is gone

    try:
        yield pressed
    finally:
        termios.tcsetattr(fd, termios.TCSANOW, before)


def _sleep(seconds: float) -> list[str]:
    time.sleep(seconds)
    return []
