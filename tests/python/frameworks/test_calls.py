# SPDX-License-Identifier: Apache-2.0
"""Other libraries take NDArrays as their users type it (calls.py has the calls)."""

import operator
import subprocess
import sys

import calls
import live
import numpy as np
import pytest

import tenon as tn

LIBRARIES = [
    pytest.param(name, marks=() if library.is_light else pytest.mark.slow)
    for name, library in calls.LIBRARIES.items()
]


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.filterwarnings("ignore")
def test_the_table_of_the_documentation_is_what_happens(library):
    pytest.importorskip(calls.LIBRARIES[library].module)
    assert calls.table_in(calls.PAGE.read_text()).get(library) == calls.rows(library), (
        "run tests/python/frameworks/calls.py --update"
    )


def test_the_table_has_every_library():
    assert list(calls.table_in(calls.PAGE.read_text())) == list(calls.LIBRARIES)


# ------------------------------------------------------------------------------------------- NumPy and Pillow


@pytest.mark.parametrize("dtype", ["bool", "int8", "uint64", "float16", "float32", "complex128", "bfloat16"])
def test_a_dtype_has_the_attributes_of_numpys(dtype):
    ours = tn.dtype(dtype)
    for name in (
        "alignment base byteorder char descr fields hasobject isnative kind names ndim num shape str".split()
    ):
        assert getattr(ours, name) == getattr(ours.numpy, name), name
    assert ours.type is ours.numpy.type
    assert ours.subdtype is None


def test_a_dtype_that_numpy_does_not_have_has_no_such_attributes():
    dtype = tn.dtype("float4_e2m1fn_x2")
    assert not hasattr(dtype, "kind")
    with pytest.raises(AttributeError, match="NumPy has no dtype float4_e2m1fn_x2"):
        dtype.kind  # noqa: B018


def test_pillows_error_names_the_line_to_write():
    image = pytest.importorskip("PIL.Image")
    with pytest.raises(AttributeError, match=r"PIL\.Image\.fromarray\(np\.asarray\(a\)\)"):
        image.fromarray(tn.zeros((4, 4), "uint8"))
    assert not hasattr(tn.zeros(4), "__array_interface__")
    assert "__array_interface__" not in dir(tn.zeros(4))


# ---------------------------------------------------------------------------------------------------- PyTorch

OPERATORS = [
    operator.add,
    operator.sub,
    operator.mul,
    operator.truediv,
    operator.floordiv,
    operator.mod,
    operator.pow,
    operator.matmul,
    operator.eq,
    operator.ne,
    operator.lt,
    operator.le,
    operator.gt,
    operator.ge,
]


@pytest.mark.parametrize("operate", OPERATORS)
@pytest.mark.parametrize("kind", ["plain", "readonly", "reversed", "shared"])
@pytest.mark.parametrize("dtype", ["float32", "int64"])
def test_an_operator_with_a_tensor_gives_a_tensor(operate, kind, dtype):
    torch = pytest.importorskip("torch")
    t = torch.tensor([2, 5], dtype=getattr(torch, dtype))
    before = live.now()
    left = tn.empty(2, dtype, shared=kind == "shared")
    left[...] = [3, 5]
    left = {"readonly": left.readonly(), "reversed": left[::-1]}.get(kind, left)
    same = left.copy().torch()
    for result, expected in ((operate(left, t), operate(same, t)), (operate(t, left), operate(t, same))):
        assert isinstance(result, torch.Tensor)
        assert result.dtype == expected.dtype
        assert torch.equal(result, expected)
    del left, same, result, expected
    assert live.now() == before


@pytest.mark.parametrize("operate", [operator.mul, lambda a, t: t * a])
def test_an_operator_with_a_tensor_keeps_the_gradient(operate):
    torch = pytest.importorskip("torch")
    t = torch.ones(2, requires_grad=True)
    operate(tn.array([3.0, 5.0], "f4"), t).sum().backward()
    assert t.grad.tolist() == [3, 5]


def test_an_operator_in_place_takes_a_tensor():
    torch = pytest.importorskip("torch")
    a = same = tn.ones(3)
    a += torch.tensor([1.0, 2.0, 3.0])
    a **= torch.tensor([1.0, 2.0, 3.0])
    assert a is same
    assert a.tolist() == [2, 9, 64]
    with pytest.raises(BufferError, match="detach"):
        a += torch.ones(3, requires_grad=True)


def test_default_collate_stacks_arrays():
    data = pytest.importorskip("torch.utils.data")
    shared = tn.full(2, 3, shared=True)
    for array in (tn.full(2, 3), tn.full(2, 3).readonly(), shared):
        batch = data.default_collate([{"x": array, "y": 1}, {"x": array, "y": 2}])
        assert batch["x"].tolist() == [[3, 3], [3, 3]]
        batch["x"][...] = 0
        assert array.tolist() == [3, 3]


