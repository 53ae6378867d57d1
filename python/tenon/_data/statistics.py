# SPDX-License-Identifier: Apache-2.0
"""What `Feed.stats` says: counts of a feed and its workers, since when, and who waits for whom."""

from __future__ import annotations

import resource
import time
from dataclasses import dataclass, field
from typing import NamedTuple

from .._core import NativeFeed, Schema

# Of fewer batches nothing is said: the first ones are filled while nobody waits yet.
_FEW = 8


class Waits(NamedTuple):
    """Seconds that were waited, of the consumer or of a worker, by what was waited for."""

    producer: float
    model: float
    leases: float


@dataclass(frozen=True, repr=False)
class Interval:
    """What happened in a feed in a stretch of time.

    Attributes
    ----------
    seconds : float
        Its length.
    batches, nbytes : int
        Delivered; the bytes of their fields, as far as they were filled.
    rows : float
        Delivered: ``nbytes`` divided by the bytes of a row of the schema. Too few where a generator leaves
        other axes than the first shorter than the schema has them.
    fill_ns : int
        Inside the generator, summed over the workers.
    starved_ns : int
        That the consumer waited for a batch.
    blocked_ns : int
        That workers waited for a free slot, summed over them; waits that go on are not counted yet.
    blocked_by_consumer_ns : int
        Of these: waits that began when a filled batch lay ready.
    workers : int
    are_slots_held : bool
        At its end the consumer holds every slot.
    """

    seconds: float
    batches: int
    nbytes: int
    rows: float
    fill_ns: int
    starved_ns: int
    blocked_ns: int
    blocked_by_consumer_ns: int
    workers: int
    are_slots_held: bool

    @property
    def batches_per_s(self) -> float:
        return _ratio(self.batches, self.seconds)

    @property
    def rows_per_s(self) -> float:
        return _ratio(self.rows, self.seconds)

    @property
    def gb_per_s(self) -> float:
        """In units of 10**9 bytes."""
        return _ratio(self.nbytes * 1e-9, self.seconds)

    @property
    def waits(self) -> Waits:
        """Who was waited for, by the rule of docs/statistics.md.

        The consumer that starves while a worker fills waits for the producer. What it starves beyond the time
        of the fills it has starved together with the workers: there both wait for slots to come back.
        """
        starved, fill = self.starved_ns, self.fill_ns / self.workers
        blocked = self.blocked_ns / self.workers
        none_ready = (self.blocked_ns - self.blocked_by_consumer_ns) / self.workers
        leases = max(none_ready, min(blocked, max(0.0, starved - fill)))
        return Waits(max(0.0, starved - leases) * 1e-9, (blocked - leases) * 1e-9, leases * 1e-9)

    @property
    def verdict(self) -> str:
        """What a faster feed needs.

        "producer-bound": a faster generator, or more workers. "model-bound": a faster consumer.
        "lease-bound": batches that are let go of sooner, or more slots. "starting": there are too few
        batches to say. "balanced": nobody has waited.
        """
        if self.batches < _FEW:
            return "lease-bound" if self.are_slots_held else "starting"
        waits = self.waits
        longest = max(waits)
        if longest == 0:
            return "balanced"
        return ("producer-bound", "model-bound", "lease-bound")[waits.index(longest)]

    def __repr__(self) -> str:
        return (
            f"<{self.batches} batches in {self.seconds:.3g} s: {self.rows_per_s:.4g} rows/s, "
            f"{self.gb_per_s:.3g} GB/s, {self._judgement()}>"
        )

    def _judgement(self) -> str:
        if self.batches < _FEW or not self.seconds:
            return self.verdict
        return f"{self.verdict} ({max(self.waits) / self.seconds:.0%} of the time)"


@dataclass(frozen=True)
class WorkerStatistics:
    """Of one worker: times are of all its fills, quantiles to an eighth of their value.

    ``pid`` is None where it is a thread, or just now no process; ``p50_ms`` and ``p99_ms`` are 0 before its
    first fill.
    """

    worker: int
    pid: int | None
    fills: int
    fill_ns: int
    p50_ms: float
    p99_ms: float
    failures: int


@dataclass(frozen=True)
class OldestLease:
    """The batch that the consumer has held longest."""

    epoch: int
    index: int
    age: float  # seconds since it was delivered


