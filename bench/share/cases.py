# SPDX-License-Identifier: Apache-2.0
"""The cases, and their contenders.

In each case two processes, a producer and a consumer, are pinned to one core each and share something. Rows
are the Peers in the list PEERS of each module of ROWS. Those of Tenon are in tenon_rows.py, with
kind="tenon": over loops.contenders() if the loop is Python, over native.contenders() if it is in a library.
"""

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec

MIB = 1 << 20
SMALL_BYTES = 4096
BIG_BYTES = 64 * MIB


@dataclass(frozen=True)
class Case:
    title: str
    legend: str
    goal_ns: int | None = None  # for the median of Tenon's best row


NATIVE_SPINNING, NATIVE_ASLEEP = "native spinning", "native asleep"
SPINNING, ASLEEP = "spinning", "asleep"
WARM, TOUCHED, FRESH = "warm", "touched", "fresh"
LOCK, RECOVERY, LATE = "lock", "recovery", "late recovery"

ONE_WAY = (
    "One way: from before the producer writes an element of the array and hands it over, until the consumer "
    "has read that element. Both times are of the same monotonic clock; reading it is part of them."
)
CASES = {
    NATIVE_SPINNING: Case(
        "C and C++: an array that is there, the consumer polls",
        f"{ONE_WAY} An exchange begins 2 us after the one before has ended.",
        350,
    ),
    NATIVE_ASLEEP: Case(
        "C and C++: an array that is there, the consumer sleeps",
        f"{ONE_WAY} An exchange begins 100 us after the one before has ended.",
        15_000,
    ),
    SPINNING: Case(
        "Python: an array of 4 KiB that is there, the consumer polls",
        f"{ONE_WAY} An exchange begins 100 us after the consumer has said that it polls. The producer does "
        "not sleep meanwhile.",
        8_000,
    ),
    ASLEEP: Case(
        "Python: an array of 4 KiB that is there, the consumer sleeps",
        f"{ONE_WAY} An exchange begins 100 us after the consumer has said that it waits. The producer sleeps "
        "meanwhile, too.",
        50_000,
    ),
    WARM: Case(
        "Python: 64 MiB that are there, there and back",
        "From before the producer writes one element until it has the answer of the consumer, which has read "
        "that.",
        40_000,
    ),
    TOUCHED: Case(
        "Python: 64 MiB that are there, written and read as a whole",
        "The same, but the producer fills the array and the consumer adds it up. Objects of Ray cannot be "
        "written again.",
    ),
    FRESH: Case(
        "Python: 64 MiB of new memory, there and back",
        "From before the memory is asked for, through a copy of 64 MiB into it and the answer of the "
        "consumer, which reads one element, until the memory is given back. From a pool it comes used.",
    ),
    LOCK: Case(
        "Python: lock, typed view, write one element, unlock",
        "No other process requests the lock. Each time is the mean of 100 calls in a row.",
        740,
    ),
    RECOVERY: Case(
        "A lock whose holder is killed",
        "From before the signal until a process that sleeps in the lock has it. It must learn of the death.",
        100_000,
    ),
    LATE: Case(
        "A lock whose holder was killed before",
        "From before a process asks for the lock until it has it, after the holder's end. It must learn of "
        "the death.",
        100_000,
    ),
}


@dataclass(frozen=True)
class Contender:
    """Two classes, each made in a process of its own with a Side: turn(n) does n exchanges, close() ends.

    turn of the producer returns a list of n times in nanoseconds. Where turn of the consumer returns such a
    list too, the latency is the difference; where it holds None, the exchange was given up. shared(context)
    is called before, in the parent: for what a process can only get as it is spawned. Without a consumer the
    producer starts the other process, or needs none.
    """

    producer: Callable
    consumer: Callable | None = None
    shared: Callable | None = None


def nothing_missing():
    return None


@dataclass(frozen=True)
class Peer:
    """A row of the tables: contenders by case.

    missing: names what is not installed; None: nothing. kind: "peer", "floor" (what no library can be below)
    or "tenon". is_noisy: has processes in the background, and is measured after the others."""

    name: str
    cases: dict
    needs: tuple = ()
    missing: Callable = nothing_missing
    kind: str = "peer"
    is_noisy: bool = False

    def not_installed(self):
        """What is missing, or None."""
        absent = [name for name in self.needs if find_spec(name) is None]
        return f"no module {', '.join(absent)}" if absent else self.missing()


ROWS = ("native_rows", "stock_rows", "torch_rows", "iceoryx2_rows", "ray_rows", "lock_rows", "tenon_rows")


def peers_of(module):
    """The peers of one module, by name."""
    return {peer.name: peer for peer in importlib.import_module(module).PEERS}


def all_peers():
    """(module, peer) of every row."""
    modules = [f"share.{name}" for name in ROWS]
    return [(module, peer) for module in modules for peer in peers_of(module).values()]
