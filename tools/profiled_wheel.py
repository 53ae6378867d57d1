#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Profile-guided optimization of the wheel: builds the package with counters, runs tools/profile_workload.py
with it, and leaves the counts in build/profiled. The wheel is built there next, with the variables of
`ENVIRONMENT` and `defines("USE")`.

Needs GCC, and a Python that has the requirements of the build."""

import os
import shutil
import sys
import tempfile
from pathlib import Path

from steps import ROOT, must_run

BUILD = ROOT / "build/profiled"
# ccache does not see the counts.
ENVIRONMENT = {"SKBUILD_BUILD_DIR": os.fspath(BUILD), "CCACHE_DISABLE": "1"}


def defines(profile):
    return {"SKBUILD_CMAKE_DEFINE": f"TENON_PRECOMPILE=ON;TENON_PROFILE={profile}"}


def take_profile(python=sys.executable):
    """Writes the counts."""
    shutil.rmtree(BUILD, ignore_errors=True)
    with tempfile.TemporaryDirectory() as folder:
        site = Path(folder) / "site"
        options = ("--quiet", "--no-build-isolation", "--no-deps", "--no-index", "--target", site)
        pip = (python, "-m", "pip", "--disable-pip-version-check", "install", *options, ROOT)
        must_run("build the package with counters", *pip, **ENVIRONMENT, **defines("GENERATE"))
        workload = ROOT / "tools/profile_workload.py"
        must_run("run it for the profile", python, workload, PYTHONPATH=os.fspath(site))


if __name__ == "__main__":
    take_profile()
