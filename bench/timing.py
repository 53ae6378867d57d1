# SPDX-License-Identifier: Apache-2.0
"""Times short calls of several contenders on a machine that may have other load.

Contenders take turns of a few milliseconds within each round, and each round begins with another of them,
so that a disturbance affects all of them. Nothing is subtracted.
"""

import os
import statistics
import time
import timeit
from dataclasses import dataclass

TURN_NS = 2_000_000


def pin():
    """Ties this process to one core, the last that it may use, and returns its number."""
    core = max(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {core})
    return core


class Call:
    """A Python statement, run in a loop of timeit, which disables the garbage collector."""

    def __init__(self, statement, names):
        self.timer = timeit.Timer(statement, timer=time.perf_counter_ns, globals=names)

    def elapsed_ns(self, n):
        return self.timer.timeit(n)


class Loop:
    """A native function that does its work n times and returns the nanoseconds.

    repeats: n in each turn; None: chosen by the time.
    """

    def __init__(self, body, repeats=None):
        self.elapsed_ns = body
        self.repeats = repeats


def repeats_per_turn(contender):
    n = 100
    while (elapsed := contender.elapsed_ns(n)) < TURN_NS / 4:
        n *= 2
    return max(1, round(n * TURN_NS / elapsed))


def measure(contenders, n_rounds):
    """Nanoseconds per call, one number for each round, by name."""
    repeats = {name: getattr(c, "repeats", None) for name, c in contenders.items()}
    repeats = {name: n or repeats_per_turn(contenders[name]) for name, n in repeats.items()}
    rounds = {name: [] for name in contenders}
    names = list(contenders)
    for i in range(n_rounds):
        for name in names[i % len(names) :] + names[: i % len(names)]:
            n = repeats[name]
            rounds[name].append(contenders[name].elapsed_ns(n) / n)
    return rounds


@dataclass
class Summary:
    """A summary of the rounds of one contender, in nanoseconds."""

    least: float
    median: float
    spread: float  # between the quartiles


def summarise(rounds):
    low, median, high = statistics.quantiles(rounds, n=4, method="inclusive")
    return Summary(min(rounds), median, high - low)
