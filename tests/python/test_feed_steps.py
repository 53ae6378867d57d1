# SPDX-License-Identifier: Apache-2.0
"""Steps of iterators over feeds: a ready batch takes no Python code of the package, and ends, errors and
failures are what they are with that code."""

import gc
import logging
import os
import signal
import sys
import threading
import time
import weakref

import native_library
import pytest

import tenon as tn
from tenon._data.forms import itself

PACKAGE = os.path.dirname(tn.__file__)
PROTOTYPE = "int fill_label(int64_t *label, uint64_t index)"


def make(prototype=PROTOTYPE, **options):
    generator = tn.c_function(native_library.generators(), prototype)
    return tn.Feed(generator, {"label": ("i8", (4,))}, **{"workers": 0, "batches": 5, **options})


def calls_of_package(steps, count):
    """The functions of the package that Python calls during so many steps of an iterator."""
    called = []

    def note(frame, event, _):
        if event == "call" and frame.f_code.co_filename.startswith(PACKAGE):
            called.append(frame.f_code.co_name)

    sys.setprofile(note)
    try:
        for _ in range(count):
            next(steps)
    finally:
        sys.setprofile(None)
    return called


@pytest.mark.parametrize("workers", [0, 1])
def test_a_ready_batch_becomes_tensors_without_code_of_the_package(workers):
    pytest.importorskip("torch")
    with make(workers=workers, slots=7) as feed:
        steps = iter(feed.torch())
        while workers and feed.stats().slots_ready < 5:
            pass
        assert calls_of_package(steps, 5) == []


def test_a_ready_batch_becomes_a_batch_by_one_call():
    with make() as feed:
        assert calls_of_package(iter(feed), 5) == [itself.__name__] * 5


def test_tensors_lie_on_the_slot():
    torch = pytest.importorskip("torch")
    with make(slots=1) as feed:
        addresses = set()
        for (label,) in feed.torch():
            assert isinstance(label, torch.Tensor)
            addresses.add(label.data_ptr())
            del label  # the only slot
        assert len(addresses) == 1


def test_an_interrupted_wait_goes_on_with_the_batch_that_was_waited_for():
    released = threading.Event()

    def fill(batch):
        if batch.index == 3:
            released.wait(60)
        batch.label = batch.index

    with tn.Feed(fill, {"label": ("i8", (1,))}, batches=6) as feed:
        batches = iter(feed)
        found = [next(batches).index for _ in range(3)]
        before = signal.signal(signal.SIGALRM, signal.default_int_handler)
        signal.setitimer(signal.ITIMER_REAL, 0.2)
        with pytest.raises(KeyboardInterrupt):
            next(batches)
        signal.signal(signal.SIGALRM, before)
        assert feed.state_dict()["next"] == 3
        released.set()
        found += [batch.index for batch in batches]
    assert found == list(range(6))


def test_an_interrupt_that_loses_a_batch_is_told_again():
    def convert(batch):
        if batch.index == 2:
            raise KeyboardInterrupt
        return batch.index

    with make() as feed:
        steps = feed._iterate(convert)
        assert [next(steps), next(steps)] == [0, 1]
        with pytest.raises(KeyboardInterrupt):
            next(steps)
        with pytest.raises(tn.TenonError, match="interrupted"):
            next(steps)
        assert sum(1 for _ in feed) == 5


