# SPDX-License-Identifier: Apache-2.0
"""Mistakes in generators: values that are not used, functions whose body would not run, batches that were not
written. Schemas as dicts, and epochs in another order."""

import functools
import itertools
import pickle

import numpy as np
import pytest

import tenon as tn

FIELDS = {"x": ("f4", (3, 2)), "y": ("i8", (3,))}
EITHER = pytest.mark.parametrize("processes", [False, "fork"], ids=["threads", "processes"])


def first_error(generator, **options):
    with (
        tn.Feed(generator, FIELDS, batches=3, **options) as feed,
        pytest.raises(tn.OpError) as caught,
    ):
        list(feed)
    return caught.value


# ---------------------------------------------------------------------------- values that are returned


@EITHER
@pytest.mark.parametrize(
    "result",
    [
        lambda batch: np.zeros((3, 2)),
        lambda batch: {"x": 1},
        lambda batch: (1, 2),
        lambda batch: 0,
        lambda batch: batch.x,
        lambda batch: (i for i in range(3)),
    ],
    ids=["array", "dict", "tuple", "zero", "view", "generator"],
)
def test_a_function_that_returns_a_value_is_an_error_that_names_the_way_out(result, processes):
    def fill(batch):
        batch.x = 1
        return result(batch)

    error = first_error(fill, processes=processes)
    assert (error.kind, error.index) == ("failed", 0)
    text = str(error)
    assert "fill returned " in text and "batch.x[...] = ..." in text
    assert "LeaseEscaped" not in text


def test_a_function_that_returns_a_coroutine_is_an_error(recwarn):
    async def later():
        pass

    error = first_error(lambda batch: later())
    assert "returned coroutine" in str(error)
    assert not [warning for warning in recwarn if "never awaited" in str(warning.message)]


@EITHER
def test_a_loop_that_returns_a_value_is_an_error(processes):
    @tn.worker(FIELDS)
    def loop(batches):
        for batch in batches:
            batch.x = 1
            return batch.index
        return None

    with tn.Feed(loop(), batches=3, processes=processes) as feed, pytest.raises(tn.OpError) as caught:
        list(feed)
    assert "loop returned int" in str(caught.value) and "assign to their fields" in str(caught.value)


# ---------------------------------------------------------------------------- loops that return early


@tn.worker(FIELDS)
def returns_at_two(batches):
    for batch in batches:
        batch.x = batch.y = batch.index + 1
        if batch.index == 2:
            return


@tn.worker(FIELDS)
def takes_two(batches):
    for batch in itertools.islice(batches, 2):
        batch.x = batch.y = batch.index + 1


@tn.worker(FIELDS)
def writes_half_and_returns(batches):
    for batch in batches:
        batch.x[:2] = batch.index + 1
        if batch.index == 1:
            break
        batch.x[2:] = batch.y = batch.index + 1


@tn.worker(FIELDS)
def returns_at_once(batches):
    pass


EARLY = pytest.mark.parametrize(
    ("loop", "came"),
    [(returns_at_two, 2), (takes_two, 1), (writes_half_and_returns, 1), (returns_at_once, 0)],
    ids=lambda value: getattr(value, "name", value),
)


@EITHER
@EARLY
def test_a_loop_that_returns_drops_its_open_batch_and_ends_the_epoch(loop, came, processes):
    with tn.Feed(loop(), processes=processes, timeout=60, on_starved="copy") as feed:
        for epoch in range(3):
            batches = list(feed)
            assert [(batch.epoch, batch.index) for batch in batches] == [(epoch, i) for i in range(came)]
            assert all((batch.x.numpy() == batch.index + 1).all() for batch in batches)
            assert all((batch.y.numpy() == batch.index + 1).all() for batch in batches)


