# SPDX-License-Identifier: Apache-2.0
"""The contract in Python: leases of blocks, views of ordinary code, and what each message says."""

import asyncio
import ctypes
import sys
import threading
import time

import native_library
import numpy as np
import pytest

import tenon as tn
from tenon import _core

pytestmark = pytest.mark.usefixtures("nothing_stays_behind", "no_op_is_left")


def here(offset=0):
    """'file:line' of the line that calls it, as messages name it."""
    frame = sys._getframe(1)
    return f"{frame.f_code.co_filename}:{frame.f_lineno + offset}"


def test_views_of_ordinary_code_are_one_party():
    a = tn.zeros(4)
    b, c = np.asarray(a), a.numpy()
    c[:] = 3
    a[:] = 5
    assert b.tolist() == c.tolist() == a.tolist() == [5] * 4


def test_a_push_that_conflicts_with_a_view_names_the_line_of_the_view():
    a = tn.zeros(4)
    x = np.asarray(a)
    line = here(-1)
    with pytest.raises(tn.LeaseConflict) as caught:
        tn.push(tn.fill, tn.overwrite(a), 1)
    assert line in str(caught.value)
    assert a.tolist() == [0] * 4
    assert [(h.kind, h.mode, h.site) for h in a.leases()] == [("view", "w", line)]
    del x, caught
    tn.push(tn.fill, tn.overwrite(a), 1).wait()
    assert a.tolist() == [1] * 4


def test_a_push_that_reads_lives_with_views_that_read():
    a = tn.ones(4).readonly()
    x = np.asarray(a)
    assert tn.push(lambda v: float(v.sum()), a).result() == 4
    assert x.tolist() == [1] * 4


def test_a_promise_that_views_stay_idle_lets_a_push_through():
    class Recorder:
        def __init__(self):
            self.array = tn.zeros(3)
            self.x = np.asarray(self.array)

        def fill(self, value):
            tn.push(tn.fill, tn.overwrite(self.array), value, on_conflict="ignore").wait()

    recorder = Recorder()
    for value in range(5):
        recorder.fill(value)
        assert recorder.x.tolist() == [value] * 3


def test_an_op_that_may_wait_runs_when_the_view_is_gone():
    a = tn.zeros(3)
    x = np.asarray(a)
    op = tn.push(tn.fill, tn.overwrite(a), 1, on_conflict="wait")
    with pytest.raises(TimeoutError):
        op.wait(0.01)
    assert x.tolist() == [0] * 3
    del x
    op.wait()
    assert a.tolist() == [1] * 3


def test_inside_a_block_the_thread_acts_under_its_lease():
    a = tn.zeros(4)
    with a.write() as v:
        v[:] = 1
        a[0] = 2
        assert "2., 1., 1., 1." in repr(a)
        assert np.asarray(a).tolist() == [2, 1, 1, 1]
        with a.read() as r:
            assert r.tolist() == [2, 1, 1, 1]
            assert not r.flags.writeable
        a += 1
    assert a.tolist() == [3, 2, 2, 2]


def test_writing_under_a_lease_for_reading_is_refused():
    a = tn.zeros(4)
    with a.read():
        with pytest.raises(tn.LeaseConflict, match="allows reading only"):
            a[0] = 1
        with pytest.raises(tn.LeaseConflict), a.write():
            pass
        assert not np.asarray(a).flags.writeable
    a[0] = 1


def test_work_pushed_during_a_block_runs_after_it():
    a = tn.zeros(4)
    with a.write() as v:
        op = tn.push(tn.fill, tn.overwrite(a), 9)
        assert not op.done()
        v[:] = 1
    op.wait()
    assert a.tolist() == [9] * 4


def test_waiting_for_work_behind_ones_own_block_is_a_deadlock_within_10_ms():
    a = tn.zeros(4)
    with a.write():
        op = tn.push(tn.fill, tn.overwrite(a), 9)
        seconds = [1.0]
        while min(seconds) >= 0.01:  # other processes may take the core away from some of them
            begin = time.perf_counter()
            with pytest.raises(tn.DeadlockError, match="the waiting code itself holds"):
                op.wait()
            seconds.append(time.perf_counter() - begin)
            assert len(seconds) < 1000, sorted(seconds)[:10]
        with pytest.raises(tn.DeadlockError):
            tn.waitall()
    op.wait()


