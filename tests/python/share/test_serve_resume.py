# SPDX-License-Identifier: Apache-2.0
"""Attached feeds that continue at a saved position.

Oracle: the rows of one feed that is iterated without a stop. Server and consumer are in one process; slow
tests have consumers in separate processes.
"""

import itertools
import os
import pickle
import signal

import pytest
from other_process import SECONDS

import tenon as tn

SCHEMA = tn.schema(x=("i8", (2,)))
BATCHES, EPOCHS = 4, 2


class Walk:
    def __init__(self):
        self.at = 0

    def __call__(self, batch):
        self.at += 1
        batch.x = self.at * 1000

    def state(self):
        return [self.at]

    def restore(self, state):
        (self.at,) = state


@tn.worker(SCHEMA, has_state=True)
def walks(batches):
    at = [0]
    batches.keep_state(lambda: at[0], lambda state: at.__setitem__(0, state))
    for batch in batches:
        at[0] += 1
        batch.x = at[0] * 1000 + batch.worker


def indexed(batch):
    batch.x = batch.index + 10 * (batch.seed % 1000)


def blind(batch):
    batch.x = 1


KINDS = {
    "callable": (Walk, {}),
    "loop": (walks, {"workers": 2}),
    "indexed": (lambda: indexed, {}),
    "shuffled": (lambda: indexed, {"shuffle": True}),
}


def rows_of(batch):
    return batch.epoch, batch.index, int(batch.x[1])


def feed_of(kind, **options):
    make, own = KINDS[kind]
    return tn.Feed(make(), SCHEMA, **{"batches": BATCHES, "seed": 5, "timeout": 60, **own, **options})


def without_a_stop(kind):
    with feed_of(kind) as feed:
        return [rows_of(batch) for _ in range(EPOCHS) for batch in feed]


def served_rows(name, kind, mode, state, stop):
    """The rows that one consumer gets from a new feed, and its state after row ``stop``."""
    rows, states = [], [state]
    with (
        feed_of(kind, shared=name) as feed,
        feed.serve(mode, epochs=None, background=True),
        tn.Feed.attach(name, timeout=60) as attached,
    ):
        if state is not None:
            attached.load_state_dict(state)
            assert attached.state_dict() == state
        while len(rows) < stop:
            for batch in itertools.islice(attached, stop - len(rows)):
                rows.append(rows_of(batch))
                del batch
                states.append(attached.state_dict())
    return rows, pickle.loads(pickle.dumps(states[-1]))


def check(name, kind, mode, stops):
    whole = without_a_stop(kind)
    for stop in stops:
        first, state = served_rows(name, kind, mode, None, stop)
        rest, _ = served_rows(name, kind, mode, state, len(whole) - stop)
        assert first + rest == whole, (stop, state)
        with feed_of(kind) as feed:
            feed.load_state_dict(state)
            again = [rows_of(batch) for _ in range(EPOCHS) for batch in feed][: len(whole) - stop]
        assert again == whole[stop:], (stop, state)


