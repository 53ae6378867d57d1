# SPDX-License-Identifier: Apache-2.0
"""Waits for a stopped process (SIGSTOP). Waits without a limit log the process again and again, others
name it in their error. Ctrl-C ends both, and nothing is lost."""

import asyncio
import contextlib
import copy
import fcntl
import logging
import os
import signal
import struct
import subprocess
import sys
import threading
import time

import pytest
from other_process import SECONDS

import tenon as tn

SCHEMA = {"x": ("i8", ())}


def until(condition):
    end = time.monotonic() + SECONDS / 2
    while not condition():
        assert time.monotonic() < end, "it has not come true"
        time.sleep(0.01)


@pytest.fixture
def held(other):
    """A shared array that a stopped process holds for writing."""
    array = tn.zeros(3, shared=True)
    other.ask("lease = a.lease('w')", a=array)
    other.stop()
    yield array
    other.go_on()
    other.ask("lease.release()")


@contextlib.contextmanager
def ctrl_c_soon():
    """While the block waits."""

    def press():
        has_begun.wait()
        if not is_over.wait(0.3):
            os.kill(os.getpid(), signal.SIGINT)

    has_begun, is_over = threading.Event(), threading.Event()
    thread = threading.Thread(target=press)
    thread.start()
    try:
        with pytest.raises(KeyboardInterrupt):
            has_begun.set()
            yield
    finally:
        is_over.set()
        thread.join()


async def end_of(op):
    await op


async def lease_of(array):
    async with array.read():
        pass


# ------------------------------------------------------------------------------------- arrays


@pytest.mark.slow
@pytest.mark.parametrize("way", ["op", "op behind an op", "all ops", "task", "lease of a task"])
def test_a_wait_without_a_limit_names_the_stopped_process(way, held, other, quick_reports, caplog):
    private = tn.zeros(3)
    first = tn.push(lambda x, y: None, held, tn.write(private))
    second = tn.push(tn.fill, tn.overwrite(private), 1)
    waits = {
        "op": first.wait,
        "op behind an op": second.wait,
        "all ops": tn.waitall,
        "task": lambda: asyncio.run(end_of(second)),
        "lease of a task": lambda: asyncio.run(lease_of(held)),
    }
    thread = threading.Thread(target=waits[way])
    with caplog.at_level(logging.INFO, "tenon"):
        thread.start()
        until(lambda: any(f"process {other.pid} (" in text for text in caplog.messages))
    text = next(text for text in caplog.messages if f"process {other.pid} (" in text)
    assert "which is stopped" in text and text.startswith("waiting for "), text
    other.go_on()
    other.ask("lease.release()")
    thread.join(SECONDS)
    assert not thread.is_alive()
    tn.waitall()


def test_a_wait_with_a_limit_names_the_stopped_process(held, other):
    private = tn.zeros(3)
    first = tn.push(lambda x, y: None, held, tn.write(private))
    second = tn.push(tn.fill, tn.overwrite(private), 1)
    wanted = rf"process {other.pid} \(.*\), which is stopped, that holds it for writing"
    for wait in (first.wait, second.wait, second.result, tn.waitall, private.wait_to_read):
        with pytest.raises(TimeoutError, match=wanted):
            wait(timeout=0.05)
    with pytest.raises(TimeoutError, match=wanted):
        held.lease("r", timeout=0.05)
    other.go_on()
    other.ask("lease.release()")
    tn.waitall()


@pytest.mark.parametrize("way", ["op", "all ops"])
def test_ctrl_c_ends_a_wait_without_a_limit(way, held, other):
    op = tn.push(tn.fill, tn.overwrite(held), 1)
    with ctrl_c_soon():
        op.wait() if way == "op" else tn.waitall()
    assert not op.done()
    other.go_on()
    other.ask("lease.release()")
    op.wait()


# ------------------------------------------------------------------------------------- names


