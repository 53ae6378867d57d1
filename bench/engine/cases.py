# SPDX-License-Identifier: Apache-2.0
"""The cases, the contenders of each case, and the goals."""

from dataclasses import dataclass

from . import native

POOL, INLINE, BUSY = "Tenon, pool", "Tenon, inline", "Tenon, its worker busy"
EXECUTOR = "Tenon's executor alone"

CASES = {
    native.INDEPENDENT: "Independent ops: each writes an array of its own",
    native.CHAIN: "Chain: each op writes the same array",
    native.READS_WRITE: "2 reads + 1 write, at random among 64 arrays",
    native.TRIP: "Push + wait, again and again",
    native.RESTED_TRIP: "Push + wait, after 0.5 ms of rest",
}
TRIPS = (native.TRIP, native.RESTED_TRIP)
WITHOUT_DEPENDENCIES = (native.INDEPENDENT, *TRIPS)

LEGEND = {
    POOL: "the default executor, through the C ABI; the arrays are borrowed",
    INLINE: "the same, each op run by the push that makes it ready: no other thread",
    BUSY: "the pool with one worker that another op keeps, so that a thread that waits for an op runs it",
    EXECUTOR: "tasks that lie ready, posted to the pool: no dependencies, no memory taken",
    "layer on ...": "the least that puts dependencies on an executor that knows none (`native/layer.h`)",
    "OpenMP depend": "tasks of libgomp; not a peer of the goals: the thread that pushes runs ops too, each "
    "at once while more than 64 for each thread wait, and no other thread may push",
}

CHECKED_OPS = dict.fromkeys(CASES, 2000) | {native.RESTED_TRIP: 5}
OPS_PER_TURN = {
    native.INDEPENDENT: 16_384,
    native.CHAIN: 16_384,
    native.READS_WRITE: 16_384,
    native.TRIP: 1024,
    native.RESTED_TRIP: 12,
}
# The case with many arrays comes last: they are not freed, and functions that visit all arrays take longer
# from then on.
IN_TURN = (native.CHAIN, native.READS_WRITE, *TRIPS, native.INDEPENDENT)


def workers_of(contender):
    return (1,) if contender in (INLINE, BUSY) else (1, 2)


def contenders(case):
    """Pairs (contender, number of workers)."""
    for name in native.CONTENDERS:
        if name == BUSY and case != native.TRIP:
            continue
        if name == EXECUTOR and case not in WITHOUT_DEPENDENCIES:
            continue
        for workers in workers_of(name):
            yield name, workers


def layers():
    return tuple(name for name in native.CONTENDERS if name.startswith("layer on "))


@dataclass
class Goal:
    """A limit of a contender's median: ratio times that of the best peer, or ns."""

    work: str
    case: int
    contender: str = POOL
    peers: tuple[str, ...] = ()
    ratio: float | None = None
    ns: float | None = None


@dataclass
class StepGoal:
    work: str
    step: str
    ns: float


GOALS = [
    Goal("independent", native.INDEPENDENT, peers=layers(), ratio=2.0),
    Goal("independent", native.INDEPENDENT, peers=(EXECUTOR,), ratio=1.05),
    Goal("chain", native.CHAIN, peers=layers(), ratio=2.0),
    Goal("2 reads + 1 write", native.READS_WRITE, peers=layers(), ratio=2.0),
    Goal("push + wait", native.TRIP, ns=1000),
    Goal("push + wait, run by the waiting thread", native.TRIP, contender=BUSY, ns=200),
]


LEASE = "tenon_lease_acquire, _release: to write"
REQUEST = "C++: a request on one queue"
STEP_GOALS = [
    StepGoal("lease, C ABI", LEASE, 35),
    StepGoal("lease, C++ without the array", REQUEST, 30),
]
STEPS_WITHOUT_ALLOCATION = (LEASE, REQUEST)
# Known times of steps of other systems, not from this run.
KNOWN_STEPS = {
    "StarPU 1.3: acquire and release, idle": 1285,
}
