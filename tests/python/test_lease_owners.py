# SPDX-License-Identifier: Apache-2.0
"""Who owns a lease: the thread that took it, and no thread that gets its number later."""

import contextlib
import threading
from pathlib import Path

import pytest

import tenon as tn

MOST_THREADS = 100_000


def thread_with_number(number, work):
    """Runs work in a thread of the kernel's number that another one had before."""
    done = []

    def body():
        if threading.get_native_id() == number:
            done.append(work())

    for _ in range(MOST_THREADS):
        with contextlib.suppress(OSError):  # only an administrator may choose where the kernel counts on
            Path("/proc/sys/kernel/ns_last_pid").write_text(str(number - 1))
        thread = threading.Thread(target=body)
        thread.start()
        thread.join()
        if done:
            return done[0]
    pytest.skip(f"thread number {number} has not come again in {MOST_THREADS} threads")


@pytest.mark.parametrize("shared", [False, True])
def test_a_thread_with_the_number_of_one_that_ended_does_not_own_its_leases(shared):
    a = tn.zeros(4, shared=shared)
    taken = []
    first = threading.Thread(
        target=lambda: taken.append((threading.get_native_id(), a.lease("w", timeout=600)))
    )
    first.start()
    first.join()
    number, lease = taken[0]

    def take():
        try:
            a.lease("w", timeout=0.05)
        except tn.LeaseConflict:
            return "conflict"
        except TimeoutError:
            return "timeout"
        return "taken"

    assert thread_with_number(number, take) == "timeout"
    lease.release()
    assert thread_with_number(number, take) == "taken"


def test_holders_show_the_number_of_the_kernel():
    a = tn.zeros(4)
    seen = []
    entered, ended = threading.Event(), threading.Event()

    def hold():
        with a.write():
            seen.append(threading.get_native_id())
            entered.set()
            ended.wait(600)

    thread = threading.Thread(target=hold)
    thread.start()
    entered.wait(600)
    try:
        assert str(seen[0]) in str(a.leases())
        with pytest.raises(TimeoutError, match=f"thread {seen[0]}"):
            a.lease("w", timeout=0.01)
    finally:
        ended.set()
        thread.join()
