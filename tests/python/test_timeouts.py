# SPDX-License-Identifier: Apache-2.0
"""A turn that is asked for with a timeout: the error names the time and the holder, and nothing is left in
the queue. Without a conflict a timeout changes nothing."""

import asyncio
import itertools
import math
import os
import re
import threading

import numpy as np
import pytest

import tenon as tn

pytestmark = pytest.mark.usefixtures("nothing_stays_behind")


def in_a_block(enter):
    def take(array, timeout):
        with enter(array, timeout) as values:
            return values.shape

    return take


def in_a_task(enter):
    def take(array, timeout):
        async def main():
            async with enter(array, timeout) as values:
                return values.shape

        return asyncio.run(main())

    return take


def in_a_block_of_a_task(enter):
    def take(array, timeout):
        async def main():
            with enter(array, timeout) as values:
                return values.shape

        return asyncio.run(main())

    return take


def leased(array, timeout):
    array.lease("w", timeout).release()
    return array.shape


def repair(values, error):
    raise AssertionError("no process has died")


FORMS = {
    "read": ("reading", in_a_block(lambda a, t: a.read(timeout=t))),
    "write": ("writing", in_a_block(lambda a, t: a.write(timeout=t))),
    "overwrite": ("writing", in_a_block(lambda a, t: a.write(True, timeout=t))),
    "with a repair": ("reading", in_a_block(lambda a, t: a.read(repair, timeout=t))),
    "async read": ("reading", in_a_task(lambda a, t: a.read(timeout=t))),
    "async write": ("writing", in_a_task(lambda a, t: a.write(timeout=t))),
    "read in a task": ("reading", in_a_block_of_a_task(lambda a, t: a.read(timeout=t))),
    "write in a task": ("writing", in_a_block_of_a_task(lambda a, t: a.write(timeout=t))),
    "lease": ("writing", leased),
}
ARRAYS = {
    "private": lambda: tn.zeros((4, 3)),
    "shared": lambda: tn.zeros((4, 3), shared=True),
    "named": lambda: tn.zeros((4, 3), shared=f"timeouts-{os.getpid()}-{next(numbers)}"),
    "imported": lambda: tn.from_numpy(np.zeros((4, 3), "f4")),
}
numbers = itertools.count()
each_form = pytest.mark.parametrize(("access", "take"), FORMS.values(), ids=FORMS)
each_array = pytest.mark.parametrize("make", ARRAYS.values(), ids=ARRAYS)


@each_array
@each_form
def test_the_error_names_the_time_and_the_holder(make, access, take):
    a = make()
    holder = a.lease("w").detach() if not a.shared else None
    if holder is None:  # under a detached lease of shared memory all threads of the process may act
        held, done = threading.Event(), threading.Event()

        def hold():
            with a.write():
                held.set()
                done.wait(600)

        thread = threading.Thread(target=hold)
        thread.start()
        held.wait(600)
    try:
        for array in (a, a[1:], a[2]):
            with pytest.raises(TimeoutError) as caught:
                take(array, 0.01)
            text = str(caught.value)
            assert f"lease for {access} the array of shape {array.shape} and dtype float32" in text
            assert re.search(r"in the time given \(0\.01 s\): .*lease.*test_timeouts\.py:\d+", text), text
            assert len(a.leases()) == 1, "the request has left the queue"
    finally:
        if holder is None:
            done.set()
            thread.join()
        else:
            holder.release()
    assert take(a, 0.01) == (4, 3)
    assert take(a, None) == (4, 3)


@each_array
@each_form
def test_without_a_conflict_a_turn_needs_no_time(make, access, take):
    a = make()
    for timeout in (0, 1e-9, 0.5, 10**20, math.inf, None):
        assert take(a, timeout) == (4, 3)


def test_a_timeout_is_checked_when_the_block_is_made():
    a = tn.zeros(3)
    wrongs = [
        ("1", TypeError),
        (True, TypeError),
        (np.True_, TypeError),
        (-1, ValueError),
        (math.nan, ValueError),
    ]
    for wrong, error in wrongs:
        for make in (a.read, a.write):
            with pytest.raises(error, match="timeout is"):
                make(timeout=wrong)
    with pytest.raises(TypeError, match="positional"):
        a.write(True, "raise", 1)


def test_a_call_under_a_block_with_a_timeout_waits_for_nothing():
    a, b = tn.zeros(3), tn.ones(3)
    other = a.lease("r").detach()
    with pytest.raises(TimeoutError, match=r"\(0\.01 s\)"), a.write(timeout=0.01):
        a[...] = b
    other.release()
    with a.write(timeout=0.01) as v:
        a[...] = b
        a[0] = 5
        assert v.tolist() == a.snapshot().tolist() == [5, 1, 1]


def test_a_task_that_is_cancelled_during_a_wait_with_a_timeout_is_cancelled():
    a = tn.zeros(3)
    holder = a.lease("w").detach()

    async def write():
        async with a.write(timeout=600):
            pass

    async def main():
        task = asyncio.create_task(write())
        while len(a.leases()) < 2 and not task.done():
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        with pytest.raises(TimeoutError) as caught:  # of the caller, who asked for it
            async with asyncio.timeout(0.01):
                await write()
        assert "in the time given" not in str(caught.value)
        assert len(a.leases()) == 1

    asyncio.run(main())
    holder.release()
