# SPDX-License-Identifier: Apache-2.0
"""Arrays that change what they have to do with their memory: moved to NumPy, given new memory beside readers,
used outside of the contract; and what repr says meanwhile."""

import ast
import contextlib
import gc
import re
import subprocess
import sys
import threading

import native_library
import numpy as np
import pytest

import tenon as tn

pytestmark = pytest.mark.usefixtures("nothing_stays_behind")


@pytest.fixture(autouse=True)
def engine():
    with tn.set_engine("pool"):
        yield


# ------------------------------------------------------------------------------------------- move


def test_a_move_takes_the_memory_and_leaves_an_array_that_says_where_it_went():
    a = tn.array([[1.0, 2.0], [3.0, 4.0]])
    part = a[1]
    address = a.data_ptr
    x = a.move_to_numpy()
    assert x.ctypes.data == address
    assert x.tolist() == [[1, 2], [3, 4]]
    assert x.flags.writeable
    uses = [
        a.tolist,
        part.tolist,
        lambda: np.asarray(a),
        lambda: memoryview(a),
        a.__dlpack__,
        a.move_to_numpy,
        lambda: a.data_ptr,
        lambda: a.__setitem__(..., 1),
        lambda: a.lease("r"),
        lambda: tn.push(tn.fill, tn.overwrite(a), 1),
        lambda: tn.push(np.sum, part),
        a.wait_to_read,
        lambda: a + 1,
    ]
    for use in uses:
        with pytest.raises(tn.MovedError, match=r"test_ownership\.py:\d+"):
            use()
    assert a.shape == (2, 2) and a.dtype == "float64"
    x[0, 0] = 9
    assert re.search(r"moved to NumPy at .*test_ownership\.py:\d+", repr(a))


@pytest.mark.names_count
def test_a_moved_array_can_come_back_without_a_copy():
    a = tn.array([0.0, 1.0, 2.0, 3.0])
    x = a.move_to_numpy()
    address = x.ctypes.data
    b = tn.from_numpy(x, mode="move")
    del x
    assert b.data_ptr == address
    assert b.tolist() == [0, 1, 2, 3]
    y = b.move_to_numpy()
    assert y.tolist() == [0, 1, 2, 3]
    with pytest.raises(tn.MovedError):
        a.tolist()


def test_memory_that_moved_dies_with_the_numpy_array_and_not_with_the_handle():
    before = tn._core.statistics()
    a = tn.zeros(1 << 20)
    x = a.move_to_numpy()
    assert tn._core.statistics()["heap_nbytes"] == before["heap_nbytes"]
    del a
    x[:] = 1
    assert x.sum() == 1 << 20


@pytest.mark.parametrize(
    ("hold", "words"),
    [
        (np.asarray, r"a writable view of it, taken at .*test_ownership\.py"),
        (lambda a: memoryview(a.readonly()), "a view of it, taken at"),
        (lambda a: a.__dlpack__(), "a writable view of it, taken at"),
    ],
)
def test_a_move_beside_a_view_is_refused_and_loses_nothing(hold, words):
    a = tn.ones(3)
    held = hold(a)
    with pytest.raises(tn.LeaseConflict, match=words):
        a.move_to_numpy()
    del held
    assert a.tolist() == [1, 1, 1]
    assert a.move_to_numpy().tolist() == [1, 1, 1]


def test_a_move_inside_of_a_lease_is_refused():
    a = tn.ones(3)
    with a.write(), pytest.raises(tn.LeaseConflict, match="a lease for writing, taken at"):
        a.move_to_numpy()
    assert a.tolist() == [1, 1, 1]


def test_a_move_waits_for_ops_that_were_pushed_before():
    a = tn.zeros(3)
    gate = threading.Event()
    op = tn.push(lambda v: (gate.wait(600), v.fill(7)), tn.overwrite(a))
    threading.Timer(0.05, gate.set).start()
    x = a.move_to_numpy()
    assert x.tolist() == [7, 7, 7]
    op.wait()


def test_memory_of_a_numpy_array_that_is_still_referred_to_does_not_move():
    x = np.ones(3)
    a = tn.from_numpy(x)
    with pytest.raises(tn.LeaseConflict, match="drop x and its views first"):
        a.move_to_numpy()
    del x
    y = a.move_to_numpy()
    assert y.tolist() == [1, 1, 1]


