# SPDX-License-Identifier: Apache-2.0
"""Random programs of producers and consumers over channels of objects, with kills and restarts.

Oracle: a producer notes each number after its `send` has returned. Whatever is killed, a consumer gets the
items of each run of a producer in order, without a gap and once, at least all that were noted, with the
elements that follow from producer, run and number. In the end the channel is empty, and an item of the
largest size passes. TENON_SEED=n repeats one program; TENON_SOAK=1 runs 1,000 of them."""

import contextlib
import gc
import mmap
import os
import random
import signal
import time
import traceback
import uuid

import numpy as np
import pytest

import tenon as tn

pytestmark = pytest.mark.slow

SECONDS = 600
PROGRAMS = 1000 if os.environ.get("TENON_SOAK") else 12
PAGE = os.sysconf("SC_PAGE_SIZE")
PRODUCERS, RUNS = 3, 8


def elements(producer, run, number, largest):
    """Of an item: they show whether it is complete, and which it is."""
    chance = random.Random(f"{producer} {run} {number}")
    size = chance.choice((chance.randrange(100), chance.randrange(20_000), chance.randrange(largest)))
    return np.full(size, (producer * 7 + run * 31 + number) % 251, "u1")


class Notes:
    """How many items each run of a producer has sent, in memory that forked processes share."""

    def __init__(self):
        self._memory = mmap.mmap(-1, 8 * PRODUCERS * RUNS)
        self.sent = np.frombuffer(self._memory, "i8").reshape(PRODUCERS, RUNS)


def forked(function, *arguments):
    gc.collect()
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            function(*arguments)
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(status)
    return pid


def produce(name, options, notes, producer, run, n, largest):
    channel = tn.Channel(name=name, exist_ok=True, **options)
    chance = random.Random(f"{name} {producer} {run}")
    for number in range(n):
        content = elements(producer, run, number, largest)
        if chance.random() < 0.3:
            with channel.loan(timeout=SECONDS) as item:
                try:
                    x = item.empty(len(content), "u1")
                    x.numpy()[...] = content
                    item.send((producer, run, number, x))
                except MemoryError:  # a loan does not wait for more
                    item.drop()
                    channel.send((producer, run, number, content), timeout=SECONDS)
        else:
            channel.send((producer, run, number, content), timeout=SECONDS)
        notes.sent[producer, run] = number + 1
    channel.close()


def consume_for_ever(name, options):
    kept = []
    for item in tn.Channel(name=name, exist_ok=True, on_death="wait", **options):
        kept = [*kept[-1:], item]


class Program:
    def __init__(self, seed):
        self.chance = random.Random(seed)
        chance = self.chance
        self.largest = chance.choice((50_000, 300_000))
        self.options = {
            "nbytes": chance.choice((2, 4)) * (self.largest + 64 * PAGE),
            "largest": self.largest + 8 * PAGE,
            "slots": chance.choice((4, 16)),
            "mode": chance.choice(("queue", "broadcast")),
            "when_full": "keep",
        }
        self.name = f"programs-{uuid.uuid4()}"
        self.channel = tn.Channel(name=self.name, on_death="wait", **self.options)
        with contextlib.suppress(TimeoutError):
            self.channel.recv(timeout=0)  # a consumer from the beginning
        self.notes = Notes()
        self.producers = {}  # producer -> (pid, run)
        self.others = []  # consumers that are killed
        self.got = {}  # (producer, run) -> numbers
        self.kept = []

    def start(self, producer, run):
        n = self.chance.randrange(1, 40)
        arguments = (self.name, self.options, self.notes, producer, run, n, self.largest)
        self.kept = []  # a forked child would have the views, too
        self.producers[producer] = (forked(produce, *arguments), run)

    def receive(self, timeout):
        try:
            producer, run, number, x = self.channel.recv(timeout, copy=self.chance.random() < 0.5)
        except (TimeoutError, EOFError):  # the end: the last producer of that time has closed
            return False
        numbers = self.got.setdefault((producer, run), [])
        assert number == len(numbers), "an item is missing, or came twice"
        numbers.append(number)
        content = np.asarray(x)
        assert np.array_equal(content, elements(producer, run, number, self.largest))
        self.kept = [*self.kept[-1:], (x, content.copy())] if self.chance.random() < 0.3 else self.kept[:1]
        for array, elements_then in self.kept:
            assert np.array_equal(np.asarray(array), elements_then), "an item that is held has changed"
        return True

    def kill(self, pid):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)

    def run(self):
        for producer in range(PRODUCERS):
            self.start(producer, 0)
        end = time.monotonic() + SECONDS
        while self.producers or self.receive(0.05):
            assert time.monotonic() < end, (self.options, self.channel)
            for _ in range(self.chance.randrange(6)):
                self.receive(0.01)
            if self.producers and self.chance.random() < 0.2:
                self.kill(self.producers[self.chance.choice(list(self.producers))][0])
            if self.options["mode"] == "broadcast" and self.chance.random() < 0.1 and len(self.others) < 4:
                self.kept = []
                self.others.append(forked(consume_for_ever, self.name, self.options))
            if self.others and self.chance.random() < 0.1:
                self.kill(self.others[-1])
                os.waitpid(self.others.pop(), 0)
            for producer, (pid, run) in list(self.producers.items()):
                ended, status = os.waitpid(pid, os.WNOHANG)
                if ended == 0:
                    continue
                assert os.WIFSIGNALED(status) or os.WEXITSTATUS(status) == 0
                del self.producers[producer]
                if run + 1 < RUNS and self.chance.random() < 0.8:
                    self.start(producer, run + 1)
        for pid in self.others:
            self.kill(pid)
            os.waitpid(pid, 0)
        for producer in range(PRODUCERS):
            for run in range(RUNS):
                sent, got = int(self.notes.sent[producer, run]), len(self.got.get((producer, run), ()))
                assert sent <= got <= sent + 1, (producer, run, sent, got)
        self.kept = []
        gc.collect()
        self.channel.send(np.ones(self.largest, "u1"), timeout=SECONDS)
        got = self.channel.recv(timeout=SECONDS)
        assert got.sum() == self.largest
        del got
        gc.collect()
        assert self.channel.stats()["in_use"] == 0

    def end(self):
        for pid in [pid for pid, _ in self.producers.values()] + self.others:
            self.kill(pid)
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, 0)
        self.channel.close()


def seeds():
    given = os.environ.get("TENON_SEED")
    return [int(given)] if given else [random.randrange(1 << 30) for _ in range(PROGRAMS)]


def test_random_programs_with_kills_lose_nothing_and_wedge_nothing():
    for seed in seeds():
        print(f"TENON_SEED={seed}")
        program = Program(seed)
        try:
            program.run()
        finally:
            program.end()
