# SPDX-License-Identifier: Apache-2.0
"""DLPack through the package's own door: capsules, keywords, the table on the type, consumption once."""

import ctypes
import inspect
import re
import weakref

import numpy as np
import pytest

import tenon as tn

pytestmark = pytest.mark.usefixtures("nothing_stays_behind")

with_dlpack_1 = pytest.mark.skipif(
    np.lib.NumpyVersion(np.__version__) < "2.1.0", reason="NumPy speaks DLPack 1.0 from 2.1 on"
)

is_valid = ctypes.pythonapi.PyCapsule_IsValid
is_valid.argtypes = (ctypes.py_object, ctypes.c_char_p)


class Exporter:
    """An object that exports what it is told to, and remembers what it was asked."""

    def __init__(self, make, device=(1, 0)):
        self.make, self.device, self.asked = make, device, []

    def __dlpack__(self, **keywords):
        self.asked.append(keywords)
        return self.make(**keywords)

    def __dlpack_device__(self):
        return self.device


def test_capsules_are_consumed_once():
    for max_version in (None, (1, 0)):
        capsule = tn.zeros(3).__dlpack__(max_version=max_version)
        tn.from_dlpack(capsule)
        with pytest.raises(ValueError, match="once"):
            tn.from_dlpack(capsule)


def test_a_round_trip_is_the_same_storage():
    a = tn.zeros((4, 6))
    for source in (a, a[1:, ::2], a.T, a[::-1]):
        for b in (tn.from_dlpack(source), tn.from_dlpack(source.__dlpack__(max_version=(1, 0)))):
            assert b.data_ptr == source.data_ptr
            assert (b.shape, b.strides) == (source.shape, source.strides)
            assert b.writable


def test_the_verbs_of_mxnet_give_legacy_capsules():
    a = tn.zeros(3)
    for capsule, writable in [(a.to_dlpack_for_read(), False), (a.to_dlpack_for_write(), True)]:
        assert is_valid(capsule, b"dltensor")
        b = tn.from_dlpack(capsule)
        assert b.data_ptr == a.data_ptr
        assert b.writable == writable
    assert is_valid(a.readonly().to_dlpack_for_read(), b"dltensor")
    with pytest.raises(BufferError, match="read-only"):
        a.readonly().to_dlpack_for_write()


def test_the_verbs_of_mxnet_are_functions_too():
    a = tn.zeros(3)
    assert not tn.from_dlpack(tn.to_dlpack_for_read(a)).writable
    b = tn.from_dlpack(tn.to_dlpack_for_write(a))
    b[0] = 5
    assert a[0].item() == 5
    with pytest.raises(BufferError, match="read-only"):
        tn.to_dlpack_for_write(a.readonly())


def test_a_legacy_capsule_has_no_negative_strides():
    a = tn.array(np.arange(6.0).reshape(2, 3))[:, ::-1]
    exports = [a.__dlpack__, a.to_dlpack_for_read, a.to_dlpack_for_write, a.readonly().to_dlpack_for_read]
    exports += [lambda: a.__dlpack__(max_version=(0, 8)), lambda: tn.to_dlpack_for_read(a)]
    for export in exports:
        with pytest.raises(BufferError, match=r"negative strides .*pass a\.copy\(\)"):
            export()
    assert a.leases() == []
    assert tn.from_dlpack(a.__dlpack__(copy=True)).tolist() == a.tolist()
    assert tn.from_dlpack(a.__dlpack__(max_version=(1, 0))).strides == a.strides
    assert tn.from_dlpack(a[:, :1].to_dlpack_for_read()).shape == (2, 1)


def test_a_legacy_capsule_is_writable_on_request():
    x = np.zeros(3)
    for source in (lambda: x.__dlpack__(), lambda: Exporter(lambda **_: x.__dlpack__())):
        assert not tn.from_dlpack(source()).writable
        assert not tn.from_dlpack(source(), writable=None).writable
        assert not tn.from_dlpack(source(), writable=False).writable
        b = tn.from_dlpack(source(), writable=True)
        assert b.data_ptr == x.ctypes.data
        b[1] += 7
    assert x[1] == 14


@with_dlpack_1
def test_what_is_exported_as_read_only_is_not_made_writable():
    x = np.zeros(3)
    frozen = x[:]
    frozen.flags.writeable = False
    a = tn.zeros(3)
    for make in (
        lambda: a.readonly(),
        lambda: a.readonly().__dlpack__(max_version=(1, 0)),
        lambda: a.to_dlpack_for_read(),
        lambda: frozen,
        lambda: frozen.__dlpack__(max_version=(1, 0)),
        lambda: Exporter(lambda **_: frozen.__dlpack__(max_version=(1, 0))),
    ):
        with pytest.raises(BufferError, match=r"exported as read-only.*copy=True"):
            tn.from_dlpack(make(), writable=True)
        b = tn.from_dlpack(make(), copy=True, writable=True)
        b[0] = 1
    assert x.tolist() == a.tolist() == [0, 0, 0]
    assert not a.leases(), "what was refused is not held"


