# SPDX-License-Identifier: Apache-2.0
"""What tensor pools believe of messages that other programs have made or changed."""

import os
import signal

import numpy as np
import pytest

import tenon as tn

MiB = 1 << 20


@pytest.fixture
def pool():
    return tn.TensorPool("64 MiB", idle=0, linger=0)


def test_a_message_with_the_right_code_gets_no_memory_of_others(pool):
    """What another process of the user could write: its places and dtypes are not believed."""
    numbers = bytes(range(64)) * 4

    def read(spec, place):
        about = tn._core.encode_plain(([0], [spec], [place], []))[0]
        limits = tn._core.MessageLimits(1, None, None, None)
        message = pool._dumps_parts([], b"x\0", about, b"", numbers, limits)
        return tn.loads(message, arrays_only=True)

    assert read(("n", 0, "|u1", (8,), None), (-1, 64, 8)).tolist() == list(range(8))
    for spec in [("n", 0, "|O", (4,), None), ("n", 0, [("a", "|O")], (4,), None), ("s", "|O", b"\0" * 8)]:
        with pytest.raises(ValueError):
            read(spec, (-1, 64, 32))
    for place in [(-1, -64, 8), (-1, 1 << 40, 8), (0, 0, 8)]:
        with pytest.raises((ValueError, TypeError, IndexError)):
            read(("n", 0, "|u1", (8,), None), place)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can open memory of other users")
def test_a_message_of_another_user_is_not_opened_whatever_it_says(pool):
    to_child, from_parent = os.pipe()
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.setuid(65534)
        core = bytearray(tn._core.core_of_message(tn.TensorPool("1 MiB").dumps(1)))
        core[48:52] = b"\0\0\0\0"  # its user: says root
        os.write(writer, core)
        os.read(to_child, 1)
        os._exit(0)
    core = os.read(reader, 1000)
    try:
        assert not tn._core.take_over_message(core, 1.0)
    finally:
        os.write(from_parent, b".")
        os.waitpid(pid, 0)
        for end in (to_child, from_parent, reader, writer):
            os.close(end)


def test_a_buffer_may_change_while_it_is_read(pool):
    """Its bytes are copied before they are checked: another process writes to this one."""
    message = pool.dumps(b"a" * MiB, opens=None)
    data = pool.put(np.frombuffer(message, "u1")).numpy()
    at = message.index(b"aaaa") + MiB // 2
    pid = os.fork()
    if pid == 0:
        while True:
            data[at] = ord("b")
            data[at] = ord("a")
    try:
        for _ in range(300):
            try:
                assert tn.loads(data).count(b"a") == MiB
            except ValueError:
                pass
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
