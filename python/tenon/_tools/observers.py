# SPDX-License-Identifier: Apache-2.0
"""The output of ``tenon ls`` and ``tenon gc``."""

from __future__ import annotations

import fnmatch
import os
import time
from collections.abc import Iterator, Sequence
from typing import Any

from .terminal import Table

_NOTHING = "no process of this user shares memory"
_TAG_NBYTES = 23  # of a tag that the memory has
_COUNTS = ("sent", "received", "dropped")  # of the items of a channel

Facts = dict[str, Any]


def listing(seen: Facts) -> Iterator[str | Table]:
    """The document of `tenon ls --json` (docs/inspect.md) as lines and tables."""
    if not seen["segments"] and not seen["feeds"]:
        yield f"no shared memory has the name {plain(seen['names'])}" if seen.get("names") else _NOTHING
    blocks = [*map(_feed_lines, seen["feeds"]), *map(_lines, seen["segments"])]
    for i, block in enumerate(blocks):
        if i:
            yield ""
        yield from block


def keep_named(seen: Facts, patterns: Sequence[str]) -> None:
    """Keeps the segments whose names match a pattern of the shell, or whose id begins with it, in place.

    Feeds without a name have none to match; one with a name is a segment, too."""
    seen["names"] = ", ".join(patterns)
    seen["feeds"] = []
    seen["segments"] = [
        segment
        for segment in seen["segments"]
        if any(
            fnmatch.fnmatchcase(segment["name"] or "", pattern) or (segment["id"] or "").startswith(pattern)
            for pattern in patterns
        )
    ]


def add_rates(seen: Facts, before: tuple[Facts, float] | None, now: float) -> None:
    """Adds what happened per second since an earlier document, in place. None where that is not known.

    before: that document, and its time in seconds, as `now`."""
    earlier, then = before or ({"feeds": [], "segments": []}, now)
    seconds = now - then
    seen["seconds"] = seconds or None
    feeds = {_identity(feed): feed["workers"] for feed in earlier["feeds"]}
    for feed in seen["feeds"]:
        last = feeds.get(_identity(feed), [None] * len(feed["workers"]))
        for worker, old in zip(feed["workers"], last, strict=True):
            fills = None if old is None else (worker["answered"] - old["answered"]) % 2**32
            worker["fills_per_s"] = None if fills is None or not seconds else fills / seconds
        known = [worker["fills_per_s"] for worker in feed["workers"] if worker["fills_per_s"] is not None]
        feed["fills_per_s"] = sum(known) if known else None
        feed["rows_per_s"] = sum(known) * feed["rows"] if known else None
    channels = {segment["id"]: segment["channel"] for segment in earlier["segments"] if segment["channel"]}
    for segment in seen["segments"]:
        if (channel := segment["channel"]) is None:
            continue
        old = channels.get(segment["id"])
        for name in _COUNTS:
            moved = -1 if old is None or not seconds else channel[name] - old[name]
            channel[f"{name}_per_s"] = moved / seconds if moved >= 0 else None


def _identity(feed: Facts) -> tuple[Any, ...]:
    return feed["file"], feed["pid"], len(feed["workers"])


def _rate(per_second: float | None) -> str:
    if per_second is None:
        return "-"
    return f"{per_second:.0f}" if per_second >= 100 else f"{per_second:.3g}"


