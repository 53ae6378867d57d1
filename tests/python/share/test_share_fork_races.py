# SPDX-License-Identifier: Apache-2.0
"""Forks at bad moments: while another thread attaches or creates a name, inside of an op's body, and forks
that fail. Each test is a separate program."""

import pytest
from test_share_fork import run


def test_a_fork_while_a_name_is_looked_for_leaves_the_name_usable():
    assert run("""
        import contextlib, itertools
        name = f"fork-{os.getpid()}"
        a = tn.zeros(4, shared=name)
        done = threading.Event()

        def attach():
            for i in itertools.count():
                if done.is_set():
                    return
                tn.attach(name)
                tn.attach(name, readonly=True)
                with contextlib.suppress(FileNotFoundError):
                    tn.attach(f"{name}-later")

        thread = threading.Thread(target=attach)
        thread.start()
        children = []
        for _ in range(40):
            read, write = os.pipe()
            pid = os.fork()
            if pid == 0:
                os.close(write)
                os.read(read, 1)
                os._exit(0)
            os.close(read)
            children.append((pid, write))
        done.set()
        thread.join()
        tn.attach(name)
        tn.zeros(4, shared=f"{name}-later")
        for pid, write in children:
            os.write(write, b"x")
            assert wait_for(pid) == 0
        print("ok")
    """) == ["ok"]


def test_a_fork_inside_of_a_body_whose_child_returns_ends_that_child_with_a_message():
    assert run("""
        a = tn.zeros(4, "int32", shared=True)
        b = tn.zeros(4, "int32")
        read, write = os.pipe()

        def body():
            held = [a, b]
            pid = os.fork()
            if pid == 0:
                os.dup2(write, 2)
                held.clear()
                return
            children.append(pid)
            array[0] = 7

        children = []
        for array in (a, b):
            op = tn.push(body, writes=[array])
            op.wait()
            print(wait_for(children.pop()))
        os.close(write)
        said = os.read(read, 10000).decode()
        print(said.count("inside of the body of op"), said.count("os._exit"))
        a[...] = 1
        tn.waitall()
        print(a.tolist(), b.tolist())
    """) == ["70", "70", "2 2", "[1, 1, 1, 1] [7, 0, 0, 0]"]


def test_a_fork_inside_of_a_body_whose_child_ends_there():
    assert run("""
        a = tn.zeros(4, "int32", shared=True)

        def body():
            pid = os.fork()
            if pid == 0:
                os._exit(5)
            print(wait_for(pid), flush=True)

        tn.push(body, writes=[a]).wait()
        tn.waitall()
        a[...] = 1
        print(a.tolist())
    """) == ["5", "[1, 1, 1, 1]"]


def test_forks_that_fail_use_up_no_place():
    assert run("""
        import ctypes, resource
        tn.zeros(4, "int32")[0] = 1  # what is imported later cannot be read by then
        import asyncio, tenon._array.pickle, tenon._sync.endings, tenon._sync.search, tenon._array.share
        os.setgid(12345)
        os.setuid(12345)
        ctypes.CDLL(None).prctl(4, 1, 0, 0, 0)  # PR_SET_DUMPABLE: this process may open its own files anew
        a = tn.zeros(4, "int32", shared=True)
        b = tn.zeros(4, "int32", shared=f"failing-{os.getpid()}")
        a[0] = b[0] = 1  # starts the threads of the library
        limits = resource.getrlimit(resource.RLIMIT_NPROC)
        resource.setrlimit(resource.RLIMIT_NPROC, (0, limits[1]))
        failed = 0
        for _ in range(300):
            try:
                pid = os.fork()
            except BlockingIOError:
                failed += 1
            else:
                if pid == 0:
                    os._exit(0)
                os.waitpid(pid, 0)
        resource.setrlimit(resource.RLIMIT_NPROC, limits)
        print(failed)

        def work():
            a[1] = 2
            b[1] = 2

        print(child_of(work), a.tolist(), b.tolist())
    """) == ["300", "0 [1, 2, 0, 0] [1, 2, 0, 0]"]


@pytest.mark.slow
def test_children_that_die_at_once_use_up_no_place():
    assert run("""
        import ctypes, signal
        a = tn.zeros(4, "int32", shared=True)
        a[0] = 1

        def work():
            a[1] = 2

        for _ in range(300):
            pid = os.fork()
            if pid == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        print(child_of(work), a.tolist())
    """) == ["0 [1, 2, 0, 0]"]
