# SPDX-License-Identifier: Apache-2.0
"""The loops of the cases, over a pair of classes of each contender.

A sender is made with (side, nbytes) and has

    send(item)     hands a copy of an object over
    close()

or, of a contender that writes in place, instead of send()

    take()         a new array of an item, to be written
    give()         hands it over; the caller has dropped it

and a receiver, made with (side, nbytes),

    receive()      the next item, asleep until it comes
    done()         the consumer has dropped the item
    close()
"""

import time

from share.cases import Contender

from .cases import CASES, DEPTH, DICT, NUMBER, source

now = time.perf_counter_ns
PAUSE_SECONDS = 100e-6


class Party:
    def __init__(self, make, side, case):
        self.channel, self.case, self.link, self.count = make(side, CASES[case].nbytes), case, side.link, 0
        self.source = source(case)

    def turn(self, n):
        return [self.exchange() for _ in range(self.warm(n))]

    def warm(self, n):
        """The first turn, which is not counted, uses all memory of the contender."""
        return n if self.count else max(n, 2 * DEPTH)

    def close(self):
        self.channel.close()


class Producer(Party):
    def item(self):
        """What is handed over, copied by the contender."""
        self.count += 1
        if self.case == NUMBER:
            return self.count
        self.source[0] = self.count % 256
        return {"x": self.source, "k": self.count} if self.case == DICT else self.source

    def exchange(self):
        self.link.recv_bytes()
        time.sleep(PAUSE_SECONDS)
        item, channel = self.item(), self.channel
        before = now()
        channel.send(item)
        return before


class FillingProducer(Producer):
    def exchange(self):
        self.link.recv_bytes()
        time.sleep(PAUSE_SECONDS)
        item, channel = self.item(), self.channel
        before = now()
        array = channel.take()
        asked = now() - before
        array[...] = item
        del array
        before = now() - asked
        channel.give()
        return before


class Consumer(Party):
    def exchange(self):
        self.count += 1
        self.link.send_bytes(b".")
        item = self.channel.receive()
        value = self.value(item)
        after = now()
        del item
        self.check(value)
        self.channel.done()
        return after

    def value(self, item):
        return item if self.case == NUMBER else (item["x"] if self.case == DICT else item)[0]

    def check(self, value):
        if value != (self.count if self.case == NUMBER else self.count % 256):
            raise AssertionError(f"item {self.count} arrived holding {value}")


class StreamProducer(Producer):
    """Each turn is one stream."""

    def turn(self, n):
        n = self.warm(n)
        self.link.recv_bytes()
        before = now()
        for _ in range(n):
            self.pass_on()
        self.link.recv_bytes()
        return [(now() - before) / n]

    def pass_on(self):
        self.channel.send(self.item())


class FillingStreamProducer(StreamProducer):
    def pass_on(self):
        self.channel.take()[...] = self.item()
        self.channel.give()


class StreamConsumer(Consumer):
    def turn(self, n):
        n = self.warm(n)
        self.link.send_bytes(b".")
        for _ in range(n):
            self.count += 1
            item = self.channel.receive()
            value = self.value(item)
            del item
            self.check(value)
            self.channel.done()
        self.link.send_bytes(b".")


def contenders(sender, receiver, cases, shared=None, in_place=False):
    """By case, for a pair of classes."""

    def one(case):
        if CASES[case].is_stream:
            produce, consume = FillingStreamProducer if in_place else StreamProducer, StreamConsumer
        else:
            produce, consume = FillingProducer if in_place else Producer, Consumer
        return Contender(
            lambda side: produce(sender, side, case), lambda side: consume(receiver, side, case), shared
        )

    return {case: one(case) for case in cases}
