# SPDX-License-Identifier: Apache-2.0
"""Shared arrays and forks: inside of blocks, beside threads that hold leases, and before exec.

Each test is a separate program, because it forks without multiprocessing.
"""

import subprocess
import sys
import textwrap

import pytest
from other_process import SECONDS

PRELUDE = """
import gc, os, sys, threading, time, warnings
warnings.simplefilter("ignore", DeprecationWarning)
import numpy as np, tenon as tn

def child_of(work):
    '''Forks; work() is the child's life. Returns its exit status.'''
    sys.stdout.flush()
    pid = os.fork()
    if pid == 0:
        try:
            work()
            sys.stdout.flush()
        except BaseException as error:
            print("child:", type(error).__name__, error, flush=True)
            os._exit(1)
        os._exit(0)
    return wait_for(pid)

def wait_for(pid):
    end = time.monotonic() + 600
    while time.monotonic() < end:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.005)
    os.kill(pid, 9)
    os.waitpid(pid, 0)
    return "hangs"
"""


def run(program):
    """The lines that a program prints. It must succeed."""
    script = PRELUDE + textwrap.dedent(program)
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=SECONDS)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.splitlines()


def test_a_forked_child_uses_the_arrays_that_it_inherits():
    assert run("""
        a = tn.zeros(4, "int32", shared=True)
        def work():
            with a.write() as v:
                v[...] = 1
            a[0] = 2
            tn.push(tn.fill, tn.write(a[1:2]), 3).wait()
        print(child_of(work), a.tolist())
        del a
        b = tn.zeros(4, "int32", shared=True)
        print(child_of(lambda: b.__setitem__(0, 7)), b.tolist())
    """) == ["0 [2, 3, 1, 1]", "0 [7, 0, 0, 0]"]


def test_parent_and_child_exclude_each_other():
    assert run("""
        a = tn.zeros(1000, "int64", shared=True)
        def add():
            for _ in range(300):
                with a.write() as v:
                    seen = v.copy()
                    v[...] = seen + 1
        sys.stdout.flush()
        children = []
        for _ in range(2):
            pid = os.fork()
            if pid == 0:
                add()
                os._exit(0)
            children.append(pid)
        add()
        print([wait_for(pid) for pid in children], (a.asnumpy() == 900).all())
    """) == ["[0, 0] True"]


def test_a_child_of_a_child_takes_part_too():
    assert run("""
        a = tn.zeros(3, "int32", shared=True)
        def child():
            a[0] = 1
            def grandchild():
                a[1] = 2
                b = tn.zeros(3, shared=True)  # of its own
                b[0] = 1
            assert child_of(grandchild) == 0
            a[2] = 3
        print(child_of(child), a.tolist())
    """) == ["0 [1, 2, 3]"]


def test_an_array_that_a_child_makes_reaches_its_parent():
    assert run("""
        import pickle
        a = tn.zeros(3, "int32", shared=True)
        here, there = os.pipe()
        again, to_child = os.pipe()
        def child():
            b = tn.full(3, 8, "int32", shared=True)
            os.write(there, pickle.dumps(b))
            os.read(again, 1)
            os._exit(b.tolist()[0])
        sys.stdout.flush()
        pid = os.fork()
        if pid == 0:
            child()
        b = pickle.loads(os.read(here, 5000))
        b[0] = 9
        os.write(to_child, b"x")
        print(wait_for(pid), b.tolist())
    """) == ["9 [9, 8, 8]"]


def test_inside_of_a_block_the_child_has_no_right_until_its_views_are_gone():
    assert run("""
        a = tn.zeros(3, "int32", shared=True)
        block = a.write()
        v = block.__enter__()
        v[...] = 5
        def work():
            global v, block
            for attempt in (lambda: a.tolist(), lambda: a.lease("r"), lambda: np.asarray(a)):
                try:
                    attempt()
                    print("done?")
                except tn.LeaseConflict as error:
                    print("from before the fork" in str(error))
            del v, block
            gc.collect()
            tn.set_lock_timeout(0.2)
            try:
                a.tolist()
            except TimeoutError as error:
                print(f"process {os.getppid()}" in str(error))
        print(child_of(work))
        block.__exit__(None, None, None)
        print(a.tolist())
        def after():
            print(a.tolist())
        print(child_of(after))
    """) == ["True", "True", "True", "True", "0", "[5, 5, 5]", "[5, 5, 5]", "0"]


