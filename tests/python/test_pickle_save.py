# SPDX-License-Identifier: Apache-2.0
"""Arrays travel by value: through pickle, in band and out of band, and through NumPy's files."""

import io
import pickle

import numpy as np
import pytest

import tenon as tn

pytestmark = pytest.mark.usefixtures("nothing_stays_behind")

DTYPES = [
    "bool",
    "int8",
    "uint64",
    "float16",
    "float32",
    "complex128",
    "bfloat16",
    "float8_e4m3fn",
    "float6_e2m3fn",
    "float4_e2m1fn",
]


def raw(a):
    return bytes(a.copy().reshape(-1).view("uint8"))


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
@pytest.mark.parametrize("dtype", DTYPES)
def test_pickled_arrays_come_back_equal(protocol, dtype):
    a = tn.from_buffer(bytearray(range(192)), dtype)
    a = a.reshape(4, a.size // 4)
    b = pickle.loads(pickle.dumps(a, protocol))
    assert (b.shape, b.dtype) == (a.shape, a.dtype)
    assert raw(b) == raw(a)
    assert b.writable


@pytest.mark.parametrize("shape", [(), (0,), (2, 0, 3), (1,), (2, 3, 4)])
@pytest.mark.parametrize("protocol", [2, 5])
def test_all_shapes_are_pickled(shape, protocol):
    a = tn.full(shape, 3, "int16")
    b = pickle.loads(pickle.dumps(a, protocol))
    assert b.shape == shape
    assert b.tolist() == a.tolist()


@pytest.mark.parametrize("protocol", [2, 5])
def test_windows_are_pickled_without_the_rest(protocol):
    a = tn.array(np.arange(100_000, dtype="f4").reshape(100, 1000))
    for window in (a[3], a[:, 5], a[::-1, :2], a.T[:3]):
        data = pickle.dumps(window, protocol)
        assert len(data) < window.nbytes + 1000
        assert pickle.loads(data).tolist() == window.tolist()


def test_out_of_band_nothing_is_copied():
    a = tn.array(np.arange(1000.0))
    buffers = []
    data = pickle.dumps(a, 5, buffer_callback=buffers.append)
    assert len(data) < 500
    b = pickle.loads(data, buffers=buffers)
    assert b.data_ptr == a.data_ptr
    del buffers
    b[0] = 5
    assert a[0].item() == 5


@pytest.mark.parametrize("axes", [(1, 0, 2), (2, 1, 0), (1, 2, 0), (0, 2, 1)])
def test_out_of_band_an_order_of_axes_is_kept_and_nothing_is_copied(axes):
    a = tn.array(np.arange(24.0).reshape(2, 3, 4)).transpose(axes)
    buffers = []
    data = pickle.dumps(a, 5, buffer_callback=buffers.append)
    b = pickle.loads(data, buffers=buffers)
    assert (b.data_ptr, b.shape, b.strides) == (a.data_ptr, a.shape, a.strides)
    assert b.tolist() == a.tolist()


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
@pytest.mark.parametrize("dtype", ["float32", "bool", "bfloat16", "complex128"])
def test_fortran_order_is_kept_in_band(protocol, dtype):
    a = tn.array(np.arange(6).reshape(3, 2)).astype(dtype).T
    b = pickle.loads(pickle.dumps(a, protocol))
    assert (b.shape, b.strides, b.dtype) == (a.shape, a.strides, a.dtype)
    assert raw(b) == raw(a)


def test_readonly_arrays_come_back_readonly():
    a = tn.ones(3).readonly()
    assert not pickle.loads(pickle.dumps(a, 5)).writable


def test_copies_of_protocol_5_are_of_their_own():
    a = tn.ones(3)
    b = pickle.loads(pickle.dumps(a, 5))
    b[0] = 2
    assert a.tolist() == [1, 1, 1]


@pytest.mark.parametrize("dtype", ["bool", "int8", "uint64", "float16", "float32", "complex128"])
def test_saved_arrays_are_loaded(tmp_path, dtype):
    a = tn.array(np.arange(6).reshape(2, 3) % 2).astype(dtype)
    tn.save(tmp_path / "a.npy", a)
    b = tn.load(tmp_path / "a.npy")
    assert b.dtype == a.dtype
    assert b.tolist() == a.tolist()
    assert b.writable
    assert np.load(tmp_path / "a.npy").tolist() == a.tolist()


def test_numpy_saves_arrays(tmp_path):
    a = tn.ones((2, 3))
    np.save(tmp_path / "a", a)
    assert tn.load(tmp_path / "a.npy").tolist() == a.tolist()


def test_several_arrays_go_to_one_file(tmp_path):
    a, x = tn.ones(3), np.arange(2)
    tn.save(tmp_path / "named.npz", {"a": a, "x": x})
    loaded = tn.load(tmp_path / "named.npz")
    assert {name: array.tolist() for name, array in loaded.items()} == {"a": [1, 1, 1], "x": [0, 1]}
    assert all(array.writable for array in loaded.values())
    tn.save(tmp_path / "listed.npz", [a, x])
    assert sorted(tn.load(tmp_path / "listed.npz")) == ["0", "1"]


def test_files_may_be_streams():
    stream = io.BytesIO()
    tn.save(stream, tn.ones((2, 2)))
    stream.seek(0)
    assert tn.load(stream).tolist() == [[1, 1], [1, 1]]


def test_a_mapped_file_is_the_memory(tmp_path):
    tn.save(tmp_path / "a.npy", tn.zeros(4))
    a = tn.load(tmp_path / "a.npy", mmap_mode="r+")
    a[1] = 5
    del a
    assert tn.load(tmp_path / "a.npy").tolist() == [0, 5, 0, 0]
    assert not tn.load(tmp_path / "a.npy", mmap_mode="r").writable


def test_arrays_in_npz_files_may_have_any_name(tmp_path):
    names = ["allow_pickle", "file", "args", "arr_0"]
    tn.save(tmp_path / "k", {name: tn.full(2, i) for i, name in enumerate(names)})
    loaded = tn.load(tmp_path / "k.npz")
    assert {name: array.tolist() for name, array in loaded.items()} == {
        n: [i, i] for i, n in enumerate(names)
    }
    with pytest.raises(TypeError, match="not 3"):
        tn.save(tmp_path / "k.npz", {3: tn.zeros(2)})


def test_files_in_the_other_byte_order_are_converted(tmp_path):
    np.save(tmp_path / "a.npy", np.arange(3, dtype=">f4"))
    assert tn.load(tmp_path / "a.npy").tolist() == [0, 1, 2]


def test_what_files_cannot_hold_is_refused(tmp_path):
    with pytest.raises(TypeError, match="uint16"):
        tn.save(tmp_path / "a.npy", tn.zeros(2, "bfloat16"))
    np.save(tmp_path / "text.npy", np.array(["a"]))
    with pytest.raises(TypeError, match="text"):
        tn.load(tmp_path / "text.npy")
    np.save(tmp_path / "objects.npy", np.array([None]), allow_pickle=True)
    with pytest.raises(ValueError):
        tn.load(tmp_path / "objects.npy")
