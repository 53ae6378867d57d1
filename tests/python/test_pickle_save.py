# SPDX-License-Identifier: Apache-2.0
"""Arrays travel by value: through pickle, in band and out of band, and through NumPy's files."""

import contextlib
import errno
import gzip
import io
import os
import pickle
import re
import resource
import stat
import struct
import subprocess
import threading
import tracemalloc
import zipfile

import numpy as np
import pytest

import tenon as tn
from tenon._array import params

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
    "float4_e2m1fn_x2",
]


def saved(save, array):
    stream = io.BytesIO()
    save(stream, array)
    return stream.getvalue()


def zipped(name, content, compression=zipfile.ZIP_STORED):
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", compression) as archive:
        archive.writestr(name, content)
    return stream.getvalue()


def described(header):
    """An npy file with this description."""
    return b"\x93NUMPY\x02\0" + struct.pack("<I", len(header)) + header


def encrypted(content):
    """A zip file whose members say that they are encrypted."""
    changed = bytearray(content)
    for magic, place in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        changed[content.index(magic) + place] |= 1
    return bytes(changed)


def of_shape(n):
    return described(b"{'descr': '<f8', 'fortran_order': False, 'shape': (%d,)}\n" % n)


ONES = saved(np.save, np.ones(900))
BZ2, LZMA = (zipped("a.npy", ONES, kind) for kind in (zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA))


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


