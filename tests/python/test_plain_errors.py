# SPDX-License-Identifier: Apache-2.0
"""Ordinary mistakes whose error names the way out: attributes of NumPy's arrays, a block without `with`,
arguments of save and load, functions of ctypes."""

import ctypes
import pickle
import re
import traceback

import numpy as np
import pytest

import tenon as tn

# ----------------------------------------------------------------------------------- names of the exceptions

ERRORS = [kind for kind in vars(tn).values() if isinstance(kind, type) and issubclass(kind, tn.TenonError)]


@pytest.mark.parametrize("kind", ERRORS)
def test_exceptions_show_and_pickle_their_public_names(kind):
    error = kind("reason")
    assert traceback.format_exception_only(error) == [f"tenon.{kind.__name__}: reason\n"]
    assert b"_errors" not in pickle.dumps(error)
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is kind
    assert str(again) == "reason"


def test_all_exceptions_are_tested():
    assert len(ERRORS) == 8


# ---------------------------------------------------------------------------- attributes of NumPy's arrays

MISSING = sorted(
    name
    for name in vars(tn.NDArray)
    if not name.startswith("__") and name != "context" and not hasattr(tn.ones((2, 2)), name)
)


def way_out(name):
    with pytest.raises(AttributeError) as caught:
        getattr(tn.ones((2, 2)), name)
    assert caught.value.name == name
    assert str(caught.value).startswith(f"'tenon.NDArray' object has no attribute '{name}': use ")
    return str(caught.value).partition(": use ")[2]


def test_attributes_of_numpy_that_are_missing_are_known():
    assert {"std", "var", "argmax", "flatten", "cumsum", "any", "sort", "flat"} <= set(MISSING)
    assert not {"sum", "shape", "numpy", "read"} & set(MISSING)


def test_the_context_of_mxnet_names_its_module():
    with pytest.raises(AttributeError, match="which this program has not imported"):
        _ = tn.ones(3).context
    with pytest.raises(TypeError, match="takes a context of MXNet, not 'cpu'"):
        tn.ones(3).as_in_context("cpu")


@pytest.mark.parametrize("name", MISSING)
def test_a_missing_attribute_names_an_expression_that_exists(name):
    use = way_out(name)
    a = tn.ones((2, 2))
    for module, known in (("a", a), ("np", np), ("tn", tn)):
        for attribute in re.findall(rf"\b{module}\.(\w+)", use):
            assert hasattr(known, attribute), use
    if not use.startswith("np."):
        return
    expression = use.partition("(...)")[0].partition("(a, ...)")[0]
    if "..." in use:
        assert callable(eval(expression, {"np": np, "a": a})), use
    elif name != "mT" or hasattr(np.ndarray, name):  # which NumPy has since 2.0
        eval(expression, {"np": np, "a": a, "shape": (3, 2, 2)})


def test_a_missing_attribute_is_missing_to_hasattr_getattr_and_completion():
    a = tn.ones(2)
    for name in MISSING:
        assert not hasattr(a, name)
        assert getattr(a, name, 7) == 7
        assert name not in dir(a)
        with pytest.raises(AttributeError, match=f"no attribute '{name}'"):
            setattr(a, name, 1)
    assert {"sum", "shape", "numpy", "__dlpack__"} <= set(dir(a))


def test_an_attribute_that_nobody_has_is_missing_as_ever():
    with pytest.raises(AttributeError, match=r"no attribute 'standard'$"):
        _ = tn.ones(2).standard


# ---------------------------------------------------------------------------- a block without `with`


def assign(block):
    block[0] = 1


def delete(block):
    del block[0]


@pytest.mark.parametrize(
    ("use", "error"),
    [
        (assign, TypeError),
        (delete, TypeError),
        (lambda block: block[0], TypeError),
        (lambda block: block.sum(), AttributeError),
        (lambda block: block.shape, AttributeError),
        (np.asarray, TypeError),
        (np.sum, TypeError),
    ],
    ids=["assignment", "deletion", "item", "method", "attribute", "asarray", "sum"],
)
@pytest.mark.parametrize("mode", ["read", "write"])
def test_a_block_that_is_used_as_the_array_is_an_error_that_shows_with(use, error, mode):
    a = tn.zeros(3)
    with pytest.raises(error, match=rf"`with a\.{mode}\(\) as v:`"):
        use(getattr(a, mode)())
    with getattr(a, mode)() as v:
        assert v.tolist() == [0, 0, 0]


def test_a_block_is_asked_for_protocols_in_vain():
    assert not hasattr(tn.zeros(3).read(), "__dlpack__")
    assert not hasattr(tn.zeros(3).read(), "shape")


# ---------------------------------------------------------------------------- save and load


def test_swapped_arguments_of_save_are_named(tmp_path):
    a = tn.ones(2)
    for data in ({"a": a}, a, [a]):
        with pytest.raises(TypeError, match=r"wrong order: save\(file, data\)"):
            tn.save(data, str(tmp_path / "x"))
        with pytest.raises(TypeError, match=r"wrong order: save\(file, data\)"):
            tn.save(data, tmp_path / "x.params")
    with pytest.raises(TypeError, match=r"data is 'g': it must be an array"):
        tn.save(tmp_path / "x", "g")
    with pytest.raises(TypeError, match=r"file is dict: it must be a path or a binary file$"):
        tn.save({"a": a}, {"b": a})
    for file, kind in (({"a": a}, "dict"), (a, "NDArray")):
        with pytest.raises(TypeError, match=f"file is {kind}: it must be a path or a binary file"):
            tn.load(file)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("file", ["x.npz", "x.params"])
@pytest.mark.parametrize(
    ("value", "text"),
    [
        ({"b": 1}, r"'a' is a dict.*one level of names.*'a\.b'"),
        ({}, "'a' is a dict"),
        (None, "'a' is None: it must be an array"),
        ("text", "'a' is 'text': it must be an array"),
    ],
)
def test_values_that_are_no_arrays_are_named(tmp_path, file, value, text):
    with pytest.raises(TypeError, match=text):
        tn.save(tmp_path / file, {"z": tn.ones(2), "a": value})
    assert list(tmp_path.iterdir()) == []


# ---------------------------------------------------------------------------- functions of ctypes


@pytest.mark.parametrize(
    ("function", "name"),
    [
        (ctypes.CDLL(None).abs, "abs"),
        (ctypes.CFUNCTYPE(None, ctypes.c_void_p)(lambda x: None), "fill"),
    ],
)
def test_a_function_of_ctypes_is_no_generator_and_the_error_shows_its_declaration(function, name):
    with pytest.raises(TypeError, match=rf'a function of ctypes.*tn\.c_function\(library, "int {name}\('):
        tn.Feed(function, {"x": ("f4", (3,))}, batches=2)
