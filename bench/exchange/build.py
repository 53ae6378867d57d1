# SPDX-License-Identifier: Apache-2.0
"""Builds the extensions in native/ for this interpreter and puts them on sys.path."""

import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import nanobind

import tenon

HERE = Path(__file__).resolve().parent
FOLDER = HERE.parent.parent / "build" / f"bench-exchange-{sysconfig.get_config_var('SOABI')}"


def run(*command):
    """One command; its output is shown when it fails."""
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    result = subprocess.run([str(part) for part in command], capture_output=True, text=True, env=environment)
    if result.returncode != 0:
        sys.exit(f"{' '.join(map(str, command))}\n{result.stdout}{result.stderr}")


def build(folder=FOLDER):
    """Configures and builds; does little when all is current."""
    run(
        "cmake",
        *("-S", HERE / "native"),
        *("-B", folder),
        *("-G", "Ninja"),
        "-DCMAKE_BUILD_TYPE=Release",
        f"-DPython_EXECUTABLE={sys.executable}",
        f"-Dnanobind_DIR={nanobind.cmake_dir()}",
        f"-Dtenon_DIR={Path(tenon.__file__).parent / 'lib/cmake/tenon'}",
    )
    run("cmake", "--build", folder)


def use(folder=FOLDER):
    sys.path.insert(0, str(folder))
