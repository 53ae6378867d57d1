# SPDX-License-Identifier: Apache-2.0
"""Indexing is NumPy's: basic indices give windows on the same memory, lists and arrays select copies."""

import collections
import enum
import math
import warnings

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tenon as tn


def pair(shape=(4, 5, 6)):
    """The same elements for both: an array and a NumPy array of its own."""
    x = np.arange(np.prod(shape, dtype=int)).reshape(shape)
    return tn.array(x), x


KEYS = [
    0,
    -1,
    (1, 2),
    (1, 2, 3),
    slice(None),
    slice(1, 3),
    slice(None, None, -1),
    slice(3, None, -2),
    slice(10, -10, -3),
    slice(-2, 100),
    slice(2, 2),
    (slice(None), slice(1, None, 2), slice(None, None, -2)),
    (..., 0),
    (0, ...),
    (..., slice(1, 2), 3),
    ...,
    None,
    (None, 0, None, ..., None),
    (slice(None), None, 2),
    (),
    (1, 2, 3, ...),
    (slice(-(2**63), 2**63 - 1),),
    (slice(2**63 - 1, -(2**63), -1),),
    (slice(None, -(2**70), -1),),
    (slice(-(2**70), None, -1),),
]


@pytest.mark.parametrize("key", KEYS, ids=str)
def test_windows_are_those_of_numpy(key):
    a, x = pair()
    window, expected = a[key], x[key]
    assert isinstance(window, tn.NDArray)
    assert window.shape == np.shape(expected)
    assert np.array_equal(np.asarray(window), expected)


@pytest.mark.parametrize("key", KEYS, ids=str)
def test_windows_write_to_the_same_memory(key):
    a, x = pair()
    a[key] = -1
    x[key] = -1
    assert np.array_equal(np.asarray(a), x)
    window = a[key]
    window[...] = 7
    x[key] = 7
    assert np.array_equal(np.asarray(a), x)


def test_a_full_index_gives_an_array_of_no_axes():
    a, _ = pair()
    element = a[1, 2, 3]
    assert isinstance(element, tn.NDArray)
    assert element.shape == ()
    element[...] = -5
    assert a.item(1, 2, 3) == -5


def test_everything_with_index_is_an_int():
    a, x = pair()
    for i in (np.int8(1), np.uint64(2), tn.full((), 3, "int32"), np.array(1)):
        assert np.array_equal(np.asarray(a[i]), x[int(i)])


@pytest.mark.parametrize("key", [4, -5, (0, 5), (0, 0, 0, 0), 2**40])
def test_indices_outside_are_index_errors(key):
    a, _ = pair()
    with pytest.raises(IndexError):
        a[key]
    with pytest.raises(IndexError):
        a[key] = 0


def test_an_int_beyond_64_bits_is_an_error():
    a, _ = pair()
    with pytest.raises((IndexError, OverflowError)):
        a[2**70]


np_bool_is_a_mask = pytest.mark.skipif(
    np.lib.NumpyVersion(np.__version__) < "2.3.0", reason="a NumPy bool counts as an int before NumPy 2.3"
)
SELECTIONS = [
    [0, 1],
    [3, -1, 3],
    [],
    [True, False, False, True],
    range(2),
    True,
    pytest.param(np.bool(False), marks=np_bool_is_a_mask),
    np.array([0, 1]),
    np.array([[0, 1], [2, 3]]),
    np.arange(120).reshape(4, 5, 6) % 7 == 0,
    (0, [1]),
    ([0, 1], slice(None), [2, 3]),
    (slice(1, 3), [4, 0]),
    (np.array([1]),),
    (..., [0, 5]),
    ([0, 1], None, 2),
    ([[0], [1]], [2, 3], 0),
]


