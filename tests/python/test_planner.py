# SPDX-License-Identifier: Apache-2.0
"""Plans of tensors in one buffer: valid always, never below the lower bound, the same every time, and small.

What is small is said by others than the planner: every order of few tensors, tilings that are packed without
a hole by the way they are made, and first fit.
"""

import dataclasses
import itertools
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tenon as tn
from tenon import _planner
from tenon._packing import Budget, Intervals, Packing, Search
from tenon._planner import Plan, Tensor, plan

sys.path.insert(0, str(Path(__file__).parents[2] / "bench" / "planner"))
import planner_cases as cases

FAMILIES = [
    *(cases.random_intervals(200, seed) for seed in range(4)),
    *(cases.nested(60, seed) for seed in range(2)),
    *(cases.cnn(24, seed, training) for seed in range(2) for training in (False, True)),
    *(cases.transformer(12, seed, training) for seed in range(2) for training in (False, True)),
    *(cases.replacing(n, seed) for n in (20, 40) for seed in range(2)),
    *(cases.tiling(n, seed) for n in (15, 30, 60, 120, 300) for seed in range(2)),
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


def least_peak(tensors):
    """Of every order, where each tensor lies upon all of those before it that it meets.

    An optimal plan pushed down, taken by offset, is one of these.
    """
    spans = list(tensors.values())
    least = sum(nbytes for nbytes, _, _ in spans)
    for order in itertools.permutations(spans):
        placed, peak = [], 0
        for span in order:
            top = max((top for other, top in placed if overlaps(span, other)), default=0) + span[0]
            placed.append((span, top))
            peak = max(peak, top)
            if peak >= least:
                break
        least = min(least, peak)
    return least


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
@settings(max_examples=200, deadline=None)
@given(tensor_sets(), st.sampled_from([1, 16, 64, 4096]))
def test_a_plan_is_valid_and_between_its_bounds(tensors, alignment):
    found = plan(tensors, alignment, effort=0.02)
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
    if found.nbytes == found.lower_bound:
        assert found.is_optimal


@settings(max_examples=50, deadline=None)
@given(tensor_sets())
def test_the_same_tensors_give_the_same_plan(tensors):
    assert plan(tensors, effort=0.02) == plan(dict(tensors), effort=0.02)


@pytest.mark.slow
@settings(max_examples=300, deadline=None)
@given(tensor_sets(most=6, largest=12, steps=6))
def test_small_plans_are_optimal(tensors):
    found = plan(tensors, alignment=1)
    assert found.is_optimal
    assert found.nbytes == least_peak(tensors)


def fits(spans, peak, placed=()):
    """Whether some offsets keep everything below a peak: tries every integer for every tensor."""
    if len(placed) == len(spans):
        return True
    span = spans[len(placed)]
    met = [(at, at + other[0]) for other, at in placed if overlaps(span, other)]
    return any(
        all(at >= end or at + span[0] <= begin for begin, end in met)
        and fits(spans, peak, (*placed, (span, at)))
        for at in range(peak - span[0] + 1)
    )


def test_an_optimum_above_the_lower_bound_is_proved():
    spans = [(2, 0, 0), (4, 0, 1), (1, 1, 2), (3, 2, 2), (2, 3, 3)]
    spans += [(1, 2, 3), (1, 1, 3), (2, 0, 4), (2, 3, 4), (4, 4, 4)]
    found = plan({str(i): span for i, span in enumerate(spans)}, alignment=1)
    assert (found.lower_bound, found.nbytes, found.is_optimal) == (8, 9, True)
    assert not fits(spans, 8)
    assert fits(spans, 9)


def test_no_plan_of_full_buffers_is_better():
    above = 0
    for seed in range(60):
        case = cases.replacing(10 + seed % 5, seed, full=8)
        found = plan(case.tensors)
        assert found.is_optimal
        assert found.lower_bound == 8 * cases.UNIT
        spans = [(nbytes // cases.UNIT, first, last) for nbytes, first, last in case.tensors.values()]
        assert fits(spans, found.nbytes // cases.UNIT)
        if found.nbytes > found.lower_bound:
            above += 1
            assert not fits(spans, found.nbytes // cases.UNIT - 1)


@pytest.mark.slow
def test_the_search_says_no_only_where_nothing_fits():
    """The search alone, at each limit: plans of small sets rarely need it, since first fit is optimal."""
    refused = 0
    for seed in range(1500):
        case = cases.replacing(20, seed, full=8)
        spans = [(nbytes // cases.UNIT, first, last) for nbytes, first, last in case.tensors.values()]
        spans = sorted(spans[seed % 3 :], key=lambda span: span[1])
        intervals = Intervals(spans)
        bound = max(intervals.load)
        search = Search(intervals, Budget(1 << 30, None))
        for limit in range(bound, bound + 2):
            offsets = search.run(limit, range(len(spans)), 1 << 30)
            assert (offsets is not None) == fits(spans, limit), (seed, limit, spans)
            if offsets is None:
                assert search.is_exhausted
                refused += 1
            else:
                assert intervals.peak(offsets) <= limit
                # The planner gets there too, from side by side as the worst packing to better.
                packing = Packing(intervals, 0, Budget(1 << 30, None))
                packing.offsets = [sum(intervals.size[:i]) for i in range(len(spans))]
                packing.peak = sum(intervals.size)
                packing.improve()
                assert packing.peak == intervals.peak(packing.offsets) == packing.low == limit
                break
    assert refused >= 3


@pytest.mark.slow
@pytest.mark.parametrize("case", FAMILIES, ids=[f"{i}: {case.name}" for i, case in enumerate(FAMILIES)])
def test_families_are_within_a_twentieth(case):
    found = plan(case.tensors)
    assert_valid(found, case.tensors)
    assert found.nbytes <= 1.05 * found.lower_bound
    if case.best_known is not None:
        assert found.lower_bound == case.best_known
    assert found.nbytes <= plan(case.tensors, effort=0).nbytes


@pytest.mark.slow
def test_a_thousand_and_ten_thousand_tensors():
    for n in (1_000, 10_000):
        tensors = cases.random_intervals(n, 0, longest=0.01).tensors
        found = plan(tensors, effort=0)
        found.check()
        assert found.lower_bound <= found.nbytes <= 1.1 * found.lower_bound


def test_stretches_that_nothing_connects_share_the_buffer():
    tensors = cases.tiling(20, 1).tensors
    later = {f"later {name}": (n, first + 1000, last + 1000) for name, (n, first, last) in tensors.items()}
    found = plan(tensors | later)
    assert_valid(found, tensors | later)
    assert found.nbytes == plan(tensors).nbytes


def test_no_seconds_still_give_a_plan():
    tensors = cases.tiling(100, 3).tensors
    found = plan(tensors, seconds=0)
    assert_valid(found, tensors)
    assert found.nbytes > found.lower_bound
    assert not found.is_optimal
    assert plan(tensors, effort=0).nbytes > found.lower_bound


def test_sizes_of_dtypes_and_shapes():
    tensors = [
        Tensor("f4", "float32", (3, 5), 0, 1),
        Tensor("bf16", tn.bfloat16, 7, 0, 1),
        Tensor("fp4", tn.float4_e2m1fn, (3, 3), 0, 1),
        Tensor("scalar", "int64", (), 0, 1),
        Tensor("nothing", "int64", (0, 9), 0, 1),
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
@settings(max_examples=200, deadline=None)
@given(tensor_sets(most=8, steps=5, largest=300), st.data())
def test_check_agrees_with_comparing_each_pair(tensors, data):
    found = plan(tensors, effort=0)
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
        ([("a", 1, 0, 4)], {}, TypeError, "is no Tensor"),
        ([Tensor("a", "f4", 1, 0, 1), Tensor("a", "f4", 2, 3, 4)], {}, ValueError, "two tensors named 'a'"),
        ({"a": (1, 0, 4)}, {"alignment": 48}, ValueError, "alignment is 48"),
        ({"a": (1, 0, 4)}, {"alignment": 0}, ValueError, "alignment is 0"),
        ({"a": (1, 0, 4)}, {"alignment": 2.0}, TypeError, "alignment is 2.0"),
        ({"a": (1, 0, 4)}, {"effort": -1}, ValueError, "effort is -1"),
        ({"a": (1, 0, 4)}, {"effort": float("nan")}, ValueError, "effort is nan"),
        ({"a": (1, 0, 4)}, {"seconds": -1}, ValueError, "seconds is -1"),
    ],
)
def test_bad_input_is_named(tensors, options, error, message):
    with pytest.raises(error, match=message):
        plan(tensors, **options)


def test_a_plan_that_is_not_valid_never_leaves(monkeypatch):
    monkeypatch.setattr(_planner, "pack", lambda spans, *_: ([0] * len(spans), 1, True))
    with pytest.raises(ValueError, match="share bytes"):
        plan({"a": (64, 0, 1), "b": (64, 1, 2)})
