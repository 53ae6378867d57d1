# SPDX-License-Identifier: Apache-2.0
"""Ops from Python: order, results, failures, native functions, engines, the end of a program."""

import asyncio
import os
import random
import subprocess
import sys
import textwrap
import threading

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
        tn.push(append, tn.inout(a), i)
    tn.waitall()
    assert seen == [(i, i) for i in range(50)]


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
    assert tn.push(lambda x: x.flags.writeable, tn.inout(a)).result() is True
    assert tn.push(lambda x: x.flags.writeable, a, writes=[a]).result() is True


def test_methods_of_an_array_wait_for_what_was_pushed():
    a = tn.zeros(1000)
    gate = threading.Event()
    if tn._core.engine_name() == "pool":
        tn.push(lambda x: (gate.wait(10), x.fill(7)), tn.out(a))
        threading.Timer(0.05, gate.set).start()
    else:
        tn.push(lambda x: x.fill(7), tn.out(a))
    assert a[999].item() == 7
    a[...] = 1
    tn.push(tn.fill, tn.inout(a), 2)
    assert np.asarray(a)[0] == 2


def test_a_failure_is_sticky_until_the_array_is_overwritten():
    a, b = tn.zeros(2), tn.zeros(2)
    op = tn.push(fail, tn.inout(a))
    dependant = tn.push(tn.copy, a, tn.out(b))
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
    tn.push(tn.copy, a, tn.out(b)).wait()
    assert b.tolist() == [1, 1]


def test_waitall_raises_a_group_of_the_roots_once():
    a, b, c = tn.zeros(2), tn.zeros(2), tn.zeros(2)
    tn.push(fail, tn.inout(a))
    tn.push(fail, tn.inout(b))
    tn.push(tn.copy, a, tn.out(c))
    with pytest.raises(ExceptionGroup) as caught:
        tn.waitall()
    assert len(caught.value.exceptions) == 2
    assert all(isinstance(error, tn.OpError) for error in caught.value.exceptions)
    tn.waitall()
    with pytest.raises(tn.OpError):
        c.tolist()


def test_a_body_that_touches_what_it_has_not_declared_fails_and_says_so():
    a, b = tn.zeros(2), tn.zeros(2)
    with pytest.raises(tn.OpError, match="reads= or writes="):
        tn.push(lambda x: b.tolist(), a).wait()
    assert tn.push(lambda x: b.tolist(), a, reads=[b]).result() == [0, 0]
    assert tn.push(lambda x: tn.ones(2).tolist(), a).result() == [1, 1]


def test_a_body_may_not_wait():
    a = tn.zeros(2)
    other = tn.push(tn.fill, tn.out(tn.zeros(1)), 1)
    other.wait()
    with pytest.raises(tn.OpError, match="may not wait"):
        tn.push(lambda x: tn.waitall(), a).wait()


def test_a_view_that_outlives_the_body_fails_the_op():
    a = tn.zeros(2)
    kept = []
    with pytest.raises(tn.OpError, match="lives on after it"):
        tn.push(kept.append, tn.inout(a)).wait()
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
    tn.push(scale, b, tn.out(a), 8, 2.0).wait()
    assert a.tolist() == [6.0] * 8


@pytest.mark.parametrize(
    ("arguments", "kind", "words"),
    [
        (lambda a: (3,), TypeError, "runs a function"),
        (lambda a: (tn.fill, tn.out(np.zeros(3))), TypeError, "writes to an NDArray, not to ndarray"),
        (lambda a: (tn.fill, tn.out(a.readonly()), 1), BufferError, "read-only"),
    ],
)
def test_what_cannot_be_pushed_is_refused_at_once(arguments, kind, words):
    a = tn.zeros(2)
    with pytest.raises(kind, match=words):
        tn.push(*arguments(a))
    with pytest.raises(ValueError, match="on_conflict"):
        tn.push(tn.fill, tn.out(a), 1, on_conflict="perhaps")
    with pytest.raises(ValueError, match="host"):
        tn.push(tn.fill, tn.out(a), 1, host="busy")


def test_ops_are_awaitable(engine):
    if engine == "seeded:5":
        pytest.skip("nobody would run the op while the loop sleeps")
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
        first = arrays[a] if a != c else tn.inout(arrays[a])
        second = arrays[b] if b != c else tn.inout(arrays[b])
        tn.push(mix, first, second, tn.inout(arrays[c]), i)
    tn.waitall()
    assert [int(array[0]) for array in arrays] == serial, seed


def test_engines_are_named():
    with pytest.raises(ValueError, match="bogus"):
        tn.set_engine("bogus")


# --------------------------------------------------------------------------- other processes


def run(script, **options):
    return subprocess.run(
        [sys.executable, "-W", "ignore::DeprecationWarning", "-c", textwrap.dedent(script)],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, **options},
    )


def test_a_program_ends_with_queued_ops_and_live_views():
    done = run("""
        import time, numpy as np, tenon as tn
        a, b = tn.zeros(3), tn.zeros(3)
        x = np.asarray(b)
        lease = a.lease("w")
        ops = [tn.push(tn.fill, tn.inout(a), i) for i in range(100)]
        print("end", flush=True)
        begin = time.monotonic()
        import atexit
    """)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "end\n"
    assert "ops are left behind at exit" in done.stderr


def test_a_forked_child_runs_ops_of_its_own_and_none_of_the_parent_s():
    done = run("""
        import os, threading, tenon as tn
        gate, entered = threading.Event(), threading.Event()
        a, b = tn.zeros(3), tn.zeros(3)
        def slow(x):
            entered.set()
            gate.wait()
            x += 1
        op = tn.push(slow, tn.inout(a))
        behind = tn.push(tn.fill, tn.inout(a), 5)
        entered.wait()
        child = os.fork()
        if child == 0:
            try:
                a.tolist()
            except tn.OpError as error:
                print("process forked" in str(error), behind.done())
            tn.push(tn.fill, tn.out(b), 2).wait()
            a[...] = 7
            print(a.tolist(), b.tolist(), flush=True)
            os._exit(0)
        print("child:", os.waitpid(child, 0)[1])
        gate.set()
        behind.wait()
        print(a.tolist(), b.tolist())
    """)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines == [
        "True True",
        "[7.0, 7.0, 7.0] [2.0, 2.0, 2.0]",
        "child: 0",
        "[5.0, 5.0, 5.0] [0.0, 0.0, 0.0]",
    ], (lines, done.stderr)


def test_the_engine_may_be_named_by_the_environment():
    done = run("import tenon as tn; print(tn.set_engine('inline')._before)", TENON_ENGINE="seeded:9")
    assert done.stdout == "seeded:9\n", done.stderr
