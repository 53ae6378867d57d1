# SPDX-License-Identifier: Apache-2.0
"""Plans of tensors in one buffer: valid always, never below the lower bound, the same every time, and small.

What is small is said by a first fit of the test's own, which looks at one unit after the other.
"""

import dataclasses
import itertools
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tenon as tn
from tenon._ipc import planner as _planner
from tenon._ipc.planner import Plan, TensorUsage, plan

sys.path.insert(0, str(Path(__file__).parents[2] / "bench" / "planner"))
import planner_cases as cases

MODELS = [
    *(cases.cnn(24, seed, training) for seed in range(2) for training in (False, True)),
    *(cases.transformer(12, seed, training) for seed in range(2) for training in (False, True)),
    *(cases.nested(60, seed) for seed in range(2)),
]
OTHERS = [
    cases.random_intervals(200, 0),
    *(cases.replacing(n, 0) for n in (20, 100)),
    *(cases.tiling(n, 0) for n in (15, 60, 120)),
]


def overlaps(a, b):
    return a[1] <= b[2] and b[1] <= a[2]


def assert_valid(found, tensors):
    """Each pair, in the plainest way: not the sweep of Plan.check."""
    assert list(found.offsets) == list(tensors)
    for name, (nbytes, _, _) in tensors.items():
        assert found.offsets[name] % found.alignment == 0
        assert 0 <= found.offsets[name] <= found.nbytes - nbytes
    for (a, span), (b, other) in itertools.combinations(tensors.items(), 2):
        if overlaps(span, other) and span[0] and other[0]:
            at, to = found.offsets[a], found.offsets[b]
            assert at + span[0] <= to or to + other[0] <= at, (a, b)


