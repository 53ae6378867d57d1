# SPDX-License-Identifier: Apache-2.0
"""Files that are replaced as a whole. Until all of the new content is on the disk, the old file is untouched:
an error or the end of the process does not destroy it, and maps of it stay valid."""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import stat
from collections.abc import Iterator
from typing import BinaryIO

_REFUSED = (errno.EACCES, errno.EPERM, errno.EROFS, errno.EBUSY)


@contextlib.contextmanager
def replaced(path: str) -> Iterator[BinaryIO]:
    """Opens a new file for writing, which takes the place of the file at ``path`` when the block ends.

    An error in the block removes the new file. The file keeps its mode, owner, group and extended attributes
    (ACLs). Links are followed. What is no regular file (a FIFO, a device), or is a link to an open file
    (``/dev/stdout``), is written in place.
    """
    try:
        before = os.stat(path)
    except FileNotFoundError:  # also of a link that leads nowhere
        before = None
    target = _end_of_links(path)
    if target is None or not (before is None or stat.S_ISREG(before.st_mode)):
        with open(path, "wb") as file:
            yield file
        return
    if before is not None:
        os.close(os.open(path, os.O_WRONLY | os.O_CLOEXEC))  # a file that may not be written is not replaced
    folder = os.path.dirname(target)
    new = os.path.join(folder, f".tenon-save-{secrets.token_hex(8)}")
    with _errors_of(path):
        mode = 0o666 if before is None else 0o600  # nobody else may read the content of a private file
        fd = os.open(new, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    try:
        with open(fd, "wb") as file:
            if before is not None:
                with _errors_of(path):
                    _take_over(target, before, fd)
            yield file
            file.flush()
            os.fsync(fd)
        with _errors_of(path):
            os.replace(new, target)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(new)
        raise
    _sync_folder(folder)


def _end_of_links(path: str) -> str | None:
    """The path of the file itself. None: the path leads to an open file by a link in /proc."""
    path = path if os.path.isabs(path) else os.path.join(os.getcwd(), path)
    while not os.path.realpath(os.path.dirname(path)).startswith("/proc/"):
        if not os.path.islink(path):
            return path
        path = os.path.join(os.path.dirname(path), os.readlink(path))
    return None


def _take_over(target: str, before: os.stat_result, fd: int) -> None:
    made = os.fstat(fd)
    if (made.st_uid, made.st_gid) != (before.st_uid, before.st_gid):
        os.fchown(fd, before.st_uid, before.st_gid)
    with contextlib.suppress(OSError):  # the file system has none
        for name in os.listxattr(target):
            with contextlib.suppress(OSError):  # it belongs to the kernel
                os.setxattr(fd, name, os.getxattr(target, name))
    if stat.S_IMODE(os.fstat(fd).st_mode) != stat.S_IMODE(before.st_mode):  # last: an ACL changes it
        os.fchmod(fd, stat.S_IMODE(before.st_mode))


def _sync_folder(folder: str) -> None:
    with contextlib.suppress(OSError):  # not all file systems can
        fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)


@contextlib.contextmanager
def _errors_of(path: str) -> Iterator[None]:
    """Makes the errors of the new file those of the path."""
    try:
        yield
    except OSError as error:
        named = OSError(error.errno, error.strerror, path)
        if error.errno in _REFUSED:
            named.add_note(
                "A save writes a new file with the owner and mode of the old one into the same folder, and "
                "renames it. To write in place, pass an open file: with open(path, 'wb') as file: "
                "tn.save(file, data)"
            )
        raise named from None
