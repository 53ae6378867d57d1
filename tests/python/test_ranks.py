# SPDX-License-Identifier: Apache-2.0
"""Feeds of several ranks share the batches of an epoch."""

import itertools

import pytest

import tenon as tn

pytestmark = pytest.mark.usefixtures("nothing_stays_behind")

FIELDS = {"x": ("i8", (2,))}


def fill(batch):
    batch.x = 1000 * batch.epoch + batch.index


def feed_of(rank, world_size, batches=23, **options):
    return tn.Feed(
        fill, FIELDS, batches=batches, rank=rank, world_size=world_size, seed=3, timeout=60, **options
    )


def epoch_of(feed):
    return [int(batch.x[0]) for batch in feed]


def single(shuffle, epochs=1):
    with feed_of(0, 1, shuffle=shuffle) as feed:
        return [epoch_of(feed) for _ in range(epochs)]


@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("world_size", [1, 2, 3, 5, 40])
def test_ranks_take_the_batches_of_one_rank_in_turn(world_size, shuffle):
    whole = single(shuffle, epochs=2)
    for rank in range(world_size):
        with feed_of(rank, world_size, shuffle=shuffle) as feed:
            assert len(feed) == feed.batches == len(whole[0][rank::world_size])
            assert [epoch_of(feed) for _ in range(2)] == [epoch[rank::world_size] for epoch in whole]


@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize(("before", "after"), [(4, 2), (2, 4), (4, 3), (3, 1), (1, 5)])
def test_another_number_of_ranks_continues_an_epoch(before, after, shuffle):
    (whole,) = single(shuffle)
    for steps in range(-(-23 // before)):
        came, states = [], []
        for rank in range(before):
            with feed_of(rank, before, shuffle=shuffle) as feed:
                batches = iter(feed)
                came += [int(next(batches).x[0]) for _ in range(steps)]
                states.append(feed.state_dict())
                del batches
        assert all(state == states[0] for state in states)
        for rank in range(after):
            with feed_of(rank, after, shuffle=shuffle) as feed:
                feed.load_state_dict(states[0])
                came += epoch_of(feed)
        assert sorted(came) == sorted(whole)


@pytest.mark.parametrize("shuffle", [False, True])
def test_the_number_of_ranks_changes_again_and_again(shuffle):
    """Each position is that of a rank, whichever it is, also right after it was restored."""
    (whole,) = single(shuffle)
    for one in range(3):
        came, state = [], {"epoch": 0, "next": 0} | ({"shuffle": 3} if shuffle else {})
        for world_size, steps in ((1, 4), (3, 1), (2, 0), (3, 2), (1, 1), (4, 1), (5, 100)):
            states = []
            for rank in range(world_size):
                with feed_of(rank, world_size, shuffle=shuffle) as feed:
                    feed.load_state_dict(state)
                    batches = iter(feed)
                    assert state.items() <= feed.state_dict().items()
                    came += [int(batch.x[0]) for batch in itertools.islice(batches, steps)]
                    states.append(feed.state_dict())
                    del batches
            state = states[one % world_size]
        assert sorted(came) == sorted(whole)


def test_each_rank_ends_a_stream_at_its_own_first_batch_behind_the_end():
    def stream(batch):
        if batch.index >= 10:
            batch.end()
        else:
            batch.x = batch.index

    for rank in range(3):
        with tn.Feed(stream, FIELDS, rank=rank, world_size=3, timeout=60) as feed:
            for _ in range(2):
                assert epoch_of(feed) == list(range(rank, 10, 3))


def test_the_bar_of_a_rank_counts_its_own_batches():
    class Bar:
        def __init__(self, total):
            self.total, self.n = total, 0
            bars.append(self)

        def update(self, n):
            self.n += n

    bars = []
    with feed_of(2, 4, progress=Bar) as feed:
        feed.load_state_dict({"epoch": 0, "next": 8})
        epoch_of(feed)
        epoch_of(feed)
        feed.load_state_dict({"epoch": 0, "next": 21})
        epoch_of(feed)
    assert [(bar.total, bar.n) for bar in bars] == [(6, 6), (6, 6), (5, 5)]


@pytest.mark.parametrize(("rank", "world_size"), [(1, 1), (-1, 2), (2, 2), (0, 0), (0, -1), (0.5, 2)])
def test_a_rank_is_below_the_world_size(rank, world_size):
    with pytest.raises((ValueError, TypeError), match=r"rank|world_size"):
        feed_of(rank, world_size)


def test_a_state_behind_the_last_batch_is_refused():
    with feed_of(1, 4) as feed:
        feed.load_state_dict({"epoch": 0, "next": 23})
        assert epoch_of(feed) == []
        with pytest.raises(ValueError, match="an epoch has 23 batches"):
            feed.load_state_dict({"epoch": 0, "next": 24})
