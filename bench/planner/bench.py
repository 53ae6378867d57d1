#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Plans of tn.Arena.plan and of plain first fit, compared with the lower bound.

    bench.py [--json] [--csv FILE ...] [NAME ...]

The peers are first fit in one order: large tensors first (as TFLite's arena planner does), earliest use
first, and large times long first. They are computed by the planner's own first fit in its own orders, of
which it takes the best. A ratio is a peak divided by the most bytes that live at once; no plan is below
1.000. Seconds are of the process, one run. --csv adds files with the columns id, lower, upper, size. NAME
selects the cases whose name contains it.
"""

import argparse
import json
import time

import planner_cases as cases

from tenon._ipc.planner import first_fit, first_fit_orders, most_live, plan


def torch_cases():
    import planner_models as models
    import torch

    torch.manual_seed(1)
    resnet, image = models.resnet18(), torch.randn(1, 3, 224, 224)
    yield cases.Case("ResNet-18, recorded, 1 x 3 x 224 x 224", models.record(resnet, image))
    encoder, text = models.transformer(), torch.randn(1, 256, 256)
    yield cases.Case("transformer, recorded, 6 layers, 256 x 256", models.record(encoder, text))


def all_cases(files):
    yield from torch_cases()
    for training in (False, True):
        yield cases.cnn(24, 0, training)
        yield cases.transformer(12, 0, training)
    yield cases.nested(60, 0)
    for n in (200, 1_000):
        yield cases.random_intervals(n, 1, longest=0.3)
    for n in (20, 100, 300):
        yield cases.replacing(n, 0)
    for n in (30, 120, 300, 1_000):
        yield cases.tiling(n, 0)
    yield cases.tiling(200, 0, slack=0.05)
    yield cases.transformer(360, 0, training=True)
    yield cases.random_intervals(10_000, 1)
    yield cases.tiling(10_000, 0)
    for file in files:
        yield cases.from_csv(file)


def peers(tensors, alignment=64):
    """Ratios of first fit in one order."""
    spans = [(-(-nbytes // alignment), first, last) for nbytes, first, last in tensors.values() if nbytes]
    bound = most_live(spans)
    ratios = {}
    for name, order in zip(("size", "area", "first"), first_fit_orders(spans), strict=True):
        offsets = first_fit(spans, order)
        ratios[name] = max(at + size for at, (size, _, _) in zip(offsets, spans, strict=True)) / bound
    return ratios


def measure(case):
    began = time.process_time()
    found = plan(case.tensors)
    seconds = time.process_time() - began
    return {
        "case": case.name,
        "lower_bound": found.lower_bound,
        "total": found.total / found.lower_bound,
        **peers(case.tensors),
        "ours": found.nbytes / found.lower_bound,
        "is_optimal": found.is_optimal,
        "seconds": seconds,
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help="run the cases whose name contains it")
    parser.add_argument("--csv", action="append", default=[], metavar="FILE", help="another case; may repeat")
    parser.add_argument("--json", action="store_true", help="end with one line of JSON")
    options = parser.parse_args()

    head = f"{'case':44} {'KiB':>9} {'total':>8} {'by size':>8} {'by first':>8} {'by area':>8}"
    print(f"{head} {'ours':>7} {'proved':>6} {'s':>6}")
    rows = []
    for case in all_cases(options.csv):
        if options.names and not any(name in case.name for name in options.names):
            continue
        row = measure(case)
        rows.append(row)
        print(
            f"{row['case'][-44:]:44} {row['lower_bound'] / 1024:9.1f} {row['total']:8.2f} {row['size']:8.3f} "
            f"{row['first']:8.3f} {row['area']:8.3f} {row['ours']:7.3f} "
            f"{'yes' if row['is_optimal'] else 'no':>6} {row['seconds']:6.3f}",
            flush=True,
        )
    if options.json:
        print(json.dumps(rows))


if __name__ == "__main__":
    main()
