# SPDX-License-Identifier: Apache-2.0
"""tn.dtype: one object for each type, equal to NumPy's where NumPy has it, made from what others call it."""

import copy
import pickle
import subprocess
import sys
import textwrap

import numpy as np
import pytest

import tenon as tn

INTEGERS = [f"{kind}{bits}" for kind in ("int", "uint") for bits in (8, 16, 32, 64)]
IN_NUMPY = ["bool", *INTEGERS, "float16", "float32", "float64", "complex64", "complex128"]
FLOAT8 = ["e3m4", "e4m3", "e4m3b11fnuz", "e4m3fn", "e4m3fnuz", "e5m2", "e5m2fnuz", "e8m0fnu"]
IN_ML_DTYPES = ["bfloat16", *(f"float8_{name}" for name in FLOAT8)]
PACKED = ["float6_e2m3fn", "float6_e3m2fn", "float4_e2m1fn"]


@pytest.mark.parametrize("name", [*IN_NUMPY, *IN_ML_DTYPES, *PACKED])
def test_there_is_one_object_for_each_type(name):
    constant = getattr(tn, name)
    assert tn.dtype(name) is tn.dtype(constant) is constant
    assert tn.zeros(2, name).dtype is constant
    assert constant.name == str(constant) == name
    assert repr(constant) == f"tenon.{name}"
    assert constant == name
    assert copy.deepcopy(constant) is pickle.loads(pickle.dumps(constant)) is constant


@pytest.mark.parametrize("name", IN_NUMPY)
def test_it_equals_and_hashes_like_numpys(name):
    own, other = tn.dtype(name), np.dtype(name)
    assert own == other
    assert other == own
    assert own == other.type
    assert hash(own) == hash(other)
    assert {own: 1}[other] == {other: 1}[own] == 1
    assert own.numpy is other
    assert np.dtype(own) is other
    assert own.itemsize == other.itemsize
    assert tn.dtype(other) is tn.dtype(other.type) is tn.dtype(other.str) is tn.dtype(other.char) is own
    assert np.zeros(2, own).dtype == other


@pytest.mark.parametrize("name", IN_ML_DTYPES)
def test_small_floats_equal_those_of_ml_dtypes(name):
    ml_dtypes = pytest.importorskip("ml_dtypes")
    if not hasattr(ml_dtypes, name):
        pytest.skip("not in this version")
    own, other = tn.dtype(name), np.dtype(getattr(ml_dtypes, name))
    assert own == other
    assert other == own
    assert hash(own) == hash(other)
    assert tn.dtype(other) is tn.dtype(getattr(ml_dtypes, name)) is own
    assert own.numpy == other


@pytest.mark.parametrize("name", [*IN_NUMPY, "bfloat16", "float8_e5m2", "float8_e4m3fn"])
def test_it_is_made_from_torchs(name):
    torch = pytest.importorskip("torch")
    assert tn.dtype(getattr(torch, name)) is getattr(tn, name)
    assert getattr(tn, name) == getattr(torch, name)


def test_types_of_python_have_numpys_meaning():
    assert tn.dtype(bool) is tn.bool
    assert tn.dtype(int) is tn.int64
    assert tn.dtype(float) is tn.float64
    assert tn.dtype(complex) is tn.complex128


def test_lanes_and_bits_are_told():
    d = tn.dtype("float4_e2m1fn_x2")
    assert (d.code, d.bits, d.lanes, d.itemsize) == (17, 4, 2, 1)
    assert d != tn.float4_e2m1fn
    assert d is tn.dtype("float4_e2m1fn_x2")
    with pytest.raises(TypeError, match="float4_e2m1fn_x2"):
        d.numpy  # noqa: B018


def test_other_types_are_not_equal():
    assert tn.float32 != tn.float64
    assert tn.float32 != np.dtype("f8")
    assert tn.float32 != np.dtype(">f4")
    assert tn.float32 != "float31"
    assert tn.float32 != 4
    assert tn.float32 != None  # noqa: E711
    assert tn.float32 != np.dtype("O")


@pytest.mark.parametrize(
    "source",
    ["float31", "", "O", "S3", "U1", ">f4", "M8[s]", "i4,f4", object, str, None, 4, np.dtype("V3")],
    ids=repr,
)
def test_unknown_types_are_refused(source):
    with pytest.raises(TypeError):
        tn.dtype(source)


def test_objects_without_a_type_are_no_values():
    with pytest.raises(TypeError):
        tn.dtype()
    with pytest.raises(TypeError):
        type("Derived", (tn.dtype,), {})


WITHOUT_TORCH = {
    "not installed": "sys.modules['torch'] = None",
    "a stub": "sys.modules['torch'] = types.ModuleType('torch')",  # in its place
    "broken": "sys.meta_path.insert(0, Broken())",
}


@pytest.mark.parametrize("how", WITHOUT_TORCH)
def test_without_torch_all_but_the_loader_works_and_it_says_what_it_needs(how):
    program = f"""
    import importlib.machinery, inspect, pickle, sys, types
    class Broken:
        def find_spec(self, name, path=None, target=None):
            return importlib.machinery.ModuleSpec(name, self) if name == "torch" else None
        def create_module(self, spec): raise ImportError("a library is missing")
        def exec_module(self, module): pass
    {WITHOUT_TORCH[how]}
    import tenon as tn
    assert "DataLoader" in dir(tn)
    from tenon import *
    assert DataLoader is tn.DataLoader and zeros is tn.zeros
    inspect.getmembers(tn)
    assert pickle.loads(pickle.dumps(DataLoader)) is DataLoader
    class Loader(tn.DataLoader[int]):
        def __init__(self, dataset): pass
    for make in (lambda: tn.DataLoader([1], batch_size=1, num_workers=2), lambda: Loader([1])):
        try:
            make()
        except ImportError as error:
            print(error)
    """
    command = [sys.executable, "-c", textwrap.dedent(program)]
    done = subprocess.run(command, check=True, timeout=600, capture_output=True, text=True)
    assert done.stdout.count("pip install torch, or use tenon.Feed") == 2, done.stdout
    assert done.stdout.count("a library is missing") == (2 if how == "broken" else 0)


def test_import_brings_neither_numpy_nor_a_framework():
    code = (
        "import sys, tenon; tenon.zeros(3); print([m for m in ('numpy', 'torch', 'jax') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
