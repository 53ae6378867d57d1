# SPDX-License-Identifier: Apache-2.0
"""Processes take turns with a shared array: blocks, ops, calls, tasks; the errors of waits that are too
long."""

import asyncio
import logging
import multiprocessing as mp
import pickle
import re
import signal
import threading
import time
from pathlib import Path

import native_library
import numpy as np
import pytest
from other_process import SECONDS, Other

import tenon as tn


@pytest.fixture
def lock_timeout():
    """Sets the time limit of waits for other processes, for this test."""
    before = tn.set_lock_timeout(SECONDS)
    yield tn.set_lock_timeout
    tn.set_lock_timeout(before)


def add_in_turn(array, n, way):
    """Adds 1 to every element n times, in one of the ways that exclude each other."""
    for _ in range(n):
        if way == "block":
            with array.write() as v:
                seen = v.copy()
                v[...] = seen + 1
        elif way == "op":
            tn.push(add_one, tn.write(array)).wait()
        elif way == "lease":
            lease = array.lease("w")
            np.add(array, 1, out=np.asarray(array))
            lease.release()


def add_one(values):
    seen = values.copy()
    values[...] = seen + 1


def rows_by_turns(array, way, rounds):
    """In every row in turn: adds 1 to all elements, or only reads. Returns how many rows had unequal
    elements."""
    torn = 0
    for k in range(rounds * len(array)):
        row = array[k % len(array)]
        if way == "w":
            with row.write() as v:
                torn += int((v != v[0]).any())
                v += 1
        else:
            with row.read() as v:
                torn += int((v != v[0]).any())
    return torn


@pytest.mark.slow
@pytest.mark.parametrize("ways", [("block", "block"), ("block", "op"), ("op", "op"), ("lease", "block")])
def test_nothing_is_lost_between_writers_of_three_processes(ways, lock_timeout):
    context = mp.get_context("spawn")
    a = tn.zeros(1000, "int64", shared=True)
    n = 150
    processes = [context.Process(target=add_in_turn, args=(a, n, way)) for way in ways]
    for process in processes:
        process.start()
    add_in_turn(a, n, "block")
    for process in processes:
        process.join(SECONDS)
        assert process.exitcode == 0
    assert (a.asnumpy() == n * (len(ways) + 1)).all()


@pytest.mark.slow
def test_no_reader_sees_half_of_a_write(lock_timeout):
    a = tn.zeros((4, 5000), "int64", shared=True)
    with mp.get_context("spawn").Pool(3) as pool:
        ways = ["w", "r", "r", "w", "r", "w"]
        torn = pool.starmap_async(rows_by_turns, [(a, way, 60) for way in ways]).get(SECONDS)
        pool.close()
        pool.join()
    assert torn == [0] * len(ways)
    assert (a.asnumpy() == 60 * ways.count("w")).all()


def test_readers_of_several_processes_are_there_together(other, another):
    a = tn.zeros(4, shared=True)
    with a.read():
        for process in (other, another):
            process.ask("lease = a.lease('r')", a=a)
        assert len([h for h in a.leases() if h.kind == "process" and h.is_granted]) == 2
        other.ask("lease.release()")
        another.ask("lease.release()")


def test_writers_of_different_rows_are_there_together(other):
    a = tn.zeros((2, 4), shared=True)
    with a[0].write() as v:
        other.ask("lease = a[1].lease('w'); np.asarray(a[1])[...] = 2; a[1, 1] = 3", a=a)
        v[...] = 1
        other.start("a[0].tolist()")
        assert other.is_busy()
    assert other.answer() == [1] * 4
    other.ask("lease.release()")
    assert a.tolist() == [[1] * 4, [2, 3, 2, 2]]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("code", "answer"),
    [
        ("a[0] = 1", None),
        ("a[...] = 1", None),
        ("a.tolist()", [7, 7, 7]),
        ("a.copy().tolist()", [7, 7, 7]),
        ("a.item(1)", 7),
        ("list(a)[2].item()", 7),
        ("a.astype('float32').tolist()", [7, 7, 7]),
        ("b = tn.zeros(3, 'int32'); a.copyto(b)", None),
        ("tn.push(tn.fill, tn.overwrite(a), 1).wait()", None),
        ("tn.push(lambda x: x.tolist(), a).result()", [7, 7, 7]),
        ("a.lease('r').release()", None),
        ("(lambda b: b.__enter__().tolist())(a.read())", [7, 7, 7]),
    ],
)
def test_everything_that_needs_the_elements_waits_for_their_writer(code, answer, other, lock_timeout):
    a = tn.zeros(3, "int32", shared=True)
    other.ask("tn.set_lock_timeout(None)")
    lease = a.lease("w")
    other.start(code, a=a)
    assert other.is_busy()
    np.asarray(a)[...] = 7
    lease.release()
    assert other.answer() == answer