@pytest.mark.parametrize("is_shared", [False, True])
@pytest.mark.parametrize("key", SELECTIONS, ids=range(len(SELECTIONS)))
def test_lists_and_arrays_select_copies_and_assignments_write_through_them(key, is_shared):
    _, x = pair()
    a = tn.zeros(x.shape, x.dtype, shared=is_shared)
    a[...] = x
    selected = a[key]
    assert isinstance(selected, tn.NDArray) and selected.dtype == a.dtype
    assert (selected.shape, selected.tolist()) == (x[key].shape, x[key].tolist())
    selected[...] = -5
    assert a.tolist() == x.tolist(), "it is a copy"
    x[key] = -x[key]
    a[key] = -a[key]
    assert a.tolist() == x.tolist()
    x[key] = 77
    a[key] = 77
    assert a.tolist() == x.tolist()
    assert a.leases() == []


def test_arrays_select_from_arrays():
    a, x = pair()
    rows, mask = tn.array([2, 0]), tn.array(x > 60)
    assert a[rows].tolist() == x[[2, 0]].tolist()
    assert a[rows, 1:3].tolist() == x[[2, 0], 1:3].tolist()
    assert a[mask].tolist() == x[x > 60].tolist()
    a[mask] = a[mask] * 2
    assert a.tolist() == np.where(x > 60, 2 * x, x).tolist()


def test_a_selection_waits_for_ops_and_writes_to_no_read_only_array():
    a = tn.zeros(4)
    tn.push(tn.fill, tn.overwrite(a), 3)
    assert a[[0, 3]].tolist() == [3, 3]
    with pytest.raises(ValueError, match="read-only"):
        a.readonly()[[0]] = 1
    with pytest.raises(IndexError, match="out of bounds"):
        a[[4]]
    with pytest.raises(IndexError, match="boolean index"):
        a[[True]]


@pytest.mark.parametrize("key", ["a", 1.5, b"a", {}, (0, 1.5)], ids=range(5))
def test_other_keys_say_what_an_index_is(key):
    a, _ = pair()
    with pytest.raises(TypeError, match=r"is no index of an NDArray: ints, slices, \.\.\., None, and lists"):
        a[key]
    with pytest.raises(TypeError, match="is no index of an NDArray"):
        a[key] = 0


def test_bad_slices_are_errors():
    a, _ = pair()
    with pytest.raises(ValueError, match="zero"):
        a[::0]
    with pytest.raises(IndexError, match="ellips"):
        a[..., ...]
    with pytest.raises(TypeError):
        a[1.5:]


def test_elements_cannot_be_deleted():
    a, _ = pair()
    with pytest.raises(TypeError, match="deleted"):
        del a[0]


def test_more_than_64_axes_are_an_error():
    with pytest.raises((ValueError, IndexError)):
        tn.zeros(1)[(None,) * 64]
    with pytest.raises((ValueError, IndexError)):
        tn.zeros(1)[(None,) * 400]
    assert tn.zeros(1)[(None,) * 63].ndim == 64


def test_iteration_gives_rows():
    a, x = pair((3, 2))
    rows = list(a)
    assert [row.tolist() for row in rows] == x.tolist()
    assert all(row.data_ptr == a.data_ptr + 16 * i for i, row in enumerate(rows))
    first, *_ = a
    assert first.tolist() == [0, 1]
    with pytest.raises(TypeError, match="no axes"):
        iter(tn.zeros(()))


VALUES = {
    "int": 3,
    "float": 2.75,
    "bool": True,
    "float32 scalar": np.float32(1.5),
    "int64 scalar": np.int64(-2),
    "numpy": np.arange(3),
    "byte-swapped": np.arange(3, dtype=">i4"),
    "negative strides": np.arange(6).reshape(2, 3)[:, ::-1],
    "unaligned": np.frombuffer(b"0" + np.arange(3, dtype="f4").tobytes(), dtype=np.uint8)[1:].view("f4"),
    "list": [1, 2, 3],
    "nested list": [[1], [2]],
    "tuples": ((1, 2, 3), (4, 5, 6)),
    "memoryview": memoryview(np.arange(3.0)),
    "bytearray": bytearray(b"abc"),
    "range": range(3),
}


