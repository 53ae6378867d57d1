# SPDX-License-Identifier: Apache-2.0
"""Feeds: batches come in order, in place and whole; a slot is filled again when no view of it exists."""

import gc
import inspect
import itertools
import logging
import os
import re
import signal
import subprocess
import sys
import textwrap
import threading
import time

import native_library
import numpy as np
import pytest
from other_thread import until

import tenon as tn

pytestmark = pytest.mark.usefixtures("nothing_stays_behind")

ROWS = 4
FILL = "int fill(float *data, int64_t *label, size_t n, uint64_t index, uint64_t epoch)"
LABEL = {"label": ("i8", (ROWS,))}


def native(prototype, **options):
    return tn.c_function(native_library.generators(), prototype, **options)


def schema():
    return tn.schema(data=("f4", (ROWS, 8)), **LABEL)


def make(prototype=FILL, fields=None, threadsafe=True, constants=None, **options):
    generator = native(prototype, threadsafe=threadsafe, **(constants or {}))
    return tn.Feed(generator, fields or schema(), **options)


def expected(epoch, index):
    label = epoch * 10000 + index * 100 + np.arange(ROWS)
    data = epoch * 10000 + index * 100 + 10 * np.arange(ROWS)[:, None] + np.arange(8)
    return data.astype("f4"), label


def is_whole(data, label, epoch, index):
    wanted = expected(epoch, index)
    return bool((np.asarray(data) == wanted[0]).all() and (np.asarray(label) == wanted[1]).all())


@pytest.fixture
def gate():
    """Holds generators inside of the library until it is opened."""

    class Gate:
        set = native("void set_gate(int open)", threadsafe=True)
        await_waiting = native("void await_waiting(int n)", threadsafe=True)

    Gate.set(0)
    yield Gate
    Gate.set(1)


def at_gate(start, **options):
    prototype = "int fill_at_gate(int64_t *label, uint64_t index, uint64_t from)"
    return make(prototype, tn.schema(**LABEL), constants={"from": start}, **options)


# ----------------------------------------------------------------------------- what a batch is


@pytest.mark.parametrize("workers", [1, 2, 4])
def test_batches_come_in_order_and_whole(workers):
    with make(workers=workers, batches=200) as feed:
        for epoch in range(3):
            for index, batch in enumerate(feed):
                assert (batch.epoch, batch.index) == (epoch, index)
                assert is_whole(batch.data, batch.label, epoch, index)
            assert index == 199


def test_a_batch_is_attributes_a_mapping_and_a_sequence():
    with make(batches=1) as feed:
        (batch,) = feed
        data, label = batch
        assert batch.data is data is batch["data"] is batch[0]
        assert batch.label is label is batch["label"] is batch[-1]
        assert isinstance(data, tn.NDArray)
        assert data.writable
        assert (len(batch), batch.keys(), batch.arrays) == (2, ("data", "label"), (data, label))
        assert dict(batch) == {"data": data, "label": label}
        assert "data" in batch and "index" not in batch and 0 not in batch
        assert getattr(batch, "".join(["da", "ta"])) is data
        assert repr(batch) == "<tenon.Batch 0 of epoch 0: data, label>"
        with pytest.raises(AttributeError, match=r"no field 'dota': its fields are \('data', 'label'\)"):
            _ = batch.dota
        with pytest.raises(KeyError, match="no field 'dota'"):
            batch["dota"]
        with pytest.raises(IndexError):
            batch[2]


def test_fields_lie_in_the_feeds_memory_aligned_to_256_bytes():
    with make(slots=3) as feed:
        stats = feed.stats()
        for batch in itertools.islice(feed, 10):
            for array in batch:
                assert array.data_ptr % 256 == 0
                assert 0 <= array.data_ptr - stats.memory < stats.slots * stats.slot_nbytes
                assert np.asarray(array).__array_interface__["data"][0] == array.data_ptr


