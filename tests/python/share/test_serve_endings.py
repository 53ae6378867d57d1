# SPDX-License-Identifier: Apache-2.0
"""How a served feed ends after other failures, or if a forked child has a copy of it."""

import contextlib
import os
import signal
import threading
import time

import pytest
from other_process import SECONDS, Other

import tenon as tn
from tenon._data.serving import Server

SCHEMA = tn.schema(label=("i8", (4,)))


def fill_index(batch):
    batch.label[...] = batch.index


def waits_at_batch_2(go_on):
    def fill(batch):
        if batch.index == 2:
            go_on.wait(SECONDS)
        fill_index(batch)

    return fill


def attach(name, *consumers):
    for consumer in consumers:
        consumer.ask("import tenon as tn")
        consumer.ask("feed = tn.Feed.attach(name, wait=600)", name=name)


@pytest.mark.slow
def test_the_end_of_a_forked_child_is_none_of_the_consumers_business(other):
    """It ends its copies of server and feed while the consumer waits for a batch."""
    go_on = threading.Event()
    fill = waits_at_batch_2(go_on)
    name = f"forks-{os.getpid()}"
    with (
        tn.Feed(fill, SCHEMA, batches=5, shared=name) as feed,
        feed.serve(epochs=2, background=True) as server,
    ):
        other.ask("feed = tn.Feed.attach(name, wait=600)", name=name)
        other.start("[[int(batch.label[0]) for batch in feed] for _ in range(2)]")
        while server.batches < 2:
            threading.Event().wait(0.001)
        child = os.fork()
        if child == 0:
            try:
                server.close()
                feed.close()
                os._exit(0)
            finally:
                os._exit(1)
        assert os.waitpid(child, 0)[1] == 0
        # Longer than a consumer needs to notice that the feed was closed, and then to look for batches.
        threading.Event().wait(2.5)
        go_on.set()
        assert other.answer() == [[0, 1, 2, 3, 4]] * 2
        server.wait(SECONDS)


def test_a_child_that_is_killed_is_not_the_server(other):
    """It has used a channel of its own."""
    go_on = threading.Event()
    fill = waits_at_batch_2(go_on)
    name = f"child-{os.getpid()}"
    with tn.Feed(fill, SCHEMA, batches=5, shared=name) as feed, feed.serve(background=True) as server:
        attach(name, other)
        other.start("[int(batch.label[0]) for batch in feed]")
        while server.batches < 2:
            threading.Event().wait(0.001)
        child = os.fork()
        if child == 0:
            channel = tn.Channel({"k": ("i8", ())})
            with channel.loan() as item:
                item.k = 1
            os._exit(1)
        os.waitpid(child, 0)
        go_on.set()
        assert other.answer() == [0, 1, 2, 3, 4]


def test_a_server_that_fails_says_so_and_ends_its_consumers_loops(monkeypatch, other):
    name = f"fails-{os.getpid()}"
    feed = tn.Feed(lambda batch: None, SCHEMA, workers=2, processes="fork", batches=5, shared=name)

    def fail(*_):
        raise MemoryError("no room for a note")

    monkeypatch.setattr(Server, "_seek", fail)
    server = feed.serve(background=True)
    other.ask("feed = tn.Feed.attach(name, wait=600)", name=name)
    assert other.ask("len(list(feed))") == 0
    with pytest.raises(MemoryError, match="no room"):
        server.wait(SECONDS)
    feed.close()
    with pytest.raises(ValueError, match="closed"):
        next(iter(feed))
    assert not server.is_running


@pytest.mark.parametrize("mode", ["queue", "broadcast"])
def test_the_first_loop_of_a_consumer_that_comes_after_the_end_raises(mode, other, another):
    name = f"late-{mode}-{os.getpid()}"
    with tn.Feed(fill_index, SCHEMA, batches=2, shared=name) as feed:
        server = feed.serve(mode, epochs=1, background=True)
        attach(name, other)
        # In a broadcast, a batch that a consumer keeps stays in the channel. It is not for the late consumer.
        other.ask("kept = [batch for batch in feed][-1:]")
        server.wait(SECONDS)
        attach(name, another)
        with pytest.raises(ValueError, match=f"is not served any more by process {os.getpid()}"):
            another.ask("list(feed)")


