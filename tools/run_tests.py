#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs the project's checks as steps, and ends with the runners' own summary lines.

    run_tests.py test    lints, one build, C and C++ tests, the fast Python tests
    run_tests.py check   the rest of what must hold before a change lands: sanitizers, models, the slow
                         Python tests (kills, spawned interpreters, many repetitions), other CPythons, docs
    run_tests.py lint    the lints alone
    run_tests.py soak    the concurrent and the long tests with full counts, also under ThreadSanitizer

A failed build ends the run at once. Other failures are collected and make the run fail at its end.
"""

import contextlib
import os
import re
import shutil
import subprocess
import sys
import time

import env
import steps

SUMMARY = re.compile(
    r"^(\d+% tests passed.*|\d+ models, .*|(=+ )?\d+ (passed|failed|error|skipped)\b.* in [\d.]+s.*)$", re.M
)
LINTS = ("check_includes.py", "check_imports.py", "check_labels.py", "check_sources.py")
SOAK_SECONDS = "7200"
JOBS = str(os.cpu_count() or 1)
TESTERS = str((os.cpu_count() or 1) + 1)  # processes of pytest: some tests sleep
SLEEPERS = str(2 * (os.cpu_count() or 1))  # at once, of the C and C++ tests: many of them sleep
# The longest tests in C++. `make check` runs them, under sanitizers.
LONG = (
    "DescribeAndCollect|ForkWithWork|Casts.*/float(32|64)$|Crashes.AtEveryStore|RandomPrograms|lone_headers"
)
ASAN = {
    "ASAN_OPTIONS": "detect_leaks=0:detect_stack_use_after_return=1:strict_string_checks=1",
    "UBSAN_OPTIONS": "print_stacktrace=1:halt_on_error=1",
}
# For the interpreters beside the one of .venv: what depends on them, and each part of the package once.
SMOKE = (
    "tests/smoke",
    *(
        f"tests/python/test_{name}.py"
        for name in "advice array blocks bodies counts creation dlpack drop_views dtype engine feed "
        "feed_workers function indexing late_use leases mistakes numpy operators ownership pickle_save "
        "stack_walk survivors views".split()
    ),
    "tests/python/peers/test_peer_buffer_protocol.py",
    "tests/python/lifetime/test_exit.py",
    "tests/python/lifetime/test_fork.py",
    "tests/python/lifetime/test_refcounts.py",
    "tests/python/share/test_arena.py",
    "tests/python/share/test_channel.py",
    "tests/python/share/test_serve_attach.py",
    "tests/python/share/test_serve_resume.py",
    "tests/python/share/test_share_turns.py",
)

# Slow tests that each interpreter runs: they find views in frames, which differ between versions of CPython.
SEARCHES = (
    *(
        f"tests/python/test_drop_views.py::test_{name}"
        for name in (
            "a_caught_exception_is_found_named_and_let_go_of",
            "an_exception_that_is_being_handled_is_found",
            "of_several_views_each_names_all_places",
        )
    ),
    "tests/python/test_views.py::test_no_code_of_the_user_s_objects_runs",
)

# The tests that run once more where references are counted as on an interpreter that is not known.
COUNTED = tuple(
    f"tests/python/test_{name}.py" for name in "blocks bodies counts feed ownership survivors".split()
)


class Report:
    """What has run: the runners' summary lines, and the steps that failed."""

    def __init__(self):
        self.began = time.monotonic()
        self.summaries = {}  # step -> the last summary line that it printed
        self.failed = []

    def step(self, name, *command, fatal=False, **environment):
        done = steps.run(name, *command, **environment)
        self.add(done)
        if fatal and done.returncode != 0:
            self.close()

    @contextlib.contextmanager
    def beside(self, name, *command):
        """Runs a command beside the steps of the block, and ends it with a line of its own."""
        with steps.Running(name, *command) as running:
            yield
        self.add(running.step)

    def add(self, done):
        name = done.name
        if found := SUMMARY.findall(done.text):
            self.summaries[name] = found[-1][0]
        if done.returncode != 0:
            self.failed.append(f"{name} (exit {done.returncode}), see {done.log.relative_to(env.ROOT)}")
            self.failed += [f"  {line}" for failure in done.failures() for line in failure.splitlines()]

    def close(self):
        print(f"\nSummary after {time.monotonic() - self.began:.0f} s")
        for name, line in self.summaries.items():
            print(f"{name}:\n{line}")
        for line in self.failed:  # at the end: there it is looked for
            print(line if line.startswith(" ") else f"FAILED: {line}")
        sys.exit(1 if self.failed else 0)


def lint(report, environment):
    quick_lint(report, environment)
    report.step("lint: mypy", environment.python, "-m", "mypy")


def quick_lint(report, environment):
    python = environment.python
    for tool in LINTS:
        report.step(f"lint: {tool}", python, f"tools/{tool}")
    report.step("lint: ruff check", python, "-m", "ruff", "check")
    report.step("lint: ruff format", python, "-m", "ruff", "format", "--check")
    report.step("lint: type stub", python, "tools/update_stub.py", "--check")
    files = [
        path
        for folder in ("include", "src", "python", "tests", "bench", "examples")
        for path in sorted((env.ROOT / folder).rglob("*"))
        if path.suffix in {".h", ".hpp", ".inc", ".c", ".cc"}
    ]
    report.step("lint: clang-format", env.VENV / "bin/clang-format", "--dry-run", "--Werror", *files)


def build(report, preset, *options):
    report.step(f"configure {preset}", "cmake", "--preset", preset, *options, fatal=True)
    report.step(f"build {preset}", "cmake", "--build", "--preset", preset, fatal=True)


