# SPDX-License-Identifier: Apache-2.0
"""bench/ratios.py: what `make bench ARGS=--check` accepts and what it refuses."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "bench"))
import ratios

BEFORE = {"import": 0.50, "export": 2.00}


def measurements(*results):
    """A function that returns one result for each call, and fails when there is none left."""
    left = iter(results)
    return lambda: next(left)


@pytest.mark.parametrize(
    "results",
    [
        pytest.param([{"import": 0.50, "export": 2.00}], id="the same"),
        pytest.param([{"import": 0.57, "export": 1.00}], id="14 % worse"),
        pytest.param([{"import": 0.50, "export": 2.00, "view": 9.0}], id="a new row"),
        pytest.param([{"import": 0.60, "export": 2}, {"import": 0.50, "export": 9}], id="worse only once"),
    ],
)
def test_what_passes(results):
    _, is_no_worse = ratios.check("exchange", BEFORE, measurements(*results))
    assert is_no_worse


@pytest.mark.parametrize(
    ("result", "line"),
    [
        ({"import": 0.58, "export": 2.00}, ["import", "0.50", "0.58", "1.16", "**worse**"]),
        ({"import": 0.50}, ["export", "2.00", "not measured", "", "**worse**"]),
    ],
)
def test_what_fails(result, line):
    text, is_no_worse = ratios.check("exchange", BEFORE, measurements(result, result))
    assert not is_no_worse
    assert line in [[cell.strip() for cell in row.split("|")[1:-1]] for row in text.splitlines()]


def test_ratios_are_those_of_the_kind_of_machine(tmp_path, monkeypatch):
    file = tmp_path / "ratios.json"
    assert ratios.stored("exchange", file) == {}
    ratios.store("exchange", BEFORE, file)
    ratios.store("engine", {"chain": 1.5}, file)
    assert ratios.stored("exchange", file) == BEFORE
    monkeypatch.setattr(ratios, "kind_of_machine", lambda: "another processor, 64 cores")
    assert ratios.stored("exchange", file) == {}
    ratios.store("exchange", {"import": 0.9}, file)
    monkeypatch.undo()
    assert ratios.stored("exchange", file) == BEFORE
