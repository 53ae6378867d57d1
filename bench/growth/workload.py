# SPDX-License-Identifier: Apache-2.0
"""How times and memory grow with the number of things, as tables and as docs/growth.svg."""

import sys
from pathlib import Path

from matplotlib import rc_context
from matplotlib.figure import Figure
from processes import run_module
from report import Section, machine, plural, table, versions
from timing import summarise

from .curves import CURVES, UNITS

PACKAGES = ("tenon-arrays", "numpy")
CHART = Path(__file__).resolve().parents[2] / "docs/growth.svg"
# Of contenders; can be read on white and black.
COLOURS = ("#2f7fd8", "#97a0aa", "#c9822b", "#b0559f", "#4f9a64", "#c65454")
INK = "#707a85"


def number(value):
    return f"{value:.2f}" if value < 10 else f"{value:.1f}" if value < 100 else f"{value:,.0f}"


def rounds_of(curve, contender, n, options):
    """Nanoseconds or bytes, of one process. A round of memory takes a process of its own."""
    if CURVES[curve].is_memory:
        return [run_module("growth.measure", curve, contender, n, 1)[0] for _ in range(options.rounds)]
    return run_module("growth.measure", curve, contender, n, options.rounds)


def measured(options):
    """Summaries by curve, contender and n, in the unit of the curve. The points take turns. --quick: the ends
    of each curve."""
    points = [
        (curve, contender, n)
        for curve, of in CURVES.items()
        for contender in of.contenders
        for n in (of.sizes[:: len(of.sizes) - 1] if options.quick else of.sizes)
    ]
    rounds = {point: [] for point in points}
    for i in range(options.processes):
        print(f"growth: process {i + 1} of {options.processes} for each point", file=sys.stderr, flush=True)
        for point in points:
            rounds[point] += rounds_of(*point, options)
    found = {curve: {name: {} for name in of.contenders} for curve, of in CURVES.items()}
    for (curve, name, n), values in rounds.items():
        of = CURVES[curve]
        divisor = UNITS[of.unit] * (n if of.is_each else 1)
        found[curve][name][n] = summarise([value / divisor for value in values])
    return found


def growth(by_n):
    first, *_, last = (summary.median for summary in by_n.values())
    return last / first


def ratio(of, results, peer):
    """To a peer, beside the most things."""
    return results["Tenon"][of.sizes[-1]].median / results[peer][of.sizes[-1]].median


def verdict(of, results):
    by_n = results["Tenon"]
    if of.goal.of == "growth":
        value = growth(by_n)
    elif of.goal.of == "ratio":
        value = ratio(of, results, of.peers[0])
    else:
        value = by_n[of.sizes[-1]].median
    return "met" if value <= of.goal.limit else "**missed**"


def goal_text(of):
    return f"{of.goal.limit:g} {of.unit}" if of.goal.of == "value" else f"{of.goal.of} {of.goal.limit:g}"


def amounts(summary, unit):
    return [f"{number(value)} {unit}" for value in (summary.median, summary.spread)]


def goal_rows(of, results):
    """A row for each peer, and one if there is none."""
    most = of.sizes[-1]
    own = [of.title, f"{most:,} {of.things}", *amounts(results["Tenon"][most], of.unit)]
    own.append(f"{growth(results['Tenon']):.2f}")
    goal = [goal_text(of), verdict(of, results)]
    peers = [
        [peer, *amounts(results[peer][most], of.unit), f"{ratio(of, results, peer):.2f}"] for peer in of.peers
    ]
    first, *others = peers or [[""] * 4]
    return [[*own, *first, *goal], *([""] * len(own) + peer + [""] * len(goal) for peer in others)]


def goal_table(found):
    header = ["call", "beside", "Tenon", "IQR", "growth", "peer", "the peer's", "IQR", "ratio", "goal", ""]
    return table(
        header, [row for curve, results in found.items() for row in goal_rows(CURVES[curve], results)]
    )


def curve_table(curve, results):
    of, sizes = CURVES[curve], list(results["Tenon"])
    rows = [
        [name, *(number(by_n[n].median) for n in sizes), f"{growth(by_n):.2f}"]
        for name, by_n in results.items()
    ]
    return table([f"{of.unit}, by the number of {of.things}", *(f"{n:,}" for n in sizes), "growth"], rows)


def ratios(found):
    """By row. A growth below 1 is noise."""
    grown = {of.title: growth(found[c]["Tenon"]) for c, of in CURVES.items() if of.goal.of == "growth"}
    to_peers = {
        f"{of.title} to {peer}": ratio(of, found[c], peer) for c, of in CURVES.items() for peer in of.peers
    }
    return {row: max(1.0, value) for row, value in grown.items()} | to_peers


def draw(found, path):
    """A panel for each curve, both axes logarithmic."""
    columns = 3
    n_rows = -(-len(found) // columns)
    figure = Figure(figsize=(3.4 * columns, 2.5 * n_rows), layout="constrained")
    panels = figure.subplots(n_rows, columns).flat
    for axes in panels[len(found) :]:
        axes.axis("off")
    for axes, (curve, results) in zip(panels, found.items(), strict=False):
        of = CURVES[curve]
        medians = {name: [s.median for s in by_n.values()] for name, by_n in results.items()}
        for colour, (name, values) in zip(COLOURS, medians.items(), strict=False):
            axes.plot(of.sizes, values, "o-", color=colour, label=name, markersize=3)
        if of.goal.of == "value":
            axes.axhline(of.goal.limit, color=INK, linestyle=":", linewidth=1, label="goal")
        least = min(map(min, medians.values()))
        most = max(map(max, medians.values()))
        axes.set_xscale("log" if of.sizes[0] else "symlog")  # which shows 0
        axes.set(yscale="log", xlabel=of.things, ylabel=of.unit)
        axes.set_ylim(least / 3, max(most * 3, least * 30))  # a flat curve looks flat
        axes.set_title(of.title, fontsize=9, color=INK)
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
        "Medians beside the most things. *IQR*: the distance between the quartiles. *growth*: divided by "
        "Tenon's median beside the fewest; *ratio*: by the peer's. A goal is the most that is allowed.",
        "",
        goal_table(found),
        "",
        "### Curves",
    ]
    for curve, results in found.items():
        lines += ["", f"#### {CURVES[curve].title}", "", curve_table(curve, results)]
    if not (options.quick or options.check):
        draw(found, CHART)
    return Section("\n".join(lines), ratios(found))