def split_mix(x):
    x = (x + 0x9E3779B97F4A7C15) % 2**64
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB % 2**64
    return x ^ (x >> 31)


@pytest.mark.parametrize("workers", [1, 2, 4])
@pytest.mark.parametrize("seed", [0, 7, 2**64 - 1, -1])
def test_the_seed_of_a_batch_follows_from_feed_epoch_and_index(workers, seed):
    fields = tn.schema(seeds=("u8", (2,)))
    with make(
        "int fill_seed(uint64_t *seeds, size_t n, uint64_t seed)",
        fields,
        workers=workers,
        seed=seed,
        batches=20,
    ) as feed:
        for epoch in range(2):
            for batch in feed:
                wanted = split_mix(split_mix(split_mix(seed % 2**64) ^ epoch) ^ batch.index)
                assert batch.seeds[0].item() == wanted


def test_one_thread_runs_a_generator_that_is_not_threadsafe():
    most_inside = native("int32_t take_most_inside(void)")
    crowd = "int crowd(int64_t *label, uint64_t index)"
    for threadsafe in (False, True):
        with make(crowd, tn.schema(**LABEL), threadsafe=threadsafe, workers=3, batches=40) as feed:
            assert [int(batch.label[0]) for batch in feed] == list(range(40))
            assert feed.stats().workers == (3 if threadsafe else 1)
        assert (most_inside() > 1) == threadsafe


# ------------------------------------------------------------------------------- other forms


def test_numpy_gives_tuples_of_aliases():
    with make(batches=5) as feed:
        stats = feed.stats()
        for index, (data, label) in enumerate(feed.numpy()):
            assert type(data) is np.ndarray and data.flags.writeable
            assert 0 <= data.ctypes.data - stats.memory < stats.slots * stats.slot_nbytes
            assert is_whole(data, label, 0, index)


def test_torch_gives_tuples_of_aliases():
    torch = pytest.importorskip("torch")
    with make(batches=5, slots=4) as feed:
        stats = feed.stats()
        for epoch in range(2):
            for index, (data, label) in enumerate(feed.torch()):
                assert isinstance(data, torch.Tensor)
                assert (data.dtype, label.dtype) == (torch.float32, torch.int64)
                assert 0 <= data.data_ptr() - stats.memory < stats.slots * stats.slot_nbytes
                assert is_whole(data, label, epoch, index)
                data += 1  # writable
        assert len(feed.torch()) == 5
        del data, label
        assert next(iter(feed.torch("cpu")))[0].device.type == "cpu"


def test_the_views_of_tensors_are_noted_with_the_line_that_asked_for_the_batch():
    pytest.importorskip("torch")
    with make(batches=2) as feed:
        batches = iter(feed)
        batch = next(batches)
        line = inspect.currentframe().f_lineno + 1
        tensors = feed.torch()._convert(batch)
        for array, tensor in zip(batch, tensors, strict=True):
            assert array.data_ptr == tensor.data_ptr()
            assert [holder.site for holder in array.leases()] == [f"{__file__}:{line}"]


def test_jax_gives_tuples_of_arrays_that_stay_as_they_are():
    jax = pytest.importorskip("jax")
    with make(batches=6, slots=8) as feed, jax.enable_x64(True):
        stats = feed.stats()
        kept = list(feed.jax())
        for index, (data, label) in enumerate(kept):
            assert 0 <= data.unsafe_buffer_pointer() - stats.memory < stats.slots * stats.slot_nbytes
            assert is_whole(data, label, 0, index)
        del data, label
        kept.clear()


def test_jax_is_not_given_elements_that_it_would_cut():
    pytest.importorskip("jax")
    with make(batches=6) as feed, pytest.raises(ValueError, match="field 'label' from int64 to int32"):
        feed.jax()


