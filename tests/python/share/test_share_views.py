# SPDX-License-Identifier: Apache-2.0
"""Views of shared arrays: they need a lease, and continue it as long as they exist."""

import asyncio
import ctypes
import gc
from pathlib import Path

import numpy as np
import pytest

import tenon as tn

TAKES = {
    "asarray": lambda a: np.asarray(a),
    "numpy": lambda a: a.numpy(),
    "memoryview": lambda a: memoryview(a),
    "frombuffer": lambda a: np.frombuffer(a, "int32"),
    "dlpack": lambda a: np.from_dlpack(a),
    "capsule for reading": lambda a: a.to_dlpack_for_read(),
    "capsule for writing": lambda a: a.to_dlpack_for_write(),
    "ctypes": lambda a: a.ctypes.data_as(ctypes.c_void_p),
    "readonly": lambda a: np.asarray(a.readonly()),
    "row": lambda a: np.asarray(a[0]),
    "reinterpreted": lambda a: np.asarray(a.view("int16")),
    "torch": lambda a: pytest.importorskip("torch").from_dlpack(a),
    "torch()": lambda a: pytest.importorskip("torch") and a.torch(),
    "jax()": lambda a: pytest.importorskip("jax") and a.jax(),
}


@pytest.fixture
def a():
    return tn.zeros((2, 3), "int32", shared=True)


@pytest.mark.parametrize("take", TAKES.values(), ids=TAKES)
def test_a_view_needs_possession(take, a):
    with pytest.raises(tn.LeaseConflict, match=r"other processes use it, too, so a view needs a lease"):
        take(a)
    assert not a.leases()
    with a.write() as v:
        v += 1
    assert a.tolist() == [[1] * 3] * 2


@pytest.mark.slow
@pytest.mark.parametrize("take", TAKES.values(), ids=TAKES)
def test_a_view_that_is_taken_under_a_lease_keeps_the_memory(take, a, other):
    with a.lease("w"):
        view = take(a)
    other.start("tn.set_lock_timeout(None)\na[...] = 5", a=a)
    assert other.is_busy()
    assert next(holder.kind for holder in a.leases()) == "view"
    del view
    gc.collect()
    other.answer()
    assert a.tolist() == [[5] * 3] * 2


@pytest.mark.parametrize("mode", ["read", "write"])
def test_a_view_that_survives_its_block_keeps_others_out(mode, a, other, monkeypatch):
    kept = []
    with getattr(a, mode)() as v:
        v.sum()
        kept.append(np.asarray(a))
    kept.clear()
    monkeypatch.setenv("TENON_DEBUG", "leases")
    with pytest.raises(tn.LeaseEscaped) as told, getattr(a, mode)() as v:
        kept.append(np.asarray(a))  # the line
    lines = Path(__file__).read_text().splitlines()
    line = 1 + next(n for n, text in enumerate(lines) if text.endswith("# the line"))
    assert f"test_share_views.py:{line}" in str(told.value)
    assert "item 0 of list `kept`" in str(told.value)
    other.ask("tn.set_lock_timeout(0.2)")
    with pytest.raises(TimeoutError):
        other.ask("a[0, 0] = 1", a=a)
    if mode == "read":
        assert other.ask("a.tolist()") == [[0] * 3] * 2
    kept.clear()
    other.ask("a[0, 0] = 1")
    assert a[0, 0].item() == 1


@pytest.mark.parametrize("mode", ["read", "write"])
def test_views_that_end_with_the_block_are_no_survivors(mode, a, other):
    def take_some():
        w = np.asarray(a)
        return [row.sum() for row in w]

    with getattr(a, mode)() as v:
        for row in v:
            row.sum()
        part = v[1]
        take_some()
        memoryview(a).release()
        assert a[0, 0].item() == 0
        with a.read() as nested:
            nested.sum()
    assert v.size == part.size == 0
    other.ask("a[0, 0] = 1", a=a)


def test_garbage_is_a_survivor_until_it_is_collected(a, other):
    class Node:
        pass

    gc.disable()
    try:
        with a.write():
            node = Node()
            node.view, node.itself = np.asarray(a), node
            del node
    finally:
        gc.enable()
    assert [holder.kind for holder in a.leases()] == ["view"]
    gc.collect()
    other.ask("a[0, 0] = 1", a=a)


def test_a_survivor_of_a_block_in_a_task_keeps_the_memory(a, monkeypatch):
    kept = []

    async def main():
        async with a.write():
            kept.append(np.asarray(a))

    asyncio.run(main())
    assert [holder.kind for holder in a.leases()] == ["view"]
    kept.clear()
    monkeypatch.setenv("TENON_DEBUG", "leases")
    with pytest.raises(tn.LeaseEscaped):
        asyncio.run(main())
    kept.clear()
    assert a.tolist() == [[0] * 3] * 2


def test_survivors_do_not_replace_an_exception(a):
    kept = []
    with pytest.raises(ZeroDivisionError), a.write(overwrite=True):
        kept.append(np.asarray(a))
        raise ZeroDivisionError
    kept.clear()
    a[...] = 1


def test_a_survivor_of_a_nested_block_is_the_outer_one_s(a):
    kept = []
    with a.write():
        with a.write():
            kept.append(np.asarray(a))
        kept[0][...] = 3
    assert [holder.kind for holder in a.leases()] == ["view"]
    kept.clear()
    assert a.tolist() == [[3] * 3] * 2


def test_arrays_that_are_not_shared_have_survivors():
    a = tn.zeros(3)
    with a.write():
        view = np.asarray(a)
    assert view.shape == (3,)


