# SPDX-License-Identifier: Apache-2.0
"""The contenders: channels of objects, iceoryx2 by its Python package, a ring in SharedMemory as programs
write it by hand, and multiprocessing.Queue."""

import ctypes
from multiprocessing.shared_memory import SharedMemory

import numpy as np
from share.cases import Peer
from share.iceoryx2_rows import Node, timeless

from .cases import DEPTH, DICT, FRAME, FRAMES, NUMBER, SMALL, SMALLS
from .loops import contenders


class Party:
    def done(self):
        pass

    def close(self):
        pass


class ChannelSender(Party):
    """A broadcast, as that of a camera."""

    def __init__(self, side, nbytes):
        import tenon as tn

        self.nbytes = nbytes
        # Room for as many arrays; each takes a page more for what is sent beside it.
        room = DEPTH * (nbytes + (16 << 10))
        self.channel = tn.Channel(nbytes=room, slots=DEPTH, mode="broadcast", when_full="keep")
        side.link.send(self.channel)
        side.link.recv_bytes()

    def send(self, item):
        self.channel.send(item)

    def close(self):
        self.channel.close()


class LoanSender(ChannelSender):
    def take(self):
        self.loan = self.channel.loan()
        self.array = self.loan.empty(self.nbytes, "u1")
        return self.array.numpy()

    def give(self):
        array, self.array = self.array, None
        self.loan.send(array)


class ChannelReceiver(Party):
    def __init__(self, side, nbytes):
        self.channel = side.link.recv()
        side.link.send_bytes(b".")

    def receive(self):
        return self.channel.recv()


class RingSender(Party):
    """DEPTH places in one block of memory. Two semaphores count those that are free and those that are full.
    A consumer that is killed leaves its place for ever."""

    def __init__(self, side, nbytes):
        self.memory = SharedMemory(f"{side.prefix}-ring", create=True, size=DEPTH * nbytes)
        self.free, self.full = side.shared
        self.places = np.frombuffer(self.memory.buf, "u1").reshape(DEPTH, nbytes)
        self.count = 0
        side.link.send_bytes(b".")

    def send(self, item):
        self.free.acquire()
        self.places[self.count % DEPTH] = item
        self.count += 1
        self.full.release()

    def close(self):
        self.places = None
        self.memory.close()
        self.memory.unlink()


class FilledRingSender(RingSender):
    def take(self):
        self.free.acquire()
        return self.places[self.count % DEPTH]

    def give(self):
        self.count += 1
        self.full.release()


class RingReceiver(Party):
    def __init__(self, side, nbytes):
        side.link.recv_bytes()
        self.memory = SharedMemory(f"{side.prefix}-ring")
        self.free, self.full = side.shared
        self.places = np.frombuffer(self.memory.buf, "u1").reshape(DEPTH, nbytes)
        self.count = 0

    def receive(self):
        self.full.acquire()
        place = self.places[self.count % DEPTH]
        self.count += 1
        return place

    def done(self):
        self.free.release()

    def close(self):
        self.places = None
        self.memory.close()


def semaphores(context):
    return context.Semaphore(DEPTH), context.Semaphore(0)


class QueueSender(Party):
    def __init__(self, side, nbytes):
        self.send = side.shared.put


class NewArraySender(QueueSender):
    """The queue pickles in a thread of its own: a producer that goes on needs a new array for each item."""

    def __init__(self, side, nbytes):
        self.put = side.shared.put

    def send(self, item):
        self.put(item.copy())


class QueueReceiver(Party):
    def __init__(self, side, nbytes):
        self.receive = side.shared.get


def queue(context):
    return context.Queue(DEPTH)


def service_of(node):
    """Samples that wait are not replaced by newer ones."""
    iox2 = node.iox2
    builder = node.node.service_builder(iox2.ServiceName.new("items"))
    builder = builder.publish_subscribe(iox2.Slice[ctypes.c_uint8]).enable_safe_overflow(False)
    return builder.subscriber_max_buffer_size(DEPTH).subscriber_max_borrowed_samples(2).open_or_create()


def elements_at(address, nbytes):
    return np.frombuffer((ctypes.c_uint8 * nbytes).from_address(address), "u1")


class FilledSampleSender(Party):
    """Samples of the publisher's pool. An event wakes the consumer."""

    def __init__(self, side, nbytes):
        self.nbytes, self.node = nbytes, Node(side)
        publisher = service_of(self.node).publisher_builder().initial_max_slice_len(nbytes)
        publisher = publisher.backpressure_strategy(self.node.iox2.BackpressureStrategy.RetryUntilDelivered)
        self.publisher = publisher.create()
        self.sent = self.node.event("sent").notifier_builder().create()
        side.link.send_bytes(b".")
        side.link.recv_bytes()
        self.publisher.update_connections()

    def take(self):
        self.sample = self.publisher.loan_slice_uninit(self.nbytes)
        return elements_at(self.sample.payload_ptr, self.nbytes)

    def give(self):
        self.sample.assume_init().send()
        self.sample = None
        self.sent.notify()

    def close(self):
        for part in (self.publisher, self.sent):
            part.delete()


class SampleSender(FilledSampleSender):
    def send(self, item):
        self.take()[...] = item
        self.give()


class SampleReceiver(Party):
    def __init__(self, side, nbytes):
        side.link.recv_bytes()
        self.nbytes, self.node = nbytes, Node(side)
        self.subscriber = service_of(self.node).subscriber_builder().create()
        self.sent = self.node.event("sent").listener_builder().create()
        side.link.send_bytes(b".")
        self.duration = timeless()

    def receive(self):
        while (sample := self.subscriber.receive()) is None:
            self.sent.timed_wait(
                self.duration
            )  # may return before an event, and after that of an older sample
        self.sample = sample
        return elements_at(sample.payload_ptr, self.nbytes)

    def done(self):
        self.sample.delete()
        self.sample = None

    def close(self):
        for part in (self.subscriber, self.sent):
            part.delete()


ARRAYS, STREAMS, OBJECTS = (FRAME, SMALL), (FRAMES, SMALLS), (NUMBER, DICT)
TENON, ICEORYX2 = {"needs": ("tenon",), "kind": "tenon"}, {"needs": ("iceoryx2",)}
FILLED = (*ARRAYS, *STREAMS)
PEERS = [
    Peer("Tenon channel, in place", contenders(LoanSender, ChannelReceiver, FILLED, in_place=True), **TENON),
    Peer("Tenon channel, copied", contenders(ChannelSender, ChannelReceiver, (*FILLED, *OBJECTS)), **TENON),
    Peer(
        "iceoryx2, in place",
        contenders(FilledSampleSender, SampleReceiver, FILLED, in_place=True),
        **ICEORYX2,
    ),
    Peer("iceoryx2, copied", contenders(SampleSender, SampleReceiver, ARRAYS), **ICEORYX2),
    Peer(
        "SharedMemory ring, in place",
        contenders(FilledRingSender, RingReceiver, FILLED, semaphores, in_place=True),
    ),
    Peer("SharedMemory ring, copied", contenders(RingSender, RingReceiver, ARRAYS, semaphores)),
    Peer(
        "mp.Queue",
        contenders(QueueSender, QueueReceiver, (*ARRAYS, *OBJECTS), queue)
        | contenders(NewArraySender, QueueReceiver, STREAMS, queue),
    ),
]
