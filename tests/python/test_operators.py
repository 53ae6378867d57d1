# SPDX-License-Identifier: Apache-2.0
"""Operators and ufuncs are NumPy's: in place they write to the array, else they give NumPy's results."""

import operator

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tenon as tn

pytestmark = pytest.mark.usefixtures("nothing_stays_behind")

ARITHMETIC = ["add", "sub", "mul", "truediv", "floordiv", "mod", "pow"]
BITS = ["and_", "or_", "xor", "lshift", "rshift"]
COMPARISONS = ["eq", "ne", "lt", "le", "gt", "ge"]


def operands(dtype="float64"):
    x = np.arange(1, 7).reshape(2, 3).astype(dtype)
    y = np.arange(3, 0, -1).astype(dtype)
    return x, y, tn.array(x), tn.array(y)


@pytest.mark.parametrize("name", [*ARITHMETIC, *COMPARISONS, *BITS])
def test_operators_give_numpys_results(name):
    apply = getattr(operator, name)
    x, y, a, b = operands("int64" if name in BITS else "float64")
    expected = apply(x, y)
    for result in (apply(a, b), apply(a, y), apply(x, b)):
        assert type(result) is np.ndarray
        assert np.array_equal(result, expected)
    assert np.array_equal(apply(a, 2), apply(x, 2))
    assert np.array_equal(apply(2, b), apply(2, y))


@pytest.mark.parametrize("name", [*ARITHMETIC, *BITS])
def test_operators_in_place_write_to_the_array(name):
    apply = getattr(operator, "i" + name.rstrip("_") if name not in ("and_", "or_") else "i" + name[:-1])
    x, y, a, b = operands("int64" if name in BITS else "float64")
    address = a.data_ptr
    kept = a
    for right in (b, y, 2):
        a = apply(a, right)
        x = apply(x, y if right is b else right)
        assert a is kept
    assert a.data_ptr == address
    assert np.array_equal(np.asarray(a), x)


def test_operators_take_an_array_and_a_part_of_it():
    x, _, a, _ = operands()
    for apply in (operator.add, np.hypot, np.subtract, lambda p, q: np.concatenate([p, q[None]])):
        assert np.array_equal(apply(a, a[1]), apply(x, x[1]))
    assert np.array_equal(a @ a[1], x @ x[1])
    a += a[1]
    assert np.array_equal(np.asarray(a), x + x[1])


def test_matrix_products_work():
    x, y = np.arange(6.0).reshape(2, 3), np.arange(12.0).reshape(3, 4)
    a, b = tn.array(x), tn.array(y)
    for result in (a @ b, a @ y, x @ b):
        assert np.array_equal(result, x @ y)
    c, z = tn.array(np.eye(3) * 2), np.eye(3) * 2
    c @= b[:, :3]
    z @= y[:, :3]
    assert np.array_equal(np.asarray(c), z)


def test_unary_operators_give_numpys_results():
    x = np.arange(-3, 3)
    a = tn.array(x)
    for apply in (operator.neg, operator.pos, abs, operator.invert):
        assert np.array_equal(apply(a), apply(x))
    quotient, rest = divmod(a, 2)
    assert np.array_equal(quotient, x // 2)
    assert np.array_equal(rest, x % 2)
    assert np.array_equal(pow(2.0, a), 2.0**x)


def test_in_place_casts_as_numpy_does():
    a = tn.zeros(2, "int32")
    with pytest.raises(TypeError):
        a += 1.5
    assert a.tolist() == [0, 0]
    with pytest.raises(ValueError, match="broadcast"):
        a += np.ones((3, 2), int)


def test_numpy_in_place_takes_arrays():
    x = np.arange(3.0)
    x += tn.ones(3)
    assert type(x) is np.ndarray
    assert x.tolist() == [1, 2, 3]


def test_views_write_in_place():
    a = tn.zeros((2, 3))
    a[0] += 1
    row = a[1]
    row -= 2
    a[:, 1] *= 10
    assert a.tolist() == [[1, 10, 1], [-2, -20, -2]]


def test_comparison_with_other_objects_is_numpys():
    a = tn.zeros(2)
    assert not np.any(a == "text")
    assert np.all(a != None)  # noqa: E711
    with pytest.raises(TypeError):
        a < "text"  # noqa: B015


def test_in_looks_for_elements():
    a = tn.array([[1, 2], [3, 4]])
    assert 3 in a
    assert 5 not in a


def test_ufuncs_read_and_write_arrays():
    a, b, out = tn.full(3, 2.0), tn.full(3, 3.0), tn.zeros(3)
    assert type(np.add(a, b)) is np.ndarray
    assert np.add(a, b, out=out) is out
    assert out.tolist() == [5, 5, 5]
    x = np.zeros(3, "f4")
    assert np.multiply(a, b, out=x) is x
    assert x.tolist() == [6, 6, 6]
    assert np.add.reduce(a) == 6
    assert np.multiply.outer(a, b).shape == (3, 3)
    np.add.at(a, [0, 0], 1)
    assert a.tolist() == [4, 2, 2]
    assert np.sqrt(a, where=tn.array([True, False, False]), out=out).tolist() == [2, 5, 5]


def test_ufuncs_with_several_outputs():
    a, whole, rest = tn.array([1.5, 2.25]), tn.zeros(2, "float64"), np.zeros(2)
    result = np.modf(a, out=(rest, whole))
    assert result[0] is rest
    assert result[1] is whole
    assert whole.tolist() == [1, 2]
    first, second = np.modf(a, out=(None, whole))
    assert type(first) is np.ndarray
    assert second is whole


def test_ufuncs_do_not_write_to_readonly_arrays():
    a = tn.zeros(3)
    with pytest.raises(ValueError, match="read-only"):
        np.add(1, 1, out=a.readonly())
    assert a.tolist() == [0, 0, 0]


def test_functions_of_numpy_take_arrays():
    a = tn.array([[1.0, 2.0], [3.0, 4.0]])
    assert np.concatenate([a, a]).shape == (4, 2)
    assert np.linalg.det(a) == pytest.approx(-2)
    assert np.sum(a) == 10
    assert np.stack([a[0], a[1]]).tolist() == a.tolist()


def test_bfloat16_adds_through_ml_dtypes():
    pytest.importorskip("ml_dtypes")
    a = tn.ones(3, "bfloat16")
    a += 1
    assert a.tolist() == [2, 2, 2]
    assert (a + a).tolist() == [4, 4, 4]


def test_only_tensors_of_pytorch_are_left_to_pytorch():
    class Spec:
        requires_grad = False

        def __rmul__(self, other):
            return "its own"

    a = tn.ones(2)
    assert (a == Spec()).tolist() == [False, False]
    assert isinstance(a == Spec(), np.ndarray)
    assert (a * Spec()).tolist() == ["its own", "its own"]


def test_dtypes_that_numpy_lacks_say_so():
    a = tn.zeros(4, "float8_e4m3fn").view("uint8").view("float4_e2m1fn_x2")
    with pytest.raises(TypeError, match="float4_e2m1fn_x2"):
        a + 1


numbers = st.integers(-100, 100) | st.floats(-100, 100, width=32)


@given(st.sampled_from(["add", "sub", "mul", "eq", "lt"]), st.lists(numbers, min_size=1, max_size=5), numbers)
def test_random_numbers_agree_with_numpy(name, elements, number):
    apply = getattr(operator, name)
    x = np.array(elements)
    assert np.array_equal(apply(tn.array(elements), number), apply(x, number))
