# SPDX-License-Identifier: Apache-2.0
"""Fields of batches, of items of channels and of arenas: an assignment writes the elements, or raises at its
line."""

import contextlib
import copy
import itertools
import os
import threading

import numpy as np
import pytest

import tenon as tn

SCHEMA = tn.schema(x=("f4", (3, 2)), y=("i8", (3,)))
FIELDS = {name: (dtype, shape) for name, dtype, shape in SCHEMA.fields}


numbers_of_names = itertools.count()


@contextlib.contextmanager
def in_fill():
    """A batch that a fill function has, in the thread of a worker."""
    entered, left = threading.Semaphore(0), threading.Event()
    given = []

    def fill(batch):
        given.append(batch)
        del batch
        entered.release()
        left.wait()

    with tn.Feed(fill, SCHEMA, batches=1) as feed:
        batches = iter(feed)
        entered.acquire()
        try:
            yield given.pop()
        finally:
            left.set()
        assert next(batches).index == 0


@contextlib.contextmanager
def delivered():
    with tn.Feed(lambda batch: batch.__setitem__("x", 0), SCHEMA, batches=1) as feed:
        yield next(iter(feed))


@contextlib.contextmanager
def attached(mode="queue"):
    name = f"fields-{os.getpid()}-{next(numbers_of_names)}"
    with (
        tn.Feed(lambda batch: batch.__setitem__("x", 0), SCHEMA, batches=1, shared=name) as feed,
        feed.serve(mode, background=True),
        tn.Feed.attach(name) as consumer,
    ):
        yield next(iter(consumer))


@contextlib.contextmanager
def loan():
    with tn.Channel(FIELDS) as channel, channel.loan() as item:
        yield item


@contextlib.contextmanager
def received(mode="queue"):
    with tn.Channel(FIELDS, mode=mode) as channel:
        with pytest.raises(TimeoutError):
            channel.recv(timeout=0)
        with channel.loan() as item:
            item.x[...], item.y[...] = 0, 0
        yield channel.recv()


@contextlib.contextmanager
def arena():
    with tn.Arena({"one": FIELDS}).use("one") as fields:
        yield fields


@contextlib.contextmanager
def read_arena():
    memory = tn.Arena({"one": FIELDS})
    with memory.use("one") as fields:
        fields.x[...] = 0
    with memory.use("one", "r") as fields:
        yield fields


WRITABLE = pytest.mark.parametrize("holder", [in_fill, delivered, attached, loan, received, arena])
READ_ONLY = pytest.mark.parametrize(
    "holder",
    [lambda: attached("broadcast"), lambda: received("broadcast"), read_arena],
    ids=["attached", "received", "arena"],
)


def numbers(array):
    return np.asarray(array).tolist()


@WRITABLE
def test_an_assignment_writes_the_elements(holder):
    with holder() as fields:
        kept = fields.x
        fields.x = np.arange(6).reshape(3, 2)
        assert numbers(kept) == numbers(fields["x"]) == [[0, 1], [2, 3], [4, 5]]
        fields["y"] = [7, 8, 9]
        assert numbers(fields.y) == [7, 8, 9]
        fields.x = 5
        assert numbers(fields.x) == [[5, 5]] * 3
        fields.x = tn.array([[1.0, 2.0]])
        assert numbers(fields.x) == [[1, 2]] * 3
        assert fields.x is kept
        del kept


@WRITABLE
def test_augmented_assignments_work_in_place(holder):
    with holder() as fields:
        fields.x = 3
        fields.x += 1
        fields["x"] *= 2
        fields.x = fields.x - 1
        assert numbers(fields.x) == [[7, 7]] * 3


@WRITABLE
def test_a_field_is_written_with_a_part_of_itself(holder):
    with holder() as fields:
        fields.y = [1, 2, 3]
        fields.y = fields.y[::-1]
        assert numbers(fields.y) == [3, 2, 1]


class Counted:
    """An array that counts how often it is written to."""

    def __init__(self):
        self.writes = 0

    def __iadd__(self, other):
        return self

    def __setitem__(self, key, value):
        self.writes += 1


class Pair(tn._array.fields.Fields):
    """A user's class of fields, with a property and attributes of its own."""

    note = "none"

    def __init__(self):
        self.__dict__.update(_names=("a",), arrays={"a": Counted()})
        self._calls = 0

    def _array(self, name):
        self._calls += 1
        return self.arrays[name]


def test_an_augmented_assignment_copies_nothing():
    pair = Pair()
    pair.a += 1
    pair["a"] += 1
    assert pair.a.writes == 0
    pair.a = 1
    assert pair.a.writes == 1


def test_a_subclass_has_attributes_of_its_own():
    pair = Pair()
    pair._calls = 0
    pair.note = "some"
    assert (pair.note, pair._calls) == ("some", 0)
    with pytest.raises(AttributeError, match="no field 'other'"):
        pair.other = 1
    with pytest.raises(AttributeError, match="no field 'other'"):
        getattr(copy.copy(object.__new__(Pair)), "other")  # noqa: B009


@WRITABLE
def test_an_unknown_name_is_an_error_that_lists_the_fields(holder):
    with holder() as fields:
        with pytest.raises(AttributeError, match=r"no field 'lable': its fields are \('x', 'y'\)"):
            fields.lable = 3
        with pytest.raises(AttributeError, match=r"no field 'lable': its fields are \('x', 'y'\)"):
            _ = fields.lable
        with pytest.raises(KeyError, match=r"no field 'lable': its fields are \('x', 'y'\)"):
            fields["lable"] = 3
        with pytest.raises(KeyError, match=r"no field 'lable': its fields are \('x', 'y'\)"):
            fields["lable"]


