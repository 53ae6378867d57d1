# SPDX-License-Identifier: Apache-2.0
"""Denies system calls to this process, as a container does, and uses up resources."""

import ctypes
import errno
import os
import platform
import resource
import signal
import struct

# Numbers of the calls on x86-64 and AArch64.
NUMBERS = {
    "memfd_create": (319, 279),
    "fallocate": (285, 47),
    "ftruncate": (77, 46),
    "set_robust_list": (273, 99),
    "pidfd_open": (434, 434),
    "futex_waitv": (449, 449),
    "madvise": (28, 233),
    "eventfd2": (290, 19),
    "socket": (41, 198),
    "bind": (49, 200),
    "clone": (56, 220),
    "clone3": (435, 435),
    "kcmp": (312, 272),
}
COLUMN = {"x86_64": 0, "aarch64": 1}.get(platform.machine())

_ALLOW, _FAIL = 0x7FFF0000, 0x00050000
_LOAD, _JUMP_IF_EQUAL, _RETURN = 0x20, 0x15, 0x06
_SET_SECCOMP, _FILTER, _NO_NEW_PRIVILEGES = 22, 2, 38


def deny(*names, error=errno.EPERM):
    """The calls fail with the error, in this thread and those that it starts. Cannot be undone."""
    steps = [(_LOAD, 0, 0, 0)]  # the number of the call
    for i, name in enumerate(names):
        steps.append((_JUMP_IF_EQUAL, len(names) - i, 0, NUMBERS[name][COLUMN]))
    steps += [(_RETURN, 0, 0, _ALLOW), (_RETURN, 0, 0, _FAIL | error)]
    program = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *step) for step in steps))

    class Filter(ctypes.Structure):
        _fields_ = [("count", ctypes.c_ushort), ("steps", ctypes.c_void_p)]

    prctl = ctypes.CDLL(None, use_errno=True).prctl
    given = Filter(len(steps), ctypes.addressof(program))
    for words in (
        (_NO_NEW_PRIVILEGES, 1, 0, 0, 0),
        (_SET_SECCOMP, _FILTER, ctypes.addressof(given), 0, 0),
    ):
        if prctl(*(ctypes.c_ulong(word) for word in words)) != 0:
            raise OSError(ctypes.get_errno(), "prctl")


def leave_descriptors(n):
    """This process can open n further files."""
    limit = max(int(name) for name in os.listdir("/proc/self/fd")) + 1 + n
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))


def leave_addresses(mib):
    """This process can map so many further MiB."""
    with open("/proc/self/statm") as file:
        used = int(file.read().split()[0]) * resource.getpagesize()
    limit = used + (mib << 20)
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))


def leave_no_threads():
    """This process can start neither threads nor processes."""
    deny("clone", "clone3", error=errno.EAGAIN)


def leave_this_network():
    """Moves this process to its own network namespace. False: this is not allowed here."""
    new_network = 0x40000000
    return ctypes.CDLL(None).unshare(new_network) == 0


def die_with_parent():
    """The kernel kills this process when its parent ends."""
    parent_death_signal = 1
    ctypes.CDLL(None).prctl(parent_death_signal, signal.SIGKILL)
