# SPDX-License-Identifier: Apache-2.0
"""The example of a front end whose workers are killed or stopped: no wrong answer, and no memory is left."""

import pathlib
import re
import subprocess
import sys

import pytest

EXAMPLE = pathlib.Path(__file__).parents[2] / "examples/serving.py"


@pytest.mark.slow
@pytest.mark.parametrize("chaos", [["--chaos"], ["--stop", "--patience", "5"]])
@pytest.mark.parametrize("module", ["zmq", ""])
def test_requests_are_answered_or_fail_while_workers_are_killed_or_stopped(module, chaos):
    if module:
        pytest.importorskip(module)
    program = [EXAMPLE] if module else ["-c", WITHOUT_ZEROMQ, EXAMPLE]
    result = subprocess.run(
        [sys.executable, *program, *chaos, "--requests", "120"], capture_output=True, text=True, check=True
    )
    numbers = re.findall(r"\d+", result.stdout)
    n, killed, answered, failed, wrong, _, left = map(int, numbers)
    assert killed > 0 and answered > 0
    assert (n, wrong, left) == (answered + failed, 0, 0), result.stdout


WITHOUT_ZEROMQ = """
import runpy, sys
sys.modules["zmq"] = None
sys.argv.pop(0)
runpy.run_path(sys.argv[0], run_name="__main__")
"""
