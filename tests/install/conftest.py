# SPDX-License-Identifier: Apache-2.0
"""A build of the library as a part of another project, and a prefix into which it is installed."""

import fcntl
import shutil

import pytest
from installed import HERE, ROOT, run


@pytest.fixture(scope="session")
def fetched():
    """The build of tests/install/fetch, with the install rules of tenon. Kept between runs."""
    if shutil.which("cmake") is None or shutil.which("ninja") is None:
        pytest.skip("no CMake or no Ninja")
    build = ROOT / "build/fetch"
    build.mkdir(parents=True, exist_ok=True)
    with open(build / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # pytest-xdist runs tests of several processes
        options = [
            "-DCMAKE_BUILD_TYPE=Debug",
            "-DCMAKE_CXX_FLAGS_DEBUG=-O0",
            "-DCMAKE_INSTALL_LIBDIR=lib",
            "-DTENON_INSTALL=ON",
            "-DTENON_PRECOMPILE=ON",
        ]
        run("cmake", "-S", HERE / "fetch", "-B", build, "-G", "Ninja", *options)
        run("cmake", "--build", build)
    return build


@pytest.fixture(scope="session")
def prefix(fetched, tmp_path_factory):
    """A prefix into which tenon is installed, as from a distribution's package."""
    folder = tmp_path_factory.mktemp("prefix")
    run("cmake", "--install", fetched, "--prefix", folder)
    return folder
