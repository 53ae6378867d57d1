# SPDX-License-Identifier: Apache-2.0
"""Two versions of the layout in one session: what another one has made is refused with both versions, or used
where it is only later in what may be added; and who looks for a name looks on beyond it.

The other version is a living process of this one, whose header is written anew with its checksum.
"""

import fcntl
import mmap
import os
import pickle
import struct
import uuid

import pytest
from other_process import Other

import tenon as tn

VERSION_AT, HEADER_NBYTES_AT, REQUIRED_AT = 16, 20, 24


def checksum_of(data):
    value = 0xCBF29CE484222325
    for byte in data:
        value = (value ^ byte) * 0x100000001B3 % 2**64
    return value


def memory_file_of(pid, name):
    folder = f"/proc/{pid}/fd"
    for fd in os.listdir(folder):
        target = os.readlink(f"{folder}/{fd}")
        if target.startswith("/memfd:tenon:") and f":{name}" in target:
            return f"{folder}/{fd}"
    raise LookupError(name)


def rewrite(pid, name, at, form, *values):
    """Changes the header of the named segment of a process. Returns the old bytes."""
    with open(memory_file_of(pid, name), "r+b") as file, mmap.mmap(file.fileno(), 4096) as header:
        (nbytes,) = struct.unpack_from("=I", header, HEADER_NBYTES_AT)
        sum_at = nbytes - 8
        assert struct.unpack_from("=Q", header, sum_at)[0] == checksum_of(header[:sum_at])
        before = struct.unpack_from(form, header, at)
        struct.pack_into(form, header, at, *values)
        struct.pack_into("=Q", header, sum_at, checksum_of(header[:sum_at]))
        return before


@pytest.fixture
def name():
    return f"version-{uuid.uuid4()}"


@pytest.fixture
def maker(name):
    with Other() as process:
        process.ask("a = tn.full(3, 5, 'int32', shared=name)", name=name)
        yield process


def test_another_major_version_is_refused_with_both_versions(maker, name):
    data = maker.ask("__import__('pickle').dumps(a)")
    major, minor = rewrite(maker.pid, name, VERSION_AT, "=HH", 9, 3)
    text = rf"version 9\.3, this library knows {major}\.x"
    with pytest.raises(ValueError, match=text):
        tn.attach(name)
    with pytest.raises(ValueError, match=text):
        tn.Channel.attach(name)
    with pytest.raises(ValueError, match=text):
        pickle.loads(data).tolist()
    with pytest.raises(ValueError, match=text):  # the name is taken
        tn.zeros(3, shared=name)
    assert tn.zeros(3, shared=True).tolist() == [0] * 3
    maker.ask("a[0] = 6")
    assert maker.ask("a.tolist()") == [6, 5, 5], "it is not disturbed"
    rewrite(maker.pid, name, VERSION_AT, "=HH", major, minor)
    assert tn.attach(name).tolist() == [6, 5, 5]


def test_a_later_minor_version_is_used_as_far_as_it_is_known(maker, name):
    major, minor = rewrite(maker.pid, name, VERSION_AT, "=HH", 8, 1)
    assert (major, minor) == (8, 0)
    a = tn.attach(name)
    a[1] = 8
    assert maker.ask("a.tolist()") == [5, 8, 5]
    assert pickle.loads(pickle.dumps(a)).tolist() == [5, 8, 5]


def test_features_that_are_required_and_not_known_are_named(maker, name):
    rewrite(maker.pid, name, REQUIRED_AT, "=Q", 4)
    with pytest.raises(ValueError, match=r"features \(bits 4\).*later version"):
        tn.attach(name)


def test_a_header_of_another_size_is_refused_in_the_same_version(maker, name):
    with open(memory_file_of(maker.pid, name), "r+b") as file, mmap.mmap(file.fileno(), 4096) as header:
        (nbytes,) = struct.unpack_from("=I", header, HEADER_NBYTES_AT)
        struct.pack_into("=I", header, HEADER_NBYTES_AT, nbytes + 64)
        struct.pack_into("=Q", header, nbytes - 8, checksum_of(header[: nbytes - 8]))
    with pytest.raises(ValueError, match=f"size of its header is {nbytes + 64} where {nbytes}"):
        tn.attach(name)


def foreign_file(name, content):
    fd = os.memfd_create(f"tenon:{uuid.uuid4().hex}:{name}", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.write(fd, content)
    os.truncate(fd, 1 << 20)
    os.fchmod(fd, 0o600)
    seals = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, seals)
    return fd


def test_memory_files_that_only_bear_the_name_are_in_nobody_s_way(name, other):
    """Any process of the user can create such a file. The directory of names determines which one has the
    name."""
    file = foreign_file(name, b"something else")
    try:
        with pytest.raises(FileNotFoundError, match=name):
            tn.attach(name)
        other.ask("c = tn.full(2, 4, 'int8', shared=name)", name=name)
        assert tn.attach(name).tolist() == [4, 4]
        with pytest.raises(ValueError, match="exists already"):
            tn.zeros(2, shared=name)
    finally:
        os.close(file)
