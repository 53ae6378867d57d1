# SPDX-License-Identifier: Apache-2.0
"""Four threads that push ops, enter blocks, make calls, take views and wait, all at random and on the same
six arrays.

Oracle: whoever writes an array, in its own turn, counts it up by one and writes the number into every
element. So whoever looks, in a turn of its own, finds one number everywhere, and at the end the number is
that of the writes that succeeded. Each thread looks at ordinary views only while no writable one can be
there: the views of all threads are one party, in which Tenon keeps no order.

Nothing but LeaseConflict, DeadlockError and TimeoutError may be raised, and each thread must come to its
end; a watchdog, which ends the process with the stacks of all threads, is the only limit of time. A failure
prints the seed; it makes the same choices again, though not the same interleaving.

TENON_SOAK=1 runs 20 times as long.
"""

import faulthandler
import itertools
import os
import random
import threading
import time
import traceback

import numpy as np
import pytest

import tenon as tn

SECONDS = 200 if os.environ.get("TENON_SOAK") == "1" else 10
WATCHDOG_SECONDS = SECONDS + 40
ARRAYS = 6
THREADS = 4
ELEMENTS = 256
EXPECTED = (tn.LeaseConflict, tn.DeadlockError, TimeoutError)

pytestmark = pytest.mark.usefixtures("nothing_stays_behind")


def count_up(v):
    number = v[0] + 1
    for part in range(0, ELEMENTS, 64):  # in parts, so that a torn array can be seen
        v[part : part + 64] = number
    return int(number)


def check(v, what):
    first = v[0]
    assert (v == first).all(), f"torn: {np.unique(v).tolist()} seen by {what}"
    return int(first)


class Driver:
    """One thread's program. Its own members are its thread's alone."""

    def __init__(self, seed, number, arrays):
        self.random = random.Random(seed * THREADS + number)
        self.arrays = arrays
        self.writes = [0] * len(arrays)
        self.pending = []  # (op, number of an array that it counts up, or None)
        self.views = []
        self.refusals = dict.fromkeys(EXPECTED, 0)
        self.steps = 0
        self.kinds = [
            *6 * [self.push_write, self.push_read],
            *4 * [self.block_write, self.block_read, self.call_read],
            *3 * [self.wait, self.look_once_more],
            *2 * [self.nested, self.call_write, self.look, self.lease],
        ]
        self.error = None

    def run(self, end):
        try:
            while time.monotonic() < end:
                self.step()
            self.views.clear()
            for op, i in self.pending:
                self.settle(op, i)
        except BaseException:
            self.error = traceback.format_exc()  # the exception itself would keep views alive
            print(self.error, flush=True)
        finally:
            self.views.clear()
            self.pending.clear()

    def step(self):
        self.steps += 1
        kind = self.random.choice(self.kinds)
        if kind in (self.block_write, self.block_read, self.nested, self.call_read, self.look):
            self.look_once_more()
        try:
            kind()
        except EXPECTED as error:
            self.refusals[type(error)] += 1

    def any(self):
        i = self.random.randrange(len(self.arrays))
        return i, self.arrays[i]

    def settle(self, op, i):
        op.wait()
        if i is not None:
            self.writes[i] += 1

    # A step that raises has written nothing that it has not counted.

    def push_write(self):
        i, a = self.any()
        policy = self.random.choice(("raise", "raise", "wait"))
        op = tn.push(count_up, tn.write(a), on_conflict=policy)
        self.pending.append((op, i))

    def push_read(self):
        _, a = self.any()
        _, b = self.any()

        def body(*views):
            for v in views:
                check(v, "an op")

        self.pending.append((tn.push(body, a) if a is b else tn.push(body, a, b), None))

    def block_write(self):
        i, a = self.any()
        with a.write() as v:
            count_up(v)
            self.writes[i] += 1

    def block_read(self):
        _, a = self.any()
        with a.read() as v:
            first = check(v, "a block")
            if self.random.random() < 0.3:
                time.sleep(0.0005)
            assert check(v, "a block") == first

    def nested(self):
        i, a = self.any()
        k, b = self.any()
        with a.write() as v:
            count_up(v)
            self.writes[i] += 1
            try:
                with b.write() as w:
                    count_up(w)
                    self.writes[k] += 1
            except EXPECTED as error:
                self.refusals[type(error)] += 1

    def lease(self):
        i, a = self.any()
        with a.lease("w", timeout=self.random.choice((0, 0.001, 0.01))), a.write() as v:
            count_up(v)
            self.writes[i] += 1

    def call_write(self):
        i, a = self.any()
        with a.lease("w", timeout=0.01):
            a[...] = a[0].item() + 1  # under the lease: nobody is between the two calls
            self.writes[i] += 1

    def call_read(self):
        _, a = self.any()
        check(np.array(a.tolist()), "a call")

    def look(self):
        _, a = self.any()
        self.views.append(np.asarray(a.readonly()))

    def look_once_more(self):
        if self.views:
            check(self.views.pop(), "a view")

    def wait(self):
        if self.random.random() < 0.05:
            return tn.waitall(self.random.choice((0, 0.01)))
        if not self.pending:
            return None
        op, i = self.pending[0]
        op.wait(self.random.choice((0, 0.001, 0.05)))
        self.pending.pop(0)
        if i is not None:
            self.writes[i] += 1
        return None


@pytest.mark.slow
def test_what_threads_write_in_their_turns_is_whole_and_nothing_is_lost():
    seed = random.randrange(2**32)
    print("seed", seed)
    arrays = [tn.zeros(ELEMENTS, "i8") for _ in range(ARRAYS)]
    faulthandler.dump_traceback_later(WATCHDOG_SECONDS, exit=True)
    try:
        with tn.set_engine("pool", workers=2):
            drivers = [Driver(seed, number, arrays) for number in range(THREADS)]
            end = time.monotonic() + SECONDS
            threads = [threading.Thread(target=driver.run, args=(end,)) for driver in drivers]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            for driver in drivers:
                assert driver.error is None, driver.error
            tn.waitall()
    finally:
        faulthandler.cancel_dump_traceback_later()
    written = [sum(counts) for counts in zip(*(driver.writes for driver in drivers))]
    assert [check(np.asarray(a), "the end") for a in arrays] == written
    print([driver.steps for driver in drivers], written)
    refusals = itertools.chain.from_iterable(driver.refusals.items() for driver in drivers)
    print([(kind.__name__, n) for kind, n in refusals])
    assert all(driver.steps > 0 for driver in drivers)
    assert all(a.leases() == [] for a in arrays)
