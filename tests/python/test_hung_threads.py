# SPDX-License-Identifier: Apache-2.0
"""Generators in threads that do not return within ``fill_timeout``. Oracle: the numbers of a batch follow
from epoch and index, also after the thread that was left behind has written other ones to its slot; each
batch comes once, or is told as a failure, or is counted as skipped."""

import contextlib
import logging
import threading
import time

import native_library
import numpy as np
import pytest

import tenon as tn

SCHEMA = tn.schema(label=("i8", (64,)))
SECONDS = 1.0  # for a batch that is not meant to hang, also on a loaded machine
WATCHDOG = 300


class Hang:
    """Calls that do not return before ``release``; then they write over their batch."""

    def __init__(self, at):
        self.at = at  # (epoch, index)
        self.times = 1
        self.released = threading.Event()
        self.threads = []

    def fill(self, batch):
        batch.label[...] = batch.epoch * 1000 + batch.index
        if (batch.epoch, batch.index) == self.at and self.times > 0:
            self.times -= 1
            self.threads.append(threading.current_thread())
            assert self.released.wait(WATCHDOG)
            batch.label[...] = -1

    def callable(self):
        return lambda batch: self.fill(batch)

    def loop(self):
        @tn.worker(SCHEMA)
        def filler(batches):
            for batch in batches:
                self.fill(batch)

        return filler()

    def release(self):
        self.released.set()
        for thread in self.threads:
            thread.join(WATCHDOG)
            assert not thread.is_alive()


@pytest.fixture(params=["callable", "loop"])
def hang(request):
    hang = Hang((0, 2))
    hang.make = lambda **options: tn.Feed(
        getattr(hang, request.param)(), SCHEMA, fill_timeout=SECONDS, **options
    )
    yield hang
    hang.release()


def numbers(batches):
    return [number_of(batch) for batch in batches]


def number_of(batch):
    values = np.unique(np.asarray(batch.label))
    assert len(values) == 1
    return int(values[0])


def reports(caplog):
    return [r.getMessage() for r in caplog.records if "has not returned from batch" in r.getMessage()]


def test_the_next_epoch_has_another_thread_and_is_whole(hang, caplog):
    with caplog.at_level(logging.WARNING, "tenon"), hang.make(batches=5) as feed:
        batches = iter(feed)
        assert [number_of(next(batches)), number_of(next(batches))] == [0, 1]
        with pytest.raises(tn.OpError, match=r"took longer than 1\.0 s for batch 2 of epoch 0") as told:
            next(batches)
        assert (told.value.kind, told.value.index, told.value.worker) == ("hung", 2, 0)
        for epoch in 1, 2:
            assert numbers(feed) == [epoch * 1000 + i for i in range(5)]
        stats = feed.stats()
        assert (stats.abandoned, stats.slots) == (1, 5)
        [report] = reports(caplog)
        assert "has not returned from batch 2 of epoch 0 for 1." in report
        assert f"its thread {hang.threads[0].native_id} (worker 0) is left behind" in report
        hang.release()


def test_the_result_of_a_thread_that_returns_late_is_dropped(hang):
    with hang.make(batches=60, on_error="retry", retries=100) as feed:
        held, seen = [], []
        for batch in feed:
            held.append(batch)
            if batch.index == 20:
                hang.release()  # it has written over its slot
            if len(held) == 3:
                seen.append(number_of(held.pop(0)))
        del batch
        seen += [number_of(batch) for batch in held]
        assert seen == list(range(60))
        assert feed.stats().retried >= 1 and feed.stats().abandoned >= 1


def test_one_batch_is_skipped_and_no_other_is_lost(hang):
    with hang.make(batches=9, on_error="skip") as feed:
        assert numbers(feed) == [0, 1, 3, 4, 5, 6, 7, 8]
        assert (feed.stats().skipped, feed.stats().abandoned) == (1, 1)
        hang.release()


def test_an_epoch_that_was_left_does_not_hold_up_the_next(hang):
    with hang.make(batches=5) as feed:
        batches = iter(feed)
        next(batches)
        deadline = time.monotonic() + WATCHDOG
        while not hang.threads and time.monotonic() < deadline:
            time.sleep(0.001)
        del batches
        assert numbers(feed) == [1000 + i for i in range(5)]
        assert feed.stats().abandoned == 1
        hang.release()


