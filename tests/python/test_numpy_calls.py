# SPDX-License-Identifier: Apache-2.0
"""NumPy's functions on each kind of array: the result is NumPy's, or an error names the way out.

Each row runs on a plain, a read-only, a shared and a leased shared array. The expected result is that of the
same row on a NumPy array of the same elements.
"""

import importlib
import io
import sys
import warnings

import numpy as np
import pytest

import tenon as tn

KINDS = ["plain", "readonly", "shared", "leased"]


def values():
    return np.array([[3.0, 1.0, 2.0], [7.0, 5.0, 4.0], [6.0, 8.0, 0.0]])


def saved(a):
    file = io.BytesIO()
    np.save(file, a)
    return file.getvalue()


# Results in memory of their own.
COPIES = {
    "sum": lambda a: np.sum(a),
    "sum axis": lambda a: np.sum(a, axis=0),
    "prod": lambda a: np.prod(a, axis=1),
    "mean": lambda a: np.mean(a),
    "std": lambda a: np.std(a, axis=1),
    "var": lambda a: np.var(a),
    "min": lambda a: np.min(a),
    "max": lambda a: np.max(a, axis=0),
    "ptp": lambda a: np.ptp(a),
    "argmax": lambda a: np.argmax(a),
    "argmin": lambda a: np.argmin(a, axis=0),
    "sort": lambda a: np.sort(a),
    "argsort": lambda a: np.argsort(a, axis=0),
    "partition": lambda a: np.sort(np.partition(a, 1)),
    "searchsorted": lambda a: np.searchsorted(np.arange(9.0), a),
    "concatenate": lambda a: np.concatenate([a, a]),
    "stack": lambda a: np.stack([a, a]),
    "vstack": lambda a: np.vstack((a, a)),
    "hstack": lambda a: np.hstack((a, np.ones((3, 1)))),
    "block": lambda a: np.block([[a, a]]),
    "append": lambda a: np.append(a, a),
    "where": lambda a: np.where(a > 2, a, -1),
    "select": lambda a: np.select([a > 2], [a]),
    "choose": lambda a: np.choose([[0], [1], [0]], [a, a]),
    "take": lambda a: np.take(a, [0, 2], axis=1),
    "compress": lambda a: np.compress([True, False, True], a, axis=0),
    "dot": lambda a: np.dot(a, a),
    "matmul": lambda a: np.matmul(a, a),
    "inner": lambda a: np.inner(a, a),
    "outer": lambda a: np.outer(a, a),
    "einsum": lambda a: np.einsum("ij,jk->ik", a, a),
    "tensordot": lambda a: np.tensordot(a, a, 1),
    "kron": lambda a: np.kron(a, a),
    "linalg.norm": lambda a: np.linalg.norm(a),
    "linalg.det": lambda a: np.linalg.det(a),
    "linalg.inv": lambda a: np.linalg.inv(a),
    "fft.fft": lambda a: np.fft.fft(a),
    "array_equal": lambda a: np.array_equal(a, a),
    "array_equal values": lambda a: np.array_equal(a, values()),
    "array_equal others": lambda a: np.array_equal(a, values() + 1),
    "array_equal lists": lambda a: np.array_equal([a], [values()]),
    "array_equal lists others": lambda a: np.array_equal([a], [values() + 1]),
    "array_equiv lists": lambda a: np.array_equiv([a, a], [[values()]] * 2),
    "array_equiv": lambda a: np.array_equiv(a, values()),
    "allclose": lambda a: np.allclose(a, values()),
    "isclose": lambda a: np.isclose(a, 3),
    "isnan": lambda a: np.isnan(a),
    "zeros_like": lambda a: np.zeros_like(a),
    "empty_like": lambda a: np.empty_like(a).shape,
    "ones_like": lambda a: np.ones_like(a),
    "full_like": lambda a: np.full_like(a, 7),
    "copy": lambda a: np.copy(a),
    "array": lambda a: np.array(a),
    "array copy": lambda a: np.array(a, copy=True),
    "array dtype": lambda a: np.array(a, dtype="f4"),
    "asarray dtype": lambda a: np.asarray(a, dtype="f4"),
    "tile": lambda a: np.tile(a, 2),
    "repeat": lambda a: np.repeat(a, 2, axis=0),
    "roll": lambda a: np.roll(a, 1),
    "pad": lambda a: np.pad(a, 1),
    "clip": lambda a: np.clip(a, 2, 5),
    "round": lambda a: np.round(a),
    "cumsum": lambda a: np.cumsum(a),
    "diff": lambda a: np.diff(a),
    "gradient": lambda a: np.gradient(a),
    "trapezoid": lambda a: np.average(a, axis=0, weights=[1, 2, 3]),
    "histogram": lambda a: np.histogram(a, bins=3),
    "bincount": lambda a: np.bincount(np.array(a, dtype="i8").ravel()),
    "percentile": lambda a: np.percentile(a, 30),
    "median": lambda a: np.median(a, axis=0),
    "unique": lambda a: np.unique(a),
    "isin": lambda a: np.isin(a, [1, 2]),
    "intersect1d": lambda a: np.intersect1d(a, a),
    "nonzero": lambda a: np.nonzero(a),
    "count_nonzero": lambda a: np.count_nonzero(a),
    "any": lambda a: np.any(a),
    "all": lambda a: np.all(a, axis=0),
    "cov": lambda a: np.cov(a),
    "interp": lambda a: np.interp(2.5, np.arange(3.0), a[0]),
    "triu": lambda a: np.triu(a),
    "meshgrid": lambda a: np.meshgrid(a[0], a[1]),
    "apply_along_axis": lambda a: np.apply_along_axis(sorted, 0, a),
    "array2string": lambda a: np.array2string(a),
    "result_type": lambda a: np.result_type(a, np.float32),
    "shape": lambda a: np.shape(a),
    "save": saved,
    "savetxt": lambda a: np.savetxt(io.StringIO(), a),
    "bytes": lambda a: bytes(a),
    "tobytes": lambda a: a.tobytes(),
    "tolist": lambda a: a.tolist(),
    "method sum": lambda a: a.sum(axis=1),
    "method mean": lambda a: a.mean(),
    "method min": lambda a: a.min(0),
    "method max": lambda a: a.max(),
    "add": lambda a: np.add(a, a),
    "multiply": lambda a: np.multiply(a, 2),
    "negative": lambda a: np.negative(a),
    "positive": lambda a: np.positive(a),
    "divmod": lambda a: np.divmod(a, 2),
    "add.reduce": lambda a: np.add.reduce(a),
    "add.accumulate": lambda a: np.add.accumulate(a),
    "add.reduceat": lambda a: np.add.reduceat(a, [0, 2]),
    "add.outer": lambda a: np.add.outer(a, a),
    "ufunc where": lambda a: np.add(a, 1, where=a > 3, out=np.zeros((3, 3))),
    "ufunc out": lambda a: np.add(a, 1, out=np.zeros((3, 3))),
    "sum out": lambda a: np.sum(a, axis=0, out=np.zeros(3)),
    "operators": lambda a: (a + a, a - 1, 2 * a, -a, a @ a, a == a, a < 3, np.ones(3) + a),
    "index by mask": lambda a: values()[np.array(a > 3)],
}

