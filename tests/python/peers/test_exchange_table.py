# SPDX-License-Identifier: Apache-2.0
"""The C exchange table of DLPack 1.3: NDArray's own, slot by slot, and those of other types when they lie."""

import ctypes
import gc
import weakref

import foreign_dlpack as dl
import live
import native
import numpy as np
import pytest

import tenon as tn


@pytest.fixture(scope="module")
def slots():
    return dl.exchange_table(tn.NDArray)[1]


def call(slot, *arguments, out=None):
    out = dl.c_void_p() if out is None else out
    return slot(*arguments, ctypes.byref(out)), out


# ------------------------------------------------------------------------------------- as producer


def test_the_table_is_static_versioned_and_without_a_borrowing_slot():
    table, slots = dl.exchange_table(tn.NDArray)
    again, _ = dl.exchange_table(tn.NDArray)
    assert ctypes.addressof(table) == ctypes.addressof(again)
    assert table.header.version.major == 1
    assert table.header.version.minor >= 3
    assert not table.header.prev_api
    assert slots.pop("borrow") is None
    assert all(slots.values())


def test_the_table_stands_on_the_type_and_is_the_same_for_instances():
    a = tn.zeros(1)
    assert "__dlpack_c_exchange_api__" in vars(tn.NDArray)
    address = dl.capsule_pointer(a.__dlpack_c_exchange_api__, b"dlpack_exchange_api")
    assert address == ctypes.addressof(dl.exchange_table(tn.NDArray)[0])
    with pytest.raises((AttributeError, TypeError)):
        a.__dlpack_c_exchange_api__ = None


def test_from_object_gives_a_view_of_the_array(slots):
    a = tn.zeros((2, 3), dtype="int64")
    views = live.views()
    status, out = call(slots["from_object"], a)
    assert status == 0
    assert live.views() == views + 1
    taken = dl.Taken(out.value, True)
    assert taken.version[0] == 1
    assert (taken.data, taken.shape, taken.strides) == (a.data_ptr, (2, 3), (3, 1))
    assert taken.dtype == dl.I64
    assert taken.flags == 0
    taken.release()
    assert live.views() == views


def test_from_object_says_read_only(slots):
    status, out = call(slots["from_object"], tn.zeros(3).readonly())
    assert status == 0
    taken = dl.Taken(out.value, True)
    assert taken.flags == dl.READ_ONLY
    taken.release(with_gil=True)


@pytest.mark.parametrize(
    "thing", [None, 1, "text", np.zeros(3), pytest.param(object(), id="object"), tn.NDArray, [1.0]], ids=repr
)
def test_from_object_of_another_type_is_an_error_and_no_crash(slots, thing):
    with pytest.raises((TypeError, BufferError, ValueError)):
        call(slots["from_object"], thing)


def test_to_object_takes_the_tensor_over(slots):
    tensor = dl.Tensor((2, 2))
    status, out = call(slots["to_object"], tensor.lend())
    assert status == 0
    a = ctypes.cast(out, dl.py_object).value
    ctypes.pythonapi.Py_DecRef(dl.py_object(a))
    assert type(a) is tn.NDArray
    assert tn._core.references([a]) == 1  # of the variable
    a[0, 1] = 5
    assert np.frombuffer(tensor.buffer, "f4")[1] == 5
    assert tensor.deaths == 0
    del a
    assert tensor.deaths == 1


@pytest.mark.parametrize(
    "bad",
    [
        {"ndim": -1},
        {"shape": (-1,)},
        {"dtype": (dl.FLOAT, 24, 1)},
        {"device": (dl.CUDA, 0)},
        {"version": (2, 0)},
        {"byte_offset": 1},
    ],
    ids=str,
)
def test_to_object_of_a_malformed_tensor_is_an_error_and_consumes(slots, bad):
    tensor = dl.Tensor(**{"shape": (4,), **bad})
    with pytest.raises((TypeError, BufferError, ValueError)):
        call(slots["to_object"], tensor.lend())
    assert tensor.deaths == 1


def allocate(slots, shape, dtype=dl.F32, device=(1, 0), ndim=None, with_set_error=True, strides=None):
    prototype = dl.Tensor(shape, strides, dtype, device=device, ndim=ndim, null_data=True)
    errors = []
    report = dl.SetError(lambda context, kind, message: errors.append((context, kind, message)))
    address = ctypes.cast(report, dl.c_void_p) if with_set_error else None
    out = dl.c_void_p()
    status = slots["allocator"](prototype.managed.dl, ctypes.byref(out), 77, address)
    return status, out.value, errors


def test_the_allocator_makes_memory_of_its_own(slots):
    before = live.now()
    status, address, errors = allocate(slots, (3, 5), dl.F64, strides=(99, -7))
    assert (status, errors) == (0, [])
    taken = dl.Taken(address, True)
    assert (taken.shape, taken.strides, taken.dtype, taken.device) == ((3, 5), (5, 1), dl.F64, (1, 0))
    assert taken.data % 64 == 0
    assert live.now() != before
    taken.at(2, 4, kind=ctypes.c_double).value = 1.0
    taken.release()
    assert live.now() == before


