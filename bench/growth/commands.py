# SPDX-License-Identifier: Apache-2.0
"""Commands, from the start of their process to its end, beside n shared segments. Contenders as in
calls.py."""

import os
import subprocess
import sys
import sysconfig

import tenon as tn


def beside_segments(*words):
    def contender(n):
        segments = [tn.zeros(8, shared=f"growth-{os.getpid()}-{i}") for i in range(n)]
        yield (lambda: subprocess.run(words, stdout=subprocess.DEVNULL, check=True)), 1
        del segments

    return contender


def python(statement):
    return beside_segments(sys.executable, "-c", statement)


listing = beside_segments(f"{sysconfig.get_path('scripts')}/tenon", "ls")
