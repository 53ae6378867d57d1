# SPDX-License-Identifier: Apache-2.0
"""Calls beside n things, and the same of the peers.

A contender is a generator function of n: it makes n things, yields the function to time with the number of
calls in a turn, and removes the things when it goes on.
"""

import gc
import multiprocessing
import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np

import tenon as tn


def fork_and_exit():
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)


def fork_beside(make):
    def contender(n):
        arrays = [make(8) for _ in range(n)]
        for array in arrays:
            array[0] = 1
        yield fork_and_exit, 1
        del arrays

    return contender


def wait_all(n):
    """The thread holds a lease, so that a long wait looks for a cycle of waits."""
    arrays = [tn.zeros(8) for _ in range(n)]
    lease = tn.zeros(8).lease("r")

    def body():
        tn.push(time.sleep, 0.02)
        tn.wait_all()

    yield body, 1
    lease.release()
    del arrays


def views(n):
    a = tn.zeros(8)
    kept = [a.numpy() for _ in range(n)]
    yield a.numpy, 200
    del kept


def views_of_numpy(n):
    x = np.zeros(8)
    kept = [x.view() for _ in range(n)]
    yield x.view, 200
    del kept


def rows_of_views(n):
    a = tn.zeros(8)
    kept = [a.numpy() for _ in range(n)]

    def body():
        gc.enable()  # which visits the rows
        a.leases()

    yield body, max(1, 2_000 // n)
    del kept


def leases(n):
    a = tn.zeros(8)
    held = [a.lease("r") for _ in range(n)]
    yield (lambda: a.lease("r").release()), 200
    for lease in held:
        lease.release()


def element_beside_leases(n):
    a = tn.zeros(8)
    held = [a.lease("r") for _ in range(n)]
    yield (lambda: a[0]), 200
    for lease in held:
        lease.release()


def leased_rows(n):
    """A write lease of an array, and a view of each row."""
    a = tn.zeros((n, 8))
    return a.lease("w"), [row.numpy() for row in a]


def ended_lease(n):
    lease, kept = leased_rows(n)
    yield lease.release, 1
    del kept


def dropped_views(n):
    lease, kept = leased_rows(n)
    lease.release()
    yield kept.clear, 1


def dropped_views_of_numpy(n):
    kept = list(np.zeros((n, 8)))
    yield kept.clear, 1


def queued_ops(n):
    tn.set_engine_limits(ops=0)
    a = tn.zeros(8)
    lease = a.lease("r")
    for _ in range(n):
        tn.push(tn.fill, tn.overwrite(a), 1)
    yield (lambda: tn.push(tn.fill, tn.overwrite(a), 1)), 10
    lease.release()
    tn.wait_all()


def queued_tasks(n):
    """The standard library's pool, which knows no arrays."""
    event = threading.Event()
    with ThreadPoolExecutor(1) as pool:
        pool.submit(event.wait)
        for _ in range(n):
            pool.submit(int)
        yield (lambda: pool.submit(int)), 10
        event.set()


def nothing(x):
    pass


def released_ops(use):
    """A lease ends for which all ops wait."""

    def contender(n):
        tn.set_engine_limits(ops=0)
        a = tn.zeros(8)
        lease = a.lease("w")
        for _ in range(n):
            tn.push(nothing, use(a))

        def body():
            lease.release()
            tn.wait_all()

        yield body, 1

    return contender


def released_tasks(n):
    event = threading.Event()
    x = object()
    pool = ThreadPoolExecutor(2)
    for _ in range(2):
        pool.submit(event.wait)
    for _ in range(n):
        pool.submit(nothing, x)

    def body():
        event.set()
        pool.shutdown()

    yield body, 1


def queued_rows(n):
    tn.set_engine_limits(ops=0)
    a = tn.zeros((n, 8))
    lease = a.lease("r")
    rows = list(a)
    for row in rows:
        tn.push(tn.fill, tn.overwrite(row), 1)
    middle = rows[n // 2]
    yield (lambda: tn.push(tn.fill, tn.overwrite(middle), 1)), 10
    lease.release()
    tn.wait_all()


def imported_rows(n):
    x = np.zeros((n, 8))
    kept = [tn.from_numpy(row) for row in x[1:]]
    yield (lambda: tn.from_numpy(x[0])), 200
    del kept


def imported_rows_of_numpy(n):
    x = np.zeros((n, 8))
    kept = [np.from_dlpack(row) for row in x[1:]]
    yield (lambda: np.from_dlpack(x[0])), 200
    del kept


def channel(n):
    """One process at both ends."""
    with tn.Channel({"x": ("f4", (8,))}, slots=n) as ends:

        def body():
            with ends.loan() as loan:
                loan.send()
            ends.recv().release()

        yield body, 50


def hold_open(array, ready, done):
    array[0]
    ready.release()
    done.wait()


def processes(n):
    """n other processes have used the array and are idle."""
    a = tn.zeros(8, shared=True)
    context = multiprocessing.get_context("fork")
    ready, done = context.Semaphore(0), context.Event()
    others = [context.Process(target=hold_open, args=(a, ready, done)) for _ in range(n)]
    for other in others:
        other.start()
    for _ in others:
        ready.acquire()

    def body():
        with a.write():
            pass

    yield body, 50
    done.set()
    for other in others:
        other.join()