@pytest.mark.parametrize("protocol", [2, 5])
@pytest.mark.parametrize("dtype", ["float4_e2m1fn", "float6_e2m3fn"])
def test_packed_arrays_that_end_inside_of_a_byte_are_pickled(protocol, dtype):
    pool = tn.TensorPool("1 MiB", inline=2)
    for n in (1, 3, 5):
        a = tn.from_buffer(bytearray(b"\x21\x43\x65\x07")[: -(-n * tn.dtype(dtype).bits // 8)], dtype, n)
        for b in (pickle.loads(pickle.dumps(a, protocol)), tn.loads(pool.dumps([a]))[0]):
            assert (b.shape, b.dtype, b.tobytes()) == (a.shape, a.dtype, a.tobytes())
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


@pytest.mark.parametrize("mode", ["r", "r+", "c"])
def test_a_file_that_is_too_short_is_not_mapped_and_stays_as_it_is(tmp_path, mode):
    path = tmp_path / "a.npy"
    tn.save(path, tn.ones(1000))
    cut = path.read_bytes()[:-1]
    path.write_bytes(cut)
    with pytest.raises(ValueError, match=r"a\.npy: the file is damaged or cut off"):
        tn.load(path, mmap_mode=mode)
    assert path.read_bytes() == cut


@pytest.mark.parametrize("mode", ["r", "r+", "c"])
def test_elements_that_would_have_to_be_converted_are_not_mapped(tmp_path, mode):
    np.save(tmp_path / "swapped.npy", np.arange(3, dtype=">f4"))
    header = b"{'descr': '<f8', 'fortran_order': False, 'shape': (3,)}\n"
    begin = b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header
    (tmp_path / "odd.npy").write_bytes(begin + np.arange(3.0).tobytes())
    for name, fault in (("swapped.npy", "have the other byte order"), ("odd.npy", "are unaligned")):
        assert tn.load(tmp_path / name).tolist() == [0, 1, 2]
        with pytest.raises(ValueError, match=f"cannot be mapped: its elements {fault}"):
            tn.load(tmp_path / name, mmap_mode=mode)


@pytest.mark.parametrize("mode", ["w", "w+", "x", "rw", "write", 0])
def test_a_mode_that_would_empty_the_file_or_is_unknown_is_refused(tmp_path, mode):
    tn.save(tmp_path / "a.npy", tn.ones(3))
    with pytest.raises(ValueError, match=re.escape(f"mmap_mode is {mode!r}: it must be None, 'r', 'r+'")):
        tn.load(tmp_path / "a.npy", mmap_mode=mode)
    assert tn.load(tmp_path / "a.npy").tolist() == [1, 1, 1]


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
    for mode in (None, "r"):
        with pytest.raises(ValueError, match=r"objects\.npy: the file holds Python objects") as caught:
            tn.load(tmp_path / "objects.npy", mmap_mode=mode)
        assert "allow_pickle" not in str(caught.value)


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (b"", "the file is no npy, npz or .params file: it is empty"),
        (b"hello", "the file is no npy, npz or .params file: it begins with b'hello'"),
        (pickle.dumps(np.ones(2)), "the file is no npy, npz or .params file"),
        (saved(np.save, np.ones(9))[:-8], "the file is damaged or cut off: "),
        (saved(np.save, np.ones(9))[:40], "the file is damaged or cut off"),
        (saved(np.save, np.ones(9)).replace(b"'descr'", b"(descr'"), "the file is damaged or cut off"),
        (saved(np.savez, np.ones(9))[:-8], "the file is damaged or cut off: File is not a zip file"),
        (saved(np.savez, np.ones(9)).replace(b"?", b"!"), "the file is damaged or cut off: Bad CRC"),
        (
            zipped("weights/data.pkl", b"text"),
            "the file is no npz file: 'weights/data.pkl' in it is no array",
        ),
        (BZ2.replace(b"1AY&SY", b"1AY&SZ"), "the file is damaged or cut off"),
        (LZMA.replace(b"\x5d\0\0", b"\xff\0\0"), "the file is damaged or cut off"),
        (encrypted(zipped("a.npy", ONES)), "an array of the file cannot be read: .*encrypted"),
        (zipped("a.npy", ONES + b"more"), "the file is damaged or cut off: 'a.npy' in it has bytes behind"),
        (described(b" " * 20_000), "the description of an array is too long"),
        (of_shape(10**17), "the file is damaged or cut off"),
        (of_shape(10**30), "the file is damaged or cut off"),
    ],
    ids=[
        *("empty", "text", "pickle", "short", "no header", "bad header", "short zip", "bad zip", "torch"),
        *("bz2", "lzma", "encrypted", "long member", "long header", "large", "too large"),
    ],
)
def test_a_damaged_file_is_named(tmp_path, content, text):
    file = tmp_path / "x.npz"
    file.write_bytes(content)
    with pytest.raises(ValueError, match=f"x.npz: {text}") as caught:
        tn.load(file)
    assert "allow_pickle" not in str(caught.value)
    with open(file, "rb") as opened, pytest.raises(ValueError, match=f"x.npz: {text}"):
        tn.load(opened)
    with pytest.raises(ValueError, match=f"^{text}"):
        tn.load(io.BytesIO(content))


def save_params(stream, array):
    params.write(stream, [tn.array(array), tn.ones((2, 1))], ["name", "other"])


@pytest.mark.parametrize("save", [np.save, np.savez, save_params])
def test_each_bit_that_is_changed_gives_an_array_or_an_error_of_the_file(save, tmp_path):
    whole, file = saved(save, np.ones(9, "u1")), tmp_path / "x"
    for place in range(8 * len(whole)):
        damaged = bytearray(whole)
        damaged[place // 8] ^= 1 << place % 8
        file.write_bytes(damaged)
        with contextlib.suppress(ValueError):
            tn.load(file)


def test_an_open_file_is_no_text_and_is_not_mapped(tmp_path):
    with pytest.raises(TypeError, match="file is StringIO: it must be a path or a binary file"):
        tn.load(io.StringIO("text"))
    tn.save(tmp_path / "a.npy", tn.ones(2))
    with (
        open(tmp_path / "a.npy", "rb") as opened,
        pytest.raises(ValueError, match=r"'r': .* given by its path"),
    ):
        tn.load(opened, mmap_mode="r")
    assert tn.load(tmp_path / "a.npy", mmap_mode="r").tolist() == [1, 1]
    tn.save(tmp_path / "a.npy", tn.ones((0, 2)))
    assert tn.load(tmp_path / "a.npy", mmap_mode="r").shape == (0, 2)


FILES = ("a.npy", "a.npz", "a.params")


def content(name, value, n=3):
    a = tn.full(n, value, "f8")
    return a if name == "a.npy" else {"w": a}


class Raw(io.RawIOBase):
    """Its calls read and write as little as they may."""

    def __init__(self, data=b""):
        self.file = io.BytesIO(data)
        self.seek, self.tell = self.file.seek, self.file.tell

    def readable(self):
        return True

    writable = seekable = readable

    def write(self, data):
        return self.file.write(bytes(data)[:7])

    def readinto(self, room):
        return self.file.readinto(memoryview(room)[:7])


@pytest.mark.parametrize("name", FILES)
def test_raw_files_are_written_and_read_whole(tmp_path, name):
    tn.save(tmp_path / name, content(name, 1))
    whole = (tmp_path / name).read_bytes()
    assert str(tn.load(Raw(whole))) == str(tn.load(tmp_path / name))
    if not name.endswith(".params"):  # which only a path selects
        raw = Raw()
        tn.save(raw, content(name, 1))
        raw.seek(0)
        assert str(tn.load(raw)) == str(tn.load(tmp_path / name))


@pytest.mark.parametrize("name", ["a.npy", "a.npz"])
def test_a_raw_file_that_takes_nothing_now_is_an_error(name):
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    with open(writer, "wb", buffering=0) as file, open(reader, "rb"):
        big = tn.zeros(100_000)
        with pytest.raises(BlockingIOError):
            tn.save(file, big if name == "a.npy" else {"a": big})


def first_value(path):
    loaded = tn.load(path)
    return (loaded["w"] if isinstance(loaded, dict) else loaded)[0].item()


@pytest.mark.parametrize("name", FILES)
def test_a_save_that_fails_leaves_the_old_file_and_nothing_else(tmp_path, name, monkeypatch):
    path = tmp_path / name
    tn.save(path, content(name, 1))
    old = path.read_bytes()
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, limits[1]))  # as a full disk
    try:
        with pytest.raises(OSError):
            tn.save(path, content(name, 2, 100_000))
        with pytest.raises(OSError):
            tn.save(tmp_path / f"new{name}", content(name, 2, 100_000))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)

    def replace(*_):
        raise OSError(errno.EBUSY, "Device or resource busy", ".tenon-save")

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", replace)  # as over a mounted file
        with pytest.raises(OSError, match=f"busy: '.*{name}'") as caught:
            tn.save(path, content(name, 2))
    assert "pass an open file" in caught.value.__notes__[0]
    assert path.read_bytes() == old
    assert os.listdir(tmp_path) == [name]


