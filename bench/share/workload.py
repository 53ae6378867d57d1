# SPDX-License-Identifier: Apache-2.0
"""Measures in fresh processes, pools their exchanges, and writes the section of docs/benchmarks.md and
results.json beside what was built."""

import json
import os
import statistics
import subprocess
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

from report import Section, machine, plural, table

from . import build, lock_rows
from .cases import CASES
from .leftovers import Traceless


@dataclass
class Row:
    """One peer in one case, in nanoseconds; or why it has no results."""

    name: str
    kind: str
    n: int = 0
    least: float | None = None
    median: float | None = None
    p99: float | None = None
    problem: str = ""


def run_measure(scope, *arguments):
    command = [build.PYTHON, "-m", "share.measure", *map(str, arguments)]
    path = [str(Path(__file__).resolve().parent.parent), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path), "TMPDIR": scope.scratch}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
    output = process.communicate()[0]
    if process.returncode != 0:
        sys.exit(f"{' '.join(map(str, command))} ended with {process.returncode}")
    return json.loads(output.splitlines()[-1])


def row_of(name, founds):
    """One peer over all processes."""
    row = Row(name, founds[0]["kind"])
    row.problem = next((found["problem"] for found in founds if "problem" in found), "")
    exchanges = [ns for found in founds for ns in found.get("times", ())]
    times = [ns for ns in exchanges if ns is not None]
    row.n = len(exchanges)
    if exchanges and not times:
        row.problem = f"never: given up each time, after {lock_rows.GIVE_UP_SECONDS:g} s"
    if times:
        row.least, row.median = min(times), statistics.median(times)
    if len(times) >= 100:
        row.p99 = statistics.quantiles(times, n=100, method="inclusive")[98]
    return row


def pooled(processes):
    """Rows by case."""
    return {
        case: [row_of(name, [process["cases"][case][name] for process in processes]) for name in peers]
        for case, peers in processes[0]["cases"].items()
    }


def best(rows, kind):
    """The row of this kind with the least median, or None."""
    return min(
        (row for row in rows if row.kind == kind and row.median), key=lambda row: row.median, default=None
    )


def microseconds(ns):
    us = ns / 1000
    return f"{us:.3f}" if us < 1 else f"{us:.2f}" if us < 10 else f"{us:.1f}" if us < 100 else f"{us:,.0f}"


def ratio(a, b):
    return f"{a / b:.2f}" if a < 10 * b else f"{a / b:,.0f}"


def case_table(rows):
    reference = best(rows, "peer")
    lines = []
    for row in sorted(rows, key=lambda row: (row.median is None, row.median)):
        name = row.name + (" (floor)" if row.kind == "floor" else "")
        if row.median is None:
            lines.append([f"{name}: {row.problem}", "", "", "", row.n, ""])
            continue
        name += f" ({row.problem})" if row.problem else ""
        cells = [*map(microseconds, (row.least, row.median)), microseconds(row.p99) if row.p99 else "", row.n]
        lines.append([name, *cells, ratio(row.median, reference.median) if reference else ""])
    return table(["", "least us", "median us", "p99 us", "exchanges", "ratio"], lines)


def goal_table(cases):
    """A table of the cases with rows of Tenon and a goal; or nothing."""
    lines = []
    for case, rows in cases.items():
        ours, peer, goal = best(rows, "tenon"), best(rows, "peer"), CASES[case].goal_ns
        if ours is None or goal is None:
            continue
        lines.append(
            [
                CASES[case].title,
                ours.name,
                microseconds(ours.median),
                microseconds(goal),
                "met" if ours.median <= goal else "**missed**",
                peer.name if peer else "",
                ratio(ours.median, peer.median) if peer else "",
            ]
        )
    if not lines:
        return []
    header = ["work", "Tenon", "median us", "goal us", "", "best peer", "ratio to it"]
    return ["### Goals", "", table(header, lines), ""]


def ratios_of(cases):
    """The median of Tenon's best row divided by that of the best peer, by case."""
    pairs = {CASES[case].title: (best(rows, "tenon"), best(rows, "peer")) for case, rows in cases.items()}
    return {title: ours.median / peer.median for title, (ours, peer) in pairs.items() if ours and peer}


def run(options):
    build.build()
    processes = []
    with Traceless() as scope:
        for i in range(options.processes):
            print(f"share: process {i + 1} of {options.processes}", file=sys.stderr, flush=True)
            processes.append(run_measure(scope, options.rounds, scope.prefix, scope.scratch))
    cases, versions = pooled(processes), processes[0]["versions"]
    as_json = {
        "machine": machine(),
        "versions": versions,
        "command": options.command,
        "ns": {case: [asdict(row) for row in rows] for case, rows in cases.items()},
    }
    build.RESULTS.write_text(json.dumps(as_json, indent=1) + "\n")
    print(f"share: {build.RESULTS}", file=sys.stderr, flush=True)
    effort = f"{plural(options.processes, 'process', 'es')} of {options.rounds} rounds"
    lines = [
        f"{machine()}. {versions}. `{options.command}`: {effort}.",
        "",
        *goal_table(cases),
        "### Cases",
        "",
        "Microseconds: least, median and 99th percentile (of 100 exchanges and more); *ratio*: the "
        "row's median divided by that of the best peer. A floor is what a library can at best come down to.",
    ]
    for case, rows in cases.items():
        lines += ["", f"#### {CASES[case].title}", "", CASES[case].legend, "", case_table(rows)]
    return Section("\n".join(lines), ratios_of(cases))
