# SPDX-License-Identifier: Apache-2.0
"""The complete programs on a page: each block of C whose first comment has its file and its command, and each
block of Python. A line `print(...)  # text` shows what it prints, once or again and again."""

import os
import re
import subprocess
import sys

BLOCK = re.compile(r"^```(c|python)\n(.*?)^```$", re.M | re.S)
COMMAND = re.compile(r"/\* (\w+\.c): cc (.*) \*/\n")
PRINT = re.compile(r"^ *print\(.*\) +# (.+)$", re.M)


def programs(page):
    """The programs in Python."""
    return [text for language, text in BLOCK.findall(page.read_text()) if language == "python"]


def needs_torch(program):
    return re.search(r"import torch|\.torch\(\)", program) is not None


def build(page, folder):
    """Compiles the blocks of C."""
    for language, text in BLOCK.findall(page.read_text()):
        if language == "c":
            name, arguments = COMMAND.match(text).groups()
            (folder / name).write_text(text)
            subprocess.run([os.environ.get("CC", "cc"), *arguments.split()], cwd=folder, check=True)


def check_output(program, output):
    lines = list(dict.fromkeys(output.splitlines()))
    assert lines == PRINT.findall(program) != []


def run(program, folder):
    """Runs a program as a file. Warnings are errors."""
    (folder / "program.py").write_text(program)
    command = [sys.executable, "-W", "error", "program.py"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=300)
    assert (done.returncode, done.stderr) == (0, "")
    check_output(program, done.stdout)
