# SPDX-License-Identifier: Apache-2.0
"""Profilers keep frames of functions that have returned. Those of the library have no view of messages."""

import sys

import numpy as np
import pytest

import tenon as tn


def values():
    yield np.arange(50_000)
    yield np.arange(60_000).reshape(200, 300).T[::2]
    yield [np.ones(40_000, "f4"), {"k": object, "small": np.ones(3)}]
    yield tn.ones(50_000)
    torch = pytest.importorskip("torch")
    yield torch.ones(50_000)
    yield torch.ones(400, 300)[::2, 1:]


@pytest.fixture
def kept():
    """The frames of all functions of Python that have returned since."""
    frames = []
    sys.setprofile(lambda frame, event, _: frames.append(frame) if event == "return" else None)
    yield frames
    sys.setprofile(None)
    frames.clear()


def test_messages_of_a_pool_are_sent(kept):
    pool = tn.TensorPool("16 MiB", inline=0, linger=0)
    for value in values():
        message = pool.dumps({"x": value, "rest": object})
        assert len(message) < 5000
        tn.loads(message)
    assert len(kept) > 100


@pytest.mark.parametrize("mode", ["queue", "broadcast"])
def test_items_of_a_channel_are_sent(kept, mode):
    channel = tn.Channel(nbytes="16 MiB", mode=mode, when_full="drop_oldest", slots=8)
    for value in values():
        channel.send({"x": value, "rest": object})
        with channel.loan() as item:
            item.send([item.empty(5000), value])
    if mode == "queue":
        assert channel.stats()["in_use"] == 0 and channel.stats()["sent"] == 12
