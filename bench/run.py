#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Measures Tenon and its peers and writes the tables of docs/benchmarks.md. `make bench` calls it.

    run.py [--quick] [--rounds N] [--processes N] [WORKLOAD ...]

Run it with a Python that has requirements/test.txt and the package. --quick is for development: it measures
few rounds and prints the results instead of writing them. Workloads: exchange, engine, kernels, planner,
share, feed; all these by default. And device, on a machine with a GPU."""

import argparse
import importlib
import sys
from pathlib import Path

from report import replace_section

ON_ANY_MACHINE = ("exchange", "engine", "kernels", "planner", "share", "feed")
WORKLOADS = (*ON_ANY_MACHINE, "device")
PAGE = Path(__file__).resolve().parent.parent / "docs" / "benchmarks.md"


def parse():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("workloads", nargs="*", metavar="WORKLOAD", help=f"any of: {', '.join(WORKLOADS)}")
    parser.add_argument("--rounds", type=int, help="rounds of each process (default 15)")
    parser.add_argument("--processes", type=int, help="fresh processes for each workload (default 5)")
    parser.add_argument("--quick", action="store_true", help="3 rounds in 1 process, printed only")
    options = parser.parse_args()
    for name in options.workloads:
        if name not in WORKLOADS:
            parser.error(f"there is no workload {name!r}: choose from {', '.join(WORKLOADS)}")
    options.workloads = options.workloads or ON_ANY_MACHINE
    options.rounds = options.rounds or (3 if options.quick else 15)
    options.processes = options.processes or (1 if options.quick else 5)
    options.command = " ".join(["bench/run.py", *sys.argv[1:]])
    return options


def main():
    options = parse()
    for name in options.workloads:
        text = importlib.import_module(f"{name}.workload").run(options)
        if options.quick:
            print(text)
        else:
            replace_section(PAGE, name, text)
            print(f"{name}: written to {PAGE}")


if __name__ == "__main__":
    main()
