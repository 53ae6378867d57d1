#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Prepares Python environments with the package installed, and does nothing when they are current.

    env.py NAME [--profiled]  .venv with requirements/NAME.txt and the wheel of this tree
    env.py compat VERSION [--profiled]  build/python-VERSION with requirements/compat.txt and the same wheel
    env.py mxnet [--profiled]  build/mxnet with requirements/mxnet.txt and the same wheel, for tests/mxnet

--profiled: the wheel as it is released, optimized with a profile (tools/wheel_profile.py; needs GCC). It
takes two builds.

The stamp of an environment lists its contents, by digests of the requirement files and of the sources. pip is
called only for what differs, so a second run needs no network. Runs on any Python 3.8+, with the standard
library alone."""

import contextlib
import glob
import hashlib
import json
import os
import shlex
import shutil
import subprocess
import sys

import debian
import wheel_profile
from steps import ROOT, VENV, Running, must_run, run

WHEELS, PROFILED_WHEELS = ROOT / "build/wheel", ROOT / "build/profiled-wheel"
BUILD_TOOLS = [
    f"tools/{name}" for name in ("readme.py", "wheel_profile.py", "wheel_workload.py", "wheel_workload.cc")
]
VERSIONS = ("3.11", "3.12", "3.13", "3.14", "3.15")
MXNET_VERSION = "3.11"  # of the CPython on which MXNet is tested
COMPLETE = ("mxnet",)  # lists that name all that they need, because their packages ask for what is older
NAMES = ("tenon-arrays", "tenon")  # of the package; the second one in environments of earlier builds
PIP = ["-m", "pip", "--disable-pip-version-check", "--no-input"]

# Prints facts about an interpreter. Fails if it cannot make an environment.
PROBE = """
import ensurepip, os, sys, sysconfig, venv
assert sys.implementation.name == "cpython" and not sysconfig.get_config_var("Py_GIL_DISABLED")
headers = os.path.exists(os.path.join(sysconfig.get_path("include"), "Python.h"))
print("%d.%d" % sys.version_info[:2], int(headers))
"""


def probe(*python):
    """(version, has headers) of an interpreter, or None where it cannot make an environment."""
    try:
        result = subprocess.run([*python, "-c", PROBE], capture_output=True, text=True)
    except FileNotFoundError:
        return None
    if result.returncode != 0:
        return None
    version, headers = result.stdout.split()
    return version, headers == "1"


def candidates(version):
    """Paths that may be a CPython of this version: from PATH, pyenv and uv."""
    names = [os.path.join(folder, f"python{version}") for folder in os.get_exec_path()]
    home = os.path.expanduser("~")
    for pattern in (".pyenv/versions/{}.*/bin/python", ".local/share/uv/python/cpython-{}.*/bin/python3"):
        names += sorted(glob.glob(os.path.join(home, pattern.format(version))))
    return [name for name in names if os.access(name, os.X_OK)]


def find_python(version):
    """The command of an interpreter of this version that can make an environment, or None."""
    for command in (*([name] for name in candidates(version)), debian.command):
        words = command(version) if callable(command) else command
        if words and (probe(*words) or [None])[0] == version:
            return words
    return None


def base_python():
    """The interpreter for .venv: the one that runs this script if it is suitable, else the oldest suitable
    one."""
    for name in [sys.executable, *(name for version in VERSIONS for name in candidates(version))]:
        found = probe(name)
        if found and found[0] in VERSIONS and found[1]:
            return name
    sys.exit(
        f"Tenon needs CPython {VERSIONS[0]} to {VERSIONS[-1]} with venv and its C headers, and found none.\n"
        "On Debian and Ubuntu: apt-get install python3-venv python3-dev"
    )


def requirement_files(name):
    """A requirement file and those that it includes."""
    path = ROOT / "requirements" / name
    included = [line[3:].strip() for line in path.read_text().splitlines() if line.startswith("-r ")]
    return [path, *(file for other in included for file in requirement_files(other))]


def digest(paths):
    state = hashlib.sha256()
    for path in paths:
        state.update(f"{path.relative_to(ROOT)}\0".encode())
        state.update(hashlib.sha256(path.read_bytes()).digest())
    return state.hexdigest()


def source_files():
    """The files from which the wheel is built."""
    files = [
        ROOT / name for name in ("pyproject.toml", "CMakeLists.txt", "README.md", "LICENSE", *BUILD_TOOLS)
    ]
    for folder in ("cmake", "include", "src", "python"):
        files += sorted((ROOT / folder).rglob("*"))
    files = [path for path in files if path.is_file() and "__pycache__" not in path.parts]
    files = [path for path in files if not path.stem.endswith("_test")]
    return files + requirement_files("build.txt")


class Environment:
    """A virtual environment and its stamp. One process at a time. python: the command of its interpreter."""

    def __init__(self, folder, *python):
        self.folder = folder
        is_inside = len(python) > 1  # of another system: what starts it there is a script beside it
        self.python = folder / ("python" if is_inside else "bin/python")
        self.stamp_file = folder / "tenon-stamp.json"
        self.stamp = json.loads(self.stamp_file.read_text()) if self.stamp_file.exists() else {}
        version = self.stamp.get("python")
        if version is None or (probe(str(self.python)) or [None])[0] != version:
            self.create(*python)
            if is_inside:
                words = shlex.join([*python[:-1], str(folder / "bin/python")])
                self.python.write_text(f'#!/bin/sh\nexec {words} "$@"\n')
                self.python.chmod(0o755)
            self.note(python=probe(str(self.python))[0])

    def create(self, *python):
        shutil.rmtree(self.folder, ignore_errors=True)
        if self.folder == VENV:  # builds remember the paths of the environment that made them
            for build in glob.glob(str(ROOT / "build/cp*")):
                shutil.rmtree(build)
        step = f"create {self.folder.relative_to(ROOT)} with {python[-1]}"
        must_run(step, *python, "-m", "venv", self.folder)
        self.stamp = {}

    def note(self, **facts):
        self.stamp.update(facts)
        self.stamp_file.write_text(json.dumps(self.stamp, indent=1))

    def has(self, name):
        return self.stamp.get(name) == digest(requirement_files(f"{name}.txt"))

    def installation(self, name):
        """The name and the command of the step that installs requirements/NAME.txt: one pip command."""
        step = f"install requirements/{name}.txt into {self.folder.relative_to(ROOT)}"
        file = ROOT / "requirements" / f"{name}.txt"
        options = ["--no-deps"] if name in COMPLETE else []
        return (step, self.python, *PIP, "install", "--progress-bar", "off", *options, "-r", file)

    def note_installed(self, name):
        files = requirement_files(f"{name}.txt")
        self.note(**{file.stem: digest(requirement_files(file.name)) for file in files})

    def require(self, name):
        if not self.try_to_have(name):
            sys.exit(1)

    def try_to_have(self, name):
        """Whether requirements/NAME.txt is installed now."""
        if not self.has(name):
            if run(*self.installation(name)).returncode != 0:
                return False
            self.note_installed(name)
        return True

    @contextlib.contextmanager
    def requiring(self, name):
        """As `require`, beside the block."""
        if self.has(name):
            yield
            return
        self.uninstall()  # the block may do it, while pip reads what is installed
        with Running(*self.installation(name)) as running:
            yield
        if running.step.returncode != 0:
            sys.exit(1)
        self.note_installed(name)

    def install(self, wheel):
        if self.stamp.get("wheel") == digest([wheel]):
            return
        self.uninstall()
        options = ["--quiet", "--no-index", "--no-deps", "--force-reinstall"]
        step = f"install the wheel into {self.folder.relative_to(ROOT)}"
        must_run(step, self.python, *PIP, "install", *options, wheel)
        self.note(wheel=digest([wheel]))

    def uninstall(self):
        """Takes the package out: builds load its entry points, and an old or broken one would stop them."""
        if self.stamp.get("wheel"):
            self.note(wheel=None)
            step = f"remove the old package from {self.folder.relative_to(ROOT)}"
            must_run(step, self.python, *PIP, "uninstall", "--quiet", "--yes", *NAMES)


def current_wheel(environment, is_profiled=False, beside=None):
    """The wheel of this tree; builds it with the tools of the environment when sources have changed. `beside`
    runs beside the first build, whether there is one or not."""
    beside = beside or contextlib.nullcontext()
    folder = PROFILED_WHEELS if is_profiled else WHEELS
    stamp, sources = folder / "sources.sha256", digest(source_files())
    wheels = list(folder.glob("*.whl"))
    if len(wheels) != 1 or not stamp.exists() or stamp.read_text() != sources:
        shutil.rmtree(folder, ignore_errors=True)
        environment.uninstall()
        how = {"SKBUILD_CMAKE_DEFINE": "TENON_PRECOMPILE=ON"}
        if is_profiled:
            wheel_profile.take_profile(environment.python, beside)
            beside, how = contextlib.nullcontext(), wheel_profile.variables("USE")
        options = ["--no-build-isolation", "--no-deps", "--no-index", "--wheel-dir", folder]
        with beside:
            must_run("build the wheel", environment.python, *PIP, "wheel", *options, ROOT, **how)
        stamp.write_text(sources)
        return next(folder.glob("*.whl"))
    with beside:
        return wheels[0]


def prepare(name, is_profiled=False):
    """.venv with requirements/NAME.txt and the current wheel."""
    if not shutil.which(os.environ.get("CXX", "c++")):
        sys.exit("Tenon needs a C++20 compiler (g++ 11, clang++ 15, or newer) and found none.")
    environment = Environment(VENV, base_python())
    environment.require("build")
    # The wheel is built while pip downloads the rest.
    environment.install(current_wheel(environment, is_profiled, environment.requiring(name)))
    return environment


def prepare_compat(version, is_profiled=False):
    """The environment of another CPython with the wheel, or None where that CPython is not installed."""
    python = find_python(version)
    if python is None:
        return None
    environment = Environment(ROOT / f"build/python-{version}", *python)
    environment.require("compat")
    return with_wheel(environment, is_profiled)


def prepare_mxnet(is_profiled=False):
    """The environment with MXNet and the wheel, or None: no CPython for it, or pip could not install it."""
    python = find_python(MXNET_VERSION)
    if python is None:
        return None
    environment = Environment(ROOT / "build/mxnet", *python)
    return with_wheel(environment, is_profiled) if environment.try_to_have("mxnet") else None


def with_wheel(environment, is_profiled):
    environment.install(current_wheel(prepare("test" if is_profiled else "build", is_profiled), is_profiled))
    return environment


if __name__ == "__main__":
    if sys.argv[1] == "compat":
        found = prepare_compat(sys.argv[2], "--profiled" in sys.argv[3:])
        sys.exit(0 if found else f"no CPython {sys.argv[2]} found")
    if sys.argv[1] == "mxnet":
        found = prepare_mxnet("--profiled" in sys.argv[2:])
        sys.exit(0 if found else f"MXNet needs CPython {MXNET_VERSION} and requirements/mxnet.txt")
    prepare(sys.argv[1], "--profiled" in sys.argv[2:])
