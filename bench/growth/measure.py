# SPDX-License-Identifier: Apache-2.0
"""One point of one curve, in a process of its own: prints nanoseconds per call, a number for each round.

python -m growth.measure CURVE CONTENDER N ROUNDS"""

import gc
import json
import sys
import time

from .curves import CURVES


def measure(contender, n, n_rounds):
    steps = contender(n)
    body, calls = next(steps)
    body()
    gc.collect()
    gc.disable()
    rounds = []
    for _ in range(n_rounds):
        start = time.perf_counter_ns()
        for _ in range(calls):
            body()
        rounds.append((time.perf_counter_ns() - start) / calls)
    gc.enable()
    next(steps, None)
    return rounds


def main():
    curve, contender, n, n_rounds = sys.argv[1:]
    print(json.dumps(measure(CURVES[curve].contenders[contender], int(n), int(n_rounds))))


if __name__ == "__main__":
    main()
