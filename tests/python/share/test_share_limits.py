# SPDX-License-Identifier: Apache-2.0
"""Exhausted memory, file descriptors and places; and constant resources while arrays come and go.

What changes a limit of the process, or needs one that no other program uses, is a program of its own.
"""

import asyncio
import concurrent.futures
import gc
import os
import pickle
import subprocess
import sys
import textwrap
import threading
import time

import pytest
from other_process import SECONDS, await_shared_kib_below, files_open, maps, shared_kib

import tenon as tn


def run(program, *arguments):
    script = "import gc, os, resource, sys, time, numpy as np, tenon as tn\n" + textwrap.dedent(program)
    command = [sys.executable, "-c", script, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.splitlines()


@pytest.mark.parametrize("nbytes", [2**40, 2**46, 2**50, 2**59])
@pytest.mark.parametrize("name", [True, "too-large"])
def test_too_much_memory_is_an_error_with_numbers_when_it_is_made(nbytes, name):
    tn.zeros(1, shared=True)
    before = shared_kib(), files_open(), maps()
    with pytest.raises(MemoryError, match=str(nbytes)):
        tn.empty(nbytes, "int8", shared=name)
    after = files_open(), maps()
    assert after[0] <= before[1] and after[1] <= before[2] + 2
    await_shared_kib_below(before[0] + 64 * 1024)
    assert tn.zeros(3, shared=name).tolist() == [0] * 3


def test_shapes_that_overflow_are_refused():
    for shape in ((2**62, 2**62), (-1,), (2**63,), (2**61,)):
        with pytest.raises((ValueError, OverflowError)):
            tn.zeros(shape, shared=True)


def test_the_limit_of_open_files_is_said():
    lines = run("""
        resource.setrlimit(resource.RLIMIT_NOFILE, (40, 40))
        kept = []
        for what in range(2):
            try:
                for i in range(100):
                    kept.append(tn.zeros(3, shared=f"limit-{os.getpid()}-{i}"))
            except OSError as error:
                print(type(error).__name__, "no file descriptor is left" in str(error), "40" in str(error))
            n, kept = len(kept), []
            gc.collect()
        print(n > 10, tn.zeros(3, shared=True).tolist())
    """)
    assert lines == ["OSError True True", "OSError True True", "True [0.0, 0.0, 0.0]"]


def test_at_the_limit_of_open_files_attaching_and_opening_say_so(other):
    name = f"limit-{os.getpid()}"
    a, b = tn.zeros(3, shared=name), tn.zeros(3, shared=True)
    data = pickle.dumps(b)
    other.ask("import resource, pickle, tenon._array.pickle")
    other.ask("resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))")
    other.ask("kept = []\ntry:\n    while True: kept.append(open('/dev/null'))\nexcept OSError: pass")
    for code in ("tn.attach(name)", "pickle.loads(data).tolist()", "tn.zeros(3, shared=True)"):
        with pytest.raises(OSError, match="file descriptor"):
            other.ask(code, name=name, data=data)
    other.ask("kept.clear()")
    assert other.ask("tn.attach(name).tolist()") == other.ask("pickle.loads(data).tolist()") == [0] * 3
    assert a.tolist() == b.tolist()


def test_where_addresses_are_short_a_smaller_pool_will_do():
    lines = run("""
        size = int(open("/proc/self/statm").read().split()[0]) * os.sysconf("SC_PAGESIZE")
        resource.setrlimit(resource.RLIMIT_AS, (size + (1 << 30),) * 2)
        a = tn.ones(1000, shared=True)
        print(a.tolist()[999])
        try:
            tn.ones(2 << 30, "int8", shared=True)
        except MemoryError as error:
            print(str(2 << 30) in str(error))
    """)
    assert lines == ["1.0", "True"]


def test_ten_thousand_arrays_come_and_go_without_a_trace(other):
    lines = run("""
        def state():
            gc.collect()
            with open("/proc/self/maps") as f:
                maps = sum(1 for line in f)
            with open("/proc/self/statm") as f:
                shared = int(f.read().split()[2]) * 4
            return len(os.listdir("/proc/self/fd")), maps, shared
        def some(n):
            for i in range(n):
                a = tn.zeros(1000 + i % 7, "float64", shared=True)
                if i % 10 == 0:
                    with a.write() as v:
                        v[...] = i
        some(2000)
        before = state()
        some(10_000)
        after = state()
        print(before, after)
        print(after[0] == before[0], after[1] <= before[1] + 2, after[2] <= before[2] + 4096)
    """)
    assert lines[1] == "True True True", lines


def test_names_come_and_go_without_a_trace():
    def some(n):
        for _ in range(n):
            a = tn.zeros(1000, shared=f"come-and-go-{os.getpid()}")
            b = tn.attach(f"come-and-go-{os.getpid()}")
            b[0] = 1
            del a, b

    some(20)
    gc.collect()
    before = files_open(), maps()
    some(200)
    gc.collect()
    for _ in range(10_000):
        if files_open() <= before[0] and maps() <= before[1] + 2:
            break
        time.sleep(0.05)
    else:
        pytest.fail(f"{before} became {files_open(), maps()}")


def test_thousands_of_arrays_live_at_a_time():
    n = 5000
    arrays = [tn.full(10, i, "int32", shared=True) for i in range(n)]
    files = files_open()
    assert all(arrays[i].tolist() == [i] * 10 for i in range(0, n, 97))
    assert files < 100


def test_many_leases_of_one_process_at_a_time(other):
    a = tn.zeros((400, 4), shared=True)
    leases = [row.lease("w") for row in a[:160]]
    with pytest.raises(tn.LeaseConflict, match=r"\(160 of one segment\), and holds all of them itself"):
        a[160].lease("w", timeout=0.05)
    woken = []
    thread = threading.Thread(target=lambda: woken.append(a[161].lease("w").detach()))
    thread.start()
    leases.pop().release()
    thread.join(SECONDS)
    assert woken
    for lease in leases + woken:
        lease.release()
    a[...] = 1
    assert other.ask("a.tolist()[399]", a=a) == [1] * 4


@pytest.mark.parametrize("waiting", ["tasks", "threads"])
def test_many_readers_that_wait_leave_room_for_a_call(other, waiting):
    n, a = 200, tn.zeros((64, 4), shared=True)
    other.ask("held = a.lease('w')", a=a)

    async def read(k):
        async with a[k % 64].read() as v:
            return v.tolist()

    def read_in_thread(k):
        with a[k % 64].read() as v:
            return v.tolist()

    async def main():
        if waiting == "tasks":
            readers = [asyncio.create_task(read(k)) for k in range(n)]
        else:
            readers = [asyncio.get_running_loop().run_in_executor(pool, read_in_thread, k) for k in range(n)]
        await asyncio.sleep(0.3)
        try:
            with pytest.raises(TimeoutError, match=r"process \d+ .* that holds it for writing"):
                a[0].lease("r", timeout=0.05)
        finally:
            other.ask("held.release()")
        return await asyncio.gather(*readers)

    with concurrent.futures.ThreadPoolExecutor(n) as pool:
        assert asyncio.run(main()) == [[0] * 4] * n
    other.ask("a[...] = 1")
    assert a.tolist() == [[1] * 4] * 64


def test_a_process_without_room_for_a_lease_is_told_behind_whom_it_waits(other):
    a = tn.zeros((400, 4), shared=True)
    other.ask("held = a.lease('w')", a=a)

    async def read(k):
        async with a[k].read():
            pass

    async def main():
        readers = [asyncio.create_task(read(k)) for k in range(200)]
        await asyncio.sleep(0.3)
        with pytest.raises(
            tn.LeaseConflict, match=r"160 of one segment.* wait behind process \d+ .* for writing"
        ):
            a[300].lease("r", timeout=0.05)
        other.ask("held.release()")
        await asyncio.gather(*readers)

    asyncio.run(main())


def test_any_number_of_ops_may_wait_for_shared_arrays(other):
    """Ops on one array, on several, and on arrays of another process, in one pool of memory."""
    n = 1000
    arrays = [tn.zeros(3, "int32", shared=True) for _ in range(n)]
    other.ask("kept = [a[0].lease('w') for a in arrays]", arrays=arrays[:50])
    ops = [tn.push(tn.fill, tn.overwrite(a), i) for i, a in enumerate(arrays)]
    for i in range(n - 3):
        ops.append(tn.push(add_up, arrays[i], arrays[i + 1], arrays[i + 2], tn.overwrite(arrays[i + 3])))
    other.ask("[lease.release() for lease in kept]")
    for op in ops:
        op.wait(SECONDS)
    expected = list(range(n))
    for i in range(n - 3):
        expected[i + 3] = (expected[i] + expected[i + 1] + expected[i + 2]) % 1000
    assert [a[0].item() for a in arrays] == expected


def add_up(a, b, c, out):
    out[...] = (a + b + c) % 1000


@pytest.mark.slow
def test_memory_of_large_arrays_is_given_back():
    n = 64 << 20
    tn.zeros(1, shared=True)
    gc.collect()
    time.sleep(1.5)
    before = shared_kib()
    for _ in range(8):
        arrays = [tn.ones(n, "int8", shared=True) for _ in range(4)]
        del arrays
    large = tn.ones(5 * n, "int8", shared=f"large-{os.getpid()}")
    del large
    await_shared_kib_below(before + 400 * 1024)  # a pool keeps 256 MiB for what comes next


@pytest.mark.slow
def test_more_participants_than_places():
    """As many processes can use an array at a time as it has places. The next one gets an error."""
    lines = run("""
        a = tn.zeros(3, "int32", shared=True)
        here, there = os.pipe()
        tried, tries = os.pipe()
        sys.stdout.flush()
        children = []
        for i in range(524):
            pid = os.fork()
            if pid == 0:
                os.close(there)
                try:
                    with a.write() as v:
                        v += 1
                    code = 0
                except tn.LeaseConflict as error:
                    code = 3 if "no room for another process" in str(error) else 4
                except BaseException as error:
                    code = 5
                os.write(tries, b".")
                os.read(here, 1)
                os._exit(code)
            children.append(pid)
        for _ in children:
            os.read(tried, 1)
        os.close(there)
        codes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in children]
        print(sorted(set(codes)), codes.count(0) == a.tolist()[0], codes.count(0) > 500)
        a[0] = 1
    """)
    assert lines == ["[0, 3] True True"]


def test_huge_pages_that_are_not_there_are_an_error():
    with open("/proc/sys/vm/nr_hugepages") as file:
        if int(file.read()) != 0:
            pytest.skip("there are huge pages")
    with pytest.raises(MemoryError, match=r"(?i)huge"):
        tn.zeros(3, shared=tn.Shared(huge_pages=True))


def test_options_of_shared_memory():
    a = tn.zeros(1 << 20, "int8", shared=tn.Shared(populate=True))
    assert a.shared and a[-1].item() == 0
    b = tn.zeros(3, shared=tn.Shared(numa_node=0))
    b[0] = 1
    assert b.tolist() == [1, 0, 0]
    for bad in (0, None, 1.5, b"x"):
        with pytest.raises(TypeError, match="shared"):
            tn.zeros(3, shared=bad)
