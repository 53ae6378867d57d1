# SPDX-License-Identifier: Apache-2.0
"""The laws that hold while processes die and stop.

The board is plain memory that all processes map. It does not depend on the tested code. Each actor notes on
it what it is about to do, what was acknowledged, and which lease it has.

The laws, and where they are checked:

- A writer has exclusive access: the actor that gets a row finds no other living process as its holder.
  (actors)
- No value is torn: all words of a row, of an item, of an arena's array are equal. (actors)
- No update is lost: a row has counted at least the acknowledged increments, and at most the begun ones. An
  item of a queue arrives once. All sent items arrive, except those that dead processes held. (end)
- Every call ends: no call takes longer than its timeout and a margin, except in stopped actors. (test)
- No actor ends by itself: neither by a signal nor by an exception that the contract does not name. (test)
- Nothing is left: no process, memory file, place, name or socket. (end)
"""

import mmap
import os
import time

import numpy as np
from steered import state_of

ROWS, ROW_WORDS = 8, 2048
MOST_ITEMS = 2048  # that one actor sends


class Violation(AssertionError):
    """A law is broken."""


class Board:
    """Each actor has its own number, and one of a few slots. A slot has at most one living actor."""

    def __init__(self, file, actors, slots):
        self.file, self.actors, self.slots = file, actors, slots
        fields = {
            "stop": ("i8", (1,)),
            "pid": ("i8", (actors,)),
            "killed": ("i8", (actors,)),  # 1: it was killed, or will be in the next moment
            "call_began": ("f8", (actors,)),  # 0: it is not in a call
            "call": ("i8", (actors,)),  # which
            "calls": ("i8", (actors,)),  # the number of ended calls
            "writer": ("i8", (ROWS,)),  # the process that holds the row for writing
            "reader": ("i8", (ROWS, slots)),
            "begun": ("i8", (actors, ROWS)),  # increments
            "acknowledged": ("i8", (actors, ROWS)),
            "sent": ("i8", (actors,)),  # items
            "seen": ("u1", (actors, MOST_ITEMS)),
        }
        nbytes = 0
        for dtype, shape in fields.values():
            nbytes += np.dtype(dtype).itemsize * int(np.prod(shape))
        if os.fstat(file).st_size == 0:
            os.ftruncate(file, nbytes)
        memory, at = mmap.mmap(file, nbytes), 0
        for name, (dtype, shape) in fields.items():
            values = np.frombuffer(memory, dtype, int(np.prod(shape)), at).reshape(shape)
            setattr(self, name, values)
            at += values.nbytes

    @classmethod
    def make(cls, actors, slots):
        return cls(os.memfd_create("chaos-board"), actors, slots)

    def begin(self, actor, call):
        self.call[actor] = call
        self.call_began[actor] = time.monotonic()

    def end(self, actor):
        self.call_began[actor] = 0
        self.calls[actor] += 1

    # --------------------------------------------------------------------------------- who holds a row

    def got_for_writing(self, row):
        me = os.getpid()
        before = int(self.writer[row])
        self.writer[row] = me
        for other in (before, *map(int, self.reader[row])):
            if other not in (0, me) and is_alive(other):
                what = "writes" if other == before else "reads"
                raise Violation(
                    f"row {row} was given to {me} for writing while {self.describe(other)} {what} it"
                )

    def got_for_reading(self, row, slot):
        me = os.getpid()
        self.reader[row, slot] = me
        other = int(self.writer[row])
        if other not in (0, me) and is_alive(other):
            raise Violation(f"row {row} was given to {me} for reading while {self.describe(other)} writes it")

    def describe(self, pid):
        actor = int(np.flatnonzero(self.pid == pid)[0]) if pid in self.pid else None
        what = f"actor {actor}" if actor is not None else "no actor"
        if actor is not None and self.killed[actor]:
            what += ", which is being killed"
        return f"process {pid} ({what}; state {state_of(pid)})"

    def gives_back(self, row, slot):
        """Before the lease is released."""
        me = os.getpid()
        if self.writer[row] == me:
            self.writer[row] = 0
        if self.reader[row, slot] == me:
            self.reader[row, slot] = 0

    # -------------------------------------------------------------------------------------------- the end

    def check_rows(self, values):
        begun, acknowledged = self.begun.sum(0), self.acknowledged.sum(0)
        for row, value in enumerate(values):
            if not acknowledged[row] <= value <= begun[row]:
                raise Violation(
                    f"row {row} has counted {value} increments: {acknowledged[row]} were acknowledged, "
                    f"{begun[row]} begun"
                )

    def check_items(self, receive):
        """receive: the number of the call in which an actor holds an item."""
        is_lost_with = (self.killed == 1) & (self.call == receive) & (self.call_began != 0)
        lost, deaths = 0, int(is_lost_with.sum())
        for actor in range(self.actors):
            sent = int(self.sent[actor])
            lost += sent - int(self.seen[actor, :sent].sum())
        if lost > deaths:
            raise Violation(
                f"{lost} of {self.sent.sum()} items were lost, but {deaths} processes died with one"
            )


def is_alive(pid):
    return state_of(pid) not in "ZX"


def check_equal(values, what):
    first = values.flat[0]
    if (values != first).any():
        others = sorted({value.item() for value in values.flat})[:5]
        raise Violation(f"{what} is torn: it has {others}")
    return first.item()
