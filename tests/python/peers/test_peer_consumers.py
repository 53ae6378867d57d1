# SPDX-License-Identifier: Apache-2.0
"""The rules of libraries that are not at hand here, as consumers and producers of ctypes: nanobind's
constraints, CuPy's and MLX's treatment of capsules, warp's and ONNX Runtime's NULL strides."""

import os
import signal

import foreign_dlpack as dl
import live
import native
import numpy as np
import pytest

import tenon as tn


def compact(shape):
    steps, step = [], 1
    for n in reversed(shape):
        steps.append(step)
        step *= n
    return tuple(reversed(steps))


def consume(a, *, dtype=None, shape=None, order=None):
    """A consumer with constraints like those of nanobind: None when the array does not fit."""
    taken = dl.take(a.__dlpack__(max_version=(1, 0)))
    fits = (
        (dtype is None or taken.dtype == dtype)
        and (
            shape is None
            or (
                taken.ndim == len(shape)
                and all(w in (-1, g) for w, g in zip(shape, taken.shape, strict=True))
            )
        )
        and (order != "C" or taken.strides == compact(taken.shape) or 0 in taken.shape)
        and (order != "F" or taken.strides[::-1] == compact(taken.shape[::-1]) or 0 in taken.shape)
    )
    if not fits:
        taken.release()
        return None
    return taken


def test_constraints_of_dtype_shape_and_order_can_be_read_off():
    a = tn.zeros((3, 4), dtype="int32")
    for options, fits in (
        ({"dtype": (dl.INT, 32, 1)}, True),
        ({"dtype": dl.F32}, False),
        ({"shape": (3, -1)}, True),
        ({"shape": (-1,)}, False),
        ({"order": "C"}, True),
        ({"order": "F"}, False),
    ):
        taken = consume(a, **options)
        assert (taken is not None) == fits, options
        if taken:
            taken.release()
    taken = consume(a.T, order="F")
    assert taken is not None
    taken.release()


def test_strides_of_contiguous_arrays_are_compact_even_where_they_mean_nothing():
    """A consumer that compares all strides (several do) must not be misled by an axis of one element."""
    x = np.lib.stride_tricks.as_strided(np.zeros(12), (3, 1, 4), (32, 7777 * 8, 8))
    taken = consume(tn.from_dlpack(x), order="C")
    if taken is None:
        pytest.fail("strides of single axes are passed on as they came")
    taken.release()


def test_a_consumer_that_asks_legacy_first_and_then_versioned_gets_both():
    """nanobind does so for read-only arguments, and keeps only the last."""
    a = tn.zeros(4)
    views = live.views()
    first = a.__dlpack__()
    second = a.__dlpack__(max_version=(1, 1))
    del first
    assert live.views() == views + 1
    del second
    frozen = a.readonly()
    with pytest.raises(BufferError):
        frozen.__dlpack__()
    taken = dl.take(frozen.__dlpack__(max_version=(1, 1)))
    taken.release()


def test_a_consumer_that_borrows_the_capsule_and_never_renames_it():
    """mpi4py keeps the capsule as the owner of its buffer."""
    a = tn.full(4, 2.0)
    capsule = a.__dlpack__(max_version=(1, 0))
    address = dl.capsule_pointer(capsule, b"dltensor_versioned")
    del a
    live.now()
    assert dl.Taken(address, True).at(3).value == 2.0
    views = live.views()
    del capsule
    assert live.views() == views - 1


def test_a_consumer_that_scribbles_on_the_struct_does_no_harm():
    """The consumer owns the struct: warp and nanobind write into it."""
    a = tn.zeros((2, 3))
    for name, value in (("data", None), ("ndim", 0), ("shape", None), ("strides", None), ("byte_offset", 99)):
        taken = dl.take(a.__dlpack__(max_version=(1, 0)))
        setattr(dl.Versioned.from_address(taken.address).dl, name, value)
        taken.release()
    taken = dl.take(a.__dlpack__(max_version=(1, 0)))
    dl.Versioned.from_address(taken.address).flags = 2**64 - 1
    dl.Versioned.from_address(taken.address).version.major = 9
    taken.release()
    assert a.shape == (2, 3)
    assert a.strides == (12, 4)


