# SPDX-License-Identifier: Apache-2.0
"""For every test of shared arrays: no process and no file of it is left."""

import os
from pathlib import Path

import pytest
from other_process import Other


def pytest_collection_modifyitems(items):
    """Nothing here may take longer than a minute, but what says so itself."""
    for item in items:
        if Path(__file__).parent in item.path.parents and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(60))


def names_of_files():
    """But for the directory of names of this user, and for libraries that tests beside this one compile."""
    files = {f"{folder}/{name}" for folder in ("/dev/shm", "/tmp") for name in os.listdir(folder)}
    others = (f"/tenon-{os.geteuid()}", "/tenon-native-", "/tenon-generators-")
    return {file for file in files if not any(other in file for other in others)}


@pytest.fixture(autouse=True)
def no_file_is_left():
    before = names_of_files()
    yield
    left = {name for name in names_of_files() - before if "/tenon" in name}
    assert not left, left


@pytest.fixture
def other():
    with Other() as process:
        yield process


@pytest.fixture
def another():
    with Other() as process:
        yield process