def test_an_interrupted_fill_without_workers_is_told_again():
    def fill(batch):
        if batch.index == 2 and batch.epoch == 0:
            raise KeyboardInterrupt
        batch.label = batch.index

    with tn.Feed(fill, {"label": ("i8", (1,))}, workers=0, batches=5) as feed:
        batches = iter(feed)
        assert [next(batches).index, next(batches).index] == [0, 1]
        with pytest.raises(KeyboardInterrupt):
            next(batches)
        with pytest.raises(tn.TenonError, match="interrupted"):
            next(batches)
        assert sum(1 for _ in feed) == 5


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("error", [ZeroDivisionError, TimeoutError, tn.LeaseConflict])
def test_an_error_of_the_conversion_ends_the_iterator(error, workers):
    """It has lost its batch, also if a wait could end with such an error."""
    calls = []

    def convert(batch):
        calls.append(batch.index)
        if batch.index == 2:
            raise error("of the conversion")
        return batch.index

    with make(workers=workers) as feed:
        steps = feed._iterate(convert)
        assert [next(steps), next(steps)] == [0, 1]
        with pytest.raises(error, match="of the conversion"):
            next(steps)
        assert next(steps, None) is None
        assert calls == [0, 1, 2]
        assert [batch.epoch for batch in feed] == [1] * 5


def test_a_lack_of_memory_ends_the_iterator():
    """It may have lost a batch: there was none for its object."""
    with make() as feed:
        steps = feed._iterate(itself)
        steps._detach()
        take = steps._next

        def take_and_lose(*arguments):
            take(*arguments)
            raise MemoryError

        assert next(steps).index == 0
        steps._next = take_and_lose
        with pytest.raises(MemoryError):
            next(steps)
        steps._next = take
        assert next(steps, None) is None
        assert [batch.epoch for batch in feed] == [1] * 5


def test_a_failure_of_the_generator_is_raised_at_its_place_with_its_facts():
    prototype = "int fail_at(int64_t *label, uint64_t index, uint64_t epoch, uint64_t bad_index, int code)"
    generator = tn.c_function(native_library.generators(), prototype, bad_index=2, code=7)
    with tn.Feed(generator, {"label": ("i8", (4,))}, workers=0, batches=5) as feed:
        steps = iter(feed)
        assert [next(steps).index, next(steps).index] == [0, 1]
        with pytest.raises(tn.OpError) as caught:
            next(steps)
        assert (caught.value.kind, caught.value.index, caught.value.op) == ("failed", 2, "fail_at")
        assert next(steps, None) is None


def test_an_iterator_that_has_ended_takes_no_batch_of_the_next_one():
    with make() as feed:
        first = iter(feed)
        assert sum(1 for _ in first) == 5
        second = iter(feed)
        assert next(first, None) is None
        assert next(second).index == 0
        third = iter(feed)
        with pytest.raises(tn.TenonError, match="another iteration"):
            next(second)
        assert next(third).index == 0


def failing(batch):
    if batch.index == 1:
        raise ValueError("no")
    batch.label[...] = 0


def test_a_failure_that_is_ready_keeps_no_batch_and_no_iterator():
    """As one for which the consumer waits: nothing refers to the error when the loop has ended."""

    def loop(feed):
        steps = iter(feed)
        next(steps)
        while not (stats := feed.stats()).per_worker[0].failures or stats.slots_filling:
            time.sleep(0.001)
        try:
            for _ in steps:
                pass
        except tn.OpError:
            return weakref.ref(steps)
        raise AssertionError("the batch did not fail")

    with tn.Feed(failing, {"label": ("i8", (4,))}, batches=5, slots=3) as feed:
        gc.collect()
        gc.disable()
        try:
            ended = loop(feed)
            assert ended() is None
            assert feed.stats().slots_held == 0
        finally:
            gc.enable()


def test_a_thread_left_behind_is_told_of_also_if_the_failure_is_ready(caplog):
    released = threading.Event()

    def fill(batch):
        batch.label[...] = batch.index
        if batch.index == 2:
            released.wait(60)

    try:
        with tn.Feed(fill, {"label": ("i8", (4,))}, batches=5, fill_timeout=0.3) as feed:
            steps = iter(feed)
            next(steps), next(steps)
            time.sleep(1)  # longer than the timeout, which only the next step looks at
            with caplog.at_level(logging.WARNING, "tenon"), pytest.raises(tn.OpError):
                next(steps)
            assert "left behind" in caplog.text
            released.set()
    finally:
        released.set()
