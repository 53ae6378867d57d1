# SPDX-License-Identifier: Apache-2.0
"""Leases and ops in asyncio: a task waits without a thread, acts under its own leases, and is told when it
waits for itself."""

import asyncio
import concurrent.futures
import contextlib
import gc
import logging
import os
import random
import re
import subprocess
import sys
import textwrap
import threading
import time

import native_library
import numpy as np
import pytest

import tenon as tn
from tenon import _core
from tenon._core import NativeLease
from tenon._sync import views as _views

pytestmark = pytest.mark.usefixtures("nothing_stays_behind", "no_op_is_left")


def run(script):
    return subprocess.run(
        [sys.executable, "-W", "ignore::DeprecationWarning", "-c", textwrap.dedent(script)],
        capture_output=True,
        text=True,
        timeout=600,
        env=os.environ,
    )


async def until_waiting(array, n=1):
    """Until n leases wait in the queue of the array."""
    while sum(holder.kind == "lease" and not holder.is_granted for holder in array.leases()) < n:
        await asyncio.sleep(0)


def test_a_task_acts_under_its_own_block():
    a = tn.zeros(3)

    async def main():
        async with a.write() as v:
            v[:] = 1
            async with a.read() as r:
                assert r.tolist() == [1, 1, 1]
            async with a[0:1].write() as w:
                w[:] = 2
            with a.read() as r:
                assert r.tolist() == [2, 1, 1]
        async with a.read():
            with pytest.raises(tn.LeaseConflict, match="lease for reading"):
                async with a.write():
                    pass

    asyncio.run(main())
    assert a.leases() == []


def test_no_python_code_runs_to_find_the_task():
    """The task is looked for under the lock of a queue."""
    a = tn.zeros(3)
    called = []

    async def main():
        async with a.write():
            sys.setprofile(lambda frame, event, arg: called.append((event, frame.f_code.co_name)))
            a[0] = 1
            b = a[1:]
            b += 1
            sys.setprofile(None)

    asyncio.run(main())
    assert a.tolist() == [1, 1, 1]
    assert ("call", "current_task") not in called


def test_tasks_that_wait_take_no_thread_of_the_executor():
    a = tn.zeros(3)

    async def read():
        async with a.read() as v:
            return v.tolist()

    async def main():
        loop = asyncio.get_running_loop()
        loop.set_default_executor(concurrent.futures.ThreadPoolExecutor(1))
        async with a.write() as v:
            readers = [asyncio.create_task(read()) for _ in range(20)]
            await until_waiting(a, 20)
            await asyncio.to_thread(v.fill, 3)
        assert await asyncio.gather(*readers) == [[3, 3, 3]] * 20

    asyncio.run(main())


def test_a_task_that_is_cancelled_leaves_the_queue_at_once():
    a = tn.zeros(3)
    lease = a.lease("r").detach()

    async def write():
        async with a.write():
            pass

    async def main():
        waiting = asyncio.create_task(write())
        await until_waiting(a)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert [holder.mode for holder in a.leases()] == ["r"]
        async with a.read():  # nothing is in its way
            pass

    asyncio.run(main())
    lease.release()


def test_a_task_that_is_cancelled_in_the_moment_of_the_grant_keeps_nothing():
    a = tn.zeros(3)
    with pytest.raises(ZeroDivisionError), a.write():
        raise ZeroDivisionError

    async def write():
        async with a.write(overwrite=True):
            raise AssertionError("it was cancelled")

    async def main():
        lease = NativeLease(a, True, True)
        lease.acquire()
        lease.detach()
        waiting = asyncio.create_task(write())
        await until_waiting(a)
        lease.fail("not written")
        assert [holder.is_granted for holder in a.leases()] == [True]
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert a.leases() == []

    asyncio.run(main())
    with pytest.raises(tn.OpError):  # no op has written it
        a.tolist()


def test_cancels_and_grants_of_another_thread_in_any_order_leave_nothing():
    seed = random.randrange(2**32)
    rng = random.Random(seed)
    a = tn.zeros(3)
    entered = 0

    async def write():
        nonlocal entered
        async with a.write() as v:
            entered += 1
            v[:] = 1

    async def main():
        for _ in range(300):
            lease = a.lease("w").detach()
            tasks = [asyncio.create_task(write()) for _ in range(2)]
            await until_waiting(a, 2)
            thread = threading.Thread(target=lease.release)
            thread.start()
            for _ in range(rng.randrange(4)):
                await asyncio.sleep(0)
            tasks[rng.randrange(2)].cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            thread.join()
            while a.leases():
                await asyncio.sleep(0)

    asyncio.run(main())
    assert entered >= 300, seed


