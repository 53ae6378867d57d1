# SPDX-License-Identifier: Apache-2.0
"""Ops from Python: order, results, failures, native functions, waits."""

import asyncio
import random
import sys
import threading
import time

import native_library
import numpy as np
import pytest

import tenon as tn

pytestmark = pytest.mark.usefixtures("nothing_stays_behind")

ENGINES = ["pool", "inline", "seeded:5"]


@pytest.fixture(params=ENGINES, autouse=True)
def engine(request, nothing_stays_behind):
    with tn.set_engine(request.param):
        yield request.param
        try:
            tn.waitall(20)
        except ExceptionGroup:
            pass


def fail(*_):
    raise RuntimeError("this op fails")


def test_ops_on_one_array_run_in_the_order_of_their_push():
    a = tn.zeros(1, "i8")
    seen = []

    def append(v, i):
        seen.append((int(v[0]), i))
        v[0] += 1

    for i in range(50):
        op = tn.push(append, tn.write(a), i)
    op.wait()
    assert seen == [(i, i) for i in range(50)]


def test_a_thread_that_waits_with_the_gil_runs_the_body_itself():
    a = tn.zeros(1)
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1000)  # no other thread gets the GIL before this one gives it up
    try:
        threads = set()
        for _ in range(200):
            op = tn.push(lambda v: threads.add(threading.get_ident()), a)
            for _ in range(2000):
                pass  # a worker takes the op meanwhile
            op.wait()
    finally:
        sys.setswitchinterval(interval)
    assert threads == {threading.get_ident()}


def test_a_result_is_what_the_function_returned():
    a = tn.ones(4)
    op = tn.push(lambda x, k: float(x.sum()) * k, a, 3, name="sum")
    assert op.result() == 12
    assert op.done()
    assert op.exception() is None
    assert repr(op) == "<tenon.Op 'sum', done>"


def test_arrays_that_are_read_are_read_only_in_the_body():
    a = tn.ones(2)
    assert tn.push(lambda x: x.flags.writeable, a).result() is False
    assert tn.push(lambda x: x.flags.writeable, tn.write(a)).result() is True
    assert tn.push(lambda x: x.flags.writeable, a, writes=[a]).result() is True


def test_methods_of_an_array_wait_for_what_was_pushed():
    a = tn.zeros(1000)
    gate = threading.Event()
    if tn._core.engine_name() == "pool":
        tn.push(lambda x: (gate.wait(600), x.fill(7)), tn.overwrite(a))
        threading.Timer(0.05, gate.set).start()
    else:
        tn.push(lambda x: x.fill(7), tn.overwrite(a))
    assert a[999].item() == 7
    a[...] = 1
    tn.push(tn.fill, tn.write(a), 2)
    assert np.asarray(a)[0] == 2


def test_a_failure_is_sticky_until_the_array_is_overwritten():
    a, b = tn.zeros(2), tn.zeros(2)
    op = tn.push(fail, tn.write(a))
    dependant = tn.push(tn.copy, a, tn.overwrite(b))
    for _ in range(2):
        with pytest.raises(tn.OpError) as caught:
            dependant.wait()
        assert caught.value.op == "fail"
        assert "RuntimeError: this op fails" in str(caught.value)
        assert isinstance(caught.value.__cause__, RuntimeError)
        assert __file__ in caught.value.site
    assert isinstance(op.exception(), tn.OpError)
    for use in (a.tolist, b.tolist, a.wait_to_read, lambda: np.asarray(b)):
        with pytest.raises(tn.OpError, match="this op fails"):
            use()
    a[...] = 1
    tn.push(tn.copy, a, tn.overwrite(b)).wait()
    assert b.tolist() == [1, 1]


def test_waitall_raises_a_group_of_the_roots_once():
    a, b, c = tn.zeros(2), tn.zeros(2), tn.zeros(2)
    tn.push(fail, tn.write(a))
    tn.push(fail, tn.write(b))
    tn.push(tn.copy, a, tn.overwrite(c))
    with pytest.raises(ExceptionGroup) as caught:
        tn.waitall()
    assert len(caught.value.exceptions) == 2
    assert all(isinstance(error, tn.OpError) for error in caught.value.exceptions)
    tn.waitall()
    with pytest.raises(tn.OpError):
        c.tolist()


