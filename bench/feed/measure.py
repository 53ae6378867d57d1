# SPDX-License-Identifier: Apache-2.0
"""One process of the measurement, with bench/ on the path:

    python -m feed.measure PART ROUNDS

Prints one line of JSON: "versions", "absent" (names of contenders) and "seconds": name -> seconds per batch,
or of the first batch, one for each round. Contenders take turns within each round. Each is checked first:
all of its first four batches.
"""

import functools
import itertools
import json
import sys
import time

import numpy as np
import torch
from report import versions

from .contenders import Reader
from .parts import PARTS, library

PACKAGES = ("tenon-arrays", "numpy", "torch", "spdl", "grain")
CHECKED = 4
# Batches that a contender has filled during the turns of others are taken first, and before its next turn it
# has time to fill them again.
AHEAD = 10
# A slow contender needs fewer batches than a fast one for the same accuracy.
TURN_SECONDS = 0.25
LONGEST_REST = 0.3
MOST_PER_TURN = 5000
ROUNDS_FOR_THE_SPAWNED = 4  # they take part in the first, the fifth, ...


@functools.cache
def expected_batch(expected, k):
    return expected(k)


def compare(contender, job, k, batch):
    wanted = expected_batch(contender.expected or job.expected, k)
    for field, array, right in zip(job.fields, batch, wanted, strict=True):
        if not np.array_equal(np.asarray(array), right):
            raise AssertionError(f"{contender.name}: batch {k} arrived with a wrong field {field!r}")


def consumer_of(part, job):
    if part.kind != "training":
        return Reader(library("fill"), job)
    from tenon.demo.torch_learner import TorchLearner

    learner = TorchLearner(10**9, seed=0)
    return lambda batch: learner.step(*batch)


def per_batch(batches, n, consume):
    begin = time.perf_counter()
    for batch in itertools.islice(batches, n):
        consume(batch)
    return (time.perf_counter() - begin) / n


def take_turns(names, rounds, turn):
    """Name -> what turn(name, round) has returned in each round, None left out."""
    result = {name: [] for name in names}
    for i in range(rounds):
        first = i % len(names)
        for name in names[first:] + names[:first]:
            found = turn(name, i)
            if found is not None:
                result[name].append(found)
    return result


def race(contenders, job, rounds, consume):
    sources, counts = {}, {}
    for contender in contenders:
        sources[contender.name] = batches = contender.begin()
        for k in range(CHECKED):
            compare(contender, job, k, next(batches))
        per_batch(batches, AHEAD, consume)
        seconds = per_batch(batches, 3, consume)
        counts[contender.name] = max(3, min(MOST_PER_TURN, int(TURN_SECONDS / seconds)))
        time.sleep(min(LONGEST_REST, AHEAD * seconds))

    def turn(name, _):
        per_batch(sources[name], AHEAD, consume)
        seconds = per_batch(sources[name], counts[name], consume)
        time.sleep(min(LONGEST_REST, AHEAD * seconds))
        return seconds

    try:
        return take_turns(list(sources), rounds, turn)
    finally:
        for batches in sources.values():
            batches.close()


def first_batches(contenders, job, rounds, consume):
    """The time from before a contender is made until its first batch has been read."""
    by_name = {contender.name: contender for contender in contenders}

    def turn(name, i):
        contender = by_name[name]
        if contender.is_spawned and i % ROUNDS_FOR_THE_SPAWNED != 0:
            return None
        begin = time.perf_counter()
        batches = contender.begin()
        batch = next(batches)
        consume(batch)
        seconds = time.perf_counter() - begin
        compare(contender, job, 0, batch)
        del batch
        batches.close()
        return seconds

    for contender in contenders:  # modules are imported
        if not contender.is_spawned:
            turn(contender.name, 0)
    return take_turns(list(by_name), rounds, turn)


def main(name, rounds):
    torch.set_num_threads(1)
    part = PARTS[name]
    job = part.make_job()
    contenders = part.contenders(job)
    absent = [contender.name for contender in contenders if contender.is_missing()]
    here = [contender for contender in contenders if not contender.is_missing()]
    measure = first_batches if part.kind == "first batch" else race
    seconds = measure(here, job, int(rounds), consumer_of(part, job))
    print(json.dumps({"versions": versions(PACKAGES), "absent": absent, "seconds": seconds}), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
