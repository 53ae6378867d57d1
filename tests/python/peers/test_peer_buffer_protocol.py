# SPDX-License-Identifier: Apache-2.0
"""The laws of the buffer protocol (PEP 3118, C API reference), as CPython tests them: with every flag.

The oracle for one request is computed from shape and strides alone (`expected`); the other peers are
memoryview and CPython's own `_testbuffer.ndarray`.
"""

import array
import ctypes
import hashlib
import io
import itertools
import mmap
import pickle
import struct
import sys
import weakref
import zlib
from ctypes import POINTER, PYFUNCTYPE, Structure, c_char_p, c_int, c_ssize_t, c_void_p, py_object

import live
import numpy as np
import pytest

import tenon as tn

SIMPLE, WRITABLE, FORMAT, ND = 0, 1, 4, 8
STRIDES = 0x10 | ND
C_CONTIGUOUS, F_CONTIGUOUS, ANY_CONTIGUOUS = 0x20 | STRIDES, 0x40 | STRIDES, 0x80 | STRIDES
INDIRECT = 0x100 | STRIDES
FULL, FULL_RO = INDIRECT | WRITABLE | FORMAT, INDIRECT | FORMAT
LAYOUTS = (SIMPLE, ND, STRIDES, C_CONTIGUOUS, F_CONTIGUOUS, ANY_CONTIGUOUS, INDIRECT)
REQUESTS = [layout | extra for layout in LAYOUTS for extra in (0, WRITABLE, FORMAT, WRITABLE | FORMAT)]

FORMATS = {
    "bool": "?",
    "int8": "b",
    "int16": "h",
    "int32": "i",
    "int64": "lq",
    "uint8": "B",
    "uint16": "H",
    "uint32": "I",
    "uint64": "LQ",
    "float16": "e",
    "float32": "f",
    "float64": "d",
}


class Buffer(Structure):
    _fields_ = (
        ("buf", c_void_p),
        ("obj", c_void_p),
        ("len", c_ssize_t),
        ("itemsize", c_ssize_t),
        ("readonly", c_int),
        ("ndim", c_int),
        ("format", c_char_p),
        ("shape", POINTER(c_ssize_t)),
        ("strides", POINTER(c_ssize_t)),
        ("suboffsets", POINTER(c_ssize_t)),
        ("internal", c_void_p),
    )


get_buffer = PYFUNCTYPE(c_int, py_object, POINTER(Buffer), c_int)(("PyObject_GetBuffer", ctypes.pythonapi))
release_buffer = PYFUNCTYPE(None, POINTER(Buffer))(("PyBuffer_Release", ctypes.pythonapi))


class Request:
    """One open buffer. Releases in release(), which may be called again."""

    def __init__(self, exporter, flags):
        self.buffer = Buffer()
        get_buffer(exporter, ctypes.byref(self.buffer), flags)

    def __enter__(self):
        return self.buffer

    def __exit__(self, *_):
        self.release()

    def release(self):
        release_buffer(ctypes.byref(self.buffer))


ARRAYS = {
    "scalar": lambda: tn.array(1.5),
    "one axis": lambda: tn.array([1.0, 2.0, 3.0]),
    "one element": lambda: tn.array([[[1.0]]]),
    "C order": lambda: tn.array(np.arange(24.0).reshape(2, 3, 4)),
    "F order": lambda: tn.array(np.arange(24.0).reshape(2, 3, 4)).T,
    "column": lambda: tn.array(np.arange(24.0).reshape(6, 4))[:, 1],
    "backwards": lambda: tn.array(np.arange(6.0))[::-1],
    "inner slice": lambda: tn.array(np.arange(24.0).reshape(2, 3, 4))[:, 1:, ::2],
    "single axis with stride": lambda: tn.array(np.arange(24.0).reshape(6, 4))[2:3, ::2],
    "empty": lambda: tn.zeros((3, 0, 2), dtype="float64"),
    "empty slice": lambda: tn.zeros((4, 4), dtype="float64")[1:1, ::2],
    "many axes": lambda: tn.zeros((1, 2) * 12, dtype="int8"),
    "read-only": lambda: tn.array([1.0, 2.0]).readonly(),
    "read-only column": lambda: tn.array(np.arange(6.0).reshape(3, 2))[:, 0].readonly(),
}


