# SPDX-License-Identifier: Apache-2.0
"""Arguments that cannot be are errors that name the argument and the value, and do nothing else."""

import math
import re

import native_library
import pytest

import tenon as tn

SCHEMA = tn.schema(x=("f4", (4,)))
INT = "it must be an integer"
RANGE = "it must lie between"
SECONDS = "it must be seconds"

FEED = [
    ("workers", 0, ValueError, RANGE),
    ("workers", -1, ValueError, RANGE),
    ("workers", 2**40, ValueError, RANGE),
    ("workers", 1.5, TypeError, INT),
    ("workers", None, TypeError, INT),
    ("slots", -1, ValueError, "-1 slots are too few"),
    ("slots", 1, ValueError, "1 slots are too few"),
    ("slots", 2**31, ValueError, RANGE),
    ("slots", math.nan, TypeError, INT),
    ("slots", "a", TypeError, INT),
    ("batches", -1, ValueError, RANGE),
    ("batches", 2**63, ValueError, RANGE),
    ("batches", 1.5, TypeError, INT),
    ("retries", -1, ValueError, RANGE),
    ("retries", 2**40, ValueError, RANGE),
    ("retries", None, TypeError, INT),
    ("attachment_nbytes", -1, ValueError, RANGE),
    ("attachment_nbytes", 2**70, ValueError, RANGE),
    ("attachment_nbytes", "a", TypeError, INT),
    ("timeout", -1, ValueError, SECONDS),
    ("timeout", math.nan, ValueError, SECONDS),
    ("timeout", "a", TypeError, SECONDS),
    ("fill_timeout", -1, ValueError, SECONDS),
    ("fill_timeout", math.nan, ValueError, SECONDS),
    ("fill_timeout", "a", TypeError, SECONDS),
    ("shared", "a\0b", ValueError, "letters, digits"),
    ("shared", "a/b", ValueError, "letters, digits"),
    ("shared", "x" * 500, ValueError, "letters, digits"),
]


@pytest.mark.parametrize(("name", "value", "error", "text"), FEED, ids=lambda v: str(v)[:20])
def test_of_a_feed(name, value, error, text):
    with pytest.raises(error, match=re.escape(text)) as caught:
        tn.Feed(lambda batch: None, SCHEMA, **{name: value})
    assert name in str(caught.value)
    assert str(value) in str(caught.value) or repr(value) in str(caught.value)


def test_a_feed_that_retries_needs_a_retry():
    with pytest.raises(ValueError, match="retries is 0"):
        tn.Feed(lambda batch: None, SCHEMA, on_error="retry", retries=0)


@pytest.mark.parametrize("value", [-1, math.nan, "a", None], ids=repr)
def test_of_the_end_of_a_feed(value):
    feed = tn.Feed(lambda batch: None, SCHEMA)
    with pytest.raises((ValueError, TypeError), match=f"timeout is {value!r}: {SECONDS}"):
        feed.close(value)
    feed.close()


@pytest.mark.parametrize("state", [(-1, 0), (0, -1), (2**70, 0), (0.5, 0), (0, "a")], ids=repr)
def test_of_the_state_of_a_feed(state):
    with tn.Feed(lambda batch: None, SCHEMA) as feed:
        with pytest.raises((ValueError, TypeError), match=f"of the state is .*({INT}|{RANGE})"):
            feed.load_state_dict({"epoch": state[0], "next": state[1]})
        assert feed.state_dict() == {"epoch": 0, "next": 0}


@pytest.mark.parametrize(
    "arguments",
    [
        {"name": None},
        {"name": 5},
        {"name": "a\0b"},
        {"timeout": -1},
        {"timeout": "a"},
        {"wait": -1},
        {"wait": math.nan},
    ],
    ids=repr,
)
def test_of_an_attached_feed(arguments):
    with pytest.raises((ValueError, TypeError), match=f"{next(iter(arguments))} is |zero byte"):
        tn.Feed.attach(**{"name": "none-such", **arguments})


def test_zero_bytes_in_paths_and_prototypes_are_told():
    library, prototype = native_library.generators(), "int status(int code)"
    for call in (
        lambda: tn.c_function(library + "\0x", prototype),
        lambda: tn.c_function(library, prototype + "\0; x"),
        lambda: tn.plugin(library + "\0x"),
        lambda: tn.save("a\0b.npy", tn.ones(2)),
        lambda: tn.load("a\0b.npy"),
    ):
        with pytest.raises(ValueError, match=r"zero byte|null byte|null character"):
            call()
    for value in (None, 5):
        with pytest.raises(TypeError, match=f"prototype is {value}"):
            tn.c_function(library, value)


def test_zero_bytes_in_the_names_of_saved_arrays_are_told(tmp_path):
    with pytest.raises(ValueError, match="zero byte"):
        tn.save(tmp_path / "a.npz", {"a\0b": tn.ones(2)})
    assert not list(tmp_path.iterdir())


def test_zero_bytes_in_dtypes_are_told():
    for name in ("\0", "f4\0", "f4\0x"):
        for take in (tn.dtype, lambda d: tn.zeros(2, d), tn.zeros(2).astype, tn.zeros(2).view):
            with pytest.raises(TypeError, match="zero byte"):
                take(name)


def test_plans_that_no_buffer_can_hold_are_refused():
    plan = tn.Arena.plan
    for tensors, text in (
        ({"a": (73 * 10**18, 0, 1), "b": (5, 0, 1)}, "'a' has 73,000,000,000,000,000,000 bytes"),
        ({"a": (("f4", (2**40, 2**40)), 0, 1)}, "'a' has"),
        ({"a": (2**62, 0, 1), "b": (2**62, 0, 1), "c": (2**62, 1, 1)}, "the plan needs"),
    ):
        with pytest.raises(ValueError, match=text):
            plan(tensors)
    with pytest.raises(ValueError, match="alignment is"):
        plan({"a": (5, 0, 1)}, alignment=2**70)
    assert plan({"a": (2**62, 0, 1), "b": (2**62, 2, 3)}).nbytes == 2**62
