# SPDX-License-Identifier: Apache-2.0
"""One process of the measurement, with bench/ on the path:

    python -m share.measure ROUNDS PREFIX SCRATCH [CASE ...]

Prints one line of JSON: "versions", and "cases"[case][peer], which holds "kind" and either "times", the
latency of each exchange in nanoseconds (null: given up), or "problem", which says why there are none.
"""

import json
import os
import sys
import time

from report import versions

from . import build, native
from .cases import CASES, all_peers
from .participants import ContenderError, Pair, die_with_parent

PACKAGES = ("tenon-arrays", "numpy", "torch", "iceoryx2", "ray")
TURN_SECONDS = 0.1
MOST_PER_TURN = 200
# A peer that takes longer for one exchange skips rounds.
LONG_TURN_SECONDS = 0.2
# A contender that has given up in all of its exchanges is not measured again.
ROUNDS_OF_THE_LOST = 2


class Run:
    """Names of this run, and a note of its processes for the cleanup."""

    def __init__(self, prefix, scratch):
        self.prefix, self.scratch = prefix, scratch
        self.pairs = 0

    def next_prefix(self):
        self.pairs += 1
        return f"{self.prefix}-{self.pairs}"

    def note(self, pid):
        with open(os.path.join(self.scratch, "pids"), "a") as file:
            file.write(f"{pid}\n")


def seconds_of(pair, n):
    """The time of one exchange: the least of three turns, or that of one long turn."""
    found = []
    while len(found) < 3 and sum(found) < TURN_SECONDS:
        began = time.perf_counter()
        pair.turn(n)
        found.append((time.perf_counter() - began) / n)
    return min(found)


def tempo(pair):
    """The number of exchanges of a turn, and n: it takes part in every n-th round."""
    pair.turn(1)
    seconds = seconds_of(pair, 1)
    if seconds < TURN_SECONDS / 10:
        seconds = seconds_of(pair, 10)
    n = max(1, min(MOST_PER_TURN, round(TURN_SECONDS / seconds)))
    return n, max(1, round(seconds / LONG_TURN_SECONDS))


class Contest:
    """Some peers in one case, which take turns."""

    def __init__(self, case, rows, run):
        self.case, self.rows, self.run = case, rows, run
        self.pairs, self.found = {}, {}

    def attempt(self, name, action):
        """A contender that fails is excluded, and its row says why."""
        try:
            return action()
        except (ContenderError, OSError) as problem:
            print(f"share: {name}: {problem}", file=sys.stderr, flush=True)
            lines = str(problem).splitlines()
            self.found[name] = {"problem": f"failed: {lines[-1]}"}
            self.pairs.pop(name)[0].close()
        return None

    def measure(self, n_rounds):
        try:
            for module, peer in self.rows:
                pair = Pair(module, peer, self.case, self.run)
                self.pairs[peer.name] = (pair, None)
                self.found[peer.name] = {"times": []}
                self.attempt(peer.name, pair.set_up)
            for name, (pair, _) in list(self.pairs.items()):
                found = self.attempt(name, lambda pair=pair: tempo(pair))
                if found:
                    self.pairs[name] = (pair, found)
            for i in range(n_rounds):
                names = list(self.pairs)
                start = i % len(names) if names else 0
                for name in names[start:] + names[:start]:
                    self.take_turn(name, i)
        finally:
            for pair, _ in self.pairs.values():
                pair.close()
        return self.found

    def take_turn(self, name, i):
        pair, (n, stride) = self.pairs[name]
        times = self.found[name]["times"]
        is_lost = i >= ROUNDS_OF_THE_LOST and not any(times)
        if i % stride == 0 and not is_lost:
            times += self.attempt(name, lambda: pair.turn(n)) or []


def measure(case, peers, n_rounds, run):
    """The results by peer, in the order of the peers."""
    rows = [(module, peer) for module, peer in peers if case in peer.cases]
    found = {
        peer.name: {"problem": f"not installed: {absent}"}
        for _, peer in rows
        if (absent := peer.not_installed())
    }
    rows_here = [row for row in rows if row[1].name not in found]
    for is_noisy in (False, True):
        some = [row for row in rows_here if row[1].is_noisy == is_noisy]
        found |= Contest(case, some, run).measure(n_rounds)
    return {peer.name: found[peer.name] | {"kind": peer.kind} for _, peer in rows}


def main(rounds, prefix, scratch, *wanted):
    die_with_parent()
    run, peers, results = Run(prefix, scratch), all_peers(), {}
    for case in CASES:
        if not wanted or case in wanted:
            print(f"share: {CASES[case].title}", file=sys.stderr, flush=True)
            results[case] = measure(case, peers, int(rounds), run)
    known = ", ".join(filter(None, [versions(PACKAGES), native.versions(str(build.LIBRARY))]))
    print(json.dumps({"versions": known, "cases": results}))


if __name__ == "__main__":
    try:
        main(*sys.argv[1:])
    except KeyboardInterrupt:
        sys.exit(130)
