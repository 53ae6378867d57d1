# SPDX-License-Identifier: Apache-2.0
"""The laws that NumPy tests of its own DLPack support, for an NDArray as producer and as consumer."""

import sys

import foreign_dlpack as dl
import live
import numpy as np
import pytest

import tenon as tn

LEGACY = [None, (0, 0), (0, 8)]
VERSIONED = [(1, 0), (1, 3), (100, 3)]

DTYPES = {
    "bool": (dl.BOOL, 8),
    "int8": (dl.INT, 8),
    "int16": (dl.INT, 16),
    "int32": (dl.INT, 32),
    "int64": (dl.INT, 64),
    "uint8": (dl.UINT, 8),
    "uint16": (dl.UINT, 16),
    "uint32": (dl.UINT, 32),
    "uint64": (dl.UINT, 64),
    "float16": (dl.FLOAT, 16),
    "float32": (dl.FLOAT, 32),
    "float64": (dl.FLOAT, 64),
    "complex64": (dl.COMPLEX, 64),
    "complex128": (dl.COMPLEX, 128),
}


def ramp(shape, dtype="float32"):
    n = int(np.prod(shape))
    return tn.array(np.arange(n).astype(dtype).reshape(shape))


def capsule_kind(capsule):
    return dl.capsule_name(capsule)


@pytest.mark.parametrize("max_version", LEGACY + VERSIONED)
def test_a_capsule_that_nobody_consumes_gives_its_reference_and_its_view_back(max_version):
    a = tn.zeros(4)
    references, views = sys.getrefcount(a), live.views()
    capsule = a.__dlpack__(max_version=max_version)
    assert live.views() == views + 1
    del capsule
    assert sys.getrefcount(a) == references
    assert live.views() == views


@pytest.mark.parametrize("max_version", LEGACY + VERSIONED)
def test_a_capsule_keeps_the_memory_of_an_array_that_is_gone(max_version):
    a = tn.full(4, 3.0)
    taken = dl.take(a.__dlpack__(max_version=max_version))
    del a
    live.now()
    assert [taken.at(i).value for i in range(4)] == [3.0] * 4
    taken.release()


def test_max_version_left_out_is_none():
    assert capsule_kind(tn.zeros(2).__dlpack__()) == b"dltensor"


@pytest.mark.parametrize(
    "max_version",
    [
        1,
        1.0,
        "1.0",
        (),
        (1,),
        (1, 0, 0),
        ("1", "0"),
        (None, None),
        (1.5, 0),
        {1: 0},
        pytest.param(object(), id="object"),
        b"\1\0",
    ],
    ids=repr,
)
def test_a_max_version_that_is_no_pair_of_integers_is_refused(max_version):
    a = tn.zeros(2)
    references = sys.getrefcount(a)
    with pytest.raises(TypeError):
        a.__dlpack__(max_version=max_version)
    assert sys.getrefcount(a) == references


@pytest.mark.parametrize(
    "max_version", [(-1, 0), (10**30, 0), (1, -5), (1, 10**30), (2**32, 0), (2**32 + 1, 0)]
)
def test_a_max_version_out_of_range_is_refused_or_understood(max_version):
    a = tn.zeros(2)
    try:
        capsule = a.__dlpack__(max_version=max_version)
    except (BufferError, OverflowError, TypeError, ValueError):
        return
    expected = b"dltensor_versioned" if max_version[0] >= 1 else b"dltensor"
    assert capsule_kind(capsule) == expected


@pytest.mark.parametrize("stream", [0, 1, 2, 2**40, "default"])
def test_a_stream_on_the_cpu_is_refused(stream):
    with pytest.raises(ValueError, match="stream"):
        tn.zeros(2).__dlpack__(stream=stream)


@pytest.mark.parametrize("bad", [{"streams": None}, {"max_versions": (1, 0)}, {"device": (1, 0)}])
def test_unknown_keywords_are_refused(bad):
    with pytest.raises(TypeError):
        tn.zeros(2).__dlpack__(**bad)


def test_arguments_by_place_are_refused():
    with pytest.raises(TypeError):
        tn.zeros(2).__dlpack__(None)
    with pytest.raises(TypeError):
        tn.zeros(2).__dlpack_device__(1)


def test_a_copy_of_a_view_has_the_elements_of_the_view():
    a = ramp((4, 6))[1:, ::-2]
    taken = dl.take(a.__dlpack__(max_version=(1, 0), copy=True))
    assert [[taken.at(i, j).value for j in range(3)] for i in range(3)] == a.tolist()
    taken.release()


@pytest.mark.parametrize("copy", ["no", "always", object()])
def test_a_copy_argument_that_is_no_truth_value_is_not_misread(copy):
    """NumPy refuses text. Truthiness would be the other honest reading: then it is a copy."""
    a = tn.zeros(4)
    try:
        taken = dl.take(a.__dlpack__(max_version=(1, 0), copy=copy))
    except (TypeError, ValueError):
        return
    assert taken.data != a.data_ptr
    taken.release()


