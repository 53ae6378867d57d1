# SPDX-License-Identifier: Apache-2.0
"""Feeds beside the ways in which batches of a native generator reach a model today."""

import json
import shlex
import statistics
import subprocess
import sys
from pathlib import Path

import native_build
from native_build import folder_of
from report import machine, table, versions

PACKAGES = ("tenon", "numpy", "torch")
CEILING = "one warm buffer filled in place"


def build():
    folder = folder_of("feed")
    native_build.build(Path(__file__).parent / "native", folder)
    return folder / "libfill.so"


def measured(library, case, options):
    """Name -> (seconds per batch of all rounds, ratios to the ceiling of the same round)."""
    seconds, ratios = {}, {}
    for _ in range(options.processes):
        command = [sys.executable, str(Path(__file__).with_name("measure.py")), str(library), case]
        done = subprocess.run(
            [*command, str(options.rounds)], stdout=subprocess.PIPE, text=True, timeout=1800
        )
        if done.returncode != 0:
            sys.exit(f"{shlex.join(command)} ended with {done.returncode}")
        rounds = json.loads(done.stdout.splitlines()[-1])
        for name, values in rounds.items():
            seconds.setdefault(name, []).extend(values)
            ceiling = rounds[CEILING]
            ratios.setdefault(name, []).extend(c / v for c, v in zip(ceiling, values, strict=True))
    return seconds, ratios


def section(case, nbytes, seconds, ratios):
    rows = []
    for name in sorted(seconds, key=lambda n: statistics.median(seconds[n])):
        low, median, high = statistics.quantiles(seconds[name], n=4, method="inclusive")
        rows.append(
            [
                name,
                f"{1e6 * median:,.1f}",
                f"{1e6 * (high - low):,.1f}",
                f"{nbytes / median / 1e9:.2f}",
                f"{statistics.median(ratios[name]):.3f}",
            ]
        )
    header = [f"batches of {case}", "us per batch", "between quartiles", "GB/s", "x the warm buffer"]
    return table(header, rows)


def run(options):
    from feed.measure import CASES

    library = build()
    parts = [
        f"{machine()}. {versions(PACKAGES)}. `{options.command}`: {options.rounds} rounds in each of "
        f"{options.processes} processes; medians. The last column compares speeds within a round."
    ]
    for case, described in CASES.items():
        print(f"feed: {case}", file=sys.stderr, flush=True)
        parts += ["", section(case, described.nbytes, *measured(library, case, options))]
    return "\n".join(parts)
