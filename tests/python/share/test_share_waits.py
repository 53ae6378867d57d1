# SPDX-License-Identifier: Apache-2.0
"""Waits for another process. That process logs the view that outlived its block, once, with the variable. The
waiting process reports what holds the memory there."""

import asyncio
import functools
import gc
import logging
import os
import re
import subprocess
import sys
import threading
import time

import pytest

import tenon as tn

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]

SECONDS = 60.0

LOG = """
import logging, threading
class Texts(logging.Handler):
    def __init__(self):
        super().__init__()
        self.texts = []
    def emit(self, record):
        self.texts.append(record.getMessage())
log = Texts()
logging.getLogger("tenon").addHandler(log)
number = threading.get_native_id()
"""
# A lease, and a view that outlives it, in the variable `kept` of the module.
KEEP = "lease = a.lease('w'); kept = a.numpy(); lease.release()"
# A lease of which a report names the line, in the process that holds it.
NOTED = re.compile(r"waiting for .*, taken at <told>:(\d+) by thread")


def hangs_on(name):
    """In a variable of the code that another process runs."""
    return rf"is kept by: (variable `{name}`|item '{name}') of "


def until(is_so, what):
    end = time.monotonic() + SECONDS
    while not is_so():
        assert time.monotonic() < end, what()
        time.sleep(0.02)


class Waiter(threading.Thread):
    def __init__(self, function):
        super().__init__(daemon=True)
        self.function, self.error = function, None
        self.start()

    def run(self):
        try:
            self.function()
        except BaseException as error:
            self.error = error

    def end(self):
        self.join(SECONDS)
        assert not self.is_alive()
        if self.error is not None:
            raise self.error


def _block(a):
    with a.write():
        pass


async def _async_block(a):
    async with a.write():
        pass


async def _await(a):
    await tn.push(tn.fill, tn.overwrite(a), 1)


WAITS = {
    "lease": lambda a: a.lease("r").release(),
    "block": _block,
    "call": lambda a: a.tolist(),
    "op": lambda a: tn.push(tn.fill, tn.overwrite(a), 1).wait(),
    "op that nobody waits for": lambda a: tn.push(tn.fill, tn.overwrite(a), 1) and None,
    "async block": lambda a: asyncio.run(_async_block(a)),
    "await": lambda a: asyncio.run(_await(a)),
}


@pytest.fixture
def patience():
    before = tn.set_lock_timeout(SECONDS)
    yield
    tn.set_lock_timeout(before)


def reports_of(holder):
    return [text for text in holder.ask("list(log.texts)") if "outlived its block" in text]


def test_the_log_of_the_holder_has_each_view_that_keeps_another_process_waiting_once(
    other, patience, quick_reports, caplog
):
    """It looks for them again and again. The note of each look is about another view, which the reports of
    the waits name: after three different notes, a whole look was made after all views were logged."""
    other.ask(LOG)
    expected = {}
    waiters = []
    for line, wait in enumerate(WAITS.values(), 1):
        a = tn.zeros(8, shared=True)
        other.ask("\n" * (line - 1) + KEEP.replace("kept", f"kept{line}"), a=a)
        waiters.append(Waiter(functools.partial(wait, a)))
        taken = rf"a writable view of it, taken at <told>:{line} by thread {other.ask('number')}, "
        expected[line] = re.compile(rf"{taken}.*; it {hangs_on(f'kept{line}')}")

    def noted():
        return {found[1] for text in caplog.messages if (found := NOTED.match(text))}

    with caplog.at_level(logging.WARNING, "tenon"):
        until(lambda: len(reports_of(other)) >= len(WAITS), lambda: f"{other.ask('log.texts')}")
        caplog.clear()
        until(lambda: len(noted()) > 2, lambda: str(caplog.messages))
    reports = reports_of(other)
    for report in expected.values():
        assert sum(report.search(text) is not None for text in reports) == 1, reports
    other.ask("; ".join(f"del kept{line}" for line in expected))
    for waiter in waiters:
        waiter.end()
    tn.waitall()
    assert other.ask("a.leases()") == []


