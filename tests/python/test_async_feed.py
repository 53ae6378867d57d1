# SPDX-License-Identifier: Apache-2.0
"""``async for batch in feed``: the event loop runs on while a batch is awaited, and no batch is lost. The
oracle is the index that each batch carries; generators are held at a gate, so that a wait lasts until the
test ends it."""

import asyncio
import gc
import itertools
import subprocess
import sys
import threading
import time

import native_library
import pytest

import tenon as tn

pytestmark = pytest.mark.usefixtures("nothing_stays_behind")

FILL = "int fill(float *data, int64_t *label, size_t n, uint64_t index, uint64_t epoch)"
GATED = "int fill_at_gate(int64_t *label, uint64_t index, uint64_t from)"
FAIL_AT = "int fail_at(int64_t *label, uint64_t index, uint64_t epoch, uint64_t bad_index, int code)"
LABEL = {"label": ("i8", (4,))}


def native(prototype, **constants):
    return tn.c_function(native_library.generators(), prototype, threadsafe=True, **constants)


def feed_of(**options):
    return tn.Feed(native(FILL), tn.schema(data=("f4", (4, 8)), **LABEL), **options)


def gated(start, **options):
    return tn.Feed(native(GATED, **{"from": start}), tn.schema(**LABEL), **options)


@pytest.fixture
def gate():
    """Holds generators from the index on that the feed was made with."""
    control = native("void set_gate(int open)")
    control(0)
    yield control
    control(1)


def waiting_threads():
    return [thread for thread in threading.enumerate() if thread.name == "tenon await"]


@pytest.fixture(autouse=True)
def no_thread_stays_behind():
    yield
    deadline = time.monotonic() + 600
    while waiting_threads():
        assert time.monotonic() < deadline
        time.sleep(0.005)


async def index_of_next(iterator):
    return (await anext(iterator)).index


def test_batches_come_in_order_epoch_after_epoch():
    async def main():
        for epoch in range(3):
            batches = [(batch.epoch, batch.index) async for batch in feed]
            assert batches == [(epoch, index) for index in range(50)]
        return [int(label[0]) async for _, label in feed.numpy()]

    with feed_of(batches=50, workers=2) as feed:
        assert asyncio.run(main()) == [30000 + 100 * index for index in range(50)]
        assert [batch.index for batch in feed] == list(range(50))


def test_the_loop_runs_on_while_a_batch_is_awaited(gate):
    async def main():
        ticks = 0
        iterator = aiter(feed)
        assert await index_of_next(iterator) == 0
        awaited = asyncio.ensure_future(index_of_next(iterator))
        while ticks < 50:
            await asyncio.sleep(0.001)
            ticks += 1
        assert not awaited.done()
        assert len(waiting_threads()) == 1
        gate(1)
        assert await awaited == 1
        return [batch.index async for batch in iterator]

    with gated(1, batches=5) as feed:
        assert asyncio.run(main()) == [2, 3, 4]


def test_a_task_is_cancelled_between_batches_that_are_all_there():
    """A loop over batches that never wait still gives way to others, once for each of them."""

    async def tick():
        nonlocal ticks
        while True:
            ticks += 1
            await asyncio.sleep(0)

    async def main():
        seen = 0
        others = asyncio.ensure_future(tick())
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.1):
                async for batch in feed:
                    assert batch.index == seen
                    seen += 1
                    time.sleep(0.002)  # so that the next one is there
        assert not others.done()
        return seen

    ticks = 0
    with feed_of(workers=2) as feed:
        assert 0 < asyncio.run(main()) <= ticks


@pytest.mark.parametrize("moment", ["before", "while", "after"])
def test_a_cancelled_wait_loses_no_batch(gate, moment):
    async def main():
        iterator = aiter(feed)
        assert await index_of_next(iterator) == 0
        for _ in range(3):
            task = asyncio.ensure_future(index_of_next(iterator))
            if moment != "before":
                await asyncio.sleep(0.01)
            if moment == "after":  # the batch is there, and the task has not run yet
                gate(1)
                while feed.stats().slots_held == 0:
                    time.sleep(0.001)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            if moment == "after":
                break
        gate(1)
        return [batch.index async for batch in iterator]

    with gated(1, batches=6, slots=4) as feed:
        assert asyncio.run(main()) == [1, 2, 3, 4, 5]


