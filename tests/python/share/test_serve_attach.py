# SPDX-License-Identifier: Apache-2.0
"""Consumers of a feed whose server lies, or is about to begin."""

import threading

import pytest
from other_process import SECONDS

import tenon as tn
from tenon._data import attached, serving

SCHEMA = tn.schema(data=("f4", (8, 500)), label=("i8", (8,)))


def fill(batch):
    batch.data[...] = batch.label[...] = batch.index


@pytest.mark.parametrize("mode", ["queue", "broadcast"])
@pytest.mark.parametrize(
    ("position", "value"),
    [
        (9, lambda at: 1 << 44),
        (9, lambda at: -(1 << 20)),
        (9, lambda at: at + 3),
        (10, lambda _: 1 << 40),
        (10, lambda _: -8),
        (11, lambda _: 1 << 20),
        (3, lambda _: 1 << 40),
        (3, lambda _: -5),
        (8, lambda _: 1 << 40),
        (8, lambda _: -1),
    ],
    ids=map(str, range(10)),
)
def test_numbers_of_a_process_that_lies_are_refused(name, mode, position, value):
    """Before an array is made over memory that is not of the slots."""

    class Lying:
        def __init__(self, loan):
            self.loan = loan

        def __getattr__(self, attribute):
            return getattr(self.loan, attribute)

        def send(self):
            self.loan.head[position] = value(int(self.loan.head[position]))
            self.loan.send()

    with tn.Feed(fill, SCHEMA, slots=2, workers=1, batches=5, shared=name) as feed:
        feed.serve(mode, epochs=0, consumers=0)
        send = feed._served.send
        feed._served.send = lambda loan, batch, sequence: send(Lying(loan), batch, sequence)
        with (
            feed.serve(mode, background=True),
            tn.Feed.attach(name) as consumer,
            pytest.raises(ValueError, match=r"does not lie there|is damaged"),
        ):
            next(iter(consumer))


def test_a_feed_that_is_being_made_is_waited_for(name, monkeypatch):
    """Its name is taken before its head is there."""
    begun, go_on = threading.Event(), threading.Event()

    def make_head(*arguments, **options):
        begun.set()
        assert go_on.wait(SECONDS)
        return tn.zeros(*arguments, **options)

    monkeypatch.setattr(serving, "zeros", make_head)
    with tn.Feed(fill, SCHEMA, batches=3, shared=name) as feed:
        server = threading.Thread(target=feed.serve, kwargs={"background": True})
        server.start()
        begun.wait(SECONDS)
        monkeypatch.setattr(attached, "_MAKING_SECONDS", 0.1)
        with pytest.raises(FileNotFoundError, match="no feed is served under the name"):
            tn.Feed.attach(name)
        monkeypatch.setattr(attached, "_MAKING_SECONDS", SECONDS)
        threading.Timer(0.1, go_on.set).start()
        with tn.Feed.attach(name) as consumer:
            assert consumer.batches == 3
        server.join()


@pytest.mark.parametrize("mode", ["queue", "broadcast"])
def test_a_timeout_of_a_conversion_loses_no_batch(name, mode):
    """The caller cannot tell it from that of a wait, after which it goes on."""
    late = [1, 3, 3]

    def convert(batch):
        if batch.index in late:
            late.remove(batch.index)
            raise TimeoutError("of the conversion")
        return batch.index

    found = []
    with (
        tn.Feed(fill, SCHEMA, slots=3, batches=5, shared=name) as feed,
        feed.serve(mode, background=True),
        tn.Feed.attach(name) as consumer,
    ):
        batches = consumer._iterate(convert)
        while len(found) < 8:
            try:
                found.append(next(batches))
            except TimeoutError as error:
                found.append(str(error))
        assert next(batches, None) is None
    of = "of the conversion"
    assert found == [0, of, 1, 2, of, of, 3, 4]
