# SPDX-License-Identifier: Apache-2.0
"""Frozen arrays: nobody writes them, everybody reads them without a lease, and their files go with the last
user."""

import contextlib
import gc
import mmap
import multiprocessing
import os
import pickle
import signal
import time

import numpy as np
import pytest

import tenon as tn

X = np.arange(24, dtype="i4").reshape(4, 6)


def files():
    """The descriptors of this process on frozen files."""
    gc.collect()
    found = []
    for number in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            if "tenon-frozen" in os.readlink(f"/proc/self/fd/{number}"):
                found.append(int(number))
    return found


@pytest.fixture(autouse=True)
def files_end():
    assert not files()
    yield
    end = time.monotonic() + 600
    while files():
        assert time.monotonic() < end
        time.sleep(0.02)


@pytest.mark.parametrize(
    "make",
    [
        lambda: X,
        lambda: tn.array(X),
        lambda: tn.array(X, shared=True),
        lambda: X.T,
        lambda: X[:, ::2],
        lambda: X.tolist(),
        lambda: 7,
        lambda: np.zeros((3, 0)),
    ],
    ids=range(8),
)
def test_the_elements_are_a_copy_that_has_no_writer(make):
    data = make()
    a = tn.frozen(data)
    assert a.tolist() == np.array(data).tolist() and a.shape == np.shape(data)
    assert not a.writable and a.is_contiguous()
    view = np.asarray(a)  # without a block
    assert not view.flags.writeable
    with pytest.raises(ValueError):
        view.flags.writeable = True
    for write in (lambda: a.__setitem__(..., 0), lambda: a.lease("w"), lambda: a.write().__enter__()):
        advice = r"copy(\(\))?, which is the only way for a frozen array"
        with pytest.raises((ValueError, BufferError), match=advice):
            write()
    del view


def test_dtypes_are_those_of_array():
    assert tn.frozen([1, 2]).dtype == tn.int64
    assert tn.frozen(X, "float32").dtype == tn.float32
    assert tn.frozen(np.ones(3), "bfloat16").tolist() == [1, 1, 1]
    with pytest.raises(TypeError, match="fewer than 8 bits"):
        tn.frozen(tn.zeros(8, "float4_e2m1fn"))


def test_the_kernel_refuses_every_write(other):
    a = tn.frozen(X)
    number = _fd_of(a)
    assert number in files()
    with contextlib.suppress(PermissionError):
        fd = os.open(f"/proc/self/fd/{number}", os.O_RDWR)
        try:
            with pytest.raises(PermissionError):
                os.write(fd, b"x")
            with pytest.raises(PermissionError):
                mmap.mmap(fd, 96)
            with pytest.raises(PermissionError):
                os.ftruncate(fd, 0)
        finally:
            os.close(fd)
    other.ask("import ctypes, pickle; a = pickle.loads(d)", d=pickle.dumps(a))
    assert other.ask("a.tolist(), a.writable, np.asarray(a).sum()") == (X.tolist(), False, X.sum())
    protect = "ctypes.CDLL(None).mprotect(ctypes.c_void_p(a.data_ptr), ctypes.c_size_t(4096), 3)"
    assert other.ask(protect) == -1
    with pytest.raises(EOFError, match=f"exit {-signal.SIGSEGV}"):
        other.ask("ctypes.memset(a.data_ptr, 7, 4)")
    assert a.tolist() == X.tolist()


def _fd_of(array):
    from tenon._array import frozen

    (file,) = frozen._by_key.values()
    del array
    return file.fd


def test_a_pickle_keeps_it_until_it_was_opened(other):
    a = tn.frozen(X)
    data = pickle.dumps(a)
    del a
    assert files()
    other.ask("import pickle; a = pickle.loads(d)", d=data)
    assert other.ask("a.tolist()") == X.tolist()


def test_a_receiver_keeps_it_after_the_end_of_its_sender(other, another):
    other.ask("import pickle; a = tn.frozen(x)", x=X)
    data = other.ask("pickle.dumps(a)")
    late = other.ask("pickle.dumps(a)")
    another.ask("import pickle; a = pickle.loads(d)", d=data)
    other.kill()
    assert another.ask("a.tolist()") == X.tolist()
    again = pickle.loads(another.ask("pickle.dumps(a)"))
    another.kill()
    assert again.tolist() == X.tolist()
    assert pickle.loads(late).data_ptr == again.data_ptr
    del again
    gc.collect()
    lost = pickle.loads(late)  # no error here, which would end a pool of multiprocessing
    with pytest.raises(FileNotFoundError):
        lost.tolist()