# Results that are views of the array's memory, also where NumPy copies only for other arrays.
VIEWS = {
    "asarray": lambda a: np.asarray(a),
    "asanyarray": lambda a: np.asanyarray(a),
    "ascontiguousarray": lambda a: np.ascontiguousarray(a),
    "array copy=False": lambda a: np.array(a, copy=False),
    "reshape": lambda a: np.reshape(a, -1),
    "transpose": lambda a: np.transpose(a),
    "swapaxes": lambda a: np.swapaxes(a, 0, 1),
    "ravel": lambda a: np.ravel(a),
    "squeeze": lambda a: np.squeeze(a),
    "expand_dims": lambda a: np.expand_dims(a, 0),
    "atleast_3d": lambda a: np.atleast_3d(a),
    "broadcast_to": lambda a: np.broadcast_to(a, (2, 3, 3)),
    "split": lambda a: np.split(a, 3),
    "array_split": lambda a: np.array_split(a, 2),
    "flip": lambda a: np.flip(a),
    "rot90": lambda a: np.rot90(a, 2),
    "diagonal": lambda a: np.diagonal(a),
    "real": lambda a: np.real(a),
    "sliding_window_view": lambda a: np.lib.stride_tricks.sliding_window_view(a, (2, 2)),
    "frombuffer": lambda a: np.frombuffer(a),
}

# What asks NumPy for a view without saying what for. NumPy's own error would be lost in these calls.
ASKS_FOR_VIEW = {
    "testing.assert_array_equal": lambda a: np.testing.assert_array_equal(a, values()),
    "array of list": lambda a: np.array([a, a]),
    "asfortranarray": lambda a: np.asfortranarray(a),
    "vectorize": lambda a: np.vectorize(lambda x: x + 1)(a),
    "random.permutation": lambda a: np.random.RandomState(1).permutation(a),
    "Generator.permutation": lambda a: np.random.default_rng(1).permutation(a),
    "Generator.choice": lambda a: np.random.default_rng(1).choice(a),
    "r_": lambda a: np.r_[a, a],
    "full": lambda a: np.full((3, 3), a),
}

