# SPDX-License-Identifier: Apache-2.0
"""A shared array can be sent to another process in every way in which Python sends objects. The memory is the
same."""

import concurrent.futures
import copy
import functools
import gc
import io
import multiprocessing as mp
import os
import pickle
import time

import numpy as np
import pytest
from other_process import SECONDS, Other

import tenon as tn

METHODS = ("fork", "forkserver", "spawn")
DTYPES = (
    "bool uint8 int8 uint16 int16 uint32 int32 uint64 int64 float16 float32 float64 complex64 complex128"
).split()

pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")


@pytest.fixture(params=METHODS)
def context(request):
    yield mp.get_context(request.param)
    for child in mp.active_children():
        child.join(SECONDS)


def end(process):
    process.join(SECONDS)
    assert process.exitcode == 0


def fill(array, value):
    array[...] = value


def fill_sent(receive, send):
    """Writes the arrays that it receives and sends them back, until None arrives."""
    while (message := receive()) is not None:
        array, value = message
        array[...] = value
        send((array, array.shape, array.strides, array.dtype.name))


def fill_queue(questions, answers):
    fill_sent(questions.get, answers.put)


def fill_pipe(pipe):
    fill_sent(pipe.recv, pipe.send)


def number_row(array, i):
    with array[i].write() as row:
        row[...] = i + 1
    return os.getpid()


def views_of(a):
    """Views of an array of shape (4, 6), each with its elements."""
    return {
        "whole": (a, np.s_[...]),
        "row": (a[2], np.s_[2]),
        "slice": (a[1:3], np.s_[1:3]),
        "strided": (a[::2, 1::3], np.s_[::2, 1::3]),
        "backwards": (a[::-1, ::-2], np.s_[::-1, ::-2]),
        "element": (a[3, 5:6].reshape(()), np.s_[3, 5]),
    }


@pytest.mark.slow
def test_an_argument_of_a_process_is_the_same_memory(context):
    a = tn.zeros((4, 6), "int32", shared=True)
    process = context.Process(target=fill, args=(a[1:3, ::2], 7))
    process.start()
    end(process)
    expected = np.zeros((4, 6), "int32")
    expected[1:3, ::2] = 7
    assert a.tolist() == expected.tolist()


@pytest.mark.slow
@pytest.mark.parametrize("way", ["queue", "pipe"])
def test_views_go_to_a_process_that_runs_and_come_back(context, way):
    if way == "queue":
        questions, answers = context.Queue(), context.Queue()
        process = context.Process(target=fill_queue, args=(questions, answers))
        send, receive = questions.put, functools.partial(answers.get, timeout=SECONDS)
    else:
        pipe, theirs = context.Pipe()
        process = context.Process(target=fill_pipe, args=(theirs,))
        send, receive = pipe.send, pipe.recv
    process.start()
    a = tn.zeros((4, 6), "int64", shared=True)
    expected = np.zeros((4, 6), "int64")
    for value, (view, window) in enumerate(views_of(a).values(), 1):
        send((view, value))
        back, shape, strides, dtype = receive()
        expected[window] = value
        assert a.tolist() == expected.tolist()
        assert (back.data_ptr, back.shape, back.strides) == (view.data_ptr, view.shape, view.strides)
        assert (shape, strides, dtype) == (view.shape, view.strides, "int64")
    for empty in (tn.zeros((0, 3), "float32", shared=True), a[2:2], a[:, 6:]):
        send((empty, 1))
        back, shape, _, _ = receive()
        assert back.shape == shape == empty.shape
    send(None)
    end(process)


@pytest.mark.slow
def test_workers_of_a_pool_that_run_already_fill_rows(context):
    with context.Pool(2) as pool:
        pool.map(abs, range(4))  # they run
        a = tn.zeros((32, 1000), "int32", shared=True)
        pool.starmap_async(number_row, [(a, i) for i in range(32)]).get(SECONDS)
        assert (a.asnumpy() == np.arange(1, 33)[:, None]).all()
        pool.close()
        pool.join()


