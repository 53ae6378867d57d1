# SPDX-License-Identifier: Apache-2.0
"""Arrays through Dask's distributed scheduler: their elements are sent where they are, and arrive in memory
that is the array's from then on."""

import pytest
from programs_of_engines import example, facts, program, run

pytest.importorskip("distributed")

N = 4 << 20

pytestmark = pytest.mark.slow  # they start a scheduler and workers


@pytest.fixture(scope="module")
def found():
    return facts(run(program("dask_program.py")))


def test_our_side_copies_nothing(found):
    """The frames of a message are the array, and the array is the frames of a message. On the way Dask
    writes what it writes for a NumPy array."""
    assert found["sent_in_place"] and found["received_in_place"]
    if found["round_trip"] is None:
        pytest.skip("the kernel does not count written pages")
    assert found["round_trip"] == pytest.approx(0, abs=0.1)
    assert found["gathered"] == pytest.approx(found["gathered_numpy"], abs=0.25)
    assert found["gathered"] < 1.5


def test_arguments_and_results_arrive_writable_and_aligned(found):
    assert found["result"][:4] == found["argument"][:4] == ["NDArray", [N], True, 0]
    assert found["same"]


def test_results_lie_where_dask_received_them(found):
    """Arrays at odd addresses would have to be copied."""
    assert found["landed"] == [True] * 6


def test_what_goes_through_the_scheduler_arrives_too(found):
    assert found["through_scheduler"]


def test_a_shared_array_goes_as_a_handle(found):
    assert found["shared"] == [1, 2, 3]
    assert found["other_process"]


def test_the_example_trains_on_batches_of_a_worker():
    assert "accuracy 1.00" in run(example("remote_dask.py"))
