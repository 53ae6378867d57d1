# SPDX-License-Identifier: Apache-2.0
"""An environment with those peers of a workload that pip can install.

It also finds the packages of the environment that runs the benchmark, so that the peers need no torch or
NumPy of their own."""

import subprocess
import sys
import sysconfig
from pathlib import Path

import native_build

REQUIREMENTS = Path(__file__).resolve().parents[1] / "requirements"


def python_of(workload):
    """The environment's interpreter, which prepare() makes."""
    return native_build.folder_of(workload) / "venv/bin/python"


def prepare(workload):
    """Installs requirements/WORKLOAD.txt. Peers that cannot be installed are missing afterwards."""
    python = python_of(workload)
    requirements = REQUIREMENTS / f"{workload}.txt"
    beside = sysconfig.get_path("purelib")
    stamp, wanted = python.parents[1] / "stamp", f"{beside}\n{requirements.read_text()}"
    if stamp.exists() and stamp.read_text() == wanted:
        return
    native_build.run(sys.executable, "-m", "venv", "--clear", python.parents[1])
    site = subprocess.check_output(
        [python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"], text=True
    )
    (Path(site.strip()) / "beside.pth").write_text(f"{beside}\n")
    command = [python, "-m", "pip", "--disable-pip-version-check", "--no-input", "install", "--quiet"]
    print(f"{workload}: installing the peers", file=sys.stderr, flush=True)
    if subprocess.run([*command, "-r", requirements]).returncode == 0:
        stamp.write_text(wanted)
    else:
        print(f"{workload}: peers are missing: their rows say which", file=sys.stderr, flush=True)