def test_a_tensor_of_a_tensor_keeps_its_slot():
    torch = pytest.importorskip("torch")
    with make(slots=4, timeout=600) as feed:
        kept = [data[1:3].T for data, _ in itertools.islice(feed.torch(), 2)]
        for batch in itertools.islice(feed, 20):
            assert is_whole(batch.data, batch.label, 1, batch.index)
        del batch
        for index, view in enumerate(kept):
            assert torch.equal(view, torch.tensor(expected(0, index)[0][1:3].T.copy()))
        assert feed.stats().slots_held == 2


# ------------------------------------------------------------------------------ slots and time


def test_kept_batches_are_never_overwritten_and_may_go_in_any_order():
    with make(slots=8, workers=2, timeout=600) as feed:
        kept = {}
        for index, batch in enumerate(itertools.islice(feed, 3000)):
            kept[index] = (batch.data, None) if index % 3 == 0 else (np.asarray(batch.data), batch.label)
            del batch
            if len(kept) == 5:
                del kept[sorted(kept)[index * 7 % 5]]
            if index % 50 == 0:
                for i, pair in kept.items():
                    assert (np.asarray(pair[0]) == expected(0, i)[0]).all()
                del pair
        assert feed.stats().slots_held == 4
        kept.clear()
        assert feed.stats().slots_held == 0


def test_batches_outlive_their_feed():
    feed = make()
    batch = next(iter(feed))
    view = np.asarray(batch.data)
    feed.close()
    del feed, batch
    gc.collect()
    assert (view == expected(0, 0)[0]).all()


def test_holding_every_slot_is_a_timeout_that_says_who_and_how_many_would_do():
    with make(slots=3, batches=10) as feed:
        batches = iter(feed)
        held = [next(batches) for _ in range(3)]
        feed.timeout = 0.2
        with pytest.raises(TimeoutError) as caught:
            next(batches)
        del held, batches
        feed.timeout = None
        message = str(caught.value)
        assert "no batch 3 of epoch 0" in message
        assert "all 3 slots hold delivered batches" in message
        assert '; or use on_starved="copy"; or slots=5, if no more are kept than now. Held, ' in message
        assert [batch.index for batch in feed] == list(range(10))  # the next epoch


def test_after_a_timeout_the_epoch_goes_on():
    with make(slots=3) as feed:
        iterator = iter(feed)
        held = [next(iterator) for _ in range(3)]
        feed.timeout = 0.1
        view = np.asarray(held[1].data)
        with pytest.raises(TimeoutError, match="1 writable view"):
            next(iterator)
        held.pop()
        feed.timeout = None
        assert next(iterator).index == 3
        assert view[0, 0] == 100
        del view


@pytest.mark.slow
def test_without_a_timeout_holding_every_slot_raises_after_5_seconds(quick_reports):
    with make(slots=2, batches=3) as feed:
        start = time.monotonic()
        with pytest.raises(TimeoutError, match="all 2 slots hold delivered batches"):
            list(feed)
        assert time.monotonic() - start >= 5


def test_batches_in_dead_cycles_are_found_by_collecting_them():
    gc.disable()
    try:
        with make(slots=3, batches=10, timeout=600) as feed:
            for batch in feed:
                cycle = [batch]
                cycle.append(cycle)
    finally:
        gc.enable()
        del cycle, batch
        gc.collect()


@pytest.mark.slow
def test_a_slow_generator_is_waited_for_and_reported(gate, quick_reports, caplog):
    with at_gate(1) as feed, caplog.at_level(logging.WARNING, "tenon"):
        iterator = iter(feed)
        next(iterator)
        reported = threading.Event()
        handler = logging.Handler()
        handler.emit = lambda record: reported.set()
        logging.getLogger("tenon").addHandler(handler)

        def open_when_reported():
            reported.wait()
            gate.set(1)

        opener = threading.Thread(target=open_when_reported)
        opener.start()
        assert next(iterator).index == 1
        opener.join()
        logging.getLogger("tenon").removeHandler(handler)
    assert re.search(r"generator 'fill_at_gate' has been busy with batch 1 of epoch 0 for \d+\.", caplog.text)


