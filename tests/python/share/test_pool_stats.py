# SPDX-License-Identifier: Apache-2.0
"""The numbers of a tensor pool: each event is counted once, and where it belongs."""

import asyncio
import gc
import os
import signal
import time

import numpy as np
import pytest

import tenon as tn

KiB = 1 << 10
MiB = 1 << 20
SECONDS = 600


@pytest.fixture
def pool():
    pool = tn.TensorPool("1 MiB", inline=0, idle=0, linger=0, when_full="raise")
    yield pool
    gc.collect()


def changes(pool, before):
    now = pool.stats()
    return {
        name: now[name] - before[name]
        for name in now
        if name.endswith("_total") and now[name] != before[name]
    }


def await_true(condition):
    end = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.005)


def test_all_numbers_are_there_and_are_integers(pool):
    now = pool.stats()
    assert set(now) == {
        *("budget", "used", "idle", "committed", "blocks", "messages", "waiting", "processes"),
        *("unopened", "unopened_bytes", "held", "held_bytes"),
        *("sent_total", "sent_bytes_total", "opened_total", "expired_total", "revoked_total"),
        *("receivers_gone_total", "inline_total", "inline_bytes_total", "refused_total"),
        *("waits_total", "waited_ns_total"),
    }
    assert all(type(value) is int and value >= 0 for value in now.values())
    assert all(value == 0 for name, value in now.items() if name.endswith("_total"))


def test_each_end_of_a_message_is_counted_once_by_its_reason(pool):
    def send(**limits):
        return pool.dumps(np.zeros(1000), **limits)

    opened, revoked, tagged = send(), send(), send(tag="x")
    pid = os.fork()
    if pid == 0:
        signal.pause()
    gone = send(receivers=pid)
    assert pool.stats()["unopened"] == 4 and pool.stats()["unopened_bytes"] == 4 * 8 * KiB
    expired = send(timeout=0.02)
    tn.loads(opened)
    assert pool.revoke(message=revoked) == 1 and pool.revoke(message=revoked) == 0 and pool.revoke("x") == 1
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    await_true(lambda: pool.stats()["messages"] == 0)
    for message in (opened, expired, revoked, tagged, gone):
        with pytest.raises(tn.MessageGone):
            tn.loads(message)
    now = pool.stats()
    assert (now["sent_total"], now["sent_bytes_total"]) == (5, 5 * 8 * KiB)
    assert (now["opened_total"], now["expired_total"]) == (1, 1)
    assert (now["revoked_total"], now["receivers_gone_total"]) == (2, 1)
    assert now["unopened"] == 0 and now["unopened_bytes"] == 0


def test_a_message_without_a_limit_is_unopened_until_its_first_open(pool):
    message = pool.dumps(np.zeros(1000), opens=None)
    assert pool.stats()["unopened"] == 1
    tn.loads(message)
    now = pool.stats()
    assert (now["unopened"], now["messages"], now["opened_total"]) == (0, 1, 0)
    pool.revoke(message=message)


def test_what_other_processes_hold_is_counted_apart(pool):
    message = pool.dumps(np.zeros(1000))
    assert pool.stats()["held"] == 0 and pool.stats()["processes"] == 1
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        read = tn.loads(message)
        os.write(writer, b"x")
        signal.pause()
        os._exit(int(read[0]))
    os.read(reader, 1)
    now = pool.stats()
    assert (now["held"], now["held_bytes"], now["used"]) == (1, 8 * KiB, 8 * KiB)
    assert now["processes"] >= 1
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    await_true(lambda: pool.stats()["held"] == 0)
    for end in (reader, writer):
        os.close(end)


BIG = np.zeros(600 * KiB, "u1")


@pytest.fixture
def full(pool):
    """The pool has no room for BIG."""
    held = pool.put(BIG)
    yield pool
    del held


def test_a_call_that_fails_for_want_of_room_is_refused_once(full):
    before = full.stats()
    calls = [
        lambda: full.empty(BIG.shape, "u1"),
        lambda: full.put(BIG),
        lambda: full.dumps({"x": BIG}),
        lambda: full.dumps([BIG, object], when_full="raise"),
        lambda: asyncio.run(full.adumps(BIG, when_full="raise")),
        lambda: asyncio.run(full.aput(BIG, when_full="raise")),
    ]
    for n, call in enumerate(calls, 1):
        with pytest.raises(MemoryError):
            call()
        assert changes(full, before) == {"refused_total": n}


def test_what_can_never_fit_is_no_refusal(pool):
    before = pool.stats()
    with pytest.raises(MemoryError):
        pool.dumps([BIG, BIG.copy()])
    assert changes(pool, before) == {}


def test_arrays_that_go_with_the_bytes_are_counted_and_not_refused(full):
    before = full.stats()
    message = full.dumps({"x": BIG}, when_full="inline")
    assert changes(full, before) == {"inline_total": 1, "inline_bytes_total": BIG.nbytes, "sent_total": 1}
    tn.loads(message)


def test_tries_of_a_call_that_waits_are_no_refusals(pool):
    held = pool.put(BIG)
    before = pool.stats()

    async def send_when_there_is_room():
        nonlocal held
        sending = asyncio.create_task(pool.adumps(BIG, when_full="wait"))
        await asyncio.sleep(0.05)
        held = None
        return await sending

    tn.loads(asyncio.run(send_when_there_is_room()))
    now = changes(pool, before)
    assert "refused_total" not in now and now["sent_total"] == 1


def test_waits_of_threads_are_counted_with_their_time(pool):
    import threading

    held = [pool.put(BIG)]
    before = pool.stats()
    waiter = threading.Thread(target=lambda: pool.put(BIG, when_full="wait"))
    waiter.start()
    await_true(lambda: pool.stats()["waiting"] == 1)
    time.sleep(0.02)
    held.clear()
    gc.collect()
    waiter.join(SECONDS)
    now = changes(pool, before)
    assert now["waits_total"] == 1 and now["waited_ns_total"] >= 20_000_000
    assert set(now) == {"waits_total", "waited_ns_total"}


def test_too_many_messages_are_a_refusal(pool):
    try:
        while True:
            pool.dumps(None)
    except MemoryError as error:
        assert "greatest number" in str(error)
    assert pool.stats()["refused_total"] == 1
    assert pool.stats()["sent_total"] == pool.stats()["messages"] == 16384


@pytest.mark.slow  # `make check` installs what it needs
def test_a_prometheus_collector_takes_them_as_they_are(pool):
    core = pytest.importorskip("prometheus_client.core")
    import prometheus_client

    class Collector:
        def collect(self):
            for name, value in pool.stats().items():
                kind = core.CounterMetricFamily if name.endswith("_total") else core.GaugeMetricFamily
                yield kind(f"tenon_pool_{name}", f"{name} of the tensor pool", value=value)

    registry = prometheus_client.CollectorRegistry()
    registry.register(Collector())
    tn.loads(pool.dumps(np.zeros(1000)))
    assert registry.get_sample_value("tenon_pool_opened_total") == 1
    assert registry.get_sample_value("tenon_pool_budget") == MiB
    assert "# TYPE tenon_pool_opened_total counter" in prometheus_client.generate_latest(registry).decode()