@pytest.mark.parametrize("mode", ["r", "r+", "c"])
def test_a_map_of_a_file_that_is_saved_again_stays_valid(tmp_path, mode):
    path = tmp_path / "a.npy"
    tn.save(path, tn.arange(100_000))
    a = tn.load(path, mmap_mode=mode)
    if mode != "r":
        a[0] = 5
    tn.save(path, a)
    assert tn.load(path).tolist() == a.tolist()
    tn.save(path, tn.zeros(1))  # shorter: bytes behind the end of a mapped file end the process
    assert a[99_999].item() == 99_999
    assert tn.load(path).tolist() == [0]


@pytest.mark.parametrize("name", FILES)
def test_a_saved_file_keeps_its_mode_and_owner_and_a_new_one_has_the_usual_mode(tmp_path, name):
    path = tmp_path / name
    umask = os.umask(0o027)
    try:
        tn.save(path, content(name, 1))
    finally:
        os.umask(umask)
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
    path.chmod(0o4604)
    if os.geteuid() == 0:
        os.chown(path, 1234, 4321)
        path.chmod(0o4604)
    before = path.stat()
    try:
        os.setxattr(path, "user.about", b"kept")
    except OSError:
        pytest.skip("the file system has no attributes")
    tn.save(path, content(name, 2))
    after = path.stat()
    assert (after.st_mode, after.st_uid, after.st_gid) == (before.st_mode, before.st_uid, before.st_gid)
    assert os.getxattr(path, "user.about") == b"kept"
    assert after.st_ino != before.st_ino and first_value(path) == 2


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write all files")
def test_a_file_or_folder_that_may_not_be_written_is_not_replaced(tmp_path):
    path = tmp_path / "a.npy"
    tn.save(path, tn.ones(2))
    path.chmod(0o444)
    with pytest.raises(PermissionError, match=r"a\.npy"):
        tn.save(path, tn.zeros(2))
    path.chmod(0o644)
    tmp_path.chmod(0o555)
    try:
        with pytest.raises(PermissionError, match=r"a\.npy"):
            tn.save(path, tn.zeros(2))
    finally:
        tmp_path.chmod(0o755)
    assert tn.load(path).tolist() == [1, 1]


@pytest.mark.parametrize("name", FILES)
def test_links_are_followed_by_a_save(tmp_path, name, monkeypatch):
    folder = tmp_path / "files"
    folder.mkdir()
    (tmp_path / "folder").symlink_to("files")
    (tmp_path / "far").symlink_to("folder/../near")
    (tmp_path / "near").symlink_to(f"folder/{name}")  # which leads nowhere at first
    (tmp_path / name).symlink_to("far")
    monkeypatch.chdir(tmp_path)
    for value in (1, 2):
        tn.save(name, content(name, value))
        assert first_value(folder / name) == value
    assert os.listdir(folder) == [name]
    assert sorted(os.listdir()) == sorted([name, "far", "files", "folder", "near"])
    assert os.path.islink(name)