@pytest.mark.parametrize("mode", ["queue", "broadcast"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_served_feed_continues_where_its_consumer_was(name, kind, mode):
    check(name, kind, mode, [1, BATCHES, BATCHES + 1])


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["queue", "broadcast"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_served_feed_continues_after_each_batch(name, kind, mode):
    check(name, kind, mode, range(1, BATCHES * EPOCHS))


def test_the_state_at_the_end_of_an_epoch_is_that_of_the_next_one(name):
    with (
        feed_of("callable", shared=name) as feed,
        feed.serve(epochs=None, background=True),
        tn.Feed.attach(name, timeout=60) as attached,
    ):
        for batch in attached:
            del batch
        assert attached.state_dict()["epoch"] == 1
        assert attached.state_dict()["next"] == 0
        assert pickle.loads(attached.state_dict()["states"][0]) == [BATCHES]


@pytest.mark.parametrize("mode", ["queue", "broadcast"])
@pytest.mark.parametrize("kind", ["callable", "indexed"])
def test_a_state_that_was_loaded_is_of_one_serving(name, kind, mode):
    """The consumer stays attached over two of them."""
    whole = without_a_stop(kind)
    with feed_of(kind) as feed:
        batches = iter(feed)
        for _ in range(2):
            next(batches)
        state = feed.state_dict()
    with feed_of(kind, shared=name) as feed:
        server = feed.serve(mode, epochs=1, background=True)
        attached = tn.Feed.attach(name, timeout=60)
        attached.load_state_dict(state)
        assert [rows_of(batch) for batch in attached] == whole[2:BATCHES]
        server.wait(SECONDS)
        with attached, feed.serve(mode, epochs=1, background=True):
            assert [rows_of(batch) for batch in attached] == whole[BATCHES:]


@pytest.mark.parametrize("kind", ["callable", "indexed"])
def test_a_second_loop_of_an_epoch_goes_on_where_the_first_one_was(name, other, kind):
    """Another consumer of the broadcast is ahead."""
    with (
        feed_of(kind, shared=name, batches=8, slots=12) as feed,
        feed.serve("broadcast", consumers=2, background=True),
        tn.Feed.attach(name, timeout=60) as attached,
    ):
        attach(other, name)
        other.ask("batches = iter(feed)")
        other.start("[next(batches).index for _ in range(6)]")
        first = [batch.index for batch in itertools.islice(attached, 2)]
        assert other.answer() == list(range(6))
        second = [batch.index for batch in itertools.islice(attached, 3)]
        assert (first, second) == ([0, 1], [2, 3, 4])
        assert attached.state_dict()["next"] == 5


def test_a_second_loop_of_an_epoch_knows_what_others_got_in_between(name, other):
    with (
        feed_of("indexed", shared=name, batches=8) as feed,
        feed.serve(consumers=1, background=True),
        tn.Feed.attach(name, timeout=60) as attached,
    ):
        assert [batch.index for batch in itertools.islice(attached, 2)] == [0, 1]
        attach(other, name)
        assert other.ask("[batch.index for _, batch in zip(range(2), feed)]") == [2, 3]
        other.ask("feed.close()")
        assert [batch.index for batch in itertools.islice(attached, 1)] == [4]
        with pytest.raises(ValueError, match="several consumers share"):
            attached.state_dict()


def test_a_consumer_that_lags_behind_a_restarted_worker_knows_its_position(name, other, tmp_path):
    """Another consumer is ahead when it comes to its first batch, and a worker has begun anew meanwhile."""
    has_died = tmp_path / "has-died"

    class Dies(Walk):
        def __call__(self, batch):
            if batch.index == 2 and not has_died.exists():
                has_died.touch()
                os.kill(os.getpid(), signal.SIGKILL)
            super().__call__(batch)

    options = {"batches": 6, "processes": "fork", "on_error": "retry", "timeout": 60}
    with (
        tn.Feed(Dies(), SCHEMA, slots=8, shared=name, **options) as feed,
        feed.serve("broadcast", consumers=2, background=True),
        tn.Feed.attach(name, timeout=60) as attached,
    ):
        attach(other, name)
        other.ask("batches = iter(feed)")
        other.start("[next(batches).index for _ in range(5)]")
        mine = iter(attached)
        assert other.answer() == list(range(5)) and has_died.exists()
        for count in range(1, 4):
            assert int(next(mine).x[0]) == count * 1000
            state = attached.state_dict()
            assert (state["epoch"], state["next"]) == (0, count)
            assert pickle.loads(state["states"][0]) == [count]


def test_batches_that_ignored_their_index_are_told_to_consumers(name):
    with (
        tn.Feed(blind, SCHEMA, batches=9, shared=name, timeout=60) as feed,
        feed.serve(background=True),
        tn.Feed.attach(name, timeout=60) as attached,
    ):
        next(iter(attached))
        assert attached.state_dict() == feed.state_dict() | {"epoch": 0, "next": 1, "indexed": False}


def test_a_consumer_without_a_batch_has_no_position(name):
    with (
        feed_of("indexed", shared=name) as feed,
        feed.serve(background=True),
        tn.Feed.attach(name) as attached,
        pytest.raises(ValueError, match=r"no batch here yet; take state_dict\(\) of the feed"),
    ):
        attached.state_dict()


def test_an_epoch_that_has_begun_continues_nowhere_else(name):
    with feed_of("indexed", shared=name) as feed, feed.serve(background=True):
        with tn.Feed.attach(name, timeout=60) as attached:
            next(iter(attached))
            with pytest.raises(ValueError, match="has begun an epoch"):
                attached.load_state_dict({"epoch": 0, "next": 2})
        with (
            tn.Feed.attach(name, timeout=60) as attached,
            pytest.raises(ValueError, match="has begun an epoch"),
        ):
            attached.load_state_dict({"epoch": 0, "next": 2})


def test_a_consumer_that_comes_between_its_state_and_the_first_batch_raises(name, monkeypatch):
    """The feed begins after the state was loaded, and before this consumer begins to iterate."""
    with feed_of("indexed", shared=name) as feed, feed.serve("queue", consumers=1, background=True) as server:
        with tn.Feed.attach(name, timeout=60) as attached:
            monkeypatch.setattr(attached, "_tell", lambda *_: None)
            attached.load_state_dict({"epoch": 0, "next": 2})
            with pytest.raises(tn.TenonError, match="has not continued at batch 2 of epoch 0"):
                next(iter(attached))
        server.close()


def test_a_state_that_the_feed_cannot_load_ends_the_server_and_the_consumer(name):
    with feed_of("loop", shared=name) as feed:
        server = feed.serve(background=True)
        with tn.Feed.attach(name, timeout=60) as attached:
            attached.load_state_dict({"epoch": 0, "next": 2})
            with pytest.raises(tn.TenonError, match="has not continued at batch 2"):
                next(iter(attached))
        with pytest.raises(ValueError, match="the position has no states"):
            server.wait(60)


def attach(process, name):
    process.ask("feed = tn.Feed.attach(name, wait=600, timeout=60)", name=name)


@pytest.mark.slow
def test_consumers_of_a_broadcast_load_the_same_state(name, other, another):
    with (
        feed_of("indexed", shared=name) as feed,
        feed.serve("broadcast", epochs=1, consumers=2, background=True) as server,
    ):
        for process in (other, another):
            attach(process, name)
            process.ask("feed.load_state_dict(state)", state={"epoch": 1, "next": 2})
            process.start("[(batch.epoch, batch.index) for batch in feed]")
        for process in (other, another):
            assert process.answer() == [(1, 2), (1, 3)]
            assert {"epoch": 2, "next": 0}.items() <= process.ask("feed.state_dict()").items()
        server.wait(SECONDS)


@pytest.mark.slow
def test_consumers_that_load_different_states_get_no_batch(name, other, another):
    with feed_of("indexed", shared=name) as feed:
        server = feed.serve("broadcast", consumers=2, background=True)
        for place, process in enumerate((other, another)):
            attach(process, name)
            process.ask("feed.load_state_dict(state)", state={"epoch": 1, "next": place})
            process.start("[(batch.epoch, batch.index) for batch in feed]")
        for process in (other, another):
            with pytest.raises(tn.TenonError, match="has not continued at batch"):
                process.answer()
        with pytest.raises(ValueError, match="have loaded different states"):
            server.wait(SECONDS)


@pytest.mark.slow
def test_several_consumers_of_a_queue_know_no_position(name, other, another):
    with feed_of("indexed", shared=name, batches=30) as feed, feed.serve(consumers=2, background=True):
        for process in (other, another):
            attach(process, name)
            process.start("batches = iter(feed); batch = next(batches)")
        for process in (other, another):
            process.answer()
        assert sorted(process.ask("batch.index") for process in (other, another)) == [0, 1]
        for process in (other, another):
            with pytest.raises(
                ValueError, match=r"take state_dict\(\) of the feed in the process that serves"
            ):
                process.ask("feed.state_dict()")
        last = other if other.ask("batch.index") == 0 else another
        first = another if last is other else other
        first.ask("del batch, batches; feed.close()")
        last.ask("batch = next(batches)")
        with pytest.raises(ValueError, match="several consumers share"):
            last.ask("feed.state_dict()")
