# SPDX-License-Identifier: Apache-2.0
"""Feeds without workers, whose consumer fills. Oracle: the same feed with one worker."""

import os
import signal
import threading

import native_library
import numpy as np
import pytest

import tenon as tn
from tenon._data.statistics import Interval
from tenon._data.workers import Inline

SCHEMA = tn.schema(data=("f8", (4, 3)), label=("i8", (4,)))


def fill(batch):
    batch.data = np.random.default_rng(batch.seed).random((4, 3))
    batch.label = batch.epoch * 1000 + batch.index


def rows(feed):
    return [(b.epoch, b.index, b.label.numpy().tolist(), b.data.numpy().tolist()) for b in feed]


def native():
    return tn.c_function(native_library.generators(), "int fill_label(int64_t *label, uint64_t index)")


@pytest.mark.parametrize("options", [{}, {"shuffle": True, "seed": 3}, {"rank": 1, "world_size": 2}])
def test_it_delivers_what_a_worker_would(options):
    def two_epochs(workers):
        with tn.Feed(fill, SCHEMA, batches=7, workers=workers, **options) as feed:
            return rows(feed) + rows(feed)

    assert two_epochs(0) == two_epochs(1)


def test_the_generator_runs_in_the_consumers_thread_when_a_batch_is_requested():
    seen = []

    def note(batch):
        seen.append((batch.index, threading.get_ident(), batch.worker))
        fill(batch)

    threads = threading.active_count()
    with tn.Feed(note, SCHEMA, batches=5, workers=0, slots=1) as feed:
        assert threading.active_count() == threads
        for batch in feed:
            assert seen == [(i, threading.get_ident(), 0) for i in range(batch.index + 1)]
            del batch
        stats = feed.stats()
        assert (stats.workers, stats.slots, stats.per_worker[0].fills) == (0, 1, 5)
        assert stats.starved_ns == stats.fill_ns > 0


@pytest.mark.parametrize("slots", [1, 2, 4])
def test_a_batch_that_would_take_the_last_slot_is_copied(slots):
    with tn.Feed(fill, SCHEMA, batches=6, workers=0, slots=slots, on_starved="copy", timeout=60) as feed:
        kept = list(feed)
        assert [int(batch.label[0]) for batch in kept] == list(range(6))
        assert feed.stats().copied == 6 - (slots - 1)


def test_native_functions_run_there_too():
    with tn.Feed(native(), tn.schema(label=("i8", (4,))), batches=5, workers=0) as feed:
        assert [int(batch.label[0]) for batch in feed] == list(range(5))


def test_failures_ends_and_states_are_those_of_a_worker():
    def breaks(batch):
        if batch.index == 2 and batch.epoch == 0:
            raise LookupError("no such picture")
        if batch.index == 4:
            batch.end()
        fill(batch)

    with tn.Feed(breaks, SCHEMA, workers=0) as feed:
        start, batches = feed.state_dict(), iter(feed)
        next(batches), next(batches)
        assert feed.state_dict() == start | {"epoch": 0, "next": 2}
        with pytest.raises(tn.OpError, match="LookupError: no such picture") as told:
            next(batches)
        assert (told.value.kind, told.value.index) == ("failed", 2)
        assert [batch.index for batch in feed] == [0, 1, 2, 3]
    with tn.Feed(breaks, SCHEMA, workers=0, on_error="skip") as feed:
        assert [batch.index for batch in feed] == [0, 1, 3]
        assert feed.stats().skipped == 1
        feed.load_state_dict({"epoch": 5, "next": 3})
        assert [(batch.epoch, batch.index) for batch in feed] == [(5, 3)]


def test_a_failed_fill_is_tried_again():
    tries = []

    def breaks(batch):
        tries.append(batch.index)
        if len(tries) < 3:
            raise LookupError
        fill(batch)

    with tn.Feed(breaks, SCHEMA, workers=0, batches=2, on_error="retry", retries=2) as feed:
        assert [batch.index for batch in feed] == [0, 1]
        assert tries == [0, 0, 0, 1] and feed.stats().retried == 2


@pytest.mark.parametrize("on_error", ["raise", "skip", "retry"])
def test_ctrl_c_in_the_generator_is_the_consumers(on_error):
    def interrupted(batch):
        if (batch.epoch, batch.index) == (0, 1):
            signal.raise_signal(signal.SIGINT)
        fill(batch)

    with tn.Feed(interrupted, SCHEMA, workers=0, batches=3, on_error=on_error) as feed:
        batches = iter(feed)
        next(batches)
        with pytest.raises(KeyboardInterrupt):
            next(batches)
        assert feed.stats().retried == 0
        assert [(batch.epoch, batch.index) for batch in feed] == [(1, i) for i in range(3)]


@pytest.mark.parametrize("on_error", ["raise", "skip", "retry"])
def test_ctrl_c_before_the_call_of_the_generator_is_the_consumers(on_error, monkeypatch):
    def interrupted(self, native):
        raise KeyboardInterrupt

    with tn.Feed(fill, SCHEMA, workers=0, batches=3, on_error=on_error) as feed:
        with monkeypatch.context() as patched:
            patched.setattr(Inline, "fill", interrupted)
            with pytest.raises(KeyboardInterrupt):
                next(iter(feed))
        assert [batch.index for batch in feed] == [0, 1, 2]


