# SPDX-License-Identifier: Apache-2.0
"""Runs bench.py in a process of its own and writes the section of docs/benchmarks.md."""

import json
import subprocess
import sys
from pathlib import Path

from report import Section, machine, table, versions

PACKAGES = ("tenon-arrays", "torch")
HEADER = [
    "",
    "lower bound, KiB",
    "side by side",
    "by size",
    "by first use",
    "by area",
    "Tenon",
    "proved",
    "s",
]


def run(options):
    """Plans are deterministic: one round, one process."""
    print("planner", file=sys.stderr, flush=True)
    command = [sys.executable, str(Path(__file__).with_name("bench.py")), "--json"]
    result = subprocess.run(command, stdout=subprocess.PIPE, text=True)
    if result.returncode != 0:
        sys.exit(f"{' '.join(command)} ended with {result.returncode}")
    found = json.loads(result.stdout.splitlines()[-1])
    rows = [
        [row["case"], f"{row['lower_bound'] / 1024:.1f}", f"{row['total']:.2f}"]
        + [f"{row[name]:.3f}" for name in ("size", "first", "area", "ours")]
        + ["yes" if row["is_optimal"] else "no", f"{row['seconds']:.3f}"]
        for row in found
    ]
    text = f"{machine()}. {versions(PACKAGES)}. `{options.command}`: one run.\n\n{table(HEADER, rows)}"
    return Section(text, {f"{row['case']}, size to the lower bound": row["ours"] for row in found})
