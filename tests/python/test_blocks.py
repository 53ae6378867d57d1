# SPDX-License-Identifier: Apache-2.0
"""Ends of blocks that differ in little from the usual one: nothing may be freed that is still reachable."""

import asyncio
import contextlib
import gc
import subprocess
import sys
import weakref

import numpy as np
import pytest

import tenon as tn
from tenon import _core

pytestmark = pytest.mark.usefixtures("nothing_stays_behind")


def views_of(array):
    return [holder.mode for holder in array.leases() if holder.kind == "view"]


def test_a_variable_of_each_kind_of_frame_is_empty_after_the_block():
    a = tn.ones((2, 3))

    def of_a_function():
        with a.write() as v:
            pass
        return v

    def of_a_closure():
        with a.write() as v:
            total = [v[i, j] for i in range(2) for j in range(3)]
        assert len(total) == 6
        return v

    def of_an_outer_function():
        v = None

        def use():
            nonlocal v
            with a.write() as v:
                pass

        use()
        return v

    def of_a_generator():
        with a.write() as v:
            yield
        yield v

    namespaces = [{"a": a}, {"a": a}]
    exec("with a.write() as v:\n    pass", namespaces[0])
    exec("class C:\n    with a.write() as v:\n        pass", namespaces[1])
    views = [
        of_a_function(),
        of_a_closure(),
        of_an_outer_function(),
        list(of_a_generator())[1],
        namespaces[0]["v"],
        namespaces[1]["C"].v,
    ]
    assert [v.shape for v in views] == [(0, 3)] * 6
    assert not any(v.flags.writeable for v in views)
    assert [v.base for v in views] == [None] * 6
    assert views_of(a) == []


def test_every_round_of_a_loop_finds_its_variable_though_they_change_places():
    a = tn.ones(4)

    def run(n):
        kept = []
        for i in range(n):
            if i % 3 == 0:
                with a.read() as first:
                    kept.append(float(first[0]))
            else:
                with a.read() as second:
                    kept.append(float(second[0]))
                assert second.shape == (0,)
            assert first.shape == (0,)
        return kept

    assert run(20) == [1.0] * 20
    assert views_of(a) == []


def test_a_view_without_a_variable_ends_with_its_block():
    a = tn.ones(4)
    with a.read():
        pass
    with a.write() as v:
        del v
    with a.write() as v:
        v = None
    assert v is None
    assert views_of(a) == []


class Holder:
    """Holds an array otherwise than by a variable."""

    def __init__(self, array):
        self.array = array


@pytest.mark.parametrize("is_in_function", [True, False])
def test_an_object_that_names_a_view_keeps_no_memory(is_in_function):
    source = "with a.write() as v:\n    held = Holder(v)\n    del v\n"
    names = {"a": tn.ones(4), "Holder": Holder}
    if is_in_function:
        exec("def f(a):\n    " + source.replace("\n", "\n    ") + "return held\nheld = f(a)", names)
    else:
        exec(source, names)
    assert names["held"].array.shape == (0,)
    assert views_of(names["a"]) == []
    names.clear()


def test_a_tensor_over_a_view_that_no_variable_names_keeps_the_memory():
    torch = pytest.importorskip("torch")
    a = tn.zeros(4)
    with a.write() as v:
        t = torch.from_numpy(v)
        del v
    assert views_of(a) == ["w"]
    t.fill_(7)
    assert a.tolist() == [7] * 4
    del t
    assert views_of(a) == []


def test_a_memoryview_of_a_view_keeps_the_memory():
    a = tn.ones(4)
    with a.write() as v:
        m = memoryview(v)
    assert m.tolist() == [1] * 4
    assert views_of(a) == ["w"]
    m.release()
    del m, v
    assert views_of(a) == []


def test_a_second_variable_of_the_view_is_empty_too():
    a = tn.ones(4)
    with a.write() as v:
        other = v
    assert v.shape == other.shape == (0,)
    assert views_of(a) == []