@contextlib.contextmanager
def gil_kept(loop, monkeypatch):
    """The thread of the loop keeps the GIL, also between steps that follow at once: another thread that asks
    for it gets it only where the loop sleeps."""
    select = loop._selector.select
    before = sys.getswitchinterval()
    with monkeypatch.context() as patch:
        patch.setattr(loop._selector, "select", lambda seconds: [] if seconds == 0 else select(seconds))
        sys.setswitchinterval(1000)
        try:
            yield
        finally:
            sys.setswitchinterval(before)


@pytest.mark.parametrize("n_cancels", [0, 1, 2])
def test_a_task_that_gives_up_before_it_is_told_of_its_grant_holds_nothing(n_cancels, monkeypatch):
    """A worker grants the lease without the GIL, and cannot tell before it gets that. The task gives up in
    between: by its timeout, or because it is cancelled."""
    a = tn.ones(1000)
    clear = tn.c_function(native_library.generators(), "void clear(void *bytes, size_t n)", threadsafe=True)
    timeout = 0.01 if n_cancels == 0 else None

    async def write():
        try:
            async with a.write(timeout=timeout):
                raise AssertionError("it gave up")
        except BaseException as error:
            return error, [holder.kind for holder in a.leases()], a.tolist()

    async def main():
        loop = asyncio.get_running_loop()
        lease = a.lease("w").detach()
        tn.push(clear, tn.overwrite(a), a.nbytes)
        waiting = asyncio.create_task(write())
        await until_waiting(a)
        with gil_kept(loop, monkeypatch):
            lease.release()
            while [(holder.kind, holder.is_granted) for holder in a.leases()] != [("lease", True)]:
                pass  # the op runs, and its worker goes on to the lease
            end = loop.time() + 0.02
            while n_cancels == 0 and loop.time() < end:
                pass
            for _ in range(n_cancels):
                waiting.cancel()
                await asyncio.sleep(0)
                await asyncio.sleep(0)
            return await waiting

    error, holders, values = asyncio.run(main())
    assert isinstance(error, TimeoutError if n_cancels == 0 else asyncio.CancelledError)
    assert n_cancels != 0 or re.fullmatch(r"cannot .* in the time given \(0.01 s\)", str(error)), error
    assert (holders, values) == ([], [0] * 1000)


def test_a_task_that_has_waited_is_told_that_the_memory_holds_no_value():
    a = tn.zeros(3)

    async def main():
        async def read():
            async with a.read():
                pass

        with pytest.raises(ZeroDivisionError):
            async with a.write():
                reader = asyncio.create_task(read())
                await until_waiting(a)
                raise ZeroDivisionError
        with pytest.raises(tn.OpError):
            await reader
        assert a.leases() == []

    asyncio.run(main())


def test_a_block_that_has_waited_and_overwrites_heals_the_memory():
    a = tn.zeros(3)

    async def main():
        async def overwrite():
            async with a.write(overwrite=True) as v:
                v[:] = 6

        with pytest.raises(ZeroDivisionError):
            async with a.write():
                writer = asyncio.create_task(overwrite())
                await until_waiting(a)
                raise ZeroDivisionError
        await writer

    asyncio.run(main())
    assert a.tolist() == [6, 6, 6]


def test_an_ended_array_to_which_only_names_refer_by_now_is_in_the_way_of_no_task():
    """Nothing but the wait itself looks at the array again."""
    a, names = tn.ones(4), []

    async def keep():
        async with a.write() as v:
            names.extend([v, memoryview(v)])

    async def write():
        async with a.write():
            pass

    async def main():
        await asyncio.create_task(keep())
        waiter = asyncio.create_task(write())
        await until_waiting(a)
        names.pop()
        await asyncio.wait_for(waiter, 60)

    gc.disable()
    try:
        asyncio.run(main())
    finally:
        gc.enable()


def test_an_op_behind_the_task_s_own_block_is_told_not_awaited():
    a = tn.zeros(3)

    async def main():
        async with a.write():
            op = tn.push(tn.fill, tn.overwrite(a), 1)
            with pytest.raises(tn.DeadlockError):
                await op
        await op

    asyncio.run(main())
    assert a.tolist() == [1, 1, 1]


def test_two_tasks_that_wait_for_each_other_are_told():
    a, b = tn.zeros(3), tn.zeros(3)
    told = []

    async def both(first, second, others, mine):
        async with first.write():
            mine.set()
            await others.wait()
            try:
                async with second.write():
                    pass
            except tn.DeadlockError as error:
                told.append(error)

    async def main():
        x, y = asyncio.Event(), asyncio.Event()
        await asyncio.gather(both(a, b, x, y), both(b, a, y, x))

    asyncio.run(main())
    assert len(told) == 1


