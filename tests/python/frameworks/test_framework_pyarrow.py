# SPDX-License-Identifier: Apache-2.0
"""pyarrow: arrays and tensors in and out. Arrow's arrays never change."""

import live
import numpy as np
import pytest

import tenon as tn

pa = pytest.importorskip("pyarrow")

INTEGERS = [f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)]
DTYPES = [*INTEGERS, "float16", "float32", "float64"]


@pytest.mark.parametrize("dtype", DTYPES)
def test_arrow_arrays_come_in_read_only(dtype):
    source = pa.array(np.arange(6).astype(dtype))
    a = tn.from_dlpack(source)
    assert a.data_ptr == source.buffers()[1].address
    assert a.dtype == np.dtype(dtype)
    assert not a.writable
    assert a.tolist() == [0, 1, 2, 3, 4, 5]


@pytest.mark.parametrize("dtype", DTYPES)
def test_arrays_go_out_as_arrow_arrays(dtype):
    a = tn.array(np.arange(6).astype(dtype))
    source = pa.Array.from_dlpack(a)
    assert source.to_pylist() == [0, 1, 2, 3, 4, 5]
    assert source.buffers()[1].address == a.data_ptr
    a[0] = 7
    assert source[0].as_py() == 7


def test_tensors_both_ways():
    x = np.arange(24.0).reshape(2, 3, 4)
    a = tn.array(x)
    tensor = pa.Tensor.from_dlpack(a)
    assert tensor.shape == (2, 3, 4)
    assert tensor.to_numpy().tolist() == x.tolist()
    assert tensor.to_numpy().ctypes.data == a.data_ptr
    tensor = pa.Tensor.from_numpy(x)
    b = tn.from_dlpack(tensor)
    assert b.shape == (2, 3, 4)
    assert b.tolist() == x.tolist()
    assert b.data_ptr == x.ctypes.data


def test_strided_tensors_both_ways():
    x = np.arange(24.0).reshape(4, 6)
    for view in (x.T, x[:, ::2], x[1:3]):
        b = tn.from_dlpack(pa.Tensor.from_numpy(view))
        assert b.tolist() == view.tolist()
        a = tn.from_numpy(view)
        try:
            tensor = pa.Tensor.from_dlpack(a)
        except (pa.ArrowException, ValueError, BufferError, TypeError):
            continue
        assert tensor.to_numpy().tolist() == view.tolist()


def test_buffers_both_ways():
    a = tn.array(np.arange(6.0))
    buffer = pa.py_buffer(a)
    assert buffer.address == a.data_ptr
    assert buffer.size == 48
    assert buffer.is_mutable
    assert not pa.py_buffer(a.readonly()).is_mutable
    b = tn.from_buffer(pa.py_buffer(b"01234567"), "u1")
    assert not b.writable
    mutable = tn.from_buffer(pa.allocate_buffer(64), "f4")
    assert mutable.shape == (16,)


def test_lifetimes():
    before = live.now()
    a = tn.array(np.arange(6.0))
    source = pa.Array.from_dlpack(a)
    del a
    part = source[2:]
    del source
    assert part.to_pylist() == [2, 3, 4, 5]
    del part
    assert live.now() == before
    allocated = pa.total_allocated_bytes()
    a = tn.from_dlpack(pa.array(range(1000)))
    assert pa.total_allocated_bytes() > allocated
    assert a[999].item() == 999
    del a
    assert pa.total_allocated_bytes() == allocated


def test_empty_arrays_both_ways():
    assert tn.from_dlpack(pa.array([], pa.int32())).shape == (0,)
    assert pa.Array.from_dlpack(tn.zeros(0)).to_pylist() == []


def test_what_arrow_cannot_export_is_refused():
    for source in (pa.array([1, None]), pa.array([True]), pa.array(["a"]), pa.array([[1]])):
        with pytest.raises((TypeError, ValueError, BufferError, pa.ArrowException)):
            tn.from_dlpack(source)
