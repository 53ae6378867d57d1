# SPDX-License-Identifier: Apache-2.0
"""Functions that make arrays: new memory, data of other kinds, buffers, addresses."""

import array
import ctypes

import numpy as np
import pytest

import tenon as tn

pytestmark = pytest.mark.usefixtures("nothing_stays_behind")


def test_new_memory_has_the_shape_and_dtype_asked_for():
    for make in (tn.empty, tn.zeros, tn.ones):
        assert make(3).shape == (3,)
        assert make((2, 3)).dtype == tn.float32
        assert make([2, 3], "int16").nbytes == 12
        assert make((), dtype=tn.complex128, device="cpu").shape == ()
    assert tn.zeros((2, 2)).tolist() == [[0, 0], [0, 0]]
    assert tn.ones(2, "uint8").tolist() == [1, 1]
    assert tn.full((2,), 7, "int64").tolist() == [7, 7]
    assert tn.full((2, 2), [1, 2]).tolist() == [[1, 2], [1, 2]]


@pytest.mark.parametrize("make", [tn.empty, tn.zeros, tn.ones])
@pytest.mark.parametrize(
    ("shape", "error"),
    [
        *((shape, ValueError) for shape in [-1, (2, -3), (2**40, 2**40), (1,) * 65]),
        *((shape, TypeError) for shape in ["2", 1.5, None, (1, None)]),
        (2**70, OverflowError),
    ],
    ids=str,
)
def test_shapes_that_cannot_be_are_errors(make, shape, error):
    with pytest.raises(error):
        make(shape)


def test_memory_that_is_not_there_is_a_memory_error():
    with pytest.raises(MemoryError):
        tn.empty(2**46, "uint8")


def test_unknown_devices_and_dtypes_are_refused():
    with pytest.raises(ValueError, match="gpu:0"):
        tn.zeros(2, device="gpu:0")
    with pytest.raises(TypeError, match="float31"):
        tn.zeros(2, "float31")


def test_no_dtype_is_the_default_one():
    for make in (tn.empty, tn.zeros, tn.ones):
        assert make(2, None).dtype == tn.float32
        assert make(2, None, shared=True).dtype == tn.float32
    assert tn.full(2, 1, None).dtype == tn.float32


def test_a_second_length_in_place_of_a_dtype_is_named():
    for make in (tn.empty, tn.zeros, tn.ones):
        with pytest.raises(TypeError, match=r"dtype is 3: .* a shape of several axes is a tuple: \(2, 3\)"):
            make(2, 3)


@pytest.mark.parametrize(
    ("dtype", "text"),
    [
        (">f4", "byte-swapped: arrays have the byte order of the machine"),
        (object, "holds Python objects: an array has numbers"),
        (np.dtype("U3"), "holds text"),
        ([("a", "f4")], "is structured"),
        (np.dtype("M8[s]"), "is a time"),
        (np.dtype("longdouble"), "differs between machines: use 'float64' or 'complex128'"),
    ],
    ids=str,
)
def test_the_dtype_of_a_new_array_is_refused_without_advice_for_arrays(dtype, text):
    for make in (lambda: tn.zeros(2, dtype), lambda: tn.dtype(dtype), lambda: tn.schema(x=(dtype, 2))):
        with pytest.raises(TypeError, match=text) as caught:
            make()
        assert "x." not in str(caught.value) and "zero_copy" not in str(caught.value)


@pytest.mark.parametrize("data", [[2**70], 2**70, [1, None], ["a"], "a", [{}]], ids=repr)
def test_data_of_python_are_refused_without_advice_for_arrays(data):
    for make in (tn.array, tn.asarray):
        with pytest.raises(TypeError, match=r"(NumPy makes Python objects|holds text)") as caught:
            make(data)
        assert "x." not in str(caught.value) and "lent" not in str(caught.value)
    assert tn.array(np.asarray([2**70], float)).tolist() == [2.0**70]


def test_like_takes_shape_and_dtype():
    for prototype in (tn.zeros((2, 3), "int8"), np.zeros((2, 3), "int8")):
        for make in (tn.empty_like, tn.zeros_like, tn.ones_like):
            assert make(prototype).shape == (2, 3)
            assert make(prototype).dtype == tn.int8
            assert make(prototype, "float64").dtype == tn.float64
        assert tn.full_like(prototype, 5).tolist() == [[5] * 3] * 2
    assert tn.ones_like(tn.zeros(2)).tolist() == [1, 1]