def test_a_task_and_a_thread_that_wait_for_each_other_are_told():
    a, b = tn.zeros(3), tn.zeros(3)
    told = []

    def hold_b(is_held):
        try:
            with b.write():
                is_held.set()
                with a.write():
                    pass
        except tn.DeadlockError:
            told.append("thread")

    async def main():
        is_held = threading.Event()
        async with a.write():
            thread = threading.Thread(target=hold_b, args=(is_held,))
            thread.start()
            is_held.wait()
            op = tn.push(tn.fill, tn.overwrite(b), 1)
            try:
                await op
            except tn.DeadlockError:
                told.append("task")
        await asyncio.to_thread(thread.join)
        try:
            await op
        except tn.OpError:
            pass

    asyncio.run(main())
    assert len(told) == 1
    b.clear_error()


def test_an_await_that_was_cancelled_is_no_wait_any_more():
    a, b = tn.zeros(3), tn.zeros(3)

    async def other(is_held, end):
        async with b.write():
            is_held.set()
            await end.wait()
            async with a.write() as v:  # the task that holds a does not wait for b any more
                v[:] = 2

    async def main():
        is_held, end = asyncio.Event(), asyncio.Event()
        second = asyncio.create_task(other(is_held, end))
        await is_held.wait()
        async with a.write():
            op = tn.push(tn.fill, tn.overwrite(b), 1)
            asyncio.get_running_loop().call_later(0.01, asyncio.current_task().cancel)
            with pytest.raises(asyncio.CancelledError):
                await op
            end.set()
            await until_waiting(a)
        await second
        await op

    asyncio.run(main())
    assert a.tolist() == [2, 2, 2] and b.tolist() == [1, 1, 1]


@pytest.mark.parametrize("engine", ["pool", "inline", "seeded:1"])
def test_ops_are_awaited_under_every_engine(engine):
    a = tn.zeros(3)

    def add(x, n):
        x += n
        return n

    async def main():
        async with a.write():
            op = tn.push(add, tn.write(a), 1)
            waiting = asyncio.ensure_future(_result(op))
            await asyncio.sleep(0.01)
            assert not op.done()
        assert await waiting == 1
        ops = [tn.push(add, tn.write(a), i) for i in range(20)]
        assert await asyncio.gather(*ops) == list(range(20))

    with tn.set_engine(engine):
        asyncio.run(main())
        assert a.tolist() == [191] * 3


async def _result(op):
    return await op


def test_a_lease_that_a_task_takes_is_the_task_s():
    a = tn.zeros(3)

    async def owner(take, is_held, end):
        lease = take()
        with lease:
            is_held.set()
            await end.wait()
            assert a.tolist() == [0, 0, 0]

    async def main():
        for take in (lambda: a.lease("w"), a.write):
            is_held, end = asyncio.Event(), asyncio.Event()
            task = asyncio.create_task(owner(take, is_held, end))
            await is_held.wait()
            with pytest.raises(tn.DeadlockError):  # while this task sleeps in a call, the other cannot end
                a[0] = 5
            end.set()
            await task

    asyncio.run(main())
    a[0] = 5


def test_every_task_acts_under_the_lease_of_its_thread():
    a = tn.zeros(3)

    async def main():
        async with a.write() as v:
            v[:] = 4

    with a.write():
        asyncio.run(main())
    assert a.tolist() == [4, 4, 4]


def test_a_long_wait_of_a_task_is_reported(quick_reports, caplog):
    a = tn.zeros(3)
    lease = a.lease("w").detach()

    async def read():
        async with a.read():
            pass

    async def main():
        reader = asyncio.create_task(read())
        op = tn.push(tn.fill, tn.overwrite(a), 1)
        waiting = asyncio.create_task(_result(op))
        while len(caplog.records) < 4:
            await asyncio.sleep(0.01)
        lease.release()
        await asyncio.gather(reader, waiting)

    with caplog.at_level(logging.WARNING, "tenon"):
        asyncio.run(main())
    texts = [record.getMessage() for record in caplog.records]
    assert any("s behind a lease for writing, taken at" in text and __file__ in text for text in texts)
    assert any("s behind the op 'fill' that writes it, pushed at" in text for text in texts)