@pytest.mark.parametrize("value", VALUES.values(), ids=VALUES)
@pytest.mark.parametrize("dtype", ["float32", "int32", "complex128", "float16"])
def test_whatever_numpy_assigns_is_assigned(value, dtype):
    a, x = tn.zeros((2, 3), dtype), np.zeros((2, 3), dtype)
    x[...] = np.asarray(value)
    a[...] = value
    assert np.array_equal(np.asarray(a), x)


def test_arrays_are_assigned_with_broadcast_and_cast():
    a = tn.zeros((2, 3))
    a[...] = tn.array([1, 2, 3], "int8")
    assert a.tolist() == [[1, 2, 3]] * 2
    a[:, 1:] = a[:, :2]
    assert a.tolist() == [[1, 1, 2]] * 2
    a[:, ::-1] = a
    assert a.tolist() == [[2, 1, 1]] * 2
    with pytest.raises(ValueError, match="shape"):
        a[...] = tn.zeros((3, 2))


def test_tensors_are_assigned():
    torch = pytest.importorskip("torch")
    a = tn.zeros((2, 3))
    a[...] = torch.arange(3)
    assert a.tolist() == [[0, 1, 2]] * 2
    a[0] = torch.ones(3, dtype=torch.bfloat16)
    assert a.tolist() == [[1, 1, 1], [0, 1, 2]]


def test_bfloat16_is_assigned_without_numpys_help():
    a = tn.zeros(3, "bfloat16")
    a[...] = [1.5, 2, -3]
    assert a.tolist() == [1.5, 2.0, -3.0]
    a[0] = 8
    assert a.tolist() == [8.0, 2.0, -3.0]


@pytest.mark.parametrize(
    ("dtype", "value"),
    [
        ("uint8", 256),
        ("uint8", -1),
        ("int8", 128),
        ("int64", 2**63),
        ("uint64", 2**64),
        ("uint8", 300.0),
        ("int8", -129.0),
    ],
)
def test_numbers_that_do_not_fit_are_overflow_errors(dtype, value):
    a = tn.zeros(2, dtype)
    with pytest.raises(OverflowError, match=dtype):
        a[0] = value
    assert a.tolist() == [0, 0]


@pytest.mark.parametrize(
    ("dtype", "value"),
    [
        ("uint8", 255),
        ("int8", -128),
        ("int64", -(2**63)),
        ("uint64", 2**64 - 1),
        ("float64", 2**80),
        ("uint8", 255.9),
        ("int8", -128.5),
    ],
)
def test_numbers_at_the_edge_fit(dtype, value):
    a = tn.zeros(1, dtype)
    a[0] = value
    assert a.item() == (int(value) if dtype != "float64" else float(value))


def test_numbers_of_the_wrong_kind_are_refused():
    a = tn.zeros(2, "int32")
    with pytest.raises(ValueError, match=r"nan .* int32"):
        a[0] = math.nan
    with pytest.raises(OverflowError, match=r"-inf .* int32"):
        a[0] = -math.inf
    with pytest.raises(TypeError, match="real"):
        a[0] = 1j
    for value in ("text", [["ragged"], 1], object(), None, {"a": 1}):
        with pytest.raises((TypeError, ValueError)):
            a[0] = value
    assert a.tolist() == [0, 0]


class Level(enum.IntEnum):
    HIGH = 300


class Row(collections.UserList):
    """A sequence that is no list."""


class Table:
    """A mapping: it has a length and no items at 0, 1, ..."""

    def __len__(self):
        return 2

    def __getitem__(self, key):
        raise KeyError(key)


