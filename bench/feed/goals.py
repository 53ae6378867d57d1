# SPDX-License-Identifier: Apache-2.0
"""The goals of feeds, and whether they are met."""

import statistics
from dataclasses import dataclass

from report import table

from .parts import BUFFERS, IN_MEMORY, NO_WORKER, ONE_BUFFER

FIRST_BATCH = {
    "first 16 KB": {"thread": 5e-3},
    "first 38.5 MB": {"thread": 15e-3, "process": 40e-3},
}  # seconds


def reference_of(seconds):
    """The reference of the speeds of a part."""
    return next(name for name in (IN_MEMORY, BUFFERS, ONE_BUFFER) if name in seconds)


def ratio(seconds, name, reference):
    """The speed of name divided by that of reference: the median over the rounds."""
    pairs = zip(seconds[reference], seconds[name], strict=True)
    return statistics.median(theirs / ours for theirs, ours in pairs)


def speed_text(value):
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def best(seconds, first, *words, without=()):
    """The fastest contender whose name begins so and has all of these words, or None."""
    names = [
        name
        for name in seconds
        if name.startswith(first)
        and all(word in name for word in words)
        and not any(word in name for word in without)
    ]
    return min(names, key=lambda name: statistics.median(seconds[name]), default=None)


def of_feed(seconds, kind):
    """kind: thread or process. Not of generators that are written in Python."""
    return best(seconds, "tenon.Feed", kind, without=("Python", "Pillow"))


@dataclass
class Goal:
    """A limit of one contender: of its speed as a multiple of that of peer, or of its seconds."""

    work: str  # names the row, also when another contender is the fastest
    seconds: dict  # of all contenders of the part
    contender: str
    limit: float
    peer: str | None = None

    def row(self):
        if self.peer is not None:
            found = ratio(self.seconds, self.contender, self.peer)
            is_met, texts = found >= self.limit, (f"{found:.2f}", f"{self.limit:.2f}")
        else:
            median = statistics.median(self.seconds[self.contender])
            unit, scale = ("us", 1e6) if self.limit < 1e-3 else ("ms", 1e3)
            is_met, texts = (
                median <= self.limit,
                (f"{scale * median:.2f} {unit}", f"{scale * self.limit:g} {unit}"),
            )
        return [self.work, self.contender, self.peer or "", *texts, "met" if is_met else "**missed**"]


def goals(found):
    """found: part -> name -> seconds. Parts that were not measured have no goals."""
    if seconds := found.get("38.5 MB"):
        for kind, limit in (("thread", 0.9), ("process", 0.8)):
            ours = of_feed(seconds, kind)
            yield Goal(f"38.5 MB, {kind}", seconds, ours, limit, BUFFERS)
            yield Goal(f"38.5 MB, {kind}, one buffer", seconds, ours, limit, ONE_BUFFER)
    for part, limit in (("16 KB", 1 / 1.2), ("30 arrays", 1 / 1.5)):
        if seconds := found.get(part):
            yield Goal(part, seconds, best(seconds, "tenon.Feed", without=(NO_WORKER,)), limit, BUFFERS)
    if seconds := found.get("JPEG"):
        for kind in ("thread", "process"):
            ours = best(seconds, "tenon.Feed", f"2 {kind}", without=("Pillow",))
            yield Goal(f"JPEG, {kind}, samples", seconds, ours, 1.5, best(seconds, "DataLoader", "stacked"))
            yield Goal(f"JPEG, {kind}", seconds, ours, 1.5, best(seconds, "DataLoader"))
    if seconds := found.get("digits"):
        yield Goal("digits", seconds, best(seconds, "tenon.Feed", without=(NO_WORKER,)), 0.95, IN_MEMORY)
    for part, limits in FIRST_BATCH.items():
        if seconds := found.get(part):
            for kind, limit in limits.items():
                work = f"{part.replace('first', 'first batch,')}, {kind}"
                yield Goal(work, seconds, of_feed(seconds, kind), limit)


def goal_table(found):
    return table(
        ["work", "Tenon", "peer", "speed or time", "goal", ""], [goal.row() for goal in goals(found)]
    )


def ratios_of(found):
    """Tenon's time divided by that of the peer, by row."""
    return {
        goal.work: 1 / ratio(goal.seconds, goal.contender, goal.peer)
        for goal in goals(found)
        if goal.peer is not None
    }
