# SPDX-License-Identifier: Apache-2.0
"""torch on the CPU and Tenon over one memory, both directions."""

import sys
import weakref

import foreign_dlpack as dl
import live
import numpy as np
import pytest

import tenon as tn

torch = pytest.importorskip("torch")

PAIRS = {
    "bool": torch.bool,
    "uint8": torch.uint8,
    "uint16": torch.uint16,
    "uint32": torch.uint32,
    "uint64": torch.uint64,
    "int8": torch.int8,
    "int16": torch.int16,
    "int32": torch.int32,
    "int64": torch.int64,
    "float16": torch.float16,
    "float32": torch.float32,
    "float64": torch.float64,
    "complex64": torch.complex64,
    "complex128": torch.complex128,
    "bfloat16": torch.bfloat16,
    "float8_e4m3fn": torch.float8_e4m3fn,
    "float8_e4m3fnuz": torch.float8_e4m3fnuz,
    "float8_e5m2": torch.float8_e5m2,
    "float8_e5m2fnuz": torch.float8_e5m2fnuz,
    "float8_e8m0fnu": torch.float8_e8m0fnu,
}
OUT = {"torch()": lambda a: a.torch(), "from_dlpack": torch.from_dlpack}
VIEWS = {
    "whole": lambda x: x,
    "transposed": lambda x: x.T,
    "sliced": lambda x: x[1:, ::2],
    "row": lambda x: x[2],
    "element": lambda x: x[1:2, 1:2],
    "scalar": lambda x: x[1, 1],
    "new axis": lambda x: x[:, None],
    "empty": lambda x: x[:0],
    "empty inside": lambda x: x[:, 2:2],
}


def bits(t):
    return t.contiguous().view(torch.uint8).numpy().tobytes()


@pytest.mark.parametrize("dtype", PAIRS)
@pytest.mark.parametrize("way", OUT)
def test_out_with_every_dtype(way, dtype):
    a = tn.zeros((3, 4), dtype=dtype)
    raw = a.view("uint8") if a.itemsize == 1 else a.reshape(-1).view("uint8")
    raw[...] = 1
    t = OUT[way](a)
    assert t.dtype == PAIRS[dtype]
    assert tuple(t.shape) == (3, 4)
    assert t.data_ptr() == a.data_ptr
    assert bits(t) == bytes([1]) * a.nbytes
    t.view(torch.uint8).fill_(2) if dtype != "bool" else t.fill_(False)
    assert set(bytes(raw)) == {0 if dtype == "bool" else 2}


@pytest.mark.parametrize("dtype", PAIRS)
def test_in_with_every_dtype(dtype):
    t = torch.zeros((3, 4), dtype=PAIRS[dtype])
    a = tn.from_dlpack(t)
    assert a.dtype == tn.dtype(dtype)
    assert a.shape == (3, 4)
    assert a.data_ptr == t.data_ptr()
    assert a.writable
    a.reshape(-1).view("uint8")[...] = 1
    assert bits(t) == bytes([1]) * a.nbytes


def test_fp4_pairs_keep_their_lanes():
    kind = getattr(torch, "float4_e2m1fn_x2", None)
    if kind is None:
        pytest.skip("this torch has no fp4")
    t = torch.zeros((4, 8), dtype=torch.uint8).view(kind)
    a = tn.from_dlpack(t)
    assert a.data_ptr == t.data_ptr()
    assert a.nbytes == 32
    back = torch.from_dlpack(a)
    assert back.dtype == kind
    assert back.data_ptr() == t.data_ptr()


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("way", OUT)
def test_views_go_out_as_the_same_memory(way, view):
    x = np.arange(24.0, dtype="f4").reshape(4, 6)
    a = VIEWS[view](tn.array(x))
    t = OUT[way](a)
    assert t.numpy().tolist() == VIEWS[view](x).tolist()
    if a.size:
        assert t.data_ptr() == a.data_ptr
        t.fill_(5)
        assert set(np.asarray(a).ravel()) == {5}


@pytest.mark.parametrize("view", VIEWS)
def test_views_come_in_as_the_same_memory(view):
    t = VIEWS[view](torch.arange(24.0).reshape(4, 6))
    a = tn.from_dlpack(t)
    assert a.tolist() == t.tolist()
    if a.size:
        assert a.data_ptr == t.data_ptr()
        a[...] = 5
        assert (t == 5).all()


@pytest.mark.parametrize("way", OUT)
def test_a_tensor_outlives_its_array(way):
    before = live.now()
    a = tn.full((100,), 3.0)
    t = OUT[way](a)
    reference = weakref.ref(a)
    del a
    assert reference() is None
    assert (t == 3).all()
    u = t[50:].view(5, 10)
    del t
    assert (u == 3).all()
    assert live.now().views == before.views + 1
    del u
    assert live.now() == before


