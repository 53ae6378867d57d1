# SPDX-License-Identifier: Apache-2.0
"""Reads the memory files of feeds in other processes, without mapping them.

Feeds with worker processes and feeds with Python generators have such a file. Feeds with native generators on
threads have none.

The module only reads: it joins nothing, takes no lock and writes nothing. Data that changes meanwhile may be
read partly old and partly new. The offsets are those of src/data/request_ring.h; a test compares them.
"""

from __future__ import annotations

import os
import stat
import struct
from collections.abc import Iterator
from typing import Any

LAYOUT = {
    "MAGIC": 0x6465656E,
    "VERSION": 2,
    "DEPTH": 2,
    "PID": 8,
    "START": 16,
    "NBYTES": 24,
    "WORKERS": 32,
    "SLOTS": 36,
    "FIELDS": 40,
    "ROWS": 48,
    "SLOTS_AT": 56,
    "SLOT_NBYTES": 96,
    "HEAD_NBYTES": 120,
    "FIELD_NBYTES": 16,
    "BOX_NBYTES": 8384,
    "ASKED": 0,
    "IS_OVER": 8,
    "REQUESTS": 16,
    "REQUEST_NBYTES": 32,
    "REQUEST_INDEX": 8,
    "ANSWERED": 132,
    "IS_WORKER_ASLEEP": 136,
    "ANSWERS": 144,
    "ANSWER_NBYTES": 4120,
    "ANSWER_FILL_NS": 8,
}
_L = LAYOUT

_PREFIX = "/memfd:tenon-feed"
_MOST_WORKERS, _MOST_FIELDS = 4096, 65536  # more is damage

_Facts = dict[str, Any]


class _Damaged(Exception):
    pass


def feeds() -> list[_Facts]:
    """Feeds of this user that have a memory file, in the order of their processes. Never raises."""
    openings: dict[tuple[int, int], list[tuple[int, str]]] = {}
    for pid, path in _memory_files():
        try:
            status = os.stat(path)
        except OSError:
            continue
        if stat.S_ISREG(status.st_mode):
            openings.setdefault((status.st_dev, status.st_ino), []).append((pid, path))
    found = (_look(file, places) for file, places in openings.items())
    return sorted((feed for feed in found if feed is not None), key=lambda f: (f["pid"] or 0, f["file"]))


def mailboxes_at(fields: int) -> int:
    return (_L["HEAD_NBYTES"] + fields * _L["FIELD_NBYTES"] + 63) // 64 * 64


def command_of(pid: int) -> str | None:
    """The command of a process; None: there is no such process."""
    try:
        with open(f"/proc/{pid}/comm", encoding="utf-8", errors="replace") as file:
            return file.readline().rstrip("\n")
    except OSError:
        return None


def _numbers(folder: str) -> list[int]:
    try:
        return sorted(int(name) for name in os.listdir(folder) if name.isdecimal())
    except OSError:
        return []


def _memory_files() -> Iterator[tuple[int, str]]:
    for pid in _numbers("/proc"):
        try:
            if os.stat(f"/proc/{pid}").st_uid != os.geteuid():
                continue
        except OSError:
            continue
        for number in _numbers(f"/proc/{pid}/fd"):
            path = f"/proc/{pid}/fd/{number}"
            if _link(path).startswith(_PREFIX):
                yield pid, path


def _link(path: str) -> str:
    try:
        return os.readlink(path)
    except OSError:
        return ""


