# SPDX-License-Identifier: Apache-2.0
"""Feeds that continue at a saved position give the rows of a run without a stop, or refuse.

Oracle: the rows of one feed that runs all epochs. A feed is stopped after each batch, also at the end of an
epoch; its state is pickled, and a new feed must give the rest of the rows.
"""

import itertools
import json
import pickle
import random
import time

import native_library
import numpy as np
import pytest
import soak
from other_thread import until

import tenon as tn

pytestmark = pytest.mark.usefixtures("nothing_stays_behind")

FIELDS = tn.schema(x=("i8", (2,)), seen=("u8", (2,)))
BATCHES, EPOCHS = 5, 3


class Walk:
    """Each batch depends on all batches before it."""

    def __init__(self):
        self.random = random.Random(3)

    def __call__(self, batch):
        batch.x = self.random.randrange(1 << 60)
        batch.seen = batch.epoch

    def state(self):
        return self.random.getstate()

    def restore(self, state):
        self.random.setstate(state)


@tn.worker(FIELDS, has_state=True)
def walks(batches):
    """The same for each worker, from its number."""
    place = {}

    def restore(state):
        place.clear()
        place.update(state)

    batches.keep_state(lambda: place, restore)
    for batch in batches:
        place["at"] = place.get("at", batch.worker << 20) + 1
        batch.x = place["at"]
        batch.seen = batch.worker


@tn.worker(FIELDS, has_state=True)
def uneven(batches):
    """The worker ends the epoch before its 4th, 8th, ... batch."""
    at = [0]
    batches.keep_state(lambda: list(at), lambda state: at.__setitem__(0, state[0]))
    for batch in batches:
        at[0] += 1
        if at[0] % 4 == 0:
            batch.end()
            continue
        batch.x = at[0] * 10 + batch.worker
        batch.seen = batch.epoch


@tn.worker(FIELDS, has_state=True)
def lines(batches, rows):
    """A stream that begins anew when its loop returns."""
    at = [0]
    batches.keep_state(lambda: at[0], lambda state: at.__setitem__(0, state))
    for batch in batches:
        if at[0] == rows:
            return
        batch.x = at[0] = at[0] + 1
        batch.seen = batch.epoch


def indexed(batch):
    batch.x = batch.index
    batch.seen = batch.seed


@tn.worker(FIELDS)
def indexed_loop(batches):
    for batch in batches:
        batch.x = batch.seed >> 1
        batch.seen = batch.epoch


def rows_of(batch):
    return int(batch.x[1]), int(batch.seen[1]), batch.epoch, batch.index


def check_resume(make, stops=None, epochs=EPOCHS):
    """make(): a feed, the same each time. Stops after each of the first ``stops`` rows."""
    with make() as feed:
        whole = [rows_of(batch) for _ in range(epochs) for batch in feed]
    for stop in range(len(whole) + 1) if stops is None else stops:
        with make() as feed:
            states = [feed.state_dict()]
            for _ in range(epochs):
                for batch in feed:
                    rows_of(batch)
                    del batch
                    states.append(feed.state_dict())
                    if len(states) > stop:
                        break
                if len(states) > stop:
                    break
        state = pickle.loads(pickle.dumps(states[stop]))
        with make() as feed:
            feed.load_state_dict(state)
            rest = []
            while len(rest) < len(whole) - stop:
                rest += [rows_of(batch) for batch in feed]
        assert rest == whole[stop:], (stop, state)


KINDS = {
    "callable": (Walk, [1]),
    "loop": (walks, [1, 2, 4]),
    "uneven": (uneven, [1, 3]),
    "indexed": (lambda: indexed, [1]),
    "indexed loop": (indexed_loop, [1, 3]),
}


def grid(modes):
    for kind, (make, workers) in KINDS.items():
        for mode, count in itertools.product(modes, workers):
            yield pytest.param(make, count, mode, id=f"{kind}-{count}-{mode or 'threads'}")


