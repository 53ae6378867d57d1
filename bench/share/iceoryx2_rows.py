# SPDX-License-Identifier: Apache-2.0
"""iceoryx2 by its Python package: publish and subscribe with loaned samples; events wake waiters.

Its libraries for C++ and Rust, which the published figures are of, are built by cargo; the package has none
of their headers.
"""

import ctypes

import numpy as np

from .cases import ASLEEP, FRESH, NATIVE_SPINNING, SPINNING, TOUCHED, WARM, Peer
from .loops import Receiver, Sender, contenders


def timeless():
    import iceoryx2 as iox2

    # Time between checks for the death of the other side; far longer than an exchange.
    return iox2.Duration.from_secs(60)


class Node:
    """This process's node, with all of its files under names of this run."""

    def __init__(self, side):
        import iceoryx2 as iox2

        iox2.set_log_level(iox2.LogLevel.Error)
        config = iox2.config.default()
        config.global_cfg.root_path = iox2.Path.new(side.scratch)
        config.global_cfg.prefix = iox2.FileName.new(f"{side.prefix}-")
        self.iox2 = iox2
        self.node = iox2.NodeBuilder.new().config(config).create(iox2.ServiceType.Ipc)

    def arrays(self):
        """The service that carries them."""
        iox2 = self.iox2
        builder = self.node.service_builder(iox2.ServiceName.new("arrays"))
        return builder.publish_subscribe(iox2.Slice[ctypes.c_uint8]).open_or_create()

    def event(self, name):
        return self.node.service_builder(self.iox2.ServiceName.new(name)).event().open_or_create()


def array_at(address, nbytes):
    return np.frombuffer((ctypes.c_uint8 * nbytes).from_address(address), "f4")


class LoanSender(Sender):
    """Each array is a sample of the publisher's pool."""

    def __init__(self, side, nbytes):
        self.nbytes = nbytes
        self.node = Node(side)
        self.publisher = self.node.arrays().publisher_builder().initial_max_slice_len(nbytes).create()
        self.sent = self.node.event("sent").notifier_builder().create()
        self.answered = self.node.event("answered").listener_builder().create()
        side.link.send_bytes(b".")
        side.link.recv_bytes()
        self.publisher.update_connections()
        self.duration = timeless()

    def begin(self):
        self.loan = self.publisher.loan_slice_uninit(self.nbytes)
        self.array = array_at(self.loan.payload_ptr, self.nbytes)

    def send(self):
        self.array = None
        self.loan.assume_init().send()
        self.loan = None
        self.wake()

    def wake(self):
        self.sent.notify()

    def send_fresh(self, source):
        self.begin()
        np.copyto(self.array, source)
        self.send()

    def wait(self):
        if not self.answered.timed_wait(self.duration):
            raise TimeoutError("no answer")

    def close(self):
        self.loan = self.array = None
        for part in (self.publisher, self.sent, self.answered):
            part.delete()


class PolledSender(LoanSender):
    def wake(self):
        pass


class SampleReceiver(Receiver):
    def __init__(self, side, nbytes):
        side.link.recv_bytes()
        self.nbytes = nbytes
        self.node = Node(side)
        self.subscriber = self.node.arrays().subscriber_builder().create()
        self.sent = self.node.event("sent").listener_builder().create()
        self.answered = self.node.event("answered").notifier_builder().create()
        side.link.send_bytes(b".")
        self.duration = timeless()

    def receive(self):
        if not self.sent.timed_wait(self.duration):
            raise TimeoutError("nothing was sent")
        return self.poll()

    def poll(self):
        receive = self.subscriber.receive
        while (sample := receive()) is None:
            pass
        self.sample = sample
        return array_at(sample.payload_ptr, self.nbytes)

    def done(self):
        self.sample.delete()
        self.sample = None

    def answer(self):
        self.answered.notify()

    def close(self):
        for part in (self.subscriber, self.sent, self.answered):
            part.delete()


def no_native_library():
    return "its C++ library, built by cargo (published, between two threads: 92 to 326 ns)"


NEEDS = ("iceoryx2",)
PEERS = [
    Peer("iceoryx2", contenders(PolledSender, SampleReceiver, None, (SPINNING,)), NEEDS),
    Peer(
        "iceoryx2, event", contenders(LoanSender, SampleReceiver, None, (ASLEEP, WARM, TOUCHED, FRESH)), NEEDS
    ),
    Peer("iceoryx2 in C++ or Rust", {NATIVE_SPINNING: None}, missing=no_native_library),
]