def test_ops_are_pushed_at_once_and_run_in_turn(other):
    a = tn.zeros(3, "int32", shared=True)
    other.ask("lease = a.lease('w')", a=a)
    ops = [tn.push(add_one, tn.write(a)) for _ in range(20)]
    native = tn.push(tn.fill, tn.write(a), 3)
    assert not any(op.done() for op in ops)
    other.ask("np.asarray(a)[...] = 100")
    other.ask("lease.release()")
    ops[-1].wait(SECONDS)
    native.wait(SECONDS)
    assert a.tolist() == [3, 3, 3]


def test_an_op_on_two_arrays_passes_both(other):
    a, b = tn.zeros(3, shared=True), tn.zeros(3, shared=True)
    for held in (a, b):
        other.ask("lease = held.lease('w')", held=held)
        op = tn.push(add_two, tn.write(a), tn.write(b))
        time.sleep(0.05)
        assert not op.done()
        other.ask("lease.release()")
        op.wait(SECONDS)
    assert a.tolist() == b.tolist() == [2] * 3


def add_two(x, y):
    x += 1
    y += 1


def test_native_functions_of_two_processes_take_turns(other, tmp_path):
    source = tmp_path / "add_slowly.c"
    source.write_text("""
        int add_slowly(long *data, unsigned long n) {
          for (unsigned long i = 0; i < n; ++i) {
            long seen = *(volatile long *)&data[i];
            for (volatile int k = 0; k < 50; ++k) {}
            data[i] = seen + 1;
          }
          return 0;
        }
    """)
    library = native_library.compiled(source)
    code = """
f = tn.c_function(library, "int add_slowly(int64_t *data, size_t n)")
for _ in range(30):
    tn.push(f, tn.write(a), a.size).wait()
    f(a, a.size)
"""
    a = tn.zeros(1000, "int64", shared=True)
    other.start(code, library=library, a=a)
    exec(code, {"tn": tn, "library": library, "a": a})
    other.answer()
    assert (a.asnumpy() == 120).all()


def test_tasks_wait_for_other_processes_without_a_thread(other):
    a = tn.zeros(3, "int32", shared=True)
    other.ask("lease = a.lease('w'); np.asarray(a)[...] = 5", a=a)
    steps = []

    async def write(i):
        async with a.write() as v:
            steps.append(i)
            v += 1

    async def main():
        tasks = [asyncio.create_task(write(i)) for i in range(5)]
        await asyncio.sleep(0.1)
        assert steps == []
        other.ask("lease.release()")
        await asyncio.wait_for(asyncio.gather(*tasks), SECONDS)

    asyncio.run(main())
    assert sorted(steps) == list(range(5)) and a.tolist() == [10] * 3


