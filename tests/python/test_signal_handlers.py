# SPDX-License-Identifier: Apache-2.0
"""What the handler of a signal raises ends the wait in which it came, and is not taken for an error of the
wait itself, whatever its class is. The program may then go on."""

import contextlib
import multiprocessing
import signal
import threading

import pytest

import tenon as tn

SECONDS = 60
SCHEMA = {"x": ("i8", (1,))}


@contextlib.contextmanager
def feed_that_hangs(**options):
    released = threading.Event()

    def fill(batch):
        released.wait(SECONDS)
        batch.x = batch.index

    with tn.Feed(fill, SCHEMA, batches=3, **options) as feed:
        yield feed, released
        released.set()


@contextlib.contextmanager
def consumer():
    with feed_that_hangs() as (feed, released):
        batches = iter(feed)
        yield lambda: next(batches)
        released.set()
        assert [batch.index for batch in batches] == [0, 1, 2]


@contextlib.contextmanager
def consumer_that_fills():
    with feed_that_hangs(workers=0, on_error="skip") as (feed, _):
        batches = iter(feed)
        yield lambda: next(batches)
        with pytest.raises(tn.TenonError, match="interrupted"):
            next(batches)


@contextlib.contextmanager
def server():
    with feed_that_hangs(shared=True) as (feed, _):
        yield lambda: feed.serve(consumers=0)


@contextlib.contextmanager
def attached_consumer():
    with (
        feed_that_hangs(shared=True) as (feed, released),
        feed.serve(background=True),
        tn.Feed.attach(feed.name) as attached,
    ):
        batches = iter(attached)
        yield lambda: next(batches)
        released.set()
        assert [batch.index for batch in batches] == [0, 1, 2]


@contextlib.contextmanager
def loader():
    torch = pytest.importorskip("torch")

    class Hangs(torch.utils.data.Dataset):
        def __len__(self):
            return 2

        def __getitem__(self, i):
            released.wait(SECONDS)
            return i

    released = multiprocessing.get_context("fork").Event()
    batches = iter(tn.DataLoader(Hangs(), num_workers=1, multiprocessing_context="fork"))
    yield lambda: next(batches)
    released.set()
    assert [int(batch) for batch in batches] == [0, 1]


@contextlib.contextmanager
def channel():
    with tn.Channel(SCHEMA) as channel:
        items = iter(channel)
        yield lambda: next(items)
        with channel.loan() as item:
            item.x = 1
        assert next(items).x.item() == 1


@contextlib.contextmanager
def buffer():
    array = tn.zeros(4)
    lease = array.lease("w").detach()
    yield lambda: tn.from_buffer(array, "u1")
    lease.release()


class Alarm(Exception):
    pass


@pytest.mark.parametrize("kind", [Alarm, TimeoutError, ValueError, EOFError, tn.OwnerDied, tn.LeaseConflict])
@pytest.mark.parametrize(
    "make", [consumer, consumer_that_fills, server, attached_consumer, loader, channel, buffer]
)
def test_what_the_handler_of_a_signal_raises_ends_the_wait(make, kind):
    raised = kind("of the handler")

    def handle(*_):
        raise raised

    before = signal.signal(signal.SIGUSR1, handle)
    main = threading.main_thread().ident
    timer = threading.Timer(0.1, lambda: signal.pthread_kill(main, signal.SIGUSR1))
    try:
        with make() as wait:
            with pytest.raises(kind) as caught:
                timer.start()
                wait()
            assert caught.value is raised
            del caught
    finally:
        timer.join()
        signal.signal(signal.SIGUSR1, before)