@pytest.mark.slow
def test_closing_tells_of_a_thread_that_was_left_behind(hang):
    feed = hang.make(batches=5, on_error="skip")
    assert numbers(feed) == [0, 1, 3, 4]
    with pytest.raises(TimeoutError, match="left behind"):
        feed.close(0.05)


@pytest.mark.slow
def test_the_slots_stay_as_many_as_were_asked_for(hang):
    hang.times = 2
    with hang.make(batches=30, slots=2, on_error="retry", retries=100) as feed:
        assert numbers(feed) == list(range(30))
        assert feed.stats().slots == 2
        hang.release()


def native(prototype, **options):
    return tn.c_function(native_library.generators(), prototype, **options)


@pytest.fixture
def gate():
    set_gate = native("void set_gate(int open)", threadsafe=True)
    set_gate(0)
    yield set_gate
    set_gate(1)


def at_gate(threadsafe):
    prototype = "int fill_at_gate(int64_t *label, uint64_t index, uint64_t from)"
    return native(prototype, threadsafe=threadsafe, **{"from": 2})


@pytest.mark.slow
def test_a_native_function_that_is_thread_safe_is_called_again(gate):
    with tn.Feed(at_gate(True), SCHEMA, batches=4, fill_timeout=SECONDS, on_error="skip") as feed:
        batches = iter(feed)
        assert [next(batches).index, next(batches).index] == [0, 1]
        assert list(batches) == []  # each call of the other two hangs
        assert (feed.stats().skipped, feed.stats().abandoned) == (2, 2)
        gate(1)
        assert len([batch.index for batch in feed]) == 4


def test_one_that_is_not_is_not_called_beside_itself_and_the_error_says_what_helps(gate):
    with tn.Feed(at_gate(False), SCHEMA, batches=4, fill_timeout=SECONDS) as feed:
        batches = iter(feed)
        next(batches), next(batches)
        for told in "took longer than 1.0 s for batch 2 of epoch 0", "was not called for batch 0 of epoch 1":
            with pytest.raises(tn.OpError) as error:
                next(batches)
            assert told in str(error.value)
            assert "not thread-safe" in str(error.value) and "processes=True" in str(error.value)
            assert error.value.kind == "hung"
            batches = iter(feed)
        assert feed.stats().abandoned == 0
        gate(1)
        deadline = time.monotonic() + WATCHDOG
        while time.monotonic() < deadline:  # until its thread has returned a batch may fail
            with contextlib.suppress(tn.OpError):
                assert [batch.index for batch in feed] == [0, 1, 2, 3]
                break
        assert feed.stats().batches >= 6


def test_consumers_in_other_ways_get_batches_from_slots_that_stand_in(hang):
    hang.at = (0, 0)
    with hang.make(batches=8, on_error="retry", retries=100, shared=True, slots=3) as feed:
        with feed.serve(background=True), tn.Feed.attach(feed.name) as attached:
            assert numbers(attached) == list(range(8))
        hang.release()


class Walk:
    """Has a state, so that no other thread may call it."""

    def __init__(self, hang):
        self.hang = hang
        self.at = 0

    def __call__(self, batch):
        self.hang.fill(batch)

    def state(self):
        return self.at

    def restore(self, state):
        self.at = state


def test_a_generator_that_cannot_be_replaced_goes_on_when_it_returns():
    hang = Hang((0, 0))
    with tn.Feed(Walk(hang), SCHEMA, fill_timeout=SECONDS, batches=2) as feed:
        for told in ("took longer", "was not called"):
            with pytest.raises(tn.OpError, match=told):
                next(iter(feed))
        hang.released.set()
        deadline = time.monotonic() + WATCHDOG
        while feed.stats().slots_filling > 0 and time.monotonic() < deadline:
            time.sleep(0.001)
        assert numbers(feed) == [2000, 2001]


def test_a_loop_that_hangs_before_its_first_step_is_told() -> None:
    gate, calls = threading.Event(), []

    @tn.worker(SCHEMA)
    def waits(batches):
        calls.append(None)
        if len(calls) == 1:
            assert gate.wait(WATCHDOG)
        for batch in batches:
            batch.label[...] = batch.index

    with tn.Feed(waits(), batches=3, fill_timeout=SECONDS, timeout=WATCHDOG) as feed:
        with pytest.raises(tn.OpError) as told:
            next(iter(feed))
        assert told.value.kind == "hung"
        assert [int(batch.label[0]) for batch in feed] == [0, 1, 2]
        gate.set()
