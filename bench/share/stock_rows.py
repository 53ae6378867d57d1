# SPDX-License-Identifier: Apache-2.0
"""What comes with CPython: multiprocessing's Queue and Pipe, which copy, and SharedMemory."""

import mmap
from multiprocessing.shared_memory import SharedMemory

import numpy as np

from .cases import ASLEEP, BIG_BYTES, FRESH, SPINNING, TOUCHED, WARM, Contender, Peer
from .loops import Receiver, Sender, contenders, now


class Answered(Sender):
    """Waits for a byte through a pipe."""

    def wait(self):
        self.link.recv_bytes()


class Answering(Receiver):
    def answer(self):
        self.link.send_bytes(b".")


class QueueSender(Answered):
    def __init__(self, side, nbytes):
        self.link, self.put = side.link, side.shared.put
        self.array = np.ones(nbytes // 4, "f4")

    def send(self):
        self.put(self.array)

    def send_fresh(self, source):
        array = source.copy()
        self.put(array)
        return array


class QueueReceiver(Answering):
    def __init__(self, side, nbytes):
        self.link, self.receive = side.link, side.shared.get


class PipeSender(QueueSender):
    def __init__(self, side, nbytes):
        super().__init__(_WithPut(side.link, side.link.send), nbytes)


class PipeReceiver(Answering):
    def __init__(self, side, nbytes):
        self.link, self.receive = side.link, side.link.recv

    def poll(self):
        while not self.link.poll(0):
            pass
        return self.receive()


class _WithPut:
    def __init__(self, link, put):
        self.link, self.shared, self.put = link, self, put


class Block:
    """A SharedMemory and the array over it."""

    def __init__(self, name, nbytes=0):
        self.memory = SharedMemory(name, create=nbytes > 0, size=nbytes)
        self.array = np.frombuffer(self.memory.buf, "f4")

    def close(self):
        self.array = None
        self.memory.close()


class NamedSender(Answered):
    """Sends the name of the memory each time."""

    def __init__(self, side, nbytes):
        self.link, self.prefix, self.count = side.link, side.prefix, 0
        self.block = self.new(nbytes)
        self.array = self.block.array

    def new(self, nbytes):
        self.count += 1
        return Block(f"{self.prefix}-{self.count}", nbytes)

    def send(self):
        self.link.send(self.block.memory.name)

    def send_fresh(self, source):
        block = self.new(source.nbytes)
        np.copyto(block.array, source)
        self.link.send(block.memory.name)
        return block

    def drop(self, kept):
        kept.close()
        kept.memory.unlink()

    def close(self):
        self.array = None
        self.drop(self.block)


class NamedReceiver(Answering):
    def __init__(self, side, nbytes):
        self.link = side.link

    def receive(self):
        self.block = Block(self.link.recv())
        return self.block.array

    def done(self):
        self.block.close()


class AttachedSender(NamedSender):
    """The consumer has attached the memory before; the number of the block is sent."""

    def __init__(self, side, nbytes):
        super().__init__(side, nbytes)
        self.link.send(self.block.memory.name)
        self.put = side.shared.put if side.shared else self.link.send

    def send(self):
        self.put(0)


class AttachedReceiver(Answering):
    def __init__(self, side, nbytes):
        self.link = side.link
        self.blocks = [Block(self.link.recv())]
        self.get = side.shared.get if side.shared else self.link.recv

    def receive(self):
        return self.blocks[self.get()].array

    def poll(self):
        while not self.link.poll(0):
            pass
        return self.receive()

    def close(self):
        for block in self.blocks:
            block.close()


class WordSender(AttachedSender):
    """A word in the memory says how many arrays were sent."""

    def __init__(self, side, nbytes):
        super().__init__(side, nbytes)
        self.word = Block(f"{self.prefix}-word", 8)
        self.words = self.word.memory.buf.cast("Q")
        self.link.send(self.word.memory.name)

    def send(self):
        self.words[0] += 1

    def close(self):
        self.words.release()
        self.drop(self.word)
        super().close()


class WordReceiver(AttachedReceiver):
    def __init__(self, side, nbytes):
        super().__init__(side, nbytes)
        self.blocks.append(Block(self.link.recv()))
        self.words = self.blocks[1].memory.buf.cast("Q")
        self.count = 0

    def poll(self):
        self.count += 1
        while self.words[0] != self.count:
            pass
        return self.blocks[0].array

    def close(self):
        self.words.release()
        super().close()


class Copies:
    """The time of a copy of 64 MiB into mapped memory."""

    def __init__(self, side):
        self.source = np.ones(BIG_BYTES // 4, "f4")
        self.pages = mmap.mmap(-1, BIG_BYTES)
        self.target = np.frombuffer(self.pages, "f4")

    def turn(self, n):
        return [self.copy() for _ in range(n)]

    def copy(self):
        before = now()
        np.copyto(self.target, self.source)
        return now() - before

    def close(self):
        pass


def queue(context):
    return context.Queue()


BIG = (WARM, TOUCHED, FRESH)
PEERS = [
    Peer("np.copyto alone", {FRESH: Contender(Copies)}, kind="floor"),
    Peer("mp.Queue", contenders(QueueSender, QueueReceiver, queue, (ASLEEP, *BIG))),
    Peer("mp.Pipe", contenders(PipeSender, PipeReceiver, None, (SPINNING, ASLEEP, *BIG))),
    Peer("SharedMemory by name, mp.Pipe", contenders(NamedSender, NamedReceiver, None, (ASLEEP, *BIG))),
    Peer(
        "SharedMemory attached before, mp.Queue",
        contenders(AttachedSender, AttachedReceiver, queue, (ASLEEP, WARM, TOUCHED)),
    ),
    Peer(
        "SharedMemory attached before, mp.Pipe",
        contenders(AttachedSender, AttachedReceiver, None, (SPINNING, ASLEEP, WARM, TOUCHED)),
    ),
    Peer("SharedMemory attached before, a word", contenders(WordSender, WordReceiver, None, (SPINNING,))),
]
