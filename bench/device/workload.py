# SPDX-License-Identifier: Apache-2.0
"""Feeds that deliver on a GPU: bandwidth from the slots, steps beside the feed, and copies on the host."""

import statistics
import sys

from processes import run_module
from report import Section, machine, plural, table

from tenon import _core

from . import measure, steps
from .driver import Driver

BANDWIDTH_GOAL, STEP_GOAL = 0.95, 1.03
FAKE = "the fake driver of tests/device, whose times measure nothing"


def merged(parts):
    """The results of all processes in one: rounds are joined, of the rest that of the last process counts."""
    result = dict(parts[-1])
    for key in ("bandwidth", "steps"):
        result[key] = {name: [v for part in parts for v in part[key][name]] for name in parts[-1][key]}
    return result


def spread(values):
    low, median, high = statistics.quantiles(values, n=4, method="inclusive")
    return median, high - low


def ratio_row(work, unit, ours, theirs, peer, goal=None, is_least=True):
    """The ratio is taken within a round."""
    ratio, between = spread([a / b for a, b in zip(ours, theirs, strict=True)])
    is_met = goal is None or (ratio >= goal if is_least else ratio <= goal)
    figures = [f"{statistics.median(ours):.3g} {unit}", f"{statistics.median(theirs):.3g} {unit}"]
    verdict = "" if goal is None else "met" if is_met else "**missed**"
    goal = "" if goal is None else f"{'>=' if is_least else '<='} {goal}"
    return [work, figures[0], peer, figures[1], f"{ratio:.3f}", f"{between:.3f}", goal, verdict]


def rows(found):
    gigabytes = {name: [value / 1e9 for value in values] for name, values in found["bandwidth"].items()}
    ours, peak = gigabytes[measure.SLOTS], gigabytes[measure.PEAK]
    yield ratio_row("host to device, from slots", "GB/s", ours, peak, measure.PEAK, BANDWIDTH_GOAL)
    ms = {name: [1e3 * value for value in values] for name, values in found["steps"].items()}
    if ms:
        ours, alone = ms.pop(steps.TENON), ms.pop(steps.RESIDENT)
        yield ratio_row("step beside the feed", "ms", ours, alone, steps.RESIDENT, STEP_GOAL, is_least=False)
        for peer, theirs in ms.items():
            yield ratio_row("step beside the feed", "ms", ours, theirs, peer, is_least=False)
    if (copies := found["copies"]) is not None:
        yield ["host copies", f"{copies:.2f}", "", "", "", "", "0", "met" if copies < 0.5 else "**missed**"]


def ratios_of(found):
    """Tenon's time divided by the peer's, by row. The kind of machine does not name the device."""
    bandwidth, step = found["bandwidth"], found["steps"]
    pairs = {"host to device": zip(bandwidth[measure.PEAK], bandwidth[measure.SLOTS], strict=True)}
    if step:
        pairs["step beside the feed"] = zip(step[steps.TENON], step[steps.RESIDENT], strict=True)
    return {
        f"{work}, {found['device']}": statistics.median(ours / theirs for ours, theirs in of)
        for work, of in pairs.items()
    }


def section(found, options):
    if found["is_fake"]:
        figures = [[row[0], "", row[2], "", "", "", row[6], "not measured"] for row in rows(found)]
    else:
        figures = list(rows(found))
    device = f"{found['device']}{f' ({FAKE})' if found['is_fake'] else ''}"
    effort = f"{plural(options.processes, 'process', 'es')} of {options.rounds} rounds"
    copy_ms = 1e3 * found["nbytes"] / statistics.median(found["bandwidth"][measure.PEAK])
    batch = "" if found["is_fake"] else f", a copy of {copy_ms:.3g} ms at the peak"
    header = ["work", "Tenon", "peer", "the peer's", "ratio", "between quartiles", "goal", ""]
    return "\n".join(
        [
            f"{device}; {machine()}. {found['versions']}. `{options.command}`: {effort}; medians.",
            f"A batch has {found['nbytes'] / 1e6:.1f} MB{batch}. The slots are {found['host_memory']}.",
            *found["notes"],
            "",
            table(header, figures),
        ]
    )


def run(options):
    try:
        n_devices = _core.device_count()
    except OSError as error:
        sys.exit(f"device: not measured: {error}")
    if n_devices == 0:
        sys.exit("device: not measured: the CUDA driver sees no device")
    driver = Driver()
    if driver.is_fake and not options.quick:
        sys.exit(f"device: no table is written: {driver.name()} is {FAKE}")
    arguments = [options.rounds, *(["--quick"] if options.quick else [])]
    print("device", file=sys.stderr, flush=True)
    parts = [run_module("device.measure", *arguments) for _ in range(options.processes)]
    found = merged(parts)
    return Section(section(found, options), {} if driver.is_fake else ratios_of(found))