@pytest.mark.slow
def test_an_executor_of_concurrent_futures_fills_rows(context):
    a = tn.zeros((8, 10), "float32", shared=True)
    with concurrent.futures.ProcessPoolExecutor(2, mp_context=context) as executor:
        list(executor.map(functools.partial(number_row, a), range(8), timeout=SECONDS))
    assert (a.asnumpy() == np.arange(1, 9)[:, None]).all()


@pytest.mark.slow
@pytest.mark.parametrize("dtype", DTYPES)
def test_every_dtype_keeps_its_elements(dtype, other):
    values = np.array([[0, 1, 2], [1, 0, 1]]).astype(dtype)
    a = tn.zeros((2, 3), dtype, shared=True)
    a[...] = values
    assert other.ask("a.dtype.name, a.asnumpy().tobytes()", a=a[:, ::-1]) == (
        a.dtype.name,
        values[:, ::-1].tobytes(),
    )


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["bfloat16", "float8_e4m3fn", "float4_e2m1fn", "float32_x2"])
def test_dtypes_that_numpy_lacks_keep_their_bits(dtype, other):
    a = tn.zeros((2, 4), dtype, shared=True)
    assert other.ask("a.dtype.name, a.shape, a.nbytes", a=a) == (a.dtype.name, a.shape, a.nbytes)


@pytest.mark.slow
@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_every_protocol_of_pickle_carries_the_handle(protocol, other):
    a = tn.zeros(3, "int8", shared=True)
    other.ask("import pickle; pickle.loads(data)[...] = 5", data=pickle.dumps(a, protocol))
    assert a.tolist() == [5, 5, 5]


def test_a_dtype_that_is_none_is_refused():
    with pytest.raises(TypeError, match="unknown dtype 'int4'"):
        tn.zeros(4, "int4", shared=True)


def test_a_handle_in_a_file_is_opened_by_an_unrelated_interpreter(tmp_path, other):
    a = tn.zeros(3, "int8", shared=True)
    (tmp_path / "handle").write_bytes(pickle.dumps({"rows": [a[1:], a[:1]]}))
    other.ask(
        "import pickle; rows = pickle.load(open(path, 'rb'))['rows']; rows[0][...] = 2; rows[1][...] = 1",
        path=str(tmp_path / "handle"),
    )
    assert a.tolist() == [1, 2, 2]


def test_an_array_goes_on_from_hand_to_hand(other, another):
    a = tn.zeros(3, "int8", shared=True)
    b = other.ask("a", a=a)
    assert b.data_ptr == a.data_ptr
    del a
    another.ask("b[1] = 4", b=b)
    assert other.ask("a.tolist()") == [0, 4, 0]


def test_cloudpickle_carries_an_array_in_a_function(other):
    cloudpickle = pytest.importorskip("cloudpickle")
    a = tn.zeros(3, "int8", shared=True)

    def set_all(value):
        a[...] = value

    other.ask("import pickle; pickle.loads(data)(6)", data=cloudpickle.dumps(set_all))
    assert a.tolist() == [6, 6, 6]


@pytest.mark.slow
def test_workers_of_joblib_fill_rows():
    joblib = pytest.importorskip("joblib")
    a = tn.zeros((8, 300_000), "float32", shared=True)  # of a size that joblib writes to files
    with joblib.parallel_config(backend="loky", n_jobs=2):
        joblib.Parallel()(joblib.delayed(number_row)(a, i) for i in range(8))
    joblib.externals.loky.get_reusable_executor().shutdown()
    assert (a.asnumpy() == np.arange(1, 9)[:, None]).all()


def test_copies_are_copies():
    a = tn.ones(3, "int8", shared=True)
    for other in (copy.copy(a), copy.deepcopy(a), a.copy(), a.snapshot(), a.astype("int8")):
        other[...] = 2
        assert not other.shared
    assert a.tolist() == [1, 1, 1] and a.shared


def test_a_pickle_keeps_the_array_of_a_sender_that_has_dropped_it(other):
    data = pickle.dumps(tn.full(1000, 3, "int16", shared=True))
    gc.collect()
    for _ in range(20):  # what is freed too early would be taken by these
        tn.zeros(1000, "int16", shared=True)
    assert other.ask("import pickle; a = pickle.loads(data); a.tolist()[::500]", data=data) is None
    assert other.ask("a.tolist()[::500]") == [3, 3]