def _start_of(pid: int) -> int | None:
    """The start time of a process in ticks; None: it has ended."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            fields = file.read().rpartition(")")[2].split()
        return None if fields[0] in "ZX" else int(fields[19])
    except (OSError, IndexError, ValueError):
        return None


def _look(file: tuple[int, int], places: list[tuple[int, str]]) -> _Facts | None:
    """The state of a feed; None: its file does not exist any more."""
    pids = sorted({pid for pid, _ in places})
    feed: _Facts = {
        "file": file[1],
        "damaged": None,
        "pid": None,
        "command": None,
        "alive": False,
        "nbytes": 0,
        "rows": 0,
        "slots": 0,
        "slot_nbytes": 0,
        "over": False,
        "workers": [],
    }
    for _, path in places:
        try:
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        except OSError:
            continue
        try:
            status = os.fstat(fd)
            if (status.st_dev, status.st_ino) != file:  # the number is another's now
                continue
            feed["nbytes"] = status.st_size
            _read_head(fd, feed)
        except _Damaged as error:
            feed["damaged"] = str(error)
        except OSError as error:
            feed["damaged"] = f"it cannot be read: {error.strerror}"
        finally:
            os.close(fd)
        break
    else:
        return None
    others = [pid for pid in pids if pid != feed["pid"]]
    feed["processes"] = [{"pid": pid, "command": command_of(pid)} for pid in others]
    return feed


def _read(fd: int, at: int, form: str) -> tuple[Any, ...]:
    nbytes = struct.calcsize(form)
    data = os.pread(fd, nbytes, at)
    if len(data) != nbytes:
        raise _Damaged(f"bytes {at} to {at + nbytes} cannot be read")
    return struct.unpack(form, data)


def _read_head(fd: int, feed: _Facts) -> None:
    magic, version = _read(fd, 0, "=II")
    if magic == 0:
        raise _Damaged("it is being made")
    if magic != _L["MAGIC"]:
        raise _Damaged(f"its mark is {magic:#x}: this is no feed's memory")
    if version != _L["VERSION"]:
        raise _Damaged(f"its layout is version {version}, and version {_L['VERSION']} is understood here")
    (pid,) = _read(fd, _L["PID"], "=I")
    (start,) = _read(fd, _L["START"], "=Q")
    workers, slots, fields = _read(fd, _L["WORKERS"], "=iii")
    (rows,) = _read(fd, _L["ROWS"], "=q")
    (slots_at,) = _read(fd, _L["SLOTS_AT"], "=Q")
    (slot_nbytes,) = _read(fd, _L["SLOT_NBYTES"], "=Q")
    if not 0 < workers <= _MOST_WORKERS or not 0 < fields <= _MOST_FIELDS or slots < 1:
        raise _Damaged(f"it says that it has {workers} workers, {slots} slots and {fields} fields")
    first = mailboxes_at(fields)
    if first + workers * _L["BOX_NBYTES"] > min(slots_at, feed["nbytes"]):
        raise _Damaged(f"{workers} workers do not fit into {feed['nbytes']} bytes with slots at {slots_at}")
    feed.update(pid=pid, command=command_of(pid), alive=_start_of(pid) == start)
    feed.update(rows=rows, slots=slots, slot_nbytes=slot_nbytes)
    feed["workers"] = [_worker(fd, first + i * _L["BOX_NBYTES"], i) for i in range(workers)]
    over = [worker.pop("over") for worker in feed["workers"]]
    feed["over"] = all(over)


def _worker(fd: int, box: int, number: int) -> _Facts:
    (asked,) = _read(fd, box + _L["ASKED"], "=I")
    (is_over,) = _read(fd, box + _L["IS_OVER"], "=I")
    answered, is_asleep = _read(fd, box + _L["ANSWERED"], "=II")
    is_busy = asked != answered and not is_over
    last = (answered - 1) % 2**32 % _L["DEPTH"]
    answer = box + _L["ANSWERS"] + last * _L["ANSWER_NBYTES"]
    request = box + _L["REQUESTS"] + answered % _L["DEPTH"] * _L["REQUEST_NBYTES"]
    index, epoch = _read(fd, request + _L["REQUEST_INDEX"], "=QQ")
    (fill_ns,) = _read(fd, answer + _L["ANSWER_FILL_NS"], "=Q")
    return {
        "worker": number,
        "asked": asked,
        "answered": answered,
        "state": "over" if is_over else "busy" if is_busy else "asleep" if is_asleep else "awake",
        "epoch": epoch if is_busy else None,
        "index": index if is_busy else None,
        "last_fill_ns": fill_ns if answered else None,
        "over": bool(is_over),
    }