def test_a_task_that_waits_for_another_process_can_be_cancelled(other):
    a = tn.zeros(3, "int32", shared=True)
    other.ask("lease = a.lease('w')", a=a)

    async def main():
        async def write():
            async with a.write():
                pass

        task = asyncio.create_task(write())
        await asyncio.sleep(0.1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    other.ask("lease.release()")
    a[0] = 1


def test_a_wait_that_is_too_long_names_process_command_and_age(other, lock_timeout):
    a = tn.zeros(3, shared=True)
    other.ask("lease = a.lease('w')", a=a)
    lock_timeout(0.3)
    for attempt in (lambda: a.tolist(), lambda: a.read().__enter__(), lambda: a.lease("w", timeout=0.1)):
        begin = time.monotonic()
        with pytest.raises(
            TimeoutError, match=rf"process {other.pid} \(.*py.*\) that holds it for writing since [\d.]+ m?s"
        ):
            attempt()
        assert time.monotonic() - begin > 0.05
    other.ask("lease.release()")
    a[0] = 1


def test_the_time_may_be_set_and_is_told():
    before = tn.set_lock_timeout(1.5)
    assert tn.set_lock_timeout(None) == 1.5
    assert tn.set_lock_timeout(before) is None
    with pytest.raises((ValueError, TypeError)):
        tn.set_lock_timeout(-1)
    assert tn.set_lock_timeout(before) == before


def test_behind_its_own_process_a_block_waits_longer_than_that(lock_timeout):
    a = tn.zeros(3, shared=True)
    lock_timeout(0.05)
    entered, done = threading.Event(), []

    def hold():
        with a.write():
            entered.set()
            time.sleep(0.5)
            done.append(1)

    thread = threading.Thread(target=hold)
    thread.start()
    entered.wait()
    with a.write():
        assert done == [1]
    thread.join()


def test_a_stopped_holder_is_waited_for_and_not_robbed(other, lock_timeout):
    a = tn.zeros(3, "int32", shared=True)
    other.ask("lease = a.lease('w'); v = np.asarray(a); v[...] = 1", a=a)
    other.stop()
    lock_timeout(0.5)
    with pytest.raises(TimeoutError, match=f"process {other.pid} "):
        a.tolist()
    other.go_on()
    other.ask("v[...] = 2; del v; lease.release()")
    assert a.tolist() == [2] * 3


def test_who_came_first_goes_first(other, another):
    a = tn.zeros(3, "int32", shared=True)
    lease = a.lease("r")
    other.start("with a.write() as v: v[...] = v * 10 + 1", a=a)
    assert other.is_busy()
    another.start("a.tolist()", a=a)  # for reading, but behind the writer
    assert another.is_busy()
    lease.release()
    other.answer()
    assert another.answer() == [1] * 3


@pytest.mark.slow
def test_a_writer_is_not_starved_by_readers(other, another, lock_timeout, tmp_path):
    a = tn.zeros(3, "int32", shared=True)
    end = tmp_path / "end"
    for process in (other, another):
        process.start("while not os.path.exists(end):\n  with a.read(): pass", a=a, end=str(end))
    for _ in range(20):
        a[0] = 1  # a starved one would wait until its time-out
    end.touch()
    other.answer()
    another.answer()


# The thread that gets the error releases its lease, as a block does: then the others continue.
BEHIND = """
try:
    {}
finally:
    lease.release()
"""


def test_crossed_leases_of_two_processes_end_in_a_deadlock_error(other):
    a, b = tn.zeros(3, shared=True), tn.zeros(3, shared=True)
    other.ask("tn.set_lock_timeout(600)")
    before = tn.set_lock_timeout(600)
    with a.write():
        other.ask("lease = b.lease('w')", a=a, b=b)
        other.start(BEHIND.format("a.tolist()"))
        errors = 0
        try:
            b.tolist()
        except tn.DeadlockError as error:
            errors += 1
            assert str(other.pid) in str(error) and "in turn waits" in str(error)
    tn.set_lock_timeout(before)
    try:
        other.answer()
    except tn.DeadlockError:
        errors += 1
    assert errors
    assert a.tolist() == b.tolist() == [0] * 3


def test_crossed_leases_of_three_processes_end_in_a_deadlock_error(other, another):
    a, b, c = (tn.zeros(3, shared=True) for _ in range(3))
    before = tn.set_lock_timeout(600)
    for process in (other, another):
        process.ask("tn.set_lock_timeout(600)", a=a, b=b, c=c)
    other.ask("lease = b.lease('w')")
    another.ask("lease = c.lease('w')")
    errors = 0
    with a.write():
        other.start(BEHIND.format("c[0] = 1"))
        another.start(BEHIND.format("a[0] = 1"))
        try:
            b[0] = 1
        except tn.DeadlockError:
            errors += 1
    for process in (another, other):
        try:
            process.answer()
        except tn.DeadlockError:
            errors += 1
    tn.set_lock_timeout(before)
    assert errors


def test_an_export_that_continues_a_lease_is_in_no_deadlock(other, lock_timeout):
    """A thread of the library that has it may drop it at any time."""
    a, b = tn.zeros(3, shared=True), tn.zeros(3, shared=True)
    lease = a.lease("w")
    export = np.from_dlpack(a)
    lease.release()
    other.ask("lease = b.lease('w')", a=a, b=b)
    other.start("a[0] = 1\nlease.release()")
    assert other.is_busy()
    with pytest.raises(TimeoutError):
        b.lease("w", timeout=0.3)
    del export
    other.answer()
    assert a.tolist() == [1, 0, 0]


def test_a_wait_that_a_queue_of_others_ends_is_no_deadlock(other, another):
    """Waits for each other without a cycle: a chain of three processes."""
    a, b = tn.zeros(3, shared=True), tn.zeros(3, shared=True)
    lease = a.lease("w")
    other.ask("lease = b.lease('w')", a=a, b=b)
    other.start("a[0] = 1\nlease.release()")
    another.start("b[0] = 2", a=a, b=b)
    assert other.is_busy() and another.is_busy()
    lease.release()
    other.answer()
    another.answer()
    assert (a.tolist()[0], b.tolist()[0]) == (1, 2)


@pytest.mark.slow
def test_ctrl_c_ends_a_wait_for_another_process(other, another):
    a = tn.zeros(3, "int32", shared=True)
    other.ask("tn.set_lock_timeout(None)", a=a)
    for code in ("a.tolist()", "a.lease('w')", "with a.write(): pass"):
        lease = a.lease("w")
        other.start(code)
        assert other.is_busy()
        other.process.send_signal(signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            other.answer()
        lease.release()
        another.ask("a[0] = 1", a=a)  # what it waited for is not in the way


@pytest.mark.slow
def test_a_long_wait_is_logged(other):
    a = tn.zeros(3, shared=True)
    other.ask("lease = a.lease('w')", a=a)
    text = []

    class Until(logging.Handler):
        def emit(self, record):
            text.append(record.getMessage())
            other.ask("lease.release()")

    handler = Until()
    logging.getLogger("tenon").addHandler(handler)
    try:
        a.tolist()
    finally:
        logging.getLogger("tenon").removeHandler(handler)
    assert any(f"process {other.pid}" in line for line in text), text


def test_the_text_of_an_array_says_which_process_writes_it(other):
    a = tn.zeros(3, shared=True)
    other.ask("lease = a.lease('w')", a=a)
    assert f"leased for writing by process {other.pid}" in repr(a)
    holder = next(h for h in a.leases() if h.kind == "process")
    assert (holder.mode, holder.is_granted, holder.thread) == ("w", True, other.pid)
    assert holder.age >= 0 and holder.name
    other.ask("lease.release()")
    assert "0." in repr(a) and not a.leases()


def test_a_timeout_names_the_process_that_holds_the_array_and_the_time(other):
    a = tn.zeros(3, shared=True)
    other.ask("lease = a.lease('w')", a=a)
    process = rf": process {other.pid} .*holds it for writing"

    async def write():
        async with a.write(timeout=0.05):
            pass

    def overwrite():
        a[...] = 1

    before = tn.set_lock_timeout(0.2)
    try:
        with pytest.raises(TimeoutError, match=r"\(0\.05 s\)" + process), a.write(timeout=0.05):
            pass
        with pytest.raises(TimeoutError, match=r"\(0\.05 s\): .*" + str(other.pid)):
            asyncio.run(write())
        with pytest.raises(TimeoutError, match=r"\(0\.2 s\)" + process), a.read():
            pass
        with pytest.raises(TimeoutError, match=r"\(0\.2 s\)" + process):
            overwrite()
    finally:
        tn.set_lock_timeout(before)
    other.ask("lease.release()")
    asyncio.run(write())


def test_the_version_moves_with_the_writes_of_others(other):
    a = tn.zeros(3, shared=True)
    seen = a.version
    other.ask("a.tolist()", a=a)
    assert a.version == seen
    other.ask("a.wait_to_write()")
    a.wait_to_write()
    assert a.version == seen, "a wait is no write"
    other.ask("a[0] = 1")
    assert a.version != seen


def test_threads_and_processes_take_turns_with_many_arrays(other, lock_timeout):
    """Every thread of two processes uses random pairs of arrays for an op, in a random order."""
    arrays = [tn.zeros(8, "int64", shared=True) for _ in range(6)]
    other.ask("tn.set_lock_timeout(None)")
    code = """
import random, threading
def add_two(x, y):
    x += 1
    y += 1
def work(seed):
    rng = random.Random(seed)
    for _ in range(100):
        i, k = rng.sample(range(len(arrays)), 2)
        tn.push(add_two, tn.write(arrays[i]), tn.write(arrays[k])).wait()
threads = [threading.Thread(target=work, args=(seed + i,)) for i in range(3)]
for thread in threads: thread.start()
for thread in threads: thread.join()
"""
    names = {"arrays": arrays, "tn": tn, "seed": 0}
    other.start(code, arrays=arrays, seed=10)
    exec(code, names)
    other.answer()
    totals = [set(array.tolist()) for array in arrays]
    assert all(len(total) == 1 for total in totals)
    assert sum(total.pop() for total in totals) == 2 * 3 * 100 * 2


def test_an_interpreter_that_ends_while_it_waits_leaves_no_wait(other):
    a = tn.zeros(3, shared=True)
    lease = a.lease("r")
    with Other() as waiter:
        waiter.start("a[0] = 1", a=a)
        assert waiter.is_busy()
        waiter.kill()
    assert other.ask("a.tolist()", a=a) == [0] * 3  # reads past the dead writer that waited
    lease.release()


def test_the_handle_of_an_array_that_others_hold_can_be_sent(other, another):
    a = tn.zeros(3, shared=True)
    other.ask("lease = a.lease('w')", a=a)
    data = pickle.dumps(a)
    another.ask("import pickle; b = pickle.loads(data)", data=data)
    other.ask("lease.release()")
    assert another.ask("b.tolist()") == [0] * 3


def test_names_in_messages_are_those_of_the_system(other):
    a = tn.zeros(3, shared=True)
    other.ask("lease = a.lease('w')", a=a)
    command = Path(f"/proc/{other.pid}/comm").read_text().strip()
    with pytest.raises(TimeoutError) as told:
        a.lease("r", timeout=0.05)
    assert re.search(rf"process {other.pid} \({re.escape(command)}\)", str(told.value))
