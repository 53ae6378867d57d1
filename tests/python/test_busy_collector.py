# SPDX-License-Identifier: Apache-2.0
"""The tests of leases, ops, views and moves once more while Python collects at every allocation: what the
collector visits, and destroys, while Tenon's code is under way, must be whole.

They run in a process of their own, with this file as a plugin of pytest.
"""

import gc
import os
import pathlib
import re
import subprocess
import sys

import pytest

HERE = pathlib.Path(__file__).parent
FILES = ("test_leases.py", "test_engine.py", "test_views.py", "test_ownership.py", "test_drop_views.py")
# They measure times, run in processes of their own, or import libraries in which each collection takes long.
LEFT_OUT = (
    "within_10_ms or ctrl_c or torch or tensor or jax or autograd or interrupt or changes_in_size"
    " or run_on_unharmed"
)


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_call(item):
    if "TENON_TEST_BUSY_COLLECTOR" not in os.environ:
        yield
        return
    before = gc.get_threshold()
    gc.collect()
    gc.freeze()
    gc.set_threshold(1)
    try:
        yield
    finally:
        gc.set_threshold(*before)
        gc.unfreeze()


def pytest_terminal_summary(terminalreporter):
    if "TENON_TEST_BUSY_COLLECTOR" in os.environ:
        terminalreporter.write_line(f"collections: {gc.get_stats()[0]['collections']}")


@pytest.mark.slow
def test_the_contract_holds_while_the_collector_runs_at_every_allocation():
    files = [str(HERE / name) for name in FILES if (HERE / name).exists()]
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", pathlib.Path(__file__).stem]
    process = subprocess.run(
        [*command, "-p", "no:cacheprovider", "-o", "timeout=1800", "-k", f"not ({LEFT_OUT})", *files],
        env={
            **os.environ,
            "TENON_TEST_BUSY_COLLECTOR": "1",
            "PYTHONPATH": os.pathsep.join(filter(None, [str(HERE), os.environ.get("PYTHONPATH")])),
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert process.returncode == 0, process.stdout
    [collections] = re.findall(r"^collections: (\d+)$", process.stdout, re.MULTILINE)
    assert int(collections) > 10_000, process.stdout