def test_a_closed_feed_and_its_closed_consumer_do_not_keep_the_name():
    name = f"again-{os.getpid()}"
    kept = []
    for _ in range(2):
        feed = tn.Feed(lambda batch: batch.label.fill(1), SCHEMA, batches=2, shared=name)
        with feed, feed.serve(background=True), tn.Feed.attach(name) as attached:
            batches = list(attached)
            assert len(batches) == 2
            state = attached.state_dict()
            batches.clear()
        with pytest.raises(ValueError, match="was closed here"):
            iter(attached)
        with pytest.raises(ValueError, match="was closed here"):
            attached.load_state_dict({"epoch": 0, "next": 1})
        assert attached.state_dict() == state
        kept += [feed, attached]


def test_a_batch_that_is_kept_keeps_the_name_and_the_error_says_what_to_do():
    name = f"kept-{os.getpid()}"
    feed = tn.Feed(lambda batch: batch.label.fill(1), SCHEMA, batches=1, shared=name)
    with feed, feed.serve(background=True), tn.Feed.attach(name) as attached:
        batches = list(attached)
    again = tn.Feed(lambda batch: batch.label.fill(1), SCHEMA, batches=1, shared=name)
    with again, pytest.raises(ValueError, match="this process uses it: delete the objects that use it"):
        again.serve(background=True)
    assert batches[0].label.tolist() == [1] * 4


def test_a_late_consumer_of_a_broadcast_gets_no_batch_of_the_epoch_that_was_over(other, another):
    go_on = threading.Event()

    def fill(batch):
        if batch.epoch == 1:
            go_on.wait(SECONDS)
        batch.label[...] = batch.index

    name = f"late-epoch-{os.getpid()}"
    with tn.Feed(fill, SCHEMA, batches=2, slots=4, shared=name) as feed:
        feed.serve("broadcast", epochs=2, consumers=1, background=True)
        attach(name, other, another)
        other.ask("kept = [batch for batch in feed][-1:]")
        another.ask("it = iter(feed)")
        go_on.set()
        another.start("[(batch.epoch, batch.index) for batch in it]")
        other.start("len(list(feed))")
        assert another.answer() == [(1, 0), (1, 1)]
        assert other.answer() == 2


@pytest.mark.parametrize("mode", ["queue", "broadcast"])
def test_a_loop_that_begins_after_the_last_epoch_raises(mode, other):
    name = f"after-{mode}-{os.getpid()}"
    with tn.Feed(fill_index, SCHEMA, batches=2, shared=name) as feed:
        server = feed.serve(mode, epochs=1, background=True)
        attach(name, other)
        assert other.ask("[batch.index for batch in feed]") == [0, 1]
        server.wait(SECONDS)
        for _ in range(2):
            with pytest.raises(ValueError, match="is not served any more"):
                other.ask("[batch.index for batch in feed]")


def test_a_loop_has_no_batches_of_two_servings(other, another):
    name = f"again-{os.getpid()}"
    with tn.Feed(fill_index, SCHEMA, batches=20, slots=8, shared=name) as feed:
        server = feed.serve("broadcast", epochs=None, background=True)
        attach(name, other, another)
        other.ask("it = iter(feed); first = next(it)")
        while server.batches < 7:
            threading.Event().wait(0.001)
        server.close()
        server = feed.serve("broadcast", epochs=1, background=True)
        another.ask("it = iter(feed)")
        another.start("[(batch.epoch, batch.index) for batch in it]")
        assert {epoch for epoch, _ in other.ask("[(batch.epoch, batch.index) for batch in it]")} == {0}
        other.ask("del first")
        other.start("[(batch.epoch, batch.index) for batch in feed]")
        wanted = [(1, i) for i in range(20)]
        assert [other.answer(), another.answer()] == [wanted] * 2


