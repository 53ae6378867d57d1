# SPDX-License-Identifier: Apache-2.0
"""Arrays of MXNet where Tenon takes arrays of other libraries. tests/python/test_verbs.py has each place."""

import numpy as np
import pytest
from mxnet_side import address_of, closed_gate, mx

import tenon as tn

pytestmark = pytest.mark.usefixtures("nothing_stays_behind")

DTYPES = ("float16", "float32", "float64", "uint8", "int8", "int32", "int64", "bool")
SHAPE = (2, 3)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("take", [tn.from_dlpack, tn.asarray])
def test_an_array_is_read_where_it_lies(take, dtype):
    m = mx.nd.arange(6).reshape(SHAPE).astype(dtype)
    a = take(m)
    assert (a.data_ptr, a.shape, str(np.dtype(dtype)), a.writable) == (address_of(m), SHAPE, a.dtype, False)
    assert a.tolist() == m.asnumpy().tolist()


@pytest.mark.parametrize("dtype", DTYPES)
def test_an_array_is_written_where_it_lies(dtype):
    m = mx.nd.zeros(SHAPE).astype(dtype)
    a = tn.from_dlpack(m, writable=True)
    assert (a.data_ptr, a.writable) == (address_of(m), True)
    a[0] = 1
    assert tn.array([0, 1, 1]).copyto(m[1:])[0].asnumpy().tolist() == [0, 1, 1]
    assert m.asnumpy().tolist() == [[1, 1, 1], [0, 1, 1]]


def test_each_place_takes_arrays_of_mxnet():
    m, a = mx.nd.arange(6).reshape(SHAPE), tn.zeros(SHAPE)
    a[...] = m
    a += m
    tn.copy(a[:1], m[1:])
    assert m.asnumpy().tolist() == [[0, 1, 2], [0, 2, 4]]
    tn.fill(m, 7)
    assert tn.concatenate([m, a[:1]]).tolist() == [[7] * 3] * 2 + [[0, 2, 4]]
    assert tn.array([m[0], m[1]]).tolist() == tn.array([[m[0]], [m[1]]])[:, 0].tolist() == [[7] * 3] * 2
    assert a[mx.nd.array([1], dtype="int64")].tolist() == [[6, 8, 10]]
    batch = next(tn.io.NDArrayIter(m, mx.nd.arange(2), batch_size=2))
    assert (batch.data[0].data_ptr, batch.label[0].tolist()) == (address_of(m), [0, 1])


def test_arrays_of_the_numpy_interface_and_of_no_elements_are_taken():
    with mx.util.np_shape(True):
        for shape in [(), (0, 3), SHAPE]:
            m = mx.np.ones(shape)
            assert tn.asarray(m).tolist() == m.asnumpy().tolist()
            assert tn.zeros(shape).copyto(m) is m
            assert m.asnumpy().tolist() == np.zeros(shape).tolist()


def test_a_read_waits_for_the_ops_that_write(monkeypatch):
    read = mx.nd.NDArray.to_dlpack_for_read
    with closed_gate() as (zero, open_gate):
        monkeypatch.setattr(mx.nd.NDArray, "to_dlpack_for_read", lambda m: (open_gate(), read(m))[1])
        m, a = mx.nd.broadcast_add(mx.nd.ones(SHAPE), zero), tn.zeros(SHAPE)
        a[...] = m
    assert a.tolist() == [[1] * 3] * 2


def test_a_write_waits_for_the_ops_that_read(monkeypatch):
    write = mx.nd.NDArray.to_dlpack_for_write
    m = mx.nd.ones(SHAPE)
    m.wait_to_read()
    with closed_gate() as (zero, open_gate):
        monkeypatch.setattr(mx.nd.NDArray, "to_dlpack_for_write", lambda m: (open_gate(), write(m))[1])
        before = mx.nd.broadcast_add(m, zero)
        tn.zeros(SHAPE).copyto(m)
        after = m + 0
    assert before.asnumpy().tolist() == [[1] * 3] * 2
    assert after.asnumpy().tolist() == [[0] * 3] * 2


@pytest.mark.parametrize("kind", ["csr", "row_sparse"])
def test_sparse_arrays_are_refused(kind):
    m, a = mx.nd.ones(SHAPE).tostype(kind), tn.zeros(SHAPE)
    for take in (tn.from_dlpack, tn.asarray, a.copyto, a.fill, tn.io.NDArrayIter):
        with pytest.raises(BufferError, match=f"'{kind}'.*tostype"):
            take(m)
    assert tn.asarray(m.tostype("default")).tolist() == [[1] * 3] * 2


def test_an_array_without_memory_is_an_error_of_mxnet():
    with pytest.raises(mx.MXNetError, match="not initialized"):
        tn.asarray(mx.nd.NDArray(mx.nd.ndarray._new_empty_handle()))


def test_ops_have_no_arrays_of_mxnet():
    m = mx.nd.ones(SHAPE)
    with pytest.raises(TypeError, match=r"mxnet\.ndarray.*tn\.array\(x\)"):
        tn.push(tn.copy, tn.zeros(SHAPE), m)
    tn.push(tn.fill, tn.overwrite(tn.from_dlpack(m, writable=True)), 5).wait()
    assert m.asnumpy().tolist() == [[5] * 3] * 2


def test_what_mxnet_writes_for_reading_is_the_promise_of_the_program():
    """The capsule cannot say that the memory is read-only, so MXNet writes to it (docs/contract.md)."""
    x = np.zeros(3, "f4")
    x.flags.writeable = False
    a = tn.from_numpy(x)
    with pytest.raises(BufferError, match="read-only"):
        a.to_dlpack_for_write()
    m = mx.nd.from_dlpack(a.to_dlpack_for_read())
    assert tn.asarray(m).data_ptr == a.data_ptr
    assert not tn.asarray(m).writable
    m[:] = 5
    m.wait_to_read()
    assert a.tolist() == [5, 5, 5]


def test_the_exchange_keeps_nothing():
    m, a = mx.nd.zeros((64, 64)), tn.ones((64, 64))
    for _ in range(2000):
        a.copyto(m)
        a[...] = m
    assert not a.leases()
