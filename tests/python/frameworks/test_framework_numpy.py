# SPDX-License-Identifier: Apache-2.0
"""NumPy and Tenon over one memory, both directions. Aliasing is proved by the address and by writing."""

import io
import weakref

import live
import numpy as np
import pytest

import tenon as tn

INTEGERS = [f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)]
DTYPES = ["bool", *INTEGERS, "float16", "float32", "float64", "complex64", "complex128"]
LAYOUTS = {
    "contiguous": lambda x: x,
    "transposed": lambda x: x.T,
    "sliced": lambda x: x[1:, ::2],
    "backwards": lambda x: x[::-1, ::-1],
    "row": lambda x: x[2],
    "element": lambda x: x[1:2, 1:2],
    "scalar": lambda x: x[1, 1, ...],
    "new axis": lambda x: x[:, None],
    "empty": lambda x: x[:0],
}
OUT = {
    "numpy()": lambda a: a.numpy(),
    "asarray": np.asarray,
    "from_dlpack": np.from_dlpack,
    "memoryview": lambda a: np.asarray(memoryview(a)),
    "__array__": lambda a: a.__array__(),
}
IN = {
    "from_numpy": tn.from_numpy,
    "from_numpy writable": lambda x: tn.from_numpy(x, mode="writable"),
    "from_dlpack": tn.from_dlpack,
    "asarray": tn.asarray,
}


def source(dtype="float32"):
    return (np.arange(24) % 2 if dtype == "bool" else np.arange(24)).astype(dtype).reshape(4, 6)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("way", IN)
def test_in_by_every_way_is_the_same_memory(way, dtype, layout):
    x = LAYOUTS[layout](source(dtype))
    expected = x.copy()
    a = IN[way](x)
    assert (a.shape, a.dtype, a.ndim, a.size, a.nbytes) == (x.shape, x.dtype, x.ndim, x.size, x.nbytes)
    assert a.tolist() == expected.tolist()
    if x.size:
        assert a.data_ptr == x.ctypes.data
        a[...] = 1
        assert (x == 1).all()
    del a
    assert x.flags.writeable


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("way", OUT)
def test_out_by_every_way_is_the_same_memory(way, dtype, layout):
    mirror = LAYOUTS[layout](source(dtype).copy())
    a = LAYOUTS[layout](tn.array(source(dtype)))
    x = OUT[way](a)
    assert type(x) is np.ndarray
    assert (x.shape, x.dtype) == (a.shape, np.dtype(dtype))
    assert x.flags.writeable
    assert x.tolist() == mirror.tolist()
    if x.size:
        assert x.ctypes.data == a.data_ptr
        x[...] = 1
        assert a.tolist() == x.tolist()
        a[...] = 0
        assert not x.any()


@pytest.mark.parametrize("way", OUT)
def test_a_read_only_array_gives_read_only_views(way):
    a = tn.array(source())
    x = OUT[way](a.readonly())
    assert not x.flags.writeable
    with pytest.raises(ValueError, match="read-only"):
        x[0] = 1
    with pytest.raises(ValueError, match="WRITEABLE"):
        x.flags.writeable = True
    with pytest.raises(ValueError, match="WRITEABLE"):
        x[1:].flags.writeable = True
    a[0, 0] = 77
    assert x[0, 0] == 77  # another handle on the same memory


@pytest.mark.parametrize("way", OUT)
def test_a_view_outlives_its_array_and_the_array_its_view(way):
    a = tn.array(source())
    storages = live.now().storages
    x = OUT[way](a)
    reference = weakref.ref(a)
    del a
    assert x.tolist() == source().tolist()
    assert live.now().storages == storages
    y = x[1:, 1:]
    del x
    assert y.tolist() == source()[1:, 1:].tolist()
    del y
    assert live.now().storages == storages - 1
    assert reference() is None


@pytest.mark.parametrize("way", IN)
def test_an_array_outlives_its_source(way):
    x = source()
    reference = weakref.ref(x)
    a = IN[way](x)
    del x
    assert a.tolist() == source().tolist()
    b = a[1:]
    del a
    assert b.tolist() == source()[1:].tolist()
    del b
    live.now()
    assert reference() is None


def test_a_read_only_way_back_stays_read_only():
    a = tn.zeros(8)
    x = np.asarray(a.readonly())
    for make in IN.values():
        assert not make(x).writable
    x = np.asarray(a)[2:]
    x.flags.writeable = False
    assert not tn.from_numpy(x).writable