def test_a_timeout_for_a_slow_generator_says_what_it_does(gate):
    with at_gate(1) as feed:
        iterator = iter(feed)
        next(iterator)
        feed.timeout = 0.05
        with pytest.raises(TimeoutError, match="'fill_at_gate' has been busy with batch 1 of epoch 0"):
            next(iterator)
        gate.set(1)
        feed.timeout = None
        assert next(iterator).index == 1


# ------------------------------------------------------------------------------ ends and errors


@pytest.mark.parametrize("workers", [1, 3])
@pytest.mark.parametrize("code", [3, -1, 2**31 - 1])
def test_a_failure_comes_at_its_place_and_ends_the_epoch(workers, code):
    prototype = "int fail_at(int64_t *label, uint64_t index, uint64_t epoch, uint64_t bad_index, int code)"
    constants = {"bad_index": 17, "code": code}
    with make(prototype, tn.schema(**LABEL), workers=workers, batches=30, constants=constants) as feed:
        iterator = iter(feed)
        for index in range(17):
            assert next(iterator).label[0] == index
        with pytest.raises(tn.OpError) as caught:
            next(iterator)
        assert str(caught.value) == f"generator 'fail_at' returned {code} at batch 17 of epoch 0"
        assert (caught.value.code, caught.value.op) == (code, "fail_at")
        with pytest.raises(StopIteration):
            next(iterator)
        assert [batch.epoch for batch in feed] == [1] * 30


def test_a_feed_has_one_live_iterator():
    with make(batches=3) as feed:
        first = iter(feed)
        assert next(first).index == 0
        second = iter(feed.numpy())
        assert int(next(second)[1][0]) == 10000  # the first batch of the next epoch
        third = iter(feed)
        for ended in (first, second) * 2:
            with pytest.raises(tn.TenonError, match="another iteration over the feed has begun"):
                next(ended)
        assert [batch.epoch for batch in third] == [2] * 3
        assert [batch.epoch for batch in feed] == [3] * 3
        assert list(third) == []  # it was at its end


def test_a_loop_within_a_loop_over_the_same_feed_is_an_error():
    with make(batches=3) as feed, pytest.raises(tn.TenonError, match="make a feed for each"):
        for _ in feed:
            assert len([batch.index for batch in feed]) == 3


def test_another_iteration_does_not_take_a_batch_for_which_a_thread_waits():
    go = threading.Event()

    def fill(batch):
        go.wait(60)
        batch.x = batch.index

    with tn.Feed(fill, {"x": ("i8", (1,))}, batches=3, timeout=60) as feed:
        iterator, came = iter(feed), []
        thread = threading.Thread(target=lambda: came.extend(batch.index for batch in iterator))
        thread.start()
        try:
            until(lambda: iterator._is_in_next)
            with pytest.raises(tn.TenonError, match="another thread waits for a batch"):
                iter(feed)
        finally:
            go.set()
            thread.join()
        assert came == [0, 1, 2]


def test_end_makes_room_for_another_iterator():
    with make(batches=3) as feed:
        first = iter(feed)
        next(first)
        feed.end()
        assert list(first) == []
        assert [batch.epoch for batch in feed] == [1] * 3
        feed.end()


def test_breaking_out_of_the_loop_leaves_the_feed_whole():
    with make(batches=20, slots=4) as feed:
        for epoch in range(300):
            for batch in feed:
                assert is_whole(batch.data, batch.label, epoch, batch.index)
                if batch.index == epoch % 7:
                    break
            del batch
        assert feed.stats().slots_held == 0


def test_an_exception_in_the_loop_ends_the_epoch():
    with make(batches=20) as feed:
        for epoch in range(20):
            with pytest.raises(ZeroDivisionError):
                for batch in feed:
                    assert batch.epoch == epoch
                    1 / (batch.index - 3)
            del batch


