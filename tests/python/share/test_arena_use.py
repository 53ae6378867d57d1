# SPDX-License-Identifier: Apache-2.0
"""One buffer for several layouts, in one process: access rules, stale views, exceptions, threads, tasks."""

import asyncio
import concurrent.futures
import ctypes
import gc
import sys
import threading

import numpy as np
import pytest
from arena_cases import LAYOUTS, arena_of_totals, each_arena, turns

import tenon as tn
from tenon._sync.views import places

pytestmark = pytest.mark.usefixtures("nothing_stays_behind")


def here(offset=0):
    """'file:line' of the calling line, as in messages."""
    frame = sys._getframe(1)
    return f"{frame.f_code.co_filename}:{frame.f_lineno + offset}"


# ------------------------------------------------------------------------------------- who uses it when


@each_arena
def test_what_is_not_there_cannot_be_read(make_arena):
    arena = make_arena()
    with pytest.raises(tn.LeaseConflict, match="'counts' cannot be read: the arena holds nothing yet"):
        arena.use("counts", "r").__enter__()
    with arena.use("features"):
        pass
    with pytest.raises(tn.LeaseConflict, match="'counts' cannot be read: the arena holds 'features'"):
        arena.use("counts", "r").__enter__()
    assert arena.active == "features"
    with arena.use("features", "r"):
        pass


@pytest.mark.slow
@each_arena
def test_the_arrays_of_a_block_are_its_own(make_arena):
    arena = make_arena()
    with arena.use("features") as f:
        assert places(arena._data, thorough=True) == []
        held = f[next(iter(f))]
        assert [place.change for place in places(arena._data, thorough=True)] == ["`del held`"]
        del held


@each_arena
def test_wrong_arguments_are_refused(make_arena):
    arena = make_arena()
    with pytest.raises(KeyError, match="no layout 'sums', but features, counts"):
        arena.use("sums")
    with pytest.raises(ValueError, match="mode is 'rw'"):
        arena.use("features", "rw")
    with pytest.raises(ValueError, match="cannot be overwritten"):
        arena.use("features", "r", overwrite=True)
    with pytest.raises(ValueError, match="on_owner_died is 'perhaps'"):
        arena.use("features", on_owner_died="perhaps")
    with arena.use("features") as f:
        with pytest.raises(AttributeError, match="no field 'D'"):
            _ = f.D
        with pytest.raises(KeyError, match="no field 'D'"):
            _ = f["D"]


@each_arena
def test_what_is_read_is_read_only(make_arena):
    arena = make_arena()
    with arena.use("features"):
        pass
    with arena.use("features", "r") as f, pytest.raises(ValueError, match="read-only"):
        f.A[0] = 1


@each_arena
def test_blocks_of_the_same_layout_nest(make_arena):
    arena = make_arena()
    with arena.use("features") as f:
        f.A[:] = 1
        with arena.use("features", "r") as g:
            assert g.A[0] == 1
            f.A[0] = 2
            assert g.A[0] == 2
        with arena.use("features") as g:
            g.A[1] = 3
        assert f.A[:3].tolist() == [2, 3, 1]
    with arena.use("features", "r") as f, arena.use("features", "r") as g:
        assert f.A[0] == g.A[0] == 2
    with arena.use("features", "r"), pytest.raises(tn.LeaseConflict, match="allows reading only"):
        arena.use("features").__enter__()
    assert arena.generation == 1


@each_arena
@pytest.mark.parametrize("mode", ["r", "w"])
def test_another_layout_inside_of_a_block_is_refused(make_arena, mode):
    arena = make_arena()
    with arena.use("features"):
        pass
    with arena.use("features", mode) as f:
        site = here(-1)
        with pytest.raises(tn.LeaseConflict) as caught:
            arena.use("counts").__enter__()
        if mode == "w":
            assert "cannot change to layout 'counts': it holds 'features'" in str(caught.value)
        assert site in str(caught.value)
        with pytest.raises(tn.LeaseConflict, match="holds 'features'"):
            arena.use("counts", "r").__enter__()
        assert f.A.shape == (1000,)
        assert arena.active == "features"
    with arena.use("counts") as f:
        f.D[:] = 1


@each_arena
def test_a_block_cannot_be_entered_twice(make_arena):
    arena = make_arena()
    use = arena.use("features")
    with use, pytest.raises(RuntimeError, match="a second time"):
        use.__enter__()
    with pytest.raises(RuntimeError, match="a second time"):
        use.__enter__()


@each_arena
def test_the_fields_are_empty_after_the_block(make_arena):
    arena = make_arena()
    with arena.use("features") as f:
        a = f.A
        c = f.C
        part = f.B[2:5]
    assert list(f) == []
    with pytest.raises(AttributeError, match="its block has ended"):
        _ = f.A
    with pytest.raises(KeyError, match="its block has ended"):
        _ = f["A"]
    assert (a.shape, part.shape) == ((0,), (0, 3))
    assert not c.flags.writeable
    with arena.use("counts"):
        pass