def most_live(tensors, alignment):
    steps = {step for _, *uses in tensors.values() for step in uses}
    return max(
        sum(-(-n // alignment) * alignment for n, first, last in tensors.values() if first <= step <= last)
        for step in steps
    )


def first_fit_peak(tensors, order):
    """Each tensor at the lowest unit that no other of its steps has, in an order of names."""
    taken = {}  # by step: the units that are taken, as bits
    peak = 0
    for name in order:
        nbytes, first, last = tensors[name]
        size = -(-nbytes // cases.UNIT)
        used = 0
        for step in range(first, last + 1):
            used |= taken.get(step, 0)
        at, wanted = 0, (1 << size) - 1
        while used & wanted << at:
            at += 1
        for step in range(first, last + 1):
            taken[step] = taken.get(step, 0) | wanted << at
        peak = max(peak, at + size)
    return peak * cases.UNIT


def orders(tensors):
    def length(name):
        return tensors[name][2] - tensors[name][1] + 1

    yield sorted(tensors, key=lambda name: (-tensors[name][0], -length(name), tensors[name][1]))
    yield sorted(tensors, key=lambda name: (-tensors[name][0] * length(name), tensors[name][1]))
    yield sorted(tensors, key=lambda name: (tensors[name][1], -tensors[name][0]))


@st.composite
def tensor_sets(draw, most=40, largest=5000, steps=30):
    spans = draw(
        st.lists(
            st.tuples(st.integers(0, largest), st.integers(-3, steps), st.integers(0, steps)),
            min_size=1,
            max_size=most,
        )
    )
    return {f"t{i}": (nbytes, first, first + more) for i, (nbytes, first, more) in enumerate(spans)}


@pytest.mark.slow
@settings(max_examples=200)
@given(tensor_sets(), st.sampled_from([1, 16, 64, 4096]))
def test_a_plan_is_valid_and_between_its_bounds(tensors, alignment):
    found = plan(tensors, alignment)
    assert_valid(found, tensors)
    assert found.lower_bound == most_live(tensors, alignment)
    assert found.lower_bound <= found.nbytes <= found.total
    assert (
        found.nbytes
        == max(
            found.offsets[name] + -(-n // alignment) * alignment for name, (n, _, _) in tensors.items() if n
        )
        if any(n for n, _, _ in tensors.values())
        else found.nbytes == 0
    )
    assert found.is_optimal == (found.nbytes == found.lower_bound)


@settings(max_examples=50)
@given(tensor_sets())
def test_the_same_tensors_give_the_same_plan(tensors):
    assert plan(tensors) == plan(dict(tensors))


@settings(max_examples=100)
@given(tensor_sets(most=12, largest=20 * cases.UNIT, steps=8))
def test_a_plan_is_the_best_of_first_fit_in_three_orders(tensors):
    tensors = {name: span for name, span in tensors.items() if span[0]} or {"a": (1, 0, 0)}
    in_units = {name: (-(-n // cases.UNIT), *span) for name, (n, *span) in tensors.items()}
    least = min(first_fit_peak(tensors, order) for order in orders(in_units))
    assert plan(tensors, cases.UNIT).nbytes == least


@pytest.mark.parametrize("case", MODELS, ids=[f"{i}: {case.name}" for i, case in enumerate(MODELS)])
def test_models_are_at_the_lower_bound(case):
    found = plan(case.tensors)
    assert_valid(found, case.tensors)
    assert found.nbytes == found.lower_bound
    assert found.is_optimal


@pytest.mark.parametrize("case", OTHERS, ids=[f"{i}: {case.name}" for i, case in enumerate(OTHERS)])
def test_other_families_are_valid_and_above_no_single_order(case):
    found = plan(case.tensors)
    assert_valid(found, case.tensors)
    assert found.nbytes == min(first_fit_peak(case.tensors, order) for order in orders(case.tensors))
    if case.best_known is not None:
        assert found.lower_bound == case.best_known


@pytest.mark.slow
def test_a_thousand_and_ten_thousand_tensors():
    for n in (1_000, 10_000):
        tensors = cases.random_intervals(n, 0, longest=0.01).tensors
        found = plan(tensors)
        found.check()
        assert found.lower_bound <= found.nbytes <= 1.1 * found.lower_bound


def test_stretches_that_nothing_connects_share_the_buffer():
    tensors = cases.tiling(20, 1).tensors
    later = {f"later {name}": (n, first + 1000, last + 1000) for name, (n, first, last) in tensors.items()}
    found = plan(tensors | later)
    assert_valid(found, tensors | later)
    assert found.nbytes == plan(tensors).nbytes


def test_sizes_of_dtypes_and_shapes():
    tensors = [
        TensorUsage("f4", "float32", (3, 5), 0, 1),
        TensorUsage("bf16", tn.bfloat16, 7, 0, 1),
        TensorUsage("fp4", tn.float4_e2m1fn, (3, 3), 0, 1),
        TensorUsage("scalar", "int64", (), 0, 1),
        TensorUsage("nothing", "int64", (0, 9), 0, 1),
    ]
    found = plan(tensors, alignment=1)
    assert {name: span[0] for name, span in found.tensors.items()} == {
        t.name: tn.empty(t.shape, t.dtype).nbytes for t in tensors
    }
    assert found.nbytes == 60 + 14 + 5 + 8
    assert found == plan({t.name: ((t.dtype, t.shape), t.first, t.last) for t in tensors}, alignment=1)


def test_lifetimes_are_inclusive():
    assert plan({"a": (64, 0, 1), "b": (64, 1, 2)}).nbytes == 128
    assert plan({"a": (64, 0, 1), "b": (64, 2, 2)}).nbytes == 64


def test_what_a_plan_says():
    found = plan({"a": (1000, 3, 4), "b": (1000, 5, 6)}, alignment=256)
    assert (found.nbytes, found.lower_bound, found.total, found.steps) == (1024, 1024, 2048, 4)
    assert repr(found) == ("Plan(2 tensors over 4 steps: 1,024 bytes instead of 2,048, 50.0% saved; optimal)")
    with pytest.raises(dataclasses.FrozenInstanceError):
        found.nbytes = 0
    nothing = plan({"a": (0, 0, 0)})
    assert nothing.nbytes == 0
    assert "\n" not in repr(nothing)


def test_check_names_what_is_wrong():
    found = plan({"a": (100, 0, 3), "b": (100, 2, 5), "c": (100, 4, 6)})
    found.check()
    assert found.nbytes == 256
    with pytest.raises(ValueError, match="'a' and 'b' both live at step 2 and share bytes 64 to 99"):
        dataclasses.replace(found, offsets={"a": 0, "b": 64, "c": 0}).check()
    for offset in (-64, 1, found.nbytes):
        with pytest.raises(ValueError, match=f"'b' of 100 bytes at offset {offset} does not lie"):
            dataclasses.replace(found, offsets=dict(found.offsets, b=offset)).check()
    with pytest.raises(ValueError, match="'a' has no offset"):
        dataclasses.replace(found, offsets={}).check()


@pytest.mark.slow
@settings(max_examples=200)
@given(tensor_sets(most=8, steps=5, largest=300), st.data())
def test_check_agrees_with_comparing_each_pair(tensors, data):
    found = plan(tensors)
    room = found.nbytes + 64
    offsets = {name: data.draw(st.integers(0, (room - n) // 64)) * 64 for name, (n, _, _) in tensors.items()}
    moved = Plan(**{**vars(found), "offsets": offsets, "nbytes": room})
    try:
        assert_valid(moved, tensors)
    except AssertionError:
        with pytest.raises(ValueError, match="share bytes"):
            moved.check()
    else:
        moved.check()


@pytest.mark.parametrize(
    ("tensors", "options", "error", "message"),
    [
        ({}, {}, ValueError, "no tensors"),
        ([], {}, ValueError, "no tensors"),
        ({"a": (1, 5, 4)}, {}, ValueError, "'a' is last used at step 4, before its first use at step 5"),
        ({"a": (-1, 0, 4)}, {}, ValueError, "'a' has -1 bytes"),
        ({"a": (("f4", (2, -3)), 0, 4)}, {}, ValueError, r"'a' has shape \(2, -3\)"),
        ({"a": (("nope", 2), 0, 4)}, {}, TypeError, "unknown dtype 'nope'"),
        ({"a": (1.5, 0, 4)}, {}, TypeError, "size of 'a' is 1.5"),
        ({"a": (1, 0.0, 4)}, {}, TypeError, "first use of 'a' is 0.0"),
        ({"a": (1, 0, "4")}, {}, TypeError, "last use of 'a' is '4'"),
        ({"a": (1, 0)}, {}, TypeError, r"'a' is \(1, 0\): give"),
        ({"a": (("f4",), 0, 4)}, {}, TypeError, r"'a' is \('f4',\): give"),
        ({7: (1, 0, 4)}, {}, TypeError, "name of a tensor is 7"),
        ([("a", 1, 0, 4)], {}, TypeError, "is no TensorUsage"),
        (
            [TensorUsage("a", "f4", 1, 0, 1), TensorUsage("a", "f4", 2, 3, 4)],
            {},
            ValueError,
            "two tensors named 'a'",
        ),
        ({"a": (1, 0, 4)}, {"alignment": 48}, ValueError, "alignment is 48"),
        ({"a": (1, 0, 4)}, {"alignment": 0}, ValueError, "alignment is 0"),
        ({"a": (1, 0, 4)}, {"alignment": 2.0}, TypeError, "alignment is 2.0"),
    ],
)
def test_bad_input_is_named(tensors, options, error, message):
    with pytest.raises(error, match=message):
        plan(tensors, **options)


def test_a_plan_that_is_not_valid_never_leaves(monkeypatch):
    monkeypatch.setattr(_planner, "first_fit", lambda spans, _: [0] * len(spans))
    with pytest.raises(ValueError, match="share bytes"):
        plan({"a": (64, 0, 1), "b": (64, 1, 2)})
