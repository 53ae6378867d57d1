# SPDX-License-Identifier: Apache-2.0
"""The cells of docs/howto/notebooks.md run in IPython, one after the other, and show what the page says."""

import doctest
import json
import os
import pathlib
import re
import subprocess
import sys

import pytest

PAGE = pathlib.Path(__file__).parents[2] / "docs/howto/notebooks.md"
CELL = re.compile(r"^In \[(\d+)\]: (.*(?:\n +\.\.\.: .*)*)\n((?:(?!In \[).*\n)*)", re.M)
RUN = """
import contextlib, io, json, sys
from IPython.core.interactiveshell import InteractiveShell
shell = InteractiveShell.instance(colors="NoColor")
shell.run_line_magic("xmode", "Minimal")
outputs = []
for cell in json.load(sys.stdin):
    with contextlib.redirect_stdout(io.StringIO()) as output:
        shell.run_cell(cell, store_history=True)
    outputs.append(output.getvalue())
json.dump(outputs, sys.stdout)
"""


def cells():
    """(number, code, what is shown) of each cell."""
    blocks = re.findall(r"^```text\n(.*?)^```$", PAGE.read_text(), re.M | re.S)
    for number, code, shown in CELL.findall("".join(blocks)):
        yield int(number), re.sub(r"\n +\.\.\.: ", "\n", code), shown


def test_each_cell_shows_what_the_page_says(tmp_path):
    pytest.importorskip("IPython")
    page = list(cells())
    assert [number for number, *_ in page] == list(range(1, len(page) + 1))
    done = subprocess.run(
        [sys.executable, "-c", RUN],
        input=json.dumps([code for _, code, _ in page]),
        env={**os.environ, "IPYTHONDIR": str(tmp_path), "TENON_RUNTIME_DIR": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr
    outputs = json.loads(done.stdout.splitlines()[-1])
    checker, flags = doctest.OutputChecker(), doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    for (number, code, shown), output in zip(page, outputs, strict=True):
        assert checker.check_output(shown.strip(), output.strip(), flags), (number, code, output)
