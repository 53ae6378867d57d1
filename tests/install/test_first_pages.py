# SPDX-License-Identifier: Apache-2.0
"""The programs on the first pages run when they are pasted into a file, and print what they show."""

import importlib.util
import re

import pytest
from installed import ROOT
from page_programs import build, needs_torch, programs, run

PAGES = (ROOT / "README.md", ROOT / "docs/index.md")


def test_both_pages_have_the_four_programs():
    assert [len(programs(page)) for page in PAGES] == [4, 4]


@pytest.mark.parametrize("number", range(4))
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_program_of_six_lines_runs(page, number, tmp_path):
    program = programs(page)[number]
    assert len(re.findall(r"^.*\S", program, re.M)) <= 6
    if needs_torch(program) and importlib.util.find_spec("torch") is None:
        pytest.skip("no torch")
    build(page, tmp_path)
    run(program, tmp_path)
