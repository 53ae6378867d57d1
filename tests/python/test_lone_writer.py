# SPDX-License-Identifier: Apache-2.0
"""While a thread holds a lease for writing, what other threads do to the array waits, whatever views exist.
And a view that outlives its lease continues it."""

import gc
import logging
import os
import subprocess
import sys
import threading
import weakref

import numpy as np
import pytest
from other_thread import SECONDS, Other, until, waits_for

import tenon as tn

READS = {
    "snapshot": lambda a: a.snapshot(),
    "copy": lambda a: a.copy(),
    "tolist": lambda a: a.tolist(),
    "item": lambda a: [a[0].item(), a[7].item()],
    "astype": lambda a: a.astype("f8"),
    "operator": lambda a: a + 0,
    "comparison": lambda a: a == 1,
    "contains": lambda a: [2 not in a, 0 not in a],
    "ufunc": lambda a: np.add(a, 0),
    "ufunc with an output": lambda a: np.add(a, 0, out=np.zeros(8, "i8")),
    "reduction": lambda a: [np.sum(a) // 8],
    "reduction of a ufunc": lambda a: [np.minimum.reduce(a), np.maximum.reduce(a)],
    "array function": lambda a: np.concatenate([a, a]),
    "nested arrays": lambda a: np.concatenate([a, (a, a)[1]]),
    "copy of numpy": lambda a: np.copy(a),
    "cast": lambda a: a.__array__("f8"),
    "array": lambda a: a.__array__(copy=True),
    "assignment from it": lambda a: _assigned_from(a),
    "view": lambda a: np.asarray(a).copy(),
    "memoryview": lambda a: memoryview(a).tolist(),
    "dlpack": lambda a: np.from_dlpack(a).copy(),
}


def _assigned_from(a):
    b = tn.zeros(8, "i8")
    b[...] = a
    return b


def _kept_view(array, kept):
    return None if kept is None else np.asarray(array if kept == "w" else array.readonly())


@pytest.mark.parametrize("kept", [None, "r", "w"])
@pytest.mark.parametrize("name", READS)
def test_what_reads_in_another_thread_sees_all_of_a_block_or_nothing(name, kept):
    a = tn.zeros(8, "i8")
    view = _kept_view(a, kept)
    with a.write() as v:
        v[:4] = 1
        other = waits_for(a, lambda: READS[name](a))
        v[4:] = 1
    assert list(np.asarray(other.value()).flat) == [1] * np.asarray(other.result).size
    del view


def _assign(a):
    a[...] = 5


def _assign_element(a):
    a[0] = 5


def _add_in_place(a):
    a += 5


def _add_at(a):
    np.add.at(a, [0], 5)


WRITES = {
    "assignment": _assign,
    "element": _assign_element,
    "operator": _add_in_place,
    "ufunc": lambda a: np.add(a, 5, out=a),
    "at": _add_at,
    "copyto": lambda a: np.copyto(a, 5),
    "array function": lambda a: np.clip(a, 5, 6, out=a),
    "fill_diagonal": lambda a: np.fill_diagonal(a.reshape(2, 4), 5),
    "copy_to": lambda a: tn.full(8, 5, "i8").copyto(a),
}


@pytest.mark.parametrize("kept", [None, "r", "w"])
@pytest.mark.parametrize("name", WRITES)
def test_what_writes_in_another_thread_waits_for_a_block(name, kept):
    a = tn.zeros(8, "i8")
    view = _kept_view(a, kept)
    with a.write() as v:
        other = waits_for(a, lambda: WRITES[name](a))
        assert v.tolist() == [0] * 8
        assert not other.has_ended
        del v
    other.value()
    assert a[0].item() == 5
    del view


@pytest.mark.parametrize("kept", [None, "r"])
def test_a_block_that_reads_lets_others_read_and_none_write(kept):
    a = tn.zeros(8, "i8")
    view = _kept_view(a, kept)
    with a.read():
        assert Other(lambda: np.add(a, 0).tolist()).value() == [0] * 8
        other = waits_for(a, lambda: _assign(a))
        assert not other.has_ended
    other.value()
    del view


def test_a_call_takes_all_of_its_arrays_at_once():
    a, b = tn.zeros(4, "i8"), tn.zeros(4, "i8")
    with b.write():
        other = waits_for(b, lambda: np.add(a, b, out=a))
        assert not other.has_ended
    other.value()
    stop = threading.Event()

    def add(x, y):
        while not stop.is_set():
            np.add(x, y, out=x)
            x += y

    threads = [Other(lambda: add(a, b)), Other(lambda: add(b, a))]
    for _ in range(300):
        tn.push(tn.fill, tn.overwrite(a), 0)
        tn.push(lambda x, y: None, tn.write(b), tn.write(a)).wait()
    stop.set()
    for thread in threads:
        thread.value()


# NumPy's functions.


def test_results_of_numpys_functions_are_numpys():
    a = tn.from_numpy(np.arange(12.0).reshape(3, 4).copy())
    n = np.arange(12.0).reshape(3, 4)
    for function in [
        np.mean, np.argsort, np.transpose, np.ravel, np.flip, np.linalg.norm, np.fft.fft, np.cumsum, np.shape,
        np.ndim, np.size, np.zeros_like, lambda x: np.split(x, 3), lambda x: np.where(x > 3, x, 0),
        lambda x: np.stack([x, x]), lambda x: np.einsum("ij->j", x), lambda x: np.dot(x, n.T),
        lambda x: np.broadcast_to(x, (2, 3, 4)), lambda x: np.reshape(x, (4, 3)),
        lambda x: np.array_equal(x, x),
    ]:  # fmt: skip
        np.testing.assert_array_equal(function(a), function(n))
        assert not isinstance(function(a), tn.NDArray)
    assert a.leases() == []


def test_a_result_on_the_memory_is_a_counted_view_of_it():
    a = tn.zeros((2, 3))
    for function in [
        lambda: np.reshape(a, (3, 2)), lambda: np.transpose(a), lambda: np.broadcast_to(a, (2, 2, 3)),
        lambda: np.split(a, 2), lambda: np.ravel(a),
    ]:  # fmt: skip
        result = function()
        assert [holder.kind for holder in a.leases()] == ["view"]
        a[...] = 7
        assert np.asarray(result).flat[0] == 7
        a[...] = 0
        del result
        assert a.leases() == []
    flat = np.ravel(a)
    flat[0] = 3  # writable as np.asarray(a) is
    assert a[0, 0].item() == 3


def test_an_output_comes_back_as_what_was_given():
    a, b = tn.zeros(4), tn.ones(4)
    assert np.add(b, 1, out=a) is a
    assert np.clip(b, 2, 3, out=a) is a
    assert np.cumsum(b, out=a) is a
    assert a.tolist() == [1, 2, 3, 4]
    quotient, remainder = np.divmod(a, 2, out=(b, None))
    assert quotient is b and isinstance(remainder, np.ndarray)
    assert np.concatenate([b[:2], b[2:]], out=a) is a
    assert a.leases() == [] and b.leases() == []


def test_writing_a_read_only_array_by_a_function_is_an_error():
    a = tn.zeros(4).readonly()
    for write in [lambda: np.copyto(a, 1), lambda: np.clip(a, 0, 1, out=a), lambda: np.put(a, [0], [1])]:
        with pytest.raises(ValueError, match="read-only"):
            write()


def test_under_an_overwriting_block_functions_write_to_memory_without_a_value():
    a = tn.zeros(4)
    with pytest.raises(ZeroDivisionError), a.write():
        raise ZeroDivisionError
    with pytest.raises(tn.OpError):
        np.add(tn.ones(4), 1, out=a)
    with a.write(overwrite=True):
        np.add(tn.ones(4), 1, out=a)
        a += 1
        np.clip(a, 0, 9, out=a)
    assert a.tolist() == [3] * 4


def test_other_types_of_arrays_are_asked_too():
    class Theirs:
        def __array_function__(self, func, types, args, kwargs):
            return "theirs"

    assert np.concatenate([tn.zeros(2), Theirs()]) == "theirs"


def test_a_function_that_numpy_calls_acts_under_the_call():
    a = tn.ones(3)
    assert np.frompyfunc(lambda x: x + a[0].item(), 1, 1)(a).tolist() == [2, 2, 2]
    with pytest.raises(tn.LeaseConflict, match=r"the call of .* allows reading only"):
        np.apply_along_axis(lambda row: a.__setitem__(0, 3) or row, 0, a)


def test_functions_on_a_shared_array_take_their_turn_and_views_need_a_lease():
    a = tn.zeros((2, 3), shared=True)
    assert np.add(a, 1).tolist() == [[1.0] * 3] * 2
    assert np.sum(a) == 0
    assert (a + 1).sum() == 6
    np.add(a, 1, out=a)
    np.copyto(a, 4)
    assert np.concatenate([a, a]).sum() == 48
    assert a.__array__(copy=True).sum() == 24
    for view in [lambda: np.asarray(a), lambda: np.reshape(a, (3, 2))]:
        with pytest.raises(tn.LeaseConflict, match="needs a lease"):
            view()
    with a.read():
        assert np.reshape(a, (3, 2)).shape == (3, 2)


# Views that outlive their lease.


def bound_view(a, mode="w"):
    lease = a.lease(mode)
    view = np.asarray(a if mode == "w" else a.readonly())
    lease.release()
    return view


@pytest.mark.parametrize("shared", [False, True])
def test_a_view_that_outlives_its_lease_keeps_others_out_until_it_is_gone(shared):
    a = tn.zeros(8, "i8", shared=shared)
    view = bound_view(a)
    others = [waits_for(a, lambda: a.snapshot().tolist())]
    others.append(Other(lambda: a.lease("w", timeout=SECONDS).release()))
    view[:] = 3
    assert a.tolist() == [3] * 8  # its own thread goes on
    with a.write() as v:
        v[:] = 4
        del v
    assert not any(other.has_ended for other in others)
    del view
    assert others[0].value() == [4] * 8
    others[1].value()


def test_a_waiter_is_told_of_the_view():
    a = tn.zeros(8, "i8")
    view = bound_view(a)
    with pytest.raises(TimeoutError, match=r"a writable view of it, taken at .*_writer.py:\d+ by thread"):
        Other(lambda: a.lease("r", timeout=0.01)).value()
    del view


def test_a_wait_that_only_the_waiters_own_view_could_end_is_a_deadlock():
    a = tn.zeros(8, "i8")
    view = bound_view(a, "r")
    with pytest.raises(tn.DeadlockError, match="a view of it, taken at"):
        a[0] = 1
    with pytest.raises(tn.DeadlockError), a.write():
        pass
    del view
    a[0] = 1


def test_a_view_of_a_dead_cycle_keeps_nobody_waiting():
    a = tn.zeros(8, "i8")
    gc.disable()
    try:
        for wait in [lambda: a.__setitem__(0, 1), lambda: Other(lambda: a.__setitem__(0, 1)).value()]:
            cycle = [bound_view(a, "r")]
            cycle.append(cycle)
            kept = weakref.ref(cycle[0])
            del cycle
            assert kept() is not None
            wait()
            assert kept() is None
    finally:
        gc.enable()


def test_a_push_against_a_bound_view_raises_and_one_from_the_block_waits():
    a = tn.zeros(8, "i8")
    lease = a.lease("w")
    op = tn.push(tn.fill, tn.overwrite(a), 9)
    view = np.asarray(a)
    lease.release()
    with pytest.raises(tn.LeaseConflict):
        tn.push(tn.fill, tn.overwrite(a), 1)
    assert a.tolist() == [0] * 8  # before the op
    with pytest.raises(tn.DeadlockError):
        op.wait()
    del view
    op.wait()
    assert a.tolist() == [9] * 8


@pytest.mark.slow
def test_a_view_that_keeps_others_waiting_is_logged_once_with_its_line(caplog):
    a = tn.zeros(8, "i8")
    view = bound_view(a)

    def messages():
        return [message for message in caplog.messages if "outlived its block" in message]

    with caplog.at_level(logging.WARNING, "tenon"):
        first = Other(lambda: a.lease("r").release())
        until(messages, "it is not logged")
        with pytest.raises(TimeoutError):
            Other(lambda: a.lease("r", timeout=1.3)).value()
        assert len(messages()) == 1 and "test_lone_writer.py" in messages()[0]
    del view
    first.value()


def run(code, **environment):
    return subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=True,
        env=os.environ | environment,
    )


