# SPDX-License-Identifier: Apache-2.0
"""The laws of test_pool.py, for processes that are each in user, IPC and network namespaces of their own:
they get the memory of each other's pools at sockets only."""

import shutil
import tempfile

import pytest
import test_pool
from test_pool import (  # noqa: F401
    test_aborted_requests_leave_nothing,
    test_after_a_death_nobody_is_refused_and_nothing_is_left,
    test_messages_are_what_the_model_says,
)


@pytest.fixture(autouse=True)
def contained(monkeypatch):
    folder = tempfile.mkdtemp(prefix="tenon-test-")  # its path is short enough for sockets

    def start(nursery, code="None", **values):
        child = nursery.child()
        child.ask("import pool_actors as actor")
        if refusal := child.ask("actor.contain(folder)", folder=folder):
            pytest.skip(f"no user namespace can be made here: {refusal}")
        child.ask(code, **values)
        return child

    monkeypatch.setattr(test_pool, "start", start)
    yield
    shutil.rmtree(folder)