def test_the_advice_for_a_child_that_was_forked_inside_of_a_block_works():
    assert run("""
        import multiprocessing
        tn.set_lock_timeout(600)
        a = tn.zeros(3, "int32", shared=True)
        def work():
            try:
                print(a.tolist(), flush=True)
            except tn.LeaseConflict as error:
                here, there = "drop it here, and leave the block that has it", "fork outside of that block"
                print(str(error).endswith(f"{here}, or {there}"), flush=True)
        def started():
            process = multiprocessing.get_context("fork").Process(target=work)
            process.start()
            process.join()
        for mode in (a.read, a.write):
            pid = 0
            with mode() as v:
                started()
                sys.stdout.flush()
                pid = os.fork()
                if pid == 0:
                    work()
                    del v
            if pid == 0:  # it has left the block
                work()
                with a.write(timeout=600) as v:
                    v += 1
                os._exit(0)
            wait_for(pid)
            started()
    """) == ["True", "True", "[0, 0, 0]", "[1, 1, 1]", "True", "True", "[1, 1, 1]", "[2, 2, 2]"]


def test_a_lease_of_the_parent_s_is_not_the_child_s():
    assert run("""
        a = tn.zeros(3, "int32", shared=True)
        lease = a.lease("w")
        def work():
            lease.release()  # nothing happens to the parent's
            tn.set_lock_timeout(0.2)
            try:
                a[0] = 1
                print("written?")
            except TimeoutError as error:
                print(f"process {os.getppid()}" in str(error))
        print(child_of(work))
        a[1] = 2
        lease.release()
        def later():
            a[2] = 3
        print(child_of(later), a.tolist())
    """) == ["True", "0", "0 [0, 2, 3]"]


def test_a_block_that_a_child_leaves_is_not_the_parent_s():
    """`with a.write(): os.fork()`, and both processes leave the block."""
    assert run("""
        a = tn.zeros(3, "int32", shared=True)
        sys.stdout.flush()
        with a.write() as v:
            v[...] = 4
            pid = os.fork()
        if pid == 0:
            a[0] = 1
            os._exit(0)
        print(wait_for(pid), a.tolist())
    """) == ["0 [1, 4, 4]"]


def test_a_fork_while_another_thread_holds_an_array():
    assert run("""
        a, b = tn.zeros(3, "int32", shared=True), tn.zeros(3, "int32", shared=True)
        entered, leave = threading.Event(), threading.Event()
        def hold():
            with a.write() as v:
                v[...] = 6
                entered.set()
                leave.wait()
        thread = threading.Thread(target=hold)
        thread.start()
        entered.wait()
        def work():
            b[0] = 1
            tn.set_lock_timeout(0.2)
            try:
                a.tolist()
                print("read?")
            except (TimeoutError, tn.LeaseConflict) as error:
                text = str(error)
                print(f"process {os.getppid()}" in text or "before the fork" in text)
        print(child_of(work))
        leave.set()
        thread.join()
        def after():
            print(a.tolist(), b.tolist())
        print(child_of(after))
    """) == ["True", "0", "[6, 6, 6] [1, 0, 0]", "0"]


def test_a_fork_while_a_thread_waits_for_another_process():
    assert run("""
        import subprocess, pickle
        a = tn.zeros(3, "int32", shared=True)
        code = "import pickle, sys, tenon as tn; a = pickle.loads(bytes.fromhex(sys.argv[1]));"
        code += " l = a.lease('w');"
        code += "print('held', flush=True); sys.stdin.readline(); l.release(); print('free', flush=True);"
        code += "sys.stdin.readline()"
        command = [sys.executable, "-c", code, pickle.dumps(a).hex()]
        holder = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        holder.stdout.readline()
        thread = threading.Thread(target=lambda: a.__setitem__(0, 1))
        thread.start()
        time.sleep(0.2)
        def work():
            tn.set_lock_timeout(0.2)
            try:
                a.tolist()
            except TimeoutError as error:
                print(f"process {holder.pid}" in str(error))
        print(child_of(work))
        holder.stdin.write("\\n")
        holder.stdin.flush()
        thread.join(600)
        print(thread.is_alive(), a.tolist())
        holder.communicate()
    """) == ["True", "0", "False [1, 0, 0]"]


