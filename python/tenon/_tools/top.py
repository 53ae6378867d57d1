# SPDX-License-Identifier: Apache-2.0
"""``tenon top``: shows the feeds and the shared memory of this user repeatedly.

Like ``tenon ls`` it only reads: it joins no segment and waits for no process. Rates are differences between
two frames.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import select
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

from .. import _core
from .._errors import TenonError
from . import terminal as _terminal
from .observers import Facts, age_text, counted, nbytes_text, plain, process_text, title
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


def parts(frame: Facts) -> Iterator[str | Table]:
    """A frame as lines and tables."""
    feeds, segments = len(frame["feeds"]), len(frame["segments"])
    kinds = f"{counted(feeds, 'feed')}, {counted(segments, 'shared segment')}"
    over = "" if frame["seconds"] is None else f", over {frame['seconds']:.2f} s"
    yield f"tenon top: {kinds}{over}"
    if frame["damaged"]:
        yield f"  feeds and shared memory cannot be shown: {plain(frame['damaged'])}"
    for feed in frame["feeds"]:
        yield ""
        yield from _feed_parts(feed)
    for segment in frame["segments"]:
        yield ""
        yield from _segment_lines(segment)


def _feed_parts(feed: Facts) -> Iterator[str | Table]:
    if feed["damaged"]:
        yield f"feed in memory of {_openers(feed)}: damaged: {plain(feed['damaged'])}"
        return
    state = ", ended" if not feed["alive"] else ", closed" if feed["over"] else ""
    rates = f"{_number(feed['fills_per_s'])} fills/s, {_number(feed['rows_per_s'])} rows/s"
    yield f"feed of {feed['pid']} {plain(feed['command'])}{state}: {rates}, {_slots_text(feed)}"
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
    return "; ".join(f"{process['pid']} {plain(process['command'])}" for process in feed["processes"])


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


def run(interval: float, is_once: bool, is_json: bool) -> int:
    """Prints one frame, or frames until q, Ctrl-C or the end of the reader of a pipe."""
    top = Top()
    try:
        with _keys() as pressed, _shown(is_once, is_json) as show:
            top.look()
            while not pressed(interval):
                show(top.look())
                if is_once:
                    break
    except KeyboardInterrupt:
        pass
    except BrokenPipeError:
        # The rest of the buffer has no reader: without this, Python would report an error at its exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 0


@contextlib.contextmanager
def _shown(is_once: bool, is_json: bool) -> Iterator[Callable[[Facts], None]]:
    """A function that shows a frame: with rich in place of the previous frame, else below it."""
    terminal = None if is_once or is_json else _terminal.console()
    if terminal is None:
        yield functools.partial(_print, is_json=is_json)
        return
    from rich.live import Live

    with Live(console=terminal, screen=True, auto_refresh=False) as live:
        yield lambda frame: live.update(_terminal.renderable(parts(frame), is_cut=True), refresh=True)


def _print(frame: Facts, is_json: bool) -> None:
    if is_json:
        print(json.dumps(frame, allow_nan=False), flush=True)
    else:
        _terminal.show([*parts(frame), ""])


@contextlib.contextmanager
def _keys() -> Iterator[Any]:
    """A function that waits for a number of seconds and returns whether q was pressed."""
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

    def pressed(seconds: float) -> bool:
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            if select.select([fd], [], [], left)[0]:
                keys = os.read(fd, 64)
                if not keys or b"q" in keys.lower():  # or the terminal is gone
                    return True
        return False

    try:
        yield pressed
    finally:
        termios.tcsetattr(fd, termios.TCSANOW, before)


def _sleep(seconds: float) -> bool:
    time.sleep(seconds)
    return False
