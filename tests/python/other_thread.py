# SPDX-License-Identifier: Apache-2.0
"""Threads that a test steers: each runs a function, and the test waits until it has come somewhere."""

import threading
import time

SECONDS = 600


def until(is_so, what="it never came so far"):
    end = time.monotonic() + SECONDS
    while not is_so():
        assert time.monotonic() < end, what
        time.sleep(0.0005)


class Other(threading.Thread):
    """Runs a function in another thread."""

    def __init__(self, function, *arguments):
        super().__init__(daemon=True)
        self.function, self.arguments = function, arguments
        self.result = self.error = None
        self.has_ended = False
        self.start()

    def run(self):
        try:
            self.result = self.function(*self.arguments)
        except BaseException as error:
            self.error = error
        self.function = self.arguments = None  # no reference stays behind
        self.has_ended = True

    def value(self):
        self.join(SECONDS)
        assert not self.is_alive(), "it hangs"
        if self.error is not None:
            raise self.error
        return self.result


def is_awaited(array, kind=None):
    """A thread waits for the array; kind: as of a `Holder`."""
    return any(not holder.is_granted and kind in (None, holder.kind) for holder in array.leases())


def waits_for(array, function):
    """A thread that runs the function and waits for the array, or has ended without."""
    other = Other(function)
    until(lambda: other.has_ended or is_awaited(array), "it neither ends nor waits")
    return other
