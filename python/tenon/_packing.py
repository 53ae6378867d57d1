# SPDX-License-Identifier: Apache-2.0
"""Packing of intervals of time into the least height: dynamic storage allocation, on integers alone.

It knows no bytes, names or alignments; `_planner` translates. The problem is NP-hard. First comes first fit
in a few orders (large ones first is TFLite's way), and often the lower bound is reached then. What is above
it goes by turns to better orders, and to a search from the ground up. That search is complete: where it comes
to its end without an answer, there is none.

To build upwards on sections of time, and to give up where the waste below a section exceeds what the limit
leaves, are ideas of MiniMalloc (Moffitt, ASPLOS 2023). Which section is decided next is not: here it is
always the one with the fewest tensors left that can cover it, as in a search for exact covers.
"""

from __future__ import annotations

import random
import time
from bisect import insort
from collections.abc import Iterator, Sequence
from itertools import accumulate

_INFINITE = 1 << 200

# What is allowed at effort 1, in steps of the inner loops: for each set of tensors, and for each tensor.
_STEPS, _STEPS_PER_TENSOR = 2_000_000, 700
# A first turn has so many steps for each tensor and section: a few ways to the top.
_FIRST_TURN = 300
# Shares of the way from the lower bound to below the best plan, at which a search sets its limit. Low limits
# cut more branches away, high ones have more solutions: which is quicker differs, so they take turns.
_SHARES = (0.0, 0.5, 0.2, 1.0)


class Budget:
    """Counts the steps of all searches, and looks at the clock if there is a limit in seconds."""

    def __init__(self, steps: int, seconds: float | None) -> None:
        self.steps = steps
        self._deadline = None if seconds is None else time.monotonic() + seconds

    def is_spent(self) -> bool:
        return self.steps <= 0 or (self._deadline is not None and time.monotonic() >= self._deadline)


class Intervals:
    """Tensors with a size above 0, and their lifetimes in sections.

    A section is a stretch of steps within which the largest set of tensors lives, so there are never more
    sections than tensors. Two tensors share a section exactly when they share a step.

    Attributes
    ----------
    size, first, last : list of int
        By tensor; first and last section, inclusive.
    load : list of int
        By section: the sum of the sizes that live in it.
    """

    def __init__(self, spans: Sequence[tuple[int, int, int]]) -> None:
        self.size = [size for size, _, _ in spans]
        # At equal steps births (0) come before deaths (1): lifetimes are inclusive.
        events = [(first, 0, i) for i, (_, first, _) in enumerate(spans)]
        events += [(last, 1, i) for i, (_, _, last) in enumerate(spans)]
        self.first, self.last = [0] * len(spans), [0] * len(spans)
        section, has_death = 0, False
        for _, is_death, i in sorted(events):
            if is_death:
                self.last[i] = section
            else:
                section += has_death
                self.first[i] = section
            has_death = bool(is_death)
        changes = [0] * (section + 2)
        for i, size in enumerate(self.size):
            changes[self.first[i]] += size
            changes[self.last[i] + 1] -= size
        self.load, live = [], 0
        for change in changes[:-1]:
            live += change
            self.load.append(live)

    def components(self) -> list[list[int]]:
        """The tensors by stretches of time that no tensor connects: each can be packed for itself."""
        groups: list[list[int]] = []
        end = -1
        for i in sorted(range(len(self.size)), key=self.first.__getitem__):
            if self.first[i] > end:
                groups.append([])
            groups[-1].append(i)
            end = max(end, self.last[i])
        return groups

    def peak(self, offsets: Sequence[int]) -> int:
        return max(map(int.__add__, offsets, self.size), default=0)


def pack(
    spans: Sequence[tuple[int, int, int]], effort: float, seconds: float | None
) -> tuple[list[int], int, bool]:
    """Offsets for (size, first step, last step), the lower bound, and whether the peak is least for sure."""
    budget = Budget(int((_STEPS + _STEPS_PER_TENSOR * len(spans)) * effort), seconds)
    whole = Intervals(spans)
    bound = max(whole.load)
    offsets = [0] * len(spans)
    floor, is_least = bound, True
    # The component with the highest load first: below its peak, the others need no effort.
    groups = [
        (max(max(whole.load[whole.first[i] : whole.last[i] + 1]) for i in g), g) for g in whole.components()
    ]
    for _, group in sorted(groups, key=lambda pair: (-pair[0], pair[1])):
        part = Intervals([spans[i] for i in group])
        packing = Packing(part, floor, budget)
        packing.improve()
        if packing.peak > floor:
            floor, is_least = packing.peak, packing.low >= packing.peak
        for i, offset in zip(group, packing.offsets):
            offsets[i] = offset
    return offsets, bound, is_least


