# SPDX-License-Identifier: Apache-2.0
"""For every test of shared arrays: it leaves no process and no file."""

import contextlib
import os

import pytest
from other_process import SECONDS, Other, files_of_tenon

import tenon as tn


@pytest.fixture(autouse=True)
def no_file_is_left():
    before = files_of_tenon()
    yield
    assert files_of_tenon() <= before


@pytest.fixture(autouse=True)
def waits_are_patient():
    """On a loaded machine another process may hold an array for seconds."""
    before = tn.set_lock_timeout(SECONDS)
    yield
    tn.set_lock_timeout(before)


@pytest.fixture(autouse=True)
def no_earlier_failures():
    """Clears failures of other tests' ops, which waitall() would raise."""
    with contextlib.suppress(tn.OpError, ExceptionGroup):
        tn.waitall()


@pytest.fixture
def other():
    with Other() as process:
        yield process


@pytest.fixture
def another():
    with Other() as process:
        yield process


@pytest.fixture
def name(request):
    """Of this test in this process."""
    return f"test-{os.getpid()}-{abs(hash(request.node.name))}"