def test_a_lease_beside_a_view_of_another_thread_is_logged_once_for_each_line():
    code = """
import threading, numpy as np, tenon as tn
a = tn.zeros(4)
x = np.asarray(a)
def leases():
    for _ in range(3):
        with a.write():
            pass
t = threading.Thread(target=leases); t.start(); t.join()
"""
    assert run(code, TENON_DEBUG="leases").stderr.count("granted beside a writable view") == 1
    assert "granted beside" not in run(code).stderr


def test_a_forked_child_does_not_wait_for_views_of_threads_that_it_does_not_have():
    code = """
import os, threading, numpy as np, tenon as tn
a = tn.zeros(4)
has_view, may_end = threading.Event(), threading.Event()
def keep():
    lease = a.lease("w"); x = np.asarray(a); lease.release(); has_view.set(); may_end.wait()
t = threading.Thread(target=keep); t.start(); has_view.wait()
pid = os.fork()
if pid == 0:
    a.lease("w", timeout=600).release()
    os._exit(0)
assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
may_end.set(); t.join()
"""
    run(code)


def test_a_process_that_dies_with_a_bound_view_frees_the_memory():
    name = f"bound-{os.getpid()}"
    a = tn.zeros(8, "i8", shared=name)
    code = """
import sys, numpy as np, tenon as tn
a = tn.attach(sys.argv[1])
lease = a.lease("w"); x = np.asarray(a); lease.release()
print("bound", flush=True)
sys.stdin.read()
"""
    child = subprocess.Popen(
        [sys.executable, "-c", code, name], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert child.stdout.readline() == "bound\n"
        with pytest.raises(TimeoutError, match=f"process {child.pid}"):
            a.lease("r", timeout=0.05)
        child.kill()
        child.wait(SECONDS)
        a.lease("r", timeout=SECONDS, on_owner_died="ignore").release()
    finally:
        child.kill()
        child.wait()
        child.stdin.close()
        child.stdout.close()