def test_a_read_only_array_moves_read_only_and_a_failed_one_not_at_all():
    assert not tn.ones(3).readonly().move_to_numpy().flags.writeable
    a = tn.zeros(3)

    def fail(_):
        raise ValueError("no data")

    tn.push(fail, tn.write(a))
    with pytest.raises(tn.OpError, match="no data"):
        a.move_to_numpy()
    with pytest.raises(ExceptionGroup):
        tn.waitall()


# ------------------------------------------------------------------------------- with an array


def test_a_block_with_an_array_waits_and_gives_the_memory_back():
    x = np.zeros(3)
    with tn.from_numpy(x) as a:
        assert not x.flags.writeable
        gate = threading.Event()
        op = tn.push(lambda v: (gate.wait(600), v.fill(7)), tn.overwrite(a), on_conflict="ignore")
        threading.Timer(0.05, gate.set).start()
    assert x.flags.writeable and x.tolist() == [7, 7, 7]
    op.wait()
    with pytest.raises(tn.MovedError, match="test_ownership"):
        a.tolist()
    b = tn.from_numpy(x)
    assert b.tolist() == [7, 7, 7]


@pytest.mark.parametrize(
    "make",
    [
        lambda: tn.zeros(3),
        lambda: tn.zeros(3, shared=True),
        lambda: tn.zeros(3)[1:],
        lambda: tn.asarray([1, 2]),
        lambda: tn.asarray(np.zeros(3)),
        lambda: tn.from_buffer(bytearray(8), "f4"),
        lambda: tn.from_dlpack(np.zeros(3)),
        lambda: tn.from_numpy(np.asarray(tn.zeros(3))),
        lambda: tn.from_numpy(np.zeros(3), zero_copy=False),
        lambda: tn.from_numpy(np.zeros(3), mode="move"),
        lambda: tn.arange(3),
        lambda: tn.arange(3)[[0, 1]],
    ],
    ids=range(12),
)
def test_a_block_with_memory_that_numpy_has_not_lent_is_an_error_and_keeps_the_values(make):
    a = make()
    before = a.tolist()
    with pytest.raises(TypeError, match=r"with a\.read\(\) as v:.*with a\.write\(\) as v:"), a:
        pass
    assert a.tolist() == before


@pytest.mark.parametrize("mode", ["readonly", "writable"])
@pytest.mark.parametrize("is_writable", [True, False])
def test_a_block_gives_back_what_from_numpy_has_lent(mode, is_writable):
    x = np.arange(3.0)
    x.flags.writeable = is_writable
    with tn.from_numpy(x, mode=mode) as a:
        part = a[1:]
    with pytest.raises(tn.MovedError):
        part.tolist()
    assert x.flags.writeable == is_writable
    with tn.from_numpy(x, mode=mode)[1:]:  # also through a part of it
        pass


def test_the_end_of_a_block_with_an_array_tells_of_views_and_failures_but_hides_no_error():
    x = np.zeros(3)
    with pytest.raises(tn.LeaseConflict, match="a writable view of it"), tn.from_numpy(x) as a:
        held = np.asarray(a)
    assert not x.flags.writeable
    with pytest.raises(KeyError), a:
        raise KeyError
    del held
    other = tn.zeros(3)
    with other.write():
        tn.push(lambda v, w: None, tn.write(a), tn.write(other), on_conflict="ignore")
        with pytest.raises(tn.DeadlockError), a:
            pass
        with pytest.raises(KeyError), a:
            raise KeyError
    tn.waitall()

    def fail(_):
        raise ValueError("no data")

    with pytest.raises(tn.OpError, match="no data"), a:
        tn.push(fail, tn.write(a), on_conflict="ignore")
    assert x.flags.writeable
    with pytest.raises(ExceptionGroup):
        tn.waitall()


@pytest.mark.parametrize("is_native", [False, True])
def test_the_debug_mode_finds_a_broken_promise(monkeypatch, is_native):
    monkeypatch.setenv("TENON_DEBUG", "1")
    clear = tn.c_function(native_library.generators(), "void clear(void *bytes, size_t n)")
    a, b = tn.zeros(3), tn.zeros(3)
    held = np.asarray(a)
    lease = b.lease("w").detach()
    arguments = (clear, tn.overwrite(a), 12) if is_native else (tn.fill, tn.overwrite(a), 0)
    broken = tn.push(*arguments, on_conflict="ignore", reads=[b])
    held[0] = 5
    lease.release()
    with pytest.raises(tn.OpError, match="the promise of on_conflict='ignore' was broken"):
        broken.wait()
    tn.push(*arguments, on_conflict="ignore", overwrites=[a]).wait()
    assert held.tolist() == [0, 0, 0]
    with pytest.raises(ExceptionGroup):
        tn.waitall()