def pytest(report, name, python, *options, **environment):
    """Several processes at once, each with tests of its own."""
    slowest = ("--durations=50", "--durations-min=1")  # for the log
    command = (python, "-m", "pytest", "-q", "-n", TESTERS, "--dist", "worksteal", *slowest, *options)
    report.step(f"pytest, {name}", *command, **environment)


def smoke_under_asan(report, python):
    """Runs the extension built with sanitizers. Python itself is not, so the runtime is preloaded."""
    site = env.ROOT / "build/asan/site"
    report.step("asan: package", "cmake", "--install", "build/asan", "--prefix", site / "tenon", fatal=True)
    report.step("asan: python files", "cp", "-R", "python/tenon/.", site / "tenon", fatal=True)
    compiler = os.environ.get("CXX", "c++")
    runtime = [
        subprocess.check_output([compiler, f"-print-file-name={name}"], text=True).strip()
        for name in ("libasan.so", "libubsan.so", "libstdc++.so")
    ]
    report.step(
        "pytest, asan + ubsan",
        *(python, "-m", "pytest", "-s", "tests/smoke"),
        LD_PRELOAD=":".join(runtime),
        PYTHONPATH=str(site),
        PYTHONMALLOC="malloc",
        **ASAN,
    )


def other_pythons(report, own):
    """The same wheel on every other CPython from the floor on that the machine has."""
    for version in env.VERSIONS:
        if version == own:
            continue
        environment = env.prepare_compat(version, is_profiled=True)
        if environment is None:
            report.summaries[f"CPython {version}"] = "NOT ON THIS MACHINE: the wheel is not tested on it"
        else:
            pytest(report, f"CPython {version}", environment.python, "-m", "not slow", *SMOKE)
            pytest(report, f"CPython {version}, searches", environment.python, *SEARCHES)


def beside_mxnet(report):
    environment = env.prepare_mxnet(is_profiled=True)
    if environment is None:
        report.summaries["MXNet"] = "NOT ON THIS MACHINE: no CPython for it, or pip could not install it"
    else:
        pytest(report, "MXNet", environment.python, "tests/mxnet")


def wheel(report, environment):
    """What package indexes, and users of other CPythons, need of the wheel."""
    python, file = environment.python, env.current_wheel(environment, is_profiled=True)
    report.step("twine check", python, "-m", "twine", "check", "--strict", file)
    report.step("check-wheel-contents", python, "-m", "check_wheel_contents", file)
    # Not the wheel: abi3audit fails at lib/libtenon.so, which is a linker script.
    [extension] = environment.folder.glob("lib/python3*/site-packages/tenon/_core.abi3.so")
    report.step(
        "abi3audit", python, "-m", "abi3audit", "--strict", "--assume-minimum-abi3", "3.11", extension
    )


def with_full_counts(folder):
    """The test files that repeat more often with TENON_SOAK, or search at random then. `make test` and
    `make check` run the others."""
    marks = ("TENON_SOAK", "import soak", "hypothesis")
    files = sorted((env.ROOT / folder).rglob("test_*.py"))
    return [path for path in files if any(mark in path.read_text() for mark in marks)]


def soak(report, environment):
    counts = {"TENON_SOAK": "1"}
    report.step("models", environment.python, "tools/check_models.py", "--soak")
    for preset in ("release", "tsan"):  # `make check` runs all of them under AddressSanitizer
        build(report, preset, f"-DPython3_EXECUTABLE={environment.python}")
        command = ("ctest", "--preset", preset, "-j", JOBS, "--timeout", SOAK_SECONDS)
        report.step(f"ctest, soak, {preset}", *command, **counts)
    paths = [*with_full_counts("tests/python"), *with_full_counts("tests/chaos")]
    pytest(report, "soak", environment.python, f"--timeout={SOAK_SECONDS}", *paths, **counts)


def test(report, environment):
    python = environment.python
    quick_lint(report, environment)
    build(report, "dev", f"-DPython3_EXECUTABLE={python}")
    with report.beside("lint: mypy", python, "-m", "mypy"):  # tests in C++ sleep much
        report.step("ctest", "ctest", "--preset", "dev", "-j", SLEEPERS, "-E", LONG)
    pytest(report, "fast tests", python, "-m", "not slow")


def check(report, environment):
    python = environment.python
    env.prepare("docs", is_profiled=True)
    packaged = ("-DTENON_PYTHON=ON", "-DCMAKE_INSTALL_LIBDIR=lib", f"-DPython_EXECUTABLE={python}")
    build(report, "asan", f"-DPython3_EXECUTABLE={python}", *packaged)
    sphinx = (python, "-m", "sphinx", "-q", "-W", "--keep-going", "-b", "html", "docs", "build/docs")
    with contextlib.ExitStack() as beside:  # tests in C++ sleep much
        for name, *command in (
            ("docs", *sphinx),
            ("types", python, "tools/check_types.py"),
            ("models", python, "tools/check_models.py"),
        ):
            beside.enter_context(report.beside(name, *command))
        report.step("ctest, asan + ubsan", "ctest", "--preset", "asan", "-j", SLEEPERS)
    smoke_under_asan(report, python)
    pytest(report, "slow tests", python, "-m", "slow")
    pytest(report, "strict counts", python, "-m", "not slow", *COUNTED, TENON_COUNTS="strict")
    wheel(report, environment)
    beside_mxnet(report)
    other_pythons(report, environment.stamp["python"])


RUNS = {"test": test, "check": check, "lint": lint, "soak": soak}


def main(what="test"):
    for language in ("C", "CXX"):
        if shutil.which("ccache"):
            os.environ.setdefault(f"CMAKE_{language}_COMPILER_LAUNCHER", "ccache")
    report = Report()
    is_check = what == "check"
    RUNS[what](report, env.prepare("check" if is_check else "test", is_profiled=is_check))
    report.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