@pytest.mark.parametrize("name", FILES)
def test_pipes_are_written_in_place_and_read_to_their_end(tmp_path, name):
    path = tmp_path / name
    os.mkfifo(path)
    for value in (1, 2):
        writer = threading.Thread(target=tn.save, args=(path, content(name, value, 20_000)))
        writer.start()
        if value == 1:
            assert first_value(path) == 1
        else:
            with open(path, "rb") as file:
                assert first_value(file) == 2
        writer.join()
    assert stat.S_ISFIFO(path.stat().st_mode)
    writer = threading.Thread(target=path.write_bytes, args=(b"no array",))
    writer.start()
    with pytest.raises(ValueError, match="it begins with b'no array'"):
        tn.load(path)
    writer.join()


def test_an_open_file_is_written_in_place_by_its_path_in_proc(tmp_path):
    with open(tmp_path / "out", "w+b") as file:
        link = tmp_path / "a.npy"
        link.symlink_to(f"/proc/self/fd/{file.fileno()}")
        tn.save(link, tn.ones(2))
        assert tn.load(file).tolist() == [1, 1]


def test_the_arrays_of_an_npz_file_are_those_of_its_members(tmp_path):
    arrays = {name: tn.full(2, i) for i, name in enumerate(["a", "a.npy", "a.npy.npy", "", ".npy", "b/c"])}
    tn.save(tmp_path / "a.npz", arrays)
    loaded = tn.load(tmp_path / "a.npz")
    assert {name: a.tolist() for name, a in loaded.items()} == {n: a.tolist() for n, a in arrays.items()}
    with zipfile.ZipFile(tmp_path / "two.npz", "w") as archive:
        archive.writestr("a", ONES)
        archive.writestr("a.npy", ONES)
    with pytest.raises(ValueError, match=r"two\.npz: .*two arrays of the name 'a'"):
        tn.load(tmp_path / "two.npz")


def test_a_name_that_is_too_long_for_an_npz_file_is_an_error_before_anything_is_written(tmp_path):
    long = "\u00e9" * 32_765  # 65,530 bytes
    for file in (tmp_path / "a.npz", io.BytesIO()):
        tn.save(file, {long + "1": tn.ones(2)})
        size = len(file.getvalue()) if isinstance(file, io.BytesIO) else file.stat().st_size
        with pytest.raises(ValueError, match="has 65532 bytes: names in npz files have at most 65531"):
            tn.save(file, {"x": tn.ones(2), long + "12": tn.ones(2)})
        assert size == (len(file.getvalue()) if isinstance(file, io.BytesIO) else file.stat().st_size)
    assert list(tn.load(tmp_path / "a.npz")) == [long + "1"]
    tn.save(tmp_path / "a.params", {long * 2: tn.ones(2)})
    assert list(tn.load(tmp_path / "a.params")) == [long * 2]


def test_only_npy_files_are_mapped(tmp_path):
    for name in ("a.npz", "a.params"):
        tn.save(tmp_path / name, content(name, 1))
        with pytest.raises(ValueError, match="only npy files can be mapped"):
            tn.load(tmp_path / name, mmap_mode="r+")


PARAMS = [
    "bool", "int8", "uint8", "int16", "int32", "int64", "uint64", "float16", "float32", "float64", "bfloat16",
]  # fmt: skip


@pytest.mark.parametrize("is_shared", [False, True])
def test_params_files_hold_lists_and_names(tmp_path, is_shared):
    arrays = {f"arg:{name}": tn.zeros((2, 3), name) for name in PARAMS}
    for i, array in enumerate(arrays.values()):
        array[...] = np.arange(6).reshape(2, 3) * (i % 3)
    arrays |= {"scalar": tn.full((), 7), "empty": tn.zeros((2, 0)), "strided": tn.arange(6.0)[::2]}
    tn.save(tmp_path / "net.params", arrays)
    loaded = tn.load(tmp_path / "net.params", shared=is_shared)
    assert list(loaded) == list(arrays)
    for name, array in arrays.items():
        assert (loaded[name].dtype, loaded[name].shape) == (array.dtype, array.shape)
        assert loaded[name].tolist() == array.tolist()
        assert loaded[name].shared == is_shared and loaded[name].writable
    tn.save(str(tmp_path / "list.params"), list(arrays.values()))
    assert [a.tolist() for a in tn.load(tmp_path / "list.params")] == [a.tolist() for a in arrays.values()]
    tn.save(tmp_path / "one.params", tn.ones(2))
    assert [a.tolist() for a in tn.load(tmp_path / "one.params")] == [[1, 1]]