# ------------------------------------------------------------------- new memory beside readers


def test_copy_on_conflict_leaves_the_old_values_to_their_readers():
    a = tn.array([1.0, 2.0])
    reader = np.asarray(a.readonly())
    with pytest.raises(tn.LeaseConflict):
        tn.push(tn.fill, tn.overwrite(a), 5)
    tn.push(tn.fill, tn.overwrite(a), 5, on_conflict="copy").wait()
    assert a.tolist() == [5, 5]
    assert reader.tolist() == [1, 2]
    address = a.data_ptr
    tn.push(tn.fill, tn.overwrite(a), 6, on_conflict="copy").wait()
    assert a.data_ptr == address, "nobody reads the present version: it is overwritten in place"


@pytest.mark.slow
def test_copy_on_conflict_keeps_each_version_for_its_own_readers():
    a = tn.zeros(1000)
    kept = []
    for i in range(20):
        tn.push(tn.fill, tn.overwrite(a), i, on_conflict="copy")
        kept.append(np.asarray(a.readonly()))
    tn.waitall()
    assert [version[999] for version in kept] == list(range(20))


def test_ops_that_were_pushed_before_use_the_version_of_their_push():
    a, b = tn.ones(3), tn.zeros(3)
    gate = threading.Event()
    first = tn.push(lambda v, w: (gate.wait(600), w.__setitem__(..., v)), a, tn.overwrite(b))
    reader = np.asarray(a.readonly())
    tn.push(tn.fill, tn.overwrite(a), 8, on_conflict="copy").wait()
    gate.set()
    first.wait()
    assert (a.tolist(), b.tolist(), reader.tolist()) == ([8] * 3, [1] * 3, [1] * 3)


def test_copy_on_conflict_gives_a_moved_array_no_new_memory():
    moved, x = tn.zeros(3), np.zeros(3)
    moved.move_to_numpy()
    lent = tn.from_numpy(x, mode="readonly")
    with pytest.raises(tn.MovedError):  # after the conflict with x
        tn.push(lambda v, w: None, tn.overwrite(lent), tn.overwrite(moved), on_conflict="copy")
    with pytest.raises(tn.MovedError):
        moved.tolist()


def test_copy_on_conflict_is_for_whole_overwrites_beside_readers_only():
    a, b = tn.ones(4), tn.ones(4)
    address = a.data_ptr
    reader = np.asarray(a.readonly())
    with pytest.raises(tn.LeaseConflict):
        tn.push(lambda v: None, tn.write(a), on_conflict="copy")
    with pytest.raises(ValueError, match="a part of"):
        tn.push(tn.fill, tn.overwrite(a[:2]), 1, on_conflict="copy")
    writer = np.asarray(b)
    with pytest.raises(tn.LeaseConflict, match="writable view"):
        tn.push(tn.fill, tn.overwrite(b), 1, on_conflict="copy")
    with pytest.raises(tn.LeaseConflict):  # a is fine, b is not: nothing has happened to either
        tn.push(lambda v, w: None, tn.overwrite(a), tn.overwrite(b), on_conflict="copy")
    assert a.data_ptr == address
    assert (reader.tolist(), writer.tolist()) == ([1] * 4, [1] * 4)


def test_buffers_of_an_array_that_got_new_memory_keep_their_shape():
    a = tn.zeros((3, 4))
    views = [memoryview(a.readonly()) for _ in range(3)]
    old = memoryview(a.readonly())
    tn.push(tn.fill, tn.overwrite(a), 2, on_conflict="copy").wait()
    del a
    gc.collect()
    assert old.shape == (3, 4) and old.strides == (16, 4)
    assert all(view.tolist() == [[0.0] * 4] * 3 for view in views)


def test_the_original_of_from_numpy_keeps_the_old_version():
    x = np.ones(3)
    a = tn.from_numpy(x)
    tn.push(tn.fill, tn.overwrite(a), 4, on_conflict="copy").wait()
    assert a.tolist() == [4, 4, 4]
    assert x.tolist() == [1, 1, 1]
    assert x.flags.writeable, "nobody borrows it any more"


