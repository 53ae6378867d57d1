# SPDX-License-Identifier: Apache-2.0
"""What the tests of installed packages share: running commands, and compiling."""

import os
import subprocess
import sys
import zipfile
from importlib import metadata
from pathlib import Path

import pytest

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


def repack(distribution, folder):
    """Makes the wheel of an installed distribution again, without the scripts that pip has generated."""
    tag = distribution.read_text("WHEEL").split("Tag: ")[1].split()[0]
    name = distribution.name.replace("-", "_")
    files = [file for file in distribution.files if file.parts[0] != ".." and file.suffix != ".pyc"]
    records = [file for file in files if file.name == "RECORD"]
    with zipfile.ZipFile(folder / f"{name}-{distribution.version}-{tag}.whl", "w") as archive:
        for file in files:
            if file not in records:
                archive.write(distribution.locate_file(file), str(file))
        archive.writestr(str(records[0]), "".join(f"{name},,\n" for name in archive.namelist()))


def index_of(names, folder):
    """The folder, with wheels of these distributions for pip's --find-links, and of no others."""
    try:
        for name in names:
            repack(metadata.distribution(name), folder)
    except metadata.PackageNotFoundError as error:
        pytest.skip(f"{error.name} is not installed here, so there is no wheel of it")
    return folder