def test_a_body_that_touches_what_it_has_not_declared_fails_and_says_so():
    a, b = tn.zeros(2), tn.zeros(2)
    with pytest.raises(tn.OpError, match="reads= of the push, or in writes="):
        tn.push(lambda x: b.tolist(), a).wait()
    assert tn.push(lambda x: b.tolist(), a, reads=[b]).result() == [0, 0]
    assert tn.push(lambda x: tn.ones(2).tolist(), a).result() == [1, 1]


def test_a_body_may_not_wait():
    a = tn.zeros(2)
    other = tn.push(tn.fill, tn.overwrite(tn.zeros(1)), 1)
    other.wait()
    with pytest.raises(tn.OpError, match="may not wait"):
        tn.push(lambda x: tn.waitall(), a).wait()


def test_a_view_that_outlives_the_body_fails_the_op():
    a = tn.zeros(2)
    kept = []
    with pytest.raises(tn.OpError, match="lives on after it"):
        tn.push(kept.append, tn.write(a)).wait()
    kept.clear()
    a[...] = 0


def test_a_native_function_reads_what_is_const_and_writes_the_rest():
    scale = tn.c_function(
        native_library.generators(),
        "int scale(const float *source, float *destination, size_t n, float factor)",
    )
    a, b = tn.ones(8), tn.zeros(8)
    held = np.asarray(a.readonly())
    tn.push(scale, a, b, 8, 3.0).wait()
    assert b.tolist() == [3.0] * 8
    with pytest.raises(tn.LeaseConflict):
        tn.push(scale, b, a, 8, 3.0)
    del held
    tn.push(scale, b, tn.overwrite(a), 8, 2.0).wait()
    assert a.tolist() == [6.0] * 8


@pytest.mark.parametrize(
    ("arguments", "kind", "words"),
    [
        (lambda a: (3,), TypeError, "runs a function"),
        (lambda a: (tn.fill, tn.overwrite(np.zeros(3))), TypeError, "writes to an NDArray, not to ndarray"),
        (lambda a: (tn.fill, tn.overwrite(a.readonly()), 1), BufferError, "read-only"),
    ],
)
def test_what_cannot_be_pushed_is_refused_at_once(arguments, kind, words):
    a = tn.zeros(2)
    with pytest.raises(kind, match=words):
        tn.push(*arguments(a))
    with pytest.raises(ValueError, match="on_conflict"):
        tn.push(tn.fill, tn.overwrite(a), 1, on_conflict="perhaps")


def test_ops_are_awaitable():
    a = tn.ones(3)

    async def main():
        assert await tn.push(lambda x: 42, a) == 42
        with pytest.raises(tn.OpError):
            await tn.push(fail, a)
        return await asyncio.gather(*(tn.push(lambda x, i: i, a, i) for i in range(10)))

    assert asyncio.run(main()) == list(range(10))


def test_random_programs_give_what_the_serial_order_gives():
    seed = random.randrange(2**32)
    rng = random.Random(seed)
    arrays = [tn.full(1, i, "i8") for i in range(8)]
    serial = list(range(8))

    def mix(x, y, z, i):
        z[0] = (int(x[0]) * 31 + int(y[0]) * 17 + i) % 1_000_003

    for i in range(200):
        a, b, c = (rng.randrange(8) for _ in range(3))
        serial[c] = (serial[a] * 31 + serial[b] * 17 + i) % 1_000_003
        first = arrays[a] if a != c else tn.write(arrays[a])
        second = arrays[b] if b != c else tn.write(arrays[b])
        tn.push(mix, first, second, tn.write(arrays[c]), i)
    tn.waitall()
    assert [int(array[0]) for array in arrays] == serial, seed


def test_engines_are_named():
    with pytest.raises(ValueError, match="bogus"):
        tn.set_engine("bogus")


def test_arrays_without_elements_are_uses_like_others():
    a, b = tn.zeros((0, 3)), tn.zeros(4)
    assert tn.push(lambda x: x.shape, a).result() == (0, 3)
    assert tn.push(lambda x, y: (x.shape, y.shape), tn.overwrite(b[2:2]), tn.write(a)).result() == (
        (0,),
        (0, 3),
    )


