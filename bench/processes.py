# SPDX-License-Identifier: Apache-2.0
"""Measurements in fresh processes, because the addresses of code and objects change short times by some
percent from one process to the next."""

import json
import os
import subprocess
import sys
from pathlib import Path


def run_module(module, *arguments, python=sys.executable, hides_errors=False):
    """python -m module, with bench/ on the path; returns what it prints, read as JSON.

    hides_errors: stderr is shown only if it fails."""
    path = [str(Path(__file__).resolve().parent), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path)}
    command = [str(python), "-m", module, *map(str, arguments)]
    errors = subprocess.PIPE if hides_errors else None
    result = subprocess.run(command, stdout=subprocess.PIPE, stderr=errors, text=True, env=environment)
    if result.returncode != 0:
        sys.exit(f"{result.stderr or ''}{' '.join(command)} ended with {result.returncode}")
    return json.loads(result.stdout)