def test_writable_memory_is_imported_as_asked():
    a = tn.zeros(3)
    for make in (lambda: a, lambda: a.__dlpack__(max_version=(1, 0)), lambda: a.to_dlpack_for_write()):
        assert tn.from_dlpack(make(), writable=True).writable
        assert not tn.from_dlpack(make(), writable=False).writable
    assert a.writable
    assert not tn.from_dlpack(a, copy=True, writable=False).writable
    for wrong in (1, "yes", 0.5):
        with pytest.raises(TypeError, match="writable is"):
            tn.from_dlpack(a, writable=wrong)


def test_the_consumer_asks_for_the_newest_version():
    a = tn.zeros(3)
    exporter = Exporter(lambda **_: a.__dlpack__(max_version=(1, 0)))
    assert tn.from_dlpack(exporter).data_ptr == a.data_ptr
    assert exporter.asked == [{"max_version": (1, 3)}]
    exporter.asked.clear()
    tn.from_dlpack(exporter, copy=False)
    assert exporter.asked == [{"max_version": (1, 3), "copy": False}]


def test_memory_of_a_device_is_asked_for_on_the_host():
    a = tn.zeros(3)
    exporter = Exporter(lambda **_: a.__dlpack__(max_version=(1, 0)), device=(2, 0))
    tn.from_dlpack(exporter, device="cpu")
    assert exporter.asked == [{"max_version": (1, 3), "dl_device": (1, 0)}]
    with pytest.raises(ValueError, match="cuda"):
        tn.from_dlpack(a, device="cuda")


def test_a_copy_against_the_will_of_the_consumer_is_an_error():
    a = tn.zeros(3)
    exporter = Exporter(lambda **_: a.__dlpack__(max_version=(1, 0), copy=True))
    with pytest.raises(BufferError, match="copy=False"):
        tn.from_dlpack(exporter, copy=False)
    assert tn.from_dlpack(exporter).writable


@pytest.mark.parametrize("copy", [1, "yes", np.array([1, 2, 3])], ids=repr)
def test_a_copy_argument_that_is_no_bool_is_a_value_error(copy):
    a = tn.zeros(3)
    for call in (lambda: a.__dlpack__(copy=copy), lambda: tn.from_dlpack(a, copy=copy)):
        with pytest.raises(ValueError, match=r"copy is .*: it must be True or False, or None"):
            call()


def test_version_moves_while_an_export_lives():
    a = tn.zeros(3)
    capsule = a.__dlpack__(max_version=(1, 0))
    assert a.version != a.version
    del capsule
    assert a.version == a.version


@pytest.fixture(scope="module")
def torch():
    return pytest.importorskip("torch")


def test_negative_strides_are_refused_where_pytorch_would_end_the_process(torch):
    a = tn.array(np.arange(6, dtype="f4").reshape(2, 3))
    with pytest.raises(ValueError, match="negative"):
        a[::-1].torch()
    for import_it in (torch.from_dlpack, torch.as_tensor):
        with pytest.raises(BufferError, match=r"negative strides: pass a\.copy\(\)"):
            import_it(a[::-1])
    assert torch.from_dlpack(a[::-1].copy()).tolist() == a[::-1].tolist()


@with_dlpack_1
def test_negative_strides_go_to_numpy():
    a = tn.arange(6, dtype="f4")[::-1]
    assert np.from_dlpack(a).tolist() == a.tolist()


def test_pytorch_gets_a_copy_of_a_readonly_array(torch):
    a = tn.array([1.0, 2.0])
    fixed = a.readonly()
    has_copy = "copy" in inspect.signature(torch.from_dlpack).parameters
    for take in (torch.from_dlpack, torch.utils.dlpack.from_dlpack, torch.as_tensor):
        take(fixed)[0] = 9
        take(fixed[::-1])[0] = 9
        assert a.tolist() == [1, 2]
    for options in [{"copy": False}, {"copy": False, "device": "cpu"}] if has_copy else []:
        with pytest.raises(BufferError, match=r"a\.torch\(trust=True\)"):
            torch.from_dlpack(fixed, **options)
        assert torch.from_dlpack(a, **options).data_ptr() == a.data_ptr
    assert fixed.torch(trust=True).data_ptr() == torch.from_dlpack(a).data_ptr() == a.data_ptr


