# SPDX-License-Identifier: Apache-2.0
"""Every reference that a call takes on an owner comes back, on every path out of the call."""

import gc
import pickle
import sys
import weakref

import foreign_dlpack as dl
import live
import numpy as np
import pytest

import tenon as tn

ERRORS = (BufferError, IndexError, OverflowError, TypeError, ValueError, MemoryError)

# Each entry: a call on a NumPy array that works, and whose result owns x.
BORROW = {
    "from_numpy": tn.from_numpy,
    "mode readonly": lambda x: tn.from_numpy(x, mode="readonly"),
    "mode writable": lambda x: tn.from_numpy(x, mode="writable"),
    "from_dlpack": tn.from_dlpack,
    "from_dlpack copy=False": lambda x: tn.from_dlpack(x, copy=False),
    "asarray": tn.asarray,
    "from_buffer": lambda x: tn.from_buffer(x, "f8"),
    "from_pointer": lambda x: tn.from_pointer(x.ctypes.data, x.shape, "float64", owner=x),
    "view": lambda x: tn.from_numpy(x)[2:],
    "transposed": lambda x: tn.from_numpy(x).T,
    "reshaped": lambda x: tn.from_numpy(x).reshape(2, 4),
    "viewed": lambda x: tn.from_numpy(x).view("uint8"),
    "readonly": lambda x: tn.from_numpy(x).readonly(),
    "numpy view": lambda x: tn.from_numpy(x).numpy(),
    "asarray view": lambda x: np.asarray(tn.from_numpy(x)),
    "memoryview": lambda x: memoryview(tn.from_numpy(x)),
    "capsule": lambda x: tn.from_numpy(x).__dlpack__(),
    "versioned capsule": lambda x: tn.from_numpy(x).__dlpack__(max_version=(1, 0)),
    "numpy over dlpack": lambda x: np.from_dlpack(tn.from_numpy(x)),
    "two handles": lambda x: (tn.from_numpy(x), tn.from_numpy(x)),
    "capsule of mxnet": lambda x: tn.from_numpy(x).to_dlpack_for_write(),
    "ctypes": lambda x: tn.from_numpy(x).ctypes,
    "iterator": lambda x: iter(tn.from_numpy(x)),
}
# Each entry: a call that fails, at whatever depth.
FAIL = {
    "mode": lambda x: tn.from_numpy(x, mode="nonsense"),
    "mode None": lambda x: tn.from_numpy(x, mode=None),
    "mode number": lambda x: tn.from_numpy(x, mode=3),
    "keyword": lambda x: tn.from_numpy(x, unknown=1),
    "twice": lambda x: tn.from_numpy(x, x=x),
    "too many": lambda x: tn.from_numpy(x, True, "readonly", 1),
    "move with two names": lambda x: tn.from_numpy(x, mode="move"),
    "move of a view": lambda x: tn.from_numpy(x[:], mode="move"),
    "device": lambda x: tn.from_dlpack(x, device="cuda"),
    "device type": lambda x: tn.from_dlpack(x, device=object()),
    "byte order": lambda x: tn.from_numpy(x.astype(">f8")),
    "object": lambda x: tn.from_numpy(x.astype(object)),
    "buffer dtype": lambda x: tn.from_buffer(x, "float7"),
    "buffer shape": lambda x: tn.from_buffer(x, "f8", (9,)),
    "buffer offset": lambda x: tn.from_buffer(x, "f8", (1,), offset=1000),
    "pointer shape": lambda x: tn.from_pointer(x.ctypes.data, (-1,), "f8", owner=x),
    "pointer align": lambda x: tn.from_pointer(x.ctypes.data + 1, (1,), "f8", owner=x),
    "pointer null": lambda x: tn.from_pointer(0, (1,), "f8", owner=x),
    "pointer strides": lambda x: tn.from_pointer(x.ctypes.data, (9,), "f8", strides=(2**62,), owner=x),
    "pointer dtype": lambda x: tn.from_pointer(x.ctypes.data, (2,), "nothing", owner=x),
    "pointer type": lambda x: tn.from_pointer("text", (2,), "f8", owner=x),
    "reshape": lambda x: tn.from_numpy(x).reshape(3, 3),
    "view": lambda x: tn.from_numpy(x)[:1].view("f8").view("c16"),
    "index": lambda x: tn.from_numpy(x)[99],
    "index type": lambda x: tn.from_numpy(x)["a"],
    "slice step": lambda x: tn.from_numpy(x)[::0],
    "too many indices": lambda x: tn.from_numpy(x)[0, 0, 0],
    "assignment": lambda x: tn.from_numpy(x).__setitem__(0, "text"),
    "assignment of a shape": lambda x: tn.from_numpy(x).__setitem__(..., np.zeros(3)),
    "assignment of an object": lambda x: tn.from_numpy(x).__setitem__(..., object()),
    "dtype": lambda x: tn.from_numpy(x).astype("nothing"),
    "stream": lambda x: tn.from_numpy(x).__dlpack__(stream=3),
    "read-only legacy": lambda x: tn.from_numpy(x).readonly().__dlpack__(),
    "max_version": lambda x: tn.from_numpy(x).__dlpack__(max_version=5),
    "transpose": lambda x: tn.from_numpy(x).transpose(3),
    "item": lambda x: tn.from_numpy(x).item(99),
    "float": lambda x: float(tn.from_numpy(x)),
    "int": lambda x: int(tn.from_numpy(x)),
    "hash or bool": lambda x: bool(tn.from_numpy(x)),
    "copyto": lambda x: tn.from_numpy(x).copyto(tn.zeros(3)),
    "copyto type": lambda x: tn.from_numpy(x).copyto(object()),
    "operator": lambda x: tn.from_numpy(x) + object(),
    "in place": lambda x: tn.from_numpy(x).__iadd__(np.zeros(3)),
    "matmul": lambda x: tn.from_numpy(x) @ np.zeros(3),
    "array dtype": lambda x: tn.from_numpy(x).__array__("nothing"),
    "to": lambda x: tn.from_numpy(x).to("gpu"),
}


