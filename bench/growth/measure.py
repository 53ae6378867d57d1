# SPDX-License-Identifier: Apache-2.0
"""One point of one curve, in a process of its own: prints nanoseconds per call, a number for each round.

python -m growth.measure CURVE CONTENDER N ROUNDS"""

import gc
import json
import sys
import time

from .curves import CURVES


def measure(contender, n, n_rounds):
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


def main():
    curve, contender, n, n_rounds = sys.argv[1:]
    print(json.dumps(measure(CURVES[curve].contenders[contender], int(n), int(n_rounds))))


if __name__ == "__main__":
    main()
