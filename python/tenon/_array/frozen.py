# SPDX-License-Identifier: Apache-2.0
"""Frozen arrays: a copy in a memory file of its own that nobody can write any more.

The file is written before it has any mapping, and then sealed (`F_SEAL_WRITE`, memfd_create(2)): the kernel
refuses each later write and each writable shared mapping, in all processes. So no process has to take turns,
and the region of such an array is that of ordinary read-only memory.

A pickle is a handle: the sender's descriptor of the file, and the handle of a small shared array, the token,
which says whether a process has opened the pickle. Until then the sender keeps the file.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import mmap
import os
import sys
import threading
import time
import weakref
from bisect import bisect_right
from typing import Any

from .. import _core
from .._core import NDArray
from .._errors import log
from .._typing import DTypeLike
from . import pickle
from .pickle import bytes_of, has_padding
from .share import create

_SEALS = fcntl.F_SEAL_SEAL | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE
_NAME = "tenon-frozen"
_MFD_NOEXEC_SEAL = 8  # Linux 6.3
_MOST_BYTES = 1 << 30  # of one write
_LITTLE_BYTES = 1 << 20
_LOOK_SECONDS = 0.25


class _File(mmap.mmap):
    """The read-only mapping of a sealed file. Lives as long as an array on it, or an unopened pickle."""

    fd: int  # open for reading only
    key: tuple[int, int]  # device and inode


_by_key: weakref.WeakValueDictionary[tuple[int, int], _File] = weakref.WeakValueDictionary()
_by_address: weakref.WeakValueDictionary[int, _File] = weakref.WeakValueDictionary()
_lock = threading.RLock()


def _forked() -> None:
    global _lock
    _lock = threading.RLock()


os.register_at_fork(after_in_child=_forked)


def frozen(data: Any, dtype: DTypeLike | None = None) -> NDArray:
    """A copy of ``data`` that nobody can write, in any process: read-only data for several processes.

    Views need no lease and no block: ``np.asarray(a)``, pandas, matplotlib and JAX use the memory as it is.
    PyTorch does not know read-only memory: ``a.torch()`` and ``torch.from_dlpack(a)`` copy, and
    ``a.torch(trust=True)`` shares the memory; a write to that tensor ends the process. The pickle of the
    array, of a slice or of another array on its memory is a handle, which a receiver opens without a copy.

    Parameters
    ----------
    data : NDArray, array of another library, buffer, number or nested list
    dtype : dtype, str or another dtype, optional
        Both as for `array`.

    Returns
    -------
    NDArray
        Read-only, in C order, aligned to a page.

    Raises
    ------
    TypeError
        As `array`; the elements have fewer than 8 bits.
    MemoryError
        There is not enough memory.
    OSError
        There is no free file descriptor: the array takes two.
    """
    source = _core.share(data, dtype)
    if dtype is not None:
        source = source.astype(dtype, copy=False)
    source = source.to("cpu")
    if has_padding(source) or source.itemsize == 0:
        raise TypeError(f"a frozen array of {source.dtype}: elements of fewer than 8 bits cannot be frozen")
    if not source.is_contiguous() or source.shared:
        source = source.copy()
    file = _mapped(_written(source))
    return _array_on(file, 0, source.shape, source.dtype.name, None)


def _written(source: NDArray) -> int:
    """The descriptor of a new sealed file with the elements. It never has a writable mapping."""
    content = memoryview(bytes_of(source)) if source.nbytes else memoryview(b"\0")
    _check_room(len(content))
    fd = _created()
    try:
        try:
            os.posix_fallocate(fd, 0, len(content))
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.ENOMEM, errno.EFBIG):
                raise MemoryError(f"{len(content)} bytes of frozen memory: {error.strerror}") from None
            raise
        done = 0
        while done < len(content):
            done += os.write(fd, content[done : done + _MOST_BYTES])
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, _SEALS)
        return os.open(f"/proc/self/fd/{fd}", os.O_RDONLY | os.O_CLOEXEC)
    finally:
        os.close(fd)


def _created() -> int:
    """Of an empty file, whose execution is refused where the kernel knows that."""
    flags = os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING
    try:
        return os.memfd_create(_NAME, flags | _MFD_NOEXEC_SEAL)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
    return os.memfd_create(_NAME, flags)


def _check_room(nbytes: int) -> None:
    """Fails with MemoryError where the kernel would have to kill a process."""
    if nbytes < _LITTLE_BYTES:
        return
    with contextlib.suppress(OSError, StopIteration), open("/proc/meminfo", encoding="ascii") as file:
        line = next(line for line in file if line.startswith("MemAvailable:"))
        available = int(line.split()[1]) * 1024
        if nbytes > available:
            raise MemoryError(f"{nbytes} bytes of frozen memory, but the system has {available}")


def _mapped(fd: int) -> _File:
    """The mapping of a file, which takes over the descriptor. One for all arrays of this process."""
    try:
        about = os.fstat(fd)
        key = about.st_dev, about.st_ino
        with _lock:
            known = _by_key.get(key)
            if known is not None:
                os.close(fd)
                return known
            file = _File(fd, about.st_size, mmap.MAP_SHARED, mmap.PROT_READ)
            file.fd, file.key = fd, key
            _by_key[key] = _by_address[_core.from_buffer(file, "uint8").data_ptr] = file
            weakref.finalize(file, _close, fd, key).atexit = False
            return file
    except BaseException:
        os.close(fd)
        raise


def _close(fd: int, key: tuple[int, int]) -> None:
    """Unless other code has closed it, and another file may have the number."""
    try:
        about = os.fstat(fd)
    except OSError:
        return
    if (about.st_dev, about.st_ino) == key:
        os.close(fd)


def _array_on(
    file: _File, offset: int, shape: tuple[int, ...], dtype: str, strides: tuple[int, ...] | None
) -> NDArray:
    """strides: in bytes."""
    whole = _core.from_buffer(file, "uint8")
    if strides is None and not offset:
        return whole[: _nbytes(shape, dtype)].view(dtype).reshape(shape)
    return _core.from_pointer(whole.data_ptr + offset, shape, dtype, strides, whole, None, True)


def _nbytes(shape: tuple[int, ...], dtype: str) -> int:
    from math import prod

    return prod(shape) * _core.dtype(dtype).itemsize


# --- pickles


def reduced(array: NDArray) -> tuple[Any, ...] | None:
    """What `NDArray.__reduce_ex__` returns for an array on frozen memory; None for another one."""
    with _lock:
        if not _by_address or array.writable or not array.nbytes:
            return None
        addresses = sorted(_by_address)
        at = bisect_right(addresses, array.data_ptr) - 1
        file = _by_address.get(addresses[at]) if at >= 0 else None
        if file is None or array.data_ptr >= addresses[at] + len(file):
            return None
        offset = array.data_ptr - addresses[at]
    about = os.fstat(file.fd)
    if (about.st_dev, about.st_ino) != file.key:
        raise OSError(errno.EBADF, "other code has closed the descriptor of a frozen array")
    handle = _sent.add(file)
    strides = None if array.is_contiguous() and not offset else tuple(array.strides)
    place = os.getpid(), file.fd, *file.key
    return open_frozen, (handle, place, offset, array.shape, array.dtype.name, strides)


def open_frozen(
    handle: bytes,
    place: tuple[int, int, int, int],
    offset: int,
    shape: tuple[int, ...],
    dtype: str,
    strides: tuple[int, ...] | None,
) -> NDArray:
    """Opens the array of a pickle. The token comes last: then the sender need not keep the file any more."""
    pid, fd, *key = place
    with _lock:
        file = _by_key.get((key[0], key[1]))
    if file is None:
        try:
            file = _mapped(_opened(pid, fd, (key[0], key[1])))
        except OSError as error:
            log.warning("a frozen array cannot be opened, and its uses raise FileNotFoundError: %s", error)
            return _lost()
    _core.receive_array(handle)
    return _array_on(file, offset, shape, dtype, strides)


def _opened(pid: int, number: int, key: tuple[int, int]) -> int:
    gone = f"the frozen array is gone: process {pid}, which has sent it, has ended or does not keep it"
    path = f"/proc/{pid}/fd/{number}"
    try:
        # The number may be that of another process by now, and its file one whose opening does something.
        if not os.readlink(path).startswith(f"/memfd:{_NAME}"):
            raise FileNotFoundError(gone)
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except (FileNotFoundError, ProcessLookupError):
        raise FileNotFoundError(gone) from None
    about = os.fstat(fd)
    if (about.st_dev, about.st_ino) == key:
        return fd
    os.close(fd)
    raise FileNotFoundError(gone)


def _lost() -> NDArray:
    """An array whose every use raises FileNotFoundError, as that of a shared array that is gone: an OSError
    while a pool of `multiprocessing` unpickles would be the end of its pipe for it."""
    token = create(1, "uint8", True, "cpu", True)
    handle = _core.send_array(token)
    _core.revoke_handles(token)
    del token
    return _core.receive_array(handle)


class _Sent:
    """The files of pickles that no process has opened yet."""

    def __init__(self) -> None:
        self._clear()
        os.register_at_fork(after_in_child=self._clear)

    def _clear(self) -> None:
        self._lock = threading.Lock()
        self._files: list[tuple[bytes, NDArray, _File]] = []
        self._is_running = False

    def add(self, file: _File) -> bytes:
        token = create(1, "uint8", True, "cpu", True)
        handle = _core.send_array(token)
        context = sys.modules.get("multiprocessing.context")
        popen = context.get_spawning_popen() if context is not None else None
        if popen is not None:
            pickle.limit_to(popen, handle)
        with self._lock:
            self._files.append((handle, token, file))
            if self._is_running:
                return handle
            self._is_running = True
        threading.Thread(target=self._run, name="tenon-frozen", daemon=True).start()
        return handle

    def _run(self) -> None:
        while True:
            time.sleep(_LOOK_SECONDS)
            with self._lock:
                self._files = [kept for kept in self._files if _core.is_handle_unopened(kept[0])]
                if not self._files:
                    self._is_running = False
                    return


_sent = _Sent()
pickle.reducers.append(reduced)