@pytest.fixture
def x():
    return np.arange(8.0)


@pytest.mark.parametrize("kind", BORROW)
def test_a_borrowed_owner_is_released_with_the_last_user(kind, x):
    BORROW[kind](x)  # whatever is made once is made now
    gc.collect()
    references = sys.getrefcount(x)
    for _ in range(3):
        user = BORROW[kind](x)
        assert sys.getrefcount(x) > references
        del user
        assert sys.getrefcount(x) == references
    assert x.flags.writeable


@pytest.mark.slow
@pytest.mark.parametrize("kind", FAIL)
def test_a_call_that_fails_takes_nothing(kind, x):
    for _ in range(2):  # the first time makes what is made once
        gc.collect()
        references, counts = sys.getrefcount(x), live.now()
        with pytest.raises(ERRORS) as info:
            FAIL[kind](x)
        del info
        assert sys.getrefcount(x) == references
        assert x.flags.writeable
        assert live.now() == counts


@pytest.mark.slow
@pytest.mark.parametrize("kind", BORROW)
def test_owners_that_only_an_array_keeps_die_with_it(kind):
    x = np.arange(8.0)
    reference = weakref.ref(x)
    user = BORROW[kind](x)
    del x
    gc.collect()
    assert reference() is not None
    del user
    gc.collect()
    assert reference() is None


