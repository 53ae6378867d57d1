# SPDX-License-Identifier: Apache-2.0
import sys
import time
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[2] / "examples"))  # before_mxnet


@pytest.fixture
def nothing_stays_behind():
    """MXNet has given back all memory of the test once its ops are done. Modules ask for it."""
    from mxnet_side import settle

    def is_gone(after):
        return all(after[name] <= before[name] for name in before)

    before = settle()
    yield
    deadline = time.monotonic() + 10
    while not is_gone(settle()) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert is_gone(settle()), (before, settle())