def _feed_lines(feed: Facts) -> Iterator[str | Table]:
    if feed["damaged"]:
        yield f"feed in memory of {_openers(feed)}: damaged: {plain(feed['damaged'])}"
        return
    state = ", ended" if not feed["alive"] else ", closed" if feed["over"] else ""
    facts = [f"{feed['slots']} slots of {nbytes_text(feed['slot_nbytes'])}"]
    if feed["fills_per_s"] is not None:
        facts.insert(0, f"{_rate(feed['fills_per_s'])} fills/s, {_rate(feed['rows_per_s'])} rows/s")
    yield f"feed of {feed['pid']} {command_text(feed)}{state}: {', '.join(facts)}"
    yield Table(
        ("WORKER", "STATE", "BATCH", "FILLS/S", "LAST FILL", "ASKED", "ANSWERED"),
        [
            (
                worker["worker"],
                worker["state"],
                "-" if worker["index"] is None else f"{worker['index']} of epoch {worker['epoch']}",
                _rate(worker["fills_per_s"]),
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


def summary(done: Facts) -> str:
    """The document of `tenon gc --json` (docs/inspect.md) as text."""
    if not done["segments"]:
        return f"{_NOTHING}: nothing to collect"
    return "\n\n".join("\n".join(_summary_lines(segment)) for segment in done["segments"])


def _summary_lines(segment: Facts) -> Iterator[str]:
    yield title(segment)
    if segment["damaged"]:
        yield f"  damaged: {plain(segment['damaged'])}"
    yield (
        f"  kept, as these have it open: {'; '.join(map(process_text, segment['processes']))}; "
        f"the system frees its {nbytes_text(segment['committed_nbytes'])} with the last of them"
    )
    if segment["failure"]:
        yield f"  not tidied up: {plain(segment['failure'])}"
        return
    for place in segment["participants"]:
        whose = "for a child of" if place["state"] == "reserved" else "of"
        yield f"  collected: the place {whose} {place['pid']} {plain(place['command'])}"
    if segment["participants"]:
        leases, handles = counted(segment["leases"], "lease"), counted(segment["handles"], "handle")
        yield f"  collected: {leases} and {handles} of these processes"
    else:
        yield "  nothing to collect"


def nbytes_text(nbytes: int) -> str:
    """For example 17 B, 4.0 KiB, 2.5 GiB."""
    if nbytes < 1024:
        return f"{nbytes} B"
    size = float(nbytes)
    for unit in ("KiB", "MiB", "GiB"):
        size /= 1024
        if size < 1024:
            return f"{size:.1f} {unit}"
    return f"{size / 1024:.1f} TiB"


def age_text(seconds: float) -> str:
    """For example 0.25 s, 12 s, 3 min, 2 h, 5 d."""
    if seconds < 10:
        return f"{seconds:.2f} s"
    for limit, unit, length in ((120, "s", 1), (7200, "min", 60), (172800, "h", 3600)):
        if seconds < limit:
            return f"{seconds / length:.0f} {unit}"
    return f"{seconds / 86400:.0f} d"


def plain(text: str | None) -> str:
    """The text without control characters, so that a name cannot control the terminal."""
    return "".join(c if c.isprintable() else "?" for c in text or "?")


def process_text(process: Facts) -> str:
    """For example ``4711 train.py``, with its state if it is unusual."""
    state = ", stopped" if process["stopped"] else "" if process["alive"] else ", ended"
    return f"{process['pid']} {command_text(process)}{state}"


def command_text(process: Facts) -> str:
    """The command of a process; of a Python interpreter the script or module that it runs."""
    command = plain(process["command"])
    if not command.startswith("python"):
        return command
    try:
        with open(f"/proc/{process['pid']}/cmdline", encoding="utf-8", errors="replace", newline="") as file:
            line = file.read()
    except OSError:  # it has ended
        return command
    arguments = iter(line.split("\0")[1:])
    for argument in arguments:
        if not argument.startswith("-"):
            return plain(os.path.basename(argument)) if argument else command
        if argument.startswith("--"):
            continue
        for i, option in enumerate(argument[1:], 2):
            if option == "c":
                return f"{command} -c"
            if option in "mWX":  # the next ones have a value, here or in the next argument
                value = argument[i:] or next(arguments, "")
                if option == "m":
                    return f"-m {plain(value)}"
                break
    return command


def title(segment: Facts) -> str:
    """Name, kind and id. What has no name is known by the process that has made it."""
    creator = segment.get("creator")
    owner = f"(no name, of {process_text(creator)})" if creator else "(no name)"
    name = plain(segment["name"]) if segment["name"] else owner
    return f"{name}  {segment['kind']}  {segment['id'] or plain(segment['file'])}"


def _age(age_ns: int | None) -> str:
    return "-" if age_ns is None else age_text(age_ns * 1e-9)


def counted(n: int, what: str) -> str:
    return f"{n} {what}{'' if n == 1 else 's'}"


def _pids(pids: Sequence[int]) -> str:
    return " ".join(map(str, pids)) or "-"


def _lines(segment: Facts) -> Iterator[str | Table]:
    yield title(segment)
    sizes = f"{nbytes_text(segment['nbytes'])}, {nbytes_text(segment['committed_nbytes'])} of memory taken"
    yield f"  {sizes}"
    yield f"  open in: {'; '.join(map(process_text, segment['processes']))}"
    if segment["damaged"]:
        yield f"  damaged: {plain(segment['damaged'])}"
        return
    age = max(time.time() - segment["created_ns"] * 1e-9, 0)
    yield f"  made by: {process_text(segment['creator'])}, {age_text(age)} ago"
    totals = segment["totals"]
    holdings = _holdings(segment) if totals else {}
    yield Table(
        ("PLACE", "PID", "COMMAND", "STATE", "SINCE", *(("BLOCKS", "BYTES") if totals else ())),
        [
            (
                p["place"],
                p["pid"],
                plain(p["command"]),
                _state(p),
                _age(p["age_ns"]),
                *(holdings.get(p["place"], (0, 0)) if totals else ()),
            )
            for p in segment["participants"]
        ],
    )
    if totals:
        yield _total_line(segment)
    if segment["channel"]:
        yield from _channel_lines(segment["channel"])
    arrays = segment["arrays"][: 1 if segment["channel"] else None]  # the others are its slots
    yield Table(
        ("BLOCK", "BYTES", "DTYPE", "SHAPE", "VERSION", "USERS", "HANDLES"),
        [
            (
                a["block"],
                a["nbytes"],
                a["dtype"] or "-",
                _shape(a["shape"]),
                a["version"],
                _pids(a["users"]),
                n,
            )
            for a in arrays
            for n in [sum(sent["count"] for sent in a["handles"])]
        ],
    )
    for array in segment["arrays"]:
        yield from _notes(array)
    yield _message_table(segment["messages"])
    yield Table(
        ("LEASE", "PID", "MODE", "BYTES", "AGE"),
        [
            (
                f"block {lease['block']}",
                lease["pid"],
                lease["mode"] if lease["state"] == "granted" else f"waits to {lease['mode']}",
                f"{lease['begin']}..{lease['end']}",
                _age(lease["age_ns"]),
            )
            for lease in sorted(segment["leases"], key=lambda lease: (lease["block"], lease["ticket"]))
        ],
    )


def messages(seen: Facts, tag: str) -> Iterator[str | Table]:
    """The messages of all tensor pools, the oldest first; only those with the tag, unless that is "".

    Tags with the same beginning are not told apart, as the memory has no more of them."""
    known = plain(tag.encode(errors="replace")[:_TAG_NBYTES].decode(errors="ignore"))
    found = [
        message
        for segment in seen["segments"]
        for message in segment["messages"]
        if not tag or (message["tag"] and plain(message["tag"]) == known)
    ]
    if not found:
        yield "no message" if not tag else f"no message has the tag {plain(tag)}"
        return
    found.sort(key=lambda message: -(message["age_ns"] or 0))
    yield _message_table(found)


def _message_table(found: Sequence[Facts]) -> Table:
    return Table(
        ("MESSAGE", "PID", "BYTES", "STATE", "OPENS LEFT", "ENDS IN", "AGE", "TAG", "SENT AT"),
        [
            (
                message["record"],
                f"{message['pid'] or '-'}{' (lost)' if message['lost'] else ''}",
                message["nbytes"],
                "opened" if message["opened"] else "unopened",
                "any" if message["opens_left"] is None else message["opens_left"],
                _age(message["left_ns"]),
                _age(message["age_ns"]),
                plain(message["tag"] or "-"),
                plain(message["site"] or "-"),
            )
            for message in found
        ],
    )


def _holdings(segment: Facts) -> dict[int, tuple[int, int]]:
    """The number of blocks that the process of each place uses, and of their bytes."""
    held: dict[int, tuple[int, int]] = {}
    for array in segment["arrays"]:
        for place in array["places"]:
            blocks, nbytes = held.get(place, (0, 0))
            held[place] = blocks + 1, nbytes + array["nbytes"]
    return held


def _total_line(segment: Facts) -> str:
    totals = segment["totals"]
    unopened = [message["nbytes"] for message in segment["messages"] if not message["opened"]]
    creator = 0  # its place
    held = [array["nbytes"] for array in segment["arrays"] if set(array["places"]) - {creator}]
    ended = ("opened", "expired", "revoked", "receivers_gone", "inline", "refused")
    numbers = ", ".join(f"{name.replace('_', ' ')} {totals[name]}" for name in ended)
    return (
        f"  messages: sent {totals['sent']} ({nbytes_text(totals['sent_nbytes'])}), {numbers}; "
        f"{len(unopened)} unopened ({nbytes_text(sum(unopened))}), "
        f"{len(held)} held by other processes ({nbytes_text(sum(held))})"
    )


def _state(place: Facts) -> str:
    if place["state"] == "reserved":
        return "reserved for its child"
    if place["state"] == "dead":
        return "dead, not yet cleaned up"
    return "live, stopped" if place["stopped"] else "live"


def _shape(shape: Sequence[int] | None) -> str:
    return "-" if shape is None else str(tuple(shape)).replace(" ", "")


def _notes(array: Facts) -> Iterator[str]:
    block = f"block {array['block']}"
    for death in array["deaths"]:
        process = f"process {death['pid']}{' and others' if death['several'] else ''}"
        yield f"  {block}: {process} died while it was writing bytes {death['begin']}..{death['end']}"
    for sent in array["handles"]:
        process = "a process that is gone" if sent["pid"] is None else f"process {sent['pid']}"
        handles = counted(sent["count"], "handle")
        if sent["lost"]:
            yield f"  {block}: {handles} lost: the sender, {process}, has ended"
        else:
            yield f"  {block}: {handles} on the way, sent by {process}"
    arena = array["arena"]
    if arena is None:
        return
    if arena["damaged"]:
        yield f"  {block}: an arena, damaged: {plain(arena['damaged'])}"
        return
    active = "nothing yet" if arena["active"] is None else plain(arena["active"])
    layouts = ", ".join(map(plain, arena["layouts"]))
    changes = counted(arena["generation"], "time")
    yield f"  {block}: an arena of {layouts}; it holds {active}, changed {changes}"


def _counts(channel: Facts) -> str:
    """How many items were sent, received and dropped, with the rates that are known."""
    rates = {name: channel[f"{name}_per_s"] for name in _COUNTS}
    return ", ".join(
        f"{name} {channel[name]}" + ("" if rate is None else f" ({_rate(rate)}/s)")
        for name, rate in rates.items()
    )


def _channel_lines(channel: Facts) -> Iterator[str | Table]:
    fields = "objects" if channel["objects"] else f"fields {', '.join(map(plain, channel['fields']))}"
    yield (
        f"  channel: {channel['mode']}, when full {channel['when_full']}; {_counts(channel)}, "
        f"deaths {channel['deaths']}; {fields}"
    )
    if channel["damaged"]:
        yield f"  channel: damaged: {plain(channel['damaged'])}"
        return
    slots = {i: slot for i, slot in enumerate(channel["slots"]) if slot["state"] != "free"}
    used = f"{len(slots)} of {counted(len(channel['slots']), 'slot')}"
    if room := channel["room"]:
        yield (
            f"  room: {used}, "
            f"{nbytes_text(room['used_nbytes'])} of {nbytes_text(room['nbytes'])} in use; "
            f"{nbytes_text(room['committed_nbytes'])} of memory taken; "
            f"largest item sent {nbytes_text(room['largest_sent_nbytes'])}; refused {room['refused']}"
        )
    else:
        yield f"  room: {used} in use"
    consumers = [
        f"{c['pid']} ({'newest only' if c['cursor'] is None else 'at {}'.format(c['cursor'])})"
        for c in channel["consumers"]
    ]
    yield f"  producers: {_pids(channel['producers'])}; consumers: {', '.join(consumers) or '-'}"
    yield Table(
        ("SLOT", "STATE", "SEQUENCE", "SIZE", "HELD BY"),
        [
            (
                i,
                slot["state"],
                slot["sequence"] or "-",
                nbytes_text(slot["nbytes"]) if channel["room"] else "-",
                _pids(slot["holders"]),
            )
            for i, slot in slots.items()
        ],
    )
