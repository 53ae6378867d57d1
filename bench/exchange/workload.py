# SPDX-License-Identifier: Apache-2.0
"""Measures in fresh processes, pools their rounds and writes the section of docs/benchmarks.md."""

import sys

from processes import run_module
from report import Section, machine, nanoseconds, plural, table, versions
from timing import summarise

from . import build

PACKAGES = ("tenon-arrays", "numpy", "torch", "apache-tvm-ffi", "nanobind")


def pooled(processes):
    """Summaries by (kind, heading, call)."""
    return {
        (kind, heading, call): summarise([ns for process in processes for ns in process[kind][heading][call]])
        for kind, headings in processes[0].items()
        for heading, calls in headings.items()
        for call in calls
    }


def ratios_of(goal, summaries, kinds):
    """(of the least times, of the medians), by kind."""
    pairs = {kind: [summaries[kind, goal.heading, call] for call in (goal.call, goal.peer)] for kind in kinds}
    return {
        kind: (ours.least / peer.least, ours.median / peer.median) for kind, (ours, peer) in pairs.items()
    }


def goal_table(summaries, goals, kinds):
    rows = []
    for goal in goals:
        ratios = ratios_of(goal, summaries, kinds).values()
        is_met = all(least <= goal.ratio for least, _ in ratios)
        cells = [f"{least:.2f} ({median:.2f})" for least, median in ratios]
        verdict = "met" if is_met else "**missed**"
        rows.append([goal.work, f"`{goal.call}`", f"`{goal.peer}`", *cells, f"{goal.ratio:.2f}", verdict])
    return table(["work", "Tenon", "peer", *kinds, "goal", ""], rows)


def heading_table(summaries, heading, kinds):
    first, *others = kinds
    calls = [call for kind, of, call in summaries if kind == first and of == heading]
    reference = summaries[first, heading, calls[0]]
    rows = []
    for call in calls:
        summary = summaries[first, heading, call]
        numbers = [summary.least, summary.median, summary.spread]
        found = [summaries.get((kind, heading, call)) for kind in others]
        cells = [nanoseconds(one.least) if one else "" for one in found]
        ratio = f"{reference.least / summary.least:.2f}"
        rows.append([f"`{call}`", *map(nanoseconds, numbers), *cells, ratio])
    return table(["", f"{first}: least", "median", "IQR", *others, "ratio"], rows)


def run(options):
    build.build()
    build.use()
    from . import calls, inputs

    processes = []
    for i in range(options.processes):
        print(f"exchange: process {i + 1} of {options.processes}", file=sys.stderr, flush=True)
        processes.append(run_module("exchange.measure", options.rounds))
    summaries, kinds = pooled(processes), list(inputs.KINDS)
    effort = f"{plural(options.processes, 'process', 'es')} of {options.rounds} rounds, pinned to one core"
    lines = [
        f"{machine()}. {versions(PACKAGES)}. `{options.command}`: {effort}.",
        "",
        f"{inputs.KINDS_LEGEND}. Nanoseconds per call, making and dropping the result included, the loop not "
        "subtracted.",
        "",
        "### Goals",
        "",
        "Tenon's time divided by the peer's: of the least times, in brackets of the medians. A goal is met "
        "when no ratio of least times is above it.",
        "",
        goal_table(summaries, calls.GOALS, kinds),
        "",
        "### Calls",
        "",
        "Least, median and distance between the quartiles for 4 x 8; the least for the other arrays; "
        "*ratio*: the first row's least time divided by this row's.",
        "",
        *(f"- `{name}`: {meaning}" for name, meaning in inputs.LEGEND.items()),
    ]
    for heading in dict.fromkeys(heading for _, heading, _ in summaries):
        lines += ["", f"#### {heading}", "", heading_table(summaries, heading, kinds)]
    ratios = {
        f"{goal.call} to {goal.peer}, {kind}": least
        for goal in calls.GOALS
        for kind, (least, _) in ratios_of(goal, summaries, kinds).items()
    }
    return Section("\n".join(lines), ratios)
