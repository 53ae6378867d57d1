# SPDX-License-Identifier: Apache-2.0
"""Processes that use all features at once, while they are killed, stopped, and denied system calls and files.

`actors.py` has what they do, `oracle.py` what must be true. The short form takes about half a minute;
`TENON_SOAK=1` kills for `TENON_CHAOS_SECONDS` (1,500). `TENON_CHAOS_SEED` repeats the order of the attacks.
"""

import os
import signal
import socket
import time
from pathlib import Path

import pytest
from actors import CALLS
from denials import COLUMN
from oracle import Board

SOAK = bool(os.environ.get("TENON_SOAK"))
RUN_SECONDS = float(os.environ.get("TENON_CHAOS_SECONDS", 1500 if SOAK else 25))
SLOTS = 6  # actors at a time
MOST_ACTORS = 40_000 if SOAK else 2_000
# Calls wait 0.5 s for other processes, some of them three times; the rest is for a loaded machine.
CALL_SECONDS = 300.0
DENIALS = ["files", "memfd_create", "fallocate", "futex_waitv", "pidfd_open", "eventfd2", "madvise"]


class Attack:
    """The slots with their actors, the attacks on them, and the checks of the laws."""

    def __init__(self, nursery, chance):
        self.nursery, self.chance = nursery, chance
        self.name = f"tenon.chaos.{os.getpid()}"
        self.board = Board.make(MOST_ACTORS, SLOTS)
        self.anchor = nursery.child(self.board.file)  # keeps everything alive: it is never attacked
        self.world = self.anchor.ask("actors.make_world(name)", name=self.name)
        self.mailbox = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
        for end in self.mailbox:
            end.setblocking(False)
        self.living = {}  # slot -> (the number of the actor, its process)
        self.wakes = {}  # slot -> when it goes on
        self.went_on = {}  # slot -> when it did
        self.numbers = 0
        self.counts = {"kills": 0, "stops": 0, "denials": 0, "sieges": 0, "calls": 0}

    def fill_slots(self):
        for slot in set(range(SLOTS)) - set(self.living):
            child = self.nursery.child(self.board.file, self.mailbox[self.chance.randrange(2)].fileno())
            is_denied = COLUMN is not None and self.chance.random() < 0.1
            denial = self.chance.choice(DENIALS) if is_denied else None
            self.counts["denials"] += is_denied
            self.board.begin(self.numbers, len(CALLS))
            child.start(
                "actors.act(files=files, **how)",
                how={
                    "shape": (MOST_ACTORS, SLOTS),
                    "number": self.numbers,
                    "slot": slot,
                    "world": self.world,
                    "name": self.name,
                    "seed": self.chance.randrange(1 << 32),
                    "denial": denial,
                },
            )
            self.living[slot] = (self.numbers, child)
            self.went_on[slot] = time.monotonic()
            self.numbers += 1

    def strike(self):
        """One attack on one actor: it is killed, also while it is stopped, or stopped for a while."""
        slot = self.chance.randrange(SLOTS)
        if slot in self.wakes or len(self.wakes) == SLOTS // 2 or self.chance.random() < 0.5:
            self.end(slot)
        else:
            self.stop(slot, self.chance.uniform(0, 2))

    def stop(self, slot, seconds):
        self.living[slot][1].stop()
        self.counts["stops"] += 1
        self.wakes[slot] = time.monotonic() + seconds

    def besiege(self):
        """Some actors are stopped wherever they are, until each of the others has ended some calls: nobody
        waits for a stopped process for longer than a call's timeout."""
        for slot in self.chance.sample(range(SLOTS), 2):
            if slot not in self.wakes:
                self.stop(slot, 10 * CALL_SECONDS)
            time.sleep(self.chance.uniform(0, 0.01))
        numbers = [number for slot, (number, _) in self.living.items() if slot not in self.wakes]
        before = self.board.calls[numbers].copy()
        while (self.board.calls[numbers] < before + 5).any():
            self.check()
            time.sleep(0.01)
        self.counts["sieges"] += 1
        self.wake(everybody=True)

    def end(self, slot):
        number, child = self.living.pop(slot)
        self.wakes.pop(slot, None)
        self.board.killed[number] = 1
        child.kill()
        self.bury(child)
        self.counts["kills"] += 1

    def bury(self, child):
        status = child.end()
        self.nursery.children.remove(child)
        assert status in (0, signal.SIGKILL), f"an actor ended by signal {status & 127}, exit {status >> 8}"

    def wake(self, everybody=False):
        now = time.monotonic()
        for slot, when in list(self.wakes.items()):
            if everybody or when <= now:
                self.living[slot][1].go_on()
                self.went_on[slot] = now
                del self.wakes[slot]

    def check(self):
        """No actor has ended, and none is in a call for too long."""
        now = time.monotonic()
        for slot, (number, child) in self.living.items():
            if child.has_answered():
                child.answer()  # raises what it met
                pytest.fail(f"actor {number} has ended by itself")
            began = max(self.board.call_began[number], self.went_on[slot])
            is_in_call = self.board.call_began[number] != 0 and slot not in self.wakes
            if is_in_call and now - began > CALL_SECONDS:
                child.show_where_it_is()
                time.sleep(0.5)
                call = [*CALLS, "its start"][self.board.call[number]]
                pytest.fail(
                    f"actor {number} has been in '{call}' for {now - began:.0f} s: its calls have timeouts"
                )

    def close(self):
        """All actors end by themselves; what they have left is whole, and nothing else is left."""
        self.wake(everybody=True)
        self.board.stop[0] = 1
        for number, child in self.living.values():
            try:
                child.answer(CALL_SECONDS)
            except TimeoutError:
                child.show_where_it_is()
                time.sleep(0.5)
                call = [*CALLS, "its start"][self.board.call[number]]
                pytest.fail(f"actor {number} does not come to its end: it is in '{call}'")
            self.bury(child)
        self.living.clear()
        self.counts["calls"] = int(self.board.calls.sum())
        self.anchor.ask(f"actors.check_world(files[0], {MOST_ACTORS}, {SLOTS})")
        self.anchor.end()
        self.nursery.children.remove(self.anchor)

    def check_nothing_is_left(self):
        """Of processes, memory and names, when the last process has ended."""
        assert not self.nursery.processes_left()
        observer = self.nursery.child()
        observer.ask("actors.outcome(lambda: actors.collect())")
        segments = observer.ask("actors.segments_named(name)", name=self.name)
        assert not segments, segments
        assert observer.ask("actors.outcome(lambda: tn.attach(name))", name=f"{self.name}.cells") == (
            "FileNotFoundError"
        )
        observer.end()
        self.nursery.children.remove(observer)
        assert self.name not in Path("/proc/net/unix").read_text()


@pytest.mark.timeout(RUN_SECONDS + 1800)
def test_chaos(nursery, chance):
    attack = Attack(nursery, chance)
    end = time.monotonic() + RUN_SECONDS
    try:
        while time.monotonic() < end and attack.numbers < MOST_ACTORS - SLOTS:
            attack.fill_slots()
            time.sleep(chance.uniform(0.002, 0.08))
            attack.wake()
            attack.check()
            if chance.random() < 0.03:
                attack.besiege()
            else:
                attack.strike()
        attack.fill_slots()
        attack.close()
        attack.check_nothing_is_left()
    finally:
        print(attack.counts)
        for child in list(nursery.children):
            child.end()
        nursery.children.clear()
