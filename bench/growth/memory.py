# SPDX-License-Identifier: Apache-2.0
"""n things whose memory is measured, and the same of the peers.

A contender is a generator function of n: it yields before it makes n things, and again when they are made.
"""

import threading
from concurrent.futures import ThreadPoolExecutor

import tenon as tn


def arrays(make):
    def contender(n):
        kept = [make(8)] * n
        yield
        for i in range(n):
            kept[i] = make(8)
        yield

    return contender


def nothing(x):
    pass


def ops(n):
    """The program keeps no object of an op."""
    tn.set_engine_limits(ops=0)
    a = tn.zeros(8)
    lease = a.lease("r")
    tn.push(nothing, tn.overwrite(a))
    yield
    for _ in range(n):
        tn.push(nothing, tn.overwrite(a))
    yield
    lease.release()
    tn.wait_all()


def tasks(n):
    event = threading.Event()
    x = object()
    with ThreadPoolExecutor(1) as pool:
        pool.submit(event.wait)
        pool.submit(nothing, x)
        yield
        for _ in range(n):
            pool.submit(nothing, x)
        yield
        event.set()