# Numbers of Python in sequences, with two elements or broadcast to two.
SEQUENCES = {
    "negative": [-1, 300],
    "tuple": (300, 1),
    "nested": [[[1, 300]]],
    "mixed": [(1.5, True)],
    "range": range(299, 301),
    "deque": collections.deque([1, 2**40]),
    "user sequence": Row([300, 0]),
    "class of int": [Level.HIGH, 1],
    "fractions": [1.9, -1.9],
    "fractions at the edge": [255.9, -0.9],
    "large floats": [1e10, 0],
    "bools": [True, False],
    "more than 32 bits": [2**40, 0],
    "2**63": [2**63, 0],
    "not exact as float64": [2**63 + 1, 2**53 + 1],
    "also floats": [2**53 + 1, 1.5],
    "-2**63": [-(2**63), 0],
    "2**64 - 1": [2**64 - 1, 1],
    "2**64": [2**64, 1],
    "2**70 and a float": [2**70, 1.5],
    "no float64": [10**400, 0],
    "NaN": [math.nan, 0.0],
    "infinity": [0, -math.inf],
    "complex": [1 + 2j, 0],
    "NumPy's int": [np.int64(300), -1],
    "only NumPy's int": [np.int64(300), np.int64(1)],
    "NumPy's int and a large one": [np.int64(300), 2**40],
    "NumPy's bool": [np.True_, 300],
    "NumPy's complex": [np.complex64(1j), 1],
    "arrays": [np.array(300), np.array(1)],
    "rows": [[[300, 1]], np.array([[2, 3]])],
    "empty": [],
    "empty rows": [[], []],
    "ragged": [[1, 2], [3]],
}


def outcome(array, value):
    """What an assignment does: the elements afterwards, the error, and whether a part was dropped."""
    error = None
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            array[...] = value
        except (OverflowError, TypeError, ValueError) as raised:
            error = type(raised)
    dropped = [True for warning in caught if warning.category is np.exceptions.ComplexWarning]
    return repr(array.tolist()), error, dropped  # as text: NaN does not equal itself


@pytest.mark.parametrize("value", SEQUENCES.values(), ids=SEQUENCES)
@pytest.mark.parametrize("dtype", ["bool", "uint8", "int32", "int64", "uint64", "float32", "complex64"])
def test_numbers_in_sequences_are_converted_as_by_numpy(dtype, value):
    expected = outcome(np.ones((2, 1, 2), dtype), value)
    if expected[1] is not None:
        expected = (repr(np.ones((2, 1, 2), dtype).tolist()), *expected[1:])  # NumPy may have written a part
    assert outcome(tn.ones((2, 1, 2), dtype), value) == expected


@pytest.mark.parametrize(
    ("dtype", "value", "error", "text"),
    [
        ("uint8", [2, 300], OverflowError, r"300 .* uint8: .*astype\('uint8'\)"),
        ("int8", [-129.0], OverflowError, r"-129\.0 .* int8: .*wider"),
        ("int64", [2**63], OverflowError, r"9223372036854775808 .* int64: use float64"),
        ("int32", [math.nan], ValueError, "nan .* int32.*np.nan_to_num"),
        ("int32", [math.inf], OverflowError, "inf .* int32.*np.nan_to_num"),
        ("float32", [2j], TypeError, r"2j .* float32: take its \.real"),
        ("bfloat16", [2j], TypeError, r"2j .* bfloat16: take its \.real"),
        ("float8_e5m2", (0, 2j), TypeError, "2j .* float8_e5m2"),
        ("uint8", [np.float64(300.5)], OverflowError, r"300\.5.* uint8"),
        ("float32", [np.complex128(2j)], TypeError, "2j.* float32"),
    ],
)
def test_numbers_in_lists_that_do_not_fit_are_named(dtype, value, error, text):
    a = tn.ones(2, dtype)
    for assign in (
        lambda: a.__setitem__(..., value),
        lambda: a.__setitem__([0, 1][: len(value)], value),
        lambda: a.__setitem__(np.arange(2) < len(value), value),
        lambda: a.__setitem__([0, 1], value[0 if len(value) == 1 else 1]),
        lambda: a.fill(value),
        lambda: tn.full(2, value, dtype),
    ):
        with pytest.raises(error, match=text):
            assign()
    assert a.tolist() == [1, 1]


def test_dtypes_that_numpy_does_not_have_take_lists():
    for dtype in ("bfloat16", "float8_e4m3fn", "float8_e5m2"):
        a = tn.zeros((2, 2), dtype)
        a[...] = [[1, True], (-1.5, 2**10 if dtype == "bfloat16" else 256)]
        assert a.tolist() == [[1, 1], [-1.5, 1024 if dtype == "bfloat16" else 256]]