@pytest.mark.parametrize("dl_device", [(2, 0), (8, 0), (1, 1), (0, 0), (-1, 0), (2**31, 0), (10**20, 0)])
def test_other_devices_are_refused(dl_device):
    with pytest.raises(BufferError, match="device"):
        tn.zeros(4).__dlpack__(dl_device=dl_device)


@pytest.mark.parametrize(
    "dl_device", ["cpu", 1, (1,), (1, 0, 0), ("cpu", 0), pytest.param(object(), id="object")], ids=repr
)
def test_a_device_that_is_no_pair_of_integers_is_refused(dl_device):
    with pytest.raises((TypeError, ValueError, BufferError)):
        tn.zeros(4).__dlpack__(dl_device=dl_device)


def test_the_device_is_a_pair_of_integers():
    device = tn.zeros(4).__dlpack_device__()
    assert type(device) is tuple
    assert device == (1, 0)
    assert all(isinstance(item, int) for item in device)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("max_version", [None, (1, 0)])
def test_dtypes_have_their_codes(dtype, max_version):
    taken = dl.take(tn.zeros(3, dtype=dtype).__dlpack__(max_version=max_version))
    assert taken.dtype == (*DTYPES[dtype], 1)
    taken.release()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("old", [False, True], ids=["new producer", "old producer"])
def test_dtypes_come_in_from_new_and_old_producers(dtype, old):
    x = np.arange(12).astype(dtype).reshape(3, 4)

    class Old:
        def __dlpack__(self, *, stream=None):
            return x.__dlpack__()

        def __dlpack_device__(self):
            return x.__dlpack_device__()

    a = tn.from_dlpack(Old() if old else x)
    assert a.dtype == x.dtype
    assert a.data_ptr == x.ctypes.data
    assert a.tolist() == x.tolist()


@pytest.mark.parametrize("dtype", DTYPES)
def test_dtypes_survive_the_way_out_to_numpy(dtype):
    a = ramp((3, 4), dtype)
    x = np.from_dlpack(a)
    assert x.dtype == np.dtype(dtype)
    assert x.tolist() == a.tolist()


@pytest.mark.parametrize(
    "view",
    [
        lambda x: x[1:, ::2, :],
        lambda x: x[..., 1],
        lambda x: x.transpose(2, 0, 1),
        lambda x: x[::-1, :, ::-1],
        lambda x: np.broadcast_to(x[:, :1, :1], (3, 4, 5)),
        lambda x: x[1:2, 2:3, 3:4],
        lambda x: x[:, None, :, None, ::3],
        lambda x: x[:0],
        lambda x: x[:, 2:2, ::-1],
        lambda x: x[1, 1, 1, ...],
    ],
    ids=[
        "slices",
        "column",
        "axes",
        "backwards",
        "broadcast",
        "one element",
        "new axes",
        "empty",
        "empty inside",
        "scalar",
    ],
)
def test_views_of_any_strides_go_both_ways(view):
    x = view(np.arange(60.0).reshape(3, 4, 5))
    assert tn.from_numpy(x).tolist() == x.tolist()
    a = tn.from_dlpack(x)
    assert a.shape == x.shape
    assert a.tolist() == x.tolist()
    assert a.size == 0 or a.data_ptr == x.ctypes.data
    if np.lib.NumpyVersion(np.__version__) < "2.1.0" and min(x.strides, default=0) < 0:
        pytest.skip("NumPy 2.0 asks for legacy capsules, which have no negative strides")
    back = np.from_dlpack(a)
    assert back.shape == x.shape
    np.testing.assert_array_equal(back, x)
    live_strides = [s for s, n in zip(back.strides, x.shape, strict=True) if n > 1]
    assert live_strides == [s for s, n in zip(x.strides, x.shape, strict=True) if n > 1] or x.size == 0


@pytest.mark.parametrize("ndim", [*range(34), 63, 64])
def test_any_number_of_axes_goes_both_ways(ndim):
    shape = (1,) * ndim
    taken = dl.take(tn.zeros(shape).__dlpack__(max_version=(1, 3)))
    assert taken.ndim == ndim
    assert ndim == 0 or taken.shape == shape
    assert ndim == 0 or taken.strides is not None
    taken.release()
    a = tn.from_dlpack(np.zeros(shape))
    assert a.shape == shape
    assert np.from_dlpack(a).shape == shape


def test_more_axes_than_the_limit_are_an_error():
    with pytest.raises(ValueError, match="64"):
        tn.zeros((1,) * 65)
    tensor = dl.Tensor((1,) * 65)
    with pytest.raises((ValueError, BufferError)):
        tn.from_dlpack(tensor)
    assert tensor.deaths == 1


