# SPDX-License-Identifier: Apache-2.0
"""Arrays through MPI: they are sent where they are, and messages land in them."""

import shutil

import pytest
from programs_of_engines import example, facts, program, run

pytest.importorskip("mpi4py")
pytestmark = [
    pytest.mark.slow,  # they start a job of MPI
    pytest.mark.skipif(
        shutil.which("mpirun") is None, reason="mpirun is not installed (Debian: openmpi-bin)"
    ),
]


@pytest.fixture(scope="module")
def found():
    return facts(run(["mpirun", "-n", "2", *program("mpi_program.py")]))


def test_messages_land_in_place(found):
    """By the buffer protocol, by DLPack alone, in a block, in a part of one, and in the slot of a channel."""
    assert found["in_place"] == [True] * 5


def test_what_cannot_be_received_in_place_is_refused(found):
    assert found["read_only"] == "BufferError"
    assert found["strided"] in ("ValueError", "BufferError")


def test_our_side_of_a_message_copies_nothing(found):
    """What the sender writes is MPI's: nothing, or a fixed amount. The receiver writes what comes."""
    if found["sent"] is None:
        pytest.skip("the kernel does not count written pages")
    assert found["sent"] < 0.3
    assert 1 <= found["received"] < 1.3


def test_pickles_travel_out_of_band(found):
    assert found["pickled"] == [True, 0, 2.0, True]
    if found["sent_pickled"] is None:
        pytest.skip("the kernel does not count written pages")
    assert found["sent_pickled"] < 0.3
    assert 1 <= found["received_pickled"] < 1.3


def test_a_shared_array_goes_as_a_handle(found):
    assert found["seen_by_sender"] == [7, 7, 7]
    assert found["sent_shared"] is None or found["sent_shared"] < 0.1


def test_the_example_trains_on_received_batches():
    assert "accuracy 1.00" in run(["mpirun", "-n", "2", *example("remote_mpi.py")])
