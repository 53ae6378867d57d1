# SPDX-License-Identifier: Apache-2.0
"""Builds the libraries in native/, and the environment with the peers that pip installs.

That environment lies beside the one that runs the benchmark and sees all that is in there, so that the peers
come without a torch or a NumPy of their own.
"""

import subprocess
import sys
import sysconfig
from pathlib import Path

import native_build

FOLDER = native_build.folder_of("share")
LIBRARY = FOLDER / "native/share_bench.so"
TENON_LIBRARY = FOLDER / "native/share_tenon.so"
PYTHON = FOLDER / "venv/bin/python"
REQUIREMENTS = Path(__file__).resolve().parents[2] / "requirements/share.txt"
RESULTS = FOLDER / "results.json"


def build():
    native_build.build(Path(__file__).resolve().parent / "native", LIBRARY.parent)
    prepare_environment()


def prepare_environment():
    """Peers that cannot be had are missing afterwards, and their rows say so."""
    beside = sysconfig.get_path("purelib")
    stamp, wanted = FOLDER / "venv/stamp", f"{beside}\n{REQUIREMENTS.read_text()}"
    if stamp.exists() and stamp.read_text() == wanted:
        return
    native_build.run(sys.executable, "-m", "venv", "--clear", PYTHON.parents[1])
    site = subprocess.check_output(
        [PYTHON, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"], text=True
    )
    (Path(site.strip()) / "beside.pth").write_text(f"{beside}\n")
    command = [PYTHON, "-m", "pip", "--disable-pip-version-check", "--no-input", "install", "--quiet"]
    print("share: installing the peers", file=sys.stderr, flush=True)
    if subprocess.run([*command, "-r", REQUIREMENTS]).returncode == 0:
        stamp.write_text(wanted)
    else:
        print("share: peers are missing: their rows say which", file=sys.stderr, flush=True)
