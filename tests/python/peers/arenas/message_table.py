# SPDX-License-Identifier: Apache-2.0
"""What the adapters of vLLM share: messages of a tensor pool in the rows of a small shared array, which has a
name, and how often each reader has read each of them."""

import contextlib
import os
import select

import numpy as np

import tenon as tn

_MESSAGE = 1000  # bytes; that of one array has some hundred


class MessageTable:
    def __init__(self, name, rows, readers, is_new):
        # The last count is the writer's, which reads in the place of any reader.
        row = [("number", "i8"), ("reads", "i8", (readers + 1,)), ("size", "i8"), ("message", f"V{_MESSAGE}")]
        self._layout = np.dtype([("secret", "V32"), ("pids", "i8", (readers,)), ("rows", row, (rows,))])
        self._array = tn.zeros(self._layout.itemsize, "u1", shared=name) if is_new else tn.attach(name)
        if is_new:
            with self._open(is_write=True) as table:
                table["secret"] = os.urandom(32)

    @contextlib.contextmanager
    def _open(self, is_write=False):
        with self._array.write() if is_write else self._array.read() as memory:
            yield memory.view(self._layout)

    def secret(self):
        with self._open() as table:
            return table["secret"][0].tobytes()

    def join(self, place=None):
        """Notes this process as a reader. Returns its place, which is the first free one if none is given."""
        with self._open(is_write=True) as table:
            pids = table["pids"][0]
            place = int(np.flatnonzero(pids == 0)[0]) if place is None else place
            pids[place] = os.getpid()
        return place

    def publish(self, row, number, message):
        with self._open(is_write=True) as table:
            table["rows"][0, row] = (number, 0, len(message), message)

    def look(self, row):
        """The number and the message of a row; the message is empty before the first publish()."""
        with self._open() as table:
            number, _, size, message = table["rows"][0, row].item()
        return number, message[:size]

    def count(self, rows, place):
        with self._open(is_write=True) as table:
            table["rows"]["reads"][0, rows, place] += 1

    def is_read(self, row, times, readers):
        """Whether the first `readers` processes have read the message so often. One that has ended has."""
        with self._open() as table:
            reads, pids = table["rows"]["reads"][0, row].tolist(), table["pids"][0].tolist()
        pairs = zip(reads[:readers], pids, strict=False)
        missing = sum(times - n for n, pid in pairs if n < times and not (pid and has_ended(pid)))
        return missing <= reads[-1]


def has_ended(pid):
    """Whether no process has this number, or one that has ended. If another process has got the number
    since, it counts as the reader: then a row is kept for too long."""
    try:
        process = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([process], [], [], 0)[0])
    finally:
        os.close(process)