# ------------------------------------------------------------------------------------- collections


@contextlib.contextmanager
def counted_collections():
    """The generations that were collected by calls; the collector does not run by itself meanwhile."""
    found = []

    def note(phase, info):
        if phase == "start":
            found.append(info["generation"])

    gc.disable()
    gc.callbacks.append(note)
    try:
        yield found
    finally:
        gc.callbacks.remove(note)
        gc.enable()


class DeadCycle:
    def __init__(self, view):
        self.view, self.itself = view, self


def test_copy_on_conflict_beside_a_reader_collects_nothing():
    a = tn.zeros(3)
    with counted_collections() as collections:
        for i in range(3):
            reader = np.asarray(a.readonly())
            tn.push(tn.fill, tn.overwrite(a), i + 1, on_conflict="copy").wait()
            assert reader.tolist() == [i] * 3
    assert collections == []


def test_a_push_without_a_conflict_collects_nothing():
    a = tn.zeros(3)
    with counted_collections() as collections:
        for policy in ("raise", "wait", "copy"):
            tn.push(tn.fill, tn.overwrite(a), 1, on_conflict=policy).wait()
    assert collections == []


@pytest.mark.parametrize("policy", ["raise", "copy"])
def test_a_push_collects_the_young_generations_first_and_all_before_it_raises(policy):
    a = tn.zeros(3)
    hidden = np.array([None])  # the collector does not know what it refers to
    hidden[0] = np.asarray(a)
    with counted_collections() as collections, pytest.raises(tn.LeaseConflict):
        tn.push(tn.fill, tn.overwrite(a), 1, on_conflict=policy)
    assert collections == [1, 2]
    assert hidden[0].tolist() == [0, 0, 0]


# In a process of its own: after a call of unchecked() or from_pointer(), a push does not know whether a view
# that it finds is in its way.
REFUSALS = """
import gc, weakref
import numpy as np, tenon as tn

class Object:
    pass

collections = []
gc.disable()
gc.callbacks.append(lambda phase, info: phase == "start" and collections.append(info["generation"]))

def refused(a, policy="raise", on=""):
    collections.clear()
    try:
        tn.push(tn.fill, tn.overwrite(a), 1, on_conflict=policy).wait()
    except tn.LeaseConflict as conflict:
        assert on in str(conflict), conflict
        return collections[:]
    return "not", collections[:]

def dead(view):  # of the oldest generation
    cycle = Object()
    cycle.own, cycle.view = cycle, view
    gc.collect()
    return None
"""


