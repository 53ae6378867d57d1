# SPDX-License-Identifier: Apache-2.0
"""The benchmark of device memory runs on the fake CUDA driver (see test_device), and shows none of its times
as a measurement."""

import os
import re
import subprocess
import sys

import pytest
from test_device import ROOT, fake_driver

pytestmark = pytest.mark.slow  # a run of the benchmark each

PAGE = ROOT / "docs/benchmarks.md"


def run(*arguments, driver=None):
    environment = {**os.environ, "TENON_CUDA_DRIVER": str(driver or fake_driver())}
    command = [sys.executable, ROOT / "bench/run.py", *arguments, "device"]
    return subprocess.run(command, capture_output=True, text=True, timeout=600, env=environment, check=False)


def test_every_row_of_the_fake_driver_is_without_figures():
    done = run("--quick")
    assert done.returncode == 0, done.stderr
    assert "Fake GPU 0 (the fake driver" in done.stdout and "The slots are registered." in done.stdout
    rows = [line for line in done.stdout.splitlines() if line.startswith("|")][2:]
    assert rows[0].startswith("| host to device, from slots")
    for row in rows:
        cells = [cell.strip() for cell in row.strip("|").split("|")]
        assert cells[-1] == "not measured" and not any(re.search(r"\d", cell) for cell in cells[:-2]), row


def test_the_feed_copies_nothing_on_the_host():
    """Figures that do not depend on time are right on the fake driver, too."""
    program = (
        "from device import measure\n"
        "from tenon.demo._copy_meter import why_unavailable\n"
        "driver = measure.Driver()\n"
        "if why_unavailable() is None:\n"
        "    print(measure.host_copies(driver))\n"
    )
    environment = {
        **os.environ,
        "TENON_CUDA_DRIVER": str(fake_driver()),
        "PYTHONPATH": os.pathsep.join([str(ROOT / "bench"), os.environ.get("PYTHONPATH", "")]),
    }
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        timeout=600,
        env=environment,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    if not done.stdout:
        pytest.skip("pages that are written are not counted here")
    assert abs(float(done.stdout)) < 0.5


@pytest.mark.parametrize("driver", [None, "/nowhere/libcuda.so.1"])
def test_no_table_is_written_without_a_gpu(driver):
    before = PAGE.read_bytes()
    done = run(driver=driver)
    assert done.returncode == 1 and PAGE.read_bytes() == before
    assert done.stderr.count("\n") == 1
    assert ("Fake GPU 0" if driver is None else driver) in done.stderr
