# SPDX-License-Identifier: Apache-2.0
"""The two processes of a contender: spawned, pinned, controlled, and ended within a time limit."""

import ctypes
import multiprocessing
import os
import signal
import time
import traceback
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait

from .cases import peers_of

CONTEXT = multiprocessing.get_context("spawn")
MEMORY_BYTES = 1 << 20
START_SECONDS = 90
ANSWER_SECONDS = 60
END_SECONDS = 15
PR_SET_PDEATHSIG = 1


class ContenderError(Exception):
    """An error of one contender; the others continue."""


@dataclass
class Side:
    """The data of one process of a contender."""

    link: Connection  # to the other process
    shared: object  # what Contender.shared returned
    prefix: str  # of all names that the two give; no other pair has it
    scratch: str  # folder of this run
    memory_path: str
    consumer_core: int

    def memory(self):
        """A descriptor of MEMORY_BYTES that both processes share, zero at first."""
        return os.open(self.memory_path, os.O_RDWR)


def die_with_parent():
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def serve(module, peer, case, role, core, control, side):
    """Main function of a process."""
    die_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    party = None
    try:
        party = getattr(peers_of(module)[peer].cases[case], role)(side)
        os.sched_setaffinity(0, {core})
        control.send(("ready", None))
        while (n := control.recv()) is not None:
            control.send(("times", party.turn(n)))
    except (Exception, SystemExit):
        control.send(("failed", traceback.format_exc()))
    finally:
        if party is not None:
            party.close()


class Pair:
    """A contender at work. One thread; close() always."""

    def __init__(self, module, peer, case, run):
        contender = peer.cases[case]
        cores = sorted(os.sched_getaffinity(0))
        self.memory = os.memfd_create("tenon-bench")
        os.ftruncate(self.memory, MEMORY_BYTES)
        self.processes, self.controls = [], []
        self.shared = contender.shared(CONTEXT) if contender.shared else None
        links, prefix = CONTEXT.Pipe(), run.next_prefix()
        path = f"/proc/{os.getpid()}/fd/{self.memory}"
        roles = [("producer", cores[0]), ("consumer", cores[-1])]
        for (role, core), link in zip(roles[: 2 if contender.consumer else 1], links):
            side = Side(link, self.shared, prefix, run.scratch, path, cores[-1])
            control, theirs = CONTEXT.Pipe()
            process = CONTEXT.Process(target=serve, args=(module, peer.name, case, role, core, theirs, side))
            process.start()
            theirs.close()
            self.processes.append(process)
            self.controls.append(control)
            run.note(process.pid)
        for link in links:
            link.close()

    def answers(self, seconds):
        """The next message of each process, in order."""
        end = time.monotonic() + seconds
        found = {}
        while len(found) < len(self.controls):
            waiting = [control for control in self.controls if control not in found]
            ready = wait(waiting, max(0, end - time.monotonic()))
            if not ready:
                raise ContenderError(f"no answer within {seconds} s")
            for control in ready:
                try:
                    kind, found[control] = control.recv()
                except EOFError:
                    raise ContenderError("a process ended") from None
                if kind == "failed":
                    raise ContenderError(found[control].strip())
        return [found[control] for control in self.controls]

    def set_up(self):
        self.answers(START_SECONDS)

    def turn(self, n):
        """Latencies in nanoseconds; None for exchanges that were given up."""
        for control in self.controls:
            control.send(n)
        before, *after = self.answers(ANSWER_SECONDS)
        if not after or after[0] is None:
            return before
        return [None if b is None else b - a for a, b in zip(before, after[0])]

    def close(self):
        for control in self.controls:
            try:
                control.send(None)
            except OSError:
                pass
        end = time.monotonic() + END_SECONDS
        for process in self.processes:
            process.join(max(0, end - time.monotonic()))
            if process.is_alive():
                process.kill()
                process.join()
            process.close()
        for control in self.controls:
            control.close()
        os.close(self.memory)