def shuffled(cases):
    """Each case with a feed that is shuffled and one that is not, or with one of them in turn. A feed whose
    generator ends the epoch has no order."""
    for i, case in enumerate(cases):
        for shuffle in soak.times([False, True], [i % 2 == 1]):
            is_shuffled = shuffle and case.values[0] is not uneven
            yield pytest.param(*case.values, is_shuffled, id=f"{case.id}{'-shuffled' * is_shuffled}")


def options_of(make, workers, processes):
    batches = None if make is uneven else BATCHES
    return {"workers": workers, "processes": processes, "batches": batches, "seed": 7, "timeout": 120}


@pytest.mark.parametrize(("make", "workers", "processes"), list(grid([False])))
def test_a_feed_continues_where_another_was_stopped(make, workers, processes):
    options = options_of(make, workers, processes)
    check_resume(lambda: tn.Feed(make(), FIELDS, **options), stops=(0, 1, 3, 5, 7, 9))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("make", "workers", "processes", "shuffle"), list(shuffled(grid([False, "fork", "spawn"])))
)
def test_a_feed_continues_after_each_batch(make, workers, processes, shuffle):
    options = options_of(make, workers, processes)
    stops = soak.times((3, 7), (7,)) if processes == "spawn" else None  # a new interpreter takes long
    check_resume(lambda: tn.Feed(make(), FIELDS, shuffle=shuffle, **options), stops)


def test_the_state_is_that_of_the_delivered_batch_and_not_of_those_filled_ahead():
    with tn.Feed(Walk(), FIELDS, batches=50, slots=10, timeout=120) as feed:
        batches = iter(feed)
        first = rows_of(next(batches))
        before = feed.state_dict()
        until(lambda: feed.stats().slots_ready >= 8)
        assert feed.state_dict() == before
        following = rows_of(next(batches))
        assert feed.state_dict() != before
    walk = Walk()
    walk.restore(pickle.loads(before["states"][0]))
    assert walk.random.randrange(1 << 60) == following[0] != first[0]


def test_an_epoch_that_is_left_early_undoes_what_was_filled_ahead():
    with tn.Feed(walks(), workers=2, batches=20, timeout=120) as feed:
        came = []
        for _ in range(4):
            came.append([int(batch.x[0]) for batch in itertools.islice(feed, 3)])
    high = 1 << 20
    assert came == [
        [1, high + 1, 2],
        [3, high + 2, 4],
        [5, high + 3, 6],
        [7, high + 4, 8],
    ]


def test_an_end_counts_when_the_consumer_has_seen_it():
    """Of a stream. Where the state is taken does not depend on how far ahead the worker is."""
    with tn.Feed(uneven(), timeout=120) as feed:
        batches = iter(feed)
        for _ in range(3):
            next(batches)
        behind_the_last = feed.state_dict()
        assert (behind_the_last["epoch"], behind_the_last["next"]) == (0, 3)
        until(lambda: feed.stats().slots_filling == 0)  # the worker has ended the epoch
        time.sleep(0.05)
        assert feed.state_dict() == behind_the_last
        assert next(batches, None) is None
        at_end = feed.state_dict()
        assert (at_end["epoch"], at_end["next"]) == (1, 0)
        assert pickle.loads(at_end["states"][0]) == [4]
    for state, rest in ((behind_the_last, 0), (at_end, 3)):
        with tn.Feed(uneven(), timeout=120) as feed:
            feed.load_state_dict(state)
            assert len([rows_of(batch) for batch in feed]) == rest


@pytest.mark.parametrize("make", [walks, lambda: plugin_of(0)])
def test_a_feed_goes_back_to_its_beginning_and_to_a_state_of_its_own(make):
    with tn.Feed(make(), workers=2, batches=6, timeout=120) as feed:
        start = feed.state_dict()
        whole = [[rows_of(batch)[:2] for batch in feed] for _ in range(2)]
        for state in (start, {"epoch": 0, "next": 0}):
            feed.load_state_dict(state)
            assert [[rows_of(batch)[:2] for batch in feed] for _ in range(2)] == whole


