# SPDX-License-Identifier: Apache-2.0
"""Channels in event loops: tasks wait for descriptors and not in threads, cancelled tasks take no item, and
every end and death wakes the waiting tasks."""

import asyncio
import os
import select
import selectors
import signal
import threading
import time

import pytest
from test_channel import SECONDS, fork, lend_and_wait, started

import tenon as tn

SCHEMA = {"k": ("int64", ())}


def send(channel, number):
    with channel.loan(timeout=SECONDS) as item:
        item.k[...] = number


def number_in(item):
    return int(item.k.item())


def threads():
    return len(os.listdir("/proc/self/task"))


def run(program):
    return asyncio.run(asyncio.wait_for(program, 3 * SECONDS))


def is_readable(fd, seconds=0.0):
    return bool(select.select([fd], [], [], seconds)[0])


def quieten(channel):
    """Waits until the descriptor is not readable: earlier events may be signaled late."""
    quiet = 0
    while quiet < 3:
        quiet = 0 if is_readable(channel.fileno(), 0.02) else quiet + 1
        with pytest.raises(TimeoutError):
            channel.recv(timeout=0)


def test_a_channel_can_be_selected_until_there_is_nothing_to_receive():
    channel = tn.Channel(SCHEMA, slots=4)
    quieten(channel)
    assert select.select([channel], [], [], 0) == ([], [], [])
    send(channel, 1)
    with selectors.DefaultSelector() as selector:
        selector.register(channel, selectors.EVENT_READ)
        assert selector.select(SECONDS)
        assert number_in(channel.recv(timeout=0)) == 1
    with pytest.raises(ValueError, match="mode is 'x'"):
        channel.fileno("x")
    assert channel.fileno() == channel.fileno("r") != channel.fileno("w")


def test_a_hundred_channels_are_awaited_without_a_hundred_threads():
    channels = [tn.Channel(SCHEMA, slots=2) for _ in range(100)]

    async def program():
        tasks = [asyncio.create_task(channel.arecv()) for channel in channels]
        await asyncio.sleep(0.1)
        before = threads()
        for number, channel in enumerate(channels):
            send(channel, number)
        return before, [number_in(item) for item in await asyncio.gather(*tasks)]

    at_first = threads()
    most, numbers = run(program())
    assert numbers == list(range(100))
    assert most <= at_first + 2  # one of the library, one for all of them
    for channel in channels:
        channel.close()


def test_a_task_that_is_cancelled_takes_no_item():
    channel = tn.Channel(SCHEMA, slots=4)

    async def program():
        numbers = []
        for number in range(100):
            waiting = asyncio.create_task(channel.arecv())
            await asyncio.sleep(0)
            if number % 2:
                send(channel, number)
                is_there = channel.stats()["ready"]
                assert is_there == 1
                if number % 4 == 1:
                    await asyncio.sleep(0.001)  # perhaps it has been told, perhaps not
            if not waiting.done():
                waiting.cancel()
            try:
                numbers.append(number_in(await waiting))
            except asyncio.CancelledError:
                if number % 2:
                    numbers.append(number_in(await channel.arecv()))
        return numbers

    assert run(program()) == list(range(1, 100, 2))
    assert not channel._waiting


def test_an_iteration_goes_on_after_a_task_that_was_cancelled_and_serves_many_tasks():
    channel = tn.Channel(SCHEMA, slots=4)

    async def program():
        items = aiter(channel)
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(anext(items), 0.05)
        send(channel, 0)
        numbers = [number_in(await anext(items))]
        tasks = [asyncio.ensure_future(anext(items)) for _ in range(2)]
        await asyncio.sleep(0.05)
        send(channel, 1)
        send(channel, 2)
        numbers += sorted([number_in(item) for item in await asyncio.gather(*tasks)])
        channel.close()
        numbers += [number_in(item) async for item in items]
        return numbers

    assert run(program()) == [0, 1, 2]


def test_one_of_many_tasks_is_cancelled_and_the_others_get_all():
    channel = tn.Channel(SCHEMA, slots=8)

    async def program():
        tasks = [asyncio.create_task(channel.arecv()) for _ in range(10)]
        await asyncio.sleep(0.05)
        for task in tasks[::3]:
            task.cancel()
        left = [task for i, task in enumerate(tasks) if i % 3]
        for number in range(len(left)):
            with await channel.aloan() as item:
                item.k[...] = number
        return sorted([number_in(item) for item in await asyncio.gather(*left)])

    assert run(program()) == list(range(6))


def echo(forth, back):
    for item in forth:
        number = number_in(item)
        item.release()
        send(back, number)
    back.close()


def test_items_go_to_another_process_and_back():
    forth, back = tn.Channel(SCHEMA, slots=2), tn.Channel(SCHEMA, slots=2)
    process = started(echo, forth, back)

    async def program():
        seconds = []
        for number in range(300):
            begin = time.perf_counter()
            with await forth.aloan() as item:
                item.k[...] = number
            assert number_in(await back.arecv()) == number
            seconds.append(time.perf_counter() - begin)
        forth.close()
        return seconds

    seconds = run(program())
    process.join(SECONDS)
    # There is no upper limit for one of them. But not all may have waited for the end of a time slice.
    assert sorted(seconds)[15] < 0.02


