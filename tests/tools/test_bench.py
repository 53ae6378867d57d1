# SPDX-License-Identifier: Apache-2.0
"""The benchmarks build and run against the package and this tree. Their figures mean nothing here.

The workloads share, feed, messages and channels install their peers from the network: they are not run.
"""

import subprocess
import sys
from pathlib import Path

import pytest

RUN = Path(__file__).parents[2] / "bench/run.py"
OPTIONS = ("--quick", "--rounds", "2")
# The curves of times in one process, beside few things. Those of memory would have no bytes to show.
GROWTH = """
import sys
sys.path.insert(0, sys.argv.pop(1))
import run
from growth import curves, measure, workload

def measured_here(module, curve, contender, n, rounds):
    of = curves.CURVES[curve]
    if of.is_memory:
        return run_module(module, curve, contender, n, rounds)
    return measure.times(of.contenders[contender], min(n, 10), rounds)

run_module, workload.run_module = workload.run_module, measured_here
sys.exit(run.main())
"""


@pytest.mark.slow
@pytest.mark.parametrize("workload", ["exchange", "engine", "kernels", "growth"])
def test_a_workload_prints_its_tables(workload):
    program = ("-c", GROWTH, RUN.parent) if workload == "growth" else (RUN,)
    result = subprocess.run(
        [sys.executable, *program, *OPTIONS, workload], capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stderr
    assert result.stdout.count("\n|") > 5, result.stdout