@EITHER
@EARLY
def test_a_loop_that_returns_before_the_end_of_the_epoch_is_an_error_with_batches(loop, came, processes):
    seen = []
    with (
        tn.Feed(loop(), batches=9, processes=processes, timeout=60) as feed,
        pytest.raises(tn.OpError, match=f"passed on batch {came}, and an epoch has 9 batches") as caught,
    ):
        for batch in feed:
            seen.append(batch.index)
    assert seen == list(range(came))
    assert (caught.value.kind, caught.value.epoch, caught.value.index) == ("failed", 0, came)
    assert "without `break` or `return`" in str(caught.value)


def test_a_loop_that_runs_to_the_end_of_its_epochs_is_no_error():
    @tn.worker(FIELDS)
    def loop(batches):
        for batch in batches:
            batch.x = batch.y = 1

    for workers in (1, 2):
        with tn.Feed(loop(), batches=3, workers=workers, check=True) as feed:
            assert [len(list(feed)) for _ in range(3)] == [3, 3, 3]


def test_a_view_that_is_kept_of_a_dropped_batch_is_an_error():
    kept = []

    @tn.worker(FIELDS)
    def loop(batches):
        for batch in batches:
            kept.append(batch.x[:1])
            return

    with tn.Feed(loop()) as feed, pytest.raises(tn.OpError, match="views of field 'x' live on"):
        list(feed)
    kept.clear()


def yields(batch):
    yield batch


async def awaits(batch):
    batch.x = 1


async def yields_later(batch):
    yield batch


class Yields:
    def __call__(self, batch):
        yield batch


@pytest.mark.parametrize(
    ("function", "kind"),
    [
        (yields, "yields is a generator function"),
        (functools.partial(yields), "partial is a generator function"),
        (Yields(), "Yields is a generator function"),
        (awaits, "awaits is a coroutine function"),
        (yields_later, "yields_later is a generator function"),
    ],
)
def test_a_function_whose_body_would_not_run_is_refused_at_once(function, kind):
    with pytest.raises(TypeError, match=rf"{kind}.*batch\.x\[\.\.\.\] = \.\.\."):
        tn.Feed(function, FIELDS)


@pytest.mark.parametrize("function", [yields, awaits, yields_later])
def test_a_loop_whose_body_would_not_run_is_refused_where_it_is_decorated(function):
    with pytest.raises(TypeError, match=r"function.*loop over the batches that it gets"):
        tn.worker(FIELDS)(function)


# ---------------------------------------------------------------------------- batches without writes


def every_second(batch):
    if batch.index % 2:
        batch.x = batch.y = 1


@tn.worker(FIELDS)
def every_second_loop(batches):
    for batch in batches:
        every_second(batch)


GENERATORS = pytest.mark.parametrize("make", [lambda: every_second, every_second_loop], ids=["fill", "loop"])


@EITHER
@GENERATORS
def test_batches_without_a_written_field_are_counted(make, processes):
    with tn.Feed(make(), FIELDS, batches=9, processes=processes) as feed:
        assert feed.stats().unwritten == 0
        assert sum(1 for _ in feed) == 9
        assert feed.stats().unwritten == 5
        assert sum(1 for _ in feed) == 9
        assert feed.stats().unwritten == 10


@EITHER
@GENERATORS
def test_a_batch_without_a_written_field_is_an_error_with_check(make, processes):
    with tn.Feed(make(), FIELDS, batches=9, processes=processes, check=True, on_error="skip") as feed:
        assert [batch.index for batch in feed] == [1, 3, 5, 7]
        assert feed.stats().unwritten == 0
    with tn.Feed(make(), FIELDS, batches=9, processes=processes, check=True) as feed:
        with pytest.raises(tn.OpError, match="no field of batch 0 of epoch 0 was written") as caught:
            list(feed)
        assert "batch.x[...] = ..." in str(caught.value)


@pytest.mark.parametrize(
    ("topics", "check", "is_error"),
    [
        ("fields", None, True),
        ("1", None, True),
        ("leases,fields", None, True),
        ("values", None, True),
        ("leases", None, False),
        ("0", None, False),
        ("", None, False),
        ("fields", False, False),
        ("", True, True),
    ],
)
def test_the_environment_turns_the_check_on(monkeypatch, topics, check, is_error):
    monkeypatch.setenv("TENON_DEBUG", topics)
    with tn.Feed(every_second, FIELDS, batches=1, check=check) as feed:
        if is_error:
            with pytest.raises(tn.OpError, match="no field of batch 0"):
                list(feed)
        else:
            assert len(list(feed)) == 1


