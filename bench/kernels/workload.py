# SPDX-License-Identifier: Apache-2.0
"""Measures in a process of its own and writes the section of docs/benchmarks.md."""

import statistics
import sys

from processes import run_module
from report import Section, machine, plural, table, versions

PACKAGES = ("tenon-arrays", "numpy", "torch")
PEERS = ("numpy", "torch", "torch_all")


def run(options):
    print("kernels", file=sys.stderr, flush=True)
    found = run_module("kernels.measure", options.rounds)
    rows, ratios = [], {}
    for case, ms in found["milliseconds"].items():
        to_peers = {peer: ms["tenon"] / ms[peer] for peer in PEERS}
        ratios |= {f"{case} to {peer}": ratio for peer, ratio in to_peers.items()}
        times = (f"{ms[name]:.3f}" for name in ("tenon", *PEERS))
        rows.append([case, *times, *(f"{ratio:.2f}" for ratio in to_peers.values())])
    medians = [
        statistics.median(ratio for row, ratio in ratios.items() if row.endswith(f" to {peer}"))
        for peer in PEERS
    ]
    rows.append(["median of the ratios", "", "", "", "", *(f"{ratio:.2f}" for ratio in medians)])
    threads = plural(found["threads"], "thread", "s")
    header = ["", "Tenon ms", "NumPy ms", "torch ms, 1 thread", f"torch ms, {threads}"]
    header += ["/ NumPy", "/ torch, 1 thread", f"/ torch, {threads}"]
    lines = [
        f"{machine()}. {versions(PACKAGES)}. `{options.command}`: least of {options.rounds} turns each.",
        "",
        table(header, rows),
    ]
    return Section("\n".join(lines), ratios)
