# SPDX-License-Identifier: Apache-2.0
"""Processes that a test steers: each runs the code that it gets, and answers with the value.

`Steered` is the test's end of the link, `serve` that of the process. As a program, this file is such a
process. python/share/other_process.py and chaos/processes.py start and end processes.
"""

import fcntl
import os
import pickle
import select
import signal
import socket
import struct
import sys
import termios
import time
from pathlib import Path

SECONDS = 600.0  # for one answer: only a process that hangs takes longer


def send(link, value):
    data = pickle.dumps(value)
    link.sendall(struct.pack("!Q", len(data)) + data)


def receive(link):
    """The next value; EOFError: the other end is closed."""

    def read(n):
        data = b""
        while len(data) < n:
            part = link.recv(n - len(data))
            if not part:
                raise EOFError
            data += part
        return data

    try:
        return pickle.loads(read(*struct.unpack("!Q", read(8))))
    except ConnectionResetError:
        raise EOFError from None


class Steered:
    def __init__(self, pid, link):
        self.pid, self._link = pid, link
        self._link.settimeout(SECONDS)

    def start(self, code, **values):
        """Has it run code, with the values as names. Call `answer` afterwards."""
        send(self._link, (code, values))

    def answer(self, seconds=SECONDS):
        """The value of the code that was started last. An exception of the code is raised here. EOFError: of
        the code, or the process has ended."""
        self._link.settimeout(seconds)
        is_value, value = self._receive()
        if not is_value:
            raise value
        return value

    def ask(self, code, seconds=SECONDS, **values):
        self.start(code, **values)
        return self.answer(seconds)

    def has_answered(self, seconds=0.0):
        """Whether there is an answer, or the process has ended."""
        return bool(select.select([self._link], [], [], seconds)[0])

    def is_busy(self, seconds=0.2):
        """Whether it does not answer within this time after it has received the code."""
        end = time.monotonic() + SECONDS
        while self._has_unread() and not self.has_answered():
            assert time.monotonic() < end, f"process {self.pid} does not take what it is told"
            time.sleep(0.0002)
        return not self.has_answered(seconds)

    def stop(self):
        """Returns when it sleeps (or has ended)."""
        self._signal(signal.SIGSTOP)
        while state_of(self.pid) not in "TtZX":
            time.sleep(0.0002)

    def go_on(self):
        self._signal(signal.SIGCONT)

    def _receive(self):
        return receive(self._link)

    def _has_unread(self):
        return fcntl.ioctl(self._link, termios.TIOCOUTQ, bytes(4)) != bytes(4)


def state_of(pid):
    """As ps shows it: R, S, D, T (stopped), Z (dead, not waited for); X: it does not exist."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return "X"


def serve(link, **names):
    """Runs the code that it gets until the test closes the link. The code uses and changes `names`."""
    names.update(os=os, sys=sys, time=time, names=names)
    while True:
        try:
            code, values = receive(link)
        except EOFError:
            os._exit(0)
        except BaseException as error:  # a value could not be opened
            send(link, (False, RuntimeError(f"{type(error).__name__}: {error}")))
            continue
        names.update(values)
        del values
        answer = None
        try:
            try:
                compiled = compile(code, "<told>", "eval")
            except SyntaxError:
                exec(compile(code, "<told>", "exec"), names)
            else:
                answer = eval(compiled, names)
            told = (True, answer)
        except BaseException as error:
            error.__traceback__ = error.__context__ = None
            told = (False, error)
        try:
            send(link, told)
        except (TypeError, AttributeError, pickle.PicklingError):
            send(link, (True, repr(told[1])))
        told = answer = None


if __name__ == "__main__":
    serve(socket.socket(fileno=int(sys.argv[1])))