def test_array_copies_whatever_has_elements():
    x = np.arange(3)
    sources = [x, tn.array(x), [0, 1, 2], (0, 1, 2), memoryview(x), array.array("l", [0, 1, 2]), range(3)]
    for source in sources:
        a = tn.array(source)
        assert a.tolist() == [0, 1, 2]
        assert a.dtype == tn.int64
        assert a.writable
        a[0] = 9
    assert x[0] == 0
    assert tn.array(2.5).shape == ()
    assert tn.array([1, 2], "float16").dtype == tn.float16
    assert tn.array(np.arange(3, dtype=">i2")).tolist() == [0, 1, 2]


def test_asarray_shares_where_it_can():
    a = tn.zeros(3)
    assert tn.asarray(a) is a
    assert tn.asarray(a, "float32") is a
    assert tn.asarray(a, "int8").dtype == tn.int8
    x = np.arange(3.0)
    b = tn.asarray(x)
    assert x.flags.writeable
    b[0] = 7
    x[1] = 8
    assert b.tolist() == x.tolist() == [7, 8, 2]
    buffer = bytearray(4)
    tn.asarray(buffer)[0] = 1
    assert buffer[0] == 1
    assert tn.asarray([1, 2]).tolist() == [1, 2]


@pytest.mark.parametrize("make", [tn.array, tn.asarray])
def test_numbers_have_to_fit_the_dtype(make):
    for data in ([300, -1], 300, -1.0, [[1, 2], (3, 2**70)]):
        with pytest.raises(OverflowError, match="uint8"):
            make(data, "uint8")
    for data in (np.nan, [1, np.nan]):
        with pytest.raises(ValueError, match="int32"):
            make(data, "int32")
    for data in (1j, [1j]):
        for dtype in ("float32", "bfloat16", "int8"):
            with pytest.raises(TypeError, match=dtype):
                make(data, dtype)
    assert make([255.9, 0, True], "uint8").tolist() == [255, 0, 1]
    assert make([2**64 - 1, 1], "uint64").tolist() == [2**64 - 1, 1]
    assert make([2**70, 1], "float64").tolist() == [2**70, 1]
    assert make([1j, 0, 2**70], "bool").tolist() == [True, False, True]
    assert make([], "int8").shape == (0,)
    assert make([[], []], "bfloat16").shape == (2, 0)
    assert make(2, "bfloat16").item() == 2
    for data in (np.array([300, -1]), tn.array([300, -1]), [np.int64(300), np.int64(-1)]):
        assert make(data, "uint8").tolist() == [44, 255]
    with pytest.warns(np.exceptions.ComplexWarning, match="float32"):
        assert make(np.array([2 + 1j]), "float32").tolist() == [2]


@pytest.mark.parametrize(
    "data",
    ["text", b"bytes", [["ragged"], 1], pytest.param(object(), id="object"), None, {"a": 1}, [1, "x"]],
    ids=repr,
)
def test_data_that_are_no_numbers_are_refused(data):
    for make in (tn.array, tn.asarray):
        with pytest.raises((TypeError, ValueError)):
            make(data)


def test_a_buffer_has_all_its_elements_unless_a_shape_is_given():
    buffer = bytearray(range(16))
    assert tn.from_buffer(buffer, "uint8").shape == (16,)
    assert tn.from_buffer(buffer, "int16").shape == (8,)
    assert tn.from_buffer(buffer, "uint8", (2, 3), 4).tolist() == [[4, 5, 6], [7, 8, 9]]
    assert tn.from_buffer(buffer, "uint8", offset=14).tolist() == [14, 15]
    assert tn.from_buffer(buffer, "uint8", offset=16).shape == (0,)
    assert tn.from_buffer(buffer, "float4_e2m1fn").shape == (32,)


def test_buffers_that_do_not_fit_are_errors():
    buffer = bytearray(16)
    with pytest.raises(ValueError, match="15"):
        tn.from_buffer(buffer, "int16", offset=1)
    with pytest.raises(ValueError, match="16"):
        tn.from_buffer(buffer, "uint8", 17)
    with pytest.raises(ValueError, match="16"):
        tn.from_buffer(buffer, "uint8", offset=17)
    with pytest.raises(ValueError):
        tn.from_buffer(buffer, "uint8", offset=-1)
    with pytest.raises(BufferError, match="align"):
        tn.from_buffer(buffer, "int32", 1, offset=2)
    with pytest.raises(TypeError):
        tn.from_buffer([1, 2], "uint8")
    with pytest.raises(BufferError):
        tn.from_buffer(memoryview(buffer)[::2], "uint8")
    buffer.extend(b"x")  # none of the failures holds it


