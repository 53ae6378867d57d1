# SPDX-License-Identifier: Apache-2.0
"""Random consumers of feeds: they drop their iterator, keep batches, take a second iterator, are interrupted
by a signal, also while they wait, kill a worker process; consumers in other processes are killed. Oracle: a
count of this file. Within a pass each index comes once and in order; an index that is missing was counted as
skipped, or the pass ended with a failure at it; a batch that is kept does not change. The seed is printed;
TENON_SOAK=1 runs 10,000 consumers."""

import contextlib
import itertools
import os
import random
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

import tenon as tn

SCHEMA = tn.schema(label=("i8", (16,)))
SECONDS = 60  # a watchdog
SOAK = os.environ.get("TENON_SOAK") == "1"
FEEDS = 1000 if SOAK else 6
PASSES = 10  # of a feed: one consumer each


def fill(batch):
    batch.label = batch.epoch * 100_000 + batch.index


class Gate:
    """The generator, which can be held up."""

    def __init__(self):
        self.is_open = threading.Event()
        self.is_open.set()
        self.held = 0

    def __call__(self, batch):
        if not self.is_open.is_set():
            self.held = 1
            try:
                assert self.is_open.wait(SECONDS)
            finally:
                self.held = 0
        fill(batch)


def number_of(batch):
    values = np.unique(np.asarray(batch.label))
    assert len(values) == 1, values
    return int(values[0])


class Consumer:
    def __init__(self, feed, rng, batches):
        self.feed, self.rng, self.batches = feed, rng, batches
        self.kept = []  # (batch, number)
        self.thread = None  # that interrupts
        self.kills = 0  # a worker that is killed while it is idle is missed by a later batch

    def check_kept(self):
        for batch, number in self.kept:
            assert number_of(batch) == number

    def interrupt_later(self, batches):
        """Sends SIGINT when the consumer waits for a fill that is held up: it can get no batch then."""
        gate = self.feed.generator
        gate.is_open.clear()
        self.is_sent, self.is_over = threading.Event(), threading.Event()

        def interrupt():
            while not self.is_over.is_set():
                stats = self.feed.stats()
                if gate.held == 1 and stats.slots_ready == 0 and batches._is_in_next:
                    self.is_sent.set()
                    os.kill(os.getpid(), signal.SIGINT)
                    return
                time.sleep(0.001)

        self.thread = threading.Thread(target=interrupt)
        self.thread.start()

    def run(self, how):
        """One pass. How many batches it took."""
        try:
            return self.take(how)
        finally:
            if self.thread is not None:
                self.is_over.set()
                self.thread.join()
                self.thread = None
                self.feed.generator.is_open.set()

    def take(self, how):
        expected, epoch, killed = 0, None, False
        skipped = self.feed.stats().skipped
        stop = self.rng.randrange(self.batches)
        batches = iter(self.feed)
        while True:
            if expected == stop and how == "drop":
                return expected
            if expected == stop and how == "second":
                batches = iter(self.feed)
                expected, stop, epoch = 0, -1, None
                skipped = self.feed.stats().skipped
            if expected == stop and how == "wait":
                stop = -1
                self.interrupt_later(batches)
            if expected == stop and how == "kill" and not killed:
                pid = self.rng.choice(self.feed.stats().per_worker).pid
                killed = True
                self.kills += 1
                if pid is not None:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
            try:
                if expected == stop and how == "interrupt":
                    stop = -1
                    with pytest.raises(KeyboardInterrupt):
                        signal.raise_signal(signal.SIGINT)
                batch = next(batches, None)
            except KeyboardInterrupt:
                assert how == "wait" and self.is_sent.is_set()
                return expected
            except tn.OpError as error:
                assert self.kills > 0 and error.kind == "died", error
                self.kills -= 1
                assert error.index == expected, "each batch before the failure was delivered"
                return expected
            if batch is None:
                break
            number = number_of(batch)
            epoch = number // 100_000 if epoch is None else epoch
            assert (batch.epoch, batch.index) == (epoch, number % 100_000)
            missing = batch.index - expected
            assert missing >= 0, f"batch {batch.index} comes after {expected - 1}"
            assert missing <= self.feed.stats().skipped - skipped
            expected = batch.index + 1
            if how == "keep" and self.rng.random() < 0.3:
                self.kept.append((batch, number))
                self.kept[:-2] = []
            self.check_kept()
            del batch
        missing = self.batches - expected
        assert 0 <= missing <= self.feed.stats().skipped - skipped
        return expected