def test_an_infinite_feed_has_no_length():
    with make() as feed, pytest.raises(TypeError, match="batches="):
        len(feed)
    with make(batches=0) as feed:
        assert len(feed) == len(feed.numpy()) == 0
        assert list(feed) == []


def test_a_feed_may_be_dropped_in_the_middle_of_an_epoch():
    for _ in range(30):
        iterator = iter(make(workers=2))
        next(iterator)
    del iterator


def test_closing_is_final_idempotent_and_ends_iteration():
    feed = make()
    iterator = iter(feed)
    batch = next(iterator)
    feed.close()
    feed.close()
    with pytest.raises(ValueError, match="the feed is closed"):
        next(iterator)
    with pytest.raises(ValueError, match="the feed is closed"):
        iter(feed)
    assert is_whole(batch.data, batch.label, 0, 0)


def test_closing_a_feed_whose_generator_does_not_return_is_a_timeout(gate):
    feed = at_gate(0)
    iterator = iter(feed)
    gate.await_waiting(1)
    with pytest.raises(TimeoutError, match=r"has not returned from batch 0 of epoch 0 .* left behind"):
        feed.close(0.01)
    gate.set(1)
    feed.close(60)
    del iterator


def test_closing_from_another_thread_wakes_the_consumer(gate):
    feed = at_gate(0)
    iterator = iter(feed)
    gate.await_waiting(1)
    errors = []

    def consume():
        try:
            next(iterator)
        except ValueError as error:
            errors.append(str(error))

    consumer = threading.Thread(target=consume)
    consumer.start()
    with pytest.raises(TimeoutError):
        feed.close(0.01)
    consumer.join()
    assert errors == ["the feed is closed"]
    gate.set(1)
    feed.close(60)


def test_short_epochs_leave_nothing_behind():
    epochs = 10_000
    with make(batches=2, slots=3) as feed:
        for _ in feed:
            pass
        before = resident()
        for _ in range(epochs):
            for _ in feed:
                pass
        grown = resident() - before
        assert feed.stats().batches == 2 * (epochs + 1)
    assert grown < 2**20, f"{grown} bytes in {epochs} epochs"


def resident():
    gc.collect()
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[1]) * os.sysconf("SC_PAGESIZE")


# ---------------------------------------------------------------------------- what is refused


def test_what_is_no_generator_or_schema_is_a_type_error():
    fields = tn.schema(**LABEL)
    with pytest.raises(TypeError, match=r"tn\.c_function"):
        tn.Feed(3, fields)
    with pytest.raises(TypeError, match="schema is 3: it must be a mapping of names"):
        tn.Feed(native(FILL), 3)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"processes": "threads"}, ValueError, "forked"),
        ({"on_error": "stop"}, ValueError, "on_error is 'stop'"),
        ({"workers": -1}, ValueError, "workers is -1"),
        ({"workers": 2, "slots": 2}, ValueError, "2 slots are too few for 2 workers"),
        ({"slots": 0}, ValueError, "0 slots are too few"),
        ({"seed": "a"}, TypeError, "seed is 'a': it must be an integer"),
        ({"batches": -1}, ValueError, "batches is -1"),
        ({"timeout": -1}, ValueError, "timeout is -1"),
        ({"timeout": float("nan")}, ValueError, "timeout is nan"),
        ({"slots": 2**31 - 1}, ValueError, "1 to 32767"),
        ({"slots": 4000, "workers": 3577}, ValueError, "at most 3576"),
    ],
)
def test_numbers_that_cannot_work_are_refused(options, error, message):
    with pytest.raises(error, match=message):
        make(**options)