def test_a_buffer_is_held_while_an_array_or_view_lives():
    buffer = bytearray(8)
    a = tn.from_buffer(buffer, "uint8")
    view = a[2:].numpy()
    del a
    with pytest.raises(BufferError):
        buffer.extend(b"x")
    view[0] = 5
    del view
    buffer.extend(b"x")
    assert buffer[2] == 5


def test_an_address_is_an_array():
    memory = (ctypes.c_double * 6)(*range(6))
    address = ctypes.addressof(memory)
    a = tn.from_pointer(address, (2, 3), "float64", owner=memory)
    assert a.tolist() == [[0, 1, 2], [3, 4, 5]]
    a[0, 0] = 9
    assert memory[0] == 9
    assert tn.from_pointer(address, (3,), "float64", strides=(16,)).tolist() == [9, 2, 4]
    backwards = tn.from_pointer(address + 40, 6, "float64", strides=[-8], readonly=True)
    assert backwards.tolist() == [5, 4, 3, 2, 1, 9]
    assert not backwards.writable


def test_the_owner_of_an_address_lives_as_long_as_the_array():
    class Owner:
        pass

    owner, memory = Owner(), (ctypes.c_byte * 8)()
    gone = []
    import weakref

    weakref.finalize(owner, gone.append, True)
    a = tn.from_pointer(ctypes.addressof(memory), 8, "int8", owner=owner)
    del owner
    view = memoryview(a)
    del a
    assert not gone
    view.release()
    assert gone == [True]


def test_the_deleter_of_an_address_runs_once_with_it():
    memory = (ctypes.c_byte * 8)()
    address, calls = ctypes.addressof(memory), []
    a = tn.from_pointer(address, 8, "int8", deleter=calls.append)
    row = a[2:]
    del a
    assert calls == []
    del row
    assert calls == [address]


def test_native_deleters_get_the_whole_address():
    libc = ctypes.CDLL(None)
    libc.malloc.restype = ctypes.c_void_p
    a = tn.from_pointer(libc.malloc(1 << 20), 1 << 20, "uint8", deleter=libc.free)
    a[...] = 1
    del a  # with a cut address free() would end the process


def test_a_deleter_that_fails_is_reported_and_nothing_else(capsys, monkeypatch):
    import sys

    reports = []
    monkeypatch.setattr(sys, "unraisablehook", reports.append)
    memory = (ctypes.c_byte * 8)()
    a = tn.from_pointer(ctypes.addressof(memory), 8, "int8", deleter=lambda _: 1 / 0)
    del a
    assert [type(report.exc_value) for report in reports] == [ZeroDivisionError]
    reports.clear()


def test_addresses_that_cannot_be_are_errors_and_run_no_deleter():
    memory = (ctypes.c_double * 4)()
    address, calls = ctypes.addressof(memory), []
    for arguments, error in [
        ((0, 4, "float64"), ValueError),
        ((address + 1, 1, "float64"), BufferError),
        ((address, -1, "float64"), ValueError),
        ((address, 4, "float63"), TypeError),
        ((address, 2, "float64", (12,)), ValueError),
        ((address, 2, "float64", (8, 8)), ValueError),
        (("address", 2, "float64"), TypeError),
    ]:
        with pytest.raises(error):
            tn.from_pointer(*arguments, deleter=calls.append)
    with pytest.raises(TypeError, match="callable"):
        tn.from_pointer(address, 4, "float64", deleter=3)
    assert calls == []


def test_ranges_and_concatenations_are_numpys():
    for arguments in [(5,), (2, 5), (1.0, 2.0, 0.25), (5, 0, -2), (3, None, 2)]:
        made, expected = tn.arange(*arguments), np.arange(*arguments)
        assert (made.dtype.name, made.tolist()) == (expected.dtype.name, expected.tolist())
        made[...] = 1  # it is writable
    assert tn.arange(3, dtype="bfloat16").dtype == tn.bfloat16
    with pytest.raises(ValueError, match="cpu"):
        tn.arange(3, device="gpu")
    a, b = tn.zeros((2, 3), shared=True), tn.ones((1, 3), "float64")
    joined = tn.concatenate([a, b, np.full((1, 3), 2)])
    assert (joined.dtype, joined.tolist()) == (tn.float64, [[0] * 3, [0] * 3, [1] * 3, [2] * 3])
    assert tn.concatenate((a, a), axis=1).shape == (2, 6)
    assert tn.concatenate(iter([a, b]), axis=None, dtype="int8").tolist() == [0] * 6 + [1] * 3
    assert a.leases() == []
