# SPDX-License-Identifier: Apache-2.0
"""Arrays through Ray: its object store takes them by the one copy that it makes of anything, and gives them
back on its own memory, read-only."""

import pytest
from programs_of_engines import example, facts, program, run

pytest.importorskip("ray")

N = 4 << 20


@pytest.fixture(scope="module")
def found():
    return facts(run(program("ray_program.py")))


@pytest.mark.slow
def test_arguments_and_results_arrive_read_only_and_aligned(found):
    assert found["argument"] == found["by_reference"] == ["NDArray", [N], False, 0, 3, 3]
    assert found["strided"] == ["NDArray", [N // 2], False, 0, 3, 3]
    assert found["result"] == [False, 0, 7, 7]


@pytest.mark.slow
def test_our_side_copies_nothing(found):
    """Ray writes an object into its store: once, as it does with a NumPy array. To get it writes nothing."""
    if found["put"] is None:
        pytest.skip("the kernel does not count written pages")
    assert found["put"] == pytest.approx(1, abs=0.1)
    assert found["put"] == pytest.approx(found["put_numpy"], abs=0.05)
    assert found["get"] == pytest.approx(0, abs=0.05)


@pytest.mark.slow
def test_a_worker_streams_batches(found):
    assert found["stream"] == [[True, True]] * 5


@pytest.mark.slow
def test_a_shared_array_goes_as_a_handle(found):
    assert found["shared"] == [1, 2, 3]
    assert found["other_process"]


@pytest.mark.slow
def test_the_example_trains_on_batches_of_a_worker():
    assert "accuracy 1.00" in run(example("remote_ray.py"))
