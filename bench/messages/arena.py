# SPDX-License-Identifier: Apache-2.0
"""The arena that serving engines write by hand: a named file in /dev/shm with a few slots, one writer, a
fixed number of readers, and a flag of each reader in each slot. Arrays are copied into a slot once. The
header, a pickle, travels over a wire. A slot is free when all readers have set their flags. If none is free,
the arrays travel in the pickle, too."""

import io
import mmap
import os
import pickle

import numpy as np

SLOTS = 4
SLOT_BYTES = 64 << 20
FLAG_BYTES = 64  # of each slot; a byte for each reader
ALIGNMENT = 64
LEAST_BYTES = 16 << 10


class Memory:
    def __init__(self, path, is_new=False):
        nbytes = SLOTS * (FLAG_BYTES + SLOT_BYTES)
        fd = os.open(path, os.O_RDWR | (os.O_CREAT | os.O_EXCL if is_new else 0), 0o600)
        if is_new:
            os.posix_fallocate(fd, 0, nbytes)
        self.pages = np.frombuffer(mmap.mmap(fd, nbytes), "u1")
        os.close(fd)
        self.flags = self.pages[: SLOTS * FLAG_BYTES].reshape(SLOTS, FLAG_BYTES)
        self.slots = self.pages[SLOTS * FLAG_BYTES :].reshape(SLOTS, SLOT_BYTES)


class Packer(pickle.Pickler):
    """A pickle whose larger arrays are copied into one slot, as long as there is room."""

    def __init__(self, file, slot, number):
        super().__init__(file, 5)
        self.slot, self.number, self.end = slot, number, 0

    def persistent_id(self, obj):
        if not isinstance(obj, np.ndarray) or obj.nbytes < LEAST_BYTES or self.slot is None:
            return None
        begin, self.end = self.end, self.end + -(-obj.nbytes // ALIGNMENT) * ALIGNMENT
        target = self.slot[begin : begin + obj.nbytes].view(obj.dtype).reshape(obj.shape)
        np.copyto(target, obj)
        return self.number, begin, obj.dtype.str, obj.shape


class Unpacker(pickle.Unpickler):
    def __init__(self, data, slots):
        super().__init__(io.BytesIO(data))
        self.slots, self.number = slots, None

    def persistent_load(self, place):
        self.number, begin, dtype, shape = place
        nbytes = np.dtype(dtype).itemsize * int(np.prod(shape))
        return self.slots[self.number, begin : begin + nbytes].view(dtype).reshape(shape)


class ArenaSender:
    def __init__(self, side):
        self.outs, self.path = side.wires, f"/dev/shm/{side.prefix}-arena"
        self.memory = Memory(self.path, is_new=True)
        self.memory.flags[:] = 1
        self.refused = 0

    def send(self, message):
        free = np.flatnonzero(self.memory.flags[:, : len(self.outs)].all(axis=1))
        number = int(free[0]) if len(free) else None
        self.refused += number is None
        file = io.BytesIO()
        Packer(file, None if number is None else self.memory.slots[number], number).dump(message)
        if number is not None:
            self.memory.flags[number, : len(self.outs)] = 0
        for out in self.outs:
            out.send(file.getbuffer())

    def close(self):
        os.unlink(self.path)


class ArenaReceiver:
    def __init__(self, side):
        self.wire, self.reader = side.wires[0], side.reader
        self.memory = Memory(f"/dev/shm/{side.prefix}-arena")
        self.slot = None

    def receive(self):
        unpacker = Unpacker(self.wire.receive(), self.memory.slots)
        message, self.slot = unpacker.load(), unpacker.number
        return message

    def done(self):
        """The next iteration of the reader's loop: it holds nothing of the message any more, by agreement."""
        if self.slot is not None:
            self.memory.flags[self.slot, self.reader] = 1
