# SPDX-License-Identifier: Apache-2.0
"""The speed of one training loop on several sources of batches, measured side by side.

Machines drift, so the contenders take turns in every round, each round begins with another one, and ratios
are taken within a round before their median is.
"""

from __future__ import annotations

import dataclasses
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

WARM_UP_BATCHES = 20


@dataclasses.dataclass(frozen=True)
class Ratio:
    """A median over rounds, with the extremes."""

    median: float
    low: float
    high: float


@dataclasses.dataclass(frozen=True)
class Timings:
    """Seconds per batch of every contender in every round."""

    rounds: dict[str, list[float]]

    def seconds(self, name: str) -> float:
        return statistics.median(self.rounds[name])

    def speed(self, name: str, over: str) -> Ratio:
        """How many times as fast `name` is as `over`."""
        ratios = [b / a for a, b in zip(self.rounds[name], self.rounds[over], strict=True)]
        return Ratio(statistics.median(ratios), min(ratios), max(ratios))


def race(
    contenders: dict[str, Iterator[Any]],
    step: Callable[[Any, Any], None],
    batches: int,
    rounds: int,
    after_turn: Callable[[], None],
) -> Timings:
    """Time `batches` calls of ``step(data, label)`` on every source of batches, `rounds` times."""
    names = list(contenders)
    timings: dict[str, list[float]] = {name: [] for name in names}
    for turn in range(rounds):
        first = turn % len(names)
        for name in names[first:] + names[:first]:
            source = contenders[name]
            for _ in range(WARM_UP_BATCHES):
                step(*next(source))
            begin = time.perf_counter()
            for _ in range(batches):
                step(*next(source))
            timings[name].append((time.perf_counter() - begin) / batches)
            after_turn()
    return Timings(timings)