def test_a_feed_of_which_each_batch_is_skipped_keeps_to_its_timeout():
    calls = []

    def breaks(batch):
        calls.append(batch.index)
        if len(calls) < 100_000:
            raise LookupError
        batch.end()  # where the timeout is ignored

    feed = tn.Feed(breaks, SCHEMA, workers=0, on_error="skip", timeout=0.05)
    with feed, pytest.raises(TimeoutError):
        next(iter(feed))


def test_a_generator_cannot_take_from_its_own_feed():
    def takes(batch):
        next(iter(feed))

    with tn.Feed(takes, SCHEMA, workers=0, batches=3) as feed, pytest.raises(tn.OpError):
        next(iter(feed))


def test_a_consumer_that_holds_every_slot_is_told_so():
    with tn.Feed(fill, SCHEMA, workers=0, slots=2, batches=9, on_starved="raise") as feed:
        batches = iter(feed)
        held = [next(batches), next(batches)]
        with pytest.raises(tn.LeaseConflict, match="all 2 slots hold delivered batches"):
            next(batches)
        held.pop()
        assert next(batches).index == 2
        del held


def test_two_threads_may_take_batches_at_a_time():
    taken = []

    with tn.Feed(fill, SCHEMA, workers=0, batches=200, slots=8) as feed:
        feed._native.begin()

        def take():
            while (batch := feed._native.next(None, print)) is not None:
                taken.append(batch.index)

        threads = [threading.Thread(target=take) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert sorted(taken) == list(range(200))


@pytest.mark.parametrize("options", [{"processes": True}, {"fill_timeout": 1.0}])
def test_what_needs_a_worker_is_refused(options):
    with pytest.raises(ValueError, match="workers is 0"):
        tn.Feed(fill, SCHEMA, workers=0, **options)


def test_a_loop_is_refused():
    @tn.worker(SCHEMA)
    def loop(batches):
        for batch in batches:
            fill(batch)

    with pytest.raises(ValueError, match="needs a thread of its own"):
        tn.Feed(loop(), workers=0)


def interval(**counts):
    none = dict.fromkeys(("nbytes", "starved_ns", "fill_ns", "blocked_ns", "blocked_by_consumer_ns"), 0)
    some = {"seconds": 1, "batches": 100, "rows": 1.0, "workers": 1, "are_slots_held": False}
    return Interval(**(none | some | counts))


def test_the_verdict_advises_it_where_the_worker_costs_more_than_it_hides():
    second = 10**9
    assert interval(starved_ns=2 * second, fill_ns=second).verdict == "worker-bound"
    assert interval(starved_ns=1.4 * second, fill_ns=second).verdict == "producer-bound"
    assert interval(starved_ns=2 * second, fill_ns=second, workers=2).verdict == "producer-bound"
    assert interval(starved_ns=2 * second, fill_ns=2 * second, workers=0).verdict == "producer-bound"
    held = {"blocked_ns": second, "blocked_by_consumer_ns": 0}
    assert interval(starved_ns=2 * second, fill_ns=second, **held).verdict == "producer-bound"


def test_consumers_elsewhere_leave_a_slot_to_fill():
    with (
        tn.Feed(fill, SCHEMA, batches=6, workers=0, slots=2, shared=True) as feed,
        feed.serve(background=True),
        tn.Feed.attach(feed.name, timeout=0.5) as attached,
    ):
        batches = iter(attached)
        kept = next(batches)
        with pytest.raises(TimeoutError, match="all 1 batches that may be out are in the hands"):
            next(batches)
        del kept
        attached.timeout = 60
        seen = []
        for batch in batches:
            seen.append(batch.index)
            del batch
        assert seen == [1, 2, 3, 4, 5]
    feed = tn.Feed(fill, SCHEMA, batches=6, workers=0, slots=1, shared=True)
    with feed, pytest.raises(ValueError, match="serving needs 2"):
        feed.serve()


@pytest.mark.parametrize(
    "options", [{"workers": 0}, {"workers": 1}, {"processes": "fork"}], ids=["inline", "thread", "process"]
)
def test_an_error_that_names_a_file_whose_name_is_no_utf_8_is_one_of_a_batch(options):
    def breaks(batch):
        if batch.index == 1:
            raise ValueError(f"bad file {os.fsdecode(bytes([0x61, 0xFF]))}.jpg")
        fill(batch)

    with tn.Feed(breaks, SCHEMA, batches=4, on_error="skip", **options) as feed:
        for _ in range(2):
            assert [batch.index for batch in feed] == [0, 2, 3]
    with (
        tn.Feed(breaks, SCHEMA, batches=4, **options) as feed,
        pytest.raises(tn.OpError, match=r"a\\udcff\.jpg"),
    ):
        list(feed)