def params_file(array, names=b"\0" * 8):
    return struct.pack("<QQQ", 0x112, 0, 1) + array + names


def test_the_layout_of_params_files_is_mxnets(tmp_path):
    file = tmp_path / "a.params"
    tn.save(file, {"w": tn.array([[1, 2]], "int32")})
    array = struct.pack("<IiiqqiiiII", 0xF993FAC9, 0, 2, 1, 2, 1, 0, 4, 1, 2)
    assert file.read_bytes() == params_file(array, struct.pack("<QQ", 1, 1) + b"w")
    old = [
        struct.pack("<IiqqiiiII", 0xF993FAC8, 2, 1, 2, 2, 0, 4, 1, 2),
        struct.pack("<IIIiiiII", 2, 1, 2, 1, 0, 4, 1, 2),
        struct.pack("<IiiqqiiiII", 0xF993FACA, 0, 2, 1, 2, 1, 0, 4, 1, 2),
    ]
    for array in old:  # of older versions, and with the shapes of NumPy
        assert tn.load(io.BytesIO(params_file(array)))[0].tolist() == [[1, 2]]


@pytest.mark.parametrize("shape", [(1,), (), (0,), (2, 0)], ids=str)
def test_all_arrays_of_a_params_file_have_one_form(tmp_path, shape):
    """MXNet reads files of the one, or of the other."""
    tn.save(tmp_path / "a.params", [tn.ones(2), tn.ones(shape), tn.ones(2)])
    content = (tmp_path / "a.params").read_bytes()
    old, new = (content.count(struct.pack("<I", 0xF993FAC9 + i)) for i in (0, 1))
    assert (old, new) == ((3, 0) if shape == (1,) else (0, 3))


class OnlyRead:
    def __init__(self, content):
        self.stream = io.BytesIO(content)
        self.read, self.tell, self.seek = self.stream.read, self.stream.tell, self.stream.seek


def test_params_are_read_from_files_of_each_kind(tmp_path):
    path = tmp_path / "a.params"
    tn.save(path, [tn.arange(100_000), tn.full((), 7)])
    content = path.read_bytes()
    with (
        open(path, "rb", buffering=0) as unbuffered,
        gzip.open(io.BytesIO(gzip.compress(content))) as packed,
        subprocess.Popen(["cat", path], stdout=subprocess.PIPE) as cat,
    ):
        for file in (io.BytesIO(content), OnlyRead(content), unbuffered, packed, cat.stdout):
            assert [a.sum() for a in tn.load(file)] == [4_999_950_000, 7]


@pytest.mark.parametrize("part", [1, 7, 64, 1 << 18])
def test_arrays_of_any_layout_are_saved_and_loaded_in_parts(tmp_path, part, monkeypatch):
    monkeypatch.setattr(params, "_PART", part)
    random = np.random.default_rng(1)
    arrays = []
    for dtype in ("u1", "f4", "f8", "bool", "bfloat16") * 12:
        shape = tuple(random.integers(0, 5, random.integers(0, 5)))
        a = tn.array(random.integers(0, 2, shape)).astype(dtype)
        a = a.transpose(*random.permutation(a.ndim)) if a.ndim else a
        key = tuple(slice(None, None, int(random.choice([1, 1, 2, -1]))) for _ in shape)
        arrays.append(a[key])
    arrays.append(tn.from_numpy(np.broadcast_to(np.arange(3), (4, 3))))
    tn.save(tmp_path / "a.params", arrays)
    loaded = tn.load(tmp_path / "a.params")
    for a, b in zip(loaded, arrays, strict=True):
        assert (a.dtype, a.shape, a.tolist()) == (b.dtype, b.shape, b.tolist())


def test_params_files_are_written_and_read_without_a_copy(tmp_path):
    a = tn.zeros((4, 1 << 20))
    for array in (a, a[:, ::2], a.T):
        tracemalloc.start()
        try:
            tn.save(tmp_path / "a.params", array)
            loaded = tn.load(tmp_path / "a.params")
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        assert peak < array.nbytes / 8
        assert loaded[0].shape == array.shape


