# SPDX-License-Identifier: Apache-2.0
"""Processes that a test steers: each runs the code that it is told, and answers with the value.

They know of the test's process only what it sends, so what is shared is shared by its pickle alone.
"""

import os
import pickle
import signal
import socket
import struct
import subprocess
import sys
from pathlib import Path

SECONDS = 60.0  # for any one answer: only a process that hangs takes so long

_LOOP = """
import os, pickle, socket, struct, sys

def serve(link):
    def receive(n):
        data = b""
        while len(data) < n:
            part = link.recv(n - len(data))
            if not part:
                os._exit(0)
            data += part
        return data

    names = {"os": os, "sys": sys, "names": globals()}
    while True:
        code, values = pickle.loads(receive(*struct.unpack("!Q", receive(8))))
        names.update(values)
        del values
        try:
            try:
                compiled = compile(code, "<told>", "eval")
            except SyntaxError:
                exec(compile(code, "<told>", "exec"), names)
                answer = None
            else:
                answer = eval(compiled, names)
            data = pickle.dumps((True, answer))
        except BaseException as error:
            error.__traceback__ = error.__context__ = None
            data = pickle.dumps((False, error))
        answer = None
        link.sendall(struct.pack("!Q", len(data)) + data)

serve(socket.socket(fileno=int(sys.argv[1])))
"""


class Other:
    """An interpreter beside this one. As a context manager it is ended with the block."""

    def __init__(self, python: str = sys.executable, **environment: str) -> None:
        self._link, theirs = socket.socketpair()
        self._link.settimeout(SECONDS)
        self.process = subprocess.Popen(
            [python, "-c", _LOOP, str(theirs.fileno())],
            pass_fds=[theirs.fileno()],
            env={**os.environ, **environment},
            stdin=subprocess.DEVNULL,
        )
        theirs.close()
        self.pid = self.process.pid

    def __enter__(self) -> "Other":
        self.ask("import time, numpy as np, tenon as tn")
        return self

    def __exit__(self, *_) -> None:
        self._link.close()
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGCONT)
            self.process.kill()
        self.process.wait(SECONDS)

    def start(self, code: str, **values) -> None:
        """Has the code run; `answer` is to follow."""
        data = pickle.dumps((code, values))
        self._link.sendall(struct.pack("!Q", len(data)) + data)

    def answer(self):
        """What the code that was started last has come to. Its exception is raised here."""
        is_value, value = pickle.loads(self._receive(*struct.unpack("!Q", self._receive(8))))
        if not is_value:
            raise value
        return value

    def ask(self, code: str, **values):
        self.start(code, **values)
        return self.answer()

    def is_busy(self, seconds: float = 0.2) -> bool:
        """Whether there is no answer for so long."""
        self._link.settimeout(seconds)
        try:
            return not self._link.recv(1, socket.MSG_PEEK)
        except TimeoutError:
            return True
        finally:
            self._link.settimeout(SECONDS)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(SECONDS)

    def stop(self) -> None:
        """Puts it to sleep, and returns when it is."""
        self.process.send_signal(signal.SIGSTOP)
        while state_of(self.pid) != "T":
            pass

    def go_on(self) -> None:
        self.process.send_signal(signal.SIGCONT)

    def _receive(self, n: int) -> bytes:
        data = b""
        while len(data) < n:
            part = self._link.recv(n - len(data))
            if not part:
                raise EOFError(f"process {self.pid} has ended: exit {self.process.wait(SECONDS)}")
            data += part
        return data


def state_of(pid: int) -> str:
    """As ps shows it: R, S, T (stopped), Z (dead, not waited for)."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def files_open() -> int:
    return len(os.listdir("/proc/self/fd"))


def maps() -> int:
    return Path("/proc/self/maps").read_text().count("\n")


def shared_kib() -> int:
    """Memory of all memory files of the machine."""
    line = next(line for line in Path("/proc/meminfo").read_text().splitlines() if line.startswith("Shmem:"))
    return int(line.split()[1])
