# SPDX-License-Identifier: Apache-2.0
"""Generators that decide where an epoch ends: StopIteration, batch.end(), and a code in C."""

import itertools
import pathlib

import native_library
import pytest

import tenon as tn

pytestmark = pytest.mark.usefixtures("nothing_stays_behind")

INCLUDE = pathlib.Path(__file__).parents[2] / "include"
FIELDS = {"x": ("i8", (2,))}
LENGTH = 7  # batches of an epoch, which only the generators know


def stops(batch):
    if batch.index == LENGTH:
        raise StopIteration
    batch.x = batch.index


def ends(batch):
    if batch.index == LENGTH:
        batch.end()
    else:
        batch.x = batch.index


@tn.worker(FIELDS)
def loop_that_ends(batches):
    for batch in batches:
        ends(batch)


@tn.worker(FIELDS)
def loop_that_ends_and_returns(batches):
    for batch in batches:
        ends(batch)
        if batch.index == LENGTH:
            return


@tn.worker(FIELDS)
def loop_that_stops(batches):
    for batch in batches:
        stops(batch)


GENERATORS = {
    "ends": ends,
    "loop_that_ends": loop_that_ends(),
    "loop_that_ends_and_returns": loop_that_ends_and_returns(),
}
STOPPING = {"stops": stops, "loop_that_stops": loop_that_stops()}
WORKERS = pytest.mark.parametrize(
    ("workers", "processes"), [(1, False), (3, False), (1, "fork"), (3, "fork")]
)


@WORKERS
@pytest.mark.parametrize(
    ("generator", "batches"),
    [
        *((generator, batches) for generator in GENERATORS.values() for batches in (None, 100)),
        *((generator, None) for generator in STOPPING.values()),
    ],
)
def test_an_epoch_ends_where_the_generator_ends_it(generator, workers, processes, batches):
    with tn.Feed(
        generator, FIELDS, workers=workers, processes=processes, batches=batches, timeout=60
    ) as feed:
        for epoch in range(3):
            came = [(batch.epoch, batch.index, batch.x.tolist()) for batch in feed]
            assert came == [(epoch, index, [index, index]) for index in range(LENGTH)]
        assert feed.stats().unwritten == 0


@WORKERS
@pytest.mark.parametrize("generator", STOPPING.values(), ids=STOPPING.keys())
def test_a_stop_iteration_is_an_error_where_the_feed_has_batches(generator, workers, processes):
    """It is more often an iterator of the generator that is at its end."""
    with tn.Feed(generator, FIELDS, workers=workers, processes=processes, batches=9, timeout=60) as feed:
        for epoch in range(2):
            came = []
            with pytest.raises(
                tn.OpError, match=r"in stops(.|\n)*ends an epoch earlier by batch.end"
            ) as caught:
                came.extend(batch.index for batch in feed)
            assert (caught.value.epoch, caught.value.index) == (epoch, LENGTH)


@WORKERS
@pytest.mark.parametrize("shuffle", [False, True])
def test_an_epoch_that_ended_is_the_same_when_it_is_iterated_again(workers, processes, shuffle):
    def at_five(batch):
        if batch.index == 5:
            batch.end()
        else:
            batch.x = batch.index

    options = {"batches": 8, "shuffle": shuffle, "workers": workers, "processes": processes}
    with tn.Feed(at_five, FIELDS, **options, seed=2, timeout=60) as feed:
        state, epochs = feed.state_dict(), []
        for _ in range(6):
            feed.load_state_dict(state)
            epochs.append([batch.index for batch in feed])
            assert next(iter(feed)).epoch == 1
    assert epochs == [epochs[0]] * 6 != [[]] * 6


def test_a_stream_that_has_grown_is_read_on():
    rows = [1, 2]

    def stream(batch):
        if batch.index >= len(rows):
            batch.end()
        else:
            batch.x = rows[batch.index]

    with tn.Feed(stream, FIELDS, timeout=60) as feed:
        assert [int(batch.x[0]) for batch in feed] == [1, 2]
        rows.append(3)
        feed.load_state_dict({"epoch": 0, "next": 2})
        assert [int(batch.x[0]) for batch in feed] == [3]


@pytest.mark.parametrize("workers", [1, 3])
def test_a_native_generator_ends_its_epoch_by_a_code(tmp_path, workers):
    source = tmp_path / "stream.c"
    source.write_text(
        f"""
        #include <stdint.h>
        #include <tenon/request.h>
        int fill(int64_t* x, size_t n, uint64_t index) {{
          if (index == {LENGTH}) return TENON_END_OF_EPOCH;
          for (size_t i = 0; i < n; ++i) x[i] = (int64_t)index;
          return 0;
        }}
        """
    )
    library = native_library.compiled(source, f"-I{INCLUDE}")
    fill = tn.c_function(library, "int fill(int64_t *x, size_t n, uint64_t index)", threadsafe=True)
    with tn.Feed(fill, FIELDS, workers=workers, timeout=60) as feed:
        for _ in range(3):
            assert [batch.x.tolist() for batch in feed] == [[index] * 2 for index in range(LENGTH)]


def test_an_epoch_may_be_empty():
    def nothing(batch):
        batch.end()

    with tn.Feed(nothing, FIELDS, timeout=60) as feed:
        assert [list(feed) for _ in range(3)] == [[], [], []]


def test_the_first_worker_that_is_at_its_end_ends_the_epoch_at_its_batch():
    """Whatever the others have filled behind it is dropped."""

    @tn.worker(FIELDS)
    def streams(batches):
        own = itertools.count()
        for batch in batches:
            if next(own) == 5:
                batch.end()
            batch.x = batch.index

    with tn.Feed(streams(), workers=3, timeout=60, slots=16) as feed:
        came = [batch.index for batch in feed]
    assert came == list(range(len(came)))
    assert 5 <= len(came) <= 15


def test_the_state_is_that_of_the_next_epoch_after_the_end():
    with tn.Feed(ends, FIELDS, timeout=60) as feed:
        assert len([batch.index for batch in feed]) == LENGTH
        state = feed.state_dict()
    with tn.Feed(ends, FIELDS, timeout=60) as feed:
        feed.load_state_dict(state)
        assert [(batch.epoch, batch.index) for batch in feed] == [(1, index) for index in range(LENGTH)]


def test_end_of_a_batch_that_was_passed_on_is_an_error():
    kept = []

    def keeps(batch):
        kept.append(batch)
        batch.x = 1

    with tn.Feed(keeps, FIELDS, batches=2) as feed:
        list(feed)
    with pytest.raises(ValueError, match="passed on"):
        kept[0].end()


def test_a_view_that_is_kept_of_the_batch_that_ends_an_epoch_is_an_error():
    kept = []

    def keeps(batch):
        kept.append(batch.x[:1])
        batch.end()

    with tn.Feed(keeps, FIELDS, timeout=60) as feed, pytest.raises(tn.OpError, match="live on"):
        list(feed)
