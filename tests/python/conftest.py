# SPDX-License-Identifier: Apache-2.0
import gc
import os
import time
import traceback

import pytest

import tenon as tn
from tenon import _core

HAS_FAILED = pytest.StashKey[bool]()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    report = yield
    if report.failed:
        item.stash[HAS_FAILED] = True
    return report


@pytest.fixture
def nothing_stays_behind(request):
    """The test leaves no storage and no view alive. Modules ask for it."""

    def is_gone():
        return all(after[name] <= before[name] for name in before)

    before = _core.statistics()
    yield
    if HAS_FAILED in request.node.stash:
        return  # its traceback refers to its arrays
    after = _core.statistics()
    deadline = time.monotonic() + 600
    while not is_gone() and time.monotonic() < deadline:  # a thread that ends lets go a moment later
        gc.collect()  # only now: it takes long where large libraries are loaded
        time.sleep(0.01)
        after = _core.statistics()
    assert is_gone(), (before, after)


@pytest.fixture
def no_op_is_left():
    """Waits for the ops of the test, which may fail. Modules ask for it, after the fixture above."""
    yield
    try:
        tn.waitall(20)
    except ExceptionGroup:
        pass


@pytest.fixture
def quick_reports():
    """Long waits of this process are reported every 0.1 s."""
    before = _core.set_report_seconds(0.1)
    yield
    _core.set_report_seconds(before)


@pytest.fixture
def in_a_process_with_one_thread():
    """Runs a function in a forked child, which has one thread; fails as the function does."""

    def run(function):
        child = os.fork()
        if child == 0:
            try:
                function()
                os._exit(0)
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(1)
        assert os.waitpid(child, 0)[1] == 0, "see the traceback of the child in the captured stderr"

    return run