def test_a_consumer_that_moves_the_data_pointer_into_byte_offset_is_understood():
    raw = dl.aligned_bytes(64)
    np.frombuffer(raw, "f4")[...] = np.arange(16)
    tensor = dl.Tensor((4,), buffer=raw, byte_offset=16)
    assert tn.from_dlpack(tensor).tolist() == [4, 5, 6, 7]


@pytest.mark.parametrize("shape", [(), (4,), (2, 3), (2, 0), (1, 5, 1)])
@pytest.mark.parametrize("legacy", [False, True], ids=["versioned", "legacy"])
def test_null_strides_are_c_order(shape, legacy):
    """warp emits NULL for every contiguous array, ONNX Runtime always, NumPy did until 2.4."""
    tensor = dl.Tensor(shape, None, legacy=legacy)
    a = tn.from_dlpack(tensor)
    assert a.shape == shape
    assert a.size == 0 or a.strides == np.zeros(shape, "f4").strides
    del a
    assert tensor.deaths == 1


@pytest.mark.parametrize("shape", [(0,), (0, 4), (3, 0, 2)])
@pytest.mark.parametrize("null_data", [True, False])
def test_empty_tensors_with_null_or_any_data(shape, null_data):
    for data in (None, 8, 1, 2**47):
        tensor = dl.Tensor(shape, null_data=null_data, data=None if null_data else data)
        a = tn.from_dlpack(tensor)
        assert a.shape == shape
        assert a.tolist() == np.zeros(shape).tolist()
        b = tn.from_dlpack(np.from_dlpack(a))
        assert b.shape == shape
        del a, b
        assert tensor.deaths == 1


def test_an_empty_tensor_with_strides_from_another_world():
    tensor = dl.Tensor((0, 3), (-(2**63), 2**63 - 1), null_data=True, byte_offset=2**64 - 1)
    try:
        a = tn.from_dlpack(tensor)
    except (BufferError, ValueError):
        assert tensor.deaths == 1
        return
    assert a.shape == (0, 3)


def test_a_scalar_without_shape_and_strides():
    tensor = dl.Tensor(None, None, ndim=0)
    a = tn.from_dlpack(tensor)
    assert a.shape == () and a.item() == 0
    del a
    assert tensor.deaths == 1


def test_null_data_behind_elements_is_refused():
    for shape in ((), (1,), (2, 3)):
        tensor = dl.Tensor(shape, null_data=True)
        with pytest.raises((BufferError, ValueError), match=r"NULL|null"):
            tn.from_dlpack(tensor)
        assert tensor.deaths == 1


def test_negative_strides_walk_backwards():
    raw = dl.aligned_bytes(64)
    np.frombuffer(raw, "f4")[...] = np.arange(16)
    tensor = dl.Tensor((2, 3), (-8, -1), buffer=raw, byte_offset=60)
    a = tn.from_dlpack(tensor)
    assert a.tolist() == [[15, 14, 13], [7, 6, 5]]
    a[...] = 0
    assert np.frombuffer(raw, "f4")[[15, 7]].tolist() == [0, 0]


def test_zero_strides_repeat_an_element():
    tensor = dl.Tensor((3, 4), (0, 1))
    a = tn.from_dlpack(tensor)
    assert a.shape == (3, 4)
    assert a.strides == (0, 4)


def test_overlapping_strides_read_as_they_lie():
    raw = dl.aligned_bytes(64)
    np.frombuffer(raw, "f4")[...] = np.arange(16)
    a = tn.from_dlpack(dl.Tensor((5, 3), (1, 1), buffer=raw))
    assert a.tolist() == [[i, i + 1, i + 2] for i in range(5)]
    assert a.copy().tolist() == a.tolist()


def test_cupy_refuses_the_cpu_and_mlx_negative_strides_by_what_they_read():
    """CuPy looks at the device, MLX at the strides: both must find the truth in the struct."""
    taken = dl.take(tn.zeros(8)[::-2].__dlpack__(max_version=(1, 0)))
    assert taken.device[0] == dl.CPU
    assert taken.strides == (-2,)
    taken.release()