def test_a_lease_of_the_waiter_allows_nothing_to_a_body_that_it_runs():
    a, b = tn.zeros(3), tn.zeros(3)
    with b.write():
        op = tn.push(lambda x: b.tolist(), a)
        with pytest.raises(tn.OpError, match="has not declared it"):
            op.wait()


def test_a_lease_that_a_body_keeps_fails_the_op():
    a = tn.zeros(3)
    kept = []
    with pytest.raises(tn.OpError, match="lives on after it"):
        tn.push(lambda x: kept.append(a.lease("w")), tn.write(a)).wait()
    kept.pop().release()
    a[...] = 0


def test_a_wait_with_a_timeout_does_not_run_the_body(engine):
    if engine != "pool":
        pytest.skip("the body would run in this thread")
    a, b = tn.zeros(3), tn.zeros(3)
    gate = threading.Event()
    with tn.set_engine("pool", 1):
        busy = tn.push(lambda x: gate.wait(600), a)
        op = tn.push(lambda x: gate.wait(600), b)
        with pytest.raises(TimeoutError):
            op.wait(timeout=0.05)
        gate.set()
        busy.wait()
        op.wait()


def test_a_part_that_is_overwritten_holds_a_value_again():
    a = tn.zeros((3, 2))
    tn.push(fail, tn.write(a)).exception()
    a[1] = 1
    assert a[1].tolist() == [1, 1]
    with pytest.raises(tn.OpError):
        a.tolist()
    a[0] = 1
    a[2] = 1
    assert a.tolist() == [[1, 1]] * 3


# ----------------------------------------------------------------------- native functions as ops


def native(prototype, **options):
    return tn.c_function(native_library.generators(), prototype, **options)


def test_a_native_body_runs_while_python_goes_on_and_its_result_comes_later(engine):
    if engine != "pool":
        pytest.skip("the body would run in this thread")
    set_gate, await_waiting = native("void set_gate(int open)"), native("void await_waiting(int n)")
    write = native("void write_at_gate(double *values, size_t n)", threadsafe=True)
    a = tn.zeros(4, "f8")
    set_gate(0)
    try:
        op = tn.push(write, a, 4)
        await_waiting(1)  # the body is inside, and this thread holds the interpreter's lock
        assert not op.done()
        assert "pending: op 'write_at_gate'" in repr(a)
    finally:
        set_gate(1)
    assert a.tolist() == [1] * 4
    assert op.result() is None
    assert tn.push(native("double half(float x)"), 3.0).result() == 1.5
    assert tn.push(native("uint64_t largest(void)")).result() == 2**64 - 1


def test_a_status_of_a_native_body_is_the_op_s_failure():
    a = tn.zeros(1, "i8")
    fail_at = native(
        "int fail_at(int64_t *label, uint64_t index, uint64_t epoch, uint64_t bad_index, int code)"
    )
    op = tn.push(fail_at, a, 3, 0, 3, 42)
    with pytest.raises(tn.OpError, match="'fail_at' returned 42") as caught:
        op.wait()
    assert caught.value.code == 42
    with pytest.raises(tn.OpError):
        a.tolist()
    tn.push(fail_at, tn.overwrite(a), 2, 0, 3, 42).wait()
    assert a.tolist() == [2]


@pytest.mark.parametrize(
    ("arguments", "kind", "words"),
    [
        ((tn.ones(4), tn.zeros(4), 4), TypeError, "takes 4 arguments, not 3"),
        ((tn.ones(4), tn.zeros(4, "i4"), 4, 1.0), TypeError, "cannot take an array of int32"),
        ((tn.ones(4), tn.zeros(4).readonly(), 4, 1.0), BufferError, "read-only"),
        ((tn.ones((4, 2))[:, 0], tn.zeros(4), 4, 1.0), BufferError, "in C order"),
        ((tn.ones(4), tn.zeros(4), -1, 1.0), OverflowError, "outside of the range"),
        ((tn.ones(4), "text", 4, 1.0), TypeError, "takes an array"),
    ],
)
def test_arguments_of_a_native_body_are_checked_by_the_push(arguments, kind, words):
    scale = native("int scale(const float *source, float *destination, size_t n, float factor)")
    with pytest.raises(kind, match=words):
        tn.push(scale, *arguments)


