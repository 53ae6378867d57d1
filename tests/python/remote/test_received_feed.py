# SPDX-License-Identifier: Apache-2.0
"""Feeds whose generators receive: what comes over the network lands in the slot that the consumer reads."""

import gc
import shutil
import socket
import threading

import numpy as np
import pytest
from programs_of_engines import example, facts, program, run

import tenon as tn
from tenon.demo._copy_meter import CopyMeter, why_unavailable

N = 8 << 20  # elements of a batch of 32 MiB
SCHEMA = tn.schema(data=("f4", (8, N // 8)))


@pytest.fixture
def sender():
    """Answers who asks for a batch with its elements: all of them the index."""
    listener = socket.create_server(("127.0.0.1", 0))

    def answer(link):
        data = np.empty((8, N // 8), "f4")
        with link, link.makefile("rb") as asked:
            while number := asked.read(8):
                data[...] = int.from_bytes(number, "little")
                link.sendall(data)

    def accept():
        while True:
            try:
                link, _ = listener.accept()
            except OSError:
                return
            threading.Thread(target=answer, args=(link,), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    yield listener.getsockname()[1]
    listener.shutdown(socket.SHUT_RDWR)
    listener.close()


@tn.worker(SCHEMA)
def received(batches, port, most=None):
    with socket.create_connection(("127.0.0.1", port)) as link:
        for batch in batches:
            if batch.index == most:
                link.shutdown(socket.SHUT_RDWR)
            link.sendall(batch.index.to_bytes(8, "little"))
            receive_into(link, batch.data)


def receive_into(link, array):
    rest = memoryview(array).cast("B")
    while rest:
        n = link.recv_into(rest)
        if n == 0:
            raise ConnectionError("the sender has closed the connection")
        rest = rest[n:]


@pytest.mark.slow
@pytest.mark.parametrize("processes", [False, "fork"])
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_batches_are_received_into_the_slots_by_several_workers(sender, processes):
    with tn.Feed(received(sender), batches=9, workers=3, slots=5, processes=processes) as feed:
        now = feed.stats()
        for index, batch in enumerate(feed):
            assert (batch.data.numpy() == index).all()
            assert (batch.data.data_ptr - now.memory) % now.slot_nbytes == 0
        assert index == 8


@pytest.mark.skipif(why_unavailable() is not None, reason="the kernel does not count written pages")
def test_nothing_is_written_but_what_is_received():
    """The sender is another process: its writes are not counted."""
    import multiprocessing

    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_send, args=(theirs,), daemon=True)
    process.start()
    gc.disable()  # a collection writes to every object that the tests of this process have made
    with tn.Feed(received(ours.recv()), batches=1, slots=2) as feed, CopyMeter() as meter:
        written = []
        for _ in range(3):
            meter.start()
            for batch in feed:
                nbytes = batch.data.nbytes
            written.append(meter.stop() / nbytes)
            del batch
    gc.enable()
    process.terminate()
    process.join()
    assert min(written) == pytest.approx(1, abs=0.05)  # threads of other libraries write, too


def _send(pipe):
    with socket.create_server(("127.0.0.1", 0)) as listener:
        pipe.send(listener.getsockname()[1])
        link, _ = listener.accept()
        data = np.ones((8, N // 8), "f4")
        with link, link.makefile("rb") as asked:
            while asked.read(8):
                link.sendall(data)


def test_a_connection_that_ends_is_told_at_its_batch(sender):
    with tn.Feed(received(sender, most=2), batches=5) as feed:
        found = []
        with pytest.raises(tn.OpError, match="batch 2") as caught:
            for batch in feed:
                found.append(batch.index)
        assert found == [0, 1] and caught.value.index == 2


@pytest.mark.slow
def test_the_example_trains_over_sockets():
    pytest.importorskip("torch")
    assert "accuracy 1.00" in run(example("remote_feed.py"))


mpi = pytest.mark.skipif(
    shutil.which("mpirun") is None, reason="mpirun is not installed (Debian: openmpi-bin)"
)


@pytest.mark.slow
@mpi
def test_messages_of_mpi_land_in_the_slots():
    pytest.importorskip("mpi4py")
    found = facts(run(["mpirun", "-n", "2", *program("mpi_feed_program.py")]))
    assert found["values"] == [[i, i] for i in range(6)]
    assert found["in_slots"]
    if not found["measures"]:
        pytest.skip("the kernel does not count written pages")
    assert found["written"] == pytest.approx(1, abs=0.05)


@pytest.mark.slow
@mpi
def test_the_example_trains_over_mpi():
    pytest.importorskip("mpi4py")
    pytest.importorskip("torch")
    assert "accuracy 1.00" in run(["mpirun", "-n", "2", *example("remote_feed.py")])