def refusals(code):
    done = subprocess.run([sys.executable, "-c", REFUSALS + code], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    return [ast.literal_eval(line) for line in done.stdout.splitlines()]


def test_a_push_raises_without_a_full_collection_if_live_objects_refer_to_all_views():
    code = """
def cases():
    a = tn.zeros(3)
    x = np.asarray(a)
    for policy in ("raise", "copy"):
        print(refused(a, policy, "variable `x` of cases"))
    y, m, x = x[1:], memoryview(a), a.numpy()
    for name in "ymx":
        print(refused(a, on=f"variable `{name}` of cases"))
    del x, y, m
    o = Object()
    o.batch = np.asarray(a)
    print(refused(a, on="attribute `batch` of Object `o` of cases"))
    o.batch = [1, {"key": (o.batch,)}]
    print(refused(a, on="in item 'key' of the dict in item 1 of the list in attribute `batch` of Object `o`"))
    del o
    v = np.zeros(3)
    print(refused(tn.from_numpy(v), on="variable `v` of cases"))
    assert refused(a) == ("not", [])

cases()
b = tn.zeros(3)
z = np.asarray(b)
print(refused(b, on="variable `z` of module __main__"))
"""
    assert refusals(code) == [[1]] * 9


def test_a_push_collects_all_if_some_view_may_be_garbage():
    code = """
a = tn.zeros(3)
cycle = dead(np.asarray(a))
x = np.asarray(a)
print(refused(a, on="variable `x` of"))
del x

key = Object()
key.own = key
kept = weakref.WeakKeyDictionary({key: np.asarray(a)})
gc.collect()
del key
print(refused(a))

x = np.zeros(3)
a = tn.from_numpy(x)
x = dead(x)
z = np.asarray(a)
print(refused(a, on="variable `z` of"))
del z

x = np.zeros(3)
a = tn.from_numpy(x, mode="writable")
y = np.asarray(a)
y = dead(y)
print(refused(a, on="variable `x` of"))
del x
a = tn.zeros(3)

cycle = dead(np.asarray(a))
free = np.asarray(a.unchecked())
print(refused(a))
"""
    assert refusals(code) == [[1, 2], ("not", [1, 2]), [1, 2], [1, 2], ("not", [1, 2])]


@pytest.mark.parametrize("policy", ["raise", "copy"])
@pytest.mark.parametrize("is_old", [False, True])
def test_a_view_in_a_dead_cycle_is_no_conflict_whatever_its_age(policy, is_old):
    a = tn.zeros(3)
    address = a.data_ptr
    gc.collect()
    with counted_collections() as collections:
        cycle = DeadCycle(np.asarray(a))
        if is_old:
            gc.collect()
            collections.clear()
        del cycle
        tn.push(tn.fill, tn.overwrite(a), 1, on_conflict=policy).wait()
    assert collections == ([1, 2] if is_old else [1])
    assert (a.tolist(), a.data_ptr) == ([1, 1, 1], address)


@pytest.mark.parametrize("is_old", [False, True])
def test_a_block_collects_nothing_and_a_wait_behind_its_dead_views_ends(is_old):
    a = tn.zeros(3)
    gc.collect()
    with counted_collections() as collections, a.write() as v:
        op = tn.push(tn.fill, tn.overwrite(a), 1)
        cycle = DeadCycle(v[1:])
        if is_old:
            gc.collect()
            collections.clear()
        del cycle
    assert collections == []
    op.wait()
    assert a.tolist() == [1, 1, 1]


# -------------------------------------------------------------------------------------- unchecked


def test_an_unchecked_array_waits_for_nobody_and_nobody_for_it():
    a = tn.zeros(3)
    gate = threading.Event()
    op = tn.push(lambda v: gate.wait(600), tn.write(a))
    free = a.unchecked()
    free[...] = 3
    assert np.asarray(free).tolist() == [3, 3, 3]
    held = np.asarray(free)
    gate.set()
    op.wait()
    tn.push(tn.fill, tn.overwrite(a), 4).wait()
    assert held.tolist() == [4, 4, 4]
    address = a.data_ptr
    del a
    gc.collect()
    assert free.data_ptr == address and free.tolist() == [4, 4, 4]


def test_memory_that_is_used_unchecked_does_not_move_and_moved_memory_is_not_used_unchecked():
    a = tn.ones(3)
    free = a.unchecked()
    for array in (a, free):
        with pytest.raises(tn.LeaseConflict, match="unchecked"):
            array.move_to_numpy()
    del array, free
    x = a.move_to_numpy()
    with pytest.raises(tn.MovedError):
        a.unchecked()
    assert x.tolist() == [1] * 3


# ------------------------------------------------------------------------------------------- repr


def test_repr_never_waits_and_says_why_there_are_no_elements():
    a = tn.ones(3)
    assert repr(a) == "tenon.array([1., 1., 1.], dtype=float32)"
    gate, entered = threading.Event(), threading.Event()

    def slow(v):
        entered.set()
        gate.wait(600)
        v.fill(2)

    op = tn.push(slow, tn.overwrite(a), name="decode")
    entered.wait()
    assert repr(a) == "<tenon.NDArray of shape (3,), dtype=float32, pending: op 'decode'>"
    gate.set()
    op.wait()
    assert repr(a) == "tenon.array([2., 2., 2.], dtype=float32)"
    done = threading.Event()

    def hold():
        with a.write():
            entered.set()
            done.wait(10)

    entered.clear()
    thread = threading.Thread(target=hold)
    thread.start()
    entered.wait()
    assert "leased for writing by thread" in repr(a)
    done.set()
    thread.join()
    with a.write() as v:
        v[:] = 5
        assert repr(a) == "tenon.array([5., 5., 5.], dtype=float32)"

    def broken(_):
        raise RuntimeError("no")

    tn.push(broken, tn.write(a)).exception()
    assert repr(a) == (
        "<tenon.NDArray of shape (3,), dtype=float32, failed: op 'broken': a[...] = x overwrites it, "
        "a.clear_error() takes the elements as they are>"
    )
    a[...] = 0
    with pytest.raises(ExceptionGroup):
        tn.waitall()


@pytest.mark.parametrize("mode", ["readonly", "writable"])
def test_in_its_block_a_push_does_not_count_the_lent_array(mode):
    x, base = np.zeros(4), np.zeros(8)
    parts = [base[2:6]]
    for lent in (x, parts[0]):
        with tn.from_numpy(lent, mode=mode) as a:
            tn.push(tn.fill, tn.overwrite(a), 2)
            assert tn.push(lambda v: float(v.sum()), a[1:]).result() == 6
            tn.push(tn.fill, tn.overwrite(a[:1]), 3)
        assert lent.tolist() == [3, 2, 2, 2] and lent.flags.writeable


def test_a_view_of_the_array_counts_in_the_block_too():
    x = np.zeros(4)
    with tn.from_numpy(x) as a:
        view = np.asarray(a)
        with pytest.raises(tn.LeaseConflict, match="ordinary code holds a writable view"):
            tn.push(tn.fill, tn.overwrite(a), 2)
        del view
    assert x.flags.writeable


def test_outside_of_its_block_the_lent_array_counts_again():
    x = np.zeros(4)
    a = tn.from_numpy(x)
    with pytest.raises(tn.LeaseConflict, match=r"given to from_numpy\(\)"):
        tn.push(tn.fill, tn.overwrite(a), 2)
    kept = None
    with pytest.raises(tn.LeaseConflict), a:
        tn.push(tn.fill, tn.overwrite(a), 2)
        kept = np.asarray(a)
    with pytest.raises(tn.LeaseConflict):
        tn.push(lambda v: None, tn.write(a))
    del kept
    with pytest.raises(tn.LeaseConflict, match=r"given to from_numpy\(\)"):
        tn.push(tn.fill, tn.overwrite(a), 2)
    with a:
        tn.push(tn.fill, tn.overwrite(a), 4)
    assert x.tolist() == [4] * 4 and x.flags.writeable


def test_the_error_of_a_native_function_names_the_direct_call_first():
    clear = tn.c_function(native_library.generators(), "void clear(void *bytes, size_t n)")
    a = tn.ones(4)
    view = np.asarray(a)
    with pytest.raises(tn.LeaseConflict, match=r"To go on: call it without a push \(`clear\(\.\.\.\)`\)"):
        tn.push(clear, tn.overwrite(a), 16)
    clear(a, 16)
    assert view.tolist() == [0] * 4


def test_a_block_of_memory_that_has_moved_is_no_block_of_other_memory():
    """The owner of moved memory is freed, and the next borrow may have its address."""
    for _ in range(100):
        x, z = np.zeros(10), np.zeros(10)
        a = tn.from_numpy(x)
        del x
        y = a.move_to_numpy()
        del y
        b = tn.from_numpy(z)
        assert a.__enter__() is a
        with pytest.raises(tn.LeaseConflict):
            tn.push(tn.fill, tn.overwrite(b), 2)
        with pytest.raises(tn.MovedError):
            a.__exit__(None, None, None)
        with b:
            with pytest.raises(tn.MovedError):
                a.__exit__(None, None, None)
            tn.push(tn.fill, tn.overwrite(b), 3)
        assert z.tolist() == [3] * 10


def test_a_block_in_a_block_of_one_array_ends_no_other_block():
    for _ in range(100):
        x, z = np.zeros(4), np.zeros(4)
        with contextlib.suppress(tn.MovedError), tn.from_numpy(x) as a:
            with a:
                tn.push(tn.fill, tn.overwrite(a), 1)
            b = tn.from_numpy(z)
            b.__enter__()
        tn.push(tn.fill, tn.overwrite(b), 2)
        b.__exit__(None, None, None)
        assert x.tolist() == [1] * 4 and z.tolist() == [2] * 4


def test_in_its_block_an_array_gets_no_new_memory():
    x = np.zeros(4)
    with tn.from_numpy(x) as a:
        reader = np.asarray(a.readonly())
        with pytest.raises(tn.LeaseConflict, match="x would not get its elements: drop the views"):
            tn.push(tn.fill, tn.overwrite(a), 3, on_conflict="copy")
        del reader
        tn.push(tn.fill, tn.overwrite(a), 3, on_conflict="copy")
    assert x.tolist() == [3] * 4