# ------------------------------------------------------------------------------------------- stale views


class Holds:
    pass


def _in_list(f):
    return [f.A[3:]]


def _in_attribute(f):
    holder = Holds()
    holder.view = f.A.reshape(10, 100)
    return holder


def _in_closure(f):
    view = f.A[::2]
    return lambda: view


def _in_memoryview(f):
    return memoryview(f.A)


def _in_torch(f):
    return pytest.importorskip("torch").from_numpy(f.A)


def _in_dlpack(f):
    return pytest.importorskip("torch").from_dlpack(f.A)


def _in_capsule(f):
    return f.A.__dlpack__()


def _in_ctypes(f):
    return (ctypes.c_float * 1000).from_buffer(f.A)


def _in_exception(f):
    def inner(view):
        raise KeyError("kept")

    try:
        inner(f.A[5:])
    except KeyError as error:
        return error


HOLDERS = [
    _in_list,
    _in_attribute,
    _in_closure,
    _in_memoryview,
    _in_torch,
    _in_dlpack,
    _in_capsule,
    _in_ctypes,
    _in_exception,
]


@each_arena
@pytest.mark.parametrize("keep", HOLDERS)
def test_a_stale_view_is_never_used_silently(make_arena, keep):
    """While the view exists, the arena does not change its layout: the elements of the view stay valid."""
    arena = make_arena()
    with arena.use("features") as f:
        site = here(-1)
        f.A[:] = 7
        kept = keep(f)
    with pytest.raises(tn.LeaseConflict) as caught:
        arena.use("counts").__enter__()
    assert "cannot change to layout 'counts': it holds 'features'" in str(caught.value)
    assert site in str(caught.value)
    assert arena.active == "features"
    with arena.use("features", "r") as f:
        assert f.A[5] == 7
    del kept, caught
    gc.collect()
    with arena.use("counts") as f:
        f.D[:] = 1


@each_arena
def test_the_block_s_own_array_is_empty_wherever_it_is_kept(make_arena):
    arena = make_arena()
    kept = []
    with arena.use("features") as f:
        kept.append(f.A)
    assert kept[0].shape == (0,)
    with arena.use("counts"):
        pass


@each_arena
def test_in_the_debug_mode_a_view_that_outlives_the_block_is_an_error(make_arena, monkeypatch):
    monkeypatch.setenv("TENON_DEBUG", "leases")
    arena = make_arena()
    kept = []
    with (
        pytest.raises(tn.LeaseEscaped, match="a view of the arena still exists after the block") as told,
        arena.use("features") as f,
    ):
        kept.append(f.A[1:])
    assert f"{__file__}:" in str(told.value) and "item 0 of list `kept`" in str(told.value)
    kept.clear()


@each_arena
def test_escaped_views_do_not_hide_an_exception(make_arena):
    arena = make_arena()
    kept = []
    with pytest.raises(ZeroDivisionError), arena.use("features") as f:
        kept.append(f.A[1:])
        _ = 1 / 0
    kept.clear()
    with arena.use("counts"):
        pass


def test_a_view_of_a_layout_lives_on_beside_the_same_layout():
    arena = tn.Arena(LAYOUTS)
    with arena.use("features") as f:
        part = [f.A[1:]]
    with arena.use("features") as f:
        f.A[:] = 3
    assert part[0][0] == 3


# ------------------------------------------------------------------------------------------- exceptions


@each_arena
def test_an_exception_leaves_no_values_until_they_are_overwritten_or_the_layout_is_changed(make_arena):
    arena = make_arena()

    def fail(mode="w", **options):
        with pytest.raises(ZeroDivisionError), arena.use("features", mode, **options):
            _ = 1 / 0

    fail()
    for mode in "rw":
        with pytest.raises(tn.OpError, match="the block that wrote the arena ended with ZeroDivisionError"):
            arena.use("features", mode).__enter__()
    with arena.use("counts") as f:
        f.D[:] = 1
    with arena.use("counts", "r") as f:
        assert f.D[7] == 1
    fail()
    with arena.use("features", overwrite=True) as f:
        for name in f:
            f[name][...] = 2
    with arena.use("features", "r") as f:
        assert f.A[999] == 2
    fail("r")
    with arena.use("features", "r") as f:
        assert f.A[999] == 2
    fail()
    fail(overwrite=True)
    with pytest.raises(tn.OpError):
        arena.use("features").__enter__()
    with arena.use("counts"):
        pass


