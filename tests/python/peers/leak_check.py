# SPDX-License-Identifier: Apache-2.0
"""A hook and a fixture for the conftest.py of a folder whose tests must leave nothing behind."""

import foreign_dlpack
import live
import pytest

has_passed = pytest.StashKey[bool]()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    report = yield
    if report.when == "call":
        item.stash[has_passed] = report.passed
    return report


@pytest.fixture(autouse=True)
def nothing_stays_behind(request):
    """A test that passes leaves no more storages and views than it found, and no deleter ran twice."""
    before, frees = live.now(), foreign_dlpack.double_frees()
    yield
    if request.node.stash.get(has_passed, False):  # a failure keeps its frames
        for look in (live.now, live.counts):  # cycles are looked for only when they matter
            after = look()
            if all(a <= b for a, b in zip(after, before, strict=True)):
                break
        else:
            pytest.fail(f"alive before: {before}, after: {after}")
        assert foreign_dlpack.double_frees() == frees
