# SPDX-License-Identifier: Apache-2.0
"""Runs a program in a fresh interpreter and judges how it ended."""

import os
import pathlib
import subprocess
import sys
import textwrap
import time

import native

PEERS = pathlib.Path(__file__).parents[1] / "peers"
EXIT_SECONDS = 300  # on a loaded machine; a hang takes longer
PRELUDE = """
import atexit, ctypes, gc, os, sys, threading, time, weakref
sys.path.insert(0, {peers!r})
import numpy as np
import tenon as tn
import foreign_dlpack as dl
import native

def last_line():
    # the moment at which the program is done; what follows is the interpreter's end
    sys.stdout.write("END %f\\n" % time.monotonic())
    sys.stdout.flush()
"""


def run(program, *options, expect=0, ends_by_itself=True, timeout=600, **environment):
    """The lines that the program printed. Fails unless it ended with `expect`, in silence, and in time."""
    code = PRELUDE.format(peers=str(PEERS)) + textwrap.dedent(program)
    if ends_by_itself:
        code += "\nlast_line()\n"
    try:
        library = {native.PATH_VARIABLE: native.path()}
    except FileNotFoundError:
        library = {}
    done = subprocess.run(
        [sys.executable, *options, "-c", code],
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
        env={**os.environ, **library, **environment},
    )
    ended = time.monotonic()
    assert done.returncode == expect, f"exit {done.returncode}\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}"
    assert done.stderr == ""
    lines = done.stdout.splitlines()
    ends = [float(line.split()[1]) for line in lines if line.startswith("END ")]
    assert ends, done.stdout
    assert ended - ends[-1] < EXIT_SECONDS
    return [line for line in lines if not line.startswith("END ")]
