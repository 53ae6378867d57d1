# SPDX-License-Identifier: Apache-2.0
"""One process of the measurement, with bench/ on the path:

    python -m engine.measure check             every contender, once: fails if one does not do its work
    python -m engine.measure native ROUNDS WORKERS
                                               ["ops"][case][contender][number of workers][round] and
                                               ["steps"][step][round]
    python -m engine.measure python ROUNDS     [heading][call][round]

Prints one line of JSON: nanoseconds per op, step or call. Native code is measured without the Python package,
because each wait would call its hooks. A process has one number of workers, because MXNet's engine has."""

import ctypes
import json
import os
import sys

import timing

from . import build

LONGEST_TURN_NS = 20_000_000


def set_workers_of_mxnet(n):
    os.environ["MXNET_CPU_WORKER_NTHREADS"] = str(n)


def check():
    set_workers_of_mxnet(2)
    counter = ctypes.CDLL(build.FOLDER / "count_new.so", mode=ctypes.RTLD_GLOBAL)
    counter.count_new_allocations.restype = ctypes.c_int64
    from . import cases, native

    for case, n in cases.CHECKED_OPS.items():
        for name, workers in cases.contenders(case):
            bodies, violations = native.check(name, case, workers, n)
            if (bodies, violations) != (n, 0):
                where = f"{name}, workers: {workers}, {cases.CASES[case]}"
                raise AssertionError(f"{where}: {bodies} of {n} ran, {violations} against the order")

    def allocations(step, n):
        before = counter.count_new_allocations()
        native.step_ns(step, n)
        return counter.count_new_allocations() - before

    if allocations(cases.LEASE, 1) == 0:
        raise AssertionError("allocations are not counted")
    for step in cases.STEPS_WITHOUT_ALLOCATION:
        allocations(step, 1)
        if allocations(step, 1000) != allocations(step, 1):
            raise AssertionError(f"{step} allocates")


def repeats_per_turn(elapsed_ns, most):
    """most, or fewer if that takes too long."""
    n = most // 64
    while n < most and elapsed_ns(n) < LONGEST_TURN_NS:
        n *= 2
    return n


def ops(n_rounds, workers):
    set_workers_of_mxnet(workers)
    from . import cases, native

    def loop(case, name):
        def elapsed_ns(n):
            return native.elapsed_ns(name, case, workers, n)

        most = cases.OPS_PER_TURN[case]
        return timing.Loop(elapsed_ns, most if most < 64 else repeats_per_turn(elapsed_ns, most))

    results = {}
    for case in cases.IN_TURN:
        loops = {name: loop(case, name) for name, n in cases.contenders(case) if n == workers}
        results[case] = {name: {workers: rounds} for name, rounds in timing.measure(loops, n_rounds).items()}
    return results


def steps(n_rounds):
    from . import native

    timing.pin()
    loops = {name: timing.Loop(lambda n, name=name: native.step_ns(name, n)) for name in native.STEPS}
    return timing.measure(loops, n_rounds)


def native(n_rounds, workers):
    return {"ops": ops(n_rounds, workers), "steps": steps(n_rounds)}


def python(n_rounds):
    from . import python_calls

    return {heading: timing.measure(group, n_rounds) for heading, group in python_calls.contenders().items()}


if __name__ == "__main__":
    what, *arguments = sys.argv[1:]
    print(json.dumps({"check": check, "native": native, "python": python}[what](*map(int, arguments))))