@pytest.mark.slow
@pytest.mark.parametrize("imports", ["tenon, torch, jax", "torch, jax, tenon", "jax, tenon, torch"])
def test_libraries_know_the_array_in_any_order_of_imports(imports):
    for module in ("torch", "jax"):
        pytest.importorskip(module)
    code = (
        f"import {imports}\nimport torch.utils.data as data\n"
        "a = tenon.ones(3)\n"
        "print(data.default_collate([a, a]).sum().item(), jax.jit(lambda x: x + 1)(a).tolist())"
    )
    command = [sys.executable, "-W", "error::RuntimeWarning", "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert done.stdout == "6.0 [2.0, 2.0, 2.0]\n", done.stderr


# -------------------------------------------------------------------------------------------------------- JAX


def test_functions_of_jax_take_arrays():
    jax = pytest.importorskip("jax")
    a = tn.arange(4, dtype="f4")
    assert jax.numpy.sin(a).tolist() == jax.numpy.sin(a.jax()).tolist()
    assert jax.jit(lambda tree: tree["x"] * 2)({"x": a}).tolist() == [0, 2, 4, 6]
    assert jax.grad(lambda x: (x * x).sum())(a).tolist() == [0, 2, 4, 6]
    assert jax.device_put(a[::2]).tolist() == [0, 2]


def test_jax_cuts_wide_elements_as_those_of_numpy():
    jnp = pytest.importorskip("jax").numpy
    wide = np.arange(3.0)
    assert jnp.asarray(tn.array(wide)).dtype == jnp.asarray(wide).dtype
    assert jnp.asarray(tn.array(wide)).tolist() == [0, 1, 2]
    with pytest.raises(ValueError, match="jax_enable_x64"):
        tn.array(wide).jax()


# ------------------------------------------------------------------------------------------------------ Arrow


@pytest.mark.parametrize("shape", [(5,), (0,), (2, 3), (4, 0), (2, 3, 4)])
def test_arrow_arrays_lie_on_the_memory(shape):
    pa = pytest.importorskip("pyarrow")
    before = live.now()
    a = tn.array(np.arange(np.prod(shape), dtype="i4").reshape(shape))
    array = pa.array(a)
    array.validate(full=True)
    assert array.to_pylist() == a.tolist()
    flat = array
    for _ in shape[1:]:
        flat = flat.flatten()
    if a.size:
        assert flat.buffers()[1].address == a.data_ptr
    expected = a.reshape(-1).tolist()
    del a, array
    assert flat.to_pylist() == expected  # the part keeps the memory
    del flat
    assert live.now() == before


def test_an_arrow_array_is_a_view_that_reads():
    pa = pytest.importorskip("pyarrow")
    a = tn.ones(3)
    array = pa.array(a)
    assert [(holder.kind, holder.mode) for holder in a.leases()] == [("view", "r")]
    with pytest.raises(tn.LeaseConflict):
        tn.push(tn.fill, tn.overwrite(a), 2)
    del array
    tn.push(tn.fill, tn.overwrite(a), 2).wait()
    assert pa.array(a.readonly()).to_pylist() == [2, 2, 2]


def test_arrow_gets_a_copy_of_an_array_with_gaps():
    pa = pytest.importorskip("pyarrow")
    a = tn.arange(6, dtype="i4")
    assert pa.array(a[::-2]).to_pylist() == [5, 3, 1]
    assert pa.array(a.reshape(2, 3).T).to_pylist() == [[0, 3], [1, 4], [2, 5]]


@pytest.mark.parametrize("dtype", ["int8", "uint16", "int64", "float16", "float32", "float64"])
def test_arrow_gets_the_type_of_the_elements(dtype):
    pa = pytest.importorskip("pyarrow")
    assert pa.array(tn.ones(2, dtype)).type == pa.from_numpy_dtype(np.dtype(dtype))


@pytest.mark.parametrize(
    ("shape", "dtype", "use"),
    [
        (3, "bool", "np.asarray"),
        (3, "bfloat16", "astype"),
        (3, "complex64", "astype"),
        ((), "float32", "reshape"),
    ],
)
def test_what_arrow_cannot_share_is_an_error_with_the_line_to_write(shape, dtype, use):
    pa = pytest.importorskip("pyarrow")
    with pytest.raises(BufferError, match=use):
        pa.array(tn.ones(shape, dtype))


def test_a_shared_array_goes_to_arrow_under_a_lease():
    pa = pytest.importorskip("pyarrow")
    a = tn.ones(3, shared=True)
    with pytest.raises(tn.LeaseConflict, match="lease"):
        pa.array(a)
    with a.lease("r"):
        array = pa.array(a)
        assert array.to_pylist() == [1, 1, 1]
        del array


def test_capsules_that_no_consumer_takes_release_the_memory():
    before = live.now()
    a = tn.ones((2, 3))
    capsules = a.__arrow_c_array__()
    assert live.now().views == before.views + 1
    del capsules
    assert live.now().views == before.views


# ------------------------------------------------------------------------------------------------------ Numba


@pytest.mark.slow
def test_compiled_functions_use_arrays_in_place():
    numba = pytest.importorskip("numba")
    before = live.now()

    @numba.njit
    def double(x):
        for i in range(x.shape[0]):
            x[i] *= 2
        return x.sum()

    a = tn.arange(4, dtype="f4")
    assert double(a) == 12
    assert a.tolist() == [0, 2, 4, 6]
    assert double(a[::2]) == 8
    assert a.tolist() == [0, 2, 8, 6]
    same = numba.njit(lambda x: x)(a)
    assert same.ctypes.data == a.data_ptr
    shared = tn.ones(2, shared=True)
    with pytest.raises(tn.LeaseConflict, match="lease"):
        double(shared)
    with shared.lease("w"):
        assert double(shared) == 4
    del a, same, shared
    assert live.now() == before
    with pytest.raises(numba.TypingError):
        double(tn.ones(2).readonly())