def only_x(batch):
    batch.x = 1


@tn.worker(FIELDS)
def only_x_loop(batches):
    for batch in batches:
        only_x(batch)


@EITHER
@pytest.mark.parametrize("make", [lambda: only_x, only_x_loop], ids=["fill", "loop"])
def test_a_field_that_was_not_written_is_counted_and_with_check_an_error_that_names_it(make, processes):
    with tn.Feed(make(), FIELDS, batches=3, processes=processes) as feed:
        assert sum(1 for _ in feed) == 3
        assert feed.stats().unwritten == 3
    with tn.Feed(make(), FIELDS, batches=3, processes=processes, check=True) as feed:
        with pytest.raises(tn.OpError, match="field 'y' of batch 0 of epoch 0 was not written") as caught:
            list(feed)
        assert "batch.y[...] = ..." in str(caught.value)
        assert feed.stats().unwritten == 0


def test_several_fields_that_were_not_written_are_named():
    three = FIELDS | {"z": ("f4", (3,))}
    with (
        tn.Feed(only_x, three, batches=3, check=True) as feed,
        pytest.raises(tn.OpError, match="the fields 'y', 'z' of batch 0 of epoch 0 were not written"),
    ):
        list(feed)


@EITHER
def test_a_field_that_was_not_written_is_logged_once(caplog, processes):
    with tn.Feed(only_x, FIELDS, batches=9, processes=processes) as feed:
        for _ in range(2):
            assert sum(1 for _ in feed) == 9
    (record,) = caplog.records
    assert record.name == "tenon"
    assert "field 'y' of batch 0 of epoch 0 was not written" in record.message


KEPT = {"x": ("f4", (3, 2)), "y": ("i8", (3,), "kept")}


@EITHER
@pytest.mark.parametrize("check", [False, True, "values"])
def test_a_field_that_the_schema_lets_a_generator_keep_is_not_missed(caplog, processes, check):
    for schema in (KEPT, tn.schema(**KEPT), pickle.loads(pickle.dumps(tn.schema(**KEPT)))):
        with tn.Feed(only_x, schema, batches=3, processes=processes, check=check) as feed:
            assert sum(1 for _ in feed) == 3
            assert feed.stats().unwritten == 0
    assert not caplog.records
    assert tn.schema(**KEPT).kept == ("y",)


def short_last(batch):
    rows = 3 - batch.index
    batch.x[:rows] = batch.y[:rows] = 1


def short_last_with_rows(batch):
    batch.rows = 3 - batch.index
    batch.x = batch.y = 1


def resized(batch):
    batch.resize("x", (2, 1))[...] = 1
    batch.resize("y", (2,))[...] = 1


@EITHER
@pytest.mark.parametrize("workers", [0, 1])
def test_rows_that_were_not_written_are_found_by_the_check_of_values(processes, workers):
    if workers == 0 and processes:
        pytest.skip("a feed without workers has no processes")
    options = {"batches": 3, "processes": processes, "workers": workers, "check": "values"}
    with tn.Feed(short_last, FIELDS, **options) as feed:
        batches = iter(feed)
        assert next(batches).index == 0
        text = r"row 2 of field 'x' of batch 1 of epoch 0 was not written.*batch\.rows"
        with pytest.raises(tn.OpError, match=text):
            next(batches)
    for fill in (short_last_with_rows, resized):
        with tn.Feed(fill, FIELDS, **options) as feed:
            assert sum(1 for _ in feed) == 3