def test_views_of_a_lent_array_are_one_region():
    x = np.arange(24.0).reshape(4, 6)
    whole = tn.from_numpy(x, mode="writable")
    part = tn.from_numpy(x[1:3], mode="writable")
    other = tn.from_numpy(x.reshape(-1)[20:], mode="writable")
    part[...] = -1
    other[...] = -2
    assert (np.asarray(whole)[1:3] == -1).all()
    assert whole[3, 5].item() == -2
    del whole
    part[0, 0] = 5
    assert x[1, 0] == 5


def test_numpy_writes_into_arrays():
    a = tn.zeros(4, dtype="float64")
    x = np.arange(4.0)
    np.copyto(np.asarray(a), x)
    assert a.tolist() == [0, 1, 2, 3]
    x[...] = a
    a += 1
    assert a.tolist() == [1, 2, 3, 4]
    assert type(a) is tn.NDArray
    x += a
    assert x.tolist() == [1, 3, 5, 7]
    frozen = a.readonly()
    with pytest.raises((ValueError, BufferError, TypeError)):
        frozen += 1
    assert a.tolist() == [1, 2, 3, 4]


def test_subclasses_of_numpy_arrays_are_taken_by_their_memory():
    class Special(np.ndarray):
        pass

    x = np.arange(6.0).view(Special)
    a = tn.from_numpy(x)
    assert a.data_ptr == x.ctypes.data
    a[0] = 9
    assert x[0] == 9
    del a
    assert x.flags.writeable
    matrix = np.asmatrix(np.eye(2))
    assert tn.from_numpy(matrix).shape == (2, 2)
    assert matrix.flags.writeable


class Doubled(np.ndarray):
    def __array__(self, dtype=None, copy=None):
        return 2 * self.view(np.ndarray)


class Quantity(np.ndarray):
    unit = "m"


def array_of(use):
    """A function that lets use(a, x) write to an array and returns the array."""

    def written(x):
        a = tn.zeros(3, "f8")
        use(a, x)
        return a

    return written


def add_to(a, x):
    a += x


def write_item(a, x):
    with tn.Channel({"f": ("f8", 3)}) as channel, channel.loan() as item:
        item.f = x
        a[...] = item.f


def save(a, x):
    stream = io.BytesIO()
    tn.save(stream, {"x": x})
    stream.seek(0)
    a[...] = tn.load(stream)["x"]


def call_native(a, x):
    tn.c_function(None, "double modf(double x, double *whole)")(1.5, x)  # 1.0 goes to x[0]
    a[...] = x


ENTRANCES = {
    "from_numpy": tn.from_numpy,
    "from_numpy, copied": lambda x: tn.from_numpy(x, zero_copy=False),
    "asarray": tn.asarray,
    "asarray of a list": lambda x: tn.asarray([x])[0],
    "array": tn.array,
    "array with a dtype": lambda x: tn.array([(x, x)], "f8")[0, 0],
    "from_dlpack": tn.from_dlpack,
    "from_buffer": lambda x: tn.from_buffer(x, "f8"),
    "assignment": array_of(lambda a, x: a.__setitem__(..., x)),
    "assignment by indices": array_of(lambda a, x: a.__setitem__([0, 1, 2], x)),
    "fill": array_of(lambda a, x: a.fill(x)),
    "operator in place": array_of(add_to),
    "copyto": lambda x: tn.asarray(tn.array([1.0, 2.0, 3.0]).copyto(x)),
    "NDArrayIter": lambda x: next(iter(tn.io.NDArrayIter(x, batch_size=3))).data[0],
    "field": array_of(write_item),
    "save": array_of(save),
    "native function": array_of(call_native),
}


@pytest.mark.parametrize("take", ENTRANCES.values(), ids=ENTRANCES)
def test_masked_and_record_arrays_are_not_taken_for_plain_ones(take):
    for mask in ([False, True, False], False):
        with pytest.raises(TypeError, match=r"MaskedArray.*\.filled\(value\)"):
            take(np.ma.array([1.0, -9999.0, 3.0], mask=mask))
    with pytest.raises(TypeError, match=r"Doubled, whose values are what its __array__\(\) returns"):
        take(np.ones(3).view(Doubled))
    with pytest.raises(TypeError, match="is structured"):
        tn.from_numpy(np.rec.array([(1.0,)] * 3, dtype=[("x", "f8")]))
    quantity = np.array([1.0, 2.0, 3.0]).view(Quantity)
    assert take(quantity).tolist() == [1, 2, 3]


def test_memory_maps_are_taken(tmp_path):
    path = tmp_path / "x"
    x = np.memmap(path, dtype="f4", mode="w+", shape=(1000,))
    a = tn.from_numpy(x)
    a[...] = 3
    del a
    assert x.flags.writeable
    x.flush()
    assert np.fromfile(path, "f4").tolist() == [3.0] * 1000
    frozen = tn.from_numpy(np.memmap(path, dtype="f4", mode="r"))
    assert not frozen.writable
