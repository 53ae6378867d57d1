# SPDX-License-Identifier: Apache-2.0
"""What the tests of installed packages share: running commands, and compiling."""

import os
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parents[1]


def run(*command, **options):
    """The output of a command; a failure shows what it printed."""
    result = subprocess.run(command, capture_output=True, text=True, **options)
    assert result.returncode == 0, f"{command} gives {result.returncode}:\n{result.stdout}\n{result.stderr}"
    return result.stdout


def config(option):
    """What `tenon config` prints for the installed wheel."""
    return run(sys.executable, "-m", "tenon", "config", option).strip()


def compile_c(source, output, *flags):
    """Compiles one C file as C99 without extensions, with all warnings as errors."""
    strict = ["-std=c99", "-pedantic", "-Wall", "-Wextra", "-Werror"]
    run(os.environ.get("CC", "cc"), *strict, source, "-o", output, *flags)
    return output
