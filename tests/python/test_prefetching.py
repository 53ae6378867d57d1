# SPDX-License-Identifier: Apache-2.0
"""PrefetchingIter: batches come one ahead, in step and in order; errors come at their place; no thread
waits for one that is not there. The oracle of order is the number that each batch carries."""

import gc
import logging
import os
import subprocess
import sys
import threading
import time
import weakref

import native_library
import numpy as np
import pytest

import tenon as tn
from tenon._data import prefetching as _prefetching
from tenon.io import DataBatch, DataDesc, DataIter, FeedIter, NDArrayIter, PrefetchingIter

pytestmark = pytest.mark.usefixtures("nothing_stays_behind")

FILL = "int fill(float *data, int64_t *label, size_t n, uint64_t index, uint64_t epoch)"
FAIL_AT = "int fail_at(int64_t *label, uint64_t index, uint64_t epoch, uint64_t bad_index, int code)"


class Counting(DataIter):
    """Batches of 2 rows of their number; `at` maps a number to what is raised or done there."""

    def __init__(self, batches=5, at=None, pad=0, name="data"):
        super().__init__(2)
        self.provide_data = [DataDesc(name, (2,))]
        self.provide_label = []
        self.batches, self.at, self.pad = batches, at or {}, pad
        self.threads = set()
        self.resets = 0
        self.index = 0

    def reset(self):
        self.resets += 1
        self.index = 0

    def next(self):
        self.threads.add(threading.current_thread().name)
        if self.index == self.batches:
            raise StopIteration
        index, self.index = self.index, self.index + 1
        todo = self.at.get(index)
        if isinstance(todo, BaseException):
            raise todo
        if todo is not None:
            todo()
        return DataBatch([tn.full(2, float(index))], [], self.pad, index)


def numbers(iterator):
    return [int(batch.data[0][0]) for batch in iterator]


def threads():
    return [thread for thread in threading.enumerate() if thread.name.startswith("tenon prefetch")]


def await_no_threads():
    deadline = time.monotonic() + 600
    while threads():
        assert time.monotonic() < deadline, threads()
        time.sleep(0.005)


@pytest.fixture(autouse=True)
def no_thread_stays_behind():
    yield
    gc.collect()
    await_no_threads()


def test_batches_come_in_order_from_threads_of_their_own_epoch_after_epoch():
    first, second = Counting(20), Counting(20)
    with PrefetchingIter([first, second]) as iterator:
        for _ in range(5):
            for index, batch in enumerate(iterator):
                assert [int(array[0]) for array in batch.data] == [index, index]
                assert (batch.index, batch.pad, batch.label) == (index, 0, [])
            assert index == 19
            assert list(iterator) == []
            iterator.reset()
        assert (first.threads, second.threads) == ({"tenon prefetch 0"}, {"tenon prefetch 1"})


def test_one_batch_is_taken_ahead_and_no_more():
    taken = threading.Semaphore(0)
    source = Counting(10, dict.fromkeys(range(10), taken.release))
    with PrefetchingIter(source) as iterator:
        assert not threads()  # nothing is taken before it is asked for
        next(iterator)
        for expected in (2, 3, 4):
            for _ in range(2 if expected == 2 else 1):
                assert taken.acquire(timeout=600)
            assert not taken.acquire(timeout=0.05)
            assert source.index == expected
            next(iterator)
        taken.acquire(timeout=600)


def test_data_and_labels_of_all_iterators_follow_each_other_without_a_copy():
    x, y = tn.array(np.arange(8.0)), tn.array(np.arange(8))
    pair = [NDArrayIter(x, y, 4), NDArrayIter({"z": x}, None, 4)]
    with PrefetchingIter(pair, [{"data": "left"}, {"z": "right"}], [{"softmax_label": "l"}, {}]) as iterator:
        assert [d.name for d in iterator.provide_data] == ["left", "right"]
        assert [d.name for d in iterator.provide_label] == ["l"]
        assert iterator.batch_size == 4
        for start, batch in zip((0, 4), iterator, strict=True):
            assert [array.data_ptr for array in batch.data] == [x[start:].data_ptr] * 2
            assert [array.data_ptr for array in batch.label] == [y[start:].data_ptr]
            assert (batch.provide_data, batch.provide_label) == (
                iterator.provide_data,
                iterator.provide_label,
            )


def test_names_that_are_not_renamed_stay_and_plain_tuples_describe_too():
    source = Counting()
    source.provide_data = [("a", (2, 3)), ("b", (2, 4), "int32")]
    iterator = PrefetchingIter([source], [{"b": "c"}])
    assert repr(iterator.provide_data) == "[DataDesc[a,(2, 3),float32,NCHW], DataDesc[c,(2, 4),int32,NCHW]]"
    for wrong in ([], [{}, {}]):
        with pytest.raises(ValueError, match=r"rename_label has \d dicts for 1 iterators"):
            PrefetchingIter(source, None, wrong)
    with pytest.raises(ValueError, match="there are no iterators"):
        PrefetchingIter([])