def test_arrays_have_one_reference_when_they_are_made():
    fresh = sys.getrefcount(object())
    for make in (
        lambda: tn.zeros(3),
        lambda: tn.empty((2, 2)),
        lambda: tn.full(3, 1.0),
        lambda: tn.array([1, 2]),
        lambda: tn.zeros(4)[1:],
        lambda: tn.zeros(4).reshape(2, 2),
        lambda: tn.zeros((2, 3)).T,
        lambda: tn.zeros(4).readonly(),
        lambda: tn.zeros(4).copy(),
        lambda: tn.from_numpy(np.zeros(3)),
        lambda: tn.from_dlpack(np.zeros(3)),
        lambda: tn.from_buffer(bytearray(8), "u1"),
        lambda: pickle.loads(pickle.dumps(tn.zeros(3))),
    ):
        references = sys.getrefcount(make())  # outside of the assert, which keeps a reference
        assert references == fresh


def test_calls_without_results_leave_their_arguments_alone(x):
    a = tn.from_numpy(x)
    value = np.float64(1234.5)
    shape = (8,)
    key = slice(1, 3)
    dtype = np.dtype("f4")
    name = "".join(["float", "32"])
    everything = (value, shape, key, dtype, name, a)

    def use():
        a[key] = value
        a[...] = x
        a.reshape(shape)
        a.astype(dtype)
        a.astype(name)
        tn.zeros(shape, dtype=dtype)
        tn.full(shape, value)
        repr(a), str(a), len(a), a.shape, a.strides, a.dtype, a.device, a.nbytes, a.tolist()
        a.copyto(a)
        a == value  # noqa: B015
        a.__dlpack_device__()
        a.__dlpack__(max_version=(1, 0), dl_device=(1, 0))
        hasattr(a, "nothing")

    use()
    before = [sys.getrefcount(item) for item in everything]
    for _ in range(50):
        use()
    assert [sys.getrefcount(item) for item in everything] == before


def test_singletons_keep_their_references():
    """None, True and their like are immortal from 3.12 on. The interpreter does not count them then, but the
    one extension for all versions does: their numbers drift, and mean nothing."""
    a = tn.zeros(4)
    x = np.zeros(4)
    things = (np.ndarray, tn.NDArray, np.dtype("f4"), type(a.dtype))
    if sys.version_info < (3, 12):
        things += (None, True, False, ..., NotImplemented)
    else:  # from 3.13 on, NumPy's types are immortal, too
        things = tuple(thing for thing in things if sys.getrefcount(thing) < 2**31)

    def use():
        a.__dlpack__(stream=None, max_version=None, dl_device=None, copy=None)
        a.writable, a.readonly().writable
        a[...] = 1
        a[None]
        tn.from_dlpack(x, device=None, copy=None)
        tn.from_numpy(x, True)
        tn.from_pointer(x.ctypes.data, (4,), "f8", strides=None, owner=None, deleter=None)
        a.__eq__(object())
        np.asarray(a)
        a.dtype  # noqa: B018
        a.copyto(a)
        memoryview(a).release()

    use()
    gc.collect()
    before = [sys.getrefcount(thing) for thing in things]
    for _ in range(2000):
        use()
    gc.collect()
    after = [sys.getrefcount(thing) for thing in things]
    assert all(abs(b - a) < 100 for a, b in zip(after, before, strict=True)), list(
        zip(things, before, after, strict=True)
    )


def test_the_deleter_of_a_tensor_runs_once_after_the_last_of_everything():
    for user in (
        lambda a: a[1:],
        lambda a: a.numpy()[1:],
        lambda a: memoryview(a)[1:],
        lambda a: np.from_dlpack(a).T,
        lambda a: a.__dlpack__(),
        lambda a: tn.from_dlpack(a),
        lambda a: tn.from_numpy(a.numpy()),
        lambda a: tn.from_buffer(a, "u1"),
        lambda a: a.readonly().numpy(),
        lambda a: list(a) if isinstance(next(iter(a)), tn.NDArray) else a.reshape(2, 2),
    ):
        tensor = dl.Tensor((4,))
        a = tn.from_dlpack(tensor)
        last = user(a)
        del a
        live.now()
        assert tensor.deaths == 0
        del last
        live.now()
        assert tensor.deaths == 1