@pytest.mark.slow
def test_many_forks_beside_a_thread_that_writes():
    assert run("""
        a = tn.zeros((4, 100), "int64", shared=True)
        end = threading.Event()
        def write():
            while not end.is_set():
                for row in a:
                    with row.write() as v:
                        v += 1
        thread = threading.Thread(target=write)
        thread.start()
        def work():
            tn.set_lock_timeout(15)
            for row in a:
                try:
                    values = row.tolist()
                except tn.LeaseConflict:
                    continue  # the thread had it at that moment, and its view will not go
                assert len(set(values)) == 1, values
        results = {child_of(work) for _ in range(40)}
        end.set()
        thread.join()
        print(results, all(len(set(row.tolist())) == 1 for row in a))
    """) == ["{0} True"]


def test_a_child_that_dies_in_its_block_is_told_of():
    assert run("""
        a = tn.zeros(3, "int32", shared=True)
        def work():
            global lease
            lease = a.lease("w")
            os._exit(0)
        print(child_of(work))
        try:
            a.tolist()
        except tn.OwnerDied as error:
            print("told")
        a.clear_error()
        print(a.tolist())
    """) == ["0", "told", "[0, 0, 0]"]


def test_a_child_outlives_the_parent_that_made_the_array():
    assert run("""
        here, there = os.pipe()
        back, to_middle = os.pipe()
        sys.stdout.flush()
        middle = os.fork()
        if middle == 0:
            a = tn.full(1000, 3, "int32", shared=True)
            if os.fork() == 0:
                os.read(back, 1)
                b = tn.zeros(1000, "int32", shared=True)
                with a.write() as v:
                    v += 1
                os.write(there, b"%d %d" % (a.tolist()[999], b.tolist()[0]))
                os._exit(0)
            os._exit(0)
        print(wait_for(middle))
        os.write(to_middle, b"x")
        print(os.read(here, 100).decode())
    """) == ["0", "4 0"]


def test_exec_gives_back_what_the_process_held():
    assert run("""
        import pickle
        a = tn.zeros(3, "int32", shared=True)
        b = tn.zeros(3, "int32", shared="exec-%d" % os.getpid())
        def work():
            lease = b.lease("r")
            held = a.lease("w")
            os.execv(sys.executable, [sys.executable, "-c", "print('another program')"])
        print(child_of(work))
        b[0] = 1  # the reader is gone
        try:
            a.tolist()
        except tn.OwnerDied:
            print("told")
        a.clear_error()
        print(a.tolist(), b.tolist())
    """) == ["another program", "0", "told", "[0, 0, 0] [1, 0, 0]"]


def test_a_program_that_is_executed_inherits_no_file():
    lines = run("""
        a = tn.zeros(3, "int32", shared=True)
        import subprocess
        print(subprocess.run([sys.executable, "-c", "import os; print([os.readlink(f'/proc/self/fd/{n}') "
              "for n in os.listdir('/proc/self/fd') if os.path.exists(f'/proc/self/fd/{n}')])"],
              close_fds=False, capture_output=True, text=True).stdout)
    """)
    assert "tenon" not in lines[0] and "memfd" not in lines[0], lines


@pytest.mark.parametrize("way", ["os._exit(0)", "sys.exit(0)", "os.abort()", "os.kill(os.getpid(), 9)"])
def test_the_interpreter_ends_in_every_way_with_arrays_and_leases(way):
    script = PRELUDE + textwrap.dedent(f"""
        a = tn.zeros(3, "int32", shared=True)
        lease = a.lease("w")
        v = np.asarray(a)
        op = tn.push(tn.fill, tn.write(tn.zeros(3, shared=True)), 1)
        {way}
    """)
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=SECONDS)
    assert done.returncode == {"o": 0, "s": 0}.get(way[0], 1) or "abort" in way or "kill" in way
    assert "Traceback" not in done.stderr, done.stderr