class Packing:
    """The best packing of one component so far.

    Invariants: no packing has a peak below `low`, or none needs to (what other components reach is free);
    `offsets` are valid and reach `peak`.
    """

    def __init__(self, intervals: Intervals, floor: int, budget: Budget) -> None:
        self.intervals = intervals
        self.low = max(floor, *intervals.load)
        self.budget = budget
        self.offsets: list[int] = []
        self.peak = _INFINITE
        self._chains: list[Chain] = []
        for order in first_fit_orders(intervals):
            self._chains.append(Chain(intervals, order, budget))
            self._take(self._chains[-1].offsets)
            if self.peak <= self.low or budget.is_spent():
                break
        self._chains.sort(key=lambda chain: chain.peak)

    def _take(self, offsets: list[int]) -> None:
        peak = self.intervals.peak(offsets)
        if peak < self.peak:
            self.offsets, self.peak = offsets, peak

    def _is_done(self) -> bool:
        return self.peak <= self.low or self.budget.is_spent()

    def improve(self) -> None:
        """Searches from the ground up and betters orders by turns, in longer and longer ones."""
        search = Search(self.intervals, self.budget)
        draw = random.Random(1)
        steps = _FIRST_TURN * (len(self.intervals.size) + len(self.intervals.load))
        for number, rank in enumerate(ranks(self.intervals, draw)):
            if self._is_done():
                return
            self._search(search, rank, steps)
            self._better(self._chains[number % min(3, len(self._chains))], draw, steps)
            if number % 3 == 2:
                steps *= 2

    def _better(self, chain: Chain, draw: random.Random, steps: int) -> None:
        """Until so many steps have brought nothing."""
        until = self.budget.steps - steps
        while self.budget.steps > until and not self._is_done():
            before = self.peak
            chain.step(self.low, draw)
            self._take(chain.offsets)
            if self.peak < before:
                until = self.budget.steps - steps

    def _search(self, search: Search, rank: list[int], steps: int) -> None:
        for share in _SHARES:
            if self._is_done():
                return
            limit = self.low + int((self.peak - 1 - self.low) * share)
            offsets = search.run(limit, rank, steps)
            if offsets is not None:
                self._take(offsets)
            elif search.is_exhausted:
                self.low = limit + 1


class Chain:
    """First fit in an order that is bettered: whatever ends near the peak moves towards the front."""

    def __init__(self, intervals: Intervals, order: list[int], budget: Budget) -> None:
        self.intervals = intervals
        self.budget = budget
        self.order = order
        self.offsets = first_fit(intervals, order, budget)
        self.peak = intervals.peak(self.offsets)

    def step(self, low: int, draw: random.Random) -> None:
        """Tries one change; keeps it unless the peak rises."""
        high = self.peak - (self.peak - low) * draw.random() * 0.7
        size = self.intervals.size
        places = [
            (place * draw.random() if self.offsets[i] + size[i] >= high else place, i)
            for place, i in enumerate(self.order)
        ]
        order = [i for _, i in sorted(places)]
        offsets = first_fit(self.intervals, order, self.budget)
        peak = self.intervals.peak(offsets)
        if peak <= self.peak:
            self.order, self.offsets, self.peak = order, offsets, peak


def first_fit_orders(intervals: Intervals) -> Iterator[list[int]]:
    """Orders in which first fit does well: by size, by size times length, by crowd, by length, by birth."""
    size, first, last, load = intervals.size, intervals.first, intervals.last, intervals.load
    tensors = range(len(size))
    length = [last[i] - first[i] + 1 for i in tensors]
    yield sorted(tensors, key=lambda i: (-size[i], -length[i], first[i]))
    yield sorted(tensors, key=lambda i: (-size[i] * length[i], first[i]))
    crowd = [max(load[first[i] : last[i] + 1]) for i in tensors]
    yield sorted(tensors, key=lambda i: (-crowd[i], -size[i], first[i]))
    yield sorted(tensors, key=lambda i: (-length[i], -size[i], first[i]))
    yield sorted(tensors, key=lambda i: (first[i], -size[i]))


