#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Takes the profile with which the wheel is optimized: builds the package with counters in build/profiled,
and runs tools/wheel_workload.py and tools/wheel_workload.cc with it. The counts lie in that folder. The wheel
is built there next, with the environment variables that `variables("USE")` returns.

Needs GCC, and a Python that has the requirements of the build."""

import contextlib
import os
import shutil
import sys
import tempfile

from steps import ROOT, must_run

FOLDER = ROOT / "build/profiled"


def variables(profile):
    """For a build in the folder of the counts. profile: GENERATE or USE (TENON_PROFILE of CMakeLists.txt)."""
    return {
        "SKBUILD_BUILD_DIR": os.fspath(FOLDER),
        "SKBUILD_CMAKE_DEFINE": f"TENON_PRECOMPILE=ON;TENON_PROFILE={profile}",
        "CCACHE_DISABLE": "1",  # it does not see the counts
    }


def take_profile(python=sys.executable, beside=None):
    """beside: runs beside the build, and has ended before the calls are counted."""
    shutil.rmtree(FOLDER, ignore_errors=True)
    with tempfile.TemporaryDirectory() as site:
        options = ("--quiet", "--no-build-isolation", "--no-deps", "--no-index", "--target", site)
        pip = (python, "-m", "pip", "--disable-pip-version-check", "install", *options, ROOT)
        with beside or contextlib.nullcontext():
            must_run("build the package with counters", *pip, **variables("GENERATE"))
        must_run("count the calls of Python", python, ROOT / "tools/wheel_workload.py", PYTHONPATH=site)
        include, library, program = f"{site}/tenon/include", f"{site}/tenon/lib", f"{site}/workload"
        link = ("-L", library, "-ltenon", f"-Wl,-rpath,{library}")
        compiler = (os.environ.get("CXX", "c++"), "-std=c++20", "-O2", "-I", include)
        must_run("compile the calls of C", *compiler, ROOT / "tools/wheel_workload.cc", "-o", program, *link)
        must_run("count the calls of C", program)
    for part in ("src", "python"):
        if not any((FOLDER / part).rglob("*.gcda")):
            sys.exit(f"the run has left no counts in {FOLDER / part}: is GCOV_PREFIX set?")


if __name__ == "__main__":
    take_profile()