def test_a_loop_that_returns_begins_anew_in_the_next_epoch():
    check_resume(lambda: tn.Feed(lines(4), timeout=120))
    with tn.Feed(lines(4), timeout=120) as feed:
        assert len([rows_of(batch) for batch in feed]) == 4
        state = feed.state_dict()
        whole = [rows_of(batch) for batch in feed]
    assert [x for x, *_ in whole] == [1, 2, 3, 4]
    with tn.Feed(lines(4), timeout=120) as feed:
        feed.load_state_dict(state)
        assert [rows_of(batch) for batch in feed] == whole


@tn.worker(FIELDS, has_state=True)
def breaks(batches):
    at = [0]
    batches.keep_state(lambda: at[0], lambda state: at.__setitem__(0, state))
    for batch in batches:
        at[0] += 1
        batch.x = batch.seen = at[0]
        if at[0] == 3:
            raise ValueError("broken")


def test_a_loop_that_is_called_again_after_a_failure_takes_up_its_state():
    with tn.Feed(breaks(), batches=6, on_error="skip", timeout=120) as feed:
        assert [int(batch.x[0]) for batch in feed] == [1, 2, 4, 5, 6]


class Breaks(Walk):
    """The 3rd fill fails; its number is drawn before."""

    def __init__(self, times=1):
        super().__init__()
        self.count, self.times = 0, times

    def __call__(self, batch):
        super().__call__(batch)
        self.count += 1
        if 3 <= self.count < 3 + self.times:
            raise ValueError("broken")

    def state(self):
        return super().state(), self.count

    def restore(self, state):
        super().restore(state[0])
        self.count = state[1]


@pytest.mark.parametrize(("policy", "batches"), [("skip", 5), ("skip", 3), ("raise", 5)])
def test_a_batch_that_is_skipped_or_fails_counts(policy, batches):
    """The state behind it is the one that the failure has left."""
    walk = Walk()
    expected = [walk.random.randrange(1 << 60) for _ in range(10)]

    def make():
        return tn.Feed(Breaks(), FIELDS, batches=batches, on_error=policy, timeout=120)

    def rows(feed):
        came = []
        try:
            for batch in feed:
                came.append(int(batch.x[0]))
        except tn.OpError:
            pass
        return came

    with make() as feed:
        first = rows(feed)
        state = feed.state_dict()
        second = rows(feed)
    left, filled = (2, 3) if policy == "raise" else (batches - 1, batches)
    assert first == [number for i, number in enumerate(expected) if i != 2][:left]
    assert second == expected[filled : filled + batches]
    with make() as feed:
        feed.load_state_dict(state)
        assert rows(feed) == second


class Fails(Walk):
    """The first fill of each third batch fails."""

    def __init__(self):
        super().__init__()
        self.failed = set()

    def __call__(self, batch):
        super().__call__(batch)
        if batch.index % 3 == 2 and batch.index not in self.failed:
            self.failed.add(batch.index)
            raise ValueError("broken")


def test_a_batch_that_is_filled_again_begins_in_the_state_before_it():
    walk = Walk()
    with tn.Feed(Fails(), FIELDS, batches=9, on_error="retry", timeout=120) as feed:
        assert [int(batch.x[0]) for batch in feed] == [walk.random.randrange(1 << 60) for _ in range(9)]
        assert feed.stats().retried == 3


class Dies(Walk):
    def __call__(self, batch):
        super().__call__(batch)
        if batch.index == 2 and batch.epoch == 0:
            import os
            import signal

            os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.slow
def test_a_new_process_continues_in_the_state_of_the_one_that_ended():
    walk = Walk()
    expected = [walk.random.randrange(1 << 60) for _ in range(9)]
    with tn.Feed(Dies(), FIELDS, batches=5, processes="fork", on_error="skip", timeout=120) as feed:
        assert [int(batch.x[0]) for batch in feed] == expected[:4]
        assert [int(batch.x[0]) for batch in feed] == expected[4:9]


def test_a_state_that_changes_later_is_saved_as_it_was():
    with tn.Feed(walks(), batches=9, timeout=120) as feed:
        batches = iter(feed)
        next(batches)
        state = feed.state_dict()
        copy = pickle.loads(pickle.dumps(state))
        for _ in batches:
            pass
    assert state == copy
    assert pickle.loads(state["states"][0]) == {"at": 1}


