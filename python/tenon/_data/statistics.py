# SPDX-License-Identifier: Apache-2.0
"""The result of `Feed.stats`: counts of a feed and its workers, intervals, and causes of waits."""

from __future__ import annotations

import resource
import time
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from .._core import NativeFeed, Schema

# With fewer batches there is no verdict: the first ones are filled before any thread waits.
_FEW = 8
# A consumer that waits so many times as long as the fills take would be faster if it filled itself.
_LONG = 1.5


_ADVICE = {
    "producer-bound": "a faster generator, or more workers",
    "worker-bound": "workers=0",
    "model-bound": "a faster consumer",
    "lease-bound": "dropping batches sooner, or more slots",
}


class Waits(NamedTuple):
    """Seconds that the consumer or a worker waited, by cause."""

    producer: float
    model: float
    leases: float


@dataclass(frozen=True, repr=False)
class Interval:
    """Counts and times of a feed in one interval.

    Attributes
    ----------
    seconds : float
        The length of the interval.
    batches, nbytes : int
        The number of delivered batches, and the filled bytes of their fields.
    rows : float
        Delivered rows: ``nbytes`` divided by the bytes of a row of the schema. The value is too small if a
        generator shortens other axes than the first.
    fill_ns : int
        The time in the generator, summed over the workers.
    starved_ns : int
        The time that the consumer waited for a batch.
    blocked_ns : int
        The time that workers waited for a free slot, summed over the workers. Waits that are not over yet do
        not count.
    blocked_by_consumer_ns : int
        The part of ``blocked_ns`` in waits that began while a filled batch was ready.
    workers : int
    are_slots_held : bool
        Whether the consumer holds every slot at the end of the interval.
    one_thread : str
        Why one thread alone calls the generator, and what lets several workers call it; "": several may.
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
    one_thread: str = ""

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
        """The waits by cause, by the rule of docs/statistics.md.

        A consumer that waits while a worker fills waits for the producer. If it waits longer than the time of
        the fills, both sides waited for slots during the rest.
        """
        workers = max(self.workers, 1)
        starved, fill = self.starved_ns, self.fill_ns / workers
        blocked = self.blocked_ns / workers
        none_ready = (self.blocked_ns - self.blocked_by_consumer_ns) / workers
        leases = max(none_ready, min(blocked, max(0.0, starved - fill)))
        return Waits(max(0.0, starved - leases) * 1e-9, (blocked - leases) * 1e-9, leases * 1e-9)

    @property
    def verdict(self) -> str:
        """The cause that limits the speed of the feed.

        "producer-bound": a faster generator or more workers help (see `advice`). "worker-bound": the consumer
        waits longer for its only worker than the fills take, so ``workers=0`` helps. "model-bound": a faster
        consumer helps. "lease-bound": dropping batches sooner or more slots help. "starting": there are too
        few batches for a verdict. "balanced": nothing waited.
        """
        if self.batches < _FEW:
            return "lease-bound" if self.are_slots_held else "starting"
        waits = self.waits
        longest = max(waits)
        if longest == 0:
            return "balanced"
        if self.workers == 1 and longest == waits.producer > _LONG * self.fill_ns * 1e-9 > 0:
            return "worker-bound"
        return ("producer-bound", "model-bound", "lease-bound")[waits.index(longest)]

    @property
    def advice(self) -> str:
        """What would make the feed faster, by the verdict; "" if there is none."""
        if self.verdict == "producer-bound" and self.one_thread:
            return f"a faster generator; more workers do not help: {self.one_thread}"
        return _ADVICE.get(self.verdict, "")

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
    """Counts and times of one worker over all of its fills. Quantiles have a precision of 1/8.

    ``pid`` is None for a thread, or if the worker has no process at the moment. ``p50_ms`` and ``p99_ms`` are
    0 before its first fill.
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
        The number of delivered batches, and their bytes.
    rows, rows_per_s, gb_per_s, verdict, advice
        As in `Interval`, since the feed was made.
    total, recent : Interval
        Since the feed was made; since the last call of `Feed.stats` by any caller.
    slots, slots_free, slots_filling, slots_ready, slots_held : int
        The number of slots by state. A slot is held if the consumer has an array or a view of it.
    workers : int
    per_worker : tuple of WorkerStatistics
    fill_ns, starved_ns, blocked_ns, blocked_by_consumer_ns : int
        As in `Interval`.
    oldest : OldestLease or None
        The batch that is held longest; None if no batch is held. ``oldest_epoch``, ``oldest_index`` and
        ``oldest_ns`` are the same as numbers; 0 if no batch is held.
    skipped, retried, restarted, copied : int
        Batches that were skipped after a failure; repeated fills; restarted worker processes; batches that
        were delivered as copies because slots were missing.
    unwritten : int
        Fills of a Python function that did not use the array of each field, neither by access nor by
        assignment. The consumer gets the other fields with old elements. Batches of 0 rows are not counted.
        See ``check`` of `Feed`.
    abandoned : int
        Threads that took longer than ``fill_timeout`` for a batch, and in whose place other threads go on.
    page_faults : int
        Minor page faults of the whole process since the feed was made, without its worker processes.
    slot_nbytes, memory : int
        The size of a slot in bytes, with alignment; the address of the first slot.
    device : str
        Where batches are delivered: "cpu", or for example "cuda:0".
    device_slots, device_slots_held : int
        The number of device slots; those that are copied to, that the consumer has, or that work on a stream
        uses. 0 on the CPU.
    host_memory : {"registered", "staged", "pageable"}
        How batches are copied to the device. "registered": directly, because the slots are pinned. "staged":
        the driver did not pin the slots, so batches go through two pinned slots, with a copy on the host.
        "pageable": there is no pinned memory either, or batches are not copied to a device.
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
    unwritten: int
    abandoned: int
    oldest_epoch: int
    oldest_index: int
    oldest_ns: int
    device: str
    device_slots: int
    device_slots_held: int
    host_memory: str
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
    def advice(self) -> str:
        return self.total.advice

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
    """Takes the statistics of one feed. Threads: any."""

    def __init__(self, native: NativeFeed, schema: Schema, one_thread: str = "") -> None:
        self._native = native
        self._one_thread = one_thread
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
            per_worker=tuple(_worker(self._native.worker(i)) for i in range(max(counts["workers"], 1))),
        )

    def _between(self, first: _Mark, last: _Mark) -> Interval:
        def since(name: str) -> int:
            added: int = last.counts[name] - first.counts[name]
            return max(0, added)

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
            one_thread=self._one_thread,
        )


class _Mark(NamedTuple):
    time: float
    counts: dict[str, Any]


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
