# SPDX-License-Identifier: Apache-2.0
"""The installed wheel as a C and C++ development package: find_package from CMake and from another build."""

import ctypes
import os
import re
import subprocess
import sys
import zipfile
from importlib import metadata
from pathlib import Path

import pytest
from installed import HERE, config, index_of, run

# The build requirements of tests/install/package, and what these require.
BUILD_PACKAGES = (
    *("tenon-arrays", "nanobind-backend", "numpy"),
    *("scikit-build-core", "packaging", "pathspec", "cmake", "ninja"),
)


@pytest.fixture(scope="module")
def cmake_dir():
    return config("--cmakedir")


def configure(cmake_dir, build, *options):
    """The command that configures the client."""
    return ["cmake", "-S", HERE / "client", "-B", build, "-G", "Ninja", f"-Dtenon_DIR={cmake_dir}", *options]


@pytest.mark.slow
def test_a_project_finds_the_wheel_and_runs(cmake_dir, tmp_path):
    assert cmake_dir in run(*configure(cmake_dir, tmp_path))
    run("cmake", "--build", tmp_path)
    assert "100% tests passed" in run("ctest", "--test-dir", tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("other", ["0.2", "1.0"])
def test_another_minor_version_is_refused(cmake_dir, tmp_path, other):
    command = configure(cmake_dir, tmp_path, f"-DWANTED={other}")
    result = subprocess.run(command, capture_output=True, text=True)
    assert result.returncode != 0 and "not compatible with the version" in result.stderr


def build_package(source, index, folder):
    """What pip prints when it builds a wheel with build isolation, and only the index has packages."""
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith(("PIP_", "PYTHON"))
    }
    environment |= {"PIP_CONFIG_FILE": os.devnull, "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(index)}
    command = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--wheel-dir", folder, source]
    return subprocess.run(command, capture_output=True, text=True, env=environment)


@pytest.fixture(scope="module")
def index(tmp_path_factory):
    """A directory with the wheels that the build of tests/install/package needs, and no others."""
    return index_of(BUILD_PACKAGES, tmp_path_factory.mktemp("index"))


@pytest.mark.slow
def test_another_package_that_requires_tenon_builds_in_isolation(cmake_dir, index, tmp_path):
    done = build_package(HERE / "package", index, tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    [wheel] = tmp_path.glob("tenon_client-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path)
    library = tmp_path / "tenon_client/libclient.so"
    tenon = ctypes.CDLL(os.fspath(Path(cmake_dir).parent.parent / "libtenon.so.0"))
    client = ctypes.CDLL(os.fspath(library))
    client.client_version.restype = tenon.tenon_version.restype = ctypes.c_char_p
    assert client.client_version() == tenon.tenon_version()


# These were static before glibc 2.33, so that programs for older ones do not need them.
ONCE_STATIC = {f"{name}{bits}" for name in ("stat", "fstat", "lstat", "fstatat") for bits in ("", "64")}
# libstdc++ and src/base/timed_mutex.cc use these where glibc has them, and others where not.
OPTIONAL = {"__libc_single_threaded", "pthread_cond_clockwait", "pthread_mutex_clocklock"}


def symbols(library, which):
    """Pairs (name, version) of a shared library: "defined" or "undefined" ones."""
    text = run("nm", "--dynamic", f"--{which}-only", "--format=posix", library)
    names = (line.split()[0] for line in text.splitlines())
    return [re.split("@+", name) for name in names if "@GLIBC_2" in name or "@@GLIBC_2" in name]


def test_the_sources_use_no_function_that_is_newer_than_glibc_2_28(cmake_dir):
    with open("/proc/self/maps") as maps:
        [libc] = {line.split()[-1] for line in maps if line.rstrip().endswith("/libc.so.6")} or [None]
    if libc is None or tuple(map(int, os.confstr("CS_GNU_LIBC_VERSION").split()[1].split("."))) < (2, 34):
        pytest.skip("needs a glibc that has all of its functions in one library, with all of their versions")
    oldest = {}
    for name, version in symbols(libc, "defined"):
        number = tuple(map(int, version.removeprefix("GLIBC_").split(".")))
        oldest[name] = min(number, oldest.get(name, number))
    package = Path(cmake_dir).parents[2]
    for library in (package / "lib/libtenon.so.0", package / "_core.abi3.so"):
        used = {name for name, _ in symbols(library, "undefined")} - ONCE_STATIC - OPTIONAL
        assert len(used) > 20
        assert {name: oldest[name] for name in used if name in oldest and oldest[name] > (2, 28)} == {}


def test_the_page_on_an_index_has_no_link_that_is_relative():
    text = metadata.distribution("tenon-arrays").read_text("METADATA").partition("\n\n")[2]
    assert "# Tenon" in text
    assert re.findall(r"\]\((?!https?://)[^)]*\)", text) == []