@pytest.mark.parametrize(
    ("prototype", "constants", "error", "message"),
    [
        ("int fill(float *data)", {}, ValueError, "no parameter of 'fill' takes the field 'label'"),
        (
            "int fill(float *data, int64_t *label, int gain)",
            {},
            ValueError,
            "'gain' of 'fill' is not bound",
        ),
        ("int fill(double *data, int64_t *label)", {}, TypeError, "field 'data' is float32"),
        ("int fill(const float *data, int64_t *label)", {}, TypeError, "could not fill the field"),
        ("int64_t fill(float *data, int64_t *label)", {}, TypeError, "returns int64"),
        (
            "int fill(float *data, int64_t *label)",
            {"label": None},
            ValueError,
            "a field of the batch and a const",
        ),
    ],
)
def test_a_generator_that_does_not_fit_the_schema_is_refused(prototype, constants, error, message):
    with pytest.raises(error, match=message):
        make(prototype, constants=constants)


@pytest.mark.parametrize(
    ("fields", "error", "message"),
    [
        ({}, ValueError, "at least one field"),
        ({"data": ("f4", (4,)), "label": ("i8", (3,))}, ValueError, "'label' has 3 rows .* 'data' has 4"),
        ({"data": ("f4", (4, 0))}, ValueError, "empty"),
        ({"data": ("f4", ())}, ValueError, "no axis"),
        ({"data": ("q9", (4,))}, TypeError, "q9"),
        ({"data": "f4"}, TypeError, "a tuple"),
        ({"data": ("float4_e2m1fn", (4,))}, TypeError, "whole number of bytes"),
        ({"index": ("i8", (4,))}, ValueError, "cannot be named 'index'"),
        ({"rows": ("i8", (4,))}, ValueError, "cannot be named 'rows'"),
    ],
)
def test_a_schema_that_cannot_be_is_refused(fields, error, message):
    with pytest.raises(error, match=message):
        tn.schema(**fields)


def test_a_schema_tells_its_fields():
    fields = schema()
    assert fields.names == ("data", "label")
    assert fields.fields[0] == ("data", tn.float32, (4, 8))
    assert (len(fields), fields.rows, fields.nbytes) == (2, 4, 4 * 8 * 4 + 4 * 8)


def test_constants_are_kept_for_the_feed():
    constants = {"bad_index": 1, "code": 5}
    table = np.zeros(3)
    with make("int fill_label(int64_t *label, uint64_t index)", tn.schema(**LABEL), constants={}) as feed:
        next(iter(feed))
    prototype = "int fail_at(int64_t *label, uint64_t index, uint64_t epoch, uint64_t bad_index, int code)"
    with make(prototype, tn.schema(**LABEL), constants=constants) as feed:
        del constants
        with pytest.raises(tn.OpError):
            list(feed)
    assert tn._core.references([table]) == 1  # of the variable


def test_statistics_add_up():
    with make(slots=6, workers=2, batches=50) as feed:
        iterator = iter(feed)
        held = next(iterator)
        for _ in range(9):
            next(iterator)
        s = feed.stats()
        assert s.slots == s.slots_free + s.slots_filling + s.slots_ready + s.slots_held == 6
        assert (s.slots_held, s.batches, s.nbytes) == (1, 10, 10 * feed.schema.nbytes)
        assert s.fill_ns > 0
        assert "10 batches, 2 workers, 6 slots" in repr(feed)
        del held


# --------------------------------------------------------------------------- other processes

PREAMBLE = f"""
import os, signal, sys, threading
import tenon as tn
def native(prototype, **options):
    return tn.c_function(os.environ[{native_library.PATH_VARIABLE!r}], prototype, threadsafe=True, **options)
SCHEMA = tn.schema(label=("i8", (4,)))
def endless(**options):
    return tn.Feed(native("int fill_label(int64_t *label, uint64_t index)"), SCHEMA, workers=2, **options)
def stuck():
    native("void set_gate(int open)")(0)
    prototype = "int fill_at_gate(int64_t *label, uint64_t index, uint64_t from)"
    return tn.Feed(native(prototype, **{{"from": 1}}), SCHEMA)
"""