@each_arena
def test_a_refused_change_does_not_heal(make_arena):
    arena = make_arena()
    kept = []
    with pytest.raises(ZeroDivisionError), arena.use("features") as f:
        kept.append(f.A[1:])
        _ = 1 / 0
    with pytest.raises(tn.LeaseConflict):
        arena.use("counts").__enter__()
    kept.clear()
    with pytest.raises(tn.OpError):
        arena.use("features", "r").__enter__()


# --------------------------------------------------------------------------------- threads and tasks


@pytest.mark.parametrize("is_shared", [False, True])
def test_threads_use_layouts_by_turns(is_shared):
    arena = arena_of_totals(400, is_shared)
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        running = [pool.submit(turns, arena, seed, 150) for seed in range(4)]
        assert sum(thread.result(120) for thread in running) > 0


@each_arena
def test_a_thread_that_is_late_waits_and_times_out(make_arena):
    arena = make_arena()
    with arena.use("features"):
        caught = []

        def use():
            try:
                arena.use("counts", timeout=0.1).__enter__()
            except BaseException as error:
                caught.append(str(error))

        thread = threading.Thread(target=use)
        thread.start()
        thread.join(600)
        assert "in the time given" in caught[0]
    with arena.use("counts"):
        pass


@each_arena
def test_tasks_take_turns(make_arena):
    arena = make_arena()
    order = []

    async def write(layout, field, number):
        async with arena.use(layout) as f:
            order.append(("in", number))
            f[field][:] = number
            await asyncio.sleep(0.001)
            assert (f[field] == number).all()
            order.append(("out", number))

    async def main():
        await asyncio.gather(
            *(write(*(("features", "A") if i % 3 else ("counts", "D")), i) for i in range(12))
        )
        with pytest.raises(tn.LeaseConflict, match="cannot be read"):
            async with arena.use("counts", "r"):
                pass
        async with arena.use("features", "r") as f, arena.use("features", "r") as g:
            assert f.A[0] == g.A[0] == 11
        async with arena.use("features", "r", timeout=0) as f:
            assert f.A[0] == 11
        held, done = threading.Event(), threading.Event()

        def hold():
            with arena.use("counts"):
                held.set()
                done.wait(600)

        thread = threading.Thread(target=hold)
        thread.start()
        held.wait(600)
        with pytest.raises(TimeoutError, match=r"the layout 'features'.* \(0\.01 s\): .*test_arena_use\.py"):
            async with arena.use("features", timeout=0.01):
                pass
        done.set()
        thread.join()
        async with arena.use("features", timeout=60) as f:
            f.A[:] = 11
        with pytest.raises(TypeError, match="timeout is"):
            async with arena.use("features", timeout="1"):
                pass

    asyncio.run(main())
    assert order[0::2] == [("in", i) for _, i in order[0::2]]
    assert [i for _, i in order[0::2]] == [i for _, i in order[1::2]]


@each_arena
def test_tasks_see_failures_and_heal_them(make_arena):
    arena = make_arena()

    async def main():
        with pytest.raises(ZeroDivisionError):
            async with arena.use("features"):
                _ = 1 / 0
        with pytest.raises(tn.OpError, match="ZeroDivisionError"):
            async with arena.use("features"):
                pass
        async with arena.use("features", overwrite=True) as f:
            f.A[:] = 1
        with pytest.raises(ZeroDivisionError):
            async with arena.use("features"):
                _ = 1 / 0
        async with arena.use("counts") as f:
            f.D[:] = 1
        async with arena.use("counts", "r") as f:
            assert f.D[0] == 1

    asyncio.run(main())


@each_arena
def test_a_task_that_is_cancelled_while_it_waits_leaves_nothing_held(make_arena):
    arena = make_arena()

    async def wait():
        async with arena.use("counts"):
            pass

    async def main():
        async with arena.use("features"):
            task = asyncio.create_task(wait())
            await asyncio.sleep(0.01)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        async with arena.use("counts"):
            pass

    asyncio.run(main())


def test_a_block_has_no_room_for_other_attributes():
    """They would count as views of the block, which become empty at its end."""
    arena = tn.Arena({"only": {"A": ("f4", (3,))}})
    own = np.array([5], "u1")
    with arena.use("only") as f:
        with pytest.raises(AttributeError, match=r"no field '_own': its fields are \('A',\)"):
            f._own = own
        f.A = 2
    assert own.tolist() == [5]
    with arena.use("only", "r") as f:
        assert f.A.tolist() == [2, 2, 2]


def test_fields_may_have_the_names_of_helpers():
    arena = tn.Arena({"only": {"_array": ("f4", (3,)), "_write": ("f4", (2,)), "_missing": ("f4", (1,))}})
    with arena.use("only") as f:
        f["_array"], f["_write"] = 1, 2
        assert (f["_array"].tolist(), f["_write"].tolist()) == ([1, 1, 1], [2, 2])
        with pytest.raises(KeyError, match="no field 'B'"):
            f["B"]
