# SPDX-License-Identifier: Apache-2.0
"""Consumers whose conversions fail."""

import pytest

import tenon as tn

SCHEMA = tn.schema(data=("f4", (8, 500)), label=("i8", (8,)))


def fill(batch):
    batch.data[...] = batch.label[...] = batch.index


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
