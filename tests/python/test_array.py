# SPDX-License-Identifier: Apache-2.0
"""What an NDArray is: attributes, windows, copies, conversions to Python's objects, its text."""

import copy
import ctypes
import threading
import warnings

import numpy as np
import pytest

import tenon as tn

pytestmark = pytest.mark.usefixtures("nothing_stays_behind")


def counted(shape, dtype="int64"):
    """Elements 0, 1, 2, ... in C order."""
    return tn.array(np.arange(np.prod(shape, dtype=int)).reshape(shape), dtype=dtype)


def test_attributes_have_the_values_of_numpy():
    a, x = counted((2, 3, 4)), np.arange(24).reshape(2, 3, 4)
    for name in ("shape", "strides", "ndim", "size", "nbytes", "itemsize"):
        assert getattr(a, name) == getattr(x, name)
    assert a.dtype == x.dtype
    assert a.device == "cpu"
    assert a.writable
    assert a.data_ptr == a.numpy().__array_interface__["data"][0]
    assert len(a) == 2


def test_new_memory_is_aligned_to_64_bytes():
    assert all(tn.empty(n).data_ptr % 64 == 0 for n in (1, 3, 1000, 100_000))


def test_transposed_windows_share_memory():
    a = counted((2, 3, 4))
    assert a.T.shape == (4, 3, 2)
    assert a.T.data_ptr == a.data_ptr
    assert a.transpose(1, 0, 2).shape == a.transpose((1, 0, 2)).shape == (3, 2, 4)
    assert a.transpose(-1, 0, 1).tolist() == a.numpy().transpose(-1, 0, 1).tolist()
    assert a.transpose().shape == a.transpose(None).shape == (4, 3, 2)
    for axes in [(0, 1), (0, 1, 3), (0, 0, 1)]:
        with pytest.raises(ValueError, match="ax"):
            a.transpose(axes)


def test_reshape_gives_a_window_or_an_error():
    a = counted((2, 6))
    for shape in [(3, 4), (12,), (-1,), (2, -1, 3), (1, 12, 1)]:
        b = a.reshape(shape)
        assert b.data_ptr == a.data_ptr
        assert b.tolist() == a.numpy().reshape(shape).tolist()
    assert a.reshape(3, 4).shape == (3, 4)
    with pytest.raises(ValueError, match="12"):
        a.reshape(5, 2)
    with pytest.raises(ValueError, match="copy"):
        a.T.reshape(12)


def test_reshape_copies_only_when_told():
    a = counted((2, 6))
    assert a.T.reshape(12, copy=None).tolist() == a.numpy().T.reshape(12).tolist()
    assert a.reshape(12, copy=None).data_ptr == a.data_ptr
    assert a.reshape(12, copy=True).data_ptr != a.data_ptr
    with pytest.raises(TypeError):
        a.reshape("12")
    with pytest.raises(TypeError):
        a.reshape(1.5)


def test_view_has_the_same_bytes():
    a = counted((2, 4), "float32")
    b = a.view("int32")
    assert b.shape == (2, 4)
    assert b.data_ptr == a.data_ptr
    assert b.numpy().tobytes() == a.numpy().tobytes()
    assert a.view("uint8").shape == (2, 16)
    assert a.view(tn.float64).shape == (2, 2)
    assert a.view(np.int16).shape == (2, 8)


def test_view_names_the_numbers_that_do_not_fit():
    with pytest.raises(ValueError, match=r"30|10"):
        tn.zeros(30, "uint8").view("float32")
    with pytest.raises(ValueError):
        tn.zeros((4, 4)).T.view("int16")


def test_readonly_is_the_same_window():
    a = counted((2, 3))
    b = a.readonly()
    assert b.data_ptr == a.data_ptr
    assert not b.writable
    assert a.writable
    a[0, 0] = 9
    assert b[0, 0].item() == 9
    assert not b[0].writable
    assert not b.T.writable
    assert not b.numpy().flags.writeable
    with pytest.raises(ValueError, match="read-only"):
        b[0] = 1
    with pytest.raises(ValueError, match="read-only"):
        b += 1
    with pytest.raises(ValueError, match="read-only"):
        a.copyto(b)


def test_version_moves_with_writes():
    a = tn.zeros(3)
    first = a.version
    assert a.version == first
    a[0] = 1
    assert a.version != first
    view = a.numpy()
    assert a.version != a.version
    del view
    last = a.version
    assert a.version == last
    assert a.readonly().version == last


def test_the_version_stays_when_nothing_was_written():
    a = tn.zeros(3)
    last = a.version
    a.wait_to_read()
    a.wait_to_write()
    assert a.version == last
    with a.write() as v:
        v[0] = 1
    assert a.version != last
    op = tn.push(tn.fill, tn.overwrite(a), 2)
    a.wait_to_write()
    op.wait()
    written = a.version
    a.wait_to_write()
    assert a.version == written