@pytest.mark.parametrize(
    "dtype", ["bool", "u1", "i2", "u4", "i8", "f2", "f4", "f8", "bfloat16", "float8_e4m3fn", "c8", "c16"]
)
@pytest.mark.parametrize("gap", [(0, 8), (5, 13), (56, 64), (0, 64), None])
def test_a_part_of_any_dtype_that_was_not_written_is_found(dtype, gap):
    place, end = gap or (64, 64)

    def fill(batch):
        x = tn.asarray(batch.x).view("u1").numpy().reshape(64, -1)
        x[:place] = x[end:] = np.random.default_rng(batch.seed).integers(0, 2, x.shape)[:place].max(initial=0)

    with tn.Feed(fill, {"x": (dtype, (64,))}, batches=20, check="values") as feed:
        if gap is None:
            assert sum(1 for _ in feed) == 20
        else:
            with pytest.raises(tn.OpError, match=f"row {place} of field 'x' of batch 0"):
                list(feed)


def test_too_few_bytes_to_be_certain_are_taken_for_written():
    def fill(batch):
        batch.x[0] = batch.index  # one of them is as the mark
        batch.rows = 1

    with tn.Feed(fill, {"x": ("u1", (64,))}, batches=256, check="values") as feed:
        assert [batch.x.tolist() for batch in feed] == [[n] for n in range(256)]


@pytest.mark.parametrize(
    "write",
    [
        lambda batch, name: getattr(batch, name),
        lambda batch, name: batch[name],
        lambda batch, name: setattr(batch, name, 1),
        lambda batch, name: batch.__setitem__(name, 1),
        lambda batch, name: batch.resize(name, batch[name].shape),
        lambda batch, name: list(batch),
        lambda batch, name: np.copyto(batch[name][1:], 0),
    ],
    ids=["attribute", "item", "set attribute", "set item", "resize", "iteration", "view"],
)
def test_each_way_to_the_array_of_a_field_counts_as_a_write(write):
    def fill(batch):
        write(batch, "x")
        write(batch, "y")

    with tn.Feed(fill, FIELDS, batches=3, check=True) as feed:
        assert len(list(feed)) == 3
        assert feed.stats().unwritten == 0


def test_a_view_that_is_written_after_the_other_fields_counts_as_a_write():
    def fill(batch):
        x, y = batch.x, batch.y  # kept for the whole of the fill
        batch.rows = 2
        y[:2] = 1
        x[:2] = 1
        del x, y

    with tn.Feed(fill, FIELDS, batches=3, check=True) as feed:
        assert [len(batch.x) for batch in feed] == [2, 2, 2]


def test_a_batch_without_rows_has_nothing_to_write():
    def fill(batch):
        batch.rows = 0

    with tn.Feed(fill, FIELDS, batches=3, check=True) as feed:
        assert [len(batch.x) for batch in feed] == [0, 0, 0]
        assert feed.stats().unwritten == 0


def test_attributes_that_are_no_fields_count_as_no_write():
    def fill(batch):
        batch.rows = 2
        batch.attachment = b"a"
        _ = batch.index, batch.keys(), repr(batch)

    with tn.Feed(fill, FIELDS, batches=3, attachment_nbytes=8) as feed:
        assert [len(batch.x) for batch in feed] == [2, 2, 2]
        assert feed.stats().unwritten == 3


def send_x(channel):
    with channel.loan(timeout=60) as item:
        item.x = 1


def send_nothing(channel):
    with channel.loan(timeout=60):
        pass


def send_x_later(channel):
    item = channel.loan(timeout=60)
    item["x"][...] = 1
    item.send()


@pytest.mark.parametrize("topics", ["fields", "1"])
@pytest.mark.parametrize(
    ("send", "text"),
    [
        (send_x, "field 'y' of the item was not written"),
        (send_x_later, "field 'y' of the item was not written"),
        (send_nothing, "no field of the item was written"),
    ],
)
def test_a_loan_with_a_field_that_was_not_written_is_dropped_with_an_error(monkeypatch, topics, send, text):
    with tn.Channel(FIELDS) as channel:
        send(channel)  # not checked
    monkeypatch.setenv("TENON_DEBUG", topics)
    with tn.Channel(FIELDS, slots=2) as channel:
        for _ in range(2):
            with pytest.raises(ValueError, match=text):
                send(channel)
            assert (channel.stats()["sent"], channel.stats()["in_use"]) == (0, 0)
        with channel.loan(timeout=60) as item:
            x, _ = item.x, item["y"]  # a field whose old elements are wanted is looked at
            x[1:] = 1
        assert channel.stats()["sent"] == 1
        channel.loan(timeout=60).drop()
        with pytest.raises(KeyError), channel.loan(timeout=60):
            raise KeyError