@pytest.mark.parametrize(
    "part",
    [
        lambda a: a[1:],
        lambda a: a[::-1, 2],
        lambda a: a.T,
        lambda a: a[2, 3],
        lambda a: a.view("u1")[5:7],
        lambda a: a[:0],
    ],
    ids=range(6),
)
def test_parts_are_sent_without_a_copy(part):
    a = tn.frozen(X)
    b = part(a)
    data = pickle.dumps(b)
    c = pickle.loads(data)
    assert c.tolist() == b.tolist() and (c.shape, c.dtype) == (b.shape, b.dtype)
    if b.size:
        assert not c.writable
        assert c.data_ptr == b.data_ptr and len(data) < 1000
    del b, c
    assert a.copy().writable and pickle.loads(pickle.dumps(a.copy())).data_ptr != a.data_ptr


def test_opened_twice_it_is_the_same_memory(other):
    a = tn.frozen(X)
    first, second = pickle.dumps(a), pickle.dumps(a)
    other.ask("import pickle; a, b = pickle.loads(d), pickle.loads(e)", d=first, e=second)
    assert other.ask("a.data_ptr == b.data_ptr")


def test_leases_and_ops_read_beside_views():
    a, total = tn.frozen(X), tn.zeros(1)
    view = np.asarray(a)
    assert tn.push(lambda v, out: out.fill(v.sum()), a, tn.overwrite(total)).wait() is None
    with a.read() as v:
        assert total.item() == v.sum() == view.sum()
    with pytest.raises((ValueError, BufferError)):
        tn.push(tn.fill, tn.overwrite(a), 1)
    del view


def test_pytorch_has_a_copy_or_the_promise():
    torch = pytest.importorskip("torch")
    a = tn.frozen(X)
    for tensor in (a.torch(), torch.from_dlpack(a)):
        tensor[0, 0] = 99
    assert a[0, 0].item() == 0
    assert a.torch(trust=True).data_ptr() == a.data_ptr


def test_a_forked_child_reads_and_sends_it():
    a = tn.frozen(X)
    ours, theirs = os.pipe()
    held, release = os.pipe()
    child = os.fork()
    if not child:
        try:
            os.write(theirs, pickle.dumps(a))
            os.read(held, 1)
        finally:
            os._exit(0)
    b = pickle.loads(os.read(ours, 1 << 16))
    os.write(release, b"x")
    os.waitpid(child, 0)
    assert b.tolist() == X.tolist() and b.data_ptr == a.data_ptr
    for fd in (ours, theirs, held, release):
        os.close(fd)


def _sum(a):
    return int(np.asarray(a).sum()), a.writable


@pytest.mark.slow
@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_it_is_read_only_data_for_a_pool_of_workers(method):
    a = tn.frozen(X)
    with multiprocessing.get_context(method).Pool(2) as pool:
        assert pool.map(_sum, [a, a[1:], a] * 5) == [(276, False), (261, False), (276, False)] * 5


def test_descriptors_that_other_code_has_closed_are_not_touched():
    a = tn.frozen(X)
    number = _fd_of(a)
    with open(os.devnull, "rb") as file:
        os.dup2(file.fileno(), number)
        with pytest.raises(OSError, match="other code has closed"):
            pickle.dumps(a)
        assert a.tolist() == X.tolist()
        del a
        gc.collect()
        assert os.path.sameopenfile(file.fileno(), number)
        os.close(number)


def test_a_file_of_another_process_is_not_opened(tmp_path, caplog):
    """The number of the sender may be that of another process, or of one in another namespace."""
    from tenon._array.frozen import open_frozen

    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    reader = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)
    os.close(reader)
    held = os.open(fifo, os.O_RDWR)
    token = tn.zeros(1, "u1", shared=True)
    about = os.fstat(held)
    place = os.getpid(), held, about.st_dev, about.st_ino
    lost = open_frozen(pickle.dumps(token), place, 0, (1,), "uint8", None)
    with pytest.raises(FileNotFoundError):
        lost.tolist()
    assert "which has sent it, has ended" in caplog.text
    os.close(held)
    tn.revoke_handles(token)


def test_memory_that_is_not_there_is_a_memory_error(monkeypatch):
    from tenon._array import frozen

    monkeypatch.setattr(frozen, "_check_room", _refuse)
    with pytest.raises(MemoryError, match="24 elements"):
        tn.frozen(X)
    monkeypatch.undo()
    with pytest.raises(MemoryError, match="bytes of frozen memory, but the system has"):
        frozen._check_room(2**50)


def _refuse(nbytes):
    raise MemoryError(f"{nbytes // 4} elements")