def test_the_array_that_a_view_stands_on_stays_what_it_is_for_who_keeps_it():
    a, b = tn.full(4, 1), tn.full(4, 2)
    with a.read() as v:
        base = v.base
    with b.read() as v:
        assert v.tolist() == [2] * 4
        assert base.tolist() == [1] * 4
    assert views_of(a) == ["r"]
    del base
    with a.read() as v:
        reference = weakref.ref(v.base)
        shape = v.shape
    with b.read() as v:
        other = reference()
        assert other is None or other is not v.base
        assert v.shape == shape
    del other


def test_blocks_of_other_shapes_dtypes_and_rights_follow_each_other():
    arrays = [tn.full((2, 3), 1), tn.full((3, 2), 2), tn.full(6, 3, "i2"), tn.full((), 4, "f8")]
    arrays += [tn.full((4, 4), 5)[::2, 1:], tn.full((2, 3), 6).T, tn.zeros((0, 3)), tn.full((1, 6), 7, "i2")]
    expected = [np.array(a.tolist(), a.numpy().dtype).reshape(a.shape) for a in arrays]
    for _ in range(3):
        for a, x in zip(arrays, expected):
            for block, is_write in ((a.read(), False), (a.write(), True)):
                with block as v:
                    assert (v.shape, v.strides, v.dtype) == (a.shape, a.strides, x.dtype)
                    assert v.base.shape == v.shape and v.base.strides == v.strides
                    assert v.flags.writeable is v.base.flags.writeable is is_write
                    assert v.flags.c_contiguous is v.base.flags.c_contiguous
                    assert np.array_equal(v, x) and np.array_equal(v.base, x)
                    part = v[...]
                    assert part.base is v.base
                assert v.size == 0 or v.shape == ()
    assert [views_of(a) for a in arrays] == [[]] * len(arrays)


def test_blocks_inside_of_blocks_have_roots_of_their_own():
    arrays = [tn.full(3, i) for i in range(8)]
    with contextlib.ExitStack() as stack:
        views = [stack.enter_context(a.read()) for a in arrays]
        assert len({id(v.base) for v in views}) == len(arrays)
        assert [v[0] for v in views] == list(range(8))
    del views
    for a in arrays:
        assert views_of(a) == []


def test_a_block_is_entered_once():
    a = tn.ones(3)
    block = a.read()
    with block, pytest.raises(RuntimeError, match="second time"):
        block.__enter__()
    with pytest.raises(RuntimeError, match="second time"), block:
        pass

    async def enter():
        async with block:
            pass

    with pytest.raises(RuntimeError, match="second time"):
        asyncio.run(enter())


def test_a_block_is_left_as_often_as_wanted():
    a = tn.ones(3)
    block = a.write()
    v = block.__enter__()
    assert [h.kind for h in a.leases()] == ["lease"]
    for _ in range(3):
        assert block.__exit__(None, None, None) is None
        assert a.leases() == []
    assert v.shape == (0,)


def test_a_block_that_is_dropped_gives_its_lease_back():
    a = tn.ones(3)
    block = a.write()
    v = block.__enter__()
    del block
    assert [h.kind for h in a.leases()] == ["view"]
    v[:] = 2
    del v
    assert a.leases() == []
    assert a.tolist() == [2] * 3


def test_a_block_that_is_refused_leaves_nothing():
    a = tn.ones(3)
    with a.read():
        block = a.write()
        with pytest.raises(tn.LeaseConflict):
            block.__enter__()
    assert a.leases() == []
    with pytest.raises(BufferError, match="read-only"), a.readonly().write():
        pass
    packed = tn.from_pointer(a.data_ptr, (4,), "float4_e2m1fn", owner=a)
    with pytest.raises(TypeError, match="NumPy has no dtype"), packed.read():
        pass
    assert packed.leases() == []


def test_arguments_of_read_and_write_are_checked():
    a = tn.ones(3)
    with a.read(on_owner_died="ignore") as v, a.read("raise") as w:
        assert v.tolist() == w.tolist()
    with a.write(True, on_owner_died=lambda values, error: None) as v:
        v[:] = 4
    assert a.tolist() == [4] * 3
    for call in (lambda: a.read(on_owner_died="never"), lambda: a.write(on_owner_died=3)):
        with pytest.raises(ValueError, match="on_owner_died is"):
            call()
    for call in (lambda: a.read(None, None), lambda: a.write(1), lambda: a.read(overwrite=True)):
        with pytest.raises((TypeError, ValueError)):
            call()


