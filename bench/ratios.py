# SPDX-License-Identifier: Apache-2.0
"""The ratios of the last complete measurement on each kind of machine, and what has become worse since.

A ratio is Tenon's time divided by that of a peer in the same run. It depends less on the machine than a
time, but processors differ, so ratios are compared only with those of the same kind of machine."""

import json
import os
from pathlib import Path

from report import processor, table

FILE = Path(__file__).with_name("ratios.json")  # kind of machine -> workload -> row -> ratio
ALLOWED = 1.15  # a row fails when its ratio is above this multiple of the stored one


def kind_of_machine():
    return f"{processor()}, {os.cpu_count()} cores"


def stored(workload, file=FILE):
    """Ratio by row; empty: this workload was not measured on this kind of machine."""
    if not file.exists():
        return {}
    return json.loads(file.read_text()).get(kind_of_machine(), {}).get(workload, {})


def store(workload, ratios, file=FILE):
    kinds = json.loads(file.read_text()) if file.exists() else {}
    rounded = {row: round(ratio, 3) for row, ratio in sorted(ratios.items())}
    kinds.setdefault(kind_of_machine(), {})[workload] = rounded
    file.write_text(json.dumps(kinds, indent=1, sort_keys=True) + "\n")


def worse(before, now):
    """The rows of before that are worse now, and those that now does not have."""
    return [row for row, ratio in before.items() if row not in now or now[row] > ALLOWED * ratio]


def check(workload, before, measure):
    """Measures; measures again if a row is worse, because another program may have run beside it.

    measure: returns ratio by row. Returns the report and whether no row was worse in both measurements."""
    now = measure()
    if worse(before, now):
        again = measure()
        now = {row: min(now.get(row, ratio), ratio) for row, ratio in again.items()} | {
            row: ratio for row, ratio in now.items() if row not in again
        }
    failed = worse(before, now)
    rows = []
    for row, ratio in before.items():
        found = f"{now[row]:.2f}" if row in now else "not measured"
        change = f"{now[row] / ratio:.2f}" if row in now else ""
        rows.append([row, f"{ratio:.2f}", found, change, "**worse**" if row in failed else ""])
    rows += [[row, "", f"{now[row]:.2f}", "", "new"] for row in now if row not in before]
    text = table([f"{workload}: Tenon / peer", "stored", "now", "now / stored", ""], rows)
    return text, not failed
