# SPDX-License-Identifier: Apache-2.0
"""The first commands of a new user, one for each step, with an empty home and the tools of the system:
install, the short demo, the programs of the README that need no PyTorch, and programs of examples/."""

import os
import shutil
import subprocess
import sys

import pytest
from installed import ROOT, index_of, run
from page_programs import check_output, needs_torch, programs

pytestmark = pytest.mark.slow

PATH = "/usr/bin:/bin"
PACKAGES = ("tenon-arrays", "nanobind-backend", "numpy")  # with what ours requires; no others
GENERATOR = """
import tenon as tn
fill = tn.c_function("./libfill.so",
                     "int fill(float *data, int64_t *label, size_t n, uint64_t seed)", threadsafe=True)
schema = tn.schema(data=("f4", (64, 4)), label=("i8", (64,)))
with tn.Feed(fill, schema, workers=2, batches=100) as feed:
    print(sum(int(batch.label.numpy().sum()) for batch in feed))
"""


class Room:
    def __init__(self, folder, index):
        self.home, self.work = folder / "home", folder / "work"
        self.home.mkdir()
        self.work.mkdir()
        self.environment = {
            "HOME": os.fspath(self.home),
            "PATH": PATH,
            "PIP_CONFIG_FILE": os.devnull,
            "PIP_NO_INDEX": "1",
            "PIP_FIND_LINKS": os.fspath(index),
        }
        self.activate = f". {folder / 'venv/bin/activate'}"
        run(sys.executable, "-m", "venv", folder / "venv", env=self.environment)

    def shell(self, command):
        """What a command prints on its standard output, with the virtual environment active."""
        command = f"{self.activate} && {command}"
        return run("sh", "-c", command, cwd=self.work, env=self.environment, stdin=subprocess.DEVNULL)


def demo(room):
    lines = room.shell("tenon demo --quick").splitlines()
    # While other processes take the processors, the race of the loops may be lost.
    assert lines[-1] == "PASS" or lines[-1].startswith("MISSED: speed / "), "\n".join(lines)
    assert "(numpy, " in "\n".join(lines)


def programs_of_the_readme(room):
    found = [program for program in programs(ROOT / "README.md") if not needs_torch(program)]
    assert len(found) >= 2
    for program in found:
        (room.work / "program.py").write_text(program)
        check_output(program, room.shell("python -W error program.py"))


def generator_of_the_examples(room):
    shutil.copy(ROOT / "examples/fill.c", room.work)
    room.shell("cc -O3 -shared -fPIC fill.c -o libfill.so")
    (room.work / "generate.py").write_text(GENERATOR)
    assert room.shell("python generate.py") == "3200\n"


def c_program_with_pkg_config(room):
    shutil.copy(ROOT / "examples/consume.c", room.work)
    flags = "PKG_CONFIG_PATH=$(tenon config --pkgconfigdir) pkg-config --cflags --libs tenon"
    room.shell(f"cc consume.c $({flags}) -o consume")
    assert "6400" in room.shell("./consume ./libfill.so")


def test_the_first_commands_give_what_the_readme_shows_and_leave_nothing_in_the_home(tmp_path):
    """One test, because processes of pytest would each install the package anew."""
    for program in ("cc", "pkg-config"):
        if shutil.which(program, path=PATH) is None:
            pytest.skip(f"no {program} in {PATH}")
    (tmp_path / "index").mkdir()
    room = Room(tmp_path, index_of(PACKAGES, tmp_path / "index"))
    room.shell("pip install tenon-arrays")
    for step in (demo, programs_of_the_readme, generator_of_the_examples, c_program_with_pkg_config):
        step(room)
    room.shell("tenon --version && tenon ls && python -c 'import tenon'")
    assert [path.name for path in room.home.iterdir() if path.name != ".cache"] == []
