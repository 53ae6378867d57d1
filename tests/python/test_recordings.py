# SPDX-License-Identifier: Apache-2.0
"""Functions that are recorded and replayed as one op: `record`, `push_many`."""

import asyncio
import gc
import random
import threading
import time
import weakref

import native_library
import numpy as np
import pytest

import tenon as tn

pytestmark = pytest.mark.usefixtures("nothing_stays_behind")


@pytest.fixture(params=["pool", "inline", "seeded:5"], autouse=True)
def engine(request, nothing_stays_behind):
    with tn.set_engine(request.param):
        yield request.param
        try:
            tn.waitall(20)
        except ExceptionGroup:
            pass


def fail(*_):
    raise RuntimeError("this body fails")


def wait_until_gone(alive):
    end = time.monotonic() + 60
    while alive() is not None and time.monotonic() < end:
        gc.collect()
        time.sleep(0.01)
    assert alive() is None


def test_replays_have_the_result_of_the_functions_one_after_the_other():
    choose = random.Random(3)
    for _ in range(20):
        arrays = [tn.ones(4, "i8") for _ in range(3)]
        model = [np.ones(4, "i8") for _ in range(3)]
        steps = []
        for _ in range(choose.randrange(1, 12)):
            source, target = choose.sample(range(3), 2)
            rows = slice(choose.randrange(3), choose.randrange(3, 5))
            steps.append((source, target, rows, choose.randrange(100)))

        def mix(x, y, k):
            y[:] = (3 * y + x.sum() + k) % 1009

        with tn.record() as loop:
            for source, target, rows, k in steps:
                loop.push(mix, arrays[source], tn.write(arrays[target][rows]), k)
        assert len(loop) == len(steps)
        for _ in range(5):
            loop.replay()
            tn.push(np.add, arrays[0], 1, out=tn.write(arrays[0]))
            for source, target, rows, k in steps:
                mix(model[source], model[target][rows], k)
            model[0] += 1
        assert [a.tolist() for a in arrays] == [m.tolist() for m in model]


def test_push_many_is_one_op():
    a, b = tn.zeros(3), tn.zeros(3)
    op = tn.push_many([(tn.fill, tn.overwrite(a), 2), (np.add, a, 1, tn.overwrite(b))], name="both")
    assert op.result() is None
    assert op.name == "both"
    assert b.tolist() == [3, 3, 3]
    tn.push_many([]).wait()


def test_keywords_and_lists_of_arrays_are_those_of_push():
    a, b, c = tn.ones(3), tn.zeros(3), tn.zeros(3)

    def total(*, scale):
        with b.write() as v:
            v[:] = a.numpy() * scale

    with tn.record() as loop:
        loop.push(np.add, a, 1, out=tn.write(a))
        loop.push(total, reads=[a], writes=[b], scale=10, name="total")
        loop.push(np.copyto, c, b, writes=[c])
    loop.replay().wait()
    assert b.tolist() == [20, 20, 20]
    assert c.tolist() == [20, 20, 20]


def test_native_functions_are_recorded(tmp_path):
    source = (
        "int scale(double *x, long n, double f) { for (long i = 0; i < n; i++) x[i] *= f; return f == 0; }"
    )
    (tmp_path / "scale.c").write_text(source)
    library = native_library.compiled(tmp_path / "scale.c")
    scale = tn.c_function(library, "int scale(double *x, long n, double f)", threadsafe=True)
    a = tn.ones(4, "f8")
    with tn.record() as loop:
        loop.push(scale, tn.write(a), 4, 2.0)
        loop.push(scale, tn.write(a[:2]), 2, 5.0)
    for _ in range(3):
        loop.replay()
    assert a.tolist() == [1000, 1000, 8, 8]
    with tn.record() as bad:
        bad.push(scale, tn.write(a), 4, 0.0)
    with pytest.raises(tn.OpError, match="scale") as raised:
        bad.replay().wait()
    assert raised.value.code == 1


