# SPDX-License-Identifier: Apache-2.0
import time

import pytest


@pytest.fixture
def nothing_stays_behind():
    """MXNet has given back all memory of the test once its ops are done. Modules ask for it."""
    from mxnet_side import settle

    before = settle()
    yield
    deadline = time.monotonic() + 60
    while (after := settle()) != before and time.monotonic() < deadline:
        time.sleep(0.01)
    assert after == before