@pytest.mark.parametrize("shape", [(), (0,), (2, 0, 3)])
def test_the_allocator_makes_scalars_and_empty_tensors(slots, shape):
    status, address, _ = allocate(slots, shape)
    assert status == 0
    taken = dl.Taken(address, True)
    assert taken.ndim == len(shape)
    taken.release()


@pytest.mark.parametrize(
    "bad",
    [
        {"shape": (-1,)},
        {"shape": (2**62, 4)},
        {"shape": (2**46,)},
        {"shape": (4,), "dtype": (3, 64, 1)},
        {"shape": (4,), "dtype": (dl.FLOAT, 24, 1)},
        {"shape": (4,), "dtype": (dl.FLOAT, 32, 0)},
        {"shape": (4,), "device": (dl.CUDA, 0)},
        {"shape": (4,), "ndim": -1},
        {"shape": (4,), "ndim": 65},
        {"shape": None, "ndim": 2},
    ],
    ids=str,
)
@pytest.mark.parametrize("with_set_error", [True, False], ids=["set_error", "NULL"])
def test_the_allocator_reports_through_set_error_or_not_at_all(slots, bad, with_set_error):
    status, address, errors = allocate(slots, **bad, with_set_error=with_set_error)
    assert status != 0
    assert address is None
    if with_set_error:
        ((context, kind, message),) = errors
        assert context == 77
        assert kind.decode().endswith("Error")
        assert len(message) > 10


def test_the_stream_of_the_cpu_is_null(slots):
    out = dl.c_void_p(123)
    assert slots["stream"](1, 0, ctypes.byref(out)) == 0
    assert out.value is None


def test_the_stream_of_another_device_is_an_error_or_null(slots):
    out = dl.c_void_p(123)
    try:
        status = slots["stream"](2, 0, ctypes.byref(out))
    except (BufferError, ValueError, RuntimeError, TypeError):
        return
    assert status == 0
    assert out.value is None


def test_a_round_trip_through_the_table_is_the_same_memory(slots):
    a = tn.zeros(4)
    _, out = call(slots["from_object"], a)
    _, back = call(slots["to_object"], out.value)
    b = ctypes.cast(back, dl.py_object).value
    ctypes.pythonapi.Py_DecRef(dl.py_object(b))
    b[1] = 2
    assert a.tolist() == [0, 2, 0, 0]


# ------------------------------------------------------------------------------------- as consumer


def producer(table, tensor=None, device=(1, 0)):
    """An object of a new type that has this table, and the methods of the protocol when tensor is given."""
    body = {"__dlpack_c_exchange_api__": table}
    if tensor is not None:
        body["__dlpack__"] = lambda self, **_: tensor.capsule()
        body["__dlpack_device__"] = lambda self: device
    return type("Producer", (), body)()


@pytest.fixture(scope="module")
def native_slot():
    native.load()

    def make(name, version=(1, 3), table_name=b"dlpack_exchange_api", prev=None):
        table = dl.Table()
        table.header.version = dl.Version(*version)
        table.header.prev_api = prev
        if name is not None:
            table.from_object = native.address_of(name)
        for slot in ("allocator", "to_object", "stream"):
            setattr(table, slot, native.address_of("slot_gives_null"))
        dl._tables.append((table, None))
        return dl.capsule_new(ctypes.addressof(table), dl.name_buffer(table_name), None)

    return make


def deleted():
    return native.load().tensors_deleted()


def test_the_table_of_another_type_is_used(native_slot):
    before = deleted()
    a = tn.from_dlpack(producer(native_slot("slot_gives_tensor"), dl.Tensor((9,), deleter=None)))
    if a.shape == (9,):
        pytest.fail("the exchange table was not used")
    assert a.tolist() == [0.0] * 4
    del a
    assert deleted() == before + 1


@pytest.mark.parametrize(
    ("slot", "error"),
    [("slot_fails_with_buffer_error", BufferError), ("slot_fails_with_value_error", ValueError)],
)
def test_errors_of_the_table_come_through_or_lead_to_the_method(native_slot, slot, error):
    tensor = dl.Tensor((9,))
    source = producer(native_slot(slot), tensor)
    try:
        a = tn.from_dlpack(source)
    except error:
        return
    assert a.shape == (9,)
    del a
    assert tensor.deaths == 1


@pytest.mark.parametrize("slot", ["slot_fails_without_error", "slot_gives_null", None])
def test_a_table_that_gives_nothing_is_an_error_or_leads_to_the_method(native_slot, slot):
    for tensor in (None, dl.Tensor((9,))):
        try:
            a = tn.from_dlpack(producer(native_slot(slot), tensor))
        except (SystemError, BufferError, TypeError, AttributeError, RuntimeError, ValueError):
            continue
        assert a.shape == (9,)
        del a
        assert tensor.deaths == 1


@pytest.mark.parametrize("slot", ["slot_gives_unknown_major", "slot_gives_negative_shape"])
def test_malformed_tensors_of_a_table_are_refused_and_deleted(native_slot, slot):
    before = deleted()
    with pytest.raises((BufferError, ValueError)):
        tn.from_dlpack(producer(native_slot(slot)))
    assert deleted() == before + 1


