# SPDX-License-Identifier: Apache-2.0
"""The loops of the Python cases, over a pair of channel classes of each peer.

A sender is made with (side, nbytes) and has

    array          the array that is there, float32 over NumPy's interface
    begin()        sees to it that `array` may be written again; most need not
    send()         hands `array` over
    send_fresh(x)  hands over new memory that holds a copy of x, and returns what keeps it
    drop(kept)     gives that memory back
    wait()         returns when the consumer has answered
    close()

and a receiver, made with (side, nbytes),

    receive()      the next array, asleep until it comes
    poll()         the same, without sleep
    done()         the consumer has dropped the array
    answer()
    close()

Each is used by one thread.
"""

import time

import numpy as np

from .cases import ASLEEP, BIG_BYTES, FRESH, SMALL_BYTES, SPINNING, TOUCHED, WARM, Contender

now = time.perf_counter_ns
# Between the message of the consumer that it waits and the next exchange: the consumer sleeps by then.
PAUSE_SECONDS = 100e-6


class Sender:
    def begin(self):
        pass

    def drop(self, kept):
        pass

    def close(self):
        pass


class Receiver:
    def done(self):
        pass

    def close(self):
        pass


class Party:
    def __init__(self, make, side, nbytes):
        self.channel = make(side, nbytes)
        self.link = side.link
        self.count = 0

    def turn(self, n):
        return [self.exchange() for _ in range(n)]

    def close(self):
        self.channel.close()


class Producer(Party):
    """Hands over one way."""

    def pause(self):
        time.sleep(PAUSE_SECONDS)

    def exchange(self):
        self.link.recv_bytes()
        self.pause()
        self.count += 1
        channel = self.channel
        before = now()
        channel.begin()
        channel.array[0] = self.count
        channel.send()
        return before


class AwakeProducer(Producer):
    """Does not sleep, so that its code and data are in the caches."""

    def pause(self):
        end = now() + round(PAUSE_SECONDS * 1e9)
        while now() < end:
            pass


class Consumer(Party):
    is_polling = False

    def exchange(self):
        self.count += 1
        self.link.send_bytes(b".")
        array = self.channel.poll() if self.is_polling else self.channel.receive()
        value = array[0]
        after = now()
        del array
        self.check(value)
        self.channel.done()
        return after

    def check(self, value):
        if value != self.count:
            raise AssertionError(f"array {self.count} arrived holding {value}")


class PollingConsumer(Consumer):
    is_polling = True


class RoundTrips(Party):
    def exchange(self):
        self.count += 1
        channel = self.channel
        before = now()
        channel.begin()
        channel.array[0] = self.count
        channel.send()
        channel.wait()
        return now() - before


class Answers(Consumer):
    def turn(self, n):
        for _ in range(n):
            self.count += 1
            array = self.channel.receive()
            self.look(array)
            del array
            self.channel.done()
            self.channel.answer()

    def look(self, array):
        self.check(array[0])


class TouchingRoundTrips(Party):
    def exchange(self):
        self.count += 1
        channel = self.channel
        before = now()
        channel.begin()
        channel.array.fill(self.count)
        channel.send()
        channel.wait()
        return now() - before


class Sums(Answers):
    def look(self, array):
        self.check(array.sum() / array.size)


class FreshRoundTrips(Party):
    def __init__(self, make, side, nbytes):
        super().__init__(make, side, nbytes)
        self.source = np.ones(nbytes // 4, "f4")

    def exchange(self):
        self.count += 1
        self.source[0] = self.count
        before = now()
        kept = self.channel.send_fresh(self.source)
        self.channel.wait()
        self.channel.drop(kept)
        del kept
        return now() - before


LOOPS = {
    SPINNING: (AwakeProducer, PollingConsumer, SMALL_BYTES),
    ASLEEP: (Producer, Consumer, SMALL_BYTES),
    WARM: (RoundTrips, Answers, BIG_BYTES),
    TOUCHED: (TouchingRoundTrips, Sums, BIG_BYTES),
    FRESH: (FreshRoundTrips, Answers, BIG_BYTES),
}


def contenders(sender, receiver, shared, cases):
    """Contenders by case, for a pair of channel classes."""

    def one(case):
        produce, consume, nbytes = LOOPS[case]
        return Contender(
            lambda side: produce(sender, side, nbytes),
            lambda side: consume(receiver, side, nbytes),
            shared,
        )

    return {case: one(case) for case in cases}
