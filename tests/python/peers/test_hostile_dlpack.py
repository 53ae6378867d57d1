# SPDX-License-Identifier: Apache-2.0
"""Tensors and capsules that lie. Each is refused with a plain exception, its deleter runs exactly once, and
nothing is left behind (the fixture of this folder counts)."""

import ctypes
import threading

import foreign_dlpack as dl
import live
import numpy as np
import pytest

import tenon as tn

REFUSALS = (BufferError, TypeError, ValueError, OverflowError)
BIG = 2**63 - 1

MALFORMED = {
    "ndim -1": {"ndim": -1},
    "ndim 65": {"shape": (1,) * 65},
    "ndim 2^31-1": {"ndim": 2**31 - 1},
    "ndim -2^31": {"ndim": -(2**31)},
    "shape NULL": {"shape": None, "ndim": 1},
    "shape NULL, 3 axes": {"shape": None, "ndim": 3},
    "shape -1": {"shape": (-1,)},
    "shape (2, -3)": {"shape": (2, -3)},
    "shape -2^63": {"shape": (-(2**63),)},
    "shape (0, -1)": {"shape": (0, -1)},
    "shape (-1, 0)": {"shape": (-1, 0)},
    "(-2, -2)": {"shape": (-2, -2)},
    "size overflows": {"shape": (2**32, 2**32)},
    "bytes overflow": {"shape": (2**61,), "dtype": dl.F64},
    "bytes overflow by lanes": {"shape": (2**50,), "dtype": (dl.FLOAT, 64, 2**15)},
    "size 2^63-1": {"shape": (BIG,), "dtype": dl.U8},
    "size wraps to small": {"shape": (2**62, 8, 2)},
    "stride overflows": {"shape": (3,), "strides": (BIG // 2,)},
    "stride overflows backwards": {"shape": (3,), "strides": (-(2**62),)},
    "stride -2^63": {"shape": (2,), "strides": (-(2**63),)},
    "strides cancel after overflow": {"shape": (2, 2), "strides": (BIG, -BIG)},
    "strides of both signs overflow": {"shape": (2, 2), "strides": (2**62, -(2**62)), "dtype": dl.U8},
    "strides below zero address": {"shape": (2,), "strides": (-(2**58),)},
    "strides above the address space": {"shape": (2,), "strides": (2**61,)},
    "data NULL": {"null_data": True},
    "data NULL with byte_offset": {"null_data": True, "byte_offset": 64},
    "byte_offset 2^64-1": {"byte_offset": 2**64 - 1},
    "byte_offset wraps round": {"byte_offset": 2**64 - 64},
    "byte_offset misaligned": {"byte_offset": 2},
    "data misaligned": {"data": 4097},
    "data at the end of the address space": {"data": 2**64 - 4, "shape": (8,)},
    "code 3 (opaque)": {"dtype": (3, 64, 1)},
    "code 18": {"dtype": (18, 32, 1)},
    "code 255": {"dtype": (255, 8, 1)},
    "bits 0": {"dtype": (dl.FLOAT, 0, 1)},
    "float8 without a kind": {"dtype": (dl.FLOAT, 8, 1)},
    "float24": {"dtype": (dl.FLOAT, 24, 1)},
    "int7": {"dtype": (dl.INT, 7, 1)},
    "int255": {"dtype": (dl.INT, 255, 1)},
    "bool1": {"dtype": (dl.BOOL, 1, 1)},
    "bool32": {"dtype": (dl.BOOL, 32, 1)},
    "bfloat8": {"dtype": (dl.BFLOAT, 8, 1)},
    "complex32 of 16 bits": {"dtype": (dl.COMPLEX, 16, 1)},
    "fp4 in 8 bits": {"dtype": (17, 8, 1)},
    "fp6 in 4 bits": {"dtype": (15, 4, 1)},
    "lanes 0": {"dtype": (dl.FLOAT, 32, 0)},
    "cuda": {"device": (dl.CUDA, 0)},
    "device 0": {"device": (0, 0)},
    "device -7": {"device": (-7, 0)},
    "packed fp4 with gaps": {"dtype": (17, 4, 1), "shape": (4,), "strides": (3,)},
    "packed fp4 backwards": {"dtype": (17, 4, 1), "shape": (4,), "strides": (-1,)},
}


@pytest.mark.parametrize("legacy", [False, True], ids=["versioned", "legacy"])
@pytest.mark.parametrize("kind", MALFORMED)
def test_a_malformed_tensor_is_refused_and_consumed(kind, legacy):
    tensor = dl.Tensor(**{"legacy": legacy, **MALFORMED[kind]})
    with pytest.raises(REFUSALS) as info:
        tn.from_dlpack(dl.Wrapped(tensor.capsule()))
    assert tensor.deaths == 1
    assert len(str(info.value)) > 10


@pytest.mark.parametrize("kind", MALFORMED)
def test_a_malformed_tensor_without_a_deleter_is_refused(kind):
    tensor = dl.Tensor(**{**MALFORMED[kind], "deleter": None})
    with pytest.raises(REFUSALS):
        tn.from_dlpack(dl.Wrapped(tensor.capsule()))


@pytest.mark.parametrize("legacy", [False, True], ids=["versioned", "legacy"])
def test_a_tensor_without_a_deleter_is_imported_and_forgotten(legacy):
    tensor = dl.Tensor((4,), legacy=legacy, deleter=None)
    for _ in range(3):
        a = tn.from_dlpack(dl.Wrapped(tensor.capsule()))
        assert a.writable != legacy, "the legacy struct cannot say that writing is allowed"
        assert a[0].item() == 0
        del a
    assert tensor.managed.dl.ndim == 1  # nobody wrote into it


@pytest.mark.parametrize(
    "name",
    [
        b"",
        b"dltensor ",
        b"DLTENSOR",
        b"dltensor_version",
        b"dltensor_versioned2",
        b"used_dltensor",
        b"used_dltensor_versioned",
        b"PyCapsule",
        b"dlpack_exchange_api",
        b"x" * 10_000,
        b"\xff\xfe%s%n",
    ],
    ids=lambda name: repr(name[:24]),
)
def test_capsules_of_other_names_are_refused_and_left_alone(name):
    tensor = dl.Tensor(name=name)
    capsule = tensor.capsule()
    for source in (dl.Wrapped(capsule), capsule):
        with pytest.raises(REFUSALS):
            tn.from_dlpack(source)
    assert dl.capsule_name(capsule) == name
    assert tensor.deaths == 0
    dl.Taken(ctypes.addressof(tensor.managed), True).release()


def test_a_capsule_without_a_name_is_refused():
    tensor = dl.Tensor()
    capsule = dl.capsule_new(tensor.lend(), None, None)
    for source in (dl.Wrapped(capsule), capsule):
        with pytest.raises(REFUSALS):
            tn.from_dlpack(source)
    assert tensor.deaths == 0
    dl.Taken(ctypes.addressof(tensor.managed), True).release()


def test_capsules_of_other_libraries_are_refused():
    import datetime

    for capsule in (datetime.datetime_CAPI, tn.NDArray.__dlpack_c_exchange_api__):
        for source in (dl.Wrapped(capsule), capsule):
            with pytest.raises(REFUSALS):
                tn.from_dlpack(source)


def test_a_capsule_given_twice_by_its_producer_is_consumed_once():
    tensor = dl.Tensor()
    source = dl.Wrapped(tensor.capsule())
    a = tn.from_dlpack(source)
    with pytest.raises(REFUSALS):
        tn.from_dlpack(source)
    assert tensor.deaths == 0
    del a
    assert tensor.deaths == 1
    with pytest.raises(REFUSALS):
        tn.from_dlpack(source)
    assert tensor.deaths == 1


def test_a_capsule_imported_by_two_threads_at_once_is_consumed_once():
    """Oracle: of n threads that start together with one capsule, exactly one gets an array."""
    n, rounds = 4, 200
    for _ in range(rounds):
        tensor = dl.Tensor()
        source = dl.Wrapped(tensor.capsule())
        start = threading.Barrier(n)
        got, refused = [], []

        def work(start=start, source=source, got=got, refused=refused):
            start.wait()
            try:
                got.append(tn.from_dlpack(source))
            except REFUSALS as error:
                refused.append(type(error))

        threads = [threading.Thread(target=work) for _ in range(n)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert (len(got), len(refused)) == (1, n - 1)
        assert tensor.deaths == 0
        got.clear()
        assert tensor.deaths == 1
        source.result = None


def test_two_capsules_of_one_struct_are_two_users_of_one_memory():
    """A producer may lend one memory twice."""
    tensor = dl.Tensor((4,), deleter=None)
    a = tn.from_dlpack(dl.Wrapped(tensor.capsule()))
    b = tn.from_dlpack(dl.Wrapped(tensor.capsule()))
    a[0] = 3
    assert b[0].item() == 3


def test_the_deleter_may_import_and_export_itself():
    """The deleter runs user code: here it re-enters the library, also with the memory that dies."""
    log = []
    buffer = dl.aligned_bytes(256)

    def again():
        inner = tn.from_dlpack(dl.Tensor((4,), buffer=buffer, deleter=None))
        inner[0] = 5
        log.append(np.from_dlpack(inner).tolist())

    tensor = dl.Tensor((4,), buffer=buffer, on_death=again)
    a = tn.from_dlpack(tensor)
    del a
    live.now()
    assert log == [[5.0, 0.0, 0.0, 0.0]]
    assert tensor.deaths == 1


def test_a_deleter_that_drops_the_last_array_of_another_tensor():
    """A chain of tensors, each of which keeps the next one alive: deleters run inside of deleters."""
    n = 500
    tensors = []
    kept = None
    for _ in range(n):
        held = [kept]
        tensor = dl.Tensor((4,), on_death=held.clear)
        tensors.append(tensor)
        kept = tn.from_dlpack(tensor)
        del held
    del kept
    live.now()
    assert sum(tensor.deaths for tensor in tensors) == n


def test_a_slow_deleter_does_not_stop_other_threads():
    """While a deleter runs, imports on other threads go on: it waits for one of them."""
    imported = threading.Event()

    def wait():
        assert imported.wait(60)

    slow = dl.Tensor((4,), on_death=wait)
    array = [tn.from_dlpack(slow)]
    dropper = threading.Thread(target=array.clear)
    dropper.start()
    other = dl.Tensor((4,))
    a = tn.from_dlpack(other)
    del a
    imported.set()
    dropper.join(600)
    assert not dropper.is_alive()
    assert slow.deaths == other.deaths == 1


def test_memory_lent_again_right_after_its_deleter_ran_is_new_memory():
    """The address is the same, the storage is not: a dying storage is never found again."""
    buffer = dl.aligned_bytes(256)
    for i in range(300):
        tensor = dl.Tensor((4,), buffer=buffer)
        a = tn.from_dlpack(tensor)
        a[...] = i
        assert a.version >= 0
        b = tn.from_dlpack(dl.Tensor((2,), buffer=buffer, byte_offset=8, deleter=None))
        assert b.tolist() == [i, i]
        del a
        assert b.tolist() == [i, i]
        del b
        assert tensor.deaths == 1


def test_overlapping_tensors_share_memory_whatever_their_order_of_death():
    import itertools

    buffer = dl.aligned_bytes(256)
    for order in itertools.permutations(range(3)):
        tensors = [dl.Tensor((16,), buffer=buffer, byte_offset=32 * i) for i in range(3)]
        arrays = [tn.from_dlpack(tensor) for tensor in tensors]
        arrays[1][...] = 7
        assert arrays[0].tolist()[8:] == [7] * 8
        assert arrays[2].tolist()[:8] == [7] * 8
        arrays[1][...] = 0
        for i in order:
            arrays[i] = None
        live.now()
        assert [tensor.deaths for tensor in tensors] == [1, 1, 1]


def test_a_read_only_import_over_writable_memory_stays_read_only_and_the_reverse():
    buffer = dl.aligned_bytes(256)
    writable = tn.from_dlpack(dl.Tensor((8,), buffer=buffer))
    frozen = tn.from_dlpack(dl.Tensor((8,), buffer=buffer, flags=dl.READ_ONLY))
    assert writable.writable
    assert not frozen.writable
    del writable
    assert not frozen.writable
    second = tn.from_dlpack(dl.Tensor((8,), buffer=buffer))
    assert not frozen.writable
    if second.writable:  # the second producer says that writing is allowed
        second[0] = 1
        assert frozen[0].item() == 1
    del frozen, second


@pytest.mark.parametrize("lanes", [2, 3, 4, 7, 1024])
def test_lanes_are_refused_or_kept(lanes):
    tensor = dl.Tensor((2,), dtype=(dl.FLOAT, 32, lanes), buffer=dl.aligned_bytes(2 * 4 * 1024))
    try:
        a = tn.from_dlpack(tensor)
    except REFUSALS:
        assert tensor.deaths == 1
        return
    taken = dl.take(a.__dlpack__(max_version=(1, 0)))
    assert taken.dtype == (dl.FLOAT, 32, lanes)
    taken.release()
    assert a.nbytes == 2 * 4 * lanes
    repr(a), str(a.dtype)
    for use in (a.tolist, a.numpy, a.item, lambda: memoryview(a), lambda: np.asarray(a), lambda: a + 1):
        try:
            use()
        except REFUSALS:
            continue


@pytest.mark.parametrize("count", [1, 2, 7, 100])
def test_capsules_dropped_unconsumed_by_a_failing_import_are_freed_by_their_owner(count):
    """An import that fails before it takes the tensor leaves the capsule to its own destructor."""
    tensors = [dl.Tensor(name=b"other") for _ in range(count)]
    for tensor in tensors:
        with pytest.raises(REFUSALS):
            tn.from_dlpack(dl.Wrapped(tensor.capsule()))
        assert tensor.deaths == 0
        dl.Taken(ctypes.addressof(tensor.managed), True).release()


def test_the_destructor_of_a_consumed_capsule_cannot_replace_the_error_of_the_import():
    """A destructor in Python runs when the call drops its argument, while the error is set."""
    calls = []
    destructor = ctypes.PYFUNCTYPE(None, ctypes.c_void_p)(calls.append)
    for fail in (tn.from_dlpack, lambda capsule: tn.from_dlpack(dl.Wrapped(capsule))):
        with pytest.raises(REFUSALS, match="7"):
            fail(dl.Tensor(dtype=(dl.INT, 7, 1)).capsule(destructor))
    assert calls == []


@pytest.mark.parametrize(
    "refuse",
    [
        lambda make: tn.from_dlpack(make(), device="nonsense"),
        lambda make: tn.from_dlpack(make(), no_such_keyword=1),
        lambda make: tn.from_dlpack(x=make(), writable=3),
        lambda make: tn.zeros(3).copyto(make()),
        lambda make: tn.zeros(3).__setitem__(..., make()),
        lambda make: tn.asarray(make()),
    ],
    ids=["device", "keyword", "flag", "copyto", "assignment", "asarray"],
)
def test_the_destructor_of_a_refused_capsule_is_called_without_the_error_of_the_call(refuse):
    """It may be a function in Python, as that of MXNet, and would fail, and free nothing."""
    tensor, calls = dl.Tensor(), []
    destructor = dl.CapsuleDestructor(calls.append)
    with pytest.raises((TypeError, ValueError)):
        refuse(lambda: tensor.capsule(destructor))
    assert len(calls) == 1
    dl.Taken(ctypes.addressof(tensor.managed), True).release()


def test_numbers_in_messages_are_those_that_were_wrong():
    for arguments, words in (
        ({"shape": (2, -3)}, ("-3",)),
        ({"ndim": -1}, ("-1",)),
        ({"dtype": (dl.FLOAT, 24, 1)}, ("24",)),
        ({"device": (dl.CUDA, 0)}, ("2",)),
        ({"version": (7, 3)}, ("7",)),
        ({"byte_offset": 2}, ("4",)),
    ):
        with pytest.raises(REFUSALS) as info:
            tn.from_dlpack(dl.Tensor(**{"shape": (4,), **arguments}))
        assert all(word in str(info.value) for word in words), str(info.value)


# ----------------------------------------------------------------------------------- hostile Python


def test_producers_that_change_while_they_are_asked():
    class Shifting:
        @property
        def __dlpack__(self):
            raise RuntimeError("mine")

        def __dlpack_device__(self):
            return (1, 0)

    with pytest.raises(RuntimeError, match="mine"):
        tn.from_dlpack(Shifting())

    class Recursive:
        def __dlpack__(self, **_):
            return tn.from_dlpack(self)

        def __dlpack_device__(self):
            return (1, 0)

    with pytest.raises(RecursionError):
        tn.from_dlpack(Recursive())


def test_attributes_of_the_instance_count_as_for_any_method_of_python():
    """from_dlpack looks on the type or on the instance; an instance without either is no producer."""

    class Empty:
        pass

    thing = Empty()
    thing.__dlpack_c_exchange_api__ = tn.NDArray.__dlpack_c_exchange_api__
    with pytest.raises((TypeError, AttributeError, BufferError)):
        tn.from_dlpack(thing)


def test_capsule_of_a_producer_that_drops_itself():
    """The producer dies between __dlpack__ and the return of from_dlpack."""
    tensor = dl.Tensor()
    sources = [dl.Wrapped(tensor.capsule())]
    a = tn.from_dlpack(sources.pop())
    assert a.tolist() == [0.0] * 4
    del a
    assert tensor.deaths == 1


def test_bools_of_mxnet_are_bools():
    """MXNet writes their type as unsigned integers of one bit, and has one byte for each."""

    class Bools:
        def to_dlpack_for_read(self):
            return dl.Tensor((3,), dtype=(dl.UINT, 1, 1), buffer=memory, legacy=True).capsule()

        to_dlpack_for_write = to_dlpack_for_read

    memory = dl.aligned_bytes(3)
    memory[:] = [1, 0, 1]
    a = tn.asarray(Bools())
    assert (a.dtype, a.tolist()) == (tn.bool, [True, False, True])
    tn.array([False, True, True]).copyto(Bools())
    assert list(memory) == [0, 1, 1]
    with pytest.raises(TypeError, match="1 bits"):
        tn.from_dlpack(Bools().to_dlpack_for_read())
