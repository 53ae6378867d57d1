#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs the Promela models with spin and checks that each variant ends as its model states.

    check_models.py [FOLDER or MODEL] [--soak]

A model states in comments what is to be shown, each for the model compiled with -DNAME:
    // variant: SOUND holds                no state breaks a law: no dead end, no failed assertion
    // variant: SOUND ends                 no execution goes on for ever
    // variant: NAME refuted deadlock      with assertions ignored, some execution comes to a dead end
    // variant: NAME refuted assertion     with dead ends ignored, some execution fails an assertion
    // variant: NAME refuted ends          some execution goes on for ever
With `soak` at the end of the line a check runs only with --soak, and may use more memory. A search that was
cut short, by its depth or by its memory, proves nothing. One that holds must reach every statement, because
it proves nothing about the others. Each line gives the states, the processor time of compiler and search, and
the memory of the search."""

import os
import re
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

VARIANT = re.compile(r"^// variant:\s*(.*?)\s*$", re.M)
STATEMENT = re.compile(r"(\w+) (holds|ends|refuted deadlock|refuted assertion|refuted ends)( soak)?")
WHOLE = ("-O1",)  # compiles in half the time of -O2, and searches as fast
# A search that ends at its first error takes less time than optimization. It tries the last alternative of
# each choice first, so that it finds most errors after fewer states.
FIRST_ERROR = ("-O0", "-DT_REVERSE")
LARGE, SMALL = "-w22", "-w18"  # log2 of the places in the first table of states; it grows, which takes time
OPTIONS = {  # for the compiler, for the search
    "holds": ((*WHOLE, "-DSAFETY"), (LARGE,)),
    "ends": ((*WHOLE, "-DNP"), (LARGE, "-l")),
    "refuted deadlock": ((*FIRST_ERROR, "-DSAFETY"), (SMALL, "-A")),
    "refuted assertion": ((*FIRST_ERROR, "-DSAFETY"), (SMALL, "-E")),
    "refuted ends": ((*FIRST_ERROR, "-DNP"), (SMALL, "-l", "-A", "-E")),
}
SIGNS = {
    "invalid end state": "refuted deadlock",
    "assertion violated": "refuted assertion",
    "non-progress cycle": "refuted ends",
}
DEPTH = "100000"
MEMORY_MIB = 2048
SOAK_MEMORY_MIB = 8192
SHORT = re.compile(r"^.*(?:max search depth too small|not completed|out of memory|memory limit).*$", re.M)
UNREACHED = re.compile(r'^\s+(\S+:\d+), state \d+, "(?!-end-)(.*)"$', re.M)


class Check(NamedTuple):
    model: Path
    variant: str
    outcome: str
    memory_mib: int


def read(model, soak):
    """The checks that a model states. Fails with ValueError for a line that it does not understand."""
    checks = []
    for line in VARIANT.findall(model.read_text()):
        match = STATEMENT.fullmatch(line)
        if match is None:
            raise ValueError(f"{model.name}: cannot read `variant: {line}`")
        if soak or not match[3]:
            memory_mib = SOAK_MEMORY_MIB if match[3] else MEMORY_MIB
            checks.append(Check(model, match[1], match[2], memory_mib))
    if not {"holds"} < {check.outcome for check in checks}:
        raise ValueError(f"{model.name}: a model states a variant that holds and one that is refuted")
    return checks


class Cost:
    """Of the programs of one check."""

    def __init__(self):
        self.states = "?"
        self.seconds = 0.0  # of the processor
        self.mib = 0  # of the largest program

    def __str__(self):
        return f"({self.states} states, {self.seconds:.1f} s, {self.mib} MiB)"


def output(*command, folder, cost):
    with tempfile.TemporaryFile("w+", errors="replace") as file:
        process = subprocess.Popen(
            [str(part) for part in command], cwd=folder, stdout=file, stderr=subprocess.STDOUT
        )
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        file.seek(0)
        text = file.read()
    cost.seconds += used.ru_utime + used.ru_stime
    cost.mib = used.ru_maxrss // 1024
    if process.returncode != 0:
        raise RuntimeError(f"{command[0]} ended with {process.returncode}: {text.strip()[-400:]}")
    return text


def found(text, outcome):
    """The outcome that a search has shown, or an error."""
    errors = re.search(r"errors: (\d+)", text)
    if errors is None:
        return f"no result: {text.strip()[-400:]}"
    if errors[1] != "0":
        message = re.search(r"^pan:\d+: (.*)$", text, re.M)
        signs = [name for sign, name in SIGNS.items() if message and sign in message[1]]
        return signs[0] if signs else f"an error: {message[1] if message else text.strip()[-400:]}"
    if short := SHORT.search(text):
        return f"the search was cut short: {short[0].strip()}"
    if outcome == "holds" and (unreached := UNREACHED.search(text)):
        return f"never reached: {Path(unreached[1]).name}: {unreached[2][:60]}"
    return outcome if outcome in ("holds", "ends") else "not refuted"


def run(check):
    """A line about the check, whether it went as stated, and what it cost."""
    compiled, searched = OPTIONS[check.outcome]
    compiler = os.environ.get("CC", "cc")
    cost = Cost()
    with tempfile.TemporaryDirectory() as folder:
        used = {"folder": folder, "cost": cost}
        try:
            defined = ("-a", f"-D{check.variant}", check.model.resolve())
            output("spin", f"-P{compiler} -E -x c", *defined, **used)
            output(compiler, *compiled, "-w", f"-DMEMLIM={check.memory_mib}", "-o", "pan", "pan.c", **used)
            text = output(f"{folder}/pan", f"-m{DEPTH}", *searched, **used)
            if match := re.search(r"([\d.e+]+) states, stored", text):
                cost.states = f"{float(match[1]):,.0f}"
            result = found(text, check.outcome)
        except RuntimeError as error:
            result = str(error)
    good = result == check.outcome
    name = f"{check.model.stem} {check.variant}: {check.outcome}"
    return (f"{name} {cost}" if good else f"FAILED: {name} was stated; {result} {cost}"), good, cost


def main(*arguments):
    given = [Path(argument) for argument in arguments if argument != "--soak"]
    place = given[0] if given else Path(__file__).parent.parent / "tests/models"
    for program in ("spin", os.environ.get("CC", "cc")):
        if shutil.which(program) is None:
            print(f"{program} is missing: `make deps` installs what the models need")
            return 1
    models = [place] if place.is_file() else sorted(place.glob("*.pml"))
    try:
        checks = [check for model in models for check in read(model, "--soak" in arguments)]
    except ValueError as error:
        print(error)
        return 1
    failed, seconds, mib = 0, 0.0, 0
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for line, good, cost in pool.map(run, checks):
            print(line, flush=True)
            failed += not good
            seconds += cost.seconds
            mib = max(mib, cost.mib)
    stated = "all as stated" if checks and not failed else f"{failed} not as stated"
    print(f"in all {seconds:.0f} s of one processor, at most {mib} MiB at a time")
    print(f"{len(models)} models, {len(checks)} variants: {stated}")
    return 0 if checks and not failed else 1


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