def test_what_a_queue_sends_may_be_dropped_at_once(context):
    questions, answers = context.Queue(), context.Queue()
    process = context.Process(target=fill_queue, args=(questions, answers))
    process.start()
    for value in range(50):
        questions.put((tn.zeros(100, "int32", shared=True), value))
    for value in range(50):
        assert answers.get(timeout=SECONDS)[0].tolist() == [value] * 100
    questions.put(None)
    end(process)


def test_a_pickle_may_be_opened_twice(other, another):
    a = tn.zeros(2, "int8", shared=True)
    data = pickle.dumps(a)
    first, second = pickle.loads(data), pickle.loads(data)
    other.ask("import pickle; a = pickle.loads(data); b = pickle.loads(data); a[0] = 1", data=data)
    another.ask("import pickle; a = pickle.loads(data); a[1] = 2", data=data)
    assert first.tolist() == second.tolist() == a.tolist() == other.ask("b.tolist()") == [1, 2]


def gone(data):
    """The error of the first use after the array does not exist any more."""
    for _ in range(600):
        try:
            pickle.loads(data).tolist()
        except FileNotFoundError as error:
            return str(error)
        gc.collect()
        time.sleep(0.1)
    pytest.fail("it is still there")


def test_opened_after_all_is_gone_it_says_so():
    a = tn.zeros(2, "int8", shared=True)
    data = pickle.dumps(a)
    del a
    assert "all processes have released it" in gone(data)


def test_opened_after_its_only_process_has_ended_it_says_so():
    with Other() as other:
        other.ask("import pickle; a = tn.zeros(2, shared=True)")
        data = other.ask("pickle.dumps(a)")
        pid = other.pid
        assert pickle.loads(data).tolist() == [0, 0]
        gc.collect()
        other.kill()
    message = gone(data)
    assert "have released it" in message or ("no process has it any more" in message and str(pid) in message)


@pytest.mark.parametrize("damage", ["cut", "empty", "turned", "long"])
def test_what_is_no_handle_is_refused(damage):
    a = tn.zeros(2, "int8", shared=True)
    handle = tn._core.send_array(a)
    bad = {
        "cut": handle[:-3],
        "empty": b"",
        "turned": bytes([handle[0] ^ 1]) + handle[1:],
        "long": handle + b"x",
    }[damage]
    with pytest.raises(ValueError, match="handle"):
        tn._core.open_array(bad)
    assert tn._core.open_array(handle).tolist() == [0, 0]


def test_readonly_stays_readonly(other):
    a = tn.ones(3, "int8", shared=True)
    assert other.ask("a.writable", a=a.readonly()) is False
    with pytest.raises(ValueError, match="read-only"):
        other.ask("a[0] = 1")
    with pytest.raises(tn.LeaseConflict):
        other.ask("np.asarray(a)")
    assert other.ask("a.tolist()") == [1, 1, 1]


def test_an_array_over_out_of_band_pickles_stays_a_handle():
    a = tn.zeros((100, 100), shared=True)
    buffers = []
    data = pickle.dumps(a, 5, buffer_callback=buffers.append)
    assert not buffers and len(data) < 2000
    stream = io.BytesIO()
    pickle.Pickler(stream, 5).dump(a)
    assert pickle.loads(stream.getvalue()).data_ptr == a.data_ptr


@pytest.mark.slow
def test_many_arrays_go_through_a_queue():
    context = mp.get_context("spawn")
    questions, answers = context.Queue(), context.Queue()
    process = context.Process(target=fill_queue, args=(questions, answers))
    process.start()
    n, in_flight = (100_000 if os.environ.get("TENON_SOAK") else 2_000), 50
    for i in range(n + in_flight):
        if i < n:
            questions.put((tn.zeros(16, "int32", shared=True), i))
        if i >= in_flight:
            back = answers.get(timeout=SECONDS)[0]
            assert back.tolist() == [i - in_flight] * 16
    questions.put(None)
    end(process)