def test_the_version_stays_when_a_lease_is_refused():
    def broken(x):
        raise ValueError("no data")

    a = tn.zeros(3)
    op = tn.push(broken, tn.write(a))
    assert op.exception() is not None
    failed = a.version
    with pytest.raises(tn.OpError):
        a.lease("w")
    with pytest.raises(tn.OpError):
        a.wait_to_write()
    assert a.version == failed
    a[...] = 0
    assert a.version != failed
    with pytest.raises(ExceptionGroup):
        tn.waitall()


def test_astype_casts_into_new_memory():
    a = counted((2, 3), "float32")
    b = a.astype("int16")
    assert b.dtype == tn.int16
    assert b.tolist() == a.tolist()
    assert a.astype("float32").data_ptr != a.data_ptr
    assert a.astype("float32", copy=False) is a
    assert a.astype("float64", copy=False) is not a


def test_a_cast_from_complex_to_real_warns():
    a = tn.array([1 + 2j, 0])
    for cast in (
        lambda: a.astype("float32"),
        lambda: a.astype("int8", copy=False),
        lambda: a.copyto(np.zeros(2)),
        lambda: a.copyto(tn.zeros(2)),
    ):
        with pytest.warns(np.exceptions.ComplexWarning, match=r"complex128 to .*np\.real\(x\)"):
            assert cast().tolist() == [1, 0]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert a.astype("complex64").tolist() == a.tolist()
        assert a.astype("bool").tolist() == [True, False]


def test_copies_share_nothing():
    a = counted((2, 3))
    for b in (a.copy(), copy.copy(a), copy.deepcopy(a), a.T.copy()):
        assert b.data_ptr != a.data_ptr
        assert b.writable
        assert b.is_contiguous()
        b[...] = 0
    assert a.tolist() == [[0, 1, 2], [3, 4, 5]]


@pytest.mark.parametrize("make", [tn.zeros, lambda s, d: np.zeros(s, d)])
def test_copyto_writes_into_arrays_of_both_kinds(make):
    a, target = counted((2, 3)), make((4, 2, 3), "float32")
    assert a.copyto(target) is target
    assert np.asarray(target).tolist() == [a.tolist()] * 4


def test_to_the_own_device_is_the_array_itself():
    a = tn.zeros(2)
    assert a.to("cpu") is a
    with pytest.raises(ValueError, match="gpu"):
        a.to("gpu")


def test_item_takes_an_index_or_needs_one_element():
    a = counted((2, 3))
    assert a.item(1, 2) == a.item((1, 2)) == 5
    assert a[1, 2].item() == 5
    assert tn.full((1, 1), 2.5).item() == 2.5
    with pytest.raises(ValueError, match="6"):
        a.item()
    with pytest.raises(ValueError):
        a.item(0)
    with pytest.raises(IndexError):
        a.item(2, 0)


@pytest.mark.parametrize("dtype", ["bool", "int8", "uint64", "float16", "float64", "complex64", "bfloat16"])
def test_elements_become_numbers_of_python(dtype):
    a = tn.array([[0, 1], [1, 0]]).astype(dtype)
    kind = {"bool": bool, "int8": int, "uint64": int, "complex64": complex}.get(dtype, float)
    assert type(a[0, 1].item()) is kind
    assert a.tolist() == [[kind(0), kind(1)], [kind(1), kind(0)]]


def test_tolist_of_no_axes_and_of_no_elements():
    assert tn.full((), 3, "int32").tolist() == 3
    assert tn.zeros((2, 0, 3)).tolist() == [[], []]
    assert tn.zeros(0).tolist() == []


def test_numbers_are_made_of_one_element():
    assert int(tn.full((), 3.7)) == 3
    assert float(tn.full((1, 1), 3, "int8")) == 3.0
    assert bool(tn.full(1, 2.0)) and not bool(tn.zeros(()))
    assert [10, 20, 30][tn.full((), 2, "int64")] == 30
    assert int(tn.full((), 2**63, "uint64")) == 2**63
    with pytest.raises(TypeError):
        int(tn.zeros(2))
    with pytest.raises(TypeError):
        float(tn.zeros(0))
    with pytest.raises(ValueError, match="truth"):
        bool(tn.zeros(2))
    with pytest.raises(TypeError):
        range(tn.full((), 2.0))
    with pytest.raises(TypeError):
        range(tn.full(1, 2, "int64"))


def test_repr_reads_like_the_array():
    assert repr(tn.array([[1.0, 2.0], [3.0, 4.0]], "float32")) == (
        "tenon.array([[1., 2.],\n             [3., 4.]], dtype=float32)"
    )
    assert repr(tn.full((), 3, "int8")) == "tenon.array(3, dtype=int8)"
    assert repr(tn.zeros((0, 3))) == "tenon.array([], shape=(0, 3), dtype=float32)"
    assert "dtype=bfloat16" in repr(tn.ones(3, "bfloat16"))