def test_a_view_in_a_dead_reference_cycle_ends_when_another_process_waits(other):
    a = tn.zeros((4, 3), "int64", shared=True)

    def fail(part):
        raise ValueError

    def run():
        with a.write() as v:
            try:
                fail(v[1:])
            except ValueError as error:
                kept = error  # of a frame that the error's traceback has
        for _ in range(3):
            gc.collect()  # the oldest generation has the cycle then
        assert isinstance(kept, ValueError)

    run()
    assert a.leases() != []
    other.ask("a[0] = 1", a=a)
    assert a.leases() == []
    assert a.tolist()[0] == [1, 1, 1]


def test_a_process_whose_threads_are_all_in_system_calls_reports_too(other, patience):
    a = tn.zeros(8, shared=True)
    other.ask(LOG)
    other.ask("pipe = os.pipe(); log.emit = lambda record: os.write(pipe[1], record.getMessage().encode())")
    other.ask(KEEP, a=a)
    waiter = Waiter(lambda: a.tolist())
    report = other.ask("os.read(pipe[0], 4000)").decode()
    assert "outlived its block" in report and re.search(hangs_on("kept"), report), report
    other.ask("del kept")
    waiter.end()


def test_a_forked_child_that_keeps_a_view_reports_it(other, patience):
    a = tn.zeros(8, shared=True)
    other.ask(LOG, a=a)
    other.ask("to_parent, to_child = os.pipe(), os.pipe()")
    other.ask(
        "child = os.fork()\n"
        "if child == 0:\n"
        "    try:\n"
        f"        {KEEP}\n"
        "        while not log.texts: time.sleep(0.01)\n"
        "        os.write(to_parent[1], log.texts[0].encode())\n"
        "        os.read(to_child[0], 1)\n"
        "    finally:\n"
        "        os._exit(0)\n"
    )
    until(lambda: a.leases(), lambda: "the child takes no lease")
    waiter = Waiter(lambda: a.lease("r").release())
    report = other.ask("os.read(to_parent[0], 4000)").decode()
    assert "outlived its block" in report and "variable `kept`" in report, report
    other.ask("os.write(to_child[1], b'.')")
    other.ask("os.waitpid(child, 0)")
    try:
        waiter.end()
    except tn.OwnerDied:
        pass
    a.clear_error()


HOLDS = {
    "kept view": (KEEP, f"a writable view of it, taken at <told>:1 by thread NUMBER; it {hangs_on('kept')}"),
    "lease": ("lease = a.lease('w')", "a lease for writing, taken at <told>:1 by thread NUMBER"),
    "block": (
        "block = a.write(); v = block.__enter__()",
        f"a lease for writing, taken at <told>:1 by thread NUMBER; its view {hangs_on('v')}",
    ),
    "op": (
        "end = threading.Event(); op = tn.push(lambda x: end.wait(60) and None, tn.write(a), name='slow')",
        "the op 'slow' that writes it, pushed at <told>:1 by thread NUMBER",
    ),
}
ENDS = {"kept view": "del kept", "lease": "lease.release()", "op": "end.set(); op.wait()"}
ENDS["block"] = "del v; block.__exit__(None, None, None)"


def until_it_is_told(wait, expected):
    """Repeats a wait with a timeout until its error has the text."""
    seen = []

    def has_come():
        with pytest.raises(TimeoutError) as caught:
            wait()
        seen.append(str(caught.value))
        return re.search(expected, seen[-1])

    until(has_come, lambda: f"{expected!r} is not in {seen[-1]!r}")
    return seen[-1]


