# SPDX-License-Identifier: Apache-2.0
"""Other interpreters. They get objects from the test only as pickles, so arrays are shared only by their
handles."""

import gc
import os
import re
import socket
import subprocess
import sys
import time
from pathlib import Path

import steered
from steered import SECONDS, Steered


class Other(Steered):
    """Another interpreter. As a context manager it is killed at the end of the block."""

    def __init__(self, python: str = sys.executable, **environment: str) -> None:
        ours, theirs = socket.socketpair()
        self.process = subprocess.Popen(
            [python, "-P", steered.__file__, str(theirs.fileno())],
            pass_fds=[theirs.fileno()],
            env={**os.environ, **environment},
            stdin=subprocess.DEVNULL,
        )
        theirs.close()
        super().__init__(self.process.pid, ours)

    def __enter__(self) -> "Other":
        self.ask(f"import numpy as np, tenon as tn; tn.set_lock_timeout({SECONDS})")
        return self

    def __exit__(self, *_) -> None:
        self._link.close()
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(SECONDS)

    def _signal(self, number) -> None:
        self.process.send_signal(number)

    def _receive(self):
        try:
            return super()._receive()
        except EOFError:
            raise EOFError(f"process {self.pid} has ended: exit {self.process.wait(SECONDS)}") from None

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(SECONDS)


def files_of_tenon() -> set[str]:
    """Except the directories of the users' names, and the files of tests that run at the same time."""
    files = {f"{folder}/{name}" for folder in ("/dev/shm", "/tmp") for name in os.listdir(folder)}
    others = re.compile(r"/tenon-(\d+$|native-|generators-|demo-|test-)")
    return {file for file in files if "/tenon" in file and not others.search(file)}


def files_open() -> int:
    return len(os.listdir("/proc/self/fd"))


def maps() -> int:
    return Path("/proc/self/maps").read_text().count("\n")


def shared_kib() -> int:
    """The memory of all memory files of the machine."""
    line = next(line for line in Path("/proc/meminfo").read_text().splitlines() if line.startswith("Shmem:"))
    return int(line.split()[1])


def await_shared_kib_below(limit: int) -> None:
    """Waits, because other tests use shared memory for a while, too. Memory that is never freed keeps it
    above the limit."""
    end = time.monotonic() + SECONDS
    while (kib := shared_kib()) >= limit:
        assert time.monotonic() < end, f"{kib} KiB, and not less than {limit}"
        gc.collect()
        time.sleep(0.1)
