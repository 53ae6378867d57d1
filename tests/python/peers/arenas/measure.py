# SPDX-License-Identifier: Apache-2.0
"""How long the adapters and what they replace take to bring a tensor to two processes: one writes, both get
it, and both read its ends (view) or all of it (read). All contenders run in turn.

    TENON_PEER_ARENAS=FOLDER python tests/python/peers/arenas/measure.py [ROUNDS]
"""

import multiprocessing
import pickle
import statistics
import sys
import time

import sglang_pointer
import stand_ins  # noqa: F401  before the modules of the peers
import torch
import vllm_arena
import vllm_object_storage
from sglang.srt.managers import mm_utils
from vllm.distributed.device_communicators import shm_object_storage, shm_tensor_arena

SIZES = 1 << 20, 24 << 20
READERS = 2
sglang_pointer.ShmPointerMMData.ranks = READERS


class Arena:
    def __init__(self, module):
        self.module = module

    def begin(self):
        self.writer = self.module.ShmTensorArena(READERS, 64 << 20, 3)
        return self.writer.handle()

    def write(self, t):
        return self.writer.write_tensor(t), t.shape

    def attach(self, handle, rank, lock):
        self.reader = self.module.ShmTensorArena(*handle, reader_rank=rank)

    def get(self, place):
        idx, shape = place
        self.reader.flush_releases()
        return self.reader.get_tensor(idx, shape.numel(), torch.uint8, tuple(shape))


class Storage:
    def __init__(self, module):
        self.module, self.n = module, 0

    def begin(self):
        ring = self.module.SingleWriterShmRingBuffer(256 << 20, create=True)
        self.writer = self.module.SingleWriterShmObjectStorage(64 << 20, READERS, ring)
        return ring.handle()

    def write(self, t):
        self.n += 1
        key = str(self.n)
        return *self.writer.put(key, t), self.writer.get_signature(key), key

    def attach(self, handle, rank, lock):
        ring = self.module.SingleWriterShmRingBuffer(*handle)
        self.reader = self.module.SingleWriterShmObjectStorage(64 << 20, READERS, ring, reader_lock=lock)

    def get(self, place):
        return self.reader.get(*place)


class Pointer:
    def __init__(self, module):
        self.module = module

    def begin(self):
        return None

    def write(self, t):
        self.pointer = self.module.ShmPointerMMData(t)
        return pickle.dumps(self.pointer)

    def attach(self, handle, rank, lock):
        pass

    def get(self, place):
        return pickle.loads(place)


CONTENDERS = {
    "vLLM, ShmTensorArena": Arena(shm_tensor_arena),
    "adapter of the arena": Arena(vllm_arena),
    "vLLM, object storage": Storage(shm_object_storage),
    "adapter of the storage": Storage(vllm_object_storage),
    "SGLang, ShmPointerMMData": Pointer(mm_utils),
    "adapter of the pointer": Pointer(sglang_pointer),
}


def read(connection, rank, lock):
    torch.set_num_threads(1)
    while True:
        try:
            name, kind, what = connection.recv()
        except EOFError:
            return
        contender = CONTENDERS[name]
        if kind == "attach":
            contender.attach(what, rank, lock)
            connection.send(None)
            continue
        t = contender.get(what)
        if isinstance(contender, Pointer):
            if contender.module is mm_utils:  # the first that materializes removes the name
                connection.send(None)
                connection.recv()
            t = t.materialize()
        connection.send(int(t.view(torch.int64).sum()) if kind == "read" else int(t[0]) + int(t[-1]))
        del t


def ask(connections, *request):
    for connection in connections:
        connection.send(request)
    return [connection.recv() for connection in connections]


def exchange(connections, name, kind, t):
    """In milliseconds."""
    contender = CONTENDERS[name]
    begin = time.perf_counter()
    got = ask(connections, name, kind, contender.write(t))
    if isinstance(contender, Pointer) and contender.module is mm_utils:
        got = ask(connections, None)
    end = time.perf_counter()
    word = int.from_bytes(bytes([7] * 8), "little")
    assert got == [word * (t.numel() // 8) % 2**64 if kind == "read" else 14] * READERS, (name, got)
    return (end - begin) * 1e3


def main(rounds=40):
    torch.set_num_threads(1)
    context = multiprocessing.get_context("spawn")
    lock = context.Lock()
    connections = []
    for rank in range(READERS):
        here, there = context.Pipe()
        context.Process(target=read, args=(there, rank, lock), daemon=True).start()
        connections.append(here)
    for name, contender in CONTENDERS.items():
        ask(connections, name, "attach", contender.begin())
    print(
        f"{'ms, least / median':28}"
        + "".join(f"{n >> 20:>7} MiB, {k}" for n in SIZES for k in ("view", "read"))
    )
    times = {}
    for i in range(rounds + 5):
        for nbytes in SIZES:
            t = torch.full((nbytes,), 7, dtype=torch.uint8)
            for kind in ("view", "read"):
                for name in CONTENDERS:
                    taken = exchange(connections, name, kind, t)
                    if i >= 5:
                        times.setdefault(name, {}).setdefault((nbytes, kind), []).append(taken)
    for name, by_case in times.items():
        cells = (f"{min(ms):8.2f} / {statistics.median(ms):6.2f}" for ms in by_case.values())
        print(f"{name:28}" + "".join(cells))


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
