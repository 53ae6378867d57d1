# SPDX-License-Identifier: Apache-2.0
"""Which struct meets which consumer: the table of versions, flags and copies, from both sides.

pyarrow tests its exporters with such a table; here it covers Tenon's, and Tenon as the consumer of pyarrow
and of producers that give a struct which was not asked for.
"""

import foreign_dlpack as dl
import numpy as np
import pytest

import tenon as tn

LEGACY_VERSIONS = (None, (0, 0), (0, 1), (0, 8), (0, 99))
VERSIONED_VERSIONS = ((1, 0), (1, 1), (1, 3), (1, 99), (2, 0), (100, 3))


@pytest.mark.parametrize("copy", [None, False, True])
@pytest.mark.parametrize("readonly", [False, True], ids=["writable", "read-only"])
@pytest.mark.parametrize("max_version", LEGACY_VERSIONS + VERSIONED_VERSIONS)
def test_the_table_of_the_producer(max_version, readonly, copy):
    a = tn.full(3, 2.0)
    source = a.readonly() if readonly else a
    legacy = max_version in LEGACY_VERSIONS
    if legacy and readonly and copy is not True:
        with pytest.raises(BufferError):
            source.__dlpack__(max_version=max_version, copy=copy)
        return
    taken = dl.take(source.__dlpack__(max_version=max_version, copy=copy))
    assert taken.is_versioned != legacy
    if not legacy:
        assert taken.version[0] == 1
        expected = (dl.READ_ONLY if readonly and copy is not True else 0) | (dl.IS_COPIED if copy else 0)
        assert taken.flags == expected
    assert [taken.at(i).value for i in range(3)] == [2.0] * 3
    assert (taken.data == a.data_ptr) == (copy is not True)
    taken.release()


@pytest.mark.parametrize("old", [False, True], ids=["keywords", "stream only"])
@pytest.mark.parametrize("legacy", [False, True], ids=["versioned", "legacy"])
@pytest.mark.parametrize("minor", [0, 1, 3, 99])
def test_a_consumer_checks_what_it_gets_and_not_what_it_asked_for(legacy, old, minor):
    tensor = dl.Tensor((3,), (1,), legacy=legacy, version=(1, minor))
    a = tn.from_dlpack(dl.OldProducer(tensor) if old else tensor)
    assert a.shape == (3,)
    del a
    assert tensor.deaths == 1


@pytest.mark.parametrize("legacy", [False, True], ids=["versioned", "legacy"])
@pytest.mark.parametrize("form", ["object", "capsule", "old"])
def test_a_request_to_write_is_granted_unless_the_tensor_is_flagged(form, legacy):
    def made(**options):
        tensor = dl.Tensor((3,), (1,), legacy=legacy, **options)
        source = {"object": lambda: tensor, "capsule": tensor.capsule, "old": lambda: dl.OldProducer(tensor)}
        return tensor, source[form]()

    tensor, source = made()
    a = tn.from_dlpack(source, writable=True)
    a[1] = 5
    assert np.frombuffer(tensor.buffer, "f4")[1] == 5
    del a
    assert tensor.deaths == 1
    if legacy:  # it has no flags
        return
    tensor, source = made(flags=dl.READ_ONLY)
    with pytest.raises(BufferError, match="exported as read-only"):
        tn.from_dlpack(source, writable=True)
    assert tensor.deaths == 1, "a refused tensor goes back to its producer"


@pytest.mark.parametrize("version", [(0, 8), (0, 0), (2, 0), (2**32 - 1, 2**32 - 1)])
def test_of_an_unknown_major_version_only_the_deleter_is_used(version):
    tensor = dl.Tensor((3,), version=version, data=8, ndim=2**31 - 1, flags=2**64 - 1)
    with pytest.raises(BufferError, match=rf"{version[0]}\.{version[1]}"):
        tn.from_dlpack(tensor)
    assert tensor.deaths == 1


def test_of_an_unknown_major_version_without_a_deleter_nothing_is_called():
    tensor = dl.Tensor((3,), version=(2, 0), deleter=None)
    with pytest.raises(BufferError):
        tn.from_dlpack(tensor)


@pytest.mark.parametrize("flags", [0, dl.READ_ONLY, dl.IS_COPIED, dl.READ_ONLY | dl.IS_COPIED, 1 << 40])
def test_flags_are_read_and_unknown_ones_ignored(flags):
    tensor = dl.Tensor((3,), flags=flags)
    a = tn.from_dlpack(tensor)
    assert a.writable == (not flags & dl.READ_ONLY)
    del a
    assert tensor.deaths == 1


def test_a_type_error_of_a_new_producer_is_not_hidden_when_copy_was_asked_for():
    class Old:
        def __dlpack__(self, *, stream=None):
            raise AssertionError("asked without copy=False, it might copy")

        def __dlpack_device__(self):
            return (1, 0)

    with pytest.raises((TypeError, BufferError, ValueError)):
        tn.from_dlpack(Old(), copy=False)