def test_an_array_outlives_its_tensor():
    x = np.full(100, 3.0)
    reference = weakref.ref(x)
    a = tn.from_dlpack(torch.from_numpy(x))[10:]
    del x
    assert a.tolist() == [3.0] * 90
    del a
    live.now()
    assert reference() is None


def test_torch_never_writes_to_read_only_memory_unless_trusted():
    a = tn.full(4, 1.0)
    frozen = a.readonly()
    t = frozen.torch()
    assert t.data_ptr() != a.data_ptr
    t.fill_(9)
    assert a.tolist() == [1.0] * 4
    trusted = frozen.torch(trust=True)
    assert trusted.data_ptr() == a.data_ptr
    a[0] = 5
    assert trusted[0] == 5


def test_a_read_only_numpy_array_does_not_become_writable_by_way_of_torch():
    text = b"0123456789abcdef"
    a = tn.from_numpy(np.frombuffer(text, "u1"))
    a.torch().fill_(0)
    assert text == b"0123456789abcdef"


def test_expanded_tensors_come_in_with_their_zero_strides():
    t = torch.arange(3.0).expand(4, 3)
    a = tn.from_dlpack(t)
    assert a.tolist() == t.tolist()
    assert a.strides[0] == 0


@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.zeros(3, requires_grad=True),
        lambda: torch.zeros(3, requires_grad=True) * 2,
        lambda: torch.nn.Parameter(torch.zeros(3)),
        lambda: torch.nn.Linear(2, 2).weight,
        lambda: torch.tensor([1 + 2j]).conj(),
    ],
    ids=["leaf", "result", "parameter", "weight", "conj"],
)
def test_tensors_that_are_not_their_memory_are_refused(make):
    t = make()
    references = sys.getrefcount(t)
    with pytest.raises(BufferError, match=r"grad|conj"):
        tn.from_dlpack(t)
    assert sys.getrefcount(t) == references


def test_a_detached_parameter_is_the_parameter_s_memory():
    p = torch.nn.Parameter(torch.zeros(3))
    a = tn.from_dlpack(p.detach())
    a[0] = 5
    assert p[0] == 5


@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128])
@pytest.mark.parametrize(
    "part",
    [
        pytest.param(lambda t: t.imag, id="whole"),
        pytest.param(lambda t: t.imag.T, id="transposed"),
        pytest.param(lambda t: t[:, ::2].imag, id="strided"),
        pytest.param(lambda t: t.imag[1], id="row"),
        pytest.param(lambda t: t.imag[1, 1], id="scalar"),
        pytest.param(lambda t: t.imag[:1, :1], id="one element"),
        pytest.param(lambda t: t.imag[:, 1:2], id="column"),
        pytest.param(lambda t: t.imag[:1, :1].expand(3, 4), id="expanded"),
        pytest.param(lambda t: t.imag.unfold(1, 2, 1), id="unfolded"),
        pytest.param(lambda t: t.T.contiguous().imag, id="copied"),
        pytest.param(lambda t: t.T.clone().conj().resolve_conj().conj().imag, id="conjugated again"),
    ],
)
def test_the_negated_part_of_a_conjugated_tensor_is_refused(dtype, part):
    t = part((torch.arange(12.0).reshape(3, 4) * (1 + 2j)).to(dtype).conj())
    if not t.is_neg():
        assert tn.from_dlpack(t).tolist() == t.tolist()
        return
    with pytest.raises(BufferError, match="resolve_neg"):
        tn.from_dlpack(t)


@pytest.mark.parametrize("offset", [0, 4, 8, 12])
def test_the_address_of_a_negated_part_does_not_matter(offset):
    x = np.frombuffer(bytearray(100), "c8", offset=offset, count=9).reshape(3, 3)
    for part in (torch.from_numpy(x).conj().imag, torch.from_numpy(x)[1:, 1:].conj().imag):
        assert part.is_neg()
        with pytest.raises(BufferError, match="resolve_neg"):
            tn.from_dlpack(part)


def test_only_a_tensor_that_can_be_an_imaginary_part_is_asked_for_its_sign(monkeypatch):
    asked = []
    is_neg = torch.Tensor.is_neg
    monkeypatch.setattr(torch.Tensor, "is_neg", lambda t: asked.append(t.shape) or is_neg(t))
    tn.from_dlpack(torch.zeros(4, 8))
    tn.from_dlpack(torch.zeros(4, 8).T)
    tn.from_dlpack(torch.zeros(8)[::2])
    tn.from_dlpack(torch.zeros(9)[1::3])
    tn.from_dlpack(torch.zeros(1))
    assert not asked
    tn.from_dlpack(torch.zeros(8)[1::2])
    tn.from_dlpack(torch.zeros(2)[1])
    tn.from_dlpack(torch.zeros(3, dtype=torch.complex64))
    assert len(asked) == 3