def test_a_check_that_is_no_bool_is_refused():
    with pytest.raises(TypeError, match="check is 'yes'"):
        tn.Feed(every_second, FIELDS, check="yes")


# ---------------------------------------------------------------------------- schemas as dicts


def test_a_dict_is_taken_where_a_schema_is():
    schema = tn.schema(**FIELDS)
    for given in (FIELDS, schema):
        with tn.Feed(every_second, given, batches=1) as feed:
            assert feed.schema.fields == schema.fields
        assert tn.worker(given)(lambda batches: None)().schema.fields == schema.fields
        with tn.Channel(given) as channel:
            assert channel.schema == {name: (dtype, shape) for name, dtype, shape in schema.fields}
        assert tn.Arena({"one": given}).layouts["one"] == channel.schema


@pytest.mark.parametrize(
    "take",
    [
        lambda fields: tn.Feed(every_second, fields),
        tn.worker,
        tn.Channel,
        lambda fields: tn.Arena({"one": fields}),
    ],
    ids=["Feed", "worker", "Channel", "Arena"],
)
@pytest.mark.parametrize(
    ("fields", "error", "text"),
    [
        (None, TypeError, "is None: it must be a mapping of names|schema and nbytes are None"),
        ([("x", "f4")], TypeError, "it must be a mapping of names"),
        ({1: ("f4", (3,))}, TypeError, "names must be str"),
        ({"x": "f4"}, TypeError, r"field 'x' of .* is 'f4': it must be \(dtype, shape\)"),
        ({"x": ("f4", (3,), 1)}, TypeError, r"it must be \(dtype, shape\)"),
        ({"x": ("nope", (3,))}, TypeError, "unknown dtype 'nope'"),
        ({}, ValueError, "at least one field"),
    ],
)
def test_dicts_that_are_no_schema_are_refused(take, fields, error, text):
    with pytest.raises(error, match=text):
        take(fields)


def test_a_field_of_a_dict_cannot_have_the_name_of_an_attribute():
    with pytest.raises(ValueError, match="cannot be named 'index'"):
        tn.Feed(every_second, {"index": ("f4", (3,))})


@pytest.mark.parametrize("name", ["seed", "epoch_seed", "worker", "resize", "_rows"])
def test_a_field_cannot_have_the_name_of_an_attribute_of_the_batch_of_a_generator(name):
    with pytest.raises(
        ValueError, match=f"a field cannot be named '{name}': the batch that a generator fills"
    ):
        tn.Feed(every_second, {name: ("f4", (3,))})


# ---------------------------------------------------------------------------- shuffle


def numbered(batch):
    batch.x = np.random.default_rng(batch.seed).random((3, 2))
    batch.y = batch.index


def epochs(n_epochs=2, generator=numbered, **options):
    """(index, y, x) of each batch of some epochs."""
    with tn.Feed(generator, FIELDS, batches=40, **options) as feed:
        return [[(batch.index, int(batch.y[0]), batch.x.tolist()) for batch in feed] for _ in range(n_epochs)]


@pytest.mark.parametrize("processes", [False, "fork"])
@pytest.mark.parametrize("workers", [1, 3])
def test_a_shuffled_feed_has_the_same_batches_in_another_order(workers, processes):
    options = {"workers": workers, "processes": processes, "seed": 5}
    plain, shuffled = epochs(**options), epochs(shuffle=True, **options)
    for one, other in zip(plain, shuffled, strict=True):
        assert [batch[0] for batch in one] == list(range(40))
        assert [batch[0] for batch in other] != list(range(40))
        assert sorted(other) == one
    assert [batch[0] for batch in shuffled[0]] != [batch[0] for batch in shuffled[1]]
    assert shuffled == epochs(shuffle=True, seed=5)
    assert shuffled != epochs(shuffle=True, seed=6)