def is_c(shape, strides, itemsize):
    step = itemsize
    for n, s in zip(reversed(shape), reversed(strides), strict=True):
        if n > 1 and s != step:
            return False
        step *= n
    return True


def expected(a, flags):
    """None when the request must fail, else whether shape and strides must be there."""
    shape, strides = a.shape, a.strides
    c = a.size == 0 or is_c(shape, strides, a.itemsize)
    f = a.size == 0 or is_c(shape[::-1], strides[::-1], a.itemsize)
    if flags & WRITABLE and not a.writable:
        return None
    if flags & FORMAT and not flags & ND:  # without a shape the elements are bytes, as memoryview says
        return None
    if flags & C_CONTIGUOUS == C_CONTIGUOUS and not c:
        return None
    if flags & F_CONTIGUOUS == F_CONTIGUOUS and not f:
        return None
    if flags & ANY_CONTIGUOUS == ANY_CONTIGUOUS and not (c or f):
        return None
    if flags & STRIDES != STRIDES and not c:
        return None
    return flags & ND == ND, flags & STRIDES == STRIDES


@pytest.mark.parametrize("flags", REQUESTS, ids=hex)
@pytest.mark.parametrize("kind", ARRAYS)
def test_every_request_is_answered_by_the_rules(kind, flags):
    a = ARRAYS[kind]()
    want = expected(a, flags)
    views, references = live.views(), sys.getrefcount(a)
    if want is None:
        request = Buffer()
        request.obj = 0xDEAD  # must be cleared
        with pytest.raises(BufferError):
            get_buffer(a, ctypes.byref(request), flags)
        assert request.obj is None
        assert live.views() == views
        assert sys.getrefcount(a) == references
        return
    has_shape, has_strides = want
    with Request(a, flags) as buffer:
        assert live.views() == views + (kind != "empty")  # no memory, nothing to count
        assert sys.getrefcount(a) == references + 1
        assert buffer.obj == id(a)
        assert a.size == 0 or buffer.buf == a.data_ptr
        assert buffer.len == a.nbytes
        assert buffer.itemsize == a.itemsize
        assert bool(buffer.readonly) == (not a.writable)
        assert not buffer.suboffsets
        if has_shape:
            assert buffer.ndim == a.ndim
            assert tuple(buffer.shape[: a.ndim]) == a.shape if a.ndim else True
        else:
            assert not buffer.shape
        if has_strides:
            assert tuple(buffer.strides[: a.ndim]) == a.strides if a.ndim else True
        else:
            assert not buffer.strides
        if flags & FORMAT:
            assert struct.calcsize("=" + buffer.format.decode().lstrip("@=<")) == a.itemsize
        else:
            assert buffer.format is None
    assert live.views() == views
    assert sys.getrefcount(a) == references


@pytest.mark.parametrize("dtype", FORMATS)
def test_formats_are_those_of_the_struct_module(dtype):
    a = tn.array(np.arange(5).astype(dtype))
    m = memoryview(a)
    assert m.format in FORMATS[dtype]
    if dtype == "float16" and sys.version_info < (3, 12):
        return  # memoryview could not read them yet
    assert m.tolist() == a.tolist()


@pytest.mark.parametrize(("dtype", "text"), [("complex64", "Zf"), ("complex128", "Zd")])
def test_complex_formats_are_those_of_pep_3118(dtype, text):
    a = tn.array(np.arange(3).astype(dtype))
    assert memoryview(a).format == text
    assert np.asarray(memoryview(a)).dtype == dtype


@pytest.mark.parametrize("name", ["bfloat16", "float8_e5m2", "float4_e2m1fn", "float4_e2m1fn_x2"])
def test_dtypes_without_a_format_are_errors_that_name_the_way_to_the_bytes(name):
    with pytest.raises(BufferError, match=rf"{name}.*view\('uint8'\)"):
        memoryview(tn.zeros(2, name))


def test_version_moves_with_writable_buffers_only():
    a = tn.zeros(3)
    with memoryview(a.readonly()):
        assert a.version == a.version
    with memoryview(a):
        assert a.version != a.version


def test_requests_are_released_in_any_order():
    a = tn.zeros(4)
    for order in itertools.permutations(range(4)):
        views, references = live.views(), sys.getrefcount(a)
        requests = [Request(a, flags) for flags in (SIMPLE, FULL, ND | FORMAT, ANY_CONTIGUOUS)]
        for done, i in enumerate(order, start=1):
            requests[i].release()
            requests[i].release()  # a second release does nothing
            assert live.views() == views + 4 - done
        assert sys.getrefcount(a) == references


