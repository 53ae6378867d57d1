# SPDX-License-Identifier: Apache-2.0
"""Ops where they meet the process: its end, forks, signals, logs. Each test is a program of its own."""

import os
import re
import subprocess
import sys
import textwrap

import pytest


def run(script, **options):
    return subprocess.run(
        [sys.executable, "-W", "ignore::DeprecationWarning", "-c", textwrap.dedent(script)],
        capture_output=True,
        text=True,
        timeout=600,
        env={**os.environ, **options},
    )


def test_a_program_ends_with_queued_ops_and_live_views():
    done = run("""
        import time, numpy as np, tenon as tn
        a, b = tn.zeros(3), tn.zeros(3)
        x = np.asarray(b)
        lease = a.lease("w")
        ops = [tn.push(tn.fill, tn.write(a), i) for i in range(100)]
        print("end", flush=True)
        begin = time.monotonic()
        import atexit
    """)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "end\n"
    assert "ops are left behind at exit" in done.stderr
    assert "behind a lease for writing" in done.stderr or "a lease for writing, taken at" in done.stderr


def test_a_forked_child_runs_ops_of_its_own_and_none_of_the_parent_s():
    done = run("""
        import os, threading, tenon as tn
        gate, entered = threading.Event(), threading.Event()
        a, b = tn.zeros(3), tn.zeros(3)
        def slow(x):
            entered.set()
            gate.wait()
            x += 1
        op = tn.push(slow, tn.write(a))
        behind = tn.push(tn.fill, tn.write(a), 5)
        entered.wait()
        child = os.fork()
        if child == 0:
            try:
                a.tolist()
            except tn.OpError as error:
                print("process forked" in str(error), behind.done())
            tn.push(tn.fill, tn.overwrite(b), 2).wait()
            a[...] = 7
            print(a.tolist(), b.tolist(), flush=True)
            os._exit(0)
        print("child:", os.waitpid(child, 0)[1])
        gate.set()
        behind.wait()
        print(a.tolist(), b.tolist())
    """)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines == [
        "True True",
        "[7.0, 7.0, 7.0] [2.0, 2.0, 2.0]",
        "child: 0",
        "[5.0, 5.0, 5.0] [0.0, 0.0, 0.0]",
    ], (lines, done.stderr)


def test_a_destructor_of_a_body_may_wait_for_its_op():
    done = run("""
        import faulthandler, time, tenon as tn
        faulthandler.dump_traceback_later(60, exit=True)
        a, ops = tn.zeros(3), []
        class Waits:
            def __del__(self):
                ops[0].wait()
                print("waited", flush=True)
        captured = Waits()
        def body(x, captured=captured):
            time.sleep(0.1)  # another thread of the engine runs it meanwhile
            x[:] = 1
        ops.append(tn.push(body, tn.write(a)))
        del body, captured
        time.sleep(0.5)
        ops[0].wait()
        print("done", flush=True)
    """)
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.split()) == ["done", "waited"]


def test_a_task_helps_a_seeded_engine_while_another_thread_runs_a_body():
    done = run("""
        import asyncio, faulthandler, threading, time, tenon as tn
        faulthandler.dump_traceback_later(60, exit=True)
        tn.set_engine("seeded:1")
        a, b = tn.zeros(1), tn.zeros(1)
        tn.push(lambda x: time.sleep(0.3), tn.write(a))
        other = threading.Thread(target=tn.waitall)
        other.start()
        time.sleep(0.1)
        async def main():
            await tn.push(lambda x: None, tn.write(b))
        asyncio.run(main())
        other.join()
        print("done")
    """)
    assert (done.returncode, done.stdout) == (0, "done\n"), done.stderr


def test_the_engine_may_be_named_by_the_environment():
    done = run("import tenon as tn; print(tn.set_engine('inline')._before)", TENON_ENGINE="seeded:9")
    assert done.stdout == "seeded:9\n", done.stderr


@pytest.mark.parametrize("name", ["tbb", "pool ", "seeded:x"])
def test_an_engine_of_the_environment_that_does_not_exist_is_an_error_of_the_push(name):
    done = run(
        """
        import tenon as tn
        a = tn.zeros(3)
        for _ in range(2):
            try:
                tn.push(tn.fill, tn.overwrite(a), 1)
            except ValueError as error:
                print(error)
        tn.set_engine("inline")
        tn.push(tn.fill, tn.overwrite(a), 2).wait()
        print(a.tolist())
        """,
        TENON_ENGINE=name,
    )
    assert done.returncode == 0, done.stderr
    *errors, result = done.stdout.splitlines()
    assert len(errors) == 2 and result == "[2.0, 2.0, 2.0]", (done.stdout, done.stderr)
    known = "'seeded:1'" if name == "seeded:x" else "'pool', 'inline' and 'seeded:N'"
    for error in errors:
        assert error.startswith(f"TENON_ENGINE is '{name}': ") and known in error


