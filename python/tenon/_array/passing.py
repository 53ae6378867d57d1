# SPDX-License-Identifier: Apache-2.0
"""Handles that a child of `multiprocessing` has put into queues and pipes, and messages of its tensor pools,
that are unopened at its end. At its normal exit the child passes them to its parent, and waits until that
keeps their arrays.

The parent listens on a socket from the time when it first starts a child. Its name contains the parent's
number, and it is in no directory."""

from __future__ import annotations

import contextlib
import math
import os
import struct
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

from .. import _core

if TYPE_CHECKING:
    import socket

KEPT_SECONDS = 60.0  # by the parent, if no process opens the handle
_ANSWER_SECONDS = 5.0
_MOST_BYTES = 1 << 24  # of one child
_ENTRY = struct.Struct("=Id")  # the length of a handle, which follows; and the seconds
_CREDENTIALS = struct.Struct("=iII")  # ucred: pid, uid, gid

# ----------------------------------------------------------------------------------------- the child

_sent: dict[bytes, float] = {}  # handles and messages of this process, with the end of their own limits
_most = 64  # so many of them, before opened ones are looked for


def note(handle: bytes, until: float, frame: Any) -> None:
    """Notes a handle if `multiprocessing` pickles it, in the call of this frame or an outer one."""
    process = sys.modules.get("multiprocessing.process")
    if process is None or process.parent_process() is None:
        return
    while frame.f_globals.get("__name__") != "multiprocessing.reduction":
        frame = frame.f_back
        if frame is None:
            return
    _keep(handle, until)


def note_message(message: bytes, timeout: float | None) -> None:
    """Notes a message of a `TensorPool` in a child of `multiprocessing`, whatever carries it."""
    _keep(_core.core_of_message(message), math.inf if timeout is None else time.monotonic() + timeout)


def _keep(handle: bytes, until: float) -> None:
    global _most
    _sent[handle] = until
    if len(_sent) > _most:
        for one in list(_sent):
            if not _is_unopened(one):
                _sent.pop(one, None)
        _most = 64 + 2 * len(_sent)


def _is_unopened(handle: bytes) -> bool:
    return (_core.is_message_unopened if _is_message(handle) else _core.is_handle_unopened)(handle)


def _is_message(handle: bytes) -> bool:
    return handle.startswith(b"TNMSG")


def pass_on() -> None:
    """Passes the unopened handles of this process to its parent."""
    if not _sent:
        return
    parent = sys.modules["multiprocessing.process"].parent_process()
    entries, now = [], time.monotonic()
    for handle, until in list(_sent.items()):
        seconds = min(KEPT_SECONDS, until - now)
        if seconds > 0 and _is_unopened(handle):
            entries.append(_ENTRY.pack(len(handle), seconds) + handle)
    _sent.clear()
    if not entries or parent is None or not parent.is_alive():
        return
    import socket

    # OSError: the parent has not imported the package, or has ended, or does not answer.
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as link:
        link.settimeout(_ANSWER_SECONDS)
        link.connect(_address(parent.pid))
        if _peer(link) == (parent.pid, os.geteuid()):
            link.sendall(b"".join(entries))
            link.shutdown(socket.SHUT_WR)
            link.recv(1)


def _address(pid: int) -> bytes:
    return b"\0tenon-handles-%d-%d" % (os.getuid(), pid)


def _peer(link: socket.socket) -> tuple[int, int]:
    import socket

    data = link.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    return _CREDENTIALS.unpack(data)[:2]


# ---------------------------------------------------------------------------------------- the parent

_listener: socket.socket | None = None
_file = (0, 0)  # device and inode of it: a program may close all descriptors, and use the numbers again
_thread: threading.Thread | None = None


def _file_of(descriptor: socket.socket) -> tuple[int, int]:
    """(0, 0): it is closed."""
    try:
        status = os.fstat(descriptor.fileno())
    except OSError:
        return 0, 0
    return status.st_dev, status.st_ino


def _listen() -> None:
    global _listener, _file
    if _listener is not None:
        return
    import socket

    try:  # OSError: children end as if the package were not imported here
        listener = socket.socket(socket.AF_UNIX)
    except OSError:
        return
    try:
        listener.bind(_address(os.getpid()))
        listener.listen(128)
    except OSError:
        listener.close()
        return
    _listener, _file = listener, _file_of(listener)


def _start() -> None:
    global _thread
    if _listener is not None and _thread is None:
        thread = threading.Thread(target=_serve, args=(_listener,), name="tenon-passed", daemon=True)
        with contextlib.suppress(RuntimeError):  # there are too many, or the interpreter ends
            thread.start()
            _thread = thread


def _serve(listener: socket.socket) -> None:
    while _file_of(listener) == _file:
        try:
            link, _ = listener.accept()
        except OSError:
            time.sleep(0.1)  # there is no free descriptor
            continue
        with contextlib.suppress(Exception), link:
            link.settimeout(_ANSWER_SECONDS)
            if _peer(link)[1] == os.geteuid():
                _take_over(link)
                link.sendall(b".")
    _forget_listener()
    _listen()
    _start()


def _take_over(link: socket.socket) -> None:
    data = bytearray()
    while len(data) < _MOST_BYTES and (part := link.recv(1 << 16)):
        data += part
    at = 0
    while at + _ENTRY.size <= len(data):
        nbytes, seconds = _ENTRY.unpack_from(data, at)
        at += _ENTRY.size + nbytes
        with contextlib.suppress(Exception):  # it is gone, or cannot be opened here
            handle = bytes(data[at - nbytes : at])
            take_over = _core.take_over_message if _is_message(handle) else _core.take_over_handle
            take_over(handle, seconds)


def _is_of_multiprocessing(frame: Any) -> bool:
    return bool(frame.f_globals.get("__name__") == "multiprocessing.popen_fork")


def _before_fork() -> None:
    if _is_of_multiprocessing(sys._getframe(1)):
        _listen()


def _after_fork_in_parent() -> None:  # a thread that starts before the fork would be a cause for a warning
    if _is_of_multiprocessing(sys._getframe(1)):
        _start()


def _forget_listener() -> None:
    global _listener, _thread
    if _listener is not None and _file_of(_listener) == _file:
        _listener.close()
    elif _listener is not None:
        _listener.detach()
    _listener = _thread = None


def _after_fork_in_child() -> None:
    _forget_listener()
    _sent.clear()


class _OtherStarts:
    """Sees that this process starts its first child without a fork: `multiprocessing` then imports a module,
    and this stands in ``sys.meta_path`` until then."""

    MODULES = ("multiprocessing.popen_spawn_posix", "multiprocessing.popen_forkserver")

    @classmethod
    def find_spec(cls, name: str, *_: Any) -> None:
        if name in cls.MODULES:
            sys.meta_path = [one for one in sys.meta_path if one is not cls]  # the import iterates over it
            _listen()
            _start()


os.register_at_fork(
    before=_before_fork, after_in_parent=_after_fork_in_parent, after_in_child=_after_fork_in_child
)
if any(module in sys.modules for module in _OtherStarts.MODULES):
    _listen()
    _start()
else:
    sys.meta_path.insert(0, _OtherStarts)
