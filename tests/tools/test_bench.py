# SPDX-License-Identifier: Apache-2.0
"""The benchmarks build and run against the package and this tree. Their figures mean nothing here.

The workloads share and feed install their peers from the network: they are not run.
"""

import subprocess
import sys
from pathlib import Path

import pytest

RUN = Path(__file__).parents[2] / "bench/run.py"


@pytest.mark.slow
@pytest.mark.parametrize("workload", ["exchange", "engine", "kernels", "growth"])
def test_a_workload_prints_its_tables(workload):
    command = [sys.executable, RUN, "--quick", "--rounds", "2", workload]
    result = subprocess.run(command, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    assert result.stdout.count("\n|") > 5, result.stdout