def test_strides_are_always_filled():
    for shape in ((), (3,), (0,), (2, 0, 3), (2, 3, 4)):
        for max_version in (None, (1, 0)):
            taken = dl.take(tn.zeros(shape).__dlpack__(max_version=max_version))
            assert taken.ndim == 0 or len(taken.strides) == len(shape)
            assert taken.byte_offset == 0
            taken.release()


def test_empty_tensors_point_nowhere():
    taken = dl.take(tn.zeros((3, 0)).__dlpack__(max_version=(1, 0)))
    assert taken.data is None
    taken.release()


@pytest.mark.parametrize("axis", range(3))
def test_strides_of_axes_of_one_element_mean_nothing(axis):
    shape = [2, 3, 4]
    shape[axis] = 1
    x = np.zeros(shape)
    strides = list(x.strides)
    strides[axis] = 8 * 12345
    odd = np.lib.stride_tricks.as_strided(x, shape, strides)
    for make in (tn.from_dlpack, tn.from_numpy):
        a = make(odd)
        assert np.asarray(a).flags.c_contiguous
        assert a.reshape(-1).data_ptr == a.data_ptr
        assert a.view("int64").shape == tuple(shape)
        del a


@pytest.mark.parametrize("axis", range(2))
def test_strides_of_single_axes_need_not_even_be_whole_elements(axis):
    shape = (1, 3) if axis == 0 else (3, 1)
    strides = (13, 4) if axis == 0 else (4, 13)
    x = np.lib.stride_tricks.as_strided(np.zeros(3, "f4"), shape, strides)
    assert tn.from_numpy(x).tolist() == x.tolist()


def test_a_read_only_array_stays_read_only_over_the_versioned_struct():
    a = tn.zeros(4).readonly()
    taken = dl.take(a.__dlpack__(max_version=(1, 0)))
    assert taken.flags == dl.READ_ONLY
    taken.release()
    assert not np.from_dlpack(a).flags.writeable
    assert not tn.from_dlpack(a).writable


def test_a_read_only_array_does_not_fit_the_legacy_struct():
    a = tn.zeros(4).readonly()
    references, views = sys.getrefcount(a), live.views()
    with pytest.raises(BufferError, match="read-only"):
        a.__dlpack__()
    with pytest.raises(BufferError, match="read-only"):
        a.__dlpack__(max_version=(0, 8), copy=False)
    assert sys.getrefcount(a) == references
    assert live.views() == views


def test_a_writable_array_arrives_writable_and_a_read_only_one_does_not():
    x = np.zeros(4)
    assert tn.from_dlpack(x).writable
    x.flags.writeable = False
    a = tn.from_dlpack(x)
    assert not a.writable
    assert not np.asarray(a).flags.writeable
    with pytest.raises((ValueError, BufferError)):
        a[0] = 1


def test_bytes_are_never_written():
    text = b"0123456789abcdef"
    for x in (np.frombuffer(text, "u1"), np.frombuffer(text, "u1")[2:9:3]):
        for make in (tn.from_dlpack, tn.from_numpy, tn.asarray):
            a = make(x)
            assert not a.writable
            with pytest.raises((ValueError, BufferError)):
                a[...] = 0
    assert text == b"0123456789abcdef"


def test_an_exception_in_flight_survives_the_death_of_capsules_arrays_and_views():
    """The unwinding of an expression drops what stands on the stack while the error is set."""
    x = np.zeros(4)
    a = tn.zeros(4)
    for make in (
        lambda: a.__dlpack__(),
        lambda: a.__dlpack__(max_version=(1, 0)),
        lambda: a.to_dlpack_for_read(),
        lambda: a.to_dlpack_for_write(),
        lambda: tn.zeros(100_000),
        lambda: tn.zeros(3)[1:],
        lambda: np.asarray(tn.zeros(3)),
        lambda: tn.zeros(3).numpy(),
        lambda: memoryview(tn.zeros(3)),
        lambda: tn.from_numpy(x),
        lambda: tn.from_numpy(x).__dlpack__(),
        lambda: tn.from_dlpack(dl.Tensor()),
        lambda: tn.from_buffer(bytearray(16), "f4"),
    ):
        with pytest.raises(ZeroDivisionError) as info:
            (make(), 1 / 0)
        assert info.value.__context__ is None
        del info
    assert x.flags.writeable


def test_from_dlpack_of_things_that_are_no_producers_is_a_plain_error():
    for thing in (None, 1, "text", [1, 2], object(), type):
        with pytest.raises(TypeError, match="__dlpack__"):
            tn.from_dlpack(thing)
    with pytest.raises(TypeError):
        tn.from_dlpack(tn.NDArray)
