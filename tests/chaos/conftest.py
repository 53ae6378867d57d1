# SPDX-License-Identifier: Apache-2.0
"""Each test has its own seed, which it prints. TENON_CHAOS_SEED=n repeats a run."""

import os
import random
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from processes import Nursery


def pytest_collection_modifyitems(items):
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.slow)
            if os.environ.get("TENON_SOAK") and item.get_closest_marker("timeout") is None:
                item.add_marker(pytest.mark.timeout(7200))


@pytest.fixture(scope="session")
def nursery(tmp_path_factory):
    with Nursery(tmp_path_factory.mktemp("runtime")) as nursery:
        yield nursery


@pytest.fixture
def child(nursery):
    """A function that starts processes, which end with the test."""
    mine = []

    def make(*files):
        mine.append(nursery.child(*files))
        return mine[-1]

    yield make
    for process in mine:
        process.end()
        nursery.children.remove(process)


@pytest.fixture
def chance():
    """Random numbers from the seed."""
    seed = int(os.environ.get("TENON_CHAOS_SEED", random.SystemRandom().randrange(1 << 32)))
    print(f"TENON_CHAOS_SEED={seed}")
    return random.Random(seed)
