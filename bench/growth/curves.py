# SPDX-License-Identifier: Apache-2.0
"""What grows, beside which things, and the goals."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

import tenon as tn

from . import calls, commands, files, memory, refusals

SMALL = (100, 300, 1_000, 3_000, 10_000, 20_000)
VIEWS = (*SMALL, 100_000)
ARRAYS = (1_000, 10_000, 100_000, 300_000)
OPS = (1_000, 10_000, 40_000)
SLOTS = (4, 16, 64, 256, 1_000)
PROCESSES = (1, 4, 16, 64)
SEGMENTS = (0, 1, 4, 16)
MEBIBYTES = (1, 16, 256)

UNITS = {"us": 1_000, "ms": 1_000_000, "B": 1}  # in nanoseconds; B: bytes of memory for each thing


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
    is_each: bool = False  # a time is divided by the number of things

    @property
    def peers(self):
        return [name for name in self.contenders if not name.startswith("Tenon")]

    @property
    def is_memory(self):
        return self.unit == "B"


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
    "holders": Curve(
        "a.leases(), for each row",
        "views of the array",
        VIEWS,
        {"Tenon": calls.rows_of_views},
        is_each=True,
    ),
    "leases": Curve('a.lease("r"), release', "read leases of the array", SMALL, {"Tenon": calls.leases}),
    "endings": Curve(
        "end of a lease, for each view",
        "views of rows left by a lease",
        SMALL,
        {"Tenon": calls.ended_lease},
        is_each=True,
    ),
    "dropped": Curve(
        "end of such a view",
        "views of rows left by a lease",
        SMALL,
        {"Tenon": calls.dropped_views, "NumPy": calls.dropped_views_of_numpy},
        is_each=True,
    ),
    "element": Curve("a[0]", "read leases of the array", SMALL, {"Tenon": calls.element_beside_leases}),
    "queued": Curve(
        "push of an op that waits",
        "ops that wait for the array",
        SMALL,
        {"Tenon": calls.queued_ops, "ThreadPoolExecutor": calls.queued_tasks},
    ),
    "readers": Curve(
        "run of an op that reads",
        "ops that read the array",
        SMALL,
        {"Tenon": calls.released_ops(tn.read), "ThreadPoolExecutor": calls.released_tasks},
        is_each=True,
    ),
    "writers": Curve(
        "run of an op that writes",
        "ops that write the array",
        SMALL,
        {"Tenon": calls.released_ops(tn.write)},
        is_each=True,
    ),
    "rows": Curve(
        "push of an op on the row in the middle",
        "ops that wait, each for a row",
        SMALL,
        {"Tenon": calls.queued_rows},
    ),
    "refusal": Curve(
        "a push that is refused",
        "lists with an array each",
        ARRAYS,
        {
            "Tenon": refusals.of_variable,
            "gc.get_referrers(view)": refusals.referrers_by_gc,
            "Tenon, the view in the last list": refusals.of_item(-1),
            "Tenon, the view in the first list": refusals.of_item(0),
        },
        Goal("value", 2),
        "ms",
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
    "command": Curve(
        "tenon ls",
        "shared segments",
        SEGMENTS,
        {
            "Tenon": commands.listing,
            'python -c "import numpy"': commands.python("import numpy"),
            "python -c pass": commands.python("pass"),
        },
        Goal("value", 150),
        "ms",
    ),
    "save": Curve(
        "tn.save of a .params file", "MiB", MEBIBYTES, files.contenders(True), Goal("ratio", 1), "ms"
    ),
    "load": Curve(
        "tn.load of a .params file", "MiB", MEBIBYTES, files.contenders(False), Goal("ratio", 1), "ms"
    ),
    "array": Curve(
        "memory of tn.zeros(8)",
        "arrays",
        ARRAYS,
        {"Tenon": memory.arrays(tn.zeros), "NumPy": memory.arrays(np.zeros)},
        Goal("value", 350),
        "B",
    ),
    "op": Curve(
        "memory of an op that waits",
        "ops that wait for the array",
        OPS,
        {"Tenon": memory.ops, "ThreadPoolExecutor": memory.tasks},
        Goal("value", 800),
        "B",
    ),
}
