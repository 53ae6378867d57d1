# SPDX-License-Identifier: Apache-2.0
"""vLLM's ShmTensorArena on a tensor pool: a slot is a message that all readers open. It takes the memory of
its tensor alone. A reader that is killed keeps no slot. What a reader has a view of is not written over,
whatever the table says. Readers must not write to their tensors."""

import types
import uuid

import torch
from message_table import MessageTable
from vllm.distributed.device_communicators import shm_tensor_arena

import tenon as tn


class ShmTensorArena(shm_tensor_arena.ShmTensorArena):
    def __init__(self, n_reader, slot_bytes=256 << 20, n_slots=8, name=None, reader_rank=-1):
        self.n_reader, self.slot_bytes, self.n_slots = n_reader, slot_bytes, n_slots
        self.reader_rank, self.is_creator = reader_rank, name is None
        self._next_slot = self._fallbacks = 0
        self._pinned, self._pending_release, self._deferred_releases = False, [], []
        self._sent = {}  # by the writer: the last message of each slot
        if self.is_creator:
            name, nbytes = f"arena-{uuid.uuid4().hex}", slot_bytes * n_slots
            self._pool = tn.TensorPool(nbytes, inline=0, when_full="raise", pinned=torch.cuda.is_available())
        try:
            self._table = MessageTable(name, n_slots, n_reader, self.is_creator)
        except FileNotFoundError:
            return  # without `shared_memory`, as theirs
        if not self.is_creator:
            self._table.join(reader_rank)
        self.shared_memory = types.SimpleNamespace(name=name)

    def _is_free(self, idx):
        return idx not in self._sent or self._table.is_read(idx, 1, self.n_reader)

    def write_tensor(self, t):
        try:
            data = t.detach().reshape(-1).view(torch.uint8).numpy()
        except RuntimeError:  # it is conjugated lazily
            return None
        slots = [(self._next_slot + i) % self.n_slots for i in range(self.n_slots)]
        idx = next(filter(self._is_free, slots), None)
        if idx is None or data.nbytes > self.slot_bytes:
            self._fallbacks += idx is None
            return None
        if idx in self._sent:
            self._pool.revoke(message=self._sent.pop(idx))
        try:
            message = self._sent[idx] = self._pool.handle(data, opens=None)
        except MemoryError:  # readers still have views of what they have released
            self._fallbacks += 1
            return None
        self._table.publish(idx, idx, message)
        self._next_slot = (idx + 1) % self.n_slots
        return idx

    def _slot(self, idx, nbytes):
        return memoryview(tn.open(self._table.look(idx)[1], writable=False))[:nbytes]

    def _mark_released(self, idxs):
        for idx in idxs:
            self._table.count(idx, self.reader_rank)

    def _ensure_pinned(self):
        """The pool pins its memory, and waits for the copies to a GPU."""

    def __del__(self):
        while self._sent:
            self._pool.revoke(message=self._sent.popitem()[1])