@pytest.mark.parametrize("kind", HOLDS)
def test_who_waits_for_another_process_is_told_what_holds_the_memory_there(kind, other):
    a = tn.zeros(8, shared=True)
    hold, text = HOLDS[kind]
    other.ask(LOG)
    other.ask(hold, a=a)
    expected = text.replace("NUMBER", str(other.ask("number")))
    told = until_it_is_told(lambda: a.lease("w", timeout=1.5), expected)
    assert f"process {other.pid} (" in told and "that holds it for writing since" in told
    op = tn.push(tn.fill, tn.overwrite(a), 1)
    told = until_it_is_told(lambda: op.wait(1.5), expected)
    assert f"process {other.pid} (" in told
    other.ask(ENDS[kind])
    op.wait(SECONDS)


def test_of_several_leases_of_a_process_each_is_told(other):
    arrays = [tn.zeros(8, shared=True) for _ in range(3)]
    lines = ["x = a.lease('w')", "\ny = a.lease('w')", "\n\nz = a.lease('w')"]
    for array, line in zip(arrays, lines, strict=True):
        other.ask(line, a=array)
    waiters = [Waiter(lambda array=array: array.wait_to_read(SECONDS)) for array in arrays]
    for number, array in enumerate(arrays, 1):
        until_it_is_told(lambda array=array: array.wait_to_read(0.05), f"taken at <told>:{number} by thread")
    other.ask("for lease in (x, y, z): lease.release()")
    for waiter in waiters:
        waiter.end()


def test_the_report_of_a_task_and_of_a_thread_name_the_other_process_and_its_line(
    other, another, quick_reports, caplog, patience
):
    # Two arrays, because with one array the thread would wait for the task.
    a, b = tn.zeros(8, shared=True), tn.zeros(8, shared=True)
    expected = {}
    for kind, process, array in (("task", other, a), ("thread", another, b)):
        process.ask(LOG)
        process.ask(HOLDS["lease"][0], a=array)
        expected[kind] = re.compile(
            rf"waiting for \d+ m?s behind process {process.pid} \(\S+\) that holds it for writing "
            rf"since [\d.]+ s \(a lease for writing, taken at <told>:1 by thread {process.ask('number')}\)"
        )

    def told():
        return {kind for kind, text in expected.items() for seen in caplog.messages if text.fullmatch(seen)}

    with caplog.at_level(logging.WARNING, "tenon"):
        waiters = [Waiter(lambda: asyncio.run(_async_block(a))), Waiter(lambda: b.tolist())]
        until(lambda: told() == set(expected), lambda: str(caplog.messages))
    for process in (other, another):
        process.ask("lease.release()")
    for waiter in waiters:
        waiter.end()


def test_a_stopped_holder_is_named_and_reports_when_it_goes_on(other, patience):
    a = tn.zeros(8, shared=True)
    other.ask(LOG)
    other.ask(KEEP, a=a)
    other.stop()
    with pytest.raises(TimeoutError, match="which is stopped"):
        a.lease("r", timeout=2)
    waiter = Waiter(lambda: a.tolist())
    other.go_on()
    until(lambda: reports_of(other), lambda: f"{other.ask('log.texts')}")
    other.ask("del kept")
    waiter.end()


def test_a_process_ends_although_a_handler_of_its_log_never_returns(patience):
    name = f"waits-{os.getpid()}"
    a = tn.zeros(8, shared=name)
    code = f"""
import logging, sys, threading, tenon as tn
is_inside = threading.Event()
class Stuck(logging.Handler):
    def createLock(self):
        self.lock = None  # for which the end of `logging` would wait
    def emit(self, record):
        is_inside.set()
        threading.Event().wait()
logging.getLogger("tenon").addHandler(Stuck())
a = tn.attach({name!r})
{KEEP}
print("holds", flush=True)
is_inside.wait()
"""
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout.readline() == "holds\n"
            waiter = Waiter(lambda: a.tolist())
            assert process.wait(SECONDS) == 0
        finally:
            process.kill()
    with pytest.raises(tn.OwnerDied):
        waiter.end()
    a.clear_error()