def test_of_crossed_leases_at_least_one_is_refused_and_none_hangs():
    a, b = tn.zeros(2), tn.zeros(2)
    both = threading.Barrier(2)
    refused = []

    def cross(first, second):
        with first.write():
            both.wait(10)
            try:
                with second.write():
                    pass
            except tn.DeadlockError as error:
                refused.append(str(error))

    threads = [threading.Thread(target=cross, args=pair) for pair in ((a, b), (b, a))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(600)
        assert not thread.is_alive()
    assert refused


def test_what_only_the_block_s_frame_names_is_empty_after_it():
    m = tn.zeros((3, 2))
    with m.write() as v:
        for row in v:
            row[:] = 1
        img = v[2]
        part = img[1:]
        first = v[0, 0]
        op = tn.push(tn.fill, tn.overwrite(m), 4)
    op.wait()
    assert [x.shape for x in (v, row, img, part)] == [(0, 2), (0,), (0,), (0,)]
    assert first == 1
    assert m.leases() == []
    tn.push(tn.fill, tn.overwrite(m), 5).wait()
    assert m.tolist() == [[5, 5]] * 3


def test_a_tensor_that_is_gone_at_the_end_of_a_block_is_no_escape():
    torch = pytest.importorskip("torch")
    m = tn.zeros((3, 2))
    with m.write() as v:
        torch.from_numpy(v).fill_(3)
        op = tn.push(tn.fill, tn.overwrite(m), 4)
    op.wait()
    assert m.leases() == []


def test_a_debugger_that_looks_at_the_variables_is_no_escape():
    m = tn.zeros((3, 2))
    with m.write() as v:
        row = v[1]
        looked_at = sys._getframe().f_locals
        op = tn.push(tn.fill, tn.overwrite(m), 4)
    op.wait()
    assert row.shape == (0,)
    del looked_at


def test_work_behind_a_block_waits_for_a_view_that_outlives_it():
    m = tn.zeros((3, 2))
    kept = []
    with m.write() as v:
        kept.append(v[0])
        op = tn.push(tn.fill, tn.overwrite(m), 4)
    assert kept[0].shape == (2,)
    assert not op.done()
    kept.clear()
    op.wait()


def test_a_view_that_escapes_is_an_ordinary_view_where_nothing_waits():
    m = tn.zeros((3, 2))
    kept = []
    with m.write() as v:
        kept.append(v[0])
    assert [h.kind for h in m.leases()] == ["view"]
    with pytest.raises(tn.LeaseConflict):
        tn.push(tn.fill, tn.overwrite(m), 4)
    kept.clear()
    tn.push(tn.fill, tn.overwrite(m), 4).wait()


def test_an_escape_does_not_replace_an_exception_in_flight():
    m = tn.zeros(3)
    kept = []
    with pytest.raises(KeyError), m.write() as v:
        kept.append(v[:2])
        tn.push(tn.fill, tn.overwrite(m), 4)
        raise KeyError
    kept.clear()


def test_an_exception_in_a_write_leaves_no_value_until_an_overwrite():
    a = tn.zeros(3)
    with pytest.raises(ZeroDivisionError), a.write():
        raise ZeroDivisionError("division")
    for use in (a.tolist, lambda: np.asarray(a), lambda: a.read().__enter__(), a.wait_to_read):
        with pytest.raises(tn.OpError, match="ZeroDivisionError: division"):
            use()
    with a.write(overwrite=True) as v:
        v[:] = 1
    assert a.tolist() == [1] * 3
    with pytest.raises(ZeroDivisionError), a.write():
        raise ZeroDivisionError("division")
    a.clear_error()
    assert a.tolist() == [1] * 3


def test_a_lease_is_released_once_from_any_thread():
    a = tn.zeros(3)
    lease = a.lease("w")
    with pytest.raises(ValueError, match="mode"):
        a.lease("x")
    thread = threading.Thread(target=lease.release)
    thread.start()
    thread.join()
    lease.release()
    with a.lease("r"):
        assert [h.kind for h in a.leases()] == ["lease"]
    assert a.leases() == []


def test_a_detached_lease_is_waited_for_and_times_out():
    a = tn.zeros(3)
    lease = a.lease("r").detach()
    with pytest.raises(TimeoutError, match="a lease for reading"):
        a.lease("w", timeout=0.01)
    lease.release()
    a.lease("w", timeout=0.01).release()


def test_a_lease_that_is_dropped_is_released():
    a = tn.zeros(3)
    lease = a.lease("w")
    del lease
    a.lease("w", timeout=0).release()


def test_rows_are_leased_apart():
    m = tn.zeros((4, 8))
    done = []

    def fill(i):
        with m[i].write() as v:
            v[:] = i
            both.wait(10)
            done.append(i)

    both = threading.Barrier(4)
    threads = [threading.Thread(target=fill, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(600)
    assert sorted(done) == [0, 1, 2, 3]
    assert m[:, 0].tolist() == [0, 1, 2, 3]


def test_a_block_of_a_coroutine_belongs_to_its_task():
    a = tn.zeros(3)
    order = []

    async def write(value):
        async with a.write() as v:
            v[:] = value
            await asyncio.sleep(0.01)
            assert v.tolist() == [value] * 3
            order.append(value)

    async def main():
        await asyncio.gather(*(write(i) for i in range(4)))

    asyncio.run(main())
    assert sorted(order) == [0, 1, 2, 3]
    assert a[0].item() == order[-1]


def test_ctrl_c_ends_a_wait_for_a_view(tmp_path):
    import signal
    import subprocess

    script = """
import threading, numpy as np, tenon as tn
a = tn.zeros(3)
go, held = threading.Event(), threading.Event()
def hold():
    with a.write():
        held.set()
        go.wait()
thread = threading.Thread(target=hold)
thread.start()
held.wait()
try:
    print("waiting", flush=True)
    np.asarray(a)
except KeyboardInterrupt:
    print("interrupted", flush=True)
go.set()
thread.join()
print(np.asarray(a).tolist())
"""
    process = subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout.readline() == "waiting\n"
    time.sleep(0.3)  # so that it waits, as a rule; before that the signal is heard as well
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=600)
    assert (process.returncode, out, err) == (0, "interrupted\n[0.0, 0.0, 0.0]\n", "")


def test_a_tensor_made_once_is_used_between_blocks_that_refill_the_array():
    torch = pytest.importorskip("torch")
    a = tn.zeros(4)
    t = torch.from_dlpack(a)
    for i in range(5):
        with a.write() as v:
            v[:] = i
        assert t.tolist() == [i] * 4


def test_no_exchange_waits_for_nothing():
    assert _core.holders(tn.zeros(3)) == []


def test_the_original_of_a_lent_array_is_a_view_while_somebody_else_holds_it():
    x = np.zeros(4)
    a = tn.from_numpy(x)
    with pytest.raises(tn.LeaseConflict, match=r"`del x`.*mode="):
        tn.push(tn.fill, tn.overwrite(a), 1)
    assert tn.push(lambda v: float(v.sum()), a).result() == 0
    tn.push(tn.fill, tn.overwrite(a), 2, on_conflict="ignore").wait()
    assert x.tolist() == [2] * 4
    del x
    tn.push(tn.fill, tn.overwrite(a), 1)
    assert np.asarray(a).tolist() == [1] * 4


def test_the_original_of_an_array_that_both_may_write_conflicts_with_reads_too():
    x = np.zeros(4)
    a, b = tn.from_numpy(x, mode="writable"), tn.from_numpy(x, mode="writable")
    with pytest.raises(tn.LeaseConflict, match="reads memory of a NumPy array"):
        tn.push(lambda v: None, a)
    del x
    tn.push(tn.fill, tn.overwrite(a), 3).wait()
    assert b.tolist() == [3] * 4


def test_a_writable_base_of_the_original_conflicts_as_well():
    base = np.zeros(8)
    a = tn.from_numpy(base[2:6])
    with pytest.raises(tn.LeaseConflict, match="a base of it"):
        tn.push(tn.fill, tn.overwrite(a), 1)
    del base
    tn.push(tn.fill, tn.overwrite(a), 1).wait()


@pytest.mark.names_count
def test_a_moved_array_is_in_nobody_s_way():
    x = np.zeros(4)
    a = tn.from_numpy(x, mode="move")
    del x
    tn.push(tn.fill, tn.overwrite(a), 1).wait()
    assert a.tolist() == [1] * 4


def test_a_c_library_writes_in_a_block_while_another_thread_pushes_ops():
    scale = ctypes.CDLL(native_library.generators()).scale
    scale.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_float]
    n = 2_000_000
    ones, a = np.ones(n, "f4"), tn.zeros(n)
    torn = []

    def look(x):
        if x.min() != x.max():
            torn.append((x.min(), x.max()))

    def push():
        for i in range(40):
            tn.push(look, a)
            if i % 10 == 0:
                tn.push(tn.fill, tn.overwrite(a), -1).wait()

    thread = threading.Thread(target=push)
    thread.start()
    for i in range(40):
        with a.write() as v:
            scale(ones.ctypes.data, v.ctypes.data, n, float(i))
    thread.join()
    tn.waitall()
    assert torn == []


def test_the_error_after_a_failed_block_says_what_helps():
    a = tn.zeros(3)
    with pytest.raises(KeyError), a.write() as v:
        v[0] = 1
        raise KeyError("x")
    text = r"the values are invalid \(in a lease taken at \S*test_leases.py:\d+\): "
    with pytest.raises(tn.OpError, match=text) as told:
        a.tolist()
    assert "ended with KeyError: 'x'; write all of it (`a[...] = x`)" in str(told.value)
    assert "(`a.clear_error()`)" in str(told.value)
    a.clear_error()
    assert a.tolist() == [1, 0, 0]


def test_a_generator_that_is_left_early_leaves_no_value():
    a = tn.zeros(3)

    def rows():
        with a.write() as v:
            yield from v

    for _ in rows():
        break
    with pytest.raises(tn.OpError) as told:
        a.tolist()
    assert "ended with GeneratorExit (the generator that has this block was left early); " in str(told.value)
    with pytest.raises(KeyboardInterrupt), a.write(overwrite=True):
        raise KeyboardInterrupt
    with pytest.raises(tn.OpError, match="ended with KeyboardInterrupt; write all of it"):
        a.tolist()
