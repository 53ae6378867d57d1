# SPDX-License-Identifier: Apache-2.0
"""What becomes of messages when a receiver is killed, keeps what it got, or writes to it."""

import time

import numpy as np
from share.participants import die_with_parent

from .cases import Case
from .contenders import ARENA, NAMED, POOL_EACH, POOL_PIPE, TORCH

SENT = 12
ONE = Case("one reader", 1, 1 << 20, ())
TWO = Case("two readers", 1, 1 << 20, (), readers=2)


def serve(contender, case, side, control):
    """Main function of a receiver, which does what it is told."""
    die_with_parent()
    receiver, kept = contender.receiver(side), []
    control.send_bytes(b"ready")
    while True:
        command = control.recv()
        if command == "receive":
            kept.append(receiver.receive()["arrays"][0])
        elif command == "done":
            receiver.done()
        elif command == "add":
            import torch

            torch.as_tensor(kept[-1]).add_(1000)
        control.send([float(np.asarray(array)[0]) for array in kept])


def ask(group, reader, command):
    group.answers[reader].send(command)
    return group.answers[reader].recv()


def send(group, k, *readers):
    """Sends a message of the number k, which these readers receive. Returns what the first one has then."""
    for reader in readers:
        group.answers[reader].send("receive")
    group.sender.send({"arrays": [np.full(TWO.nbytes // 4, k, "f4")]})
    found = [group.answers[reader].recv() for reader in readers]
    return found[0]


def after_a_kill(group):
    """A reader is killed while it holds a message. The other one gets the next ones."""
    send(group, 0, 0, 1)
    ask(group, 0, "done")
    group.processes[1].kill()
    group.processes[1].join()
    times = []
    for k in range(1, 1 + SENT):
        began = time.perf_counter_ns()
        assert send(group, k, 0)[-1] == k
        times.append(time.perf_counter_ns() - began)
        ask(group, 0, "done")
    return {"refused": getattr(group.sender, "refused", 0), "slowest": max(times)}


def kept_messages(group):
    """The reader keeps the arrays, and its loop continues."""
    for k in range(SENT):
        send(group, k, 0)
        found = ask(group, 0, "done")
    return {"overwritten": sum(value != k for k, value in enumerate(found))}


def written_messages(group):
    """A reader adds to its array in place."""
    send(group, 0, 0, 1)
    ask(group, 0, "add")
    return {"seen": ask(group, 1, "look") != [0.0]}


def measure(make_group, prefix, scratch):
    """By contender; no entry where a contender cannot take part: who unmaps SharedMemory under a view gets an
    error, and torch's queues are told of no death."""
    found = {}
    for i, contender in enumerate((ARENA, TORCH, NAMED, POOL_PIPE, POOL_EACH)):
        tests = [(written_messages, TWO)]
        if contender is not NAMED:
            tests.append((kept_messages, ONE))
        if contender in (ARENA, POOL_EACH):
            tests.append((after_a_kill, TWO))
        found[contender.name] = {}
        for test, case in tests:
            group = make_group(contender, case, f"{prefix}-{i}{test.__name__[0]}", scratch, serve)
            try:
                found[contender.name] |= test(group)
            finally:
                group.close()
    return found
