# SPDX-License-Identifier: Apache-2.0
"""Runs commands as steps: one line for each with its time, and what it prints in a log under build/log."""

import os
import re
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
LOGS = ROOT / "build/log"
SHOWN_LINES = 40
SHOWN_FAILURES = 20
WIDTH = 60
# Of pytest's summary, of GoogleTest with what it expected, and of ctest's summary.
FAILURES = re.compile(
    r"^(?:(?:FAILED|ERROR) .*"
    r"|\S+: Failure(?:\n(?!\[|\d+/\d+ |\s*$).*){0,6}"
    r"|\s*\d+ - \S+ \((?!Skipped|Disabled).*\).*)$",
    re.M,
)


class Step:
    """One command that has ended."""

    def __init__(self, name, returncode, log, text):
        self.name = name
        self.returncode = returncode
        self.log = log
        self.text = text

    def failures(self):
        """What has failed in it, by name and message: lines for a summary."""
        found = list(dict.fromkeys(match.group().strip() for match in FAILURES.finditer(self.text)))
        more = len(found) - SHOWN_FAILURES
        return [*found[:SHOWN_FAILURES], *([f"and {more} more"] if more > 0 else [])]


class Running:
    """A command that runs. The programs of .venv come first on its PATH.

    As a context manager, it runs beside the steps of the block, and ends with a line of its own."""

    def __init__(self, name, *command, **environment):
        LOGS.mkdir(parents=True, exist_ok=True)
        self.name = name
        self.log = LOGS / (re.sub(r"[^A-Za-z0-9.]+", "-", name).strip("-") + ".log")
        self.began = time.monotonic()
        path = f"{VENV / 'bin'}{os.pathsep}{os.environ['PATH']}"
        with self.log.open("wb") as file:
            self.process = subprocess.Popen(
                [str(part) for part in command],
                cwd=ROOT,
                env={**os.environ, "PATH": path, **environment},
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
            )

    def __enter__(self):
        return self

    def __exit__(self, kind, error, trace):
        if kind is not None:
            self.process.kill()
            self.process.wait()
            return
        begin_line(f"{self.name} (beside)")
        self.step = self.end()

    def end(self):
        """Waits for the end, ends the line of the step, and returns its `Step`."""
        returncode = self.process.wait()
        text = self.log.read_text(errors="replace")
        end = "" if returncode == 0 else f"   FAILED (exit {returncode})"
        print(f"{time.monotonic() - self.began:5.0f} s{end}", flush=True)
        if returncode != 0:
            print("\n".join(text.splitlines()[-SHOWN_LINES:]))
            print(f"-- the end of {self.log.relative_to(ROOT)}", flush=True)
        return Step(self.name, returncode, self.log, text)


def begin_line(name):
    print(f"{name} ".ljust(WIDTH, "."), end=" ", flush=True)


def run(name, *command, **environment):
    """Runs a command and returns its `Step`."""
    begin_line(name)
    return Running(name, *command, **environment).end()


def must_run(name, *command, **environment):
    """As `run`; the script ends when the command fails."""
    step = run(name, *command, **environment)
    if step.returncode != 0:
        sys.exit(1)
    return step