def test_a_state_without_room_says_how_much_it_needs():
    with (
        tn.Feed(Walk(), FIELDS, batches=2, state_nbytes=100, timeout=120) as feed,
        pytest.raises(tn.OpError, match=r"has \d+ bytes where there is room for 104: .*state_nbytes=\d"),
    ):
        next(iter(feed))


def test_a_loop_says_its_state_where_it_has_said_that_it_has_one():
    @tn.worker(FIELDS, has_state=True)
    def forgets(batches):
        for batch in batches:
            batch.x = batch.seen = 0

    @tn.worker(FIELDS)
    def surprises(batches):
        batches.keep_state(int, id)
        for batch in batches:
            batch.x = batch.seen = 0

    for loop, text in ((forgets, "call batches.keep_state"), (surprises, "has_state=True")):
        with (
            tn.Feed(loop(), batches=2, timeout=120) as feed,
            pytest.raises(tn.OpError, match=text),
        ):
            next(iter(feed))


def test_states_are_of_the_same_workers_and_ranks():
    with tn.Feed(walks(), workers=2, batches=8, timeout=120) as feed:
        next(iter(feed))
        state = feed.state_dict()
    for options, text in (
        ({"workers": 3}, "of 2 workers, and this feed has 3"),
        ({"workers": 2, "world_size": 2}, "rank 0 of 1, and this feed is rank 0 of 2"),
    ):
        with (
            tn.Feed(walks(), batches=8, **options) as feed,
            pytest.raises(ValueError, match=text),
        ):
            feed.load_state_dict(state)
    with (
        tn.Feed(indexed, FIELDS, batches=8) as feed,
        pytest.raises(ValueError, match="this feed's generator has none"),
    ):
        feed.load_state_dict(state | {"next": 1})
    with (
        tn.Feed(walks(), batches=8) as feed,
        pytest.raises(ValueError, match="the position has no states"),
    ):
        feed.load_state_dict({"epoch": 0, "next": 1})


@pytest.mark.parametrize("rank", [0, 1, 2])
def test_each_rank_continues_with_its_own_states(rank):
    options = {"workers": 2, "batches": 11, "rank": rank, "world_size": 3, "timeout": 120}
    check_resume(lambda: tn.Feed(walks(), **options))


# ------------------------------------------------------------------- generators without a state


def blind(batch):
    batch.x = batch.seen = 1


def reads_epoch(batch):
    batch.x = batch.seen = batch.epoch


@tn.worker(FIELDS)
def seeds_once(batches):
    rng = None
    for batch in batches:
        rng = rng or random.Random(batch.seed)
        batch.x = rng.randrange(1 << 60)
        batch.seen = 0


@pytest.mark.parametrize("processes", [False, pytest.param("fork", marks=pytest.mark.slow)])
@pytest.mark.parametrize("generator", [blind, reads_epoch])
def test_a_batch_that_was_filled_without_its_index_is_no_batch_of_a_resumed_feed(generator, processes):
    with tn.Feed(generator, FIELDS, batches=8, processes=processes, timeout=120) as feed:
        feed.load_state_dict({"epoch": 0, "next": 2})
        with pytest.raises(tn.OpError, match=r"batch 2 of epoch 0 was filled without batch\.index") as info:
            next(iter(feed))
        assert info.value.index == 2
        assert feed.stats().batches == 0


@pytest.mark.parametrize("position", [{"epoch": 0, "next": 3}, {"epoch": 2, "next": 0}])
@pytest.mark.parametrize("generator", [lambda: blind, seeds_once])
def test_a_state_tells_that_batches_were_filled_without_their_index(generator, position):
    with tn.Feed(generator(), FIELDS, batches=4, timeout=120) as feed:
        for _ in range(position["epoch"]):
            list(map(rows_of, feed))
        batches = iter(feed)
        for _ in range(position["next"]):
            next(batches)
        state = feed.state_dict()
        assert (position | {"indexed": False}).items() <= state.items()
    with (
        tn.Feed(generator(), FIELDS, batches=4) as feed,
        pytest.raises(ValueError, match="give the generator a state"),
    ):
        feed.load_state_dict(state)