def test_tasks_that_wait_for_one_holder_share_reports_and_searches(quick_reports, caplog, monkeypatch):
    a, n = tn.zeros(3), 50
    searches = []
    search = _views._search
    monkeypatch.setattr(_views, "_search", lambda *given: searches.append(given) or search(*given))
    lease = a.lease("w")
    kept = [np.asarray(a)]
    lease.detach()
    began = time.monotonic()

    async def read():
        async with a.read():
            pass

    async def main():
        readers = [asyncio.create_task(read()) for _ in range(n)]
        while len(caplog.records) < 4 or time.monotonic() < began + 2:
            await asyncio.sleep(0.01)
        kept.clear()
        lease.release()
        await asyncio.gather(*readers)

    with caplog.at_level(logging.WARNING, "tenon"):
        asyncio.run(main())
    seconds = time.monotonic() - began
    reports = [record for record in caplog.records if "s behind" in record.getMessage()]
    assert 3 < len(reports) <= 1 + seconds / 0.09, "not one for each task"
    assert 0 < len(searches) <= 1 + seconds, "not one for each task"


def test_tasks_that_are_cancelled_or_run_out_of_time_do_not_search_each(monkeypatch):
    a, n = tn.zeros(3), 50
    searches = []
    search = _views._search
    monkeypatch.setattr(_views, "_search", lambda *given: searches.append(given) or search(*given))
    lease = a.lease("w")
    kept = [np.asarray(a)]
    lease.detach()

    async def read(timeout):
        async with a.read(timeout=timeout):
            pass

    async def main():
        readers = [asyncio.create_task(read(None)) for _ in range(n)]
        await asyncio.sleep(0.01)
        for reader in readers:
            reader.cancel()
        await asyncio.gather(*readers, return_exceptions=True)
        assert not searches, "nobody gets their texts"
        return await asyncio.gather(*[read(0.01) for _ in range(n)], return_exceptions=True)

    errors = asyncio.run(main())
    assert all(isinstance(error, TimeoutError) and "view is kept by: " in str(error) for error in errors)
    assert len(searches) < 3
    kept.clear()
    lease.release()


def test_a_loop_that_is_closed_is_not_told():
    done = run("""
        import asyncio, tenon as tn
        a = tn.zeros(3)
        lease = a.lease("w").detach()
        async def read():
            async with a.read():
                raise AssertionError("the loop is closed")
        async def wait(op):
            await op
        loop = asyncio.new_event_loop()
        op = tn.push(tn.fill, tn.overwrite(a), 1)
        tasks = [loop.create_task(wait(op)), loop.create_task(read())]
        loop.run_until_complete(asyncio.sleep(0.01))
        loop.close()
        assert len(a.leases()) == 3, a.leases()
        for task in tasks:
            task._log_destroy_pending = False
        lease.release()
        op.wait()
        assert a.leases() == [], a.leases()
        print(a.tolist())
    """)
    assert (done.stdout, done.stderr, done.returncode) == ("[1.0, 1.0, 1.0]\n", "", 0)


def test_a_forked_child_has_no_requests_of_the_parent_s_tasks():
    done = run("""
        import asyncio, os, threading, tenon as tn
        a = tn.zeros(3)
        end, is_held = threading.Event(), threading.Event()
        def hold():
            with a.write():
                is_held.set()
                end.wait()
        thread = threading.Thread(target=hold, daemon=True)
        thread.start()
        is_held.wait()
        async def read():
            async with a.read():
                pass
        async def main():
            reader = asyncio.create_task(read())
            while len(a.leases()) < 2:
                await asyncio.sleep(0)
            child = os.fork()
            if child == 0:
                status = 1
                try:
                    a[0] = 1
                    status = sum(holder.kind == "lease" for holder in a.leases())
                    reader.get_coro().close()  # a loop does not run on in a forked child
                except BaseException as error:
                    print(repr(error), flush=True)
                finally:
                    os._exit(status)
            assert os.waitpid(child, 0)[1] == 0
            end.set()
            await reader
        asyncio.run(main())
        thread.join()
        print("over")
    """)
    assert (done.stdout, done.returncode) == ("over\n", 0), done.stderr


def test_a_task_at_the_address_of_one_that_has_ended_is_a_stranger():
    a = tn.zeros(3)
    kept, numbers = [], []

    async def keep():
        with a.write() as v:
            kept.append(v[:2])
        numbers.append(_core.number_of_task(asyncio.current_task()))
        return id(asyncio.current_task())

    async def conflict_at(address):
        numbers.append(_core.number_of_task(asyncio.current_task()))
        if id(asyncio.current_task()) != address:
            return False
        with pytest.raises((TimeoutError, tn.DeadlockError)):
            a.lease("w", timeout=0)
        return True

    async def main():
        address = await asyncio.create_task(keep())
        return [await asyncio.create_task(conflict_at(address)) for _ in range(1000)]

    asyncio.run(main())
    assert len(set(numbers)) == 1001  # also where no task gets the address
    kept.clear()
