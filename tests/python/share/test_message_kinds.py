# SPDX-License-Identifier: Apache-2.0
"""What arrives is what was sent: objects and arrays of all kinds, over tensor pools and over channels."""

import gc

import numpy as np
import pytest

import tenon as tn

SECONDS = 600


@pytest.fixture
def pool():
    pool = tn.TensorPool("64 MiB", inline=256, idle=0, linger=0)
    yield pool
    gc.collect()


@pytest.fixture(params=["pool", "channel"])
def carried(request, pool):
    """Sends an object, and receives it."""
    if request.param == "pool":
        yield lambda value: tn.loads(pool.dumps(value))
        return
    with tn.Channel(nbytes="64 MiB", inline=256) as channel:

        def send_and_receive(value):
            channel.send(value, timeout=SECONDS)
            return channel.recv(timeout=SECONDS)

        yield send_and_receive
    gc.collect()


def same(a, b):
    return type(a) is type(b) and a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()


@pytest.mark.parametrize("n", [0, 3, 5000])
def test_arrays_of_numpy_keep_class_dtype_and_order(carried, n):
    ml_dtypes = pytest.importorskip("ml_dtypes")
    fields = np.zeros(n, [("a", "f4"), ("b", "i8", (2,))])
    fields["a"] = np.arange(n)
    cube = np.arange(n * 24).reshape(n, 4, 6)
    arrays = [np.arange(n).astype(dtype) for dtype in "f4 ? c16 f2 g >f4 M8[ns] S5 U7".split()]
    arrays += [np.arange(n).astype(dtype) for dtype in (ml_dtypes.bfloat16, ml_dtypes.int4)]
    arrays += [np.zeros(n, "V7"), fields, np.asfortranarray(cube), cube.transpose(1, 0, 2)[:, ::-1, ::2]]
    arrays += [np.broadcast_to(np.arange(n), (3, n)), fields.view(np.recarray)]
    overlapping = {"names": ["all", "low"], "formats": ["i4", "i2"], "offsets": [0, 0]}  # no list of fields
    arrays += [np.ones(n, overlapping)]
    message = carried(arrays)
    for before, after in zip(arrays, message, strict=True):
        assert same(before, after) and after.flags.writeable
        assert after.ctypes.data % 64 == 0 or not n or before.dtype.names == ("all", "low")
    assert message[13].flags.f_contiguous
    scalars = [np.float32(2), np.int8(-1), np.bool_(True), np.datetime64(5, "s")]
    assert all(same(a, b) for a, b in zip(scalars, carried(scalars), strict=True))
    text = np.array(["a", None, 1] * n, object)
    masked = np.ma.array(np.arange(n), mask=np.arange(n) % 2)
    read = carried((text, masked))
    assert (read[0] == text).all() and type(read[1]) is type(masked) and (read[1] == masked).all()