@pytest.mark.parametrize("version", [(0, 8), (2, 0), (2**32 - 1, 0)])
def test_tables_of_another_major_version_are_not_used(native_slot, version):
    before = native.load().tensors_made()
    a = tn.from_dlpack(producer(native_slot("slot_gives_tensor", version), dl.Tensor((9,), deleter=None)))
    assert a.shape == (9,)
    assert native.load().tensors_made() == before


def test_an_older_table_behind_a_newer_one_is_found_or_the_method_is_used(native_slot):
    older = native_slot("slot_gives_tensor")
    address = dl.capsule_pointer(older, b"dlpack_exchange_api")
    newer = native_slot("slot_fails_with_value_error", version=(2, 0), prev=address)
    a = tn.from_dlpack(producer(newer, dl.Tensor((9,), deleter=None)))
    assert a.shape in ((4,), (9,))


def test_tables_that_point_back_at_themselves_end(native_slot):
    capsule = native_slot("slot_gives_tensor", version=(3, 0))
    address = dl.capsule_pointer(capsule, b"dlpack_exchange_api")
    dl.Table.from_address(address).header.prev_api = address
    a = tn.from_dlpack(producer(capsule, dl.Tensor((9,), deleter=None)))
    assert a.shape == (9,)


@pytest.mark.parametrize(
    "junk",
    [None, 0, 12345, "text", b"", object(), tn.zeros(1), type],
    ids=["None", "0", "12345", "text", "bytes", "object", "NDArray", "type"],
)
def test_attributes_that_are_no_table_lead_to_the_method(junk):
    a = tn.from_dlpack(producer(junk, dl.Tensor((9,), deleter=None)))
    assert a.shape == (9,)
    with pytest.raises((BufferError, TypeError, AttributeError, ValueError)):
        tn.from_dlpack(producer(junk))


def test_capsules_of_other_names_lead_to_the_method(native_slot):
    capsule = native_slot("slot_gives_tensor", table_name=b"dlpack_exchange")
    a = tn.from_dlpack(producer(capsule, dl.Tensor((9,), deleter=None)))
    assert a.shape == (9,)


def test_the_integer_of_an_older_proposal_is_not_dereferenced():
    class Older:
        __c_dlpack_exchange_api__ = 12345

        def __dlpack__(self, **_):
            return dl.Tensor((9,), deleter=None).capsule()

        def __dlpack_device__(self):
            return (1, 0)

    assert tn.from_dlpack(Older()).shape == (9,)


def test_a_subclass_that_overrides_dlpack_is_asked_and_not_the_inherited_table(native_slot):
    base = type(producer(native_slot("slot_gives_tensor"), dl.Tensor((8,), deleter=None)))
    assert tn.from_dlpack(base()).shape == (4,)

    class Plain(base):
        pass

    assert tn.from_dlpack(Plain()).shape in ((4,), (8,))

    class Overriding(base):
        def __dlpack__(self, **_):
            return dl.Tensor((9,), deleter=None).capsule()

    class Further(Overriding):
        pass

    for kind in (Overriding, Further, Overriding):
        assert tn.from_dlpack(kind()).shape == (9,)
    assert tn.from_dlpack(base()).shape == (4,)


def test_a_type_at_the_address_of_a_dead_one_is_not_taken_for_it(native_slot):
    """Types come and go at the same address: one with a table, then one whose method counts."""
    table = native_slot("slot_gives_tensor")
    dead, reused = set(), 0

    def plain_producer():
        tensor = dl.Tensor((9,), deleter=None)
        body = {"__dlpack__": lambda self, **_: tensor.capsule(), "__dlpack_device__": lambda self: (1, 0)}
        return type("Producer", (), body)()

    for _ in range(20):
        sources = [producer(table) for _ in range(20)]
        addresses = {id(type(source)) for source in sources}
        assert {tn.from_dlpack(source).shape for source in sources} == {(4,)}
        del sources
        gc.collect()
        dead |= addresses
        sources = [plain_producer() for _ in range(20)]
        reused += len(dead & {id(type(source)) for source in sources})
        assert {tn.from_dlpack(source).shape for source in sources} == {(9,)}
    if reused == 0:
        pytest.skip("this allocator gives no address twice")


def test_what_is_remembered_keeps_a_few_types_alive_and_not_all(native_slot):
    table = native_slot("slot_gives_tensor")
    references = []
    for _ in range(100):
        source = producer(table)
        references.append(weakref.ref(type(source)))
        tn.from_dlpack(source)
    del source
    gc.collect()
    assert sum(reference() is not None for reference in references) <= 16


def test_torch_tensors_come_through_their_table_with_all_refusals():
    torch = pytest.importorskip("torch")
    t = torch.arange(6.0)
    a = tn.from_dlpack(t)
    assert a.data_ptr == t.data_ptr()
    for refused in (t.clone().requires_grad_(), torch.tensor([1 + 2j]).conj(), torch.eye(3).to_sparse()):
        with pytest.raises((BufferError, RuntimeError, TypeError, ValueError)):
            tn.from_dlpack(refused)