def test_damaged_params_files_are_errors(tmp_path):
    file = tmp_path / "a.params"
    tn.save(file, {"w": tn.ones((2, 3)), "b": tn.ones(2)})
    content = file.read_bytes()
    for n in range(8, len(content)):
        with pytest.raises(ValueError, match="damaged"):
            tn.load(io.BytesIO(content[:n]))
    sparse = struct.pack("<Iiiqiii", 0xF993FAC9, 1, 1, 1, 1, 0, 0)
    with pytest.raises(ValueError, match="sparse"):
        tn.load(io.BytesIO(params_file(sparse)))
    huge = struct.pack("<Iiiqqiii", 0xF993FAC9, 0, 2, 2**40, 2**40, 1, 0, 0)
    for is_shared in (False, True):
        with pytest.raises(ValueError, match="damaged"):
            tn.load(io.BytesIO(params_file(huge)), shared=is_shared)
    with pytest.raises(TypeError, match="complex64"):
        tn.save(file, [tn.zeros(2, "complex64")])
    assert file.read_bytes() == content, "what cannot be saved leaves the file as it was"


def test_files_are_loaded_into_shared_memory(tmp_path):
    tn.save(tmp_path / "a.npy", tn.arange(3))
    tn.save(tmp_path / "b.npz", [tn.ones(2), tn.zeros(2)])
    np.save(tmp_path / "c.npy", np.arange(3, dtype=">f4"))
    a = tn.load(tmp_path / "a.npy", shared=True)
    assert a.shared and a.tolist() == [0, 1, 2]
    assert [b.shared for b in tn.load(tmp_path / "b.npz", shared=True).values()] == [True, True]
    c = tn.load(tmp_path / "c.npy", shared=True)
    assert c.shared and c.dtype == tn.float32 and c.tolist() == [0, 1, 2]
    with pytest.raises(ValueError, match="mmap_mode"):
        tn.load(tmp_path / "a.npy", mmap_mode="r", shared=True)
    with pytest.raises(TypeError, match="shared is 'x'"):
        tn.load(tmp_path / "a.npy", shared="x")


def test_shared_arrays_are_saved_without_a_lease(tmp_path):
    a = tn.zeros(3, shared=True)
    a[...] = [1, 2, 3]
    tn.save(tmp_path / "a.npy", a)
    tn.save(tmp_path / "b.npz", {"a": a})
    tn.save(tmp_path / "c.params", {"a": a})
    assert tn.load(tmp_path / "a.npy").tolist() == [1, 2, 3]
    assert tn.load(tmp_path / "b.npz")["a"].tolist() == [1, 2, 3]
    assert tn.load(tmp_path / "c.params")["a"].tolist() == [1, 2, 3]
    assert a.leases() == []


def test_a_name_of_a_params_file_that_is_not_utf8_is_an_error_with_file_and_position(tmp_path):
    path = tmp_path / "latin.params"
    tn.save(path, {"weight": tn.ones(2), "groesse": tn.ones(2)})
    good = path.read_bytes()
    path.write_bytes(good.replace(b"groesse", "gr\u00f6\u00dfe12".encode("latin-1")))
    at = good.index(b"groesse") + 2
    with pytest.raises(
        ValueError, match=rf"latin\.params.*name of array 1 is not UTF-8 \(byte {at} of the file\)"
    ) as caught:
        tn.load(path)
    assert not isinstance(caught.value, UnicodeDecodeError)
    assert "names in UTF-8" in str(caught.value)
    with open(path, "rb") as file, pytest.raises(ValueError, match=rf"latin\.params.*byte {at} of the file"):
        tn.load(file)


def test_an_empty_dict_comes_back_as_such_or_is_refused(tmp_path):
    tn.save(tmp_path / "empty.npz", {})
    assert tn.load(tmp_path / "empty.npz") == {}
    with pytest.raises(ValueError, match=r"cannot hold an empty dict.*Save to \.npz"):
        tn.save(tmp_path / "empty.params", {})
    assert not (tmp_path / "empty.params").exists()
    tn.save(tmp_path / "empty.params", [])
    assert tn.load(tmp_path / "empty.params") == []


def test_the_error_of_a_damaged_params_file_names_the_file(tmp_path):
    path = tmp_path / "cut.params"
    tn.save(path, [tn.ones(2)])
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(ValueError, match=r"cut\.params: the file is damaged or cut off"):
        tn.load(path)
