# SPDX-License-Identifier: Apache-2.0
"""Runs programs that use an engine, each in processes of its own with a time limit."""

import json
import os
import pathlib
import signal
import subprocess
import sys

import pytest

HERE = pathlib.Path(__file__).parent
EXAMPLES = HERE.parents[2] / "examples"
SECONDS = 1500

LOOPBACK = {
    # Open MPI: two processes of one machine, also for root in a container, and on fewer cores.
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "OMPI_MCA_rmaps_base_oversubscribe": "1",
    "OMPI_MCA_hwloc_base_binding_policy": "none",
    "OMPI_MCA_btl": "self,vader",
    "OMPI_MCA_btl_vader_backing_directory": "/tmp",
    "OMPI_MCA_plm": "isolated",
    # Ray
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_AUTH_MODE": "disabled",
}


def run(command, seconds=SECONDS):
    """What the program writes to its standard output. Ends everything that it has started."""
    process = subprocess.Popen(
        [str(part) for part in command],
        env={**os.environ, **LOOPBACK},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        output, errors = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        output, errors = process.communicate()
        pytest.fail(f"not over after {seconds} s: {' '.join(map(str, command))}\n{output}\n{errors}")
    assert process.returncode == 0, f"exit {process.returncode}\n{output}\n{errors}"
    return output


def facts(output):
    """The program's lines of JSON as one dict."""
    found = {}
    for line in output.splitlines():
        if line.startswith("{"):
            found.update(json.loads(line))
    return found


def program(name):
    return [sys.executable, "-W", "ignore", HERE / name]


def example(name):
    return [sys.executable, "-W", "ignore", EXAMPLES / name]
