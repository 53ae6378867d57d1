# SPDX-License-Identifier: Apache-2.0
"""Tenon: channels, leases of shared arrays, and new arrays whose pickle goes through a pipe.

Only the processes that measure the package import it.
"""

import subprocess
import sys

import numpy as np

from . import build, native
from .cases import ASLEEP, FRESH, LOCK, SPINNING, TOUCHED, WARM, Contender, Peer
from .lock_rows import NBYTES, Calls, Killer, Waiter, recovery
from .loops import Receiver, Sender, contenders
from .stock_rows import Answered, Answering

SLOTS = 4
TURNS = 3


class ChannelSender(Sender):
    """The answer comes through a channel of its own."""

    def __init__(self, side, nbytes):
        import tenon as tn

        self.items = tn.Channel({"x": ("f4", (nbytes // 4,))}, slots=SLOTS)
        self.answers = tn.Channel({"n": ("i8", ())}, slots=SLOTS)
        side.link.send((self.items, self.answers))
        side.link.recv_bytes()

    def begin(self):
        self.loan = self.items.loan()
        self.array = self.loan.x

    def send(self):
        self.array = None
        self.loan.send()

    def send_fresh(self, source):
        self.begin()
        np.copyto(self.array, source)
        self.send()

    def wait(self):
        self.answers.recv().release()


class ChannelReceiver(Receiver):
    def __init__(self, side, nbytes):
        self.items, self.answers = side.link.recv()
        side.link.send_bytes(b".")

    def receive(self):
        self.item = self.items.recv()
        return self.item.x.numpy()

    def poll(self):
        while True:
            try:
                self.item = self.items.recv(timeout=0)
            except TimeoutError:
                continue
            return self.item.x.numpy()

    def done(self):
        self.item = None

    def answer(self):
        self.answers.loan().send()


class LeaseSender(Sender):
    """Holds the array that is next and the one after it; the consumer waits for the next one."""

    def __init__(self, side, nbytes):
        import tenon as tn

        self.arrays = [tn.zeros(nbytes // 4, "f4", shared=True) for _ in range(TURNS)]
        self.leases = [None] * TURNS
        self.views = [None] * TURNS
        self.count = 0
        for i in (1, 2):
            self.hold(i)
        side.link.send(self.arrays)
        side.link.recv_bytes()

    def hold(self, i):
        self.leases[i] = self.arrays[i].lease("w")
        self.views[i] = self.arrays[i].numpy()

    def begin(self):
        self.count += 1
        self.array = self.views[self.count % TURNS]

    def send(self):
        i = self.count % TURNS
        self.array = self.views[i] = None
        self.leases[i].release()
        self.hold((self.count + 2) % TURNS)

    def close(self):
        self.array = self.views = None
        for lease in filter(None, self.leases):
            lease.release()


class LeaseReceiver(Receiver):
    def __init__(self, side, nbytes):
        self.arrays, self.count = side.link.recv(), 0
        side.link.send_bytes(b".")

    def receive(self, timeout=None):
        i = (self.count + 1) % TURNS
        self.lease = self.arrays[i].lease("r", timeout=timeout)
        self.count += 1
        return self.arrays[i].numpy()

    def poll(self):
        while True:
            try:
                return self.receive(timeout=0)
            except TimeoutError:
                continue

    def done(self):
        self.lease.release()


class NewSender(Answered):
    def __init__(self, side, nbytes):
        self.link = side.link

    def send_fresh(self, source):
        import tenon as tn

        array = tn.empty(source.size, "f4", shared=True)
        with array.write() as view:
            np.copyto(view, source)
        self.link.send(array)
        return array


class NewReceiver(Answering):
    def __init__(self, side, nbytes):
        self.link, self.receive = side.link, side.link.recv


class LeaseCalls(Calls):
    statement = "with array.write() as view:\n    view[0] = 1"

    def names(self, side):
        import tenon as tn

        return {"array": tn.zeros(NBYTES // 4, "f4", shared=True)}


def name_of(side):
    return f"{side.prefix}-lock"


class LeaseKiller(Killer):
    def __init__(self, side):
        import tenon as tn

        super().__init__(side)
        self.array = tn.zeros(NBYTES // 4, "f4", shared=name_of(side))
        self.link.send_bytes(b".")

    def acquire(self):
        self.lease = self.array.lease("w")


HOLDER = """
import ctypes, signal, sys, tenon as tn
ctypes.CDLL(None).prctl(1, signal.SIGKILL)
lease = tn.attach(sys.argv[1]).lease("w", on_owner_died="ignore")
print(flush=True)
signal.pause()
"""


class OwnHolderKiller(LeaseKiller):
    """The holder is an interpreter of its own."""

    def start(self):
        command = [sys.executable, "-c", HOLDER, name_of(self.side)]
        self.holder = subprocess.Popen(command, stdout=subprocess.PIPE)
        if not self.holder.stdout.readline():
            raise RuntimeError("the holder did not come to hold")
        return self.holder.pid

    def after(self):
        self.holder.stdout.close()
        self.holder.wait()


class LeaseWaiter(Waiter):
    def __init__(self, side):
        import tenon as tn

        super().__init__(side)
        self.link.recv_bytes()
        self.array, self.owner_died = tn.attach(name_of(side)), tn.OwnerDied

    def wait(self):
        try:
            self.array.lease("w").release()
        except self.owner_died:
            self.array.clear_error()
            self.array.lease("w").release()
            return True
        raise AssertionError("no word of the holder's death")


BIG = (WARM, TOUCHED, FRESH)
PYTHON = {
    "Tenon channel": contenders(ChannelSender, ChannelReceiver, None, (SPINNING, ASLEEP, *BIG)),
    "Tenon lease": contenders(LeaseSender, LeaseReceiver, None, (SPINNING, ASLEEP)),
    "Tenon, new array, mp.Pipe": contenders(NewSender, NewReceiver, None, (FRESH,)),
    "Tenon, with a.write()": {LOCK: Contender(LeaseCalls)},
    "Tenon lease in Python, forked holder": recovery(LeaseKiller, LeaseWaiter),
    "Tenon lease in Python, holder of its own": recovery(OwnHolderKiller, LeaseWaiter),
}
NATIVE = native.contenders(str(build.TENON_LIBRARY))
PEERS = [
    Peer(name, {**PYTHON.get(name, {}), **NATIVE.get(name, {})}, needs=("tenon",), kind="tenon")
    for name in dict.fromkeys([*PYTHON, *NATIVE])
]
