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

from .cases import LATE, LOCK, RECOVERY, Contender, Peer
from .loops import now

NBYTES = 1 << 20
CALLS = 100
GIVE_UP_SECONDS = 1.0
# The consumer sleeps in the lock by then.
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

    statement = "with buffer:\n    view = frombuffer(buffer.get_obj(), dtype); view[0] = 1; del view"

    def names(self, side):
        return {"buffer": side.shared, "frombuffer": np.frombuffer, "dtype": np.dtype("f4")}


class SharedMemoryCalls(Calls):
    statement = "with lock:\n    view = frombuffer(memory.buf, dtype); view[0] = 1; del view"

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
        "try:\n    view = frombuffer(memory.buf, dtype); view[0] = 1; del view\n"
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
    """Starts holders and kills them; acquire() and after() are the lock's.

    start() may be replaced where the holder is no forked child: it returns the number of a process that holds
    the lock. is_late: the other process asks for the lock when the holder has ended already.
    """

    is_late = False

    def __init__(self, side):
        self.side, self.link = side, side.link
        self.libc = ctypes.CDLL(None)

    def turn(self, n):
        exchange = self.kill_before if self.is_late else self.kill_a_holder
        return [exchange() for _ in range(n)]

    def start(self):
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
        return holder

    def kill_a_holder(self):
        holder = self.start()
        self.link.send_bytes(b".")
        self.link.recv_bytes()
        time.sleep(BEFORE_DEATH_SECONDS)
        before = now()
        os.kill(holder, signal.SIGKILL)
        self.link.recv_bytes()
        os.waitpid(holder, 0)
        self.after()
        return before

    def kill_before(self):
        holder = self.start()
        os.kill(holder, signal.SIGKILL)
        os.waitpid(holder, 0)
        self.link.send_bytes(b".")
        self.link.recv_bytes()
        self.after()
        return 0

    def after(self):
        pass

    def close(self):
        pass


class Waiter:
    """Waits for the lock: wait() returns whether it got it."""

    is_late = False

    def __init__(self, side):
        self.side, self.link = side, side.link

    def turn(self, n):
        exchange = self.ask_late if self.is_late else self.wait_once
        return [exchange() for _ in range(n)]

    def wait_once(self):
        self.link.recv_bytes()
        self.link.send_bytes(b".")
        is_mine = self.wait()
        after = now()
        self.link.send_bytes(b".")
        return after if is_mine else None

    def ask_late(self):
        self.link.recv_bytes()
        before = now()
        is_mine = self.wait()
        after = now()
        self.link.send_bytes(b".")
        return after - before if is_mine else None

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
    """flock reports no death."""

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


def recovery(killer, waiter, shared=None):
    """Contenders of both cases."""

    def late(party):
        return type(f"Late{party.__name__}", (party,), {"is_late": True})

    return {
        RECOVERY: Contender(killer, waiter, shared),
        LATE: Contender(late(killer), late(waiter), shared),
    }


PEERS = [
    Peer("mp.Array, np.frombuffer", calls(ArrayCalls, array)),
    Peer("mp.Lock, SharedMemory", calls(SharedMemoryCalls, lock)),
    Peer("flock, SharedMemory", calls(FileLockCalls)),
    Peer("mp.Lock", recovery(LockKiller, LockWaiter, lock)),
    Peer("flock (tells nobody)", recovery(FileLockKiller, FileLockWaiter)),
]
