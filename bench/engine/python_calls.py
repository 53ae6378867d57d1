# SPDX-License-Identifier: Apache-2.0
"""Calls of the engine from Python, and similar functions of Python."""

import threading
from concurrent.futures import ThreadPoolExecutor

from timing import Call

import tenon as tn

CALLS = {
    "Push + wait": ["tn.push(fn, a).wait()", "pool.submit(fn, x).result()"],
    "Leases": [
        "with a.write() as v: pass",
        "with a.read() as v: pass",
        "a.lease('r').release()",
        "with lock: pass",
    ],
    "Waits for what is ready": ["a.wait_to_read()", "op.wait()"],
}
LEGEND = {
    "a": "an array of 8 float32",
    "fn": "`lambda v: None`",
    "op": "an op that is done",
    "pool": "`concurrent.futures.ThreadPoolExecutor(1)`",
    "lock": "`threading.Lock()`",
}


def contenders():
    """By heading and call. The engine has one worker, as the pool has one thread."""
    tn.set_engine("pool", workers=1)
    a = tn.zeros(8, "float32")
    names = {"tn": tn, "a": a, "x": a.asnumpy(), "lock": threading.Lock(), "pool": ThreadPoolExecutor(1)}
    names["fn"] = lambda v: None
    names["op"] = tn.push(names["fn"], a)
    names["op"].wait()
    return {heading: {call: Call(call, names) for call in calls} for heading, calls in CALLS.items()}