def test_the_beginning_can_be_restored_in_a_feed_that_has_not_begun():
    with tn.Feed(blind, FIELDS, batches=3, timeout=120) as feed:
        feed.load_state_dict(feed.state_dict())
        assert len(list(map(rows_of, feed))) == 3
        feed.load_state_dict({"epoch": 0, "next": 0})
        with pytest.raises(tn.OpError, match="was filled without"):
            next(iter(feed))


@pytest.mark.parametrize(
    ("parameters", "is_indexed"),
    [("", False), (", uint64_t epoch", False), (", uint64_t index", True), (", uint64_t seed", True)],
)
def test_a_native_function_continues_if_it_gets_index_or_seed(tmp_path, parameters, is_indexed):
    name = "fill" + parameters.rpartition(" ")[2]
    source = tmp_path / f"{name}.c"
    source.write_text(
        "#include <stdint.h>\n#include <stddef.h>\n"
        f"int {name}(int64_t* x, uint64_t* seen{parameters}, size_t n) {{\n"
        f"  for (size_t i = 0; i < n; ++i) x[i] = seen[i] = {parameters.rpartition(' ')[2] or 1} >> 1;\n"
        "  return 0;\n}\n"
    )
    function = tn.c_function(
        native_library.compiled(source), f"int {name}(int64_t* x, uint64_t* seen{parameters}, size_t n)"
    )

    def make():
        return tn.Feed(function, FIELDS, batches=BATCHES, seed=3, timeout=120)

    if is_indexed:
        check_resume(make)
        return
    with make() as feed:
        feed.load_state_dict({"epoch": 0, "next": 0})
        list(map(rows_of, feed))
        for position in ({"epoch": 0, "next": 1}, {"epoch": 0, "next": 0}):
            with pytest.raises(ValueError, match="no parameter index or seed"):
                feed.load_state_dict(position)


def test_the_seed_of_an_epoch_is_equal_for_its_batches():
    def fill(batch):
        batch.x = batch.epoch_seed >> 1
        batch.seen = batch.seed

    with tn.Feed(fill, FIELDS, batches=4, seed=5, timeout=120) as feed:
        epochs = [[rows_of(batch)[:2] for batch in feed] for _ in range(2)]
    for rows in epochs:
        assert len({x for x, _ in rows}) == 1
        assert len({seen for _, seen in rows}) == 4
    assert epochs[0][0][0] != epochs[1][0][0]
    with tn.Feed(fill, FIELDS, batches=1, seed=5, timeout=120) as feed:
        assert np.all(next(iter(feed)).x.numpy() == epochs[0][0][0])


# ------------------------------------------------------------------------------------- plug-ins


def plugin_of(case, **config):
    if isinstance(case, int):
        source, options = "plugin_state.c", ("-std=gnu99", f"-DCASE={case}")
    else:
        source, options = "plugin_state_class.cc", ("-std=c++20", *case)
    path = native_library.SOURCES / source
    name = f"plugin_state_{case if isinstance(case, int) else 'class' + ''.join(case)[2:]}"
    include = f"-I{native_library.SOURCES.parents[1] / 'include'}"
    return tn.plugin(native_library.compiled(path, *options, include, name=name), **config)


@pytest.mark.parametrize("processes", [False, pytest.param("fork", marks=pytest.mark.slow)])
@pytest.mark.parametrize("workers", [pytest.param(1, marks=pytest.mark.slow), 3])
@pytest.mark.parametrize("case", [0, 2, (), ("-DINDEXED",)])
def test_a_plug_in_continues_from_its_states_or_its_index(case, workers, processes):
    plugin = plugin_of(case)
    check_resume(lambda: tn.Feed(plugin, workers=workers, batches=BATCHES, processes=processes, timeout=60))


def test_a_plug_in_that_says_nothing_does_not_continue():
    """Of version 2, whose table has no save, whatever lies behind it."""
    with tn.Feed(plugin_of(1), batches=4, timeout=60) as feed:
        assert [int(batch.x[0]) for batch in feed] == [100, 200, 300, 400]
        with pytest.raises(ValueError, match="set TENON_PLUGIN_IS_INDEXED in the flags of its table"):
            feed.load_state_dict({"epoch": 0, "next": 1})