def test_the_order_of_a_seed_stays_as_it_is():
    assert [batch[0] for batch in epochs(1, shuffle=True, seed=5)[0]][:10] == [
        20,
        36,
        14,
        22,
        13,
        15,
        10,
        37,
        30,
        19,
    ]


def test_a_shuffled_epoch_is_resumed():
    whole = [[batch[0] for batch in epoch] for epoch in epochs(shuffle=True, seed=5)]
    with tn.Feed(numbered, FIELDS, batches=40, seed=5, shuffle=True) as feed:
        assert sum(1 for _ in feed) == 40
        batches = iter(feed)
        assert [next(batches).index for _ in range(7)] == whole[1][:7]
        state = feed.state_dict()
    assert {"epoch": 1, "next": 7, "shuffle": 5}.items() <= state.items()
    with tn.Feed(numbered, FIELDS, batches=40, seed=5, shuffle=True, workers=2, processes=True) as feed:
        feed.load_state_dict(state)
        assert [batch.index for batch in feed] == whole[1][7:]


def test_a_failure_of_a_shuffled_feed_comes_at_its_place():
    order = [batch[0] for batch in epochs(1, shuffle=True, seed=5)[0]]

    def fill(batch):
        if batch.index == order[4]:
            raise ValueError("broken")
        numbered(batch)

    with tn.Feed(fill, FIELDS, batches=40, seed=5, shuffle=True) as feed:
        batches = iter(feed)
        assert [next(batches).index for _ in range(4)] == order[:4]
        with pytest.raises(tn.OpError, match=f"batch {order[4]} of epoch 0") as caught:
            next(batches)
        assert caught.value.index == order[4]
    with tn.Feed(fill, FIELDS, batches=40, seed=5, shuffle=True, on_error="skip") as feed:
        assert [batch.index for batch in feed] == order[:4] + order[5:]


@pytest.mark.parametrize("batches", [0, 1, 2])
def test_short_epochs_are_shuffled(batches):
    with tn.Feed(numbered, FIELDS, batches=batches, shuffle=True) as feed:
        for _ in range(4):
            assert sorted(batch.index for batch in feed) == list(range(batches))


def test_an_epoch_without_an_end_cannot_be_shuffled():
    with pytest.raises(ValueError, match=r"shuffle is True.*give batches="):
        tn.Feed(numbered, FIELDS, shuffle=True)
    with pytest.raises(TypeError, match="shuffle is 1"):
        tn.Feed(numbered, FIELDS, batches=3, shuffle=1)


@pytest.mark.parametrize("is_read", [False, True])
def test_a_loop_that_takes_all_batches_for_one_is_told(is_read):
    @tn.worker(FIELDS)
    def loop(batch):
        if is_read:
            batch.x[...] = 1
        batch.x = 1

    with (
        tn.Feed(loop(), batches=5) as feed,
        pytest.raises(tn.OpError, match="`for batch in batches:`") as told,
    ):
        list(feed)
    assert "the iterable of all batches and has no field 'x'" in str(told.value)


def test_a_state_of_another_order_is_refused():
    def fill(batch):
        batch.x, batch.y = batch.index, 0

    with tn.Feed(fill, FIELDS, batches=7, shuffle=True, seed=1) as feed:
        iterator = iter(feed)
        seen = [next(iterator).index for _ in range(3)]
        state = feed.state_dict()
    for options in ({}, {"shuffle": True}):
        with (
            tn.Feed(fill, FIELDS, batches=7, seed=2, **options) as other,
            pytest.raises(ValueError, match="this feed has another order"),
        ):
            other.load_state_dict(state)
    with tn.Feed(fill, FIELDS, batches=7, shuffle=True, seed=1) as again:
        again.load_state_dict(state)
        assert sorted(seen + [batch.index for batch in again]) == list(range(7))