def first_fit(intervals: Intervals, order: Sequence[int], budget: Budget) -> list[int]:
    """Each tensor at the lowest offset where it fits among those before it."""
    offsets = [0] * len(order)
    placed: list[tuple[int, int, int, int]] = []  # (offset, end, first, last), by offset
    for i in order:
        size, first, last = intervals.size[i], intervals.first[i], intervals.last[i]
        at = 0
        for offset, end, born, died in placed:
            if born <= last and died >= first:
                if offset - at >= size:
                    break
                if end > at:
                    at = end
        offsets[i] = at
        insort(placed, (at, at + size, first, last))
    budget.steps -= len(order) * (1 + len(order) // 40)
    return offsets


def ranks(intervals: Intervals, draw: random.Random) -> Iterator[list[int]]:
    """Which tensors a search tries first: three plain ways, then mixtures of them at random, without end."""
    size, first, last = intervals.size, intervals.first, intervals.last
    tensors = range(len(size))
    length = [last[i] - first[i] + 1 for i in tensors]

    def ranked(key: list[float]) -> list[int]:
        rank = [0] * len(key)
        for place, i in enumerate(sorted(tensors, key=lambda i: (-key[i], -size[i], first[i], last[i]))):
            rank[i] = place
        return rank

    yield ranked([float(s) for s in size])
    yield ranked([float(n) for n in length])
    yield ranked([float(s) * n for s, n in zip(size, length)])
    while True:
        for of_size, of_length in ((1, 0), (0, 1), (1, 1)):
            noise = draw.choice((0.1, 0.3, 1.0))
            a, b = of_size + draw.uniform(-0.2, 0.2), of_length + draw.uniform(-0.2, 0.2)
            yield ranked([s**a * n**b * (1 + noise * draw.random()) for s, n in zip(size, length)])


# A decision that is open: (twice the tensors that can cover a section, and 1 more if none may; the section;
# those tensors; what is wasted if none does, or 0: one must).
_Choice = tuple[int, int, list[int], int]
# A stretch of the skyline, sections left to right (inclusive) at one height. The choice is known where both
# neighbours are higher; elsewhere it is None.
_Segment = tuple[int, int, int, _Choice | None]


class Search:
    """A packing whose peak is at most `limit`, or the proof that there is none, or neither within some steps.

    The skyline is the top of what stands on the ground, by section. Where a segment of it is lower than both
    neighbours, whatever comes to lie on one of its sections k next lies either at exactly that height, and
    then within the segment; or at least as high as the lower neighbour, or on something that comes into the
    segment first. So to decide about k is to try each tensor within the segment that covers k, and then none:
    k rises by the least that any of these cases needs, which is wasted. No packing is lost by it, up to
    pushing tensors down.

    A section can waste `limit - load` in all. Where that is less than the rise, one of the tensors must cover
    it, and where there is none, the branch is dead. The section with the fewest branches is decided first.
    Sections with nothing left to place are out of the game: infinitely high.

    One thread. Between runs it keeps nothing but the intervals.
    """

    def __init__(self, intervals: Intervals, budget: Budget) -> None:
        self.size, self.first, self.last = intervals.size, intervals.first, intervals.last
        self.load = intervals.load
        self.budget = budget
        self.is_exhausted = False  # the last run has seen everything

    def run(self, limit: int, rank: Sequence[int], steps: int) -> list[int] | None:
        self.rank = rank
        self.born: list[list[int]] = [[] for _ in self.load]
        for i in sorted(range(len(self.size)), key=rank.__getitem__):
            self.born[self.first[i]].append(i)
        self.is_placed = bytearray(len(self.size))
        self.left = list(self.load)  # by section: what is not placed yet
        self.slack = [limit - load for load in self.load]
        self.is_exhausted = False
        before = self.budget.steps
        offsets = [0] * len(self.size)
        skyline: list[_Segment] = [(0, len(self.load) - 1, 0, None)]
        if not self._look(skyline, 0, 1):
            self.is_exhausted = True
            return None
        at = self._next(skyline)
        assert at is not None
        # Each frame: skyline, segment to decide on, tensors still to try (last first; -1: none covers).
        path: list[tuple[list[_Segment], int, list[int]]] = [(skyline, at, self._branches(skyline[at][3]))]
        undo: list[tuple[int, int, int]] = []  # by frame below: (tensor or -1, section, waste)
        while path:
            skyline, at, branches = path[-1]
            if len(undo) == len(path):
                self._take_back(*undo.pop())
            if not branches:
                path.pop()
                continue
            if before - self.budget.steps > steps or self.budget.is_spent():
                return None
            i = branches.pop()
            left, right, height, choice = skyline[at]
            assert choice is not None
            if i >= 0:
                offsets[i] = height
                left, right, rise = self.first[i], self.last[i], self.size[i]
                self.is_placed[i] = 1
                for k in range(left, right + 1):
                    self.left[k] -= rise
            else:
                left = right = choice[1]
                rise = choice[3]
                self.slack[left] -= rise
            undo.append((i, left, rise))
            skyline, low, high = self._raised(skyline, at, left, right, height + rise)
            self.budget.steps -= 10 + len(skyline)
            if not self._look(skyline, low, high):
                continue
            following = self._next(skyline)
            if following is None:
                return offsets
            path.append((skyline, following, self._branches(skyline[following][3])))
        self.is_exhausted = True
        return None

    def _take_back(self, i: int, section: int, waste: int) -> None:
        if i < 0:
            self.slack[section] += waste
            return
        self.is_placed[i] = 0
        for k in range(self.first[i], self.last[i] + 1):
            self.left[k] += self.size[i]

    def _branches(self, choice: _Choice | None) -> list[int]:
        """Last first. Of tensors that are alike one is enough."""
        assert choice is not None
        _, _, tensors, waste = choice
        alike = {(self.first[i], self.last[i], self.size[i]): i for i in tensors}
        branches = sorted(alike.values(), key=self.rank.__getitem__, reverse=True)
        return [-1, *branches] if waste else branches

    def _next(self, skyline: list[_Segment]) -> int | None:
        """The segment whose decision has the fewest branches; None: everything is placed."""
        fewest, found = _INFINITE, None
        for at, (_, _, _, choice) in enumerate(skyline):
            if choice is not None and choice[0] < fewest:
                fewest, found = choice[0], at
        return found

    def _raised(
        self, skyline: list[_Segment], at: int, left: int, right: int, height: int
    ) -> tuple[list[_Segment], int, int]:
        """The skyline with sections left to right of one segment at a new height, and where it changed."""
        start, end, ground, _ = skyline[at]
        parts: list[_Segment] = []
        if start < left:
            parts.append((start, left - 1, ground, None))
        k = left
        while k <= right:
            is_done, begin = not self.left[k], k
            while k <= right and (not self.left[k]) == is_done:
                k += 1
            parts.append((begin, k - 1, _INFINITE if is_done else height, None))
        if right < end:
            parts.append((right + 1, end, ground, None))
        result = skyline[:at]
        changed = at
        for part in parts + skyline[at + 1 : at + 2]:
            if result and result[-1][2] == part[2]:
                result[-1] = (result[-1][0], part[1], part[2], None)
                changed = min(changed, len(result) - 1)
            else:
                result.append(part)
        until = len(result) + 1
        result += skyline[at + 2 :]
        return result, changed - 1, until

    def _look(self, skyline: list[_Segment], low: int, high: int) -> bool:
        """Finds the choices of segments that changed, or whose neighbours did; False: one has no way out."""
        for at in range(max(low, 0), min(high, len(skyline))):
            left, right, height, _ = skyline[at]
            if height == _INFINITE:
                continue
            wall = min(
                skyline[at - 1][2] if at else _INFINITE,
                skyline[at + 1][2] if at + 1 < len(skyline) else _INFINITE,
            )
            choice = None
            if wall > height:
                choice = self._choice(left, right, wall - height)
                if choice is None:
                    return False
            skyline[at] = (left, right, height, choice)
        return True

    def _choice(self, left: int, right: int, rise: int) -> _Choice | None:
        """The section of a segment with the fewest branches; None: one that must be covered cannot be."""
        size, first, last, is_placed = self.size, self.first, self.last, self.is_placed
        inside = [
            i for born in self.born[left : right + 1] for i in born if last[i] <= right and not is_placed[i]
        ]
        changes = [0] * (right - left + 2)
        for i in inside:
            changes[first[i] - left] += 1
            changes[last[i] - left + 1] -= 1
            if size[i] < rise:
                rise = size[i]
        self.budget.steps -= len(changes) + 2 * len(inside)
        fewest, section, waste = _INFINITE, -1, 0
        for k, covers, slack in zip(
            range(left, right + 1), accumulate(changes), self.slack[left : right + 1]
        ):
            if slack < rise:
                if not covers:
                    return None
                if 2 * covers < fewest:
                    fewest, section, waste = 2 * covers, k, 0
            elif 2 * covers + 1 < fewest:
                fewest, section, waste = 2 * covers + 1, k, rise
        return fewest, section, [i for i in inside if first[i] <= section <= last[i]], waste