def test_a_failure_fails_the_replay_with_the_function_and_its_line():
    a, b, c = tn.zeros(2), tn.zeros(2), tn.zeros(2)
    late = []
    with tn.record() as loop:
        loop.push(tn.fill, tn.overwrite(a), 1)
        loop.push(fail, tn.overwrite(b), a, name="second")
        loop.push(lambda y, z: late.append(1), b, tn.overwrite(c))
    op = loop.replay()
    with pytest.raises(tn.OpError, match="this body fails") as raised:
        op.wait()
    assert raised.value.op == "second"
    assert "test_recordings.py:" in raised.value.site
    assert isinstance(raised.value.__cause__, RuntimeError)
    assert not late
    for array in a, b, c:
        with pytest.raises(tn.OpError, match="second"):
            array.tolist()
    a[...] = 0
    b[...] = 0
    c[...] = 0
    assert isinstance(op.exception(), tn.OpError)


def test_a_failed_replay_can_be_repeated():
    a = tn.zeros(2)
    calls = []

    def body(x):
        calls.append(1)
        if len(calls) == 1:
            fail()
        x[:] = len(calls)

    with tn.record() as loop:
        loop.push(body, tn.overwrite(a))
    with pytest.raises(tn.OpError):
        loop.replay().wait()
    loop.replay().wait()
    assert a.tolist() == [2, 2]


def test_a_view_refuses_a_replay_and_the_message_names_it():
    a, b = tn.zeros(2), tn.zeros(2)
    with tn.record() as loop:
        loop.push(tn.fill, tn.write(b), 1)
        loop.push(tn.fill, tn.write(a), 1)
    kept = a.numpy()
    with pytest.raises(tn.LeaseConflict, match=r"of shape \(2,\) .*variable `kept`"):
        loop.replay()
    assert b.tolist() == [0, 0]
    del kept
    loop.replay().wait()
    assert a.tolist() == [1, 1]


def test_a_replay_may_wait_for_views(engine):
    a = tn.zeros(2)
    with tn.record() as loop:
        loop.push(tn.fill, tn.write(a), 1)
    kept = a.numpy()
    op = loop.replay(on_conflict="wait")
    assert not op.done()
    assert kept.tolist() == [0, 0]
    del kept
    op.wait()
    assert a.tolist() == [1, 1]


def test_memory_that_numpy_lent_is_watched():
    x = np.zeros(2)
    a = tn.from_numpy(x)
    with tn.record() as loop:
        loop.push(tn.fill, tn.write(a), 1)
    with pytest.raises(tn.LeaseConflict, match="from_numpy"):
        loop.replay()
    del x
    loop.replay().wait()
    assert a.tolist() == [1, 1]


def test_an_array_that_a_body_keeps_is_a_failure():
    a, b = tn.zeros(2), tn.zeros(2)
    kept = []
    with tn.record() as loop:
        loop.push(kept.append, tn.write(a))
        loop.push(tn.fill, tn.overwrite(b), 1)
    with pytest.raises(tn.OpError, match="lives on"):
        loop.replay().wait()
    kept.clear()


def test_bodies_get_new_arrays_in_each_replay():
    a = tn.zeros(2)
    seen = []
    with tn.record() as loop:
        loop.push(lambda x: seen.append((x.ctypes.data, x.tolist())), a)
    loop.replay().wait()
    a[...] = 4
    loop.replay().wait()
    assert seen == [(a.unchecked().ctypes.data, [0, 0]), (a.unchecked().ctypes.data, [4, 4])]


def test_a_recording_has_one_block():
    a = tn.zeros(2)
    loop = tn.record()
    with pytest.raises(RuntimeError, match="inside of the block"):
        loop.push(tn.fill, tn.write(a), 1)
    with pytest.raises(RuntimeError, match="has no block"):
        loop.replay()
    with loop:
        loop.push(tn.fill, tn.write(a), 1)
        with pytest.raises(RuntimeError, match="has not ended"):
            loop.replay()
    with pytest.raises(RuntimeError, match="inside of the block"):
        loop.push(tn.fill, tn.write(a), 1)
    with pytest.raises(RuntimeError, match="one block"), loop:
        pass
    loop.replay().wait()
    with pytest.raises(ZeroDivisionError), tn.record() as broken:
        broken.push(tn.fill, tn.write(a), 1 / 0)
    with pytest.raises(RuntimeError, match="an exception left its block"):
        broken.replay()