def test_what_has_no_numbers_is_refused_also_beside_numbers():
    a = tn.ones(2)
    holder = []
    holder.append(holder)
    for value in (["1", "2"], [None, 1], [object(), 1], Table(), {1, 2}, holder, [2**70, None]):
        with pytest.raises((TypeError, ValueError)):
            a[...] = value
    assert a.tolist() == [1, 1]


def test_arrays_keep_the_cast_of_c():
    a = tn.zeros(2, "uint8")
    for value in (np.array([300, -1]), tn.array([300, -1]), memoryview(np.array([300, -1]))):
        a[...] = value
        assert a.tolist() == [44, 255]
    a[...] = np.int64(300)
    assert a.tolist() == [44, 44]


def test_a_complex_array_is_not_cast_to_real_in_silence():
    a = tn.ones(2)
    for value in (np.array([1 + 2j, 1]), tn.array([1 + 2j, 1]), np.complex64(1 + 2j)):
        with pytest.warns(np.exceptions.ComplexWarning, match=r"complex(64|128) to float32.*np\.real\(x\)"):
            a[...] = value
        assert a.tolist() == [1, 1]
        a[...] = 7
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            with pytest.raises(np.exceptions.ComplexWarning):
                a[...] = value
            assert a.tolist() == [7, 7]
            tn.zeros(2, "bool")[...] = value
            tn.zeros(2, "complex128")[...] = value


sizes = st.integers(-9, 9) | st.none()
items = (
    st.integers(-5, 4)
    | st.builds(slice, sizes, sizes, sizes.filter(lambda n: n != 0))
    | st.none()
    | st.just(...)
)


@given(st.tuples() | st.lists(items, max_size=5).map(tuple))
def test_random_keys_agree_with_numpy(key):
    a, x = pair((3, 4, 5))
    try:
        expected = x[key]
    except IndexError:
        with pytest.raises((IndexError, ValueError)):
            a[key]
        return
    assert np.array_equal(np.asarray(a[key]), expected)


def test_leading_axes_of_length_1_of_a_value_are_dropped_as_numpy_drops_them():
    values = [
        np.ones((1, 3)),
        np.full((1, 1, 1), 2.0),
        np.full((1, 2, 3), 3.0),
        np.ones((2, 1, 3)),
        np.ones((1, 0)),
    ]
    for shape in [(3,), (2, 3), ()]:
        for value in values:
            x, a = np.zeros(shape), tn.zeros(shape, "f8")
            try:
                x[...] = value
            except ValueError:
                for source in (value, tn.array(value)):
                    with pytest.raises(ValueError, match="cannot broadcast"):
                        a[...] = source
                continue
            for source in (value, tn.array(value), value.tolist()):
                a[...] = 0
                a[...] = source
                assert a.tolist() == x.tolist()


@pytest.mark.parametrize("number", [np.int64(1), np.uint64(2**63 + 1), np.float32(1), np.True_, np.array(1)])
@pytest.mark.parametrize("dtype", ["uint64", "uint8"])
def test_lists_of_numbers_of_python_and_numpy_keep_all_bits(dtype, number):
    for value in ([2**63 + 1, number], [number, 0], [0, number]):
        if dtype == "uint8":
            value = [min(x, 255) if isinstance(x, int) else x for x in value]
        expected = [int(x) % 2 ** (8 * np.dtype(dtype).itemsize) for x in value]
        a = tn.zeros(2, dtype)
        a[...] = value
        assert a.tolist() == expected
        assert tn.array(value, dtype).tolist() == expected


def test_ints_without_digits_are_out_of_range():
    for value in (10**5000, [10**5000]):
        with pytest.raises(OverflowError, match="int64"):
            tn.zeros(1, "int64")[...] = value
    for value in (10**400, [10**400]):
        a = tn.zeros(1, "bool")
        a[...] = value
        assert a.tolist() == [True]