def test_tasks_wait_for_free_slots():
    channel = tn.Channel(SCHEMA, slots=1)
    send(channel, 1)

    async def program():
        waiting = asyncio.create_task(channel.aloan())
        await asyncio.sleep(0.05)
        assert not waiting.done()
        item = channel.recv(timeout=0)
        del item
        loan = await waiting
        loan.drop()

    run(program())


def test_a_channel_that_is_closed_here_ends_the_wait():
    channel = tn.Channel(SCHEMA, slots=2)

    async def program():
        waiting = asyncio.create_task(channel.arecv())
        lending = asyncio.create_task(channel.aloan())
        (await lending).drop()
        await asyncio.sleep(0.05)
        channel.close()
        with pytest.raises(EOFError):
            await waiting
        return [item async for item in channel]

    assert run(program()) == []
    assert is_readable(channel.fileno())


def test_a_channel_that_its_last_producer_closes_ends_the_loop():
    channel = tn.Channel(SCHEMA, slots=2)

    def produce():
        for number in range(5):
            send(channel, number)
        time.sleep(0.1)
        channel.close()

    async def program():
        return [number_in(item) async for item in channel]

    process = started(produce)
    assert run(program()) == list(range(5))
    process.join(SECONDS)


def test_the_death_of_a_producer_wakes_the_task_that_waits():
    channel = tn.Channel(SCHEMA, slots=2)
    has_begun = fork.Event()
    producer = started(lend_and_wait, channel, has_begun)
    assert has_begun.wait(SECONDS)

    async def program():
        waiting = asyncio.create_task(channel.arecv())
        await asyncio.sleep(0.1)
        assert not waiting.done()
        os.kill(producer.pid, signal.SIGKILL)
        with pytest.raises(tn.OwnerDied) as told:
            await waiting
        return told.value.pid

    assert run(program()) == producer.pid
    producer.join(SECONDS)


def test_a_producer_that_comes_and_dies_while_a_task_waits_wakes_it():
    channel = tn.Channel(SCHEMA, slots=2)

    async def program():
        waiting = asyncio.create_task(channel.arecv())
        await asyncio.sleep(0.05)
        has_begun = fork.Event()
        producer = started(lend_and_wait, channel, has_begun)
        assert await asyncio.to_thread(has_begun.wait, SECONDS)
        os.kill(producer.pid, signal.SIGKILL)
        with pytest.raises(tn.OwnerDied):
            await waiting

    run(program())


def in_child(channel, results):
    number = asyncio.run(asyncio.wait_for(channel.arecv(), SECONDS)).k.item()
    results.put((int(number), channel.fileno()))


def test_a_forked_child_waits_by_itself():
    channel = tn.Channel(SCHEMA, slots=4)
    fd = channel.fileno()
    results = fork.Queue()
    child = started(in_child, channel, results)
    end = time.monotonic() + SECONDS
    while channel.stats()["consumers"] < 1 and time.monotonic() < end:
        time.sleep(0.01)
    send(channel, 1)
    number, own = results.get(timeout=SECONDS)
    assert number == 1 and own != fd
    child.join(SECONDS)
    send(channel, 2)
    assert number_in(run(channel.arecv())) == 2


def test_loops_of_several_threads_share_a_channel():
    channel = tn.Channel(SCHEMA, slots=4)
    numbers = []

    async def take(n):
        for _ in range(n):
            numbers.append(number_in(await channel.arecv()))

    loops = [threading.Thread(target=lambda: run(take(50))) for _ in range(3)]
    for loop in loops:
        loop.start()
    for number in range(150):
        send(channel, number)
    for loop in loops:
        loop.join(SECONDS)
    assert sorted(numbers) == list(range(150))


def test_a_thread_that_waits_does_not_make_a_task_miss_anything():
    """Both wait for the event with one bit of the process: the first that ends its wait must not clear it."""
    channel = tn.Channel(SCHEMA, slots=4)
    stop = threading.Event()

    def wait():
        while not stop.is_set():
            try:
                channel._native.wait(0.001)  # which takes no item
            except TimeoutError:
                pass

    thread = threading.Thread(target=wait)
    thread.start()
    late = 0
    try:
        for number in range(30):
            time.sleep(0.01)
            begin = time.perf_counter()
            send(channel, number)
            item = None
            while item is None:
                assert is_readable(channel.fileno(), SECONDS)
                try:
                    item = channel.recv(timeout=0)
                except TimeoutError:
                    pass
            late += time.perf_counter() - begin > 0.1
            assert number_in(item) == number
    finally:
        stop.set()
        thread.join()
    assert late < 25  # a loaded machine makes some of them late


def test_the_descriptor_goes_with_its_channel():
    channel = tn.Channel(SCHEMA, slots=2)
    fd = channel.fileno()
    os.fstat(fd)
    del channel
    with pytest.raises(OSError):
        os.fstat(fd)
