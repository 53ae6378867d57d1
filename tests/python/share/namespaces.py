# SPDX-License-Identifier: Apache-2.0
"""Processes in namespaces of their own, as in containers. Where the system refuses these, the tests that need
them are skipped with the reason."""

import functools
import os
import signal
import socket
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import steered
from other_process import SECONDS, Other

ALL = ("user", "pid", "mount", "ipc", "net")
_WITHOUT_PROC = 'mount -t tmpfs none /proc && mount -t tmpfs none /dev/shm && exec "$@"'


def command(kinds=ALL, *, proc=True) -> list[str]:
    """What a command is put behind, so that it runs in new namespaces of these kinds. proc: /proc shows the
    processes of the new PID namespace; else /proc and /dev/shm are empty."""
    words = ["unshare", *(f"--{kind}" for kind in kinds)]
    if "user" in kinds:
        words.append("--map-root-user")
    if "pid" in kinds:
        words += ["--fork", "--kill-child"]
    if not proc:
        return [*words, "sh", "-c", _WITHOUT_PROC, "sh"]
    return [*words, "--mount-proc"] if {"pid", "mount"} <= set(kinds) else words


@functools.cache
def _refusal(words: tuple[str, ...]) -> str:
    try:
        tried = subprocess.run([*words, "true"], capture_output=True, text=True, timeout=SECONDS)
    except FileNotFoundError:
        return "there is no program `unshare`"
    return "" if tried.returncode == 0 else f"no namespaces can be made here: {tried.stderr.strip()}"


def skip_unless_possible(kinds=ALL, *, proc=True) -> None:
    if refusal := _refusal(tuple(command(kinds, proc=proc))):
        pytest.skip(refusal)


def start(program: str, *arguments: str, kinds=ALL, proc=True, **options) -> subprocess.Popen:
    """A Python program in new namespaces, with pipes."""
    skip_unless_possible(kinds, proc=proc)
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
    return subprocess.Popen(
        [*command(kinds, proc=proc), sys.executable, "-c", textwrap.dedent(program), *arguments],
        **{"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "env": environment, **options},
    )


def run(program: str, data: bytes = b"", *, kinds=ALL, proc=True) -> list[str]:
    """The lines that the program prints."""
    with start(program, kinds=kinds, proc=proc, stderr=subprocess.STDOUT) as process:
        out, _ = process.communicate(data, SECONDS)
    assert process.returncode == 0, out.decode()
    return out.decode().splitlines()


class Contained(Other):
    """Another interpreter in new namespaces."""

    def __init__(self, kinds=ALL, *, proc=True) -> None:
        skip_unless_possible(kinds, proc=proc)
        self._forks = "pid" in kinds
        ours, theirs = socket.socketpair()
        words = [sys.executable, "-P", steered.__file__, str(theirs.fileno())]
        self.process = subprocess.Popen(
            [*command(kinds, proc=proc), *words], pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL
        )
        theirs.close()
        steered.Steered.__init__(self, self.process.pid, ours)

    def __enter__(self) -> "Contained":
        super().__enter__()
        if self._forks:
            self.pid = _child_of(self.process.pid)
        return self

    def _signal(self, number) -> None:
        os.kill(self.pid, number)

    def kill(self) -> None:
        os.kill(self.pid, signal.SIGKILL)
        self.process.wait(SECONDS)


def _child_of(parent: int) -> int:
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                fields = (folder / "stat").read_text(errors="replace").rpartition(")")[2].split()
            except (FileNotFoundError, ProcessLookupError):
                continue
            if fields[1] == str(parent):
                return int(folder.name)
    raise ProcessLookupError(f"process {parent} has no child")