def test_a_request_that_fails_does_not_disturb_those_that_live():
    a = tn.zeros((3, 4)).T
    with Request(a, STRIDES) as buffer:
        for flags in (SIMPLE, ND, C_CONTIGUOUS):
            with pytest.raises(BufferError):
                get_buffer(a, ctypes.byref(Buffer()), flags)
        assert tuple(buffer.shape[:2]) == (4, 3)
        assert live.views() >= 1


def test_the_shape_in_a_buffer_lives_until_its_release():
    a = tn.zeros((2, 3, 4))[:, ::-1]
    request = Request(a, FULL)
    address = a.data_ptr
    del a
    live.now()
    junk = [tn.zeros((i, i)) for i in range(50)]
    buffer = request.buffer
    assert tuple(buffer.shape[:3]) == (2, 3, 4)
    assert tuple(buffer.strides[:3]) == (48, -16, 4)
    assert buffer.buf == address
    request.release()
    del junk


def test_a_memoryview_keeps_the_memory():
    a = tn.full(1000, 7.0)
    m = memoryview(a)
    reference = weakref.ref(a)
    del a
    assert m[999] == 7.0
    m[3] = 8.0
    assert m.obj[3] == 8.0  # the array itself stands behind the view
    m.release()
    del m
    assert reference() is None


def test_memoryviews_of_memoryviews_are_one_view_until_the_last_goes():
    a = tn.zeros(6)
    views = live.views()
    first = memoryview(a)
    others = [memoryview(first), first[2:], first.cast("B"), first.toreadonly()]
    assert live.views() == views + 1
    for m in others:
        m.release()
    first.release()
    del first, others
    assert live.views() == views


@pytest.mark.parametrize("kind", ["C order", "one axis", "empty", "scalar"])
def test_casts_to_bytes_see_the_same_memory(kind):
    a = ARRAYS[kind]()
    m = memoryview(a)
    if a.size == 0:
        assert m.tobytes() == b""
        return
    raw = m.cast("B")
    assert raw.nbytes == a.nbytes
    raw[0:8] = struct.pack("d", 99.0)
    assert np.asarray(a).reshape(-1)[0] == 99.0
    again = raw.cast("d", a.shape) if a.ndim else raw.cast("d", [])
    assert again.tolist() == a.tolist()


def test_reading_by_every_way_of_memoryview():
    x = np.arange(24, dtype="i4").reshape(2, 3, 4)
    for view in (x, x.T, x[:, ::-1, ::2], x[1]):
        a = tn.from_numpy(view)
        m = memoryview(a)
        assert m.tolist() == view.tolist()
        assert m.tobytes() == view.tobytes()
        assert m.tobytes("F") == view.tobytes("F")
        assert m.tobytes("A") == view.tobytes("A")
        assert m == memoryview(view)
        assert m.c_contiguous == view.flags.c_contiguous
        assert m.f_contiguous == view.flags.f_contiguous
        assert (m.shape, m.strides, m.nbytes) == (view.shape, view.strides, view.nbytes)
        m.release()
        del a


def test_writing_through_a_memoryview_is_seen_and_refused_when_read_only():
    a = tn.zeros(4, dtype="int32")
    m = memoryview(a)
    m[1] = 5
    m[2:] = array.array("i", [6, 7])
    assert a.tolist() == [0, 5, 6, 7]
    frozen = memoryview(a.readonly())
    assert frozen.readonly
    with pytest.raises(TypeError):
        frozen[0] = 1


def test_consumers_of_the_standard_library():
    a = tn.array(np.arange(16, dtype="u1"))
    raw = bytes(range(16))
    assert bytearray(a) == raw
    assert bytearray(a) == raw
    assert hashlib.sha256(a).digest() == hashlib.sha256(raw).digest()
    assert zlib.crc32(a) == zlib.crc32(raw)
    assert b"".join([a, a]) == raw + raw
    assert io.BytesIO(a).read() == raw
    assert array.array("B", bytearray(a)).tolist() == list(raw)
    struct.pack_into("<I", a, 4, 0xFFFFFFFF)
    assert a.tolist()[4:8] == [255] * 4
    assert struct.unpack_from("<I", a, 4) == (0xFFFFFFFF,)
    assert io.BytesIO(b"z" * 16).readinto(a) == 16
    assert a.tolist() == [ord("z")] * 16
    assert ctypes.c_char.from_buffer(a, 3).value == b"z"
    with pytest.raises((TypeError, BufferError)):
        io.BytesIO(raw).readinto(a.readonly())
    with pytest.raises(TypeError):
        ctypes.c_char.from_buffer(a.readonly())


