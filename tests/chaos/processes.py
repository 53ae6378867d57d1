# SPDX-License-Identifier: Apache-2.0
"""Processes that a test starts, steers, stops and kills.

A `Nursery` is an interpreter without threads that has imported all modules. It forks a `Child` for each
order, in milliseconds. It has no shared array itself, so its children inherit none. Signals are sent through
a pidfd, so never to another process that has the same number.
"""

import contextlib
import os
import select
import signal
import socket
import subprocess
import sys
from pathlib import Path

import steered
from steered import SECONDS, Steered, receive, send, serve


class Child(Steered):
    """One process. As a context manager it is killed at the end of the block."""

    def __init__(self, nursery, pid, pidfd, link):
        super().__init__(pid, link)
        self._nursery, self._pidfd = nursery, pidfd
        self.status = None  # of waitpid; None: it was not waited for

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.end()

    def says(self):
        """One letter that the code has sent with `say`."""
        self._link.settimeout(SECONDS)
        return self._link.recv(1)

    def kill(self):
        self._signal(signal.SIGKILL)

    def show_where_it_is(self):
        """Has it write its Python stacks to stderr of the test."""
        self._signal(signal.SIGUSR2)

    def has_ended(self, seconds=0.0):
        poller = select.poll()  # select() takes no descriptor from 1,024 on
        poller.register(self._pidfd, select.POLLIN)
        return bool(poller.poll(seconds * 1000))

    def end(self):
        """Kills it if need be, and returns its status."""
        if self.status is None:
            if not self.has_ended():
                self.kill()
            if not self.has_ended(SECONDS):
                raise TimeoutError(f"process {self.pid} does not end although it was killed")
            self.status = self._nursery._order("wait", self.pid)
            os.close(self._pidfd)
            self._link.close()
        return self.status

    def _signal(self, number):
        if self.status is None:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._pidfd, number)


class Nursery:
    """Starts children. As a context manager it ends with the block, and all children, too."""

    def __init__(self, runtime_folder):
        """runtime_folder: a folder for the files of the processes, which no other program uses."""
        self._link, theirs = socket.socketpair()
        self._link.settimeout(SECONDS)
        self._mark = f"{os.getpid()}.{id(self)}"
        paths = [os.path.dirname(steered.__file__), os.environ.get("PYTHONPATH")]
        self._process = subprocess.Popen(
            [sys.executable, __file__, str(theirs.fileno())],
            pass_fds=[theirs.fileno()],
            env={
                **os.environ,
                "PYTHONPATH": os.pathsep.join(filter(None, paths)),
                "OPENBLAS_NUM_THREADS": "1",
                "XDG_RUNTIME_DIR": str(runtime_folder),
                "TENON_CHAOS_MARK": self._mark,
            },
            stdin=subprocess.DEVNULL,
        )
        theirs.close()
        self.children = []

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for child in self.children:
            child.end()
        self._link.close()
        self._process.wait(SECONDS)

    def child(self, *files):
        """A new process, which has the files as the descriptors `files`."""
        ours, theirs = socket.socketpair()
        send(self._link, ("fork", len(files) + 1))
        socket.send_fds(self._link, [b"."], [theirs.fileno(), *files])
        _, (pidfd,), _, _ = socket.recv_fds(self._link, 1, 1)
        pid = receive(self._link)
        theirs.close()
        child = Child(self, pid, pidfd, ours)
        self.children.append(child)
        return child

    def processes_left(self):
        """All descendants of the nursery, known by their environment, except its children."""
        mark, known = f"TENON_CHAOS_MARK={self._mark}\0".encode(), {self._process.pid}
        known.update(child.pid for child in self.children)
        left = []
        for folder in Path("/proc").iterdir():
            with contextlib.suppress(OSError):
                if folder.name.isdigit() and mark in (folder / "environ").read_bytes():
                    left.append(int(folder.name))
        return sorted(set(left) - known)

    def _order(self, *order):
        send(self._link, order)
        return receive(self._link)


# --------------------------------------------------------------------- in the nursery and its children


def _live(link, files):
    """A child: runs the code that it gets until the test closes the link."""
    names = {"files": files, "say": lambda letter: link.send(letter)}
    exec("import numpy as np, tenon as tn, actors, denials", names)
    serve(link, **names)


def _raise_children(link):
    """The nursery: forks children, and waits for those that have ended."""
    import faulthandler

    from denials import die_with_parent

    parent = os.getpid()
    die_with_parent()
    faulthandler.register(signal.SIGUSR2)
    while True:
        try:
            order, number = receive(link)
        except EOFError:
            return
        if order == "wait":
            send(link, os.waitpid(number, 0)[1])
            continue
        _, files, _, _ = socket.recv_fds(link, 1, number)
        pid = os.fork()
        if pid == 0:
            die_with_parent()
            if os.getppid() != parent:
                os._exit(0)
            link.close()
            _live(socket.socket(fileno=files[0]), files[1:])
        for file in files:
            os.close(file)
        pidfd = os.pidfd_open(pid)
        socket.send_fds(link, [b"."], [pidfd])
        os.close(pidfd)
        send(link, pid)


if __name__ == "__main__":
    import numpy

    import tenon  # noqa: F401
    from tenon import _core  # noqa: F401

    assert numpy and len(os.listdir("/proc/self/task")) == 1, "a fork would not have the other threads"
    _raise_children(socket.socket(fileno=int(sys.argv[1])))
