# SPDX-License-Identifier: Apache-2.0
"""The goals of feeds, and whether they are met."""

import statistics

from report import table

from .parts import BUFFERS, IN_MEMORY, NO_WORKER, ONE_BUFFER


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


def ratio_row(work, seconds, ours, peer, goal):
    found = ratio(seconds, ours, peer)
    return [work, ours, peer, f"{found:.2f}", f"{goal:.2f}", "met" if found >= goal else "**missed**"]


def time_row(work, seconds, ours, goal):
    median = statistics.median(seconds[ours])
    unit, scale = ("us", 1e6) if goal < 1e-3 else ("ms", 1e3)
    verdict = "met" if median <= goal else "**missed**"
    return [work, ours, "", f"{scale * median:.2f} {unit}", f"{scale * goal:g} {unit}", verdict]


def goal_table(found):
    """found: part -> name -> seconds. Parts that were not measured have no rows."""
    rows = []
    if seconds := found.get("38.5 MB"):
        for kind, goal in (("thread", 0.9), ("process", 0.8)):
            for ceiling in (BUFFERS, ONE_BUFFER):
                rows.append(ratio_row("38.5 MB", seconds, of_feed(seconds, kind), ceiling, goal))
    for part, goal in (("16 KB", 3e-6), ("30 arrays", 20e-6)):
        if seconds := found.get(part):
            ours = best(seconds, "tenon.Feed", without=(NO_WORKER,))
            rows.append(time_row(part, seconds, ours, goal))
    if seconds := found.get("JPEG"):
        for kind in ("thread", "process"):
            ours = best(seconds, "tenon.Feed", f"2 {kind}", without=("Pillow",))
            rows.append(ratio_row("JPEG", seconds, ours, best(seconds, "DataLoader", "stacked"), 1.5))
            rows.append(ratio_row("JPEG", seconds, ours, best(seconds, "DataLoader"), 1.5))
    if seconds := found.get("digits"):
        rows.append(
            ratio_row("digits", seconds, best(seconds, "tenon.Feed", without=(NO_WORKER,)), IN_MEMORY, 0.95)
        )
    if seconds := found.get("first 16 KB"):
        rows.append(time_row("first batch, 16 KB", seconds, of_feed(seconds, "thread"), 5e-3))
    return table(["work", "Tenon", "peer", "speed or time", "goal", ""], rows)