def test_a_pickle_buffer_takes_contiguous_arrays_only_as_raw():
    a = tn.array(np.arange(6.0).reshape(2, 3))
    buffer = pickle.PickleBuffer(a)
    assert buffer.raw().nbytes == 48
    buffer.release()
    buffer = pickle.PickleBuffer(a[:, ::2])
    with pytest.raises(BufferError):
        buffer.raw()
    buffer.release()


def test_writing_to_a_file_and_reading_back(tmp_path):
    a = tn.array(np.arange(100.0))
    path = tmp_path / "raw"
    with open(path, "wb") as file:
        assert file.write(a) == 800
    b = tn.zeros(100, dtype="float64")
    with open(path, "rb") as file:
        assert file.readinto(b) == 800
    assert b.tolist() == a.tolist()


@pytest.mark.parametrize("kind", [k for k in ARRAYS if k != "many axes"])
def test_cpythons_own_test_array_agrees(kind):
    testbuffer = pytest.importorskip("_testbuffer")
    a = ARRAYS[kind]()
    peer = testbuffer.ndarray(a, getbuf=FULL if a.writable else FULL_RO)
    assert peer.shape == a.shape
    assert peer.strides == a.strides
    assert peer.readonly == (not a.writable)
    assert peer.nbytes == a.nbytes
    assert peer.tolist() == a.tolist()
    again = testbuffer.ndarray(peer, getbuf=FULL_RO)  # exported once more
    assert again.tolist() == a.tolist()
    assert np.asarray(tn.from_buffer(memoryview(again).tobytes(), "u1")).size == a.nbytes
    del again, peer


# -------------------------------------------------------------------------- from_buffer as the consumer


def test_from_buffer_of_a_bytearray_lets_go_after_every_failure():
    raw = bytearray(30)
    for arguments in (
        ("f4",),
        ("nonsense",),
        ("u1", (31,)),
        ("u1", (-2,)),
        ("u1", (2**62, 4)),
        ("u1", "shape"),
        ("f4", (4,), 3),
        ("u1", (4,), -1),
        ("u1", (4,), 2**70),
        ("u1", (4,), 31),
    ):
        with pytest.raises((ValueError, TypeError, OverflowError, BufferError)):
            tn.from_buffer(raw, *arguments)
        raw.append(0)  # nobody holds it
        raw.pop()


@pytest.mark.parametrize(
    "make",
    [
        lambda: bytearray(64),
        lambda: array.array("d", [0.0] * 8),
        lambda: (ctypes.c_double * 8)(),
        lambda: mmap.mmap(-1, 64),
        lambda: memoryview(bytearray(64)),
        lambda: np.zeros(8),
        lambda: tn.zeros(8, dtype="float64"),
        lambda: pickle.PickleBuffer(bytearray(64)),
    ],
    ids=["bytearray", "array", "ctypes", "mmap", "memoryview", "numpy", "NDArray", "PickleBuffer"],
)
def test_from_buffer_of_every_writable_exporter_is_an_alias(make):
    source = make()
    a = tn.from_buffer(source, "f8")
    assert a.shape == (8,) and a.writable
    a[...] = 1.5
    assert memoryview(source).cast("B")[:8].tobytes() == struct.pack("d", 1.5)
    memoryview(source).cast("B")[8:16] = struct.pack("d", 2.5)
    assert a[1].item() == 2.5


@pytest.mark.parametrize(
    "source",
    [bytes(64), memoryview(bytearray(64)).toreadonly(), mmap.mmap(-1, 64, access=mmap.ACCESS_READ)],
    ids=["bytes", "memoryview", "mmap"],
)
def test_from_buffer_of_read_only_exporters_is_read_only(source):
    a = tn.from_buffer(source, "f4")
    assert not a.writable
    with pytest.raises((ValueError, BufferError)):
        a[0] = 1
    assert not np.asarray(a).flags.writeable


