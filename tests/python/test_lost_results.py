# SPDX-License-Identifier: Apache-2.0
"""Op bodies that return what they were to write. Oracle: an op fails if, and only if, its function never uses
a parameter that it is to overwrite, and returns a new array of that shape."""

import functools
import itertools

import numpy as np
import pytest

import tenon as tn

pytestmark = pytest.mark.usefixtures("no_op_is_left")


def rebinds(x, o):
    o = x * 2
    return o  # noqa: RET504


def rebinds_in_a_loop(x, o):
    while True:
        o = x * 2
        return o  # noqa: RET504


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
    pytest.param(rebinds, id="rebinds"),
    pytest.param(rebinds_in_a_loop, id="rebinds in a loop"),
    pytest.param(Doubles().method, id="method"),
]


@pytest.mark.parametrize("function", LOST)
def test_a_function_that_returns_what_it_was_to_write_fails(function):
    a, b = tn.ones(3), tn.zeros(3)
    op = tn.push(function, a, tn.out(b))
    error = op.exception()
    assert isinstance(error.__cause__, TypeError)
    assert "returned an array of shape (3,) and did not write to its parameter 'o'" in str(error)
    assert "o[...] = ..." in str(error)
    with pytest.raises(tn.OpError):
        b.tolist()
    b[...] = 1
    assert b.tolist() == [1, 1, 1] and a.tolist() == [1, 1, 1]


def test_an_output_by_keyword_and_a_single_number_are_looked_at_too():
    a, b, total = tn.ones(3), tn.zeros(3), tn.zeros(())
    assert "parameter 'o'" in str(tn.push(takes_keywords, a, o=tn.out(b)).exception())
    assert "of shape ()" in str(tn.push(lambda x, o: x.sum(), a, tn.out(total)).exception())


def writes(x, o):
    o[...] = x
    return x * 2


def writes_at_times(x, o):
    if x[0] > 5:
        o = x
    o[...] = 1
    return x * 2


def writes_after_an_error(x, o):
    try:
        o = x.nothing
    except AttributeError:
        o[...] = 1
    return x * 2


def writes_in_a_function(x, o):
    def inner():
        o[...] = x

    inner()
    return x * 2


def writes_in_a_comprehension(x, o):
    [o.__setitem__(i, x[i]) for i in range(3)]
    return x * 2


def writes_by_name(x, o):
    locals()["o"][...] = x
    return x * 2


def writes_then_rebinds(x, o):
    o[...] = x
    o = x * 2
    return o  # noqa: RET504


def takes_any(*arrays):
    arrays[1][...] = arrays[0]
    return arrays[0] * 2


def takes_any_names(x, **named):
    named["o"][...] = x
    return x * 2


class Writes:
    def __call__(self, x, o):
        o[...] = x
        return x * 2

    def method(self, x, o):
        o[...] = x
        return x * 2

    @staticmethod
    def static(x, o):
        o[...] = x
        return x * 2


def decorated(function):
    @functools.wraps(function)
    def call(*arguments, **named):
        return function(*arguments, **named)

    return call


KEPT = [
    writes,
    writes_at_times,
    writes_after_an_error,
    writes_in_a_function,
    writes_in_a_comprehension,
    writes_by_name,
    writes_then_rebinds,
    takes_any,
    Writes(),
    Writes().method,
    Writes.static,
    decorated(writes),
    functools.partial(writes),
    lambda x, o: np.copyto(o, x) or x * 2,
    lambda x, o: o.fill(1) or x * 2,
]


@pytest.mark.parametrize("function", KEPT, ids=itertools.count())
def test_a_function_may_return_an_array_besides_writing(function):
    a, b = tn.ones(3), tn.zeros(3)
    assert tn.push(function, a, tn.out(b)).result().tolist() == [2, 2, 2]
    assert b.tolist() == [1, 1, 1]


def test_what_is_no_mistake_for_certain_is_none():
    a, b, small = tn.ones(3), tn.zeros(3), tn.zeros(1)
    assert tn.push(takes_any_names, a, o=tn.out(b)).result().tolist() == [2, 2, 2]
    assert tn.push(lambda x, _: x * 2, a, tn.out(b)).result().tolist() == [2, 2, 2]  # not to be used
    assert tn.push(lambda x, o: x * 2, a, tn.inout(b)).result().tolist() == [2, 2, 2]  # for the order alone
    assert tn.push(lambda x, o: x * 2, a, tn.out(small)).result().tolist() == [2, 2, 2]
    assert tn.push(lambda x, o: None, a, tn.out(b)).result() is None
    assert tn.push(lambda x, o: [1, 2, 3], a, tn.out(b)).result() == [1, 2, 3]
    assert tn.push(lambda x, o: x * 2, tn.ones(0), tn.out(tn.zeros(0))).result().shape == (0,)
    assert tn.push(lambda x: x * 2, a, overwrites=[b]).result().tolist() == [2, 2, 2]
    assert tn.push(np.multiply, a, 2, tn.out(b)).result() is b
    assert tn.push(np.multiply, a, 2, out=tn.out(b)).result() is b


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


@pytest.mark.parametrize(
    "made", [Shapeless, NoShape, lambda: pytest.importorskip("pyarrow").array([1.0, 2.0, 3.0])]
)
def test_a_body_may_return_arrays_whose_shape_is_not_known(made):
    def body(x, o):
        o[...] = x
        return made()

    def never(x, o):
        return made()

    b = tn.zeros(3)
    assert tn.push(body, tn.ones(3), tn.out(b)).exception() is None
    assert b.tolist() == [1, 1, 1]
    assert tn.push(never, tn.ones(3), tn.out(b)).exception() is None
