# SPDX-License-Identifier: Apache-2.0
"""Tensor pools for processes in other containers."""

from __future__ import annotations

import grp
import os
import time
import weakref
from types import TracebackType

from .._core import NativePool, NativePoolLink, NativePoolServer
from .._values import count, seconds

_LOOK_AGAIN_SECONDS = 0.02
_NO_GROUP = 0xFFFFFFFF  # TENON_NO_GROUP


def _encoded(path: str) -> bytes:
    encoded = os.fsencode(path)
    if b"\0" in encoded:
        raise ValueError(f"{path!r} is not the path of a socket: it has a null character")
    return encoded


def _number_of(group: str | int | None) -> int:
    if group is None:
        return _NO_GROUP
    if not isinstance(group, str):
        return count(group, "group", high=_NO_GROUP - 1)
    try:
        return grp.getgrnam(group).gr_gid
    except (KeyError, ValueError):
        raise ValueError(
            f"there is no group {group!r} on this system: give its number (group=44), or make it (groupadd)"
        ) from None


class PoolServer:
    """A socket at which a pool is served (`TensorPool.serve`). It ends with `close`, with the last reference,
    at the end of a ``with`` block, or with its process. What processes have got stays theirs.

    Attributes
    ----------
    path : str
    """

    __slots__ = ("__weakref__", "_native", "path")

    path: str
    _native: NativePoolServer

    def __init__(
        self, pool: NativePool, path: str | os.PathLike[str], backlog: int, group: str | int | None
    ) -> None:
        self.path = os.fsdecode(path)
        number = _number_of(group)
        self._native = NativePoolServer(pool, _encoded(self.path), count(backlog, "backlog"), number)
        _servers.add(self)

    def close(self) -> None:
        """Removes the socket. A second call does nothing."""
        self._native.close()

    def __enter__(self) -> PoolServer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<tenon.PoolServer: {self.path}>"

    def __reduce__(self) -> str:
        raise TypeError("a PoolServer belongs to its process: send its path")


class PoolLink:
    """The way of this process, and of its forked children, to a pool that another process serves
    (`attach_pool`). After `close`, the end of a ``with`` block, or the last reference, what is open stays
    open, and no further memory can be got.

    Attributes
    ----------
    path : str
    """

    __slots__ = ("_native", "path")

    path: str
    _native: NativePoolLink

    def __init__(
        self, path: str | os.PathLike[str], timeout: float, wait: float, group: str | int | None
    ) -> None:
        self.path = os.fsdecode(path)
        encoded, limit = _encoded(self.path), seconds(timeout, "timeout")
        number = _number_of(group)
        end = time.monotonic() + seconds(wait, "wait")
        while True:
            try:
                self._native = NativePoolLink(encoded, limit, number)
                return
            except FileNotFoundError:
                if time.monotonic() >= end:
                    raise
            time.sleep(_LOOK_AGAIN_SECONDS)

    def offer(self, pool: NativePool) -> None:
        """Lets the process that serves, and processes that are attached to it, open messages of a pool of
        this process, whose memory is given to the group of the link. Raises as `attach_pool`, and ValueError
        if the pool was given to another group."""
        self._native.offer(pool)

    def close(self) -> None:
        """A second call does nothing."""
        self._native.close()

    def __enter__(self) -> PoolLink:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<tenon.PoolLink: {self.path}>"

    def __reduce__(self) -> str:
        raise TypeError("a PoolLink belongs to its process: send its path")


def attach_pool(
    path: str | os.PathLike[str],
    *,
    timeout: float = 5.0,
    wait: float = 0.0,
    group: str | int | None = None,
) -> PoolLink:
    """Makes `loads` and `open` work in this process for messages of the pool that is served at the path
    (`TensorPool.serve`), for processes in other containers. A worker whose server has ended, and that gets
    `MessageGone`, attaches again.

    Parameters
    ----------
    path : str or os.PathLike
    timeout : float
        How long it waits for an answer of the process that serves, in seconds.
    wait : float
        How long it waits until a process serves there, in seconds.
    group : str or int, optional
        The name or the number of a group of this process, in which the process that serves may be, if it is
        of another user. The pool must be served to the group (`TensorPool.serve`). Processes of the group
        must be trusted as those of this user: each of them can make this process crash, or run code as its
        user.

    Raises
    ------
    FileNotFoundError
        No process serves there, or one of another time namespace.
    TimeoutError
        It does not answer.
    OSError
        It is of another user, and not in the group. There is no free file descriptor.
    ValueError
        The path, with the current directory if it is relative, is longer than 107 bytes, or in no file
        system. The other process has another version of Tenon. This process is not in the group.
    """
    return PoolLink(path, timeout, wait, group)


_servers: weakref.WeakSet[PoolServer] = weakref.WeakSet()


def close_servers() -> None:
    """At the end of the process."""
    for server in list(_servers):
        server.close()