@pytest.mark.slow
@pytest.mark.parametrize("processes", [False, True], ids=["threads", "processes"])
def test_each_batch_is_counted_once(processes):
    seed = int(os.environ.get("TENON_RANDOM_SEED", random.randrange(2**32)))
    print("TENON_RANDOM_SEED =", seed)
    rng = random.Random(seed)
    ways = ["drop", "keep", "second", "interrupt", "whole", "kill" if processes else "wait"]
    for _ in range(FEEDS // 2 if SOAK else FEEDS):
        options = {
            "batches": rng.randrange(1, 30),
            "workers": rng.randrange(1, 4) if processes else rng.randrange(0, 2),
            "processes": processes,
            "on_error": rng.choice(["raise", "skip", "retry"]),
        }
        generator = fill if processes else Gate()
        with tn.Feed(generator, SCHEMA, slots=options["workers"] + 5, **options) as feed:
            consumer = Consumer(feed, rng, options["batches"])
            for _ in range(PASSES):
                how = rng.choice(ways)
                try:
                    consumer.run(how)
                except BaseException:
                    print(options, how)
                    raise
            consumer.kept.clear()
            assert feed.stats().slots_held == 0


ATTACHED = """
import os, sys
import numpy as np
import tenon as tn
with tn.Feed.attach(sys.argv[1], wait=60) as feed:
    for _ in range(int(sys.argv[2])):
        for batch in feed:
            (number,) = np.unique(np.asarray(batch.label))
            os.write(1, b"%d\\n" % number)
            del batch
"""


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["queue", "broadcast"])
def test_a_batch_is_lost_only_with_the_consumer_that_had_it(mode):
    seed = int(os.environ.get("TENON_RANDOM_SEED", random.randrange(2**32)))
    print("TENON_RANDOM_SEED =", seed)
    rng = random.Random(seed)
    for number in range(100 if SOAK else 2):
        name = f"test-random-{os.getpid()}-{mode}-{number}"
        batches, epochs, count = rng.randrange(20, 200), 2, rng.randrange(2, 5)
        every = sorted(epoch * 100_000 + index for epoch in range(epochs) for index in range(batches))
        doomed = rng.randrange(1, count)  # at least one lives on
        with tn.Feed(fill, SCHEMA, batches=batches, slots=count + 3, shared=name) as feed:
            with feed.serve(mode, epochs=epochs, consumers=count, background=True) as server:
                consumers = [
                    subprocess.Popen(
                        [sys.executable, "-c", ATTACHED, name, str(epochs)], stdout=subprocess.PIPE
                    )
                    for _ in range(count)
                ]
                for consumer in consumers[:doomed]:
                    consumer.stdout.peek(1)  # its first batch, or its end
                    time.sleep(rng.random() * 0.02)
                    consumer.kill()
                codes = [consumer.wait(SECONDS) for consumer in consumers]
                assert codes[doomed:] == [0] * (count - doomed)
                texts = [consumer.stdout.read() for consumer in consumers]
            server.close()
            assert feed.stats().slots_held == 0
            # A consumer may be killed after it has received a batch, before it counts it.
            assert 0 <= len(every) - feed.stats().batches <= doomed
        # The last line of a killed process may be cut.
        taken = [[int(line) for line in text.split(b"\n")[:-1]] for text in texts]
        for numbers in taken:
            assert numbers == sorted(set(numbers)), "each consumer gets them in order, and once"
        if mode == "broadcast":
            assert all(numbers == every for numbers in taken[doomed:])
            assert all(numbers == every[: len(numbers)] for numbers in taken[:doomed])
        else:
            together = sorted(itertools.chain.from_iterable(taken))
            assert together == sorted(set(together)), "no batch goes to two consumers"
            lost = len(every) - len(together)
            assert lost <= doomed, "a killed consumer takes one batch with it"
