# SPDX-License-Identifier: Apache-2.0
"""How the time of one call grows with the number of things beside it, as tables and as docs/growth.svg."""

import statistics
import sys
from pathlib import Path

from matplotlib import rc_context
from matplotlib.figure import Figure
from processes import run_module
from report import Section, machine, plural, table, versions

from .curves import CURVES

PACKAGES = ("tenon-arrays", "numpy")
CHART = Path(__file__).resolve().parents[2] / "docs/growth.svg"
COLOURS = ("#2f7fd8", "#97a0aa")  # of Tenon and the peer; can be read on white and black
INK = "#707a85"


def microseconds(ns):
    us = ns / 1000
    return f"{us:.2f}" if us < 10 else f"{us:.1f}" if us < 100 else f"{us:,.0f}"


def measured(options):
    """Median nanoseconds by curve, contender and n. Each point has processes of its own, which take turns."""
    points = [
        (curve, contender, n) for curve, of in CURVES.items() for contender in of.contenders for n in of.sizes
    ]
    rounds = {point: [] for point in points}
    for i in range(options.processes):
        print(f"growth: process {i + 1} of {options.processes} for each point", file=sys.stderr, flush=True)
        for point in points:
            rounds[point] += run_module("growth.measure", *point, options.rounds)
    return {
        curve: {
            name: {n: statistics.median(rounds[curve, name, n]) for n in of.sizes} for name in of.contenders
        }
        for curve, of in CURVES.items()
    }


def growth(curve, times):
    """What the curve's limit holds for."""
    first, *_, last = CURVES[curve].sizes
    peer = CURVES[curve].peer
    return times["Tenon"][last] / (times[peer][last] if peer else times["Tenon"][first])


def goal_table(found):
    rows = []
    for curve, times in found.items():
        of, value = CURVES[curve], growth(curve, times)
        beside = f"{of.sizes[-1]:,} {of.unit}" + (f", to {of.peer}" if of.peer else f", to {of.sizes[0]:,}")
        verdict = "met" if value <= of.limit else "**missed**"
        rows.append([of.title, beside, f"{value:.2f}", f"{of.limit:g}", verdict])
    return table(["call", "beside", "ratio", "goal", ""], rows)


def curve_table(curve, times):
    sizes = CURVES[curve].sizes
    rows = [
        [name, *(microseconds(by_n[n]) for n in sizes), f"{by_n[sizes[-1]] / by_n[sizes[0]]:.2f}"]
        for name, by_n in times.items()
    ]
    return table([f"us, by the number of {CURVES[curve].unit}", *(f"{n:,}" for n in sizes), "growth"], rows)


def draw(found, path):
    """A panel for each curve, both axes logarithmic."""
    columns = 2
    n_rows = -(-len(found) // columns)
    figure = Figure(figsize=(4.4 * columns, 2.7 * n_rows), layout="constrained")
    for axes, (curve, times) in zip(figure.subplots(n_rows, columns).flat, found.items(), strict=False):
        for colour, (name, by_n) in zip(COLOURS, times.items(), strict=False):
            axes.plot(
                [*by_n], [ns / 1000 for ns in by_n.values()], "o-", color=colour, label=name, markersize=3
            )
        least = min(ns for by_n in times.values() for ns in by_n.values()) / 1000
        most = max(ns for by_n in times.values() for ns in by_n.values()) / 1000
        axes.set(xscale="log", yscale="log", xlabel=CURVES[curve].unit, ylabel="us")
        axes.set_ylim(least / 3, max(most * 3, least * 30))  # a flat curve looks flat
        axes.set_title(CURVES[curve].title, fontsize=9, color=INK)
        axes.legend(fontsize=7, frameon=False, labelcolor=INK)
        axes.tick_params(labelsize=7, colors=INK, which="both")
        axes.xaxis.label.set(fontsize=8, color=INK)
        axes.yaxis.label.set(fontsize=8, color=INK)
        for spine in axes.spines.values():
            spine.set_color(INK)
    # Text stays text, and the file is the same for the same figures.
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": path.name, "font.family": "sans-serif"}):
        figure.savefig(path, transparent=True, metadata={"Date": None})


def run(options):
    found = measured(options)
    effort = f"{plural(options.processes, 'process', 'es')} of {options.rounds} rounds for each number"
    lines = [
        f"{machine()}. {versions(PACKAGES)}. `{options.command}`: {effort}; medians.",
        "",
        "### Goals",
        "",
        "*ratio*: the median time beside the most things divided by that beside the fewest, or the peer's.",
        "",
        goal_table(found),
        "",
        "### Curves",
    ]
    for curve, times in found.items():
        lines += ["", f"#### {CURVES[curve].title}", "", curve_table(curve, times)]
    if not (options.quick or options.check):
        draw(found, CHART)
    # A ratio below 1 is noise.
    return Section("\n".join(lines), {CURVES[c].title: max(1.0, growth(c, found[c])) for c in found})