def test_the_deleter_frees_the_memory_whether_or_not_the_capsule_was_consumed():
    """CuPy counts blocks of its pool; here the heap of Tenon is counted."""
    before = live.now()
    capsule = tn.zeros(1 << 20).__dlpack__(max_version=(1, 0))
    assert live.now().heap_nbytes >= before.heap_nbytes + (4 << 20)
    del capsule
    assert live.now() == before
    taken = dl.take(tn.zeros(1 << 20).__dlpack__(max_version=(1, 0)))
    assert live.now().heap_nbytes >= before.heap_nbytes + (4 << 20)
    taken.release()
    assert live.now() == before


@pytest.mark.parametrize("legacy", [False, True], ids=["versioned", "legacy"])
def test_a_consumed_capsule_has_the_used_name(legacy):
    capsule = tn.zeros(4).__dlpack__(max_version=None if legacy else (1, 0))
    b = tn.from_dlpack(dl.Wrapped(capsule))
    assert dl.capsule_name(capsule) == (b"used_dltensor" if legacy else b"used_dltensor_versioned")
    del capsule
    live.now()
    assert b.tolist() == [0.0] * 4


def test_the_capsules_of_mxnet_outlive_their_source():
    a = tn.full(3, 4.0)
    read, write = a.to_dlpack_for_read(), a.to_dlpack_for_write()
    del a
    b, c = tn.from_dlpack(read), tn.from_dlpack(write)
    c[0] = 9
    assert b.tolist() == [9.0, 4.0, 4.0]


@pytest.mark.parametrize(
    ("dtype", "code"),
    [
        ("bfloat16", (dl.BFLOAT, 16, 1)),
        ("float8_e3m4", (7, 8, 1)),
        ("float8_e4m3", (8, 8, 1)),
        ("float8_e4m3b11fnuz", (9, 8, 1)),
        ("float8_e4m3fn", (10, 8, 1)),
        ("float8_e4m3fnuz", (11, 8, 1)),
        ("float8_e5m2", (12, 8, 1)),
        ("float8_e5m2fnuz", (13, 8, 1)),
        ("float8_e8m0fnu", (14, 8, 1)),
        ("float4_e2m1fn_x2", (17, 4, 2)),
    ],
)
def test_small_floats_keep_their_codes_both_ways(dtype, code):
    taken = dl.take(tn.zeros(6, dtype=dtype).__dlpack__(max_version=(1, 3)))
    assert taken.dtype == code
    taken.release()
    a = tn.from_dlpack(dl.Tensor((6,), dtype=code))
    assert a.dtype == tn.dtype(dtype)
    assert str(dtype) in str(a.dtype)


def test_padded_elements_say_so():
    tensor = dl.Tensor((6,), dtype=(17, 4, 1), flags=dl.SUBBYTE_PADDED)
    a = tn.from_dlpack(tensor)
    taken = dl.take(a.__dlpack__(max_version=(1, 3)))
    assert taken.flags & dl.SUBBYTE_PADDED
    taken.release()
    packed = tn.from_dlpack(dl.Tensor((6,), dtype=(17, 4, 1)))
    taken = dl.take(packed.__dlpack__(max_version=(1, 3)))
    assert not taken.flags & dl.SUBBYTE_PADDED
    taken.release()
    assert packed.nbytes == 3
    assert a.nbytes == 6


@pytest.mark.parametrize("is_under_lease", [False, True])
@pytest.mark.parametrize("export", ["__dlpack__", "to_dlpack_for_read"])
def test_a_wait_for_an_export_is_never_certain_to_be_endless(
    in_a_process_with_one_thread, export, is_under_lease
):
    """A thread that Python does not know drops it, after the waiter has looked whether it is alone."""
    library = native.load()

    def wait():
        a = tn.zeros(4)
        (wake, waker), (_, done) = os.pipe(), os.pipe()
        lease = a.lease("w") if is_under_lease else None
        if lease:
            op = tn.push(tn.fill, tn.overwrite(a), 5)
        taken = dl.take(getattr(a, export)())
        library.call_when_woken(taken._deleter, taken.address, wake, done)
        if lease:
            lease.release()  # the export continues it
        else:
            op = tn.push(tn.fill, tn.overwrite(a), 5, on_conflict="wait")
        signal.signal(signal.SIGALRM, lambda *_: os.write(waker, b"w"))
        signal.setitimer(signal.ITIMER_REAL, 0.3)
        op.wait()
        assert a.tolist() == [5] * 4

    in_a_process_with_one_thread(wait)
