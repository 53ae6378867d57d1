# SPDX-License-Identifier: Apache-2.0
"""One point of one curve, in a process of its own: prints nanoseconds per call, or bytes for each thing, a
number for each round.

python -m growth.measure CURVE CONTENDER N ROUNDS"""

import gc
import json
import sys
import time

from .curves import CURVES


def times(contender, n, n_rounds):
    """The things are made anew for each round, so that their number is the same in all of them."""
    rounds = []
    for _ in range(1 + n_rounds):  # the first one warms up
        steps = contender(n)
        body, calls = next(steps)
        gc.collect()
        gc.disable()
        start = time.perf_counter_ns()
        for _ in range(calls):
            body()
        rounds.append((time.perf_counter_ns() - start) / calls)
        gc.enable()
        next(steps, None)
    return rounds[1:]


def resident_bytes():
    """Without the pages of files, which come in when their code runs."""
    with open("/proc/self/status") as lines:
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("RssAnon:"))


def memory(contender, n):
    """One round, because the process keeps pages that were freed."""
    steps = contender(n)
    next(steps)
    before = resident_bytes()
    next(steps)
    made = resident_bytes() - before
    next(steps, None)
    return [made / n]


def main():
    curve, contender, size, n_rounds = sys.argv[1:]
    of, n = CURVES[curve], int(size)
    make = of.contenders[contender]
    print(json.dumps(memory(make, n) if of.is_memory else times(make, n, int(n_rounds))))


if __name__ == "__main__":
    main()
