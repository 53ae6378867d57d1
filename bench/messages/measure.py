# SPDX-License-Identifier: Apache-2.0
"""One process of the measurement, with bench/ on the path:

    python -m messages.measure ROUNDS PREFIX SCRATCH [CASE ...]

It is the sender of all contenders; their receivers are processes of their own. Prints one line of JSON:
"versions"; "times"[case][contender], the nanoseconds of each exchange; "faults"[contender], from faults.py.
An exchange ends when all receivers have looked at the arrays and have answered. What is produced in place is
there before the time begins, but the time to ask for its memory counts.
"""

import json
import multiprocessing
import os
import signal
import struct
import sys
import time

from report import versions
from share.participants import die_with_parent

from . import faults
from .cases import CASES, look
from .contenders import Side

PACKAGES = ("tenon-arrays", "numpy", "torch", "pyzmq")
CONTEXT = multiprocessing.get_context("spawn")
TURN_SECONDS = 0.1
MOST_PER_TURN = 200
now = time.perf_counter_ns


def serve(contender, case, side, answers):
    """Main function of a receiver."""
    die_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if contender.name.startswith("torch"):
        import torch

        torch.set_num_threads(1)
    receiver = contender.receiver(side)
    answers.send_bytes(b"ready")
    while (message := receiver.receive()) is not None:
        total = look(case, message)
        del message
        receiver.done()
        answers.send_bytes(struct.pack("d", total))


class Group:
    """A sender, and its receivers in processes of their own."""

    def __init__(self, contender, case, prefix, scratch, main=serve):
        self.contender, self.case = contender, case
        path = os.path.join(scratch, prefix)
        wires = [contender.wire(CONTEXT, f"{path}-{i}") for i in range(case.readers)]
        self.sender = contender.sender(Side(wires, prefix, case.readers))
        self.answers, self.processes = [], []
        for i, wire in enumerate(wires):
            ours, theirs = CONTEXT.Pipe()
            side = Side([wire], prefix, case.readers, i)
            process = CONTEXT.Process(target=main, args=(contender, case, side, theirs), daemon=True)
            process.start()
            theirs.close()
            self.answers.append(ours)
            self.processes.append(process)
        for answers in self.answers:
            assert answers.recv_bytes() == b"ready"
        self.sender.pids = [process.pid for process in self.processes]
        self.message = case.message()

    def exchange(self):
        """Nanoseconds."""
        message, before = self.message, now()
        if self.contender.in_place:
            arrays = [self.sender.empty(array) for array in message["arrays"]]
            asked = now() - before
            for array, source in zip(arrays, message["arrays"], strict=True):
                array[...] = source
            message = message | {"arrays": arrays}
            before = now() - asked
        self.sender.send(message)
        found = [answers.recv_bytes() for answers in self.answers]
        after = now()
        for total in found:
            assert struct.unpack("d", total) == (self.case.expected(),), self.contender.name
        return after - before

    def turn(self, n):
        return [self.exchange() for _ in range(n)]

    def close(self):
        for process in self.processes:
            process.kill()
            process.join()
        self.sender.close()


def measure(name, rounds, prefix, scratch):
    case, groups, times = CASES[name], [], {}
    try:
        for i, contender in enumerate(case.contenders):
            group = Group(contender, case, f"{prefix}-{name.replace(' ', '')}-{i}", scratch)
            group.turn(3)
            seconds = min(group.turn(5)) / 1e9
            groups.append((group, max(1, min(MOST_PER_TURN, round(TURN_SECONDS / seconds)))))
            times[contender.name] = []
        for i in range(rounds):
            first = i % len(groups)
            for group, n in groups[first:] + groups[:first]:
                times[group.contender.name] += group.turn(n)
    finally:
        for group, _ in groups:
            group.close()
    return times


def main(rounds, prefix, scratch, *wanted):
    import torch

    die_with_parent()
    torch.set_num_threads(1)
    times = {}
    for name, case in CASES.items():
        if not wanted or name in wanted:
            print(f"messages: {case.title}", file=sys.stderr, flush=True)
            times[name] = measure(name, int(rounds), prefix, scratch)
    found = {} if wanted else faults.measure(Group, f"{prefix}-faults", scratch)
    print(json.dumps({"versions": versions(PACKAGES), "times": times, "faults": found}))


if __name__ == "__main__":
    try:
        main(*sys.argv[1:])
    except KeyboardInterrupt:
        sys.exit(130)