# CPython 3.12 and later warn of a fork beside threads, which is what one of these programs is about.
FORK_IS_MEANT = ("-W", "ignore::DeprecationWarning")


def start(script):
    environment = {**os.environ, native_library.PATH_VARIABLE: native_library.generators()}
    return subprocess.Popen(
        [sys.executable, *FORK_IS_MEANT, "-c", PREAMBLE + textwrap.dedent(script)],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def run(script):
    process = start(script)
    out, err = process.communicate(timeout=600)
    return process.returncode, out, err


def test_a_program_ends_with_live_feeds_and_running_workers():
    code, out, err = run("""
        feed = endless()
        iterator = iter(feed)
        kept = [next(iterator) for _ in range(3)]
        other = tn.from_numpy(__import__("numpy").asarray(next(iter(endless())).label))
        print("end")
    """)
    assert (code, out, err) == (0, "end\n", "")


@pytest.mark.slow
def test_a_program_ends_although_a_generator_does_not_return():
    code, out, err = run("""
        iterator = iter(stuck())
        next(iterator)
        native("void await_waiting(int n)")(1)
        print("end")
    """)
    assert (code, out) == (0, "end\n")
    assert "its thread is left behind" in err


def test_a_forked_child_gets_an_error_and_does_not_hang():
    code, out, err = run("""
        feed = endless()
        iterator = iter(feed)
        batch = next(iterator)
        child = os.fork()
        if child == 0:
            try:
                next(iterator)
            except ValueError as error:
                print(error)
            del batch, iterator
            feed.close()
            print([int(b.label[0]) for b in endless(batches=3)])
            sys.exit(0)
        print("child:", os.waitpid(child, 0)[1])
        print(next(iterator).index)
    """)
    assert err == ""
    lines = out.splitlines()
    assert "belongs to the parent process" in lines[0]
    assert lines[1:] == ["[0, 1, 2]", "child: 0", "1"]
    assert code == 0


def test_a_forked_child_calls_a_function_that_a_thread_of_the_parent_is_in():
    code, out, err = run(f"""
        path = os.environ[{native_library.PATH_VARIABLE!r}]
        fill = tn.c_function(path, "int fill_at_gate(int64_t *label, uint64_t index, uint64_t from)")
        native("void set_gate(int open)")(0)
        threading.Thread(target=fill, args=(tn.zeros(1, "i8"), 1, 1), daemon=True).start()
        native("void await_waiting(int n)")(1)
        child = os.fork()
        if child == 0:
            label = tn.zeros(1, "i8")
            fill(label, 7, 8)
            print(label[0].item(), flush=True)
            os._exit(0)
        print("child:", os.waitpid(child, 0)[1])
        native("void set_gate(int open)")(1)
    """)
    assert (code, out, err) == (0, "7\nchild: 0\n", "")


def test_ctrl_c_interrupts_closing_a_feed_whose_generator_does_not_return():
    process = start("""
        feed = stuck()
        iterator = iter(feed)
        next(iterator)
        native("void await_waiting(int n)")(1)
        try:
            print("closing", flush=True)
            feed.close(timeout=600)
        except KeyboardInterrupt:
            print("interrupted", flush=True)
        native("void set_gate(int open)")(1)
    """)
    assert process.stdout.readline() == "closing\n"
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=600)
    assert (process.returncode, out, err) == (0, "interrupted\n", "")


def test_ctrl_c_interrupts_a_wait_for_a_generator():
    process = start("""
        iterator = iter(stuck())
        next(iterator)
        try:
            print("waiting", flush=True)
            next(iterator)
        except KeyboardInterrupt:
            print("interrupted")
        native("void set_gate(int open)")(1)
    """)
    assert process.stdout.readline() == "waiting\n"
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=600)
    assert (process.returncode, out, err) == (0, "interrupted\n", "")