def test_the_name_is_free_when_the_feed_and_its_consumers_are_closed(other):
    name = f"free-{os.getpid()}"
    servers = []
    for _ in range(2):
        with tn.Feed(fill_index, SCHEMA, batches=2, shared=name) as feed:
            servers.append(feed.serve(background=True))
            attach(name, other)
            assert other.ask("[batch.index for batch in feed]") == [0, 1]
            other.ask("feed.close()")


@pytest.mark.parametrize("wrong", [{"seed": 4}, {"batches": 3}, {"schema": "0"}, {"next": 3}])
def test_a_consumer_refuses_the_state_of_another_feed(wrong, other):
    name = f"state-{next(iter(wrong))}-{os.getpid()}"
    with tn.Feed(fill_index, SCHEMA, batches=2, shared=name) as feed:
        state = feed.state_dict()
        server = feed.serve(background=True)
        attach(name, other)
        with pytest.raises(ValueError, match="state"):
            other.ask("feed.load_state_dict(state)", state={**state, **wrong})
        assert other.ask("[batch.index for batch in feed]") == [0, 1]
        server.wait(SECONDS)


def test_a_late_consumer_of_a_broadcast_gets_no_batch_that_was_sent_before_it_came(other, another):
    go_on = threading.Event()

    def gated(batch):
        if batch.index == 5:
            go_on.wait(SECONDS)
        batch.label[...] = batch.index

    name = f"before-{os.getpid()}"
    with tn.Feed(gated, SCHEMA, batches=8, slots=9, shared=name) as feed:
        feed.serve("broadcast", epochs=1, background=True)
        attach(name, other, another)
        other.ask("it = iter(feed); kept = [next(it), next(it)]; rest = [next(it).index for _ in range(3)]")
        another.ask("it = iter(feed)")
        go_on.set()
        another.start("[batch.index for batch in it]")
        assert other.ask("[batch.index for batch in it]") == [5, 6, 7]
        assert another.answer() == [5, 6, 7]


@pytest.mark.parametrize("fails", [False, True])
def test_a_consumer_that_comes_at_the_end_of_an_epoch_leaves_its_end_to_the_next_one(fails, other, another):
    """Both come when all batches of the epoch were sent, and its end. The first one leaves, or the epoch has
    failed."""

    def fill(batch):
        if fails and (batch.epoch, batch.index) == (0, 5):
            raise RuntimeError("no data")
        batch.label[...] = batch.index

    name = f"end-{fails}-{os.getpid()}"
    with tn.Feed(fill, SCHEMA, batches=6, slots=9, shared=name) as feed, Other() as first:
        server = feed.serve("broadcast", epochs=2, background=True)
        attach(name, first, other, another)
        assert first.ask("(lambda it: next(it).index)(iter(feed))") == 0
        first.ask("feed.close()")
        n_sent = 5 if fails else 6
        while server.batches < n_sent:
            threading.Event().wait(0.001)
        other.ask("it = iter(feed)")
        assert other.ask("next(it).index") == 1
        another.ask("it = iter(feed)")
        assert another.ask("next(it).index") == 2
        if fails:
            with pytest.raises(tn.OpError, match="no data"):
                other.ask("list(it)")
            with pytest.raises(tn.OpError, match="no data"):
                another.ask("list(it)")
        else:
            other.ask("feed.close()")
            assert another.ask("[(batch.epoch, batch.index) for batch in it]") == [(0, 3), (0, 4), (0, 5)]
        another.ask("feed.close()")
        attach(name, first)
        first.ask("it = iter(feed)")
        if fails:
            other.start("len(list(feed))")
        assert first.ask("[(batch.epoch, batch.index) for batch in it]") == [(1, i) for i in range(6)]


@pytest.mark.parametrize("counts", [{"epochs": 1.5}, {"epochs": "2"}, {"consumers": 1.5}])
def test_counts_of_serve_are_integers(counts):
    [name] = counts
    with (
        tn.Feed(fill_index, SCHEMA, batches=1, shared=True) as feed,
        pytest.raises(TypeError, match=f"{name} is {counts[name]!r}: it must be an integer"),
    ):
        feed.serve(background=True, **counts)