@pytest.mark.parametrize(
    ("value", "unknown"),
    [("lease", "'lease'"), ("fields,LEASES", "'LEASES'"), ("leases, fields", "' fields'")],
)
def test_an_unknown_value_of_the_debug_mode_is_logged(value, unknown):
    done = run("import tenon", TENON_DEBUG=value)
    assert done.returncode == 0
    assert f"TENON_DEBUG is {value!r}: {unknown} is unknown" in done.stderr
    assert "'leases', 'fields' and 'values'" in done.stderr


@pytest.mark.parametrize("value", ["", "0", "1", "leases", "fields,leases", "1,leases"])
def test_known_values_of_the_debug_mode_are_not_logged(value):
    done = run("import tenon", TENON_DEBUG=value)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_ctrl_c_in_a_body_that_the_waiter_runs_reaches_the_waiter_and_fails_the_op():
    done = run("""
        import _thread, tenon as tn
        tn.set_engine("seeded:1")
        a = tn.zeros(3)
        def interrupted(v):
            _thread.interrupt_main()
            while True:
                pass
        op = tn.push(interrupted, tn.overwrite(a))
        try:
            op.wait()
        except KeyboardInterrupt:
            print("interrupted")
        try:
            a.tolist()
        except tn.OpError as error:
            print(repr(error.__cause__))
        a[...] = 1
        print(a.tolist())
    """)
    assert done.stdout.splitlines() == ["interrupted", "KeyboardInterrupt()", "[1.0, 1.0, 1.0]"], done.stderr


@pytest.mark.parametrize("wait", ["a.tolist()", "big[...] = 1", "np.asarray(a)", "op.wait()", "tn.waitall()"])
def test_ctrl_c_ends_every_wait_of_the_main_thread(wait):
    done = run(f"""
        import _thread, os, signal, threading, time, numpy as np, tenon as tn
        a, big = tn.zeros(3), tn.zeros(1 << 20)
        def hold():
            with a.write(), big.write():
                taken.set()
                over.wait(600)
        taken, over = threading.Event(), threading.Event()
        thread = threading.Thread(target=hold)
        thread.start()
        taken.wait()
        op = tn.push(tn.fill, tn.write(a), 1)
        threading.Timer(0.2, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
        try:
            {wait}
        except KeyboardInterrupt:
            print("interrupted", thread.is_alive())
        over.set()
        thread.join()
        op.wait()
        print(a.tolist())
    """)
    assert done.stdout.splitlines() == ["interrupted True", "[1.0, 1.0, 1.0]"], (done.stdout, done.stderr)


@pytest.mark.parametrize(("value", "seconds"), [("", 5.0), ("0.25", 0.25), ("60", 60.0)])
def test_the_period_of_reports_may_be_given_by_the_environment(value, seconds):
    done = run("from tenon import _core; print(_core.set_report_seconds(0))", TENON_REPORT_SECONDS=value)
    assert (done.stdout, done.stderr) == (f"{seconds}\n", "")


@pytest.mark.parametrize("value", ["0", "-1", "nan", "1e10", "5 s"])
def test_a_period_of_reports_that_cannot_be_used_is_logged_and_has_no_effect(value):
    done = run("from tenon import _core; print(_core.set_report_seconds(0))", TENON_REPORT_SECONDS=value)
    assert done.stdout == "5.0\n"
    assert done.stderr.startswith(f"TENON_REPORT_SECONDS is {value!r}, and has no effect: ")


@pytest.mark.slow
def test_a_wait_of_more_than_five_seconds_says_behind_whom():
    done = run("""
        import logging, threading, tenon as tn
        class Until(logging.Handler):
            def emit(self, record):
                print(f"{record.name}: {record.getMessage()}", flush=True)
                over.set()
        logging.getLogger("tenon").addHandler(Until())
        a = tn.zeros(3)
        def hold():
            with a.write():
                taken.set()
                over.wait(600)
        taken, over = threading.Event(), threading.Event()
        threading.Thread(target=hold).start()
        taken.wait()
        a.tolist()
    """)
    assert done.returncode == 0
    found = re.fullmatch(
        r"tenon: waiting for (\d+) s behind a lease for writing, taken at <string>:10\b.*\n", done.stdout
    )
    assert found and int(found[1]) >= 5, (done.stdout, done.stderr)


def test_a_fork_waits_for_the_body_that_runs():
    done = run("""
        import os, threading, time, tenon as tn
        a = tn.zeros(2)
        entered = threading.Event()
        def two_halves(v):
            v[0] = 1
            entered.set()
            time.sleep(0.3)
            v[1] = 1
        op = tn.push(two_halves, tn.write(a))
        entered.wait()
        child = os.fork()
        if child == 0:
            print(a.tolist(), flush=True)
            os._exit(0)
        os.waitpid(child, 0)
    """)
    assert done.stdout == "[1.0, 1.0]\n", done.stderr


