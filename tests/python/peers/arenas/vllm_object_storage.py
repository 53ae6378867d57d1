# SPDX-License-Identifier: Apache-2.0
"""vLLM's SingleWriterShmObjectStorage on a tensor pool, which replaces its ring buffer: an object is a
message, an address is the row of a table. Keys, signatures and the order in which objects leave stay
theirs. A reader that is killed keeps no object, and no lock."""

import contextlib
import types
import uuid

from message_table import MessageTable
from vllm.distributed.device_communicators import shm_object_storage

import tenon as tn

_ROWS, _READERS = 1024, 64


class SingleWriterShmRingBuffer(shm_object_storage.SingleWriterShmRingBuffer):
    ID_NBYTES, ID_MAX = 4, 2**31

    def __init__(self, data_buffer_size, name=None, create=False):
        self.data_buffer_size, self.is_writer = data_buffer_size, create
        self.monotonic_id_start = self.monotonic_id_end = self.data_buffer_start = self.data_buffer_end = 0
        self.shared_memory = types.SimpleNamespace(name=name or f"objects-{uuid.uuid4().hex}")
        self.metadata, self._sizes, self._sent, self._new = {}, {}, {}, None  # of the writer
        self.table = MessageTable(self.shared_memory.name, _ROWS, _READERS, create)
        self.place = -1 if create else self.table.join()
        if create:  # each object begins on a page
            self._pool = tn.TensorPool(data_buffer_size + _ROWS * 4096, inline=0, when_full="raise")

    def get_auth_secret(self):
        return self.table.secret()

    def allocate_buf(self, size):
        used = set(self.metadata.values())
        row = next((row for row in range(_ROWS) if row not in used), None)
        if row is None or size + sum(map(self._sizes.get, used)) > self.data_buffer_size:
            raise MemoryError("Not enough space in the data buffer")
        for stale in self._sent.keys() - used:
            self._pool.revoke(message=self._sent.pop(stale))
        array, number = self._pool.empty(size, "u1"), self.monotonic_id_end
        self.monotonic_id_end = (number + 1) % self.ID_MAX
        self.metadata[number], self._sizes[row], self._new = row, size, (number, array)
        return row, number

    @contextlib.contextmanager
    def access_buf(self, address):
        if self._new is not None:  # put() writes what it has allocated
            (number, array), self._new = self._new, None
            with memoryview(array.numpy()) as data:
                yield data, (number, len(data))
            self._sent[address] = self._pool.handle(array, opens=None)
            self.table.publish(address, number, self._sent[address])
            return
        number, message = self.table.look(address % _ROWS)
        try:
            data = memoryview(tn.open(message, writable=False))
        except (tn.MessageGone, ValueError):
            data, number = memoryview(b""), -1
        yield data, (number, len(data))

    def close(self):
        while self._sent:
            self._pool.revoke(message=self._sent.popitem()[1])


class SingleWriterShmObjectStorage(shm_object_storage.SingleWriterShmObjectStorage):
    def get(self, address, monotonic_id, signature=None, key=None):
        if not self.is_writer:
            self.verify_signature(key, address, monotonic_id, signature)
        with self.ring_buffer.access_buf(address) as (data, metadata):
            self._validate_monotonic_id(address, monotonic_id, metadata)
            value = self.ser_de.deserialize(data[self.flag_bytes :])
        if self._reader_lock is not None:
            self.ring_buffer.table.count(address, self.ring_buffer.place)
        return value

    def default_is_free_check(self, id, buf):
        ring, times = self.ring_buffer, self.writer_flag[id]
        return id not in self._touched and ring.table.is_read(ring.metadata[id], times, self.n_readers)
