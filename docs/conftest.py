# SPDX-License-Identifier: Apache-2.0
"""Writes the files of a page and runs its commands before its examples run."""

import importlib.util
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

# A block whose first line is a comment with the name of its file.
FILE = re.compile(r"^```\w+\n((?:/\*|//|!|#) (\w+\.\w+)(?: \*/)?\n.*?)^```$", re.M | re.S)
CONSOLE = re.compile(r"^```console\n(.*?)^```$", re.M | re.S)
COMMAND = re.compile(r"^\$ (.*)\n((?:(?!\$ ).*\n)*)", re.M)
# Not installed in every environment with the tests.
PACKAGES = re.compile(
    r"^(?:(?:>>>|\.\.\.) +(?:import|from)|\$ .* -m) .*?\b(PIL|jax|onnxruntime|pyarrow|pybind11|torch)\b", re.M
)
ANYTHING = "...\n"  # as the output of a command
SLOW = {"extensions.md"}  # compiles nanobind


def run_commands(page, folder):
    text = page.read_text()
    for content, name in FILE.findall(text):
        (folder / name).write_text(content)
    for block in CONSOLE.findall(text):
        for command, output in COMMAND.findall(block):
            program = shlex.split(command)[0]
            if "/" not in program and not shutil.which(program):
                pytest.skip(f"{page.name} needs {program}")
            done = subprocess.run(command, shell=True, cwd=folder, capture_output=True, text=True)
            assert done.returncode == 0, f"{page.name}: {command}\n{done.stderr}"
            assert output in (ANYTHING, done.stdout), f"{page.name}: {command}"


def pytest_collection_modifyitems(items):
    for item in items:
        if item.path.name in SLOW:
            item.add_marker(pytest.mark.slow)


@pytest.fixture(autouse=True)
def files_of_the_page(request, tmp_path, monkeypatch):
    page = request.node.path
    for package in PACKAGES.findall(page.read_text()):
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"{page.name} needs {package}")
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent), prepend=":")
    monkeypatch.setenv("TENON_RUNTIME_DIR", str(tmp_path / "names"))  # pages use the same names as others
    monkeypatch.chdir(tmp_path)
    run_commands(page, tmp_path)
