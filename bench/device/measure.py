# SPDX-License-Identifier: Apache-2.0
"""One process of the measurement, with bench/ on the path:

    python -m device.measure ROUNDS [--quick]

Prints one line of JSON: "device", "is_fake", "versions", "host_memory" and "nbytes" of a batch; "bandwidth":
name -> bytes per second, one for each round; "copies": host copies of the feed for each batch, or null;
"steps": name -> seconds per step, one for each round; "notes": what is not measured, and why. Contenders take
turns within each round. --quick: small batches and short turns."""

import itertools
import json
import sys
import time

import numpy as np
from report import versions

import tenon as tn
from tenon.demo._copy_meter import payloads_written, why_unavailable

from . import steps
from .driver import Driver, PinnedCopies

PACKAGES = ("tenon-arrays", "torch", "spdl")
PEAK = "pinned copies by the driver"
SLOTS = "tenon.Feed, from its slots"
N_SLOTS, N_DEVICE_SLOTS = 6, 3
TURN_SECONDS = 0.25


def fields_of(rows):
    return {"data": ("f4", (rows, 3, 224, 224)), "label": ("i8", (rows,))}


def nbytes_of(fields):
    return sum(np.dtype(dtype).itemsize * int(np.prod(shape)) for dtype, shape in fields.values())


WHOLE, SMALL = fields_of(64), fields_of(1)  # 38.5 MB, the batch of images of the other measurements; 0.6 MB


def leave(_):
    """A fill that costs nothing: the copies are measured."""


def bandwidth(driver, fields, rounds, turn_seconds):
    """Name -> bytes per second, and how the feed pins its slots."""
    feed = tn.Feed(
        leave, tn.schema(**fields), workers=1, slots=N_SLOTS, device="cuda:0", device_slots=N_DEVICE_SLOTS
    )
    with feed:
        batches = iter(feed)

        def from_slots(n):
            begin = time.perf_counter()
            for _ in itertools.islice(batches, n):
                pass
            tn.waitall()
            return time.perf_counter() - begin

        nbytes = nbytes_of(fields)
        copies = PinnedCopies(driver, nbytes, N_SLOTS, N_DEVICE_SLOTS)
        contenders = {PEAK: copies.seconds, SLOTS: from_slots}
        for once in contenders.values():
            once(3)
        n = max(3, int(turn_seconds / (copies.seconds(3) / 3)))
        seconds = steps.take_turns(contenders, rounds, lambda run: run(n))
        host_memory = feed.stats().host_memory
        copies.close()
    return {name: [n * nbytes / value for value in values] for name, values in seconds.items()}, host_memory


def host_copies(driver):
    """Host copies for each batch, by the pages that this process writes. One of the writes is the fill."""
    own = 2 if driver.is_fake else 1  # the memory of the fake device lies in this process
    with tn.Feed(steps.fill, tn.schema(**WHOLE), workers=0, slots=N_SLOTS, device="cuda:0") as feed:
        batches = iter(feed)

        def take():
            batch = next(batches)
            tn.waitall()
            return batch

        return payloads_written(take, nbytes_of(WHOLE)) - own


def main(rounds, is_quick):
    driver = Driver()
    fields = SMALL if is_quick else WHOLE
    turn_seconds = 0.01 if is_quick else TURN_SECONDS
    speeds, host_memory = bandwidth(driver, fields, rounds, turn_seconds)
    notes, copies, found = [], None, {}
    if problem := why_unavailable():
        notes.append(f"Host copies are not counted: {problem}.")
    else:
        copies = host_copies(driver)
    torch, problem = steps.torch_with_cuda()
    if torch is None:
        notes.append(f"Steps and peers are not measured: {problem}.")
    else:
        found, left_out = steps.measure(torch, fields, rounds, turn_seconds)
        notes += left_out
    result = {
        "device": driver.name(),
        "is_fake": driver.is_fake,
        "versions": versions(PACKAGES),
        "host_memory": host_memory,
        "nbytes": nbytes_of(fields),
        "bandwidth": speeds,
        "copies": copies,
        "steps": found,
        "notes": notes,
    }
    print(json.dumps(result), flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]), "--quick" in sys.argv[2:])
