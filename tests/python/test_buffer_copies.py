# SPDX-License-Identifier: Apache-2.0
"""What a call copies through a buffer is whole while another thread writes under leases."""

import functools
import hashlib
import io
import os
import struct
import threading
import time
import zlib

import numpy as np
import pytest
from other_thread import SECONDS, Other, until
from test_buffer_calls import LARGE, array

import tenon as tn

pytestmark = pytest.mark.usefixtures("nothing_stays_behind")


# What copies without being stopped in the middle. Each gives the set of values that it has seen.
def seen_in(data):
    return set(np.unique(np.frombuffer(data, "u1")).tolist())


def digest_of(n):
    return {hashlib.sha256(bytes([value]) * n).digest(): value for value in range(256)}


def checksum_of(n):
    return {zlib.crc32(bytes([value]) * n): value for value in range(256)}


@functools.cache
def known(function):
    return function(LARGE)


def by_digest(a):
    return {known(digest_of).get(hashlib.sha256(a).digest(), "torn")}


def by_checksum(a):
    return {known(checksum_of).get(zlib.crc32(a), "torn")}


def by_extend(a):
    data = bytearray()
    data.extend(a)
    return seen_in(data)


def by_bytesio(a):
    return seen_in(io.BytesIO(a).getvalue())


def by_slice(a):
    x = np.empty(LARGE, "u1")
    x[:] = a
    return seen_in(x)


def by_unpack(a):
    return seen_in(struct.unpack_from(f"{LARGE}s", a)[0])


def by_file(a):
    with open("/dev/shm/tenon-test-buffer-calls" if os.path.isdir("/dev/shm") else os.devnull, "wb+") as file:
        file.write(a)
        file.seek(0)
        return seen_in(file.read())


COPIES = {
    "np.array": lambda a: seen_in(np.array(a)),
    "np.array with a dtype": lambda a: set(np.unique(np.array(a, dtype="i2")).tolist()),
    "bytes": lambda a: seen_in(bytes(a)),
    "bytearray": lambda a: seen_in(bytearray(a)),
    "bytearray.extend": by_extend,
    "bytes.join": lambda a: seen_in(b"".join([a])),
    "hashlib": by_digest,
    "zlib": by_checksum,
    "struct": by_unpack,
    "x[:] = a": by_slice,
    "BytesIO": by_bytesio,
    "file.write": by_file,
    "in a pool": lambda a: seen_in(Other(np.array, a).value()),
}


def check_copies(name, seconds):
    a = array()
    is_over = threading.Event()

    def write():
        n = 0
        while not is_over.is_set():
            n += 1
            with a.write() as v:
                v[...] = n % 100

    writer = Other(write)
    end = time.monotonic() + seconds
    try:
        while time.monotonic() < end:
            seen = COPIES[name](a)
            assert len(seen) == 1 and "torn" not in seen, seen
    finally:
        is_over.set()
    writer.value()


@pytest.mark.parametrize("name", COPIES)
def test_what_a_call_copies_is_whole(name):
    check_copies(name, 0.05)


@pytest.mark.slow
@pytest.mark.parametrize("name", COPIES)
def test_what_a_call_copies_is_whole_many_times(name):
    check_copies(name, 5.0)


def test_an_assignment_behind_a_copy_that_waits_with_its_buffer_writes_after_it():
    a = tn.zeros(1 << 24, "u1")
    end = a[-8:]
    holds, may_end = threading.Event(), threading.Event()

    def hold():
        with a.write():
            holds.set()
            may_end.wait(SECONDS)

    def waiting(n):
        until(lambda: sum(not holder.is_granted for holder in a.leases()) == n, f"{n} wait")

    with a.write():
        copy = Other(lambda: np.array(a, dtype="f8"))
        waiting(1)
        holder = Other(hold)
        waiting(2)
    # The view of the copy's buffer is open, but the holder was granted meanwhile: the copy waits once more.
    assert holds.wait(SECONDS)
    waiting(1)
    assignment = Other(functools.partial(end.__setitem__, ..., 1))
    waiting(2)
    may_end.set()
    holder.value()
    assignment.value()
    assert copy.value()[-1] == 0, "it came first"
    assert end.tolist() == [1] * 8
