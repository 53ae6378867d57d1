# SPDX-License-Identifier: Apache-2.0
"""What grows, beside which things, and the goals."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

import tenon as tn

from . import calls

SMALL = (100, 300, 1_000, 3_000, 10_000, 20_000)
ARRAYS = (1_000, 10_000, 100_000, 300_000)
SLOTS = (4, 16, 64, 256, 1_000)
PROCESSES = (1, 4, 16, 64)

UNITS = {"us": 1_000, "ms": 1_000_000}  # in nanoseconds


@dataclass(frozen=True)
class Goal:
    """The most that is allowed beside the most things."""

    of: str  # growth: the value divided by that beside the fewest; ratio: by the first peer's; value: itself
    limit: float  # of the value in the unit of its curve


@dataclass(frozen=True)
class Curve:
    title: str
    things: str  # that n counts
    sizes: tuple[int, ...]
    contenders: dict[str, Callable]  # Tenon is first; those whose names do not begin with Tenon are peers
    goal: Goal = Goal("growth", 3)
    unit: str = "us"

    @property
    def peers(self):
        return [name for name in self.contenders if not name.startswith("Tenon")]


CURVES = {
    "fork": Curve(
        "os.fork() and the end of the child",
        "arrays",
        ARRAYS,
        {"Tenon": calls.fork_beside(tn.zeros), "NumPy": calls.fork_beside(np.zeros)},
        Goal("ratio", 1.5),
    ),
    "wait_all": Curve("wait_all() for an op of 20 ms", "idle arrays", ARRAYS, {"Tenon": calls.wait_all}),
    "views": Curve(
        "a.numpy()", "views of the array", SMALL, {"Tenon": calls.views, "NumPy": calls.views_of_numpy}
    ),
    "leases": Curve('a.lease("r"), release', "read leases of the array", SMALL, {"Tenon": calls.leases}),
    "element": Curve("a[0]", "read leases of the array", SMALL, {"Tenon": calls.element_beside_leases}),
    "queued": Curve(
        "push of an op that waits",
        "ops that wait for the array",
        SMALL,
        {"Tenon": calls.queued_ops, "ThreadPoolExecutor": calls.queued_tasks},
    ),
    "rows": Curve(
        "push of an op on the row in the middle",
        "ops that wait, each for a row",
        SMALL,
        {"Tenon": calls.queued_rows},
    ),
    "imports": Curve(
        "import of a row of an array",
        "other rows that are imported",
        SMALL,
        {"Tenon": calls.imported_rows, "NumPy": calls.imported_rows_of_numpy},
    ),
    "channel": Curve("loan, send, recv, release", "slots of the channel", SLOTS, {"Tenon": calls.channel}),
    "processes": Curve(
        "a write lease of a shared array",
        "other processes that use it",
        PROCESSES,
        {"Tenon": calls.processes},
    ),
}
