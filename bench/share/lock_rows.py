# SPDX-License-Identifier: Apache-2.0
"""Locks of CPython around an array in shared memory, and what they do when their holder is killed."""

import ctypes
import fcntl
import os
import signal
import time
import timeit
from multiprocessing.shared_memory import SharedMemory
from tempfile import TemporaryFile

import numpy as np

from .cases import LOCK, RECOVERY, Contender, Peer
from .loops import now

NBYTES = 1 << 20
CALLS = 100
GIVE_UP_SECONDS = 1.0
# The consumer is asleep in the lock by then.
BEFORE_DEATH_SECONDS = 200e-6


class Calls:
    """A statement, in batches; needs `statement`, `names()` and `close()`."""

    def __init__(self, side):
        self.side = side
        self.timer = timeit.Timer(self.statement, timer=now, globals=self.names(side))

    def turn(self, n):
        return [self.timer.timeit(CALLS) / CALLS for _ in range(n)]

    def close(self):
        pass


class ArrayCalls(Calls):
    """The pattern that is passed around for one buffer of several types."""

    statement = "with buffer:\n    view = frombuffer(buffer.get_obj(), dtype); value = view[0]; del view"

    def names(self, side):
        return {"buffer": side.shared, "frombuffer": np.frombuffer, "dtype": np.dtype("f4")}


class SharedMemoryCalls(Calls):
    statement = "with lock:\n    view = frombuffer(memory.buf, dtype); value = view[0]; del view"

    def names(self, side):
        self.memory = SharedMemory(f"{side.prefix}-array", create=True, size=NBYTES)
        return self.own_names(side) | {
            "memory": self.memory,
            "frombuffer": np.frombuffer,
            "dtype": np.dtype("f4"),
        }

    def own_names(self, side):
        return {"lock": side.shared}

    def close(self):
        self.memory.close()
        self.memory.unlink()


class FileLockCalls(SharedMemoryCalls):
    statement = (
        "flock(file, exclusive)\n"
        "try:\n    view = frombuffer(memory.buf, dtype); value = view[0]; del view\n"
        "finally:\n    flock(file, unlock)"
    )

    def own_names(self, side):
        self.file = TemporaryFile()  # noqa: SIM115
        return {
            "flock": fcntl.flock,
            "file": self.file.fileno(),
            "exclusive": fcntl.LOCK_EX,
            "unlock": fcntl.LOCK_UN,
        }


class Killer:
    """Starts holders and kills them; acquire() and after() are the lock's."""

    def __init__(self, side):
        self.side, self.link = side, side.link
        self.libc = ctypes.CDLL(None)

    def turn(self, n):
        return [self.kill_a_holder() for _ in range(n)]

    def kill_a_holder(self):
        is_held, hold = os.pipe()
        holder = os.fork()
        if holder == 0:
            self.libc.prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
            self.acquire()
            os.write(hold, b".")
            while True:
                signal.pause()
        os.read(is_held, 1)
        os.close(is_held)
        os.close(hold)
        self.link.send_bytes(b".")
        self.link.recv_bytes()
        time.sleep(BEFORE_DEATH_SECONDS)
        before = now()
        os.kill(holder, signal.SIGKILL)
        self.link.recv_bytes()
        os.waitpid(holder, 0)
        self.after()
        return before

    def after(self):
        pass

    def close(self):
        pass


class Waiter:
    """Waits for the lock: wait() says whether it got it."""

    def __init__(self, side):
        self.side, self.link = side, side.link

    def turn(self, n):
        return [self.wait_once() for _ in range(n)]

    def wait_once(self):
        self.link.recv_bytes()
        self.link.send_bytes(b".")
        is_mine = self.wait()
        after = now()
        self.link.send_bytes(b".")
        return after if is_mine else None

    def close(self):
        pass


class LockKiller(Killer):
    def acquire(self):
        self.side.shared.acquire()

    def after(self):
        self.side.shared.release()


class LockWaiter(Waiter):
    def wait(self):
        is_mine = self.side.shared.acquire(timeout=GIVE_UP_SECONDS)
        if is_mine:
            self.side.shared.release()
        return is_mine


class FileLockKiller(Killer):
    """flock tells nobody of the death."""

    def __init__(self, side):
        super().__init__(side)
        self.path = os.path.join(side.scratch, side.prefix)
        open(self.path, "w").close()
        self.link.send_bytes(b".")

    def acquire(self):
        self.file = open(self.path)  # noqa: SIM115
        fcntl.flock(self.file, fcntl.LOCK_EX)


class FileLockWaiter(Waiter):
    def __init__(self, side):
        super().__init__(side)
        self.link.recv_bytes()
        self.file = open(os.path.join(side.scratch, side.prefix))  # noqa: SIM115

    def wait(self):
        fcntl.flock(self.file, fcntl.LOCK_EX)
        fcntl.flock(self.file, fcntl.LOCK_UN)
        return True

    def close(self):
        self.file.close()


def array(context):
    return context.Array(ctypes.c_int8, NBYTES)


def lock(context):
    return context.Lock()


def calls(producer, shared=None):
    return {LOCK: Contender(producer, shared=shared)}


PEERS = [
    Peer("mp.Array, np.frombuffer", calls(ArrayCalls, array)),
    Peer("mp.Lock, SharedMemory", calls(SharedMemoryCalls, lock)),
    Peer("flock, SharedMemory", calls(FileLockCalls)),
    Peer("mp.Lock", {RECOVERY: Contender(LockKiller, LockWaiter, lock)}),
    Peer("flock (tells nobody)", {RECOVERY: Contender(FileLockKiller, FileLockWaiter)}),
]