@pytest.mark.parametrize("error", [KeyError("no such file"), SystemExit(3), KeyboardInterrupt()])
def test_an_error_is_raised_at_its_place_and_the_next_call_goes_on(error):
    with PrefetchingIter(Counting(5, {2: error})) as iterator:
        assert [next(iterator).index, next(iterator).index] == [0, 1]
        with pytest.raises(type(error)) as caught:
            next(iterator)
        assert caught.value is error
        assert numbers(iterator) == [3, 4]
        iterator.reset()
        assert next(iterator).index == 0


def test_after_an_error_iterators_stay_in_step():
    with PrefetchingIter([Counting(4), Counting(4, {1: ValueError("torn")})]) as iterator:
        assert next(iterator).index == 0
        with pytest.raises(ValueError, match="torn"):
            next(iterator)
        assert [[int(array[0]) for array in batch.data] for batch in iterator] == [[2, 2], [3, 3]]


def test_an_error_is_let_go_of_when_it_was_raised():
    class Torn(Exception):
        pass

    def tear():
        raise Torn

    with PrefetchingIter(Counting(4, {0: tear})) as iterator:
        try:
            next(iterator)
        except Torn as error:
            dead = weakref.ref(error)
        assert dead() is None


def test_iterators_that_end_apart_or_pad_apart_are_told():
    with PrefetchingIter([Counting(3), Counting(2), Counting(3)]) as iterator:
        assert [next(iterator).index, next(iterator).index] == [0, 1]
        with pytest.raises(
            ValueError, match=r"iterators \[1\] of 3 are at their end, and the others are not"
        ):
            next(iterator)
        assert list(iterator) == []
        iterator.reset()
        assert next(iterator).index == 0
    pads = PrefetchingIter([Counting(pad=0), Counting(pad=1)])
    with pads, pytest.raises(ValueError, match=r"different numbers of rows: \[0, 1\]"):
        next(pads)


def test_a_reset_waits_for_the_batch_under_way_and_a_second_one_does_nothing():
    source = Counting(5)
    with PrefetchingIter(source) as iterator:
        for expected in range(1, 6):
            assert next(iterator).index == 0
            iterator.reset()
            assert source.resets == expected
            iterator.reset()
            iterator.reset()
            assert source.resets == expected
        assert numbers(iterator) == [0, 1, 2, 3, 4]


def test_the_first_reset_is_that_of_the_iterators():
    source = Counting(3)
    assert numbers(source) == [0, 1, 2]
    with PrefetchingIter(source) as iterator:
        iterator.reset()
        assert numbers(iterator) == [0, 1, 2]


def test_a_reset_that_fails_leaves_an_iterator_at_its_end_until_one_succeeds():
    source = Counting(3)
    with PrefetchingIter(source) as iterator:
        next(iterator)
        source.reset = lambda: 1 // 0
        with pytest.raises(ZeroDivisionError):
            iterator.reset()
        assert list(iterator) == []
        del source.reset
        iterator.reset()
        assert numbers(iterator) == [0, 1, 2]


def test_an_iterator_can_be_asked_step_by_step():
    with PrefetchingIter(NDArrayIter(np.arange(3), np.arange(3), 2)) as iterator:
        with pytest.raises(ValueError, match="no current batch"):
            iterator.getdata()
        assert iterator.iter_next() and iterator.iter_next()
        assert [iterator.getdata()[0].tolist(), iterator.getlabel()[0].tolist()] == [[2, 0], [2, 0]]
        assert (iterator.getpad(), iterator.getindex()) == (1, None)
        assert not iterator.iter_next()
        with pytest.raises(ValueError, match="no current batch"):
            iterator.getpad()


def test_letting_go_of_an_iterator_ends_its_threads_at_any_point():
    for taken in range(4):
        iterator = PrefetchingIter([Counting(3), Counting(3)])
        for _ in range(taken):
            next(iterator)
        del iterator
        await_no_threads()
    iterator = PrefetchingIter(Counting(3))
    next(iterator)
    iterator.itself = iterator  # a cycle, for the garbage collector
    del iterator
    gc.collect()
    await_no_threads()


def test_close_ends_the_threads_and_later_calls_say_so():
    iterator = PrefetchingIter(Counting(3))
    batch = next(iterator)
    iterator.close()
    assert not threads()
    iterator.close()
    with pytest.raises(ValueError, match="the PrefetchingIter is closed"):
        next(iterator)
    with pytest.raises(ValueError, match="the PrefetchingIter is closed"):
        iterator.reset()
    assert batch.data[0].tolist() == [0, 0]