@pytest.mark.parametrize(("case", "text"), [(3, "save without restore"), (4, "unknown flags: 2")])
def test_tables_that_are_refused(case, text):
    with pytest.raises(ValueError, match=text):
        plugin_of(case)


def test_a_plug_in_whose_state_cannot_be_saved_or_restored_fails_at_the_batch():
    with tn.Feed(plugin_of(0, fail_save=3), batches=4, timeout=60) as feed:
        with pytest.raises(
            tn.OpError, match="save of plug-in 'walk' for worker 0 returned 6: no disk"
        ) as info:
            for batch in feed:
                del batch
        assert info.value.index == 2
    with tn.Feed(plugin_of(0), batches=4, state_nbytes=4, timeout=60) as feed:
        state = feed.state_dict() | {"next": 1, "states": [b"four"]}
        feed.load_state_dict(state)
        with pytest.raises(tn.OpError, match="returned 7: a state of 4 bytes"):
            next(iter(feed))
    with (
        tn.Feed(plugin_of(0), batches=4, state_nbytes=8) as feed,
        pytest.raises(ValueError, match="has 9 bytes, and state_nbytes is 8"),
    ):
        feed.load_state_dict(state | {"states": [bytes(9)]})


def test_the_seed_of_an_epoch_is_that_of_plug_ins_and_functions_too(tmp_path):
    source = tmp_path / "seeds.c"
    source.write_text(
        "#include <stdint.h>\n"
        "int seeds(int64_t* x, uint64_t* seen, uint64_t epoch_seed) {\n"
        "  x[0] = x[1] = 0;\n  seen[0] = seen[1] = epoch_seed;\n  return 0;\n}\n"
    )
    prototype = "int seeds(int64_t* x, uint64_t* seen, uint64_t epoch_seed)"
    function = tn.c_function(native_library.compiled(source), prototype)
    seen = []

    def fill(batch):
        batch.x = 0
        batch.seen = batch.epoch_seed

    for generator in (function, plugin_of(0), fill):
        with tn.Feed(generator, FIELDS, batches=2, seed=9, timeout=60) as feed:
            seen.append([int(batch.seen[1]) for _ in range(2) for batch in feed])
    assert seen[0] == seen[1] == seen[2]


OF_ANOTHER_FEED = {
    "seed": ({"seed": 2}, "with seed 1, and this feed has 2"),
    "batches": ({"batches": 5}, "with batches 4, and this feed has 5"),
    "no end": ({"batches": None}, "with batches 4, and this feed has None"),
    "shape": (
        {"schema": {"x": ("f8", (3,))}},
        "a schema with the checksum '[0-9a-f]{8}', and this feed",
    ),
    "dtype": ({"schema": {"x": ("f4", (2,))}}, "with a schema with the checksum"),
    "name": ({"schema": {"y": ("f8", (2,))}}, "with a schema with the checksum"),
}


@pytest.mark.parametrize("name", OF_ANOTHER_FEED)
def test_a_state_of_a_feed_with_other_batches_is_refused(name):
    def fill_x(batch):
        batch.x = batch.seed % 1000

    def fill_y(batch):
        batch.y = batch.seed % 1000

    options = {"schema": {"x": ("f8", (2,))}, "batches": 4, "seed": 1}
    other, text = OF_ANOTHER_FEED[name]
    with tn.Feed(fill_x, **options) as feed:
        whole = [batch.x.tolist() for batch in feed]
        batches = iter(feed)
        next(batches)
        state = json.loads(json.dumps(feed.state_dict()))
    with tn.Feed(fill_y if name == "name" else fill_x, **options | other) as feed:
        with pytest.raises(ValueError, match=text):
            feed.load_state_dict(state)
        feed.load_state_dict({"epoch": 0, "next": 1})  # a position alone
        assert next(iter(feed)).index == 1
    with tn.Feed(fill_x, **options) as feed:
        feed.load_state_dict(state | {"epoch": 0})
        assert [batch.x.tolist() for batch in feed] == whole[1:]
        assert feed.state_dict() == state | {"next": 0}