@pytest.mark.parametrize("n", [3, 5000])
def test_tensors_of_pytorch_keep_what_they_are(carried, n):
    torch = pytest.importorskip("torch")
    whole = torch.arange(4.0 * n).reshape(n, 4)
    read = carried({"whole": whole, "part": whole[n // 2 :], "alone": torch.ones(n)})
    read["part"].zero_()  # they shared a storage, and do so now
    assert torch.equal(read["whole"][: n // 2], whole[: n // 2]) and read["whole"][n // 2 :].sum() == 0
    view = carried(whole[1 : n - 1 : 2, 1:3])
    assert torch.equal(view, whole[1 : n - 1 : 2, 1:3])
    assert view.untyped_storage().nbytes() == view.numel() * 4  # only its elements
    spanned = carried([whole[1:2], whole[1:2, 2:]])
    assert spanned[0].untyped_storage().nbytes() == 16 and torch.equal(spanned[1], whole[1:2, 2:])
    assert carried(whole.T).stride() == whole.T.stride()
    assert carried(torch.ones(n, 1).expand(n, 50)).stride() == (1, 0)
    weight = torch.nn.Parameter(torch.ones(n), requires_grad=False)
    leaf = torch.ones(n, requires_grad=True)
    leaf_read, weight_read = carried((leaf, weight))
    assert leaf_read.requires_grad and leaf_read.is_leaf
    assert type(weight_read) is torch.nn.Parameter and not weight_read.requires_grad
    for dtype in (torch.bfloat16, torch.bool, torch.float8_e4m3fn, torch.uint16):
        assert carried(torch.zeros(n, 0, 3).to(dtype)).dtype is dtype
    named = torch.ones(n)
    named.name_of_it = "x"
    assert carried(named).name_of_it == "x"
    lazy = torch.ones(n, dtype=torch.complex64).conj()
    unusual = [torch.eye(n).to_sparse(), lazy, torch.ones(n, device="meta")]
    for one in unusual if n == 3 else []:
        read = carried(one)
        assert read.layout is one.layout and read.device == one.device and read.is_conj() == one.is_conj()
    with pytest.raises(RuntimeError, match="is no leaf"):
        carried({"x": leaf * 2})
    model = carried(torch.nn.Linear(n, 2))
    assert type(model) is torch.nn.Linear and model.weight.shape == (2, n)


class Labelled:
    def __init__(self, **members):
        self.__dict__.update(members)


def test_tensors_of_one_storage_keep_their_elements_if_their_sizes_differ(carried):
    torch = pytest.importorskip("torch")
    memory = torch.arange(4096, dtype=torch.uint8)
    for tensors in (
        [memory[8:].view(torch.int64), memory[3:]],
        [memory[20:24].view(torch.int32), memory[7:]],
    ):
        for one, got in zip(tensors, carried(tensors), strict=True):
            assert torch.equal(one, got) and one.dtype == got.dtype


def test_tensors_do_not_depend_on_the_default_device(carried):
    torch = pytest.importorskip("torch")
    tensors = [torch.arange(1000), torch.arange(1000)[::3]]
    with torch.device("meta"):
        got = carried(tensors)
    assert all(map(torch.equal, tensors, got))


@pytest.mark.parametrize("n", [3, 5000])
def test_dtypes_of_numpy_keep_metadata_and_aligned_fields(carried, n):
    unit = np.dtype("f4", metadata={"unit": "m"})
    aligned = np.dtype([("a", "i1"), ("b", "f8")], align=True)
    for dtype in (unit, np.dtype([("x", unit)]), aligned, np.dtype([("x", aligned, 2)])):
        before = np.ones(n, dtype)
        for read in (carried(before), carried([before[:1], before])[1]):
            assert same(before, read)
            kinds = [dtype, read.dtype]
            if dtype.names == ("x",):
                kinds = [kind["x"].base for kind in kinds]
            assert kinds[0].metadata == kinds[1].metadata
            assert kinds[0].isalignedstruct is kinds[1].isalignedstruct


def test_scalars_of_numpy_keep_class_dtype_and_value(carried):
    record = np.array([(1, 2.0)], "i4, f8")[0]
    for one in (np.float64(1.5), np.str_(""), np.str_("a"), np.bytes_(b""), np.datetime64("2020"), record):
        read = carried([one, np.zeros(1000)])[0]
        assert type(read) is type(one) and read.dtype == one.dtype and read == one


def test_subclasses_keep_class_and_attributes(carried):
    torch = pytest.importorskip("torch")
    from torch.testing._internal.two_tensor import TwoTensor

    image = torch.ones(1000).as_subclass(_Image)
    image.label = "cat"
    read = carried({"a": image})["a"]
    assert type(read) is _Image and read.label == "cat" and read.sum() == 1000
    wrapped = carried(TwoTensor(torch.ones(1000), torch.zeros(1000)))
    assert type(wrapped) is TwoTensor and wrapped.a.sum() == 1000


try:
    import torch

    class _Image(torch.Tensor):
        pass
except ImportError:
    pass


def test_other_libraries_get_their_own_kinds(carried):
    jax = pytest.importorskip("jax")
    arrow = pytest.importorskip("pyarrow")
    for n in (0, 3, 5000):
        ours = tn.asarray(np.arange(4.0 * n).reshape(n, 4))
        for one in (ours, ours.T, ours[::2], tn.zeros((n,), "bfloat16"), tn.zeros((n, 2), "float4_e2m1fn")):
            read = carried(one)
            assert type(read) is tn.NDArray and read.dtype == one.dtype and read.shape == one.shape
        assert (carried(ours.T).numpy() == ours.T.numpy()).all()
        jaxes = jax.numpy.arange(2.0 * n).reshape(n, 2)
        read = carried(jaxes)
        assert isinstance(read, jax.Array) and read.dtype == jaxes.dtype and (read == jaxes).all()
        narrow = jax.numpy.ones((n, 2), "int4")
        read = carried(narrow)
        assert read.dtype == narrow.dtype and (read == narrow).all()
        buffer = arrow.py_buffer(b"x" * n)
        table = arrow.table({"a": np.arange(n), "b": ["x"] * n})
        assert carried([buffer, table]) == [buffer, table]


def test_arrays_inside_of_other_objects_are_those_beside_them(pool, carried):
    a = np.arange(5000)
    one = Labelled(a=a, parts=[a, {"k": a}])
    one.itself = one
    read = carried({"one": one, "a": a, "again": one})
    assert read["one"] is read["again"] is read["one"].itself
    assert read["one"].a is read["a"] is read["one"].parts[1]["k"] and same(read["a"], a)
    assert pool.stats()["used"] <= 64 << 10  # and the elements were sent once