WRITES = {
    "copyto": lambda a: np.copyto(a, 5),
    "put": lambda a: np.put(a, [0, 4], [9, 8]),
    "place": lambda a: np.place(a, values() > 4, [1, 2]),
    "putmask": lambda a: np.putmask(a, values() > 4, 0),
    "fill_diagonal": lambda a: np.fill_diagonal(a, -1),
    "nan_to_num": lambda a: np.nan_to_num(a, copy=False, nan=1),
    "ufunc out": lambda a: np.add(a, 1, out=a),
    "ufunc out tuple": lambda a: np.multiply(a, a, out=(a,)),
    "add.at": lambda a: np.add.at(a, ([0, 0], [1, 1]), 1),
    "sum out": lambda a: np.sum(values(), axis=0, out=a[1]),
    "clip out": lambda a: np.clip(a, 1, 2, out=a),
    "dot out": lambda a: np.dot(values(), values(), out=a),
    "in place": lambda a: a.__imul__(3),
    "setitem": lambda a: a.__setitem__((slice(None), 1), [1, 2, 3]),
    "set by list": lambda a: a.__setitem__([0, 2], 4),
    "set by mask": lambda a: a.__setitem__(values() > 3, -1),
    "fill": lambda a: a.fill(2),
}


def make(kind):
    a = tn.zeros((3, 3), "float64", shared=kind in ("shared", "leased"))
    a[...] = values()
    return a.readonly() if kind == "readonly" else a


def check_same(result, expected):
    if isinstance(expected, (tuple, list)):
        assert type(result) is type(expected) and len(result) == len(expected)
        for one, other in zip(result, expected, strict=True):
            check_same(one, other)
    elif isinstance(expected, (np.ndarray, np.generic)):
        assert type(result) is type(expected) and result.dtype == expected.dtype
        np.testing.assert_array_equal(result, expected)
    else:
        assert type(result) is type(expected) and result == expected


def all_rows(*tables):
    return [pytest.param(call, id=name) for table in tables for name, call in table.items()]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("call", all_rows(COPIES))
def test_what_copies_gives_numpys_result_on_every_kind(kind, call):
    a = make(kind)
    expected = call(values())
    if kind == "leased":
        with a.read():
            check_same(call(a), expected)
        return
    result = call(a)
    assert a.leases() == [], "the result holds the memory"
    check_same(result, expected)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("call", all_rows(VIEWS, ASKS_FOR_VIEW))
def test_what_gives_a_view_needs_a_lease_of_shared_memory(kind, call):
    a = make(kind)
    expected = call(values())
    if kind == "leased":
        with a.read():
            check_same(call(a), expected)
    elif kind == "shared":
        with pytest.raises(tn.LeaseConflict, match=r"with a.read\(\).*np.array\(a\)"):
            call(a)
        assert a.leases() == []
    else:
        check_same(call(a), expected)


@pytest.mark.parametrize("kind", ["plain", "readonly", "shared"])
@pytest.mark.parametrize("call", all_rows(VIEWS))
def test_a_view_that_is_given_counts(kind, call):
    a = make(kind)
    if kind == "shared":
        with pytest.raises(tn.LeaseConflict):
            call(a)
        return
    result = call(a)
    assert [holder.kind for holder in a.leases()] == ["view"]
    del result


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("call", all_rows(WRITES))
def test_what_writes_writes_to_the_array_or_says_that_it_is_read_only(kind, call):
    a = make(kind)
    expected = values()
    call(expected)
    if kind == "readonly":
        with pytest.raises(ValueError, match=r"read-only: write to a.copy\(\)"):
            call(a)
        expected = values()
    elif kind == "leased":
        with a.write():
            call(a)
    else:
        call(a)
    assert a.tolist() == expected.tolist()
    assert a.leases() == []


@pytest.mark.parametrize("kind", ["plain", "shared"])
@pytest.mark.parametrize(
    "shuffle", [np.random.RandomState(1).shuffle, np.random.default_rng(1).shuffle], ids=["old", "new"]
)
def test_shuffle_which_would_duplicate_rows_is_an_error(kind, shuffle):
    a = make(kind)
    with warnings.catch_warnings():
        importlib.reload(sys.modules["tenon._array"])  # pytest has taken back the filter of the import
        with pytest.raises(UserWarning, match="view semantics"):
            shuffle(a)
    assert a.tolist() == values().tolist()


def test_shuffle_works_on_a_view():
    a = make("shared")
    with a.write() as v:
        np.random.default_rng(1).shuffle(v)
    assert sorted(a.tolist()) == sorted(values().tolist())
