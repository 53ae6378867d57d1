#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs the Promela models with spin and checks that each variant ends as its model states.

    check_models.py [FOLDER] [--soak]

A model says in lines of its own what is to be shown, each about the model compiled with -DNAME:
    // variant: SOUND holds                no state breaks a law: no dead end, no failed assertion
    // variant: SOUND ends                 no execution goes on for ever
    // variant: NAME refuted deadlock      with assertions ignored, some execution comes to a dead end
    // variant: NAME refuted assertion     with dead ends ignored, some execution fails an assertion
    // variant: NAME refuted ends          some execution goes on for ever
With `soak` at the end of the line a check runs only with --soak. A search that was cut short shows nothing,
and one that holds must reach every statement: what is never reached is not shown either.
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

VARIANT = re.compile(r"^// variant:\s*(.*?)\s*$", re.M)
STATEMENT = re.compile(r"(\w+) (holds|ends|refuted deadlock|refuted assertion|refuted ends)( soak)?")
OPTIONS = {  # for the compiler, for the search; one that ends at its first error is not worth optimising
    "holds": (("-O2", "-DSAFETY"), ()),
    "ends": (("-O2", "-DNP"), ("-l",)),
    "refuted deadlock": (("-O0", "-DSAFETY"), ("-A",)),
    "refuted assertion": (("-O0", "-DSAFETY"), ("-E",)),
    "refuted ends": (("-O0", "-DNP"), ("-l", "-A", "-E")),
}
SIGNS = {
    "invalid end state": "refuted deadlock",
    "assertion violated": "refuted assertion",
    "non-progress cycle": "refuted ends",
}
DEPTH = "100000"
MEMORY_MIB = 2048
SHORT = re.compile(r"^.*(?:max search depth too small|not completed|out of memory|memory limit).*$", re.M)
UNREACHED = re.compile(r'^\s+(\S+:\d+), state \d+, "(?!-end-)(.*)"$', re.M)


class Check(NamedTuple):
    model: Path
    variant: str
    outcome: str


def read(model, soak):
    """The checks that a model states. Fails with ValueError for a line that it does not understand."""
    checks = []
    for line in VARIANT.findall(model.read_text()):
        match = STATEMENT.fullmatch(line)
        if match is None:
            raise ValueError(f"{model.name}: cannot read `variant: {line}`")
        if soak or not match[3]:
            checks.append(Check(model, match[1], match[2]))
    if not {"holds"} < {check.outcome for check in checks}:
        raise ValueError(f"{model.name}: a model states a variant that holds and one that is refuted")
    return checks


def output(*command, folder):
    done = subprocess.run(
        [str(part) for part in command],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    )
    if done.returncode != 0:
        raise RuntimeError(f"{command[0]} ended with {done.returncode}: {done.stdout.strip()[-400:]}")
    return done.stdout


def found(text, outcome):
    """What a search showed: the outcome itself, or what is wrong with it."""
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
    """A line about the check, and whether it went as stated."""
    compiled, searched = OPTIONS[check.outcome]
    compiler = os.environ.get("CC", "cc")
    began = time.monotonic()
    states = "?"
    with tempfile.TemporaryDirectory() as folder:
        try:
            output(
                *("spin", f"-P{compiler} -E -x c", "-a", f"-D{check.variant}", check.model.resolve()),
                folder=folder,
            )
            output(
                *(compiler, *compiled, "-w", f"-DMEMLIM={MEMORY_MIB}", "-o", "pan", "pan.c"),
                folder=folder,
            )
            text = output(f"{folder}/pan", f"-m{DEPTH}", *searched, folder=folder)
            if match := re.search(r"([\d.e+]+) states, stored", text):
                states = f"{float(match[1]):,.0f}"
            result = found(text, check.outcome)
        except RuntimeError as error:
            result = str(error)
    good = result == check.outcome
    name = f"{check.model.stem} {check.variant}: {check.outcome}"
    cost = f"({states} states, {time.monotonic() - began:.1f} s)"
    return (f"{name} {cost}" if good else f"FAILED: {name} was stated; {result} {cost}"), good


def main(*arguments):
    folders = [Path(argument) for argument in arguments if argument != "--soak"]
    folder = folders[0] if folders else Path(__file__).parent.parent / "tests/models"
    for program in ("spin", os.environ.get("CC", "cc")):
        if shutil.which(program) is None:
            print(f"{program} is missing: `make deps` installs what the models need")
            return 1
    models = sorted(folder.glob("*.pml"))
    try:
        checks = [check for model in models for check in read(model, "--soak" in arguments)]
    except ValueError as error:
        print(error)
        return 1
    failed = 0
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for line, good in pool.map(run, checks):
            print(line, flush=True)
            failed += not good
    stated = "all as stated" if checks and not failed else f"{failed} not as stated"
    print(f"{len(models)} models, {len(checks)} variants: {stated}")
    return 0 if checks and not failed else 1


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