def test_bad_arguments_are_told_at_once_and_record_nothing():
    a = tn.zeros(2)
    with tn.record() as loop:
        with pytest.raises(TypeError, match="runs a function"):
            loop.push(3, a)
        with pytest.raises(BufferError, match="read-only"):
            loop.push(tn.fill, tn.write(a.readonly()), 1)
        with pytest.raises(TypeError, match="list of NDArrays"):
            loop.push(tn.fill, a, 1, writes=a)
        with pytest.raises(TypeError, match=r"'wait': .*loop\.replay\(on_conflict="):
            loop.push(lambda x, **named: None, a, on_conflict="wait")
    assert len(loop) == 0
    with pytest.raises(ValueError, match="'raise', 'wait' or 'ignore'"):
        loop.replay(on_conflict="copy")
    for bad in (tn.fill, tn.write(a), 1), [(), ()], [3]:
        with pytest.raises(TypeError, match="tuple of a function"):
            tn.push_many(bad)


def test_a_recording_keeps_its_functions_until_the_last_replay_is_done():
    class Body:
        def __call__(self, x):
            x += 1

    a = tn.zeros(2)
    body = Body()
    alive = weakref.ref(body)
    with tn.record() as loop:
        loop.push(body, tn.write(a))
    del body
    op = loop.replay()
    del loop
    op.wait()
    assert a.tolist() == [1, 1]
    wait_until_gone(alive)


def test_a_recording_in_a_reference_cycle_is_collected():
    class Model:
        def __init__(self):
            self.a = tn.zeros(2)
            with tn.record() as self.loop:
                self.loop.push(self.step, tn.write(self.a))

        def step(self, x):
            x += 1

    model = Model()
    alive = weakref.ref(model)
    op = model.loop.replay()
    del model
    op.wait()
    wait_until_gone(alive)


def test_arrays_without_elements_need_no_turn():
    empty, a = tn.zeros((0, 3)), tn.zeros(2)
    shapes = []
    with tn.record() as loop:
        loop.push(lambda x, y: shapes.append((x.shape, y.shape)), tn.write(empty), a)
    loop.replay().wait()
    assert shapes == [((0, 3), (2,))]


@pytest.mark.parametrize("is_first", [False, True])
def test_an_array_and_its_unchecked_one_are_both_claimed(is_first):
    a = tn.zeros(2)
    calls = [(lambda x: None, a.unchecked()), (lambda x: x.__iadd__(1), tn.write(a))]
    with tn.record() as loop:
        for call in calls if is_first else reversed(calls):
            loop.push(*call)
    loop.replay().wait()
    assert a.tolist() == [1, 1]


def test_memory_that_was_moved_out_ends_the_replays():
    a = tn.zeros(2)
    with tn.record() as loop:
        loop.push(tn.fill, tn.write(a), 3)
    loop.replay().wait()
    assert a.move_to_numpy().tolist() == [3, 3]
    with pytest.raises(tn.MovedError):
        loop.replay()


def test_tasks_await_replays():
    a = tn.zeros(1)
    with tn.record() as loop:
        loop.push(np.add, a, 1, out=tn.write(a))

    async def main():
        for _ in range(3):
            assert await loop.replay() is None

    asyncio.run(main())
    assert a.tolist() == [3]


def test_threads_replay_the_same_recording():
    a = tn.zeros(1, "i8")
    running = []

    def body(x):
        running.append(1)
        assert len(running) == 1
        x += 1
        running.pop()

    with tn.record() as loop:
        for _ in range(4):
            loop.push(body, tn.write(a))

    def replay():
        for _ in range(25):
            loop.replay()

    threads = [threading.Thread(target=replay) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert a.tolist() == [400]


def test_independent_functions_run_at_the_same_time(engine):
    if engine != "pool":
        pytest.skip("the other engines run one body at a time")
    arrays = [tn.zeros(1), tn.zeros(1)]
    both = threading.Barrier(2)
    with tn.set_engine("pool", 2):
        tn.push_many([(lambda x: both.wait(60), tn.write(a)) for a in arrays]).wait()
