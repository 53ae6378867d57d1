# SPDX-License-Identifier: Apache-2.0
"""Measures in fresh processes, and writes the section of docs/benchmarks.md."""

import json
import os
import statistics
import subprocess
import sys
from pathlib import Path

import peer_environment
from report import Section, machine, plural, table
from share.leftovers import Traceless

from .cases import CASES


def run_measure(scope, number, rounds):
    prefix = f"{scope.prefix}-{number}"
    command = [peer_environment.python_of("messages"), "-m", "messages.measure"]
    path = [str(Path(__file__).resolve().parent.parent), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path), "TMPDIR": scope.scratch}
    result = subprocess.run(
        [*map(str, command), str(rounds), prefix, scope.scratch],
        stdout=subprocess.PIPE,
        text=True,
        env=environment,
    )
    if result.returncode != 0:
        sys.exit(f"messages.measure ended with {result.returncode}")
    return json.loads(result.stdout.splitlines()[-1])


def microseconds(ns):
    return f"{ns / 1000:,.1f}" if ns < 100_000 else f"{ns / 1000:,.0f}"


def medians(founds, case):
    """By contender: the median of the medians of the processes, and the least exchange, in nanoseconds."""
    names = founds[0]["times"][case]
    runs = {name: [found["times"][case][name] for found in founds] for name in names}
    return {
        name: (statistics.median(map(statistics.median, times)), min(map(min, times)))
        for name, times in runs.items()
    }


def ratios_of(found):
    """By row: the ratio, and its goal."""
    return {
        f"{CASES[case].title}: {ours.name} / {peer.name}": (
            rows[ours.name][0] / rows[peer.name][0],
            goal,
        )
        for case, rows in found.items()
        for (ours, peer), goal in CASES[case].goals.items()
    }


def goal_table(ratios):
    rows = [
        [*row.split(": ", 1), f"{ratio:.2f}", goal, "met" if ratio <= goal else "**missed**"]
        for row, (ratio, goal) in ratios.items()
    ]
    return table(["work", "rows", "ratio", "goal", ""], rows)


def case_table(rows):
    lines = [
        [name, *map(microseconds, times)] for name, times in sorted(rows.items(), key=lambda row: row[1][0])
    ]
    return table(["", "median us", "least us"], lines)


def fault_table(founds):
    """The worst of all processes."""
    lines = []
    for name in founds[0]["faults"]:
        worst = {
            key: max(found["faults"][name][key] for found in founds) for key in founds[0]["faults"][name]
        }
        slowest = f"{worst['slowest'] / 1e6:.1f}" if "slowest" in worst else ""
        seen = "yes" if worst["seen"] else "no"
        lines.append([name, worst.get("refused", ""), slowest, worst.get("overwritten", ""), seen])
    header = [
        "worst of all processes",
        "refused of 12",
        "slowest ms",
        "overwritten of 12",
        "other reader sees the write",
    ]
    return table(header, lines)


def run(options):
    peer_environment.prepare("messages")
    founds = []
    with Traceless() as scope:
        for i in range(options.processes):
            print(f"messages: process {i + 1} of {options.processes}", file=sys.stderr, flush=True)
            founds.append(run_measure(scope, i, options.rounds))
    found = {case: medians(founds, case) for case in CASES}
    ratios = ratios_of(found)
    effort = f"{plural(options.processes, 'process', 'es')} of {options.rounds} rounds"
    lines = [
        f"{machine()}. {founds[0]['versions']}. `{options.command}`: {effort}; medians of the medians of the "
        "processes.",
        "",
        "### Goals",
        "",
        goal_table(ratios),
        "",
        "### Times",
        "",
        "From before the arrays are copied or, where they were produced in place, from before their memory "
        "is asked for, without the production, until all readers have read them and answered.",
    ]
    for case, rows in found.items():
        lines += ["", f"#### {CASES[case].title}", "", case_table(rows)]
    lines += [
        "",
        "### Faults",
        "",
        "*refused*: messages of 1 MiB that found no slot after a reader was killed while it held one, so "
        "that the arrays travelled in the pickle. *overwritten*: arrays that a reader kept while the sender "
        "continued. *sees the write*: one of two readers adds to its array in place.",
        "",
        fault_table(founds),
    ]
    return Section("\n".join(lines), {row: ratio for row, (ratio, _) in ratios.items()})
