# SPDX-License-Identifier: Apache-2.0
"""When the slots of channels take memory from the system."""

import gc
import os
import uuid

import numpy as np
import pytest

import tenon as tn

MIB = 1 << 20


@pytest.fixture
def name():
    return f"memory-{uuid.uuid4()}"


def memory_nbytes(name):
    """Of the memory file with this name."""
    for number in os.listdir("/proc/self/fd"):
        path = f"/proc/self/fd/{number}"
        try:
            if os.readlink(path).startswith("/memfd:tenon:") and name in os.readlink(path):
                return os.stat(path).st_blocks * 512
        except FileNotFoundError:  # the descriptor of the folder
            pass
    raise LookupError(name)


def test_a_slot_gets_its_memory_when_it_is_first_lent(name):
    with tn.Channel({"x": ("u1", (16 * MIB,))}, slots=4, name=name) as channel:
        assert memory_nbytes(name) < MIB
        for _ in range(3):  # in the same slot
            with channel.loan() as item:
                item.x[...] = 1
            channel.recv().release()
        assert 16 * MIB <= memory_nbytes(name) < 17 * MIB
        loans = [channel.loan() for _ in range(4)]
        assert 64 * MIB <= memory_nbytes(name) < 65 * MIB
        for loan in loans:
            loan.drop()


def test_a_populated_channel_has_all_of_its_memory_at_once(name):
    shared = tn.Shared(name=name, populate=True)
    with tn.Channel({"x": ("u1", (MIB,))}, slots=4, name=shared) as channel:
        assert memory_nbytes(name) >= 4 * MIB
        with channel.loan() as item:
            item.x[...] = 1
        assert channel.recv().x[5].item() == 1


def test_the_memory_of_an_object_is_taken_when_it_is_written(name):
    with tn.Channel(nbytes="512 MiB", name=name) as channel:
        assert memory_nbytes(name) < MIB
        for _ in range(5):
            channel.send(np.zeros(4 * MIB, "u1"))
            channel.recv(timeout=0)
            gc.collect()
        assert 4 * MIB <= memory_nbytes(name) < 6 * MIB