@pytest.mark.parametrize("dtype", ["float8_e3m4", "float4_e2m1fn"])
def test_an_array_of_a_dtype_that_pytorch_lacks_is_not_held(torch, dtype):
    a = tn.zeros(8, dtype)
    with pytest.raises((BufferError, RuntimeError)):
        a.torch()
    assert a.leases() == []


@pytest.mark.filterwarnings("ignore")  # of PyTorch, about the state of these kinds of tensors
def test_tensors_without_strided_memory_are_buffer_errors_of_one_line(torch):
    cases = {
        "to_dense": torch.eye(3).to_sparse(),
        r"sparse_csr.*to_dense": torch.eye(3).to_sparse_csr(),
        r"int_repr.*dequantize": torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.qint8),
        "meta": torch.ones(3, device="meta"),
        "to_padded_tensor": torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]),
    }
    for way_out, tensor in cases.items():
        for take in (tn.from_dlpack, tn.asarray, lambda t: tn.from_dlpack(t, copy=True)):
            with pytest.raises(BufferError, match=way_out) as caught:
                take(tensor)
            assert "\n" not in str(caught.value)


class Producer:
    def __init__(self, device):
        self.device = device

    def __dlpack__(self, **keywords):
        return np.zeros(2).__dlpack__(**keywords)

    def __dlpack_device__(self):
        return self.device


@pytest.mark.parametrize(
    "device",
    [
        None,
        5,
        (),
        (1,),
        (1, 0, 0),
        [1, 0],
        ("a", 0),
        (1.5, 0),
        (1, "x"),
        (1, 2**80),
        "ab",
        {0: 1},
    ],
    ids=repr,
)
def test_a_malformed_device_of_a_producer_is_a_type_error_with_the_value(device):
    with pytest.raises(TypeError, match=f"tuple of two ints, not {re.escape(repr(device))}"):
        tn.from_dlpack(Producer(device), device="cpu")


@pytest.mark.parametrize("device", [(0, 0), (-1, 0), (99, 0), (2**33 + 1, 0), (2**80, 0)], ids=repr)
def test_an_unknown_device_of_a_producer_is_a_buffer_error_with_the_value(device):
    with pytest.raises(BufferError, match=re.escape(repr(device))):
        tn.from_dlpack(Producer(device), device="cpu")
    with pytest.raises(BufferError, match="device"):
        tn.ones(3).__dlpack__(dl_device=device)


def test_a_producer_without_a_device_is_a_type_error_that_says_so():
    class NoDevice:
        def __dlpack__(self, **keywords):
            return np.zeros(2).__dlpack__(**keywords)

    assert tn.from_dlpack(NoDevice()).tolist() == [0, 0]
    with pytest.raises(TypeError, match=r"__dlpack_device__.*leave out device="):
        tn.from_dlpack(NoDevice(), device="cpu")


def test_subclasses_of_numpy_that_export_for_themselves_are_asked():
    class Own(np.ndarray):
        def __dlpack__(self, **keywords):
            return np.full(2, 4.0).__dlpack__(**keywords)

    class Elsewhere(np.ndarray):
        def __dlpack_device__(self):
            return (2, 0)

        def __dlpack__(self, **keywords):
            assert keywords["dl_device"] == (1, 0)
            return np.full(2, 5.0).__dlpack__()

    class Plain(np.ndarray):
        pass

    assert tn.from_dlpack(np.zeros(3).view(Own)).tolist() == [4, 4]
    assert tn.from_dlpack(np.zeros(3).view(Elsewhere), device="cpu").tolist() == [5, 5]
    plain = np.zeros(3).view(Plain)
    assert tn.from_dlpack(plain).data_ptr == plain.ctypes.data


def test_an_import_keeps_its_producer_although_the_bytes_are_known_without_an_owner():
    x = np.arange(1 << 16, dtype="f4")
    a = tn.from_pointer(x.ctypes.data, x.shape, "f4")
    b = tn.from_dlpack(x)
    kept = weakref.ref(x)
    del x, a
    assert kept() is not None
    assert b[5].item() == 5
    del b
    assert kept() is None


def test_an_import_of_writable_memory_is_writable_although_the_bytes_are_known_as_read_only():
    x = np.zeros(8)
    frozen = x[:]
    frozen.flags.writeable = False
    a = tn.from_numpy(frozen)
    b = tn.from_dlpack(x)
    assert not a.writable
    assert b.writable
    b[0] = 5
    assert a[0].item() == 5
