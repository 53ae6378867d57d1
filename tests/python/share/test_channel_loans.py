# SPDX-License-Identifier: Apache-2.0
"""The memory of loans of objects: when it is taken, and when a loan waits for it."""

import asyncio
import threading
import time

import numpy as np
import pytest

import tenon as tn

MIB = 1 << 20


def test_a_loan_begins_with_the_memory_that_the_last_one_had():
    channel = tn.Channel(nbytes="64 MiB", slots=64)
    for n in range(3):
        with channel.loan() as item:
            before = channel.stats()["used"]
            image = item.empty(8 * MIB, "u1")
            item.send(image)
        assert (before > 8 * MIB) == (n > 0), "its pages are not given back and taken again"
        del image
        assert channel.recv().nbytes == 8 * MIB
    with channel.loan(nbytes=100) as item:
        assert channel.stats()["used"] <= MIB
    # Without room for another one it begins with nothing, and is not counted as refused.
    kept = []
    for _ in range(7):
        channel.send(np.zeros(8 * MIB, "u1"))
        kept.append(channel.recv())
    with channel.loan(timeout=0) as item:
        item.send(b"small")
    assert channel.stats()["refused"] == 0


def full(nbytes=8 * MIB, **options):
    """A channel of 16 MiB with an item of so many bytes."""
    channel = tn.Channel(nbytes=16 * MIB, **options)
    channel.send(np.zeros(nbytes, "u1"))
    return channel


def test_the_first_array_of_a_loan_waits_for_room():
    channel = full()
    seen = []

    def receive_late():
        time.sleep(0.1)
        seen.append(channel.recv(copy=True).nbytes)

    consumer = threading.Thread(target=receive_late)
    with channel.loan() as item:
        consumer.start()
        image = item.empty(10 * MIB, "u1")
        assert seen == [8 * MIB]
        image.numpy()[...] = 3
        item.send(image)
        del image
    consumer.join()
    assert channel.recv()[-1] == 3
    assert channel.stats()["refused"] == 0


def test_a_loan_without_arrays_waits_for_what_it_sends():
    channel = full()
    with channel.loan() as item:
        threading.Timer(0.1, lambda: channel.recv(copy=True)).start()
        item.send(np.full(10 * MIB, 3, "u1"))
    assert channel.recv()[-1] == 3


def test_the_first_array_waits_as_long_as_the_loan_and_then_the_loan_is_over():
    channel = full()
    with channel.loan(timeout=0.05) as item:
        began = time.monotonic()
        with pytest.raises(TimeoutError, match="bytes"):
            item.empty(10 * MIB, "u1")
        assert time.monotonic() - began >= 0.04
        with pytest.raises(ValueError, match="sent or dropped"):
            item.empty(1, "u1")
    now = channel.stats()
    assert (now["refused"], now["in_use"], now["ready"]) == (1, 0, 1)


def test_what_cannot_wait_raises_memory_error_and_keeps_the_loan():
    channel = full()

    def fill(item):
        with pytest.raises(MemoryError):
            item.empty(10 * MIB, "u1")
        item.send(b"small")

    with channel.loan(timeout=0) as item:
        fill(item)
    with channel.loan() as item:
        image = item.empty(4 * MIB, "u1")  # it would be lost in a wait
        fill(item)
        del image
    with asyncio.run(channel.aloan()) as item:
        fill(item)
    assert channel.stats()["sent"] == 4


def test_the_oldest_items_are_dropped_for_the_first_array():
    channel = full(when_full="drop_oldest")
    with channel.loan() as item:
        item.send(item.empty(10 * MIB, "u1"))
    assert channel.stats()["dropped"] == 1 and channel.recv().nbytes == 10 * MIB


def test_a_full_channel_that_raises_does_so_for_the_first_array():
    channel = full(when_full="raise")
    with channel.loan() as item, pytest.raises(tn.LeaseConflict):
        item.empty(10 * MIB, "u1")


@pytest.mark.parametrize("nbytes", [100, MIB - 1, MIB, 10 * MIB])
def test_a_loan_of_the_bytes_of_an_array_has_room_for_it_and_for_what_is_sent_beside_it(nbytes):
    channel = tn.Channel(nbytes=10 * MIB + 16384, slots=4)
    with channel.loan(nbytes=nbytes) as item:
        before = channel.stats()["used"]
        array = item.empty(nbytes, "u1")
        item.send({"array": array, "k": 1})
        assert channel.stats()["used"] <= before
        del array
    assert channel.recv()["array"].nbytes == nbytes
    with pytest.raises(ValueError, match="largest"):
        channel.loan(nbytes=11 * MIB)
    with channel.loan(nbytes="1 MiB") as item:
        item.send(item.empty(MIB, "u1"))
    for value, kind in ((-1, ValueError), ("much", ValueError), (1.5, TypeError)):
        with pytest.raises(kind, match="nbytes"):
            channel.loan(nbytes=value)


def test_shapes_and_dtypes_of_arrays_are_those_of_other_arrays_or_are_refused():
    channel = tn.Channel(nbytes=MIB)
    with channel.loan() as item:
        assert item.empty(np.int64(3)).shape == (3,)
        assert item.empty((np.int64(3), 2), "i2").shape == (3, 2)
        assert item.empty((), "f8").shape == () and item.empty((0, 3)).shape == (0, 3)
        assert item.empty(4, "float4_e2m1fn").shape == (4,)
        for shape in (3.0, (2, 1.5)):
            with pytest.raises(TypeError):
                item.empty(shape)
        for shape, dtype, text in (
            (-1, "u1", "negative"),
            ((-1, -1), "u1", "negative"),
            ((), "float4_e2m1fn", "whole bytes"),
            (2**70, "u1", "largest"),
            (2 * MIB, "u1", "largest"),
        ):
            with pytest.raises(ValueError, match=text):
                item.empty(shape, dtype)
        item.send(1)
    assert channel.recv() == 1


def test_a_loan_that_is_dropped_ends_its_arrays_so_that_the_next_one_has_room():
    channel = tn.Channel(nbytes=10 * MIB + 65536, slots=4)
    for how in ("leave", "raise", "drop") * 2:
        try:
            with channel.loan(timeout=5) as item:
                image = item.empty(10 * MIB, "u1")
                image.numpy()[-1] = 1
                if how == "raise":
                    raise RuntimeError
                if how == "drop":
                    item.drop()
        except RuntimeError:
            pass
        assert (channel.stats()["in_use"], channel.stats()["used"]) == (0, 0)
        with pytest.raises(tn.LeaseConflict):
            image.numpy()
    with channel.loan(timeout=5) as item:
        item.send(item.empty(10 * MIB, "u1"))
    assert channel.recv().nbytes == 10 * MIB


def test_a_view_of_a_loan_that_was_dropped_keeps_its_slot():
    channel = tn.Channel(nbytes=10 * MIB + 65536, slots=4)
    with channel.loan() as item:
        view = item.empty(10 * MIB, "u1").numpy()
    assert channel.stats()["in_use"] == 1
    view[...] = 7  # the memory is of nobody else
    with channel.loan(timeout=0.05) as item, pytest.raises(TimeoutError):
        item.empty(10 * MIB, "u1")
    del view
    assert channel.stats()["in_use"] == 0
