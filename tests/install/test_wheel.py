# SPDX-License-Identifier: Apache-2.0
"""The installed wheel as a C and C++ development package: find_package from CMake and from another build."""

import ctypes
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

HERE = Path(__file__).parent


def run(*command, **options):
    """The output of a command; a failure shows what it printed."""
    result = subprocess.run(command, capture_output=True, text=True, **options)
    assert result.returncode == 0, f"{command} gives {result.returncode}:\n{result.stdout}\n{result.stderr}"
    return result.stdout


@pytest.fixture(scope="module")
def cmake_dir():
    return run(sys.executable, "-m", "tenon", "config", "--cmakedir").strip()


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


@pytest.mark.slow
def test_another_package_builds_against_the_wheel_without_a_path(cmake_dir, tmp_path):
    pytest.importorskip("scikit_build_core")
    command = [sys.executable, "-m", "pip", "wheel", HERE / "package", "--no-build-isolation", "--no-deps"]
    run(*command, "--no-index", "--wheel-dir", tmp_path, f"-Cbuild-dir={tmp_path / 'build'}")
    [wheel] = tmp_path.glob("tenon_client-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path)
    library = tmp_path / "tenon_client/libclient.so"
    tenon = ctypes.CDLL(os.fspath(Path(cmake_dir).parent.parent / "libtenon.so"))
    client = ctypes.CDLL(os.fspath(library))
    client.client_version.restype = tenon.tenon_version.restype = ctypes.c_char_p
    assert client.client_version() == tenon.tenon_version()
