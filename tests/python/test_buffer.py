# SPDX-License-Identifier: Apache-2.0
"""The buffer protocol: every request of PEP 3118 is served as written there, or is a BufferError."""

import array
import ctypes
import io

import numpy as np
import pytest

import tenon as tn

pytestmark = pytest.mark.usefixtures("nothing_stays_behind")

# https://docs.python.org/3/c-api/buffer.html
SIMPLE, WRITABLE, FORMAT, ND = 0, 1, 4, 8
STRIDES, C, F, ANY, INDIRECT = (
    0x10 | ND,
    0x20 | 0x10 | ND,
    0x40 | 0x10 | ND,
    0x80 | 0x10 | ND,
    0x100 | 0x10 | ND,
)


class Buffer(ctypes.Structure):
    _fields_ = (
        ("buf", ctypes.c_void_p),
        ("obj", ctypes.py_object),
        ("len", ctypes.c_ssize_t),
        ("itemsize", ctypes.c_ssize_t),
        ("readonly", ctypes.c_int),
        ("ndim", ctypes.c_int),
        ("format", ctypes.c_char_p),
        ("shape", ctypes.POINTER(ctypes.c_ssize_t)),
        ("strides", ctypes.POINTER(ctypes.c_ssize_t)),
        ("suboffsets", ctypes.POINTER(ctypes.c_ssize_t)),
        ("internal", ctypes.c_void_p),
    )


get_buffer = ctypes.pythonapi.PyObject_GetBuffer
get_buffer.argtypes = (ctypes.py_object, ctypes.POINTER(Buffer), ctypes.c_int)
release_buffer = ctypes.pythonapi.PyBuffer_Release
release_buffer.argtypes = (ctypes.POINTER(Buffer),)


def request(a, flags):
    """What the array answers, as a dict; BufferError when it refuses."""
    buffer = Buffer()
    get_buffer(a, ctypes.byref(buffer), flags)
    try:
        n = buffer.ndim
        return {
            "address": buffer.buf,
            "len": buffer.len,
            "readonly": bool(buffer.readonly),
            "format": buffer.format,
            "shape": tuple(buffer.shape[:n]) if buffer.shape else None,
            "strides": tuple(buffer.strides[:n]) if buffer.strides else None,
            "suboffsets": bool(buffer.suboffsets),
        }
    finally:
        release_buffer(ctypes.byref(buffer))


def layouts():
    a = tn.array(np.arange(6, dtype="f4").reshape(2, 3))
    return {
        "C": a,
        "F": tn.array(np.arange(6, dtype="f4").reshape(3, 2)).T,
        "both": a[0],
        "gaps": a[:, ::2],
        "negative": a[::-1],
        "empty": a[:0, ::2],
        "scalar": a[0, 0],
        "size one": a[:1, ::2][:, :1],
    }


ORDERS = {
    "C": {SIMPLE, ND, STRIDES, C, ANY, INDIRECT},
    "F": {STRIDES, F, ANY, INDIRECT},
    "both": {SIMPLE, ND, STRIDES, C, F, ANY, INDIRECT},
    "gaps": {STRIDES, INDIRECT},
    "negative": {STRIDES, INDIRECT},
    "empty": {SIMPLE, ND, STRIDES, C, F, ANY, INDIRECT},
    "scalar": {SIMPLE, ND, STRIDES, C, F, ANY, INDIRECT},
    "size one": {SIMPLE, ND, STRIDES, C, F, ANY, INDIRECT},
}


@pytest.mark.parametrize("name", ORDERS)
def test_every_request_is_served_or_refused(name):
    a = layouts()[name]
    for order in (SIMPLE, ND, STRIDES, C, F, ANY, INDIRECT):
        for extra in (0, WRITABLE, FORMAT, WRITABLE | FORMAT):
            if order not in ORDERS[name] or (order == SIMPLE and extra & FORMAT):
                with pytest.raises(BufferError):
                    request(a, order | extra)
                continue
            answer = request(a, order | extra)
            assert answer["address"] == a.data_ptr
            assert answer["len"] == a.nbytes
            assert not answer["readonly"]
            assert answer["format"] == (b"f" if extra & FORMAT else None)
            assert answer["shape"] == (a.shape if order & ND and a.ndim else None)  # NULL without axes
            assert answer["strides"] == (a.strides if order & 0x10 and a.ndim else None)
            assert not answer["suboffsets"]


def test_readonly_arrays_refuse_writable_requests():
    a = tn.zeros(3).readonly()
    for order in (SIMPLE, ND, STRIDES, C, INDIRECT):
        with pytest.raises(BufferError, match="read-only"):
            request(a, order | WRITABLE)
        assert request(a, order)["readonly"]
    assert memoryview(a).readonly


@pytest.mark.parametrize("code", ["?", "b", "h", "i", "l", "B", "H", "I", "L", "e", "f", "d", "F", "D"])
def test_formats_are_those_of_numpy(code):
    a, x = tn.zeros(2, code), np.zeros(2, code)
    assert memoryview(a).format == memoryview(x).format
    assert memoryview(a).itemsize == x.itemsize
    assert np.asarray(a).dtype is x.dtype


@pytest.mark.parametrize("name", ["bfloat16", "float8_e5m2", "float4_e2m1fn", "float4_e2m1fn_x2"])
def test_dtypes_without_a_format_are_buffer_errors(name):
    with pytest.raises(BufferError, match=name):
        memoryview(tn.zeros(2, name))


def test_memoryview_reads_and_writes_the_memory():
    a = tn.zeros((2, 3), "int32")
    view = memoryview(a)
    view[1, 2] = 7
    assert a.item(1, 2) == 7
    assert view.tolist() == a.tolist()
    assert (view.shape, view.strides, view.ndim, view.nbytes) == (a.shape, a.strides, 2, 24)
    assert view.obj is a
    assert view.cast("B")[20] == 7


def test_a_buffer_keeps_the_memory_until_it_is_released():
    a = tn.array([1, 2, 3])
    view = memoryview(a)[1:]
    del a
    assert view.tolist() == [2, 3]
    view.release()


def test_readers_of_buffers_take_arrays():
    a = tn.array([1, 2, 3], "uint8")
    assert bytearray(a) == b"\1\2\3"
    assert bytearray(a) == b"\1\2\3"
    assert io.BytesIO(a).read() == b"\1\2\3"
    assert array.array("B", bytearray(a)).tolist() == [1, 2, 3]
    assert io.BytesIO(b"xyz").readinto(a) == 3
    assert a.tolist() == [120, 121, 122]
    assert (ctypes.c_uint8 * 3).from_buffer(a)[0] == 120
    assert b"-".join([b"a", a]) == b"a-xyz"


def test_version_moves_with_writable_buffers_only():
    a = tn.zeros(3)
    with memoryview(a.readonly()):
        assert a.version == a.version
    with memoryview(a):
        assert a.version != a.version
