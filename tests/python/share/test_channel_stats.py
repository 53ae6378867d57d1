# SPDX-License-Identifier: Apache-2.0
"""The numbers of a channel: bytes, and calls that found no room."""

import asyncio
import multiprocessing
import queue

import numpy as np
import pytest

import tenon as tn

SCHEMA = {"x": ("f4", (1000,))}


def test_the_bytes_of_objects_are_those_of_items_that_are_ready_or_held():
    channel = tn.Channel(nbytes="4 MiB")
    before = channel.stats()
    assert {before[name] for name in ("used", "committed", "largest_sent", "refused")} == {0}
    assert before["nbytes"] == 4 << 20
    channel.send(np.ones(1 << 20, "u1"))
    channel.send(b"small")
    now = channel.stats()
    assert 1 << 20 < now["largest_sent"] < (1 << 20) + 8192
    assert now["largest_sent"] < now["used"] < now["largest_sent"] + 4096 <= now["committed"]
    array = channel.recv()
    assert channel.stats()["used"] == now["used"], "the array holds it"
    assert channel.recv() == b"small"
    assert channel.stats()["used"] == now["largest_sent"]
    del array
    after = channel.stats()
    assert (after["used"], after["committed"]) == (0, now["committed"]), "the slots keep their memory"
    with channel.loan() as item:
        item.empty(2 << 20, "u1")
        assert 2 << 20 < channel.stats()["used"] <= 3 << 20
    assert channel.stats()["used"] == 0
    assert channel.stats()["largest_sent"] == now["largest_sent"], "a loan that was dropped is no item"


def test_the_bytes_of_a_channel_with_a_schema_are_those_of_its_slots():
    channel = tn.Channel(SCHEMA, slots=4)
    slot = channel.stats()["nbytes"] // 4
    assert 4000 <= slot <= 4096
    channel.send({"x": 1})
    now = channel.stats()
    assert (now["used"], now["committed"], now["largest_sent"]) == (slot, slot, 4000)
    channel.recv()
    assert channel.stats()["used"] == 0


def test_items_of_a_broadcast_that_all_have_received_use_no_bytes():
    channel = tn.Channel(nbytes="1 MiB", mode="broadcast")
    channel.send(b"x" * 1000)
    assert channel.stats()["used"] > 1000
    assert channel.recv() == b"x" * 1000
    assert channel.stats()["used"] == 0


@pytest.mark.parametrize("kind", ["schema", "bytes"])
def test_calls_without_room_are_counted_once_each(kind):
    channel = tn.Channel(SCHEMA, slots=1) if kind == "schema" else tn.Channel(nbytes="1 MiB", slots=1)
    value = {"x": np.zeros(1000, "f4")}
    channel.send(value)
    for n, call in enumerate(
        (
            lambda: channel.put_nowait(value),
            lambda: channel.put(value, timeout=0.01),
            lambda: channel.send(value, timeout=0.01),
            lambda: channel.loan(timeout=0),
        ),
        1,
    ):
        with pytest.raises((queue.Full, TimeoutError)):
            call()
        assert channel.stats()["refused"] == n
    channel.recv()
    channel.send(value)
    assert channel.stats()["refused"] == 4


def test_a_channel_that_raises_counts_conflicts():
    channel = tn.Channel(nbytes="1 MiB", slots=1, when_full="raise")
    channel.send(1)
    with pytest.raises(tn.LeaseConflict):
        channel.send(2)
    with pytest.raises(queue.Full):
        channel.put(2)
    with pytest.raises(tn.LeaseConflict):
        asyncio.run(channel.asend(2))
    assert channel.stats()["refused"] == 3


def test_tasks_that_wait_for_room_are_not_refused():
    channel = tn.Channel(nbytes="1 MiB", slots=1)

    async def both():
        await channel.asend(1)
        waiting = asyncio.create_task(channel.asend(2))
        await asyncio.sleep(0.05)
        assert await channel.arecv() == 1
        await waiting
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(channel.asend(3), 0.05)

    asyncio.run(both())
    assert (channel.stats()["refused"], channel.stats()["sent"]) == (0, 2)


def refuse(channel):
    with pytest.raises(TimeoutError):
        channel.send(b"x", timeout=0)
    channel.close()


def test_all_processes_count_in_the_same_numbers():
    channel = tn.Channel(nbytes="1 MiB", slots=1)
    channel.send(b"x")
    process = multiprocessing.get_context("fork").Process(target=refuse, args=(channel,))
    process.start()
    process.join(60)
    assert process.exitcode == 0 and channel.stats()["refused"] == 1