@dataclass(frozen=True, repr=False)
class FeedStatistics:
    """Counts of a feed since it was made.

    Attributes
    ----------
    batches, nbytes : int
        Delivered.
    rows, rows_per_s, gb_per_s, verdict
        As `Interval` has them, since the feed was made.
    total, recent : Interval
        Since the feed was made; since `Feed.stats` was last called, by whomever.
    slots, slots_free, slots_filling, slots_ready, slots_held : int
        Slots by state: held are those of which the consumer has an array or a view.
    workers : int
    per_worker : tuple of WorkerStatistics
    fill_ns, starved_ns, blocked_ns, blocked_by_consumer_ns : int
        As `Interval` has them.
    oldest : OldestLease or None
        What is held longest; None: no batch is held. ``oldest_epoch``, ``oldest_index`` and ``oldest_ns`` are
        the same in numbers, 0 for none.
    skipped, retried, restarted, copied : int
        Batches for which the consumer got the next one; fills that were done again; worker processes that
        were started again; batches that were given as copies for want of slots.
    page_faults : int
        Minor faults since the feed was made, of the whole process and not of the feed alone; without its
        worker processes.
    slot_nbytes, memory : int
        Bytes of a slot with alignment; the address of the first one.
    """

    workers: int
    slots: int
    slots_free: int
    slots_filling: int
    slots_ready: int
    slots_held: int
    batches: int
    nbytes: int
    fill_ns: int
    starved_ns: int
    blocked_ns: int
    slot_nbytes: int
    memory: int
    blocked_by_consumer_ns: int
    skipped: int
    retried: int
    restarted: int
    copied: int
    oldest_epoch: int
    oldest_index: int
    oldest_ns: int
    page_faults: int
    total: Interval
    recent: Interval
    per_worker: tuple[WorkerStatistics, ...] = field(default=())

    @property
    def rows(self) -> float:
        return self.total.rows

    @property
    def rows_per_s(self) -> float:
        return self.total.rows_per_s

    @property
    def gb_per_s(self) -> float:
        return self.total.gb_per_s

    @property
    def verdict(self) -> str:
        return self.total.verdict

    @property
    def oldest(self) -> OldestLease | None:
        if not self.oldest_ns:
            return None
        return OldestLease(self.oldest_epoch, self.oldest_index, self.oldest_ns * 1e-9)

    def __repr__(self) -> str:
        return (
            f"<{self.batches} batches, {self.workers} workers, {self.slots} slots ({self.slots_free} free, "
            f"{self.slots_filling} filling, {self.slots_ready} ready, {self.slots_held} held), "
            f"{self.rows_per_s:.4g} rows/s, {self.gb_per_s:.3g} GB/s, {self.total._judgement()}>"
        )


class Meter:
    """Looks at one feed. Threads: any; a look that others interrupt tells them apart by whole calls."""

    def __init__(self, native: NativeFeed, schema: Schema) -> None:
        self._native = native
        self._row_nbytes = schema.nbytes // schema.rows
        self._faults = _page_faults()
        self._start = _Mark(time.monotonic(), native.statistics())
        self._last = self._start

    def look(self, *, is_call: bool = True) -> FeedStatistics:
        """is_call: the next look's ``recent`` begins here."""
        counts = self._native.statistics()
        now, last = _Mark(time.monotonic(), counts), self._last
        if is_call:
            self._last = now
        return FeedStatistics(
            **counts,
            page_faults=_page_faults() - self._faults,
            total=self._between(self._start, now),
            recent=self._between(last, now),
            per_worker=tuple(_worker(self._native.worker(i)) for i in range(counts["workers"])),
        )

    def _between(self, first: _Mark, last: _Mark) -> Interval:
        def since(name: str) -> int:
            return max(0, last.counts[name] - first.counts[name])

        nbytes = since("nbytes")
        return Interval(
            seconds=max(0.0, last.time - first.time),
            batches=since("batches"),
            nbytes=nbytes,
            rows=_ratio(nbytes, self._row_nbytes),
            fill_ns=since("fill_ns"),
            starved_ns=since("starved_ns"),
            blocked_ns=since("blocked_ns"),
            blocked_by_consumer_ns=since("blocked_by_consumer_ns"),
            workers=last.counts["workers"],
            are_slots_held=last.counts["slots_held"] >= last.counts["slots"],
        )


class _Mark(NamedTuple):
    time: float
    counts: dict[str, int]


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole else 0.0


def _page_faults() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt


def _worker(counts: dict[str, int]) -> WorkerStatistics:
    return WorkerStatistics(
        worker=counts["worker"],
        pid=counts["pid"] or None,
        fills=counts["fills"],
        fill_ns=counts["fill_ns"],
        p50_ms=counts["fill_p50_ns"] * 1e-6,
        p99_ms=counts["fill_p99_ns"] * 1e-6,
        failures=counts["failures"],
    )
