# SPDX-License-Identifier: Apache-2.0
"""Contenders of a library that is built of native/, or of one with the same functions, by ctypes."""

import ctypes
import functools
import mmap
from itertools import count, takewhile

from .cases import LATE, NATIVE_ASLEEP, NATIVE_SPINNING, RECOVERY, Contender

GROUPS = {
    "spinning": NATIVE_SPINNING,
    "asleep": NATIVE_ASLEEP,
    "recovery": RECOVERY,
    "late recovery": LATE,
}


@functools.cache
def load(path):
    library = ctypes.CDLL(path)
    signatures = {
        "share_contender": (ctypes.c_char_p, ctypes.c_size_t),
        "share_group": (ctypes.c_char_p, ctypes.c_size_t),
        "share_versions": (ctypes.c_char_p,),
        "share_memory_bytes": (ctypes.c_size_t,),
        "share_last_error": (ctypes.c_char_p,),
        "share_open": (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_int),
        "share_set_up": (None, ctypes.c_void_p),
        "share_turn": (ctypes.c_int, ctypes.c_void_p, ctypes.c_int64, ctypes.c_void_p),
        "share_close": (None, ctypes.c_void_p),
    }
    for name, (result, *arguments) in signatures.items():
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    return library


def versions(path):
    """What the library was built with."""
    return load(path).share_versions().decode()


class Party:
    """One process; the memory is the pair's. The producer opens first."""

    def __init__(self, path, i, is_producer, side):
        self.library = load(path)
        self.pages = mmap.mmap(side.memory(), self.library.share_memory_bytes())
        self.address = (ctypes.c_char * len(self.pages)).from_buffer(self.pages)
        if not is_producer:
            side.link.recv_bytes()
        address, name = ctypes.addressof(self.address), side.prefix.encode()
        self.party = self.library.share_open(i, address, name, is_producer)
        if not self.party:
            raise RuntimeError(self.library.share_last_error().decode())
        side.link.send_bytes(b".")
        if is_producer:
            side.link.recv_bytes()
            self.library.share_set_up(self.party)

    def turn(self, n):
        stamps = (ctypes.c_int64 * n)()
        if not self.library.share_turn(self.party, n, stamps):
            raise RuntimeError(self.library.share_last_error().decode())
        return list(stamps)

    def close(self):
        self.library.share_close(self.party)


def contenders(path):
    """Contenders by case, by name, of all in the library."""
    library, found = load(path), {}
    for i, name in enumerate(takewhile(bool, map(library.share_contender, count()))):
        contender = Contender(
            functools.partial(Party, path, i, True), functools.partial(Party, path, i, False)
        )
        found.setdefault(name.decode(), {})[GROUPS[library.share_group(i).decode()]] = contender
    return found