def test_constants_of_a_native_function_are_uses_of_the_op():
    table, result = tn.ones(4), tn.zeros(4)
    scale = native(
        "int scale(const float *source, float *destination, size_t n, float factor)", source=table, n=4
    )
    tn.push(tn.fill, tn.overwrite(table), 3)
    tn.push(scale, result, 2.0)
    tn.push(tn.fill, tn.overwrite(table), 9)
    assert result.tolist() == [6.0] * 4


def test_a_native_body_reads_a_numpy_array_which_is_read_only_meanwhile(engine):
    scale = native("int scale(const float *source, float *destination, size_t n, float factor)")
    x, result = np.ones(4, "f4"), tn.zeros(4)
    tn.push(scale, x, result, 4, 2.0).wait()
    assert result.tolist() == [2.0] * 4
    with pytest.raises(
        tn.LeaseConflict, match=r"To go on: call it without a push .* pass an NDArray .*mode='move'"
    ):
        tn.push(scale, result, x, 4, 1.0)
    tn.push(scale, result, x, 4, 3.0, on_conflict="ignore").wait()
    assert x.tolist() == [6.0] * 4
    assert x.flags.writeable


# -------------------------------------------------------------------------- waits that cannot end


def test_a_lone_thread_that_waits_behind_its_own_view_is_told(engine, in_a_process_with_one_thread):
    def wait_behind_own_view():
        a, b = tn.zeros(3), tn.zeros(3)
        x = np.asarray(a)
        op = tn.push(
            lambda v, w: (v.fill(1), w.fill(2)), tn.overwrite(a), tn.overwrite(b), on_conflict="wait"
        )
        for wait in (op.wait, b.tolist, tn.waitall, lambda: b.lease("r")):
            with pytest.raises(tn.DeadlockError, match=r"a writable view of it, taken at .*test_engine\.py"):
                wait()
        del x
        op.wait()
        assert b.tolist() == [2] * 3

    in_a_process_with_one_thread(wait_behind_own_view)


def test_waitall_sees_what_a_body_pushes_behind_the_caller_s_lease(engine):
    if engine != "pool":
        pytest.skip("the body would run in this thread")
    a, b = tn.zeros(3), tn.zeros(3)
    with a.write():
        tn.push(
            lambda x: (time.sleep(0.05), tn.push(tn.fill, tn.overwrite(a), 1)), tn.write(b), name="pusher"
        )
        with pytest.raises(tn.DeadlockError):
            tn.waitall()


def test_a_wait_behind_the_view_of_another_thread_waits_for_it(engine):
    a = tn.zeros(3)
    shown, seen = threading.Event(), threading.Event()

    def look():
        x = np.asarray(a)
        shown.set()
        seen.wait(600)
        del x

    thread = threading.Thread(target=look)
    thread.start()
    shown.wait()
    op = tn.push(tn.fill, tn.overwrite(a), 1, on_conflict="wait")
    threading.Timer(0.2, seen.set).start()
    op.wait()
    thread.join()
    assert a.tolist() == [1] * 3


def test_pushes_wait_when_ops_hold_too_much_memory(engine):
    if engine != "pool":
        pytest.skip("no other thread ends the ops")
    a, b = tn.zeros(1 << 20, "u1"), tn.zeros(1 << 20, "u1")
    gate = threading.Event()
    tn.set_engine_limits(nbytes=1 << 20)
    try:
        tn.push(lambda v: gate.wait(600), tn.write(a))
        threading.Timer(0.1, gate.set).start()
        tn.push(tn.fill, tn.overwrite(b), 1)
        assert gate.is_set(), "the push waited"
        tn.waitall()
    finally:
        tn.set_engine_limits(nbytes=1 << 34)
    with pytest.raises(ValueError, match="ops is -1: it must lie between 0"):
        tn.set_engine_limits(ops=-1)


def test_a_feed_goes_on_when_ops_hold_all_of_its_slots():
    def fill(batch):
        batch.x[...] = batch.index

    seen = []
    with tn.Feed(fill, {"x": ("f4", (8,))}, slots=2, batches=10) as feed:
        for batch in feed:
            tn.push(lambda x: seen.append(int(x[0])), batch.x)
            del batch
    tn.waitall()
    assert sorted(seen) == list(range(10))
