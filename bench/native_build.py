# SPDX-License-Identifier: Apache-2.0
"""Builds the native part of a workload, in native/, with CMake and Ninja."""

import os
import subprocess
import sys
import sysconfig
from importlib.util import find_spec
from pathlib import Path


def folder_of(workload):
    """Where the workload's native part is built, for this interpreter."""
    name = f"bench-{workload}-{sysconfig.get_config_var('SOABI')}"
    return Path(__file__).resolve().parent.parent / "build" / name


def run(*command):
    """One command; its output is shown when it fails."""
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    result = subprocess.run([str(part) for part in command], capture_output=True, text=True, env=environment)
    if result.returncode != 0:
        sys.exit(f"{' '.join(map(str, command))}\n{result.stdout}{result.stderr}")


def build(source, folder, **variables):
    """Configures and builds against the installed package; does little when all is current."""
    # Not imported, because native code is measured without the package.
    package = Path(find_spec("tenon").origin).parent
    variables = {"CMAKE_BUILD_TYPE": "Release", "tenon_DIR": package / "lib/cmake/tenon", **variables}
    definitions = [f"-D{name}={value}" for name, value in variables.items()]
    run("cmake", "-S", source, "-B", folder, "-G", "Ninja", *definitions)
    run("cmake", "--build", folder)