@WRITABLE
def test_fields_cannot_be_deleted(holder):
    with holder() as fields:
        with pytest.raises(AttributeError, match=r"'x'.* cannot be deleted"):
            del fields.x
        with pytest.raises((TypeError, AttributeError)):
            del fields["x"]
        with pytest.raises(AttributeError):
            del fields.lable
        fields.x = 1


@WRITABLE
def test_errors_are_those_of_the_array_and_name_the_field(holder):
    with holder() as fields:
        fields.x = 1
        for bad in (np.zeros((4, 2)), np.zeros((3, 2, 2)), "a", object()):
            with pytest.raises(Exception) as wanted:
                fields.x[...] = bad
            with pytest.raises(type(wanted.value), match=r"^field 'x': ") as caught:
                fields.x = bad
            assert str(caught.value) == f"field 'x': {wanted.value}"
        assert numbers(fields.x) == [[1, 1]] * 3


@READ_ONLY
def test_a_read_only_field_is_not_written(holder):
    with holder() as fields:
        with pytest.raises(ValueError, match=r"field 'x': .*read-only"):
            fields.x = 1
        with pytest.raises(ValueError, match="read-only"):
            fields.x += 1
        with pytest.raises(AttributeError, match="no field 'lable'"):
            fields.lable = 1
        assert numbers(fields.x) == [[0, 0]] * 3


@pytest.mark.parametrize(
    ("holder", "name"),
    [(in_fill, "index"), (delivered, "epoch"), (attached, "index"), (received, "sequence")],
)
def test_attributes_that_describe_a_batch_cannot_be_set(holder, name):
    with holder() as fields:
        before = getattr(fields, name)
        with pytest.raises(AttributeError):
            setattr(fields, name, 17)
        with pytest.raises(AttributeError):
            delattr(fields, name)
        assert getattr(fields, name) == before


@pytest.mark.parametrize("processes", [False, "fork"])
def test_a_consumer_gets_what_was_assigned(processes):
    @tn.worker(SCHEMA)
    def loop(batches):
        for batch in batches:
            batch.x = batch.index
            batch.y = np.arange(3)
            batch.x += 1

    def fill(batch):
        batch.x = batch.index
        batch.y = np.arange(3)
        batch.x += 1

    for generator in (loop(), fill):
        with tn.Feed(generator, SCHEMA, batches=9, processes=processes) as feed:
            for batch in feed:
                assert numbers(batch.x) == [[batch.index + 1] * 2] * 3
                assert numbers(batch.y) == [0, 1, 2]


def test_fewer_rows_are_assigned():
    def fill(batch):
        batch.rows = 2
        batch.attachment = b"two"
        batch.x = np.ones((2, 2))
        batch.resize("y", (2,))
        batch.y = [5, 6]

    with tn.Feed(fill, SCHEMA, batches=1, attachment_nbytes=8) as feed:
        (batch,) = feed
        assert (numbers(batch.x), numbers(batch.y), batch.attachment) == ([[1, 1]] * 2, [5, 6], b"two")


def test_a_batch_that_was_passed_on_has_no_fields():
    seen = []

    @tn.worker(SCHEMA)
    def loop(batches):
        former = None
        for batch in batches:
            batch.x = batch.index
            if former is not None:
                for use in (
                    lambda former=former: former.x,
                    lambda former=former: setattr(former, "x", 77),
                    lambda former=former: setattr(former, "rows", 1),
                    lambda former=former: setattr(former, "attachment", b""),
                    lambda former=former: former.resize("x", (1, 2)),
                ):
                    with pytest.raises(ValueError, match=f"batch {former.index} was passed on"):
                        use()
                    seen.append(former.index)
            former = batch

    with tn.Feed(loop(), batches=4) as feed:
        assert [numbers(batch.x) for batch in feed] == [[[i, i]] * 3 for i in range(4)]
    assert seen == [0] * 5 + [1] * 5 + [2] * 5


def test_after_their_block_there_are_no_fields():
    with loan() as item:
        item.x = 1
    with arena() as fields:
        fields.x = 1
    for ended, text in ((item, "it was sent or dropped"), (fields, "its block has ended")):
        with pytest.raises(AttributeError, match=f"no field 'x' any more: {text}"):
            ended.x = 1
        with pytest.raises(AttributeError, match=f"no field 'x' any more: {text}"):
            _ = ended.x
        with pytest.raises(KeyError, match=f"no field 'x' any more: {text}"):
            ended["x"] = 1


def test_a_released_item_frees_its_slot():
    with tn.Channel(FIELDS) as channel:
        with channel.loan() as item:
            item.x = 1
        got = channel.recv()
        assert numbers(got.x)[0] == [1, 1]
        got.release()
        assert channel.stats()["in_use"] == 0
        with pytest.raises(ValueError, match="sent or released before"):
            got.x = 1


def test_a_field_with_the_name_of_a_method_is_an_item():
    with tn.Channel({"send": ("f4", (2,)), "_view": ("f4", (2,))}) as channel:
        with channel.loan() as item:
            with pytest.raises(AttributeError, match="has an attribute 'send': write the field as an item"):
                item.send = 1
            with pytest.raises(AttributeError, match="has an attribute '_view'"):
                item._view = 1
            item["send"], item["_view"] = 1, 2
        got = channel.recv()
        assert (numbers(got["send"]), numbers(got["_view"])) == ([1, 1], [2, 2])


def test_a_function_that_works_in_place_is_not_assigned():
    """NumPy would write NaN for None."""
    with tn.Channel(FIELDS) as channel:
        item = channel.loan()
        with pytest.raises(TypeError, match="field 'x' cannot be None, the result of a function"):
            item.x = np.copyto(np.asarray(item.x), 1.0)