def test_a_subclass_that_overrides_dlpack_is_asked():
    asked = []

    class Special(torch.Tensor):
        def __dlpack__(self, **keywords):
            asked.append(keywords)
            return super().__dlpack__(**keywords)

    t = torch.arange(3.0).as_subclass(Special)
    a = tn.from_dlpack(t)
    assert len(asked) == 1
    assert a.data_ptr == t.data_ptr()
    assert tn.from_dlpack(torch.arange(3.0)).tolist() == [0, 1, 2]
    assert len(asked) == 1

    class Refusing(torch.Tensor):
        def __dlpack__(self, **keywords):
            raise BufferError("not this one")

    with pytest.raises(BufferError, match="not this one"):
        tn.from_dlpack(torch.zeros(3).as_subclass(Refusing))

    class Quiet(torch.Tensor):
        pass

    assert tn.from_dlpack(torch.zeros(3).as_subclass(Quiet)).shape == (3,)


def test_a_subclass_that_overrides_by_torch_function_is_not_bypassed_to_wrong_data():
    class Traced(torch.Tensor):
        calls = 0

        @classmethod
        def __torch_function__(cls, function, types, arguments=(), keywords=None):
            cls.calls += 1
            return super().__torch_function__(function, types, arguments, keywords or {})

    t = torch.arange(3.0).as_subclass(Traced)
    assert tn.from_dlpack(t).tolist() == [0, 1, 2]


def test_a_round_trip_is_another_handle_on_the_same_storage():
    a = tn.zeros(8)
    storages = live.now().storages
    b = tn.from_dlpack(a.torch()[2:])
    assert live.now().storages == storages
    b[0] = 1
    assert a.tolist()[2] == 1
    t = torch.zeros(8)
    u = tn.from_dlpack(t).torch()
    u[3] = 4
    assert t[3] == 4


def test_autograd_sees_a_leaf():
    a = tn.full(3, 2.0)
    t = a.torch().requires_grad_()
    (t * t).sum().backward()
    assert t.grad.tolist() == [4.0] * 3
    del t
    assert live.views() >= 0


def test_torch_functions_write_into_arrays():
    a = tn.zeros((2, 3))
    torch.add(torch.ones(2, 3), 1, out=a.torch())
    assert a.tolist() == [[2.0] * 3] * 2


def test_a_resize_of_the_tensor_leaves_the_array():
    """set_ and resize_ give the tensor other memory; that of the array stays the array's."""
    a = tn.full(4, 1.0)
    t = a.torch()
    try:
        t.resize_(1000)
        t.fill_(3)
    except RuntimeError:
        pass
    assert a.size == 4
    assert len(a.tolist()) == 4


def test_torch_as_tensor_and_tensor_take_arrays():
    a = tn.array([1.0, 2.0])
    assert torch.tensor(np.asarray(a)).tolist() == [1.0, 2.0]
    assert torch.as_tensor(np.asarray(a)).data_ptr() == a.data_ptr
    assert torch.utils.dlpack.from_dlpack(a.__dlpack__()).data_ptr() == a.data_ptr
    assert torch.utils.dlpack.from_dlpack(a.to_dlpack_for_write()).data_ptr() == a.data_ptr


def test_old_style_capsules_of_torch_come_in():
    t = torch.zeros(3)
    a = tn.from_dlpack(torch.utils.dlpack.to_dlpack(t))
    assert a.data_ptr == t.data_ptr()


def test_copy_true_comes_in_as_other_memory():
    t = torch.zeros(3)
    a = tn.from_dlpack(t, copy=True)
    a[0] = 1
    assert t[0] == 0


def test_the_table_and_the_method_agree():
    """The table skips what Tensor.__dlpack__ checks; both ways must give the same array."""
    for t in (
        torch.arange(6).reshape(2, 3).T,
        torch.zeros(0, 3),
        torch.tensor(1.0),
        torch.zeros(2, 1, 3)[:, :, ::2],
    ):
        direct = tn.from_dlpack(t)
        by_method = tn.from_dlpack(dl.Wrapped(t.__dlpack__(max_version=(1, 0))))
        assert direct.shape == by_method.shape
        assert direct.dtype == by_method.dtype
        assert direct.tolist() == by_method.tolist()