def test_a_tensor_that_is_made_once_is_filled_again_and_again(a, other):
    torch = pytest.importorskip("torch")
    with a.lease("w"):
        tensor = torch.from_dlpack(a)
    for i in range(20):
        with a.write() as v:
            v[...] = i
        assert tensor.sum().item() == 6 * i
        if i == 9:  # others may wait for it as long as they like
            other.start("tn.set_lock_timeout(None)\na[...] = 100", a=a)
            assert other.is_busy()
    assert a.tolist() == [[19] * 3] * 2
    tn.push(tn.fill, tn.write(a), 20, on_conflict="ignore").wait(20)
    assert tensor.sum().item() == 120
    del tensor
    other.answer()
    assert a.tolist() == [[100] * 3] * 2


def test_operators_and_ufuncs_are_calls(a, other):
    a[...] = 2
    assert (a + 1).tolist() == (1 + a).tolist() == [[3] * 3] * 2
    assert (a == 2).all() and 2 in a and (-a).tolist() == [[-2] * 3] * 2
    a += 3
    a *= a
    np.add(a, 1, out=a)
    np.add.at(a, (0, 0), 1)
    assert np.add(
        a, a, out=np.zeros((2, 3), "int32"), where=tn.ones((2, 3), "bool", shared=True)
    ).tolist() == [[54, 52, 52], [52] * 3]
    assert a.tolist() == [[27, 26, 26], [26] * 3]
    other.ask("lease = a.lease('w'); tn.set_lock_timeout(None)", a=a)
    before = tn.set_lock_timeout(0.2)
    for attempt in (
        lambda: a + 1,
        lambda: a.__iadd__(1),
        lambda: np.add(a, 1),
        lambda: a == 1,
        lambda: 2 in a,
    ):
        with pytest.raises(TimeoutError, match=f"process {other.pid}"):
            attempt()
    tn.set_lock_timeout(before)
    other.ask("lease.release()")
    assert (a - 20).tolist() == [[7, 6, 6], [6] * 3]
    assert not a.leases()


def test_under_a_lease_for_reading_nothing_writes(a):
    with a.read() as v:
        assert not v.flags.writeable
        with pytest.raises(tn.LeaseConflict):
            a[0] = 1
        with pytest.raises(tn.LeaseConflict):
            a += 1
        with pytest.raises((tn.LeaseConflict, ValueError)):
            np.add(a, 1, out=a)
        assert (a + 1).sum() == 6
    a[0] = 1


def test_a_detached_lease_is_the_process_s(a, other):
    import threading

    lease = a.lease("w").detach()
    seen = []

    def work():
        a[0] = 1
        view = np.asarray(a)
        view[1] = 2
        seen.append(view.tolist())
        del view
        lease.release()

    other.start("tn.set_lock_timeout(None)\na[...] = 9", a=a)
    assert other.is_busy()
    thread = threading.Thread(target=work)
    thread.start()
    thread.join(600)
    assert seen == [[[1] * 3, [2] * 3]]
    other.answer()
    assert a.tolist() == [[9] * 3] * 2


def test_a_shared_array_is_not_moved_out(a):
    with pytest.raises(tn.LeaseConflict, match="shared with other processes"):
        a.move_to_numpy()
    assert a.tolist() == [[0] * 3] * 2


def test_shared_says_what_is_shared(a, other):
    assert a.shared and a[0].shared and a.readonly().shared and a.view("int8").shared and a.T.shared
    assert not tn.zeros(3).shared and not a.copy().shared and not tn.from_numpy(np.zeros(3)).shared
    assert other.ask("a.shared", a=a)
    with a.read() as v:
        assert tn.from_numpy(v).shared  # the memory is known
    with pytest.raises(AttributeError):
        a.shared = False


def test_bytes_are_seen_as_other_types_by_turns(other):
    """A buffer that holds 16-bit numbers first and 32-bit numbers later."""
    buffer = tn.zeros(64, "int8", shared=True)
    shorts, ints = buffer.view("int16"), buffer.view("int32")
    with shorts.write() as v:
        v[...] = np.arange(32)
    other.ask("with buffer.view('int16').write() as v: v *= 2", buffer=buffer)
    with shorts.read() as v:
        assert v.tolist() == list(range(0, 64, 2))
    other.ask("with buffer.view('int32').write() as v: v[...] = np.arange(16) * 1000")
    with ints.read() as v:
        assert v.tolist() == list(range(0, 16000, 1000))


@pytest.mark.parametrize("wrong", ["before", "after", "kept"])
def test_a_view_outside_of_possession_is_refused(wrong, other):
    """The same with one wrong line."""
    buffer = tn.zeros(64, "int8", shared=True)
    if wrong == "before":
        with pytest.raises(tn.LeaseConflict):
            np.asarray(buffer.view("int16"))
        return
    if wrong == "kept":
        kept = []
        with buffer.view("int16").write() as v:
            kept.append(v[:])
        other.ask("tn.set_lock_timeout(0.2)")
        with pytest.raises(TimeoutError):
            other.ask("with buffer.view('int32').write() as v: v[...] = 1000", buffer=buffer)
        return
    with buffer.view("int16").write() as v:
        v[...] = np.arange(32)
    other.ask("with buffer.view('int32').write() as v: v[...] = 1000", buffer=buffer)
    assert v.size == 0
    with pytest.raises(IndexError):
        v[0]
    with pytest.raises(ValueError):
        v[...] = np.arange(32)
    assert buffer.view("int32").tolist() == [1000] * 16
