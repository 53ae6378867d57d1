# SPDX-License-Identifier: Apache-2.0
"""JAX on the CPU and Tenon over one memory. JAX arrays never change: nobody may write to them."""

import gc

import live
import numpy as np
import pytest

import tenon as tn

jax = pytest.importorskip("jax")
jnp = jax.numpy

DTYPES = [
    "bool",
    "int8",
    "int16",
    "int32",
    "uint8",
    "uint16",
    "uint32",
    "float16",
    "float32",
    "complex64",
    "bfloat16",
    "float8_e4m3fn",
    "float8_e5m2",
    "float8_e4m3b11fnuz",
    "float8_e4m3fnuz",
    "float8_e5m2fnuz",
]


def address(j):
    return j.unsafe_buffer_pointer()


@pytest.mark.parametrize("dtype", DTYPES)
def test_out_with_every_dtype(dtype):
    a = tn.zeros((3, 4), dtype=dtype)
    j = a.jax()
    assert j.shape == (3, 4)
    assert str(j.dtype) == dtype
    assert address(j) == a.data_ptr


@pytest.mark.slow
@pytest.mark.parametrize("dtype", DTYPES)
def test_in_with_every_dtype(dtype):
    j = jnp.ones((3, 4), dtype)
    a = tn.from_dlpack(j)
    assert a.shape == (3, 4)
    assert str(a.dtype) == dtype
    assert a.data_ptr == address(j)


def test_wide_types():
    with jax.enable_x64(True):
        for dtype in ("int64", "uint64", "float64", "complex128"):
            a = tn.zeros(3, dtype=dtype)
            j = a.jax()
            assert str(j.dtype) == dtype
            assert address(j) == a.data_ptr
            assert str(tn.from_dlpack(jnp.ones(3, dtype)).dtype) == dtype


def test_what_comes_from_jax_is_read_only():
    j = jnp.arange(4.0)
    a = tn.from_dlpack(j)
    assert not a.writable
    assert not np.asarray(a).flags.writeable
    with pytest.raises((ValueError, BufferError)):
        a[0] = 1
    assert memoryview(a).readonly
    assert j.tolist() == [0, 1, 2, 3]
    writable = tn.from_dlpack(j, copy=True)
    assert writable.writable
    writable[0] = 9
    assert j.tolist() == [0, 1, 2, 3]


def test_read_only_arrays_go_out_without_a_copy():
    a = tn.full(16, 2.0)
    j = a.readonly().jax()
    assert address(j) == a.data_ptr
    assert j.tolist() == [2.0] * 16


def test_an_array_of_jax_outlives_its_source_and_the_reverse():
    before = live.counts()
    a = tn.full(16, 2.0)
    j = a.jax()
    del a
    gc.collect()
    assert j.tolist() == [2.0] * 16
    k = j[4:]  # a new array: JAX copies
    del j
    gc.collect()
    jax.block_until_ready(k)
    jnp.zeros(1).block_until_ready()
    gc.collect()
    assert live.counts() == before
    source = jnp.full(16, 3.0)
    a = tn.from_dlpack(source)
    del source
    gc.collect()
    assert a.tolist() == [3.0] * 16


def test_heap_arrays_are_aligned_so_that_jax_shares_them():
    for n in (1, 3, 1000, 1 << 20):
        a = tn.zeros(n)
        assert a.data_ptr % 64 == 0
        assert address(a.jax()) == a.data_ptr


def test_writing_is_seen_by_a_shared_jax_array():
    """The consumer is told that a.jax() shares memory: whoever writes meanwhile sees it there."""
    a = tn.zeros(16)
    j = a.jax()
    np.asarray(a)[...] = 7
    assert address(j) == a.data_ptr
    assert np.from_dlpack(j).tolist() == [7.0] * 16


@pytest.mark.parametrize("shape", [(), (0,), (3, 0), (1, 1), (2, 3, 4)])
def test_shapes_both_ways(shape):
    a = tn.full(shape, 2.0)
    j = a.jax()
    assert j.shape == shape
    assert np.asarray(j).tolist() == a.tolist()
    b = tn.from_dlpack(jnp.full(shape, 3.0))
    assert b.shape == shape
    assert b.tolist() == np.full(shape, 3.0).tolist()


@pytest.mark.parametrize(
    "view",
    [lambda a: a.T, lambda a: a[1:], lambda a: a[:, ::2], lambda a: a[::-1]],
    ids=["T", "1:", "::2", "::-1"],
)
def test_views_go_out_with_the_right_elements(view):
    """JAX takes compact layouts of aligned memory; others are copied or refused, never misread."""
    a = view(tn.array(np.arange(64.0, dtype="f4").reshape(4, 16)))
    try:
        j = a.jax()
    except (ValueError, BufferError, RuntimeError, jax.errors.JaxRuntimeError):
        return
    assert np.asarray(j).tolist() == a.tolist()


def test_from_dlpack_of_jax_takes_arrays():
    a = tn.full(16, 2.0)
    j = jnp.from_dlpack(a)
    assert address(j) == a.data_ptr
    assert jax.dlpack.from_dlpack(a, copy=True).tolist() == [2.0] * 16


def test_jitted_functions_take_them():
    a = tn.full(16, 2.0)
    assert jax.jit(lambda x: x * 2)(a.jax()).tolist() == [4.0] * 16
    assert jnp.asarray(np.asarray(a)).tolist() == [2.0] * 16


def test_a_donated_array_does_not_free_the_memory():
    a = tn.full(16, 2.0)
    j = a.jax()
    jax.jit(lambda x: x + 1, donate_argnums=0)(j).block_until_ready()
    assert a.shape == (16,)
    assert len(a.tolist()) == 16
    j.delete() if not j.is_deleted() else None
    assert len(a.tolist()) == 16