@pytest.mark.parametrize("is_entered", [False, True])
def test_a_block_to_which_its_own_function_refers_is_collected(is_entered):
    class Repair:
        def __call__(self, values, error):
            pass

    a, repair = tn.ones(3), Repair()
    repair.block = a.write(on_owner_died=repair)
    if is_entered:
        repair.block.__enter__()
    gone = weakref.ref(repair)
    del repair
    gc.collect()
    assert gone() is None
    assert a.leases() == []


def test_a_block_that_has_ended_keeps_no_task():
    block, tasks = tn.ones(3).write(), []

    async def use():
        tasks.append(weakref.ref(asyncio.current_task()))
        async with block:
            pass

    asyncio.run(use())
    gc.collect()
    assert tasks[0]() is None


def test_numpy_is_imported_before_a_block_takes_its_lease():
    code = """
import sys, tenon as tn
class Finder:
    def find_spec(self, name, *_):
        if name == "numpy": print([holder.kind for holder in a.leases()])
a = tn.zeros(3)
sys.meta_path.insert(0, Finder())
with a.write(): pass
"""
    assert subprocess.check_output([sys.executable, "-c", code], text=True) == "[]\n"


def test_a_block_made_outside_of_a_loop_belongs_to_the_task_that_enters_it():
    a = tn.zeros(3)
    first, *others = (a.write() for _ in range(4))

    async def write(block):
        async with block as v:
            v += 1
            await asyncio.sleep(0)
        assert v.shape == (0,)

    async def main():
        with first as v:
            v += 1
        assert v.shape == (0,)
        await asyncio.gather(*map(write, others))

    asyncio.run(main())
    assert a.tolist() == [4] * 3


def test_a_lease_of_a_task_is_no_lease_of_another_one():
    a = tn.zeros(3)

    async def main():
        with a.write():
            other = asyncio.create_task(refuse())
            await other

    async def refuse():
        with pytest.raises(tn.DeadlockError):
            a.read().__enter__()

    asyncio.run(main())


def test_a_task_that_nobody_finishes_is_freed_with_its_block():
    a = tn.zeros(3)

    async def enter(block):
        async with block:
            await asyncio.get_running_loop().create_future()

    loop = asyncio.new_event_loop()
    loop.set_exception_handler(lambda loop, context: None)  # that it was pending is on purpose
    task = loop.create_task(enter(a.write()))
    loop.call_soon(loop.stop)
    loop.run_forever()
    assert [h.kind for h in a.leases()] == ["lease"]
    reference = weakref.ref(task)
    loop.close()
    del task, loop
    gc.collect()
    assert reference() is None
    assert a.leases() == []


def test_a_debugger_may_take_a_variable_away():
    torch = pytest.importorskip("torch")
    a = tn.zeros(4)

    def trace(frame, event, argument):
        if event == "line" and "t" in frame.f_locals and frame.f_locals.get("v") is not None:
            frame.f_locals["v"] = None
        return trace

    def run():
        with a.write() as v:
            t = torch.from_numpy(v)
            t.sum()
        return t

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        t = run()
    finally:
        sys.settrace(before)
    assert views_of(a) == ["w"]
    t.fill_(3)
    assert a.tolist() == [3] * 4


def test_errors_that_end_a_block_are_told_and_empty_the_view():
    a = tn.zeros(3)
    with pytest.raises(KeyError), a.read() as v:
        raise KeyError
    assert v.shape == (0,)
    assert a.tolist() == [0] * 3
    with pytest.raises(KeyError), a.write() as v:
        raise KeyError("x")
    assert v.shape == (0,)
    with pytest.raises(tn.OpError, match="KeyError: 'x'"):
        a.tolist()
    a.clear_error()


def test_no_block_makes_objects_that_stay():
    a, s = tn.zeros(3), tn.zeros(3, shared=True)

    def run(n):
        for _ in range(n):
            with a.read() as v:
                pass
            with s.write() as w:
                pass
        return v.size + w.size

    run(100)
    before = sys.getallocatedblocks(), _core.statistics()
    run(1000)
    after = sys.getallocatedblocks(), _core.statistics()
    assert after[1] == before[1]
    assert abs(after[0] - before[0]) < 50
