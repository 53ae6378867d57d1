# SPDX-License-Identifier: Apache-2.0
"""The recipes of docs/recipes.md give the same batches for any number of workers, and after resuming; the one
with a state for one worker."""

import doctest
import os
import pathlib
import shutil
import signal
import time

import numpy as np
import pytest

import tenon as tn

pytest.importorskip("pyarrow")
pytestmark = pytest.mark.usefixtures("nothing_stays_behind")

PAGE = pathlib.Path(__file__).parents[2] / "docs/recipes.md"
EPOCHS = 2

OF_ONE_FIELD = {"x": ("i8", (4,))}
RECIPES = {  # the options of its feed; without batches the generator ends the epoch
    "from_stream": {},
    "from_lines": {},
    "drawn": {"schema": OF_ONE_FIELD, "batches": 5},
    "in_turn": {"schema": OF_ONE_FIELD, "batches": 5},
    "packed": {},
    "of_array": {"batches": 3},
    "row_groups": {"batches": 3},
    "of_shards": {"schema": {"x": ("i8", (2,))}, "batches": 6},
}
by_recipe = pytest.mark.parametrize("recipe", [recipe for recipe in RECIPES if recipe != "from_lines"])


@pytest.fixture(scope="module")
def page():
    """The definitions of the page: all of its examples that print nothing."""
    names = {}
    for example in doctest.DocTestParser().get_examples(PAGE.read_text()):
        if not example.want and "cleanup" not in example.source:
            exec(compile(example.source, str(PAGE), "exec"), names)
    yield names
    names["temporary"].cleanup()


def feed_of(page, recipe, **options):
    generator = page[recipe]
    if recipe == "from_lines":
        generator = generator(page["folder"] / "samples.txt", 4)
    elif recipe == "from_stream":
        generator = generator(page["stream"])
    elif recipe == "packed":
        generator = generator(page["sequences"])
    elif recipe in ("of_array", "row_groups"):
        file = {"of_array": "images.npy", "row_groups": "samples.parquet"}[recipe]
        generator = generator(page["folder"] / file)
    return tn.Feed(generator, seed=1, timeout=60, check=True, **RECIPES[recipe] | options)


def epoch_of(feed):
    return [(batch.index, [array.tolist() for array in batch.arrays]) for batch in feed]


def epochs_of(page, recipe, **options):
    with feed_of(page, recipe, **options) as feed:
        return [epoch_of(feed) for _ in range(EPOCHS)]


@by_recipe
@pytest.mark.parametrize(("workers", "processes"), [(3, False), (1, "fork"), (3, "fork")])
def test_any_number_of_workers_gives_the_same_batches(page, recipe, workers, processes):
    expected = epochs_of(page, recipe)
    assert all(len(epoch) >= 2 for epoch in expected)
    assert epochs_of(page, recipe, workers=workers, processes=processes) == expected


@by_recipe
def test_a_feed_goes_on_at_any_place(page, recipe):
    expected = epochs_of(page, recipe)
    for epoch in range(EPOCHS):
        for place in range(len(expected[epoch])):
            with feed_of(page, recipe) as feed:
                feed.load_state_dict({"epoch": epoch, "next": place})
                assert epoch_of(feed) == expected[epoch][place:]


@by_recipe
def test_workers_go_from_one_epoch_to_a_later_place_of_the_next(page, recipe):
    expected = epochs_of(page, recipe)
    with feed_of(page, recipe, slots=2) as feed:
        batches = iter(feed)
        first = next(batches)  # which leaves the worker one slot: it is at batch 1 at most
        del batches
        del first
        feed.load_state_dict({"epoch": 1, "next": 2})
        assert epoch_of(feed) == expected[1][2:]


@by_recipe
def test_ranks_share_the_batches(page, recipe):
    expected = epochs_of(page, recipe)
    for rank in range(2):
        ranked = epochs_of(page, recipe, rank=rank, world_size=2)
        assert ranked == [epoch[rank::2] for epoch in expected]


@by_recipe
def test_a_shuffled_epoch_has_the_same_batches(page, recipe):
    expected = epochs_of(page, recipe)[0]
    with feed_of(page, recipe, shuffle=True, batches=len(expected)) as feed:
        shuffled = epoch_of(feed)
    assert sorted(shuffled) == expected


@pytest.mark.parametrize("processes", [False, "fork"])
def test_a_buffer_with_a_state_goes_on_at_any_place(page, processes):
    expected = epochs_of(page, "from_lines")
    assert expected[0] != expected[1]
    states = []
    with feed_of(page, "from_lines", processes=processes) as feed:
        for epoch in range(EPOCHS):
            states.append((epoch, 0, feed.state_dict()))
            states += [(epoch, batch.index + 1, feed.state_dict()) for batch in feed]
    for epoch, place, state in states:
        with feed_of(page, "from_lines", processes=processes) as feed:
            feed.load_state_dict(state)
            assert epoch_of(feed) == expected[epoch][place:]
            assert epoch + 1 == EPOCHS or epoch_of(feed) == expected[epoch + 1]