@pytest.mark.parametrize("hold", ["tn.push(lambda x: wait(x), tn.write(a))", "lease()", "view_after_lease()"])
def test_a_forked_child_writes_what_a_thread_of_its_parent_was_writing(hold):
    done = run(
        f"""
        import gc, os, threading, tenon as tn
        a, kept = tn.zeros(3), []
        has_begun, go_on = threading.Event(), threading.Event()
        def wait(x):
            kept.append(x)
            has_begun.set()
            go_on.wait(60)
            kept.clear()
        def lease():
            def hold():
                with a.write() as v:
                    wait(v)
            threading.Thread(target=hold, daemon=True).start()
        def view_after_lease():
            def hold():
                lease = a.lease("w")
                view = memoryview(a)
                lease.release()
                wait(view)
            threading.Thread(target=hold, daemon=True).start()
        op = {hold}
        has_begun.wait(60)
        child = os.fork()
        if child == 0:
            tn.push(tn.fill, tn.overwrite(a), 1).wait()
            kept.clear()
            gc.collect()
            tn.push(tn.fill, tn.overwrite(a), 2).wait()
            print(a.tolist(), flush=True)
            os._exit(0)
        os.waitpid(child, 0)
        go_on.set()
        tn.waitall(60)
    """,
        TENON_ENGINE="pool",
    )
    assert done.stdout == "[2.0, 2.0, 2.0]\n", done.stderr


def test_a_refused_buffer_does_not_outlive_the_interpreter():
    done = run("""
        import tenon as tn
        a = tn.zeros(3)
        def fail(_):
            raise ValueError
        tn.push(fail, tn.write(a)).exception()
        try:
            memoryview(a)
        except tn.OpError:
            print("refused")
    """)
    assert (done.returncode, done.stdout) == (0, "refused\n"), done.stderr


@pytest.mark.parametrize("wait", ["a.lease('r')", "a.wait_to_read()", "a.__setitem__(..., 1)"])
def test_a_handler_that_gives_the_lease_back_and_raises_ends_the_wait_with_its_error(wait):
    done = run(f"""
        import os, signal, threading, tenon as tn
        class Stop(Exception):
            pass
        a = tn.zeros(3)
        def hold():
            held.append(a.lease("w").detach())
            taken.set()
        held, taken = [], threading.Event()
        threading.Thread(target=hold).start()
        taken.wait()
        def handler(*_):
            held.pop().release()
            raise Stop
        signal.signal(signal.SIGUSR1, handler)
        threading.Timer(0.2, lambda: os.kill(os.getpid(), signal.SIGUSR1)).start()
        try:
            {wait}
        except Stop as error:
            print("stopped", error.__cause__)
        print(a.tolist(), a.leases())
    """)
    assert done.stdout == "stopped None\n[0.0, 0.0, 0.0] []\n", (done.stdout, done.stderr)


@pytest.mark.parametrize("push", ["tn.push(wait)", "tn.push(wait, a.unchecked())", "tn.push(wait, a)"])
def test_an_op_of_any_kind_has_failed_in_a_forked_child(push):
    done = run(f"""
        import os, threading, tenon as tn
        a = tn.zeros(3)
        gate = threading.Event()
        def wait(*_):
            gate.wait(600)
        op = {push}
        child = os.fork()
        if child == 0:
            try:
                op.wait(600)
            except tn.OpError as error:
                print("process forked" in str(error), flush=True)
            os._exit(0)
        os.waitpid(child, 0)
        gate.set()
        op.wait()
    """)
    assert done.stdout == "True\n", done.stderr


@pytest.mark.slow
def test_forks_beside_bodies_that_begin_and_end_do_not_hang():
    done = run("""
        import os, threading, time, tenon as tn
        a = [tn.zeros(3) for _ in range(4)]
        is_over = False
        def push():
            while not is_over:
                for array in a:
                    tn.push(lambda x: x.fill(1), tn.write(array)).wait()
        threads = [threading.Thread(target=push) for _ in range(2)]
        for thread in threads:
            thread.start()
        for _ in range(100):
            child = os.fork()
            if child == 0:
                os._exit(0)
            os.waitpid(child, 0)
        is_over = True
        for thread in threads:
            thread.join()
        print("ended")
    """)
    assert done.stdout == "ended\n", (done.stdout, done.stderr)


def test_a_child_that_comes_back_from_a_body_ends():
    done = run("""
        import os, tenon as tn
        a = tn.zeros(1)
        children = []
        def body(x):
            child = os.fork()
            if child != 0:
                children.append(child)
            x += 1
        tn.push(body, tn.write(a)).wait()
        print([os.waitstatus_to_exitcode(os.waitpid(c, 0)[1]) for c in children], a.tolist())
    """)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "[70] [1.0]\n"
    assert "the op goes on in the parent alone" in done.stderr