@pytest.mark.slow
def test_cancellations_at_any_moment_lose_no_batch():
    """Waits that end by a batch race with ones that end by a timeout."""

    async def main():
        iterator, indices, cancelled, misses = aiter(feed), [], 0, 0
        while len(indices) < 400:
            try:
                seconds = 0.00005 * (1 + len(indices) % 7) * 2 ** (misses // 10)
                indices.append(await asyncio.wait_for(index_of_next(iterator), seconds))
                misses = 0
            except TimeoutError:
                cancelled += 1
                misses += 1  # a loaded machine needs longer
        assert indices == list(range(400))
        return cancelled

    fields = tn.schema(label=("i8", (4,)))
    with tn.Feed(native("int crowd(int64_t *label, uint64_t index)"), fields, slots=2) as feed:
        assert asyncio.run(main()) > 0


def test_several_tasks_share_the_batches_of_one_iterator(gate):
    async def main():
        iterator = aiter(feed)

        async def take():
            return [batch.index async for batch in iterator]

        tasks = [asyncio.ensure_future(take()) for _ in range(4)]
        await asyncio.sleep(0.02)
        assert len(waiting_threads()) == 1
        gate(1)
        return await asyncio.gather(*tasks)

    with gated(3, batches=40) as feed:
        assert sorted(itertools.chain(*asyncio.run(main()))) == list(range(40))


def test_an_error_comes_at_its_place_and_ends_the_epoch():
    async def main():
        indices = []
        with pytest.raises(tn.OpError, match="7"):
            async for batch in iterator:
                indices.append(batch.index)
        assert [batch.index async for batch in iterator] == []
        return indices

    with tn.Feed(native(FAIL_AT, bad_index=3, code=7), tn.schema(**LABEL), batches=9) as feed:
        iterator = aiter(feed)
        assert asyncio.run(main()) == [0, 1, 2]


def test_a_timeout_is_that_of_the_feed_and_the_epoch_goes_on(gate):
    async def main():
        iterator = aiter(feed)
        assert await index_of_next(iterator) == 0
        feed.timeout = 0.05
        with pytest.raises(TimeoutError, match="no batch 1 of epoch 0"):
            await anext(iterator)
        gate(1)
        feed.timeout = None
        return [batch.index async for batch in iterator]

    with gated(1, batches=4) as feed:
        assert asyncio.run(main()) == [1, 2, 3]


def test_a_feed_has_one_live_iterator_also_while_one_is_awaited(gate):
    async def main():
        iterator = aiter(feed)
        task = asyncio.ensure_future(index_of_next(iterator))
        await asyncio.sleep(0.02)
        other = aiter(feed)
        with pytest.raises(tn.TenonError, match="another iteration over the feed has begun"):
            await task
        await other.aclose()
        with pytest.raises(StopAsyncIteration):
            await anext(other)
        gate(1)
        return [batch.index async for batch in feed]

    with gated(0, batches=4) as feed:
        assert asyncio.run(main()) == [0, 1, 2, 3]


def test_an_iterator_that_is_dropped_during_a_wait_takes_nothing_from_the_next_one(gate):
    async def begin():
        iterator = aiter(feed)
        task = asyncio.ensure_future(index_of_next(iterator))
        await asyncio.sleep(0.005)
        task.cancel()

    with gated(0, batches=3) as feed:
        for _ in range(20):
            asyncio.run(begin())
        gc.collect()
        gate(1)
        for _ in range(5):
            assert [batch.index for batch in feed] == [0, 1, 2]


def test_closing_the_feed_ends_the_wait(gate):
    async def main():
        task = asyncio.ensure_future(anext(aiter(feed)))
        await asyncio.sleep(0.02)
        asyncio.get_running_loop().call_later(0.02, gate, 1)
        await asyncio.to_thread(feed.close, 600)
        with pytest.raises((ValueError, StopAsyncIteration)):
            await task

    feed = gated(0)
    asyncio.run(main())


def test_an_awaited_batch_survives_its_loop(gate):
    """What arrives when the loop is closed already is the first batch of the next loop."""
    with gated(0, batches=3) as feed:
        iterator = aiter(feed)

        async def give_up():
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(anext(iterator), 0.02)

        async def collect():
            return [batch.index async for batch in iterator]

        asyncio.run(give_up())
        gate(1)
        assert asyncio.run(collect()) == [0, 1, 2]


@pytest.mark.slow
def test_python_ends_while_a_batch_is_awaited():
    code = f"""
import asyncio, tenon as tn
control = tn.c_function({native_library.generators()!r}, "void set_gate(int open)", threadsafe=True)
generator = tn.c_function({native_library.generators()!r}, {GATED!r}, **{{"from": 0}})
control(0)
feed = tn.Feed(generator, tn.schema(label=("i8", (4,))))
iterator = aiter(feed)
async def main():
    try:
        await asyncio.wait_for(anext(iterator), 0.05)
    except TimeoutError:
        print("end", flush=True)
asyncio.run(main())
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=600)
    assert (done.returncode, done.stdout) == (0, "end\n"), done.stderr
    assert "Traceback" not in done.stderr
