# SPDX-License-Identifier: Apache-2.0
"""Feeds and other ways in which batches of a native generator reach a model."""

import statistics
import sys
from pathlib import Path

import native_build
import peer_environment
from processes import run_module
from report import Section, machine, plural, table

from . import chart, goals, parts
from .parts import FOLDER, PARTS


def measured(part, options):
    """Name -> seconds in all rounds of all processes, names of those that are absent, versions."""
    seconds, absent, versions = {}, [], ""
    for _ in range(options.processes):
        found = run_module(
            "feed.measure",
            part,
            options.rounds,
            python=peer_environment.python_of("feed"),
            hides_errors=True,  # for SPDL's shared memory, Python prints warnings at the end
        )
        absent, versions = found["absent"], found["versions"]
        for name, values in found["seconds"].items():
            seconds.setdefault(name, []).extend(values)
    return seconds, absent, versions


def by_median(seconds):
    return sorted(seconds, key=lambda name: statistics.median(seconds[name]))


def spread(values):
    """Median, and distance between the quartiles."""
    if len(values) < 2:
        return values[0], 0.0
    low, median, high = statistics.quantiles(values, n=4, method="inclusive")
    return median, high - low


def speed_table(part, seconds):
    reference = goals.reference_of(seconds)
    rows = []
    for name in by_median(seconds):
        median, between = spread(seconds[name])
        rows.append(
            [
                name,
                f"{1e6 * median:,.1f}",
                f"{1e6 * between:,.1f}",
                goals.speed_text(part.per_batch / median),
                f"{goals.ratio(seconds, name, reference):.3f}",
            ]
        )
    return table([part.title, "us per batch", "between quartiles", part.unit, "ratio"], rows)


def first_table(found):
    """found: part -> seconds."""
    names = by_median(next(iter(found.values())))
    rows = []
    for name in names:
        row = [name]
        for seconds in found.values():
            if name in seconds:
                median, between = spread(seconds[name])
                row += [f"{1e3 * median:,.2f}", f"{1e3 * between:,.2f}", len(seconds[name])]
            else:
                row += ["", "", ""]
        rows.append(row)
    header = ["first batch"]
    for part in found:
        header += [f"{part.removeprefix('first ')}: ms", "between quartiles", "times"]
    return table(header, rows)


def run(options):
    native_build.build(Path(__file__).parent / "native", FOLDER / "native")
    peer_environment.prepare("feed")
    found, notes, versions = {}, [], ""
    for name in PARTS:
        if problem := parts.missing(name):
            notes.append(f"{PARTS[name].title} are not measured: {problem}.")
            continue
        print(f"feed: {name}", file=sys.stderr, flush=True)
        found[name], absent, versions = measured(name, options)
        if absent:
            notes.append(f"{PARTS[name].title}: not installed, and left out: {'; '.join(absent)}.")
    speeds = {name: seconds for name, seconds in found.items() if PARTS[name].kind != "first batch"}
    firsts = {name: seconds for name, seconds in found.items() if PARTS[name].kind == "first batch"}
    effort = f"{plural(options.processes, 'process', 'es')} of {options.rounds} rounds"
    text = [
        f"{machine()}. {versions}. `{options.command}`: {effort}; medians.",
        *notes,
        "",
        "### Goals",
        "",
        "Ratios are taken within a round.",
        "",
        goals.goal_table(found),
        "",
        "### Speeds",
        "",
        "*ratio*: speed as a multiple of that of the warm buffers that are filled in turn, of one where "
        "there is only that, and of the training on batches in memory.",
    ]
    for name, seconds in speeds.items():
        text += ["", speed_table(PARTS[name], seconds)]
    text += ["", "### First batch", "", first_table(firsts)]
    section = "\n".join(text)
    path = FOLDER / chart.CHART.name if options.quick or options.check else chart.CHART
    path.write_text(chart.draw(section))
    print(f"feed: {path}", file=sys.stderr, flush=True)
    return Section(section, goals.ratios_of(found))
