# SPDX-License-Identifier: Apache-2.0
"""The failure of an op that no call has raised is logged once: when its last handle goes, or at exit."""

import asyncio
import gc
import logging
import multiprocessing.util
import os
import subprocess
import sys
import textwrap
import threading
import time

import numpy as np
import pytest
from other_thread import until

import tenon as tn

pytestmark = pytest.mark.usefixtures("nothing_stays_behind")

PHRASE = "the failure of an op was never retrieved"


class Records(logging.Handler):
    def __init__(self):
        super().__init__()
        self.texts = []

    def emit(self, record):
        self.texts.append((record.levelname, record.getMessage()))

    def unseen(self):
        return [text for _, text in self.texts if PHRASE in text]


@pytest.fixture
def log():
    handler = Records()
    logging.getLogger("tenon").addHandler(handler)
    yield handler
    logging.getLogger("tenon").removeHandler(handler)
    take_failures()


def take_failures():
    try:
        tn.waitall()
    except ExceptionGroup as group:
        return len(group.exceptions)
    return 0


def broken(*_):
    raise RuntimeError("no data")


def failed(*arguments, **options):
    op = tn.push(broken, *arguments, **options)
    until(op.done)
    return op


def test_the_last_handle_of_a_failure_logs_it_once_with_the_line_of_the_push(log):
    op = failed()
    assert log.unseen() == []
    del op
    until(log.unseen, "it was not logged")
    gc.collect()
    [(level, text)] = log.texts
    assert level == "ERROR"
    assert "op 'broken' failed (pushed at" in text and "test_unseen_failures.py" in text
    assert "RuntimeError: no data" in text


def test_an_op_whose_handle_is_dropped_before_it_fails_is_logged(log):
    tn.push(broken)
    until(log.unseen, "it was not logged")
    assert len(log.unseen()) == 1


def interrupted(*_):
    raise KeyboardInterrupt("by the body")


def test_an_interrupt_that_a_body_raises_in_a_thread_of_the_pool_is_logged(log):
    tn.push(interrupted)
    until(log.unseen, "it was not logged")
    [text] = log.unseen()
    assert "op 'interrupted' failed (pushed at" in text and "KeyboardInterrupt: by the body" in text


def test_an_interrupt_that_a_thread_raises_that_waits_is_not_logged(log):
    op = tn.push(interrupted)
    until(op.done)
    with pytest.raises(tn.OpError, match="by the body"):
        op.wait()
    del op
    gc.collect()
    assert log.unseen() == []


def test_an_interrupt_of_a_body_in_the_main_thread_is_raised_there_and_not_logged(log):
    with tn.set_engine("inline"):
        with pytest.raises(KeyboardInterrupt):
            tn.push(interrupted).wait()
        gc.collect()
        assert log.unseen() == []


def test_memory_without_a_value_keeps_the_failure_from_being_logged(log):
    a = tn.zeros(3)
    del_op = failed(tn.write(a))
    del del_op
    gc.collect()
    assert log.unseen() == []
    del a
    until(log.unseen, "it was not logged")
    assert len(log.unseen()) == 1


def test_a_full_overwrite_of_what_nobody_has_seen_logs_it(log):
    a = tn.zeros(3)
    failed(tn.write(a))
    a[...] = 1
    until(log.unseen, "it was not logged")


def test_ops_that_were_skipped_are_not_logged_beside_their_cause(log):
    a, b = tn.zeros(3), tn.zeros(3)
    ops = [failed(tn.write(a)), tn.push(np.copyto, tn.overwrite(b), a), tn.push(broken, b)]
    until(lambda: all(op.done() for op in ops))
    ops.clear()
    del a, b
    until(log.unseen, "it was not logged")
    assert len(log.unseen()) == 1


def raises(function):
    def sight(op, a):
        with pytest.raises(tn.OpError):
            function(op, a)

    return sight


def take(op, a):
    with pytest.raises(ExceptionGroup):
        tn.waitall()


def wait_for_successor(op, a):
    with pytest.raises(tn.OpError):
        tn.push(np.sum, a).wait()


async def _await(op):
    with pytest.raises(tn.OpError):
        await op


def in_block(op, a):
    with pytest.raises(tn.OpError), a.read():
        pass


SIGHTS = {
    "wait": raises(lambda op, a: op.wait()),
    "result": raises(lambda op, a: op.result()),
    "exception": lambda op, a: op.exception(),
    "await": lambda op, a: asyncio.run(_await(op)),
    "wait_to_read": raises(lambda op, a: a.wait_to_read()),
    "a read": raises(lambda op, a: a.tolist()),
    "a block": in_block,
    "a view": raises(lambda op, a: np.asarray(a)),
    "waitall": take,
    "a successor": wait_for_successor,
}


@pytest.mark.parametrize("sight", SIGHTS)
def test_a_failure_that_was_raised_is_not_logged(log, sight):
    a = tn.zeros(3)
    op = failed(tn.write(a))
    SIGHTS[sight](op, a)
    del op, a
    gc.collect()
    # Another one is logged after it would have been.
    tn.push(broken, name="another")
    until(log.unseen, "it was not logged")
    assert [("'another'" in text) for text in log.unseen()] == [True]


