# SPDX-License-Identifier: Apache-2.0
"""Checks the contenders, measures them in fresh processes and writes the section of docs/benchmarks.md."""

import sys

from processes import run_module
from report import Section, machine, nanoseconds, plural, table, versions
from timing import summarise

from . import build

PACKAGES = ("tenon-arrays",)
WORKERS = (1, 2)


def pooled(processes):
    """The same nested dictionaries with a summary in place of the rounds of each process."""
    first = processes[0]
    if isinstance(first, list):
        return summarise([ns for rounds in processes for ns in rounds])
    return {key: pooled([process[key] for process in processes]) for key in first}


def by_case(ops):
    """Summaries by (case, contender, number of workers)."""
    return {
        (int(case), name, int(workers)): summary
        for case, contenders in ops.items()
        for name, by_workers in contenders.items()
        for workers, summary in by_workers.items()
    }


def ratio(a, b):
    return f"{a / b:.2f}" if a < 10 * b else f"{a / b:.0f}"


def verdict(is_met):
    return "met" if is_met else "**missed**"


def best_peer(goal, workers, summaries):
    """(name, summary) of the peer with the least median."""
    by_name = {name: summaries[goal.case, name, workers] for name in goal.peers}
    return min(by_name.items(), key=lambda item: item[1].median)


def ratios_of(goals, summaries):
    """Tenon's median divided by that of the best peer, by row."""
    return {
        f"{goal.work}, {workers} of {goal.contender} to {' / '.join(goal.peers)}": ours.median
        / best_peer(goal, workers, summaries)[1].median
        for goal in goals
        if goal.peers
        for workers in WORKERS
        if (ours := summaries.get((goal.case, goal.contender, workers)))
    }


def goal_row(goal, summaries):
    cells, names, is_met = [], [], True
    for workers in WORKERS:
        ours = summaries.get((goal.case, goal.contender, workers))
        if ours is None:
            cells.append("")
            continue
        if goal.ns is not None:
            cells.append(f"{nanoseconds(ours.median)} ns ({nanoseconds(ours.least)})")
            is_met &= ours.median <= goal.ns
            continue
        best, theirs = best_peer(goal, workers, summaries)
        names.append(best)
        cells.append(f"{ratio(ours.median, theirs.median)} ({ratio(ours.least, theirs.least)})")
        is_met &= ours.median <= goal.ratio * theirs.median
    limit = f"{goal.ns} ns" if goal.ns is not None else f"{goal.ratio}"
    return [goal.work, goal.contender, " / ".join(dict.fromkeys(names)), *cells, limit, verdict(is_met)]


def step_goal_row(goal, steps):
    summary = steps[goal.step]
    cell = f"{nanoseconds(summary.median)} ns ({nanoseconds(summary.least)})"
    return [goal.work, f"`{goal.step}`", "", cell, "", f"{goal.ns} ns", verdict(summary.median <= goal.ns)]


def case_table(case, summaries, cases):
    header = [""]
    for workers in WORKERS:
        header += [f"{plural(workers, 'worker', 's')}: least", "median", "IQR", "ratio"]
    rows = []
    for name in dict.fromkeys(name for of, name, _ in summaries if of == case):
        row = [name]
        for workers in WORKERS:
            summary = summaries.get((case, name, workers))
            reference = summaries[case, cases.POOL, workers]
            if summary is None:
                row += [""] * 4
                continue
            row += map(nanoseconds, (summary.least, summary.median, summary.spread))
            row.append(ratio(reference.median, summary.median))
        rows.append(row)
    return table(header, rows)


def calls_table(group, known):
    rows = [
        [f"`{call}`", *map(nanoseconds, (summary.least, summary.median, summary.spread))]
        for call, summary in group.items()
    ]
    rows += [[f"{name} (known, not of this run)", "", nanoseconds(ns), ""] for name, ns in known.items()]
    return table(["", "least", "median", "IQR"], rows)


def run(options):
    build.build()
    from . import cases, python_calls

    print("engine: check", file=sys.stderr, flush=True)
    run_module("engine.measure", "check")
    native, python = {workers: [] for workers in WORKERS}, []
    for i in range(options.processes):
        print(f"engine: process {i + 1} of {options.processes}", file=sys.stderr, flush=True)
        for workers, found in native.items():
            found.append(run_module("engine.measure", "native", options.rounds, workers))
        python.append(run_module("engine.measure", "python", options.rounds))
    ops = {
        key: summary
        for found in native.values()
        for key, summary in by_case(pooled([process["ops"] for process in found])).items()
    }
    steps = pooled([process["steps"] for found in native.values() for process in found])
    python = pooled(python)
    effort = f"{plural(options.processes, 'process', 'es')} of {options.rounds} rounds"
    goals = [goal_row(goal, ops) for goal in cases.GOALS if goal.ns is not None or goal.peers]
    goals += [step_goal_row(goal, steps) for goal in cases.STEP_GOALS]
    lines = [
        f"{machine()}. {versions(PACKAGES)}. `{options.command}`: {effort}.",
        "",
        "### Goals",
        "",
        "Medians, in brackets the least; of ratios, Tenon's time divided by that of the best peer. A "
        "goal is met when no median is above it. Leases: one thread, and nothing is allocated (checked).",
        "",
        table(["work", "Tenon", "peer", "1 worker", "2 workers", "goal", ""], goals),
        "",
        "### Ops",
        "",
        "Nanoseconds per op, with empty bodies, from the first push to the end of the last op: least, median "
        "and distance between the quartiles; *ratio*: the first row's median divided by this row's. A turn "
        "has 16,384 ops, or fewer where they take more than 20 ms.",
        "",
        *(f"- {name}: {meaning}" for name, meaning in cases.LEGEND.items()),
    ]
    for case, title in cases.CASES.items():
        lines += ["", f"#### {title}", "", case_table(case, ops, cases)]
    lines += ["", "### Steps", "", "Nanoseconds per step of one thread, in C.", ""]
    lines += [calls_table(steps, cases.KNOWN_STEPS), "", "### Python", "", "Nanoseconds per call.", ""]
    lines += [f"- `{name}`: {meaning}" for name, meaning in python_calls.LEGEND.items()]
    for heading, group in python.items():
        lines += ["", f"#### {heading}", "", calls_table(group, {})]
    return Section("\n".join(lines), ratios_of(cases.GOALS, ops))
