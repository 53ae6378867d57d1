# SPDX-License-Identifier: Apache-2.0
import gc

import pytest

from tenon import _core


@pytest.fixture
def nothing_stays_behind():
    """The test leaves no storage and no view alive. Modules ask for it."""
    before = _core.statistics()
    yield
    after = _core.statistics()
    if after != before:
        gc.collect()  # only now: it takes long where large libraries are loaded
        after = _core.statistics()
    assert all(after[name] <= before[name] for name in before), (before, after)