def test_closing_does_not_wait_for_ever_for_an_iterator_and_wakes_who_waits():
    gate = threading.Event()
    iterator = PrefetchingIter(Counting(3, {1: gate.wait}))
    next(iterator)
    errors = []

    def consume():
        try:
            next(iterator)
        except ValueError as error:
            errors.append(str(error))

    consumer = threading.Thread(target=consume)
    consumer.start()
    time.sleep(0.05)
    with pytest.raises(TimeoutError, match=r"did not return within 0\.05 s: its thread is left behind"):
        iterator.close(0.05)
    consumer.join(600)
    assert errors == ["the PrefetchingIter was closed during the wait"]
    gate.set()
    await_no_threads()


def test_a_dead_thread_is_told_and_not_waited_for(monkeypatch):
    """The thread ends as it would by an error of the runtime in its own code, with the batch still owed."""
    monkeypatch.setattr(_prefetching, "_LOOK_SECONDS", 0.05)
    monkeypatch.setattr(threading, "excepthook", lambda _: None)
    iterator = PrefetchingIter(Counting(3))
    monkeypatch.setattr(iterator._helpers[0], "_await_request", lambda: 1 // 0)
    with pytest.raises(RuntimeError, match=r"the thread that takes the batches of .*Counting.* has ended"):
        next(iterator)


def test_a_long_wait_says_for_whom(monkeypatch, caplog, quick_reports):
    monkeypatch.setattr(_prefetching, "_LOOK_SECONDS", 0.01)
    gate = threading.Event()
    handler = logging.Handler()
    handler.emit = lambda _: gate.set()
    monkeypatch.setattr(logging.getLogger("tenon"), "handlers", [handler])
    with PrefetchingIter(Counting(3, {0: gate.wait})) as iterator, caplog.at_level(logging.WARNING, "tenon"):
        assert next(iterator).index == 0
    assert "waiting for a batch of <" in caplog.messages[0] and "Counting object" in caplog.messages[0]


def test_a_forked_child_is_told_that_it_has_no_threads():
    iterator = PrefetchingIter(Counting(3))
    next(iterator)
    child = os.fork()
    if child == 0:
        code = 1
        try:
            next(iterator)
        except RuntimeError as error:
            code = 0 if "make the PrefetchingIter there" in str(error) else 2
        iterator.close()
        os._exit(code)
    assert os.waitpid(child, 0)[1] == 0
    assert numbers(iterator) == [1, 2]
    iterator.close()


def test_a_feed_is_prefetched_on_its_slots():
    generator = tn.c_function(native_library.generators(), FILL)
    fields = tn.schema(data=("f4", (4, 8)), label=("i8", (4,)))
    with tn.Feed(generator, fields, batches=6, slots=4, timeout=600) as feed:
        stats = feed.stats()
        with PrefetchingIter(FeedIter(feed)) as iterator:
            for epoch in range(3):
                iterator.reset()
                labels = []
                for batch in iterator:
                    assert 0 <= batch.data[0].data_ptr - stats.memory < stats.slots * stats.slot_nbytes
                    labels.append(batch.label[0][0].item())
                    del batch
                assert labels == [epoch * 10000 + index * 100 for index in range(6)]


def test_an_error_of_a_feed_comes_at_its_place():
    generator = tn.c_function(native_library.generators(), FAIL_AT, bad_index=3, code=7)
    feed = tn.Feed(generator, tn.schema(label=("i8", (4,))), batches=9)
    with feed, PrefetchingIter(FeedIter(feed)) as iterator:
        got = []
        with pytest.raises(tn.OpError, match="7"):
            for batch in iterator:
                got.append(batch.index)
        assert got == [0, 1, 2]
        assert list(iterator) == []


PROGRAM = """
import itertools, threading
import tenon as tn
from tenon.io import DataBatch, DataDesc, DataIter, PrefetchingIter

class Source(DataIter):
    provide_data, provide_label, calls = [DataDesc("data", (2,))], [], itertools.count()

    def next(self):
        call = next(self.calls)
        if call == 1:
            ahead.set()
        if call == STUCK_AT:
            threading.Event().wait()
        return DataBatch([tn.zeros(2)], [])

ahead = threading.Event()
iterator = PrefetchingIter(Source(2))
next(iterator)
ahead.wait()
print("end", flush=True)
"""


@pytest.mark.parametrize("stuck_at", [1, -1], ids=["stuck", "not stuck"])
def test_python_ends_while_threads_take_batches(stuck_at):
    """Also when an iterator never returns."""
    code = PROGRAM.replace("STUCK_AT", str(stuck_at))
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=600)
    assert (done.returncode, done.stdout) == (0, "end\n"), done.stderr
    assert ("its thread is left behind" in done.stderr) == (stuck_at == 1), done.stderr