@pytest.mark.parametrize("shape", [(1000, 1000), (2,) * 20, (1, 10**6), (10**6, 1), (7, 7, 7, 7)])
def test_repr_is_short(shape):
    assert len(repr(tn.zeros(shape))) < 20_000


def test_html_has_the_facts_and_the_elements():
    a = tn.array([[1.0, 2.0]], "float32").readonly()
    assert a._repr_html_() == (
        "<div><b>tenon.NDArray</b> shape (1, 2), float32, 8 bytes, cpu, read-only"
        "<pre>tenon.array([[1., 2.]], dtype=float32)</pre></div>"
    )
    assert "shared" in tn.zeros(2, shared=True)._repr_html_()
    assert len(tn.zeros((1000, 1000))._repr_html_()) < 20_000


def test_html_is_escaped_and_waits_for_nothing():
    a = tn.zeros(2)
    begun, end = threading.Event(), threading.Event()

    def slow(_):
        begun.set()
        end.wait()

    op = tn.push(slow, tn.overwrite(a), name="<b>")
    begun.wait()
    assert "pending: op &#x27;&lt;b&gt;&#x27;" in a._repr_html_()
    end.set()
    op.wait()
    x = a.move_to_numpy()
    assert "moved to NumPy at" in a._repr_html_()
    del x


@pytest.mark.parametrize(
    "dtype", ["float8_e4m3fn", "float8_e3m4", "float6_e2m3fn", "float4_e2m1fn", "float4_e2m1fn_x2"]
)
def test_repr_never_fails(dtype):
    text = repr(tn.zeros((2, 4), dtype))
    assert dtype in text
    assert repr(tn.zeros((200, 400), dtype))


def test_format_is_for_numbers():
    assert f"{tn.full((), 2.5):.2f}" == "2.50"
    assert f"{tn.zeros(1)}" == repr(tn.zeros(1))
    with pytest.raises(TypeError, match="1 axes"):
        f"{tn.zeros(1):.2f}"


def test_ctypes_gives_the_memory_to_native_functions():
    a = counted((2, 3), "int32")
    assert a.ctypes.data == a.data_ptr
    assert list(a.ctypes.shape) == [2, 3]
    assert list(a.ctypes.strides) == [12, 4]
    pointer = a.ctypes.data_as(ctypes.POINTER(ctypes.c_int32))
    assert pointer[5] == 5
    pointer[0] = 7
    assert a[0, 0].item() == 7
    ctypes.memset(a.ctypes, 0, a.nbytes)
    assert a.tolist() == [[0, 0, 0], [0, 0, 0]]


def test_pointers_of_ctypes_keep_the_memory():
    pointer = counted((4,), "int32").ctypes.data_as(ctypes.POINTER(ctypes.c_int32))
    others = [tn.full(4, -1, "int32") for _ in range(50)]
    assert pointer[:4] == [0, 1, 2, 3]
    del others


def test_zero_size_and_zero_axes_work():
    a = tn.zeros((0, 3))
    assert (a.size, a.nbytes, len(a)) == (0, 0, 0)
    assert a.T.shape == (3, 0)
    assert a.reshape(3, 0, 2).shape == (3, 0, 2)
    assert a.copy().shape == (0, 3)
    assert np.asarray(a).shape == (0, 3)
    b = tn.full((), 5)
    assert (b.shape, b.strides, b.ndim, b.size) == ((), (), 0, 1)
    assert np.asarray(b).shape == ()
    with pytest.raises(TypeError, match="no axes"):
        len(b)


def test_packed_elements_count_below_a_byte():
    a = tn.zeros((2, 6), "float4_e2m1fn")
    assert a.nbytes == 6
    assert a.itemsize == 0
    assert a.view("uint8").shape == (2, 3)
    with pytest.raises(TypeError, match="uint8"):
        a.numpy()


def test_an_offset_that_is_named_is_one_that_works():
    a = tn.zeros(9, "u1")
    with pytest.raises(ValueError, match=r"use byte offset|copy the array first") as caught:
        a[1:5].view("f4")
    assert "copy the array first" in str(caught.value)


def test_copyto_refuses_what_has_no_memory_of_its_own():
    a = tn.ones(3)
    for other in ([0.0] * 3, (0.0,) * 3, 3.0, None):
        with pytest.raises(TypeError, match="no memory that it could write to"):
            a.copyto(other)
    with pytest.raises(TypeError, match="byte-swapped"):
        a.copyto(np.zeros(3, ">f4"))
    packed = np.zeros(3, np.dtype([("a", "u1"), ("b", "<f4")]))
    with pytest.raises(ValueError, match=r"unaligned|stride"):
        a.copyto(packed["b"])
    wanted = np.zeros(3)
    assert a.copyto(wanted) is wanted
    assert wanted.tolist() == [1.0] * 3


def test_complex_and_index_of_one_element():
    assert complex(tn.array([1 + 2j])) == 1 + 2j
    assert complex(tn.array([3.0])) == 3
    with pytest.raises(IndexError, match="outside of every axis"):
        tn.zeros(3)[2**70]
