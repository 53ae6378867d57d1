# SPDX-License-Identifier: Apache-2.0
"""The properties that the array API standard asks of `__dlpack__`, `__dlpack_device__` and `from_dlpack`,
over shapes, dtypes, indices and keywords drawn by hypothesis."""

import foreign_dlpack as dl
import numpy as np
import pytest

import tenon as tn

pytest.importorskip("hypothesis")
from hypothesis import given, settings
from hypothesis import strategies as st

settings.register_profile("tenon", max_examples=80, deadline=None, derandomize=True)
settings.load_profile("tenon")

DTYPES = (
    *(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)),
    *("bool", "float16", "float32", "float64", "complex64", "complex128"),
)
dtypes = st.sampled_from(DTYPES)
shapes = st.lists(st.integers(0, 5), max_size=5).map(tuple)
copies = st.sampled_from((None, False, True))


def values(shape, dtype):
    n = int(np.prod(shape))
    return (np.arange(n) % 100).astype(dtype).reshape(shape)


@st.composite
def views(draw):
    """A NumPy array and an index that makes a view of it."""
    shape = draw(shapes)
    x = values(shape, draw(dtypes))
    index = []
    for n in shape[: draw(st.integers(0, len(shape)))]:
        bound = st.one_of(st.none(), st.integers(-n - 2, n + 2))
        slices = st.builds(slice, bound, bound, st.sampled_from((None, 1, 2, -1, -3, 7)))
        index.append(draw(slices if n == 0 else st.one_of(slices, st.integers(-n, n - 1))))
        if draw(st.booleans()):
            index.append(None)
    return x, (*index, ...)


@given(shapes, dtypes, copies, st.sampled_from((None, "cpu")))
def test_from_dlpack_takes_every_combination_of_keywords(shape, dtype, copy, device):
    x = values(shape, dtype)
    for source in (x, tn.array(x)):
        a = tn.from_dlpack(source, copy=copy, device=device)
        assert a.shape == shape
        assert a.dtype == x.dtype
        np.testing.assert_array_equal(np.asarray(a), x)
        address = source.ctypes.data if source is x else source.data_ptr
        if x.size:
            assert (a.data_ptr == address) == (copy is not True)
        del a


@given(views())
def test_views_index_as_numpy_does_and_leave_with_the_same_elements(drawn):
    x, index = drawn
    a = tn.array(x)
    view, peer = a[index], x[index]
    assert view.shape == peer.shape
    np.testing.assert_array_equal(np.from_dlpack(view), peer)
    np.testing.assert_array_equal(np.asarray(view), peer)
    np.testing.assert_array_equal(np.asarray(tn.from_dlpack(peer)), peer)
    assert tn.from_dlpack(view).tolist() == peer.tolist()


@given(views(), st.data())
def test_writes_reach_the_memory_whichever_way_they_go(drawn, data):
    x, index = drawn
    a = tn.array(x)
    mirror = x.copy()
    ways = {
        "array": lambda: a[index],
        "numpy": lambda: np.asarray(a)[index],
        "view": lambda: np.asarray(a[index]),
        "dlpack": lambda: np.from_dlpack(a[index]),
        "round trip": lambda: tn.from_dlpack(np.from_dlpack(a))[index],
    }
    target = ways[data.draw(st.sampled_from(sorted(ways)))]()
    target[...] = 1
    mirror[index][...] = 1
    np.testing.assert_array_equal(np.asarray(a), mirror)


@given(views())
def test_strides_are_those_of_numpy_where_they_mean_anything(drawn):
    x, index = drawn
    a = tn.array(x)
    view, peer = a[index], x[index]
    if peer.size == 0:
        return
    meaningful = [i for i, n in enumerate(peer.shape) if n > 1]
    assert [view.strides[i] for i in meaningful] == [peer.strides[i] for i in meaningful]
    taken = dl.take(view.__dlpack__(max_version=(1, 3)))
    assert [taken.strides[i] * x.itemsize for i in meaningful] == [peer.strides[i] for i in meaningful]
    assert taken.data == view.data_ptr
    taken.release()


@given(
    st.lists(st.integers(-3, 6), min_size=1, max_size=4),
    st.lists(st.integers(-(2**62), 2**62), min_size=4, max_size=4),
    st.integers(0, 64),
)
def test_no_shape_strides_and_offset_make_an_array_that_leaves_its_claim(shape, strides, byte_offset):
    """A hostile tensor is refused, or becomes an array whose strides are the ones that it gave."""
    tensor = dl.Tensor(tuple(shape), tuple(strides[: len(shape)]), byte_offset=byte_offset)
    try:
        a = tn.from_dlpack(tensor)
    except (ValueError, BufferError, TypeError, OverflowError):
        assert tensor.deaths == 1
        return
    assert all(n >= 0 for n in shape)
    assert byte_offset % 4 == 0 or a.size == 0
    assert a.shape == tuple(shape)
    if a.size > 1:
        span = [(n - 1) * s * 4 for n, s in zip(shape, strides, strict=False)]
        assert all(abs(reach) < 2**63 for reach in span)
    del a
    assert tensor.deaths == 1