def test_waitall_gets_what_fails_while_it_waits_and_nothing_is_logged(log):
    main = threading.get_ident()

    def fail_later():
        if threading.get_ident() != main:  # else waitall() runs it
            until(lambda: sys._current_frames()[main].f_code.co_name == "waitall")
            time.sleep(0.02)  # for the call of the extension
        broken()

    for _ in range(10):
        tn.push(fail_later)  # has no handle
        assert take_failures() == 1
    assert log.unseen() == []


def test_a_failed_native_function_is_logged(log):
    op = tn.push(tn.c_function(None, "int abs(int i)"), 3)
    until(op.done)
    assert op.done()
    del op
    until(log.unseen, "it was not logged")
    assert "op 'abs' failed" in log.unseen()[0]


def test_a_block_that_an_exception_leaves_is_not_logged(log):
    a = tn.zeros(3)
    with pytest.raises(KeyError), a.write():
        raise KeyError("told")
    del a
    tn.push(broken, name="another")
    until(log.unseen, "it was not logged")
    assert len(log.unseen()) == 1


def run(script):
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)],
        capture_output=True,
        text=True,
        timeout=300,
        env=dict(os.environ),
        check=True,
    )


@pytest.mark.slow
def test_a_program_that_ends_logs_each_unseen_failure_once():
    result = run("""
        import tenon as tn
        a, b = tn.zeros(3), tn.zeros(3)
        def broken(x): raise RuntimeError("no data")
        op = tn.push(broken, tn.write(a))
        seen = tn.push(broken, tn.write(b), name="seen")
        seen.exception()
    """)
    assert result.stderr.count(PHRASE) == 1, result.stderr
    assert "op 'broken' failed (pushed at <string>:5)" in result.stderr


@pytest.mark.slow
def test_a_program_that_ends_with_an_unfinished_op_logs_its_failure():
    result = run("""
        import time
        import tenon as tn
        def broken():
            time.sleep(0.3)
            raise RuntimeError("no data")
        op = tn.push(broken)
    """)
    assert result.stderr.count(PHRASE) == 1, result.stderr


@pytest.mark.slow
def test_a_forked_child_does_not_log_the_failures_of_its_parent():
    result = run("""
        import os, sys
        import tenon as tn
        def broken(x): raise RuntimeError("no data")
        a, b = tn.zeros(3), tn.zeros(3)
        op = tn.push(broken, tn.write(a))
        while not op.done(): pass
        child = os.fork()
        if child == 0:
            del op, a
            own = tn.push(broken, tn.write(b), name="own")
            sys.exit()
        os.waitpid(child, 0)
    """)
    assert result.stderr.count("op 'broken' failed") == 1, result.stderr
    assert result.stderr.count("op 'own' failed") == 1, result.stderr


PROCESSES = """
    import multiprocessing, sys, time

    {first}

    def broken(x):
        raise RuntimeError("no data")

    def write(x, path):
        time.sleep(0.2)
        open(path, "w").write("done")

    def job(path):
        {then}
        tn.push(write, tn.write(tn.zeros(2)), path)
        tn.push(broken, tn.overwrite(tn.zeros(2)))

    if __name__ == "__main__":
        context = multiprocessing.get_context(sys.argv[1])
        process = context.Process(target=job, args=(sys.argv[2],))
        process.start()
        process.join()
        sys.exit(process.exitcode)
"""


@pytest.mark.parametrize("start", ["fork", "forkserver", "spawn"])
@pytest.mark.parametrize("imports", ["first", "then"])
def test_processes_of_multiprocessing_finish_their_ops_and_log_failures(start, imports, tmp_path):
    """Two of these kinds end without atexit. A task may be what imports the package first."""
    program = tmp_path / "program.py"
    lines = {"first": "", "then": ""} | {imports: "import tenon as tn"}
    program.write_text(textwrap.dedent(PROCESSES).format(**lines))
    file = tmp_path / "written"
    done = subprocess.run(
        [sys.executable, program, start, file], capture_output=True, text=True, timeout=600, check=False
    )
    assert (done.returncode, done.stderr.count(PHRASE)) == (0, 1), done.stderr
    assert file.read_text() == "done"


def test_threads_push_ops_after_the_target_of_a_process_has_ended():
    """multiprocessing waits for them, before CPython 3.14 after it has called its finalizers."""
    context = multiprocessing.get_context("fork")
    process = context.Process(target=_push_later)
    process.start()
    process.join(600)
    assert process.exitcode == 0


def _push_later():
    ended = threading.Event()
    threading._register_atexit(ended.set)  # when the process begins to wait for its threads

    def late():
        try:
            assert ended.wait(60)
            assert tn.push(np.sum, tn.ones(2)).result() == 2
        except BaseException:
            os._exit(1)

    threading.Thread(target=late).start()


def test_a_forked_child_does_not_take_the_failures_of_its_parent():
    a = tn.zeros(2)
    op = failed(tn.overwrite(a))
    until(op.done)
    child = os.fork()
    if child == 0:
        try:
            tn.waitall()
        except BaseException:
            os._exit(1)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    with pytest.raises(ExceptionGroup):
        tn.waitall()
