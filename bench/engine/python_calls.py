# SPDX-License-Identifier: Apache-2.0
"""Calls of the engine from Python, and similar functions of Python."""

import threading
from concurrent.futures import ThreadPoolExecutor

import mxnet_peer
from timing import Call

import tenon as tn

CALLS = {
    "Push + wait": ["tn.push(fn, a).wait()", "pool.submit(fn, x).result()"],
    "100 fills, then a wait": ["fills(a)", "fills_of_mxnet(m)"],
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
    "fills(a)": "100 times `tn.push(tn.fill, tn.overwrite(a), 1)`, then `a.wait_to_read()`",
    "fills_of_mxnet(m)": "100 times the fastest way of MXNet, `_set_value(src=1.0, out=m)`, then "
    f"`m.wait_to_read()`; `m`: an array of {mxnet_peer.NAME}",
}


def fills(a):
    for _ in range(100):
        tn.push(tn.fill, tn.overwrite(a), 1)
    a.wait_to_read()


def fills_of_mxnet(m):
    set_value = mxnet_peer.load().nd._internal._set_value
    for _ in range(100):
        set_value(src=1.0, out=m)
    m.wait_to_read()


def contenders():
    """By heading and call. The engine has one worker, as the pool has one thread."""
    tn.set_engine("pool", workers=1)
    a = tn.zeros(8, "float32")
    names = {"tn": tn, "a": a, "x": a.asnumpy(), "lock": threading.Lock(), "pool": ThreadPoolExecutor(1)}
    names["fn"] = lambda v: None
    names["op"] = tn.push(names["fn"], a)
    names["op"].wait()
    names |= {"fills": fills, "fills_of_mxnet": fills_of_mxnet}
    if not mxnet_peer.is_missing():
        names["m"] = mxnet_peer.load().nd.zeros(8)
    return {
        heading: {call: Call(call, names) for call in calls if "(m)" not in call or "m" in names}
        for heading, calls in CALLS.items()
    }