def test_an_epoch_of_a_buffer_with_a_state_that_is_left_early_is_over(page):
    expected = epochs_of(page, "from_lines")
    with feed_of(page, "from_lines") as feed:
        batches = iter(feed)
        assert next(batches).index == 0
        del batches
        assert epoch_of(feed) == expected[1]


@pytest.mark.parametrize("recipe", ["from_stream", "from_lines"])
def test_an_epoch_of_a_stream_has_each_sample_once(page, recipe):
    for epoch in epochs_of(page, recipe):
        rows = [row for _, (x,) in epoch for row in x]
        assert sorted(rows) == list(range(10)) != rows


def test_an_epoch_of_samples_has_each_sample_once(page):
    array = [row for _, (x,) in epochs_of(page, "of_array")[1] for row in x]
    packed = [row for _, (tokens, _) in epochs_of(page, "packed")[1] for row in tokens]
    assert sorted(array) == [[2 * row, 2 * row + 1] for row in range(10)] != array
    tokens = sorted(token for row in packed for token in row if token)
    assert tokens == sorted(token for sequence in page["sequences"] for token in sequence.tolist())


def test_sources_in_turn_have_exact_shares_in_order(page):
    rows = [row for _, (x,) in epochs_of(page, "in_turn")[0] for row in x]
    assert [row for row in rows if row < 100] == [row % 10 for row in range(15)]
    assert [row for row in rows if row >= 100] == [100 + row for row in range(5)]
    assert [at for at, row in enumerate(rows) if row >= 100] == [3, 7, 11, 15, 19]


def test_a_sequence_that_is_longer_than_a_row_is_an_error_of_its_batch(page):
    sequences = [*page["sequences"], np.ones(9, "i4")]
    with (
        tn.Feed(page["packed"](sequences), timeout=60) as feed,
        pytest.raises(tn.OpError, match="ValueError"),
    ):
        epoch_of(feed)


def test_nulls_among_integers_are_an_error(page, tmp_path):
    import pyarrow as pa
    import pyarrow.parquet

    x = pa.FixedSizeListArray.from_arrays(np.zeros(4, "f4"), 2)
    pyarrow.parquet.write_table(pa.table({"x": x, "label": pa.array([1, None])}), tmp_path / "nulls.parquet")
    with (
        tn.Feed(page["row_groups"](tmp_path / "nulls.parquet"), batches=1, timeout=60) as feed,
        pytest.raises(tn.OpError, match="TypeError: Cannot cast"),
    ):
        epoch_of(feed)


class Copies:
    """In the place of shutil: its copies go on in the middle as a test wants."""

    def __init__(self, folder, in_the_middle):
        self.folder = folder
        self.in_the_middle = in_the_middle

    def count(self):
        return len(list(self.folder.glob("copy-*")))

    def copyfile(self, url, path):
        content = url.read_bytes()
        pathlib.Path(path).write_bytes(content[: len(content) // 2])
        (self.folder / f"copy-{os.getpid()}-{time.monotonic_ns()}").touch()
        self.in_the_middle(self)
        shutil.copyfile(url, path)


@pytest.fixture
def shard(page, tmp_path, monkeypatch):
    """A shard that is not in the cache; ``shard(in_the_middle)`` returns its copies and a generator."""
    np.save(tmp_path / "shard.npy", np.arange(1000))
    path = tmp_path / "cached.npy"

    def of(in_the_middle):
        copies = Copies(tmp_path, in_the_middle)
        monkeypatch.setitem(page, "shutil", copies)

        def fill(batch):
            (tmp_path / f"worker-{batch.worker}").touch()
            page["fetch"](tmp_path / "shard.npy", path)
            batch.x = np.load(path)[-4:]

        return copies, fill

    return of


def test_processes_that_need_a_shard_at_once_fetch_it_once(shard):
    def until_others_had_time_for_a_copy(copies):
        while len(list(copies.folder.glob("worker-*"))) < 3:
            time.sleep(0.001)
        deadline = time.monotonic() + 1
        while copies.count() == 1 and time.monotonic() < deadline:
            time.sleep(0.001)

    copies, fill = shard(until_others_had_time_for_a_copy)
    with tn.Feed(fill, OF_ONE_FIELD, workers=3, processes="fork", batches=6, timeout=60) as feed:
        assert epoch_of(feed) == [(index, [[996, 997, 998, 999]]) for index in range(6)]
    assert copies.count() == 1


@pytest.mark.slow
def test_a_worker_that_is_killed_in_a_copy_leaves_no_part_of_a_shard(shard):
    def kill_the_first(copies):
        if copies.count() == 1:
            os.kill(os.getpid(), signal.SIGKILL)

    copies, fill = shard(kill_the_first)
    options = {"workers": 2, "processes": "fork", "on_error": "retry", "timeout": 60}
    with tn.Feed(fill, OF_ONE_FIELD, batches=4, **options) as feed:
        assert epoch_of(feed) == [(index, [[996, 997, 998, 999]]) for index in range(4)]
    assert copies.count() == 2
