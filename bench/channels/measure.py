# SPDX-License-Identifier: Apache-2.0
"""One process of the measurement, with bench/ on the path:

    python -m channels.measure ROUNDS PREFIX SCRATCH [CASE ...]

Prints one line of JSON, as share.measure does."""

import json
import sys

from report import versions
from share.measure import Run, measure
from share.participants import die_with_parent

from .cases import CASES
from .rows import PEERS

PACKAGES = ("tenon-arrays", "numpy", "iceoryx2")


def main(rounds, prefix, scratch, *wanted):
    die_with_parent()
    run, results = Run(prefix, scratch), {}
    for case in CASES:
        if not wanted or case in wanted:
            print(f"channels: {CASES[case].title}", file=sys.stderr, flush=True)
            results[case] = measure(case, [("channels.rows", peer) for peer in PEERS], int(rounds), run)
    print(json.dumps({"versions": versions(PACKAGES), "cases": results}))


if __name__ == "__main__":
    try:
        main(*sys.argv[1:])
    except KeyboardInterrupt:
        sys.exit(130)
