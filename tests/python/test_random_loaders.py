# SPDX-License-Identifier: Apache-2.0
"""Random consumers of a DataLoader over iterable datasets: they drop their iterator, keep batches, take a
second iterator, are interrupted by a SIGINT while `next` waits or between its steps, kill a worker. Oracle: a
count of this file. In a pass the numbers of each worker come in order and once; a number is missing only
after an error of the pass, or with the one batch that an interrupt may take; batches that are kept do not
change. The seed is printed; TENON_SOAK=1 runs 10,000 consumers."""

import os
import random
import signal
import threading
import time

import pytest

import tenon as tn

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.slow

SOAK = os.environ.get("TENON_SOAK") == "1"
CONSUMERS = 10_000 if SOAK else 60
PASSES = 10  # of a loader
WIDTH = 100_000  # numbers of a worker


class Numbers(torch.utils.data.IterableDataset):
    def __init__(self, counts, pause):
        self.counts, self.pause = counts, pause

    def __iter__(self):
        info = torch.utils.data.get_worker_info()
        for i in range(self.counts[info.id]):
            if i % 7 == 3:
                time.sleep(self.pause)  # so that `next` waits
            yield info.id * WIDTH + i


class Consumer:
    def __init__(self, loader, counts, rng):
        self.loader, self.counts, self.rng = loader, counts, rng
        self.size = loader.batch_size
        self.kept = []  # (batch, its numbers)
        self.is_killed = False  # a worker, and no pass has told it: one that is idle is missed by a later one

    def check_kept(self):
        for batch, numbers in self.kept:
            assert batch.tolist() == numbers

    def run(self, how):
        """One pass."""
        expected = [0] * len(self.counts)
        interrupts = 0
        total = sum(-(-count // self.size) for count in self.counts)
        taken, stop = 0, self.rng.randrange(total)
        batches = iter(self.loader)
        while True:
            if taken == stop and how == "drop":
                return
            if taken == stop and how == "second":
                batches = iter(self.loader)
                expected, taken, stop = [0] * len(self.counts), 0, -1
            if taken == stop and how == "kill" and batches._workers:
                os.kill(self.rng.choice(batches._workers).pid, signal.SIGKILL)
                self.is_killed = True
                stop = -1
            timer = None
            try:
                if taken == stop and how == "interrupt":
                    stop = -1
                    timer = threading.Timer(self.rng.random() * 0.003, signal_this_process)
                    timer.start()
                    try:
                        batch = next(batches, None)
                        timer.join()
                    finally:
                        join(timer)
                else:
                    batch = next(batches, None)
            except KeyboardInterrupt:
                interrupts += 1
                continue
            except RuntimeError as error:
                if interrupts and "was interrupted" in str(error):
                    return  # what is missing is reported
                assert self.is_killed and "killed by signal" in str(error), error
                self.is_killed = False
                assert next(batches, None) is None
                return
            if batch is None:
                break
            numbers = batch.tolist()
            worker, first = divmod(numbers[0], WIDTH)
            assert numbers == list(range(numbers[0], numbers[0] + len(numbers)))
            missing = first - expected[worker]
            assert missing >= 0, f"{numbers} came twice"
            if missing:
                assert missing == self.size and interrupts > 0, f"{missing} are missing before {numbers}"
                interrupts -= 1
            expected[worker] = first + len(numbers)
            taken += 1
            if how == "keep" and self.rng.random() < 0.3:
                self.kept.append((batch, numbers))
                self.kept[:-4] = []
            self.check_kept()
        missing = [count - found for count, found in zip(self.counts, expected, strict=True)]
        assert sum(missing) == 0 or (interrupts and 0 < sum(missing) <= self.size), missing


def signal_this_process():
    os.kill(os.getpid(), signal.SIGINT)


def join(thread):
    """Also where the signal arrives here."""
    while thread.is_alive():
        thread.join()


def test_each_row_is_counted_once():
    seed = int(os.environ.get("TENON_RANDOM_SEED", random.randrange(2**32)))
    print("TENON_RANDOM_SEED =", seed)
    rng = random.Random(seed)
    count = {}
    for _ in range(CONSUMERS // PASSES):
        workers = rng.randrange(1, 4)
        counts = [rng.randrange(1, 40) for _ in range(workers)]
        options = {
            "num_workers": workers,
            "batch_size": rng.randrange(1, 6),
            "prefetch_factor": rng.randrange(1, 4),
            "persistent_workers": rng.random() < 0.7,
        }
        loader = tn.DataLoader(Numbers(counts, rng.choice([0, 0.0005])), **options)
        consumer = Consumer(loader, counts, rng)
        for _ in range(PASSES):
            how = rng.choice(["drop", "keep", "second", "interrupt", "kill", "whole"])
            count[how] = count.get(how, 0) + 1
            try:
                consumer.run(how)
            except BaseException:
                print(options, counts, how)
                raise
        if loader._iterator is not None:
            loader._iterator._shutdown_workers()
    print(count)
