# SPDX-License-Identifier: Apache-2.0
"""Measures in fresh processes, pools their exchanges, and writes the section of docs/benchmarks.md."""

import json
import os
import subprocess
import sys
from pathlib import Path

import peer_environment
from report import Section, machine, plural, table
from share.leftovers import Traceless
from share.workload import best, case_table, microseconds, pooled, ratio

from .cases import CASES


def run_measure(scope, rounds):
    command = [peer_environment.python_of("channels"), "-m", "channels.measure"]
    path = [str(Path(__file__).resolve().parent.parent), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path), "TMPDIR": scope.scratch}
    process = subprocess.Popen(
        [*map(str, command), str(rounds), scope.prefix, scope.scratch],
        stdout=subprocess.PIPE,
        text=True,
        env=environment,
    )
    output = process.communicate()[0]
    if process.returncode != 0:
        sys.exit(f"channels.measure ended with {process.returncode}")
    return json.loads(output.splitlines()[-1])


def peers_of(rows):
    return [row for row in rows if row.kind == "peer" and row.median]


def ratios_of(cases):
    """The median of each row of Tenon divided by that of each peer that does the same, by case."""
    found = {}
    for case, rows in cases.items():
        for ours in (row for row in rows if row.kind == "tenon" and row.median):
            way = ours.name.rsplit(", ")[-1]
            same = [peer for peer in peers_of(rows) if peer.name.endswith(way)]
            for peer in same or peers_of(rows):
                found[f"{CASES[case].title}: {ours.name} / {peer.name}"] = ours.median / peer.median
    return found


def summary_table(cases):
    lines = []
    for case, rows in cases.items():
        ours, peer = best(rows, "tenon"), best(rows, "peer")
        if ours is None or peer is None:
            continue
        speed = f"{CASES[case].nbytes / ours.median:.2f}" if CASES[case].is_stream else ""
        lines.append(
            [
                CASES[case].title,
                ours.name,
                microseconds(ours.median),
                speed,
                peer.name,
                microseconds(peer.median),
                ratio(ours.median, peer.median),
            ]
        )
    header = ["work", "best of Tenon", "median us", "GB/s", "best peer", "median us", "ratio"]
    return table(header, lines)


def run(options):
    peer_environment.prepare("channels")
    processes = []
    with Traceless() as scope:
        for i in range(options.processes):
            print(f"channels: process {i + 1} of {options.processes}", file=sys.stderr, flush=True)
            processes.append(run_measure(scope, options.rounds))
    cases = pooled(processes)
    effort = f"{plural(options.processes, 'process', 'es')} of {options.rounds} rounds"
    lines = [
        f"{machine()}. {processes[0]['versions']}. `{options.command}`: {effort}.",
        "",
        summary_table(cases),
        "",
        "### Cases of channels",
        "",
        "Microseconds: least, median and 99th percentile (of 100 times and more); *ratio*: the row's median "
        "divided by that of the best peer.",
    ]
    for case, rows in cases.items():
        lines += ["", f"#### {CASES[case].title}", "", CASES[case].legend, "", case_table(rows)]
    return Section("\n".join(lines), ratios_of(cases))