def test_the_advice_for_a_second_loop_is_possible_for_an_attached_feed():
    released = threading.Event()

    def fill(batch):
        released.wait(SECONDS)
        batch.x = 0

    with (
        tn.Feed(fill, {"x": ("i8", (1,))}, batches=1, shared=True) as feed,
        feed.serve(background=True),
        tn.Feed.attach(feed.name) as attached,
    ):
        first = iter(attached)
        waiting = threading.Thread(target=lambda: next(first))
        waiting.start()
        while not first._is_in_next:
            pass
        with pytest.raises(tn.TenonError, match=r"end its loop first$"):
            iter(attached)
        released.set()
        waiting.join()
        iter(attached)
        with pytest.raises(tn.TenonError, match="one epoch at a time, and a process attaches to it once"):
            next(first)


def test_a_loop_over_a_feed_that_is_served_raises_and_the_server_goes_on(other):
    name = f"here-{os.getpid()}"
    with tn.Feed(fill_index, SCHEMA, batches=5, shared=name) as feed:
        before = iter(feed)
        assert next(before).index == 0
        with feed.serve(background=True) as server:
            attach(name, other)
            assert other.ask("(lambda it: next(it).index)(iter(feed))") == 0
            with pytest.raises(tn.TenonError, match="is being served"):
                iter(feed)
            with pytest.raises(tn.TenonError, match="is being served already"):
                feed.serve(background=True)
            with pytest.raises(tn.TenonError, match="another iteration"):
                next(before)
            assert other.ask("[batch.index for batch in feed]") == [1, 2, 3, 4]
            server.wait(SECONDS)
        assert [batch.index for batch in feed] == [0, 1, 2, 3, 4]


def test_a_server_that_waits_for_the_end_of_an_epoch_says_so(other, caplog, quick_reports):
    """Its consumer has left the loop."""
    name = f"left-{os.getpid()}"
    with (
        tn.Feed(fill_index, SCHEMA, batches=3, shared=name) as feed,
        feed.serve(epochs=2, background=True),
    ):
        attach(name, other)
        assert other.ask("(lambda it: next(it).index)(iter(feed))") == 0
        wanted = "for its 1 consumers to end the epoch: 2 batches are left"
        end = time.monotonic() + SECONDS
        while not any(wanted in message for message in caplog.messages):
            assert time.monotonic() < end
            time.sleep(0.01)


@pytest.mark.parametrize("mode", ["queue", "broadcast"])
def test_ctrl_c_in_a_fill_of_the_server_ends_its_serving(mode, other):
    """A feed without workers is filled in the thread that serves it."""
    name = f"interrupted-{os.getpid()}"

    def fill(batch):
        fill_index(batch)
        if batch.index == 3 and is_served:
            signal.raise_signal(signal.SIGINT)

    is_served = True
    with tn.Feed(fill, SCHEMA, workers=0, slots=6, batches=8, shared=name) as feed:
        other.ask("import tenon as tn")
        other.ask("feed, seen = None, []")
        other.start(
            """exec("feed = tn.Feed.attach(name, wait=600)\\n"
                    "for batch in feed: seen.append(batch.index)")""",
            name=name,
        )
        with pytest.raises(KeyboardInterrupt):
            feed.serve(mode, epochs=None)
        with contextlib.suppress(tn.OpError):  # or the end: the fill fails as the server closes
            other.answer()
        assert other.ask("seen") == [0, 1, 2]
        is_served = False
        assert [batch.index for batch in feed] == list(range(8))


def test_a_generator_that_exits_ends_the_thread_that_serves_it(other):
    name = f"exits-{os.getpid()}"

    def fill(batch):
        fill_index(batch)
        if batch.index == 2:
            raise SystemExit(3)

    with tn.Feed(fill, SCHEMA, workers=0, batches=8, shared=name) as feed:
        server = feed.serve(epochs=None, background=True)
        attach(name, other)
        other.ask("it, seen = iter(feed), []")
        other.start("[seen.append(batch.index) for batch in it]")
        with pytest.raises(SystemExit):
            server.wait(SECONDS)
        assert not server.is_running
        with contextlib.suppress(tn.OpError):  # or the end
            other.answer()
        assert other.ask("seen") == [0, 1]
