# SPDX-License-Identifier: Apache-2.0
"""Runs bench.py in a process of its own and writes the section of docs/benchmarks.md."""

import json
import subprocess
import sys
from pathlib import Path

from report import Section, machine, plural, table, versions

PACKAGES = ("tenon-arrays", "numpy", "torch")
PEERS = ("numpy", "torch", "torch_all")


def run(options):
    print("kernels", file=sys.stderr, flush=True)
    script = Path(__file__).with_name("bench.py")
    command = [sys.executable, str(script), "--repeats", str(options.rounds), "--json"]
    result = subprocess.run(command, stdout=subprocess.PIPE, text=True)
    if result.returncode != 0:
        sys.exit(f"{' '.join(command)} ended with {result.returncode}")
    found = json.loads(result.stdout.splitlines()[-1])
    rows = [
        [row["case"], *(f"{row[f'{name}_ms']:.3f}" for name in ("tenon", *PEERS))]
        + [f"{row[f'to_{peer}']:.2f}" for peer in PEERS]
        for row in found["rows"]
    ]
    medians = [f"{found['median'][peer]:.2f}" for peer in PEERS]
    rows.append(["median of the ratios", "", "", "", "", *medians])
    threads = plural(found["threads"], "thread", "s")
    header = ["", "Tenon ms", "NumPy ms", "torch ms, 1 thread", f"torch ms, {threads}"]
    header += ["/ NumPy", "/ torch, 1 thread", f"/ torch, {threads}"]
    text = "\n".join(
        [
            f"{machine()}. {versions(PACKAGES)}. `{options.command}`: least of {options.rounds} turns each.",
            "",
            table(header, rows),
        ]
    )
    ratios = {f"{row['case']} to {peer}": row[f"to_{peer}"] for row in found["rows"] for peer in PEERS}
    return Section(text, ratios)