@pytest.fixture
def busy_name(other, tmp_path, monkeypatch):
    """A name that a stopped process is creating."""
    folder = tmp_path / "names"
    folder.mkdir(mode=0o700)
    monkeypatch.setenv("TENON_RUNTIME_DIR", str(folder))
    other.ask(
        "import fcntl; file = open(path, 'w+'); fcntl.fcntl(file, command, lock)",
        path=str(folder / "name-camera"),
        command=fcntl.F_OFD_SETLK,
        lock=struct.pack("hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, 0, 1, 0),
    )
    other.stop()
    return "camera"


@pytest.mark.slow
def test_a_process_that_is_stopped_while_it_makes_a_name_is_named(busy_name, other):
    with pytest.raises(TimeoutError, match=rf"process {other.pid} \(.*\), which is stopped"):
        tn.zeros(3, shared=busy_name)


def test_ctrl_c_ends_a_wait_for_a_name(busy_name, other):
    with ctrl_c_soon():
        tn.attach(busy_name)
    with ctrl_c_soon():
        tn.zeros(3, shared=busy_name)
    other.go_on()
    other.ask("file.close()")
    assert tn.zeros(3, shared=busy_name).tolist() == [0, 0, 0]


# ------------------------------------------------------------------------------------- channels


@pytest.fixture
def channel(other):
    """A channel with one sent item, and another process as a producer."""
    channel = tn.Channel(SCHEMA, slots=4)
    other.ask("ch.loan(timeout=5).drop()", ch=channel)
    with channel.loan() as item:
        item.x[...] = 1
    return channel


@pytest.mark.slow
def test_a_receiver_without_a_limit_names_a_stopped_producer(channel, other, quick_reports, caplog):
    channel.recv(timeout=5)
    other.stop()
    thread = threading.Thread(target=channel.recv)
    with caplog.at_level(logging.INFO, "tenon"):
        thread.start()
        until(lambda: any(f"process {other.pid} (" in text for text in caplog.messages))
    assert any("which is stopped" in text for text in caplog.messages), caplog.text
    other.go_on()
    other.start("with ch.loan() as item: item.x[...] = 2")
    other.answer()
    thread.join(SECONDS)
    assert not thread.is_alive()


@pytest.mark.slow
def test_ctrl_c_beside_a_stopped_producer_loses_nothing(channel, other):
    """It has a slot, and sends no item while it is stopped."""
    assert channel.recv(timeout=5).x.item() == 1
    other.ask("held = ch.loan(timeout=5); held.x[...] = 2")
    loans = [channel.loan(timeout=5) for _ in range(3)]
    opened_again = copy.copy(channel)
    before = channel.stats()
    other.stop()
    try:
        for call in (
            channel.recv,
            opened_again.loan,
            lambda: channel.recv(timeout=SECONDS),
            lambda: receive_in_a_task(channel),
            lambda: channel._native.wait(None),
        ):
            with ctrl_c_soon():
                call()
            assert channel.stats() == before
        loans[0].x[...] = 3
        loans[0].send()
        assert channel.recv(timeout=5).x.item() == 3
    finally:
        other.go_on()
    other.ask("held.send()")
    assert channel.recv(timeout=5).x.item() == 2
    with pytest.raises(TimeoutError):
        channel.recv(timeout=0)
    del loans
    assert channel.stats()["in_use"] == 0
    kept = [channel.loan(timeout=0) for _ in range(4)]
    assert len(kept) == 4


def receive_in_a_task(channel):
    async def receive():
        while True:
            with contextlib.suppress(TimeoutError):
                return channel.recv(timeout=0)

    with contextlib.closing(asyncio.new_event_loop()) as loop:
        return loop.run_until_complete(receive())


# ------------------------------------------------------------------------------------- Ctrl-C

LOANS = """
import sys, numpy, tenon as tn
ch = tn.Channel({"x": ("f4", (8,))}, slots=4)
n = 0
while True:
    try:
        print(n, flush=True)
        while True:
            ch.loan(timeout=0).drop()
    except KeyboardInterrupt:
        n += 1
"""


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_no_ctrl_c_is_lost_in_calls_that_ask_for_the_task():
    """Each Ctrl-C is answered, at any point of a call."""
    with subprocess.Popen([sys.executable, "-c", LOANS], stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout.readline() == "0\n"
            for n in range(1, 301):
                time.sleep(0.001 * (n % 5))  # anywhere in the loop
                process.send_signal(signal.SIGINT)
                watchdog = threading.Timer(30, process.kill)
                watchdog.start()
                line = process.stdout.readline()
                watchdog.cancel()
                assert line == f"{n}\n"
        finally:
            process.kill()


def test_ctrl_c_while_numpy_is_imported_by_a_call_is_no_other_error(tmp_path):
    """NumPy is imported by the first call that needs it."""
    (tmp_path / "numpy.py").write_text("raise KeyboardInterrupt")
    code = (
        f"import sys, tenon as tn\nsys.path.insert(0, {str(tmp_path)!r})\n"
        "try:\n    tn.zeros(3).numpy()\nexcept KeyboardInterrupt:\n    print('interrupted')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout == "interrupted\n", done.stderr
