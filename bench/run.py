#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Measures Tenon and its peers and writes the tables of docs/benchmarks.md. `make bench` calls it.

    run.py [--quick | --check] [--rounds N] [--processes N] [WORKLOAD ...]

Run it with a Python that has requirements/test.txt and the package. --quick is for development: it measures
few rounds and prints the results instead of writing them. --check compares the ratios to the peers with those
that the last complete run on this kind of machine stored in bench/ratios.json, writes nothing, and fails when
a row is more than 15 % worse in each of two measurements. Workloads: exchange, engine, kernels, share,
feed, growth; all these by default. And messages, channels; and device, on a machine with a GPU."""

import argparse
import importlib
import sys
from pathlib import Path

import ratios
from report import replace_section

ON_ANY_MACHINE = ("exchange", "engine", "kernels", "share", "feed", "growth")
WORKLOADS = (*ON_ANY_MACHINE, "messages", "channels", "device")
PAGE = Path(__file__).resolve().parent.parent / "docs" / "benchmarks.md"


def parse():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("workloads", nargs="*", metavar="WORKLOAD", help=f"any of: {', '.join(WORKLOADS)}")
    parser.add_argument("--rounds", type=int, help="rounds of each process (default 15)")
    parser.add_argument("--processes", type=int, help="fresh processes for each workload (default 5)")
    parser.add_argument("--quick", action="store_true", help="3 rounds in 1 process, printed only")
    parser.add_argument("--check", action="store_true", help="compare with the stored ratios; writes nothing")
    options = parser.parse_args()
    for name in options.workloads:
        if name not in WORKLOADS:
            parser.error(f"there is no workload {name!r}: choose from {', '.join(WORKLOADS)}")
    options.workloads = options.workloads or ON_ANY_MACHINE
    options.rounds = options.rounds or (3 if options.quick else 15)
    options.processes = options.processes or (1 if options.quick else 5)
    options.command = " ".join(["bench/run.py", *sys.argv[1:]])
    return options


def check(options):
    """0: no row is worse; 1: one is; 2: none is, but a workload was not compared."""
    before = {name: ratios.stored(name) for name in options.workloads}
    before = {name: rows for name, rows in before.items() if rows}
    if missing := [name for name in options.workloads if name not in before]:
        print(
            f"not compared: {', '.join(missing)}: {ratios.FILE.name} has no rows of a machine with "
            f"{ratios.kind_of_machine()}; `make bench` on an idle one stores them"
        )
    is_good = True
    for name, rows in before.items():
        run = importlib.import_module(f"{name}.workload").run
        text, is_no_worse = ratios.check(name, rows, lambda run=run: run(options).ratios)
        print(text)
        is_good &= is_no_worse
    return 1 if not is_good else 2 if missing else 0


def main():
    options = parse()
    if options.check:
        return check(options)
    for name in options.workloads:
        section = importlib.import_module(f"{name}.workload").run(options)
        if options.quick:
            print(section.text)
            continue
        replace_section(PAGE, name, section.text)
        ratios.store(name, section.ratios)
        print(f"{name}: written to {PAGE} and {ratios.FILE}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
