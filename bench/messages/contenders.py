# SPDX-License-Identifier: Apache-2.0
"""Ways to send messages with arrays to other processes. A sender, made with a Side, has

    send(message)   to all receivers
    empty(like)     memory that the message is produced in; only where there is such memory
    close()

and a receiver

    receive()       the next message
    done()          the receiver has dropped it

A message is a dict with the list "arrays". Wires carry bytes from the sender to one receiver."""

import pickle
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.shared_memory import SharedMemory

import numpy as np

from .arena import ArenaReceiver, ArenaSender


class Pipe:
    """What is sent to a process that has ended is dropped."""

    def __init__(self, context, _):
        self.source, self.sink = context.Pipe(duplex=False)

    def send(self, data):
        self.source.close()  # here; the receiver has its own
        try:
            self.sink.send_bytes(data)
        except BrokenPipeError:
            pass

    def receive(self):
        return self.source.recv_bytes()


class ZeroMQ:
    """PUSH and PULL over a socket file."""

    def __init__(self, _, path):
        self.address, self.socket = f"ipc://{path}", None

    def send(self, data):
        if self.socket is None:
            self.open("PUSH").bind(self.address)
        self.socket.send(data)

    def receive(self):
        if self.socket is None:
            self.open("PULL").connect(self.address)
        return self.socket.recv()

    def open(self, kind):
        import zmq

        self.socket = zmq.Context.instance().socket(getattr(zmq, kind))
        self.socket.linger = 0
        return self.socket


class Queue:
    """torch's queue, which carries objects."""

    def __init__(self, _, __):
        import torch.multiprocessing

        self.queue = torch.multiprocessing.get_context("spawn").Queue()
        self.send, self.receive = self.queue.put, self.queue.get


@dataclass
class Side:
    wires: list
    prefix: str  # of names in shared memory
    readers: int
    reader: int = 0


class PickleSender:
    def __init__(self, side):
        self.outs = side.wires

    def send(self, message):
        data = pickle.dumps(message, 5)
        for out in self.outs:
            out.send(data)

    def close(self):
        pass


class PickleReceiver:
    def __init__(self, side):
        self.wire = side.wires[0]

    def receive(self):
        return pickle.loads(self.wire.receive())

    def done(self):
        pass


class TorchSender(PickleSender):
    def send(self, message):
        import torch

        tensors = [torch.from_numpy(array).share_memory_() for array in message["arrays"]]
        for out in self.outs:
            out.send(message | {"arrays": tensors})


class TorchReceiver(PickleReceiver):
    def receive(self):
        return self.wire.receive()


class NamedSender(PickleSender):
    """A new SharedMemory for each message. The receiver removes it; if there are several, the sender does
    when it sends the next message."""

    def __init__(self, side):
        super().__init__(side)
        self.last = None

    def send(self, message):
        self.remove()
        arrays = message["arrays"]
        memory = SharedMemory(create=True, size=max(1, sum(array.nbytes for array in arrays)))
        places, begin = [], 0
        for array in arrays:
            np.copyto(np.ndarray(array.shape, array.dtype, memory.buf, begin), array)
            places.append((begin, array.dtype.str, array.shape))
            begin += array.nbytes
        memory.close()
        self.last = memory if len(self.outs) > 1 else None
        super().send(message | {"arrays": places, "name": memory.name})

    def remove(self):
        if self.last is not None:
            self.last.unlink()
            self.last = None

    close = remove


class NamedReceiver(PickleReceiver):
    def __init__(self, side):
        super().__init__(side)
        self.is_last = side.readers == 1

    def receive(self):
        message = super().receive()
        self.memory = SharedMemory(message["name"])
        message["arrays"] = [
            np.ndarray(shape, dtype, self.memory.buf, begin) for begin, dtype, shape in message["arrays"]
        ]
        return message

    def done(self):
        self.memory.close()
        if self.is_last:
            self.memory.unlink()


class PoolSender(PickleSender):
    def __init__(self, side):
        import tenon as tn

        super().__init__(side)
        self.pool = tn.TensorPool("1 GiB")

    def send(self, message):
        data = self.pool.dumps(message, opens=len(self.outs))
        for out in self.outs:
            out.send(data)

    def empty(self, like):
        return self.pool.empty(like.shape, like.dtype)


class EachPoolSender(PoolSender):
    """A message for each receiver, which ends with it. They share the arrays."""

    def send(self, message):
        message = message | {"arrays": [self.pool.freeze(self.pool.put(a)) for a in message["arrays"]]}
        for out, pid in zip(self.outs, self.pids, strict=True):
            try:
                out.send(self.pool.dumps(message, receivers=pid))
            except OSError:  # it has ended
                pass


class PoolReceiver(PickleReceiver):
    is_writable = True

    def __init__(self, side):
        import tenon as tn

        super().__init__(side)
        self.loads = tn.loads

    def receive(self):
        return self.loads(self.wire.receive(), writable=self.is_writable)


class ReadingPoolReceiver(PoolReceiver):
    is_writable = False


@dataclass(frozen=True)
class Contender:
    name: str
    wire: Callable
    sender: Callable
    receiver: Callable
    kind: str = "peer"
    in_place: bool = False


ARENA = Contender("arena of flags, pipe", Pipe, ArenaSender, ArenaReceiver)
TORCH = Contender("torch.multiprocessing queues", Queue, TorchSender, TorchReceiver)
NAMED = Contender("SharedMemory by hand, pipe", Pipe, NamedSender, NamedReceiver)
PICKLE_PIPE = Contender("pickle, pipe", Pipe, PickleSender, PickleReceiver)
PICKLE_ZEROMQ = Contender("pickle, ZeroMQ", ZeroMQ, PickleSender, PickleReceiver)
POOL_PIPE = Contender("tn.TensorPool, pipe", Pipe, PoolSender, PoolReceiver, "tenon")
POOL_ZEROMQ = Contender("tn.TensorPool, ZeroMQ", ZeroMQ, PoolSender, PoolReceiver, "tenon")
POOL_READ = Contender("tn.TensorPool, writable=False", Pipe, PoolSender, ReadingPoolReceiver, "tenon")
POOL_EACH = Contender("tn.TensorPool, a message for each", Pipe, EachPoolSender, PoolReceiver, "tenon")
POOL_PLACE = Contender("tn.TensorPool, produced in place", Pipe, PoolSender, PoolReceiver, "tenon", True)