def test_an_old_producer_can_still_be_copied_or_says_that_it_cannot():
    x = np.arange(3.0)

    class Old:
        def __dlpack__(self, *, stream=None):
            return x.__dlpack__()

        def __dlpack_device__(self):
            return (1, 0)

    try:
        a = tn.from_dlpack(Old(), copy=True)
    except (TypeError, BufferError):
        return
    assert a.data_ptr != x.ctypes.data
    a[0] = 7
    assert x[0] == 0


def test_a_producer_that_gives_an_alias_where_a_copy_was_asked_for_is_not_believed():
    """IS_COPIED is the producer's word that it copied; without it the elements are copied here."""
    tensor = dl.Tensor((3,))
    try:
        a = tn.from_dlpack(tensor, copy=True)
    except BufferError:
        return
    assert a.data_ptr != tensor.managed.dl.data
    assert tensor.deaths == 1


@pytest.mark.parametrize(
    "error",
    [ValueError("mine"), BufferError("mine"), KeyError("mine"), MemoryError("mine"), KeyboardInterrupt()],
)
def test_errors_of_the_producer_come_through(error):
    with pytest.raises(type(error)):
        tn.from_dlpack(dl.Wrapped(error))


def test_a_buffer_error_of_the_producer_does_not_lead_to_a_legacy_request():
    """A read-only producer refuses the legacy struct for a reason: asking again would lie."""
    source = dl.Wrapped(BufferError("read-only"))
    with pytest.raises(BufferError, match="read-only"):
        tn.from_dlpack(source)
    assert all(call.get("max_version", (0,))[0] >= 1 for call in source.calls)


@pytest.mark.parametrize("value", [None, 7, "text", b"", [], pytest.param(object(), id="object")], ids=repr)
def test_what_is_no_capsule_is_refused(value):
    with pytest.raises(TypeError, match="not a capsule"):
        tn.from_dlpack(dl.Wrapped(value))


def test_devices_that_the_host_cannot_read_are_refused_and_consumed_or_left():
    for device in ((dl.CUDA, 0), (dl.METAL, 0), (10, 0), (19, 0), (77, 3), (-1, -1)):
        tensor = dl.Tensor((3,), device=device)
        with pytest.raises((BufferError, ValueError)):
            tn.from_dlpack(tensor)
        assert not dl.is_lent(tensor)


@pytest.mark.parametrize("device", [dl.CUDA_HOST, dl.ROCM_HOST, dl.CUDA_MANAGED])
def test_memory_that_the_host_can_read_is_imported(device):
    tensor = dl.Tensor((3,), device=(device, 0))
    a = tn.from_dlpack(tensor)
    assert a.tolist() == [0.0] * 3
    del a
    assert tensor.deaths == 1


def test_a_capsule_whose_device_is_not_the_one_announced_is_refused():
    """A pinned tensor of torch says CUDAHost and exports CPU, which is harmless; CUDA behind CPU is not."""
    tensor = dl.Tensor((3,), device=(dl.CUDA, 0))
    with pytest.raises((BufferError, ValueError)):
        tn.from_dlpack(dl.Wrapped(tensor.capsule(), device=(dl.CPU, 0)))
    assert tensor.deaths == 1
    pinned = dl.Tensor((3,), device=(dl.CPU, 0))
    a = tn.from_dlpack(dl.Wrapped(pinned.capsule(), device=(dl.CUDA_HOST, 0)))
    del a
    assert pinned.deaths == 1


@pytest.mark.parametrize(
    "device", [None, 1, (1,), (1, 0, 0), ("cpu", 0), (2**40, 0), ValueError("mine")], ids=repr
)
def test_a_device_that_is_none_is_refused_or_not_looked_at(device):
    tensor = dl.Tensor((3,))
    try:
        a = tn.from_dlpack(dl.Wrapped(tensor.capsule(_free_unused), device=device))
    except (TypeError, ValueError, BufferError, OverflowError):
        a = None
    del a
    assert not dl.is_lent(tensor)
    assert tensor.deaths == 1


@dl.CapsuleDestructor
def _free_unused_callback(capsule):
    """What the capsule destructor of a careful producer does."""
    name = dl._name_at(capsule)
    if name in (b"dltensor", b"dltensor_versioned"):
        taken = dl.Taken(dl._pointer_at(capsule, name), name == b"dltensor_versioned")
        taken.release(with_gil=True)


_free_unused = dl.ctypes.cast(_free_unused_callback, dl.c_void_p).value


def test_pyarrow_table():
    pa = pytest.importorskip("pyarrow")
    for kind in (pa.int8(), pa.int64(), pa.uint16(), pa.float16(), pa.float32(), pa.float64()):
        source = pa.array(np.arange(5).astype(kind.to_pandas_dtype()), kind)
        a = tn.from_dlpack(source)
        assert not a.writable
        assert a.tolist() == [0, 1, 2, 3, 4]
        assert a.data_ptr == source.buffers()[1].address
        assert a.dtype == kind.to_pandas_dtype()
    sliced = pa.array(np.arange(10.0))[3:7]
    assert tn.from_dlpack(sliced).tolist() == [3, 4, 5, 6]
    for refused in (pa.array([1, None]), pa.array([True, False]), pa.array(["a"])):
        with pytest.raises((TypeError, ValueError, BufferError, pa.ArrowException)):
            tn.from_dlpack(refused)