def test_from_buffer_refuses_what_is_not_contiguous():
    raw = memoryview(bytearray(64))
    for bad in (raw[::2], raw[::-1], memoryview(np.zeros((4, 4)))[::2]):
        with pytest.raises((ValueError, BufferError)):
            tn.from_buffer(bad, "u1")


def test_from_buffer_refuses_released_views_and_other_things():
    released = memoryview(bytearray(4))
    released.release()
    for bad in (released, None, 4, "text", [1, 2], object()):
        with pytest.raises((TypeError, ValueError, BufferError)):
            tn.from_buffer(bad, "u1")


def test_from_buffer_refuses_suboffsets():
    testbuffer = pytest.importorskip("_testbuffer")
    indirect = testbuffer.ndarray(
        list(range(12)), shape=[3, 4], format="i", flags=testbuffer.ND_PIL | testbuffer.ND_WRITABLE
    )
    with pytest.raises((ValueError, BufferError, TypeError)):
        tn.from_buffer(indirect, "i4")


@pytest.mark.parametrize("fmt", ["i", "<i", "=i", "d", "P", "n", "?", "c", "3s", "T{i:a:d:b:}", "i" * 3])
def test_from_buffer_reads_bytes_whatever_their_format_is(fmt):
    """The dtype that the caller names counts; the format of the exporter is not looked at."""
    testbuffer = pytest.importorskip("_testbuffer")
    try:
        peer = testbuffer.ndarray(
            [struct.unpack(fmt, bytes(struct.calcsize(fmt)))[0]] * 8,
            shape=[8],
            format=fmt,
            flags=testbuffer.ND_WRITABLE,
        )
    except (ValueError, struct.error, NotImplementedError, TypeError):
        pytest.skip("CPython's test array has no such format")
    a = tn.from_buffer(peer, "u1")
    assert a.nbytes == 8 * struct.calcsize(fmt)


def test_an_exporter_written_in_python_is_asked_to_release():
    if sys.version_info < (3, 12):
        pytest.skip("__buffer__ came with CPython 3.12")
    released = []

    class Exporter:
        def __init__(self):
            self.raw = bytearray(16)

        def __buffer__(self, flags):
            return memoryview(self.raw)

        def __release_buffer__(self, view):
            released.append(view.nbytes)

    a = tn.from_buffer(Exporter(), "f4")
    a[0] = 1
    assert released == []
    del a
    live.now()
    assert released == [16]


# ----------------------------------------------------------------------------------- NumPy on top


def test_numpy_tells_when_the_last_derived_view_dies():
    a = tn.zeros((4, 4))
    views = live.views()
    x = np.asarray(a)
    y = x[1:, ::2].T
    del x
    assert live.views() == views + 1
    z = y.reshape(-1)  # copies
    del y
    assert live.views() == views
    assert z.size == 6


def test_numpy_swallows_no_error_of_the_buffer_protocol():
    """A request that fails is followed by __array__, which must say why instead of making an object array."""
    a = (
        tn.zeros(4, dtype="float4_e2m1fn_x2")
        if hasattr(tn, "float4_e2m1fn_x2")
        else tn.zeros(4, dtype="float6_e2m3fn")
    )
    try:
        x = np.asarray(a)
    except (TypeError, BufferError, ValueError):
        return
    assert x.dtype != object
    assert x.nbytes >= a.nbytes


def test_array_of_numpy_honours_dtype_and_copy():
    a = tn.array([1.0, 2.0])
    assert np.asarray(a, dtype="i4").tolist() == [1, 2]
    copied = np.array(a)
    copied[0] = 9
    assert a[0].item() == 1
    assert np.array(a, copy=False).ctypes.data == a.data_ptr
    with pytest.raises(ValueError, match=r"copy|avoid"):
        np.array(a, dtype="i4", copy=False)
    assert np.asarray(a, dtype=object).tolist() == [1.0, 2.0]
    assert np.asarray([a, a]).shape == (2, 2)


def test_array_method_called_directly():
    a = tn.array([1.0, 2.0])
    assert a.__array__().ctypes.data == a.data_ptr
    assert a.__array__("i4").dtype == np.dtype("i4")
    assert a.__array__(copy=True).ctypes.data != a.data_ptr
    assert a.__array__(dtype=None, copy=False).ctypes.data == a.data_ptr
    with pytest.raises(ValueError, match=r"copy"):
        a.__array__("i4", copy=False)
