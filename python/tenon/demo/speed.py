# SPDX-License-Identifier: Apache-2.0
"""The speed of one training loop on several sources of batches, measured side by side.

Machines drift, so the contenders take turns in every round, each round begins with another one, and ratios
are taken within a round before their median is.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

WARM_UP_BATCHES = 20


def race(
    contenders: dict[str, Iterator[Any]],
    step: Callable[[Any, Any], None],
    batches: int,
    rounds: int,
    after_turn: Callable[[], None],
) -> dict[str, list[float]]:
    """Times `batches` calls of ``step(data, label)`` on every source of batches: seconds per batch of every
    contender in every round."""
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
    return timings


def speed(timings: dict[str, list[float]], name: str, over: str) -> tuple[float, list[float]]:
    """How many times as fast `name` is as `over`: the median over rounds, and the extremes."""
    ratios = [b / a for a, b in zip(timings[name], timings[over], strict=True)]
    return statistics.median(ratios), [min(ratios), max(ratios)]
