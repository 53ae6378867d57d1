# SPDX-License-Identifier: Apache-2.0
"""Op bodies that return what they were to write. Oracle: an op fails if, and only if, its Python function
returns a new array of the shape of an output that it overwrites, whose name does not begin with `_`."""

import functools
import importlib.util
import io
import itertools

import numpy as np
import pytest

import tenon as tn

pytestmark = pytest.mark.usefixtures("no_op_is_left")


def writes_too(x, o):
    o[...] = x
    return x * 2


def takes_keywords(x, *, o):
    return x * 2


class Doubles:
    def method(self, x, o):
        return x * 2


LOST = [
    pytest.param(lambda x, o: x * 2, id="lambda"),
    pytest.param(lambda x, o: np.exp(x - 1), id="call"),
    pytest.param(lambda x, o: (1, x * 2), id="tuple"),
    pytest.param(lambda x, o: [x * 2], id="list"),
    pytest.param(lambda x, o: (x * 2).astype("f8"), id="another dtype"),
    pytest.param(writes_too, id="writes too"),
    pytest.param(lambda x, o: tn.array(x), id="of Tenon"),
    pytest.param(Doubles().method, id="method"),
]


@pytest.mark.parametrize("function", LOST)
def test_a_function_that_returns_what_it_was_to_write_fails(function):
    a, b = tn.ones(3), tn.zeros(3)
    op = tn.push(function, a, tn.overwrite(b))
    error = op.exception()
    assert isinstance(error.__cause__, TypeError)
    assert "returned a new array of shape (3,), the shape of its parameter 'o'" in str(error)
    assert "o[...] = ..." in str(error)
    with pytest.raises(tn.OpError):
        b.tolist()
    b[...] = 1
    assert b.tolist() == [1, 1, 1] and a.tolist() == [1, 1, 1]


def test_an_output_by_keyword_and_a_single_number_are_looked_at_too():
    a, b, total = tn.ones(3), tn.zeros(3), tn.zeros(())
    assert "parameter 'o'" in str(tn.push(takes_keywords, a, o=tn.overwrite(b)).exception())
    assert "of shape ()" in str(tn.push(lambda x, o: x.sum(), a, tn.overwrite(total)).exception())


def writes_what_may_be_lost(x, _o):
    _o[...] = x
    return x * 2


def takes_any(*arrays):
    arrays[1][...] = arrays[0]
    return arrays[0] * 2


class Writes:
    def __call__(self, x, o):
        return writes_too(x, o)


def decorated(function):
    @functools.wraps(function)
    def call(*arguments, **named):
        return function(*arguments, **named)

    return call


KEPT = [
    writes_what_may_be_lost,
    takes_any,
    Writes(),
    decorated(writes_too),
    functools.partial(writes_too),
    lambda x, _: np.copyto(_, x) or x * 2,
]


@pytest.mark.parametrize("function", KEPT, ids=itertools.count())
def test_a_parameter_with_an_underscore_or_without_a_name_is_not_checked(function):
    a, b = tn.ones(3), tn.zeros(3)
    assert tn.push(function, a, tn.overwrite(b)).result().tolist() == [2, 2, 2]
    assert b.tolist() == [1, 1, 1]


def test_any_other_value_may_be_returned():
    a, b, small = tn.ones(3), tn.zeros(3), tn.zeros(1)
    assert tn.push(lambda x, o: x * 2, a, tn.write(b)).result().tolist() == [2, 2, 2]  # for the order alone
    assert tn.push(lambda x, o: x * 2, a, tn.overwrite(small)).result().tolist() == [2, 2, 2]
    assert tn.push(lambda x, o: None, a, tn.overwrite(b)).result() is None
    assert tn.push(lambda x, o: [1, 2, 3], a, tn.overwrite(b)).result() == [1, 2, 3]
    assert tn.push(lambda x, o: x * 2, tn.ones(0), tn.overwrite(tn.zeros(0))).result().shape == (0,)
    assert tn.push(lambda x: x * 2, a, overwrites=[b]).result().tolist() == [2, 2, 2]
    assert tn.push(np.multiply, a, 2, tn.overwrite(b)).result() is b
    assert tn.push(np.multiply, a, 2, out=tn.overwrite(b)).result() is b
    file = io.BytesIO(bytes(12))
    assert tn.push(lambda o: file.readinto(o), tn.overwrite(b)).result() == 12


def test_an_array_in_the_memory_of_an_output_may_be_returned():
    x = np.zeros(3, "f4")
    b = tn.from_numpy(x)

    def body(o):
        o[...] = 1
        return x

    assert tn.push(body, tn.overwrite(b), on_conflict="ignore").result() is x
    error = tn.push(lambda o: o[:], tn.overwrite(tn.zeros(3))).exception()  # a view that outlives the body
    assert isinstance(error.__cause__, tn.LeaseEscaped)


@pytest.mark.parametrize("part", [np.s_[::2], np.s_[::-1], np.s_[::-2]])
def test_the_memory_of_an_output_is_that_of_all_its_elements(part):
    x = np.zeros(12, "f4")
    b = tn.from_numpy(x[part])

    def body(o):
        o[...] = 1
        return x[part][::-1]

    op = tn.push(body, tn.overwrite(b), on_conflict="ignore")
    assert op.exception() is None and op.result()[0] == 1


def test_a_view_of_another_argument_is_no_new_array():
    a, b, c = tn.ones(3), tn.zeros(3), tn.zeros(3)
    for body in (lambda x, w, o: x[:], lambda x, w, o: w[:]):
        error = tn.push(body, a, tn.write(c), tn.overwrite(b)).exception()
        assert isinstance(error.__cause__, tn.LeaseEscaped), error


class Shapeless:
    """An array of another library, whose shape cannot be had."""

    def __array__(self, *_, **__):
        raise RuntimeError("not now")

    @property
    def shape(self):
        raise RuntimeError("not now")


class NoShape:
    shape = None

    def __array__(self, *_, **__):
        raise RuntimeError("not now")


def arrow():
    import pyarrow

    return pyarrow.array([1.0, 2.0, 3.0])


needs_arrow = pytest.mark.skipif(importlib.util.find_spec("pyarrow") is None, reason="needs pyarrow")


@pytest.mark.parametrize("made", [Shapeless, NoShape, pytest.param(arrow, marks=needs_arrow)])
def test_a_body_may_return_arrays_whose_shape_is_not_known(made):
    def body(x, o):
        o[...] = x
        return made()

    def never(x, o):
        return made()

    b = tn.zeros(3)
    assert tn.push(body, tn.ones(3), tn.overwrite(b)).exception() is None
    assert b.tolist() == [1, 1, 1]
    assert tn.push(never, tn.ones(3), tn.overwrite(b)).exception() is None
