# SPDX-License-Identifier: Apache-2.0
"""The chart of the site and the first figures show the numbers of the benchmarks. The reference has each name
of the C ABI. The README has links that work in the metadata of the package."""

import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT / "bench/feed"), str(ROOT / "docs/extensions"), str(ROOT / "tools")]
import chart  # noqa: E402
import header_text  # noqa: E402
import readme  # noqa: E402

TABLES = list(chart.tables(chart.PAGE.read_text()))


def test_the_chart_is_drawn_from_the_page():
    assert len(TABLES) >= 5
    assert chart.CHART.read_text() == chart.draw(chart.PAGE.read_text()), "run bench/feed/chart.py"


@pytest.mark.parametrize("table", TABLES, ids=[title for title, *_ in TABLES])
def test_a_faster_loader_has_a_longer_bar(table):
    lines, _ = chart.panel(*table, 0, 0)
    drawing = "\n".join(lines[2:-1])  # without title and subtitle, and the dashed line
    widths = [float(width) for width in re.findall(r'<rect .*? width="([\d.]+)"', drawing)]
    speeds = [chart.number(speed) for speed in re.findall(r'font-size="11" .*?>([\d.,]+)</text>', drawing)]
    assert len(speeds) >= 4
    for (slower, shorter), (faster, longer) in zip(
        sorted(zip(speeds, widths)), sorted(zip(speeds, widths))[1:], strict=False
    ):
        assert faster >= slower
        assert longer >= shorter


NUMBER = re.compile(r"\d[\d,]*(?:\.\d+)?")


def rows(text):
    """The cells of each row of its tables."""
    lines = re.findall(r"^\|.*", text, re.M)
    return [[cell.strip(" *") for cell in line.split("|")[1:-1]] for line in lines]


def results(cells):
    """The cells that are a number, with its unit or without."""
    return [cell for cell in cells if re.fullmatch(rf"{NUMBER.pattern}( \S+)?", cell)]


HEAD = chart.PAGE.read_text().split("## How to read")[0]
FIGURES = (ROOT / "README.md").read_text().split("## Figures")[1].split("![")[0]


def test_the_first_figures_are_those_of_the_tables():
    """After a measurement: write the new ones there."""
    tables = re.findall(r"<!-- \w+: begin -->(.*?)<!-- \w+: end -->", chart.PAGE.read_text(), re.S)
    measured = {number for row in rows("".join(tables)) for cell in row for number in NUMBER.findall(cell)}
    shown = [cell for row in rows(FIGURES) for cell in results(row)]
    shown += [cell for row in rows(HEAD) for cell in results(row)[:-1]]  # without the ratio
    assert len(shown) == 12 + 2 * 9 + 2 * 10
    in_text = re.findall(rf"{NUMBER.pattern} (?:us|ns|bytes)", (ROOT / "docs/why.md").read_text())
    assert len(in_text) >= 10
    shown += in_text
    assert [cell for cell in shown if NUMBER.match(cell)[0] not in measured] == []


def test_the_first_ratios_are_tenons_time_by_that_of_the_peer():
    found = [[chart.number(NUMBER.match(cell)[0]) for cell in results(row)] for row in rows(HEAD)[2:]]
    assert len(found) == 10
    for tenon, peer, ratio in found:
        assert ratio == pytest.approx(tenon / peer, abs=0.01), (tenon, peer)


def documented(declarations):
    """The names of declarations and of their constants."""
    for item in declarations:
        if item.kind == "function":
            yield re.search(r"(\w+)\(", item.code)[1]
        elif item.kind == "type":
            yield (re.search(r"\(\*(\w+)\)", item.code) or re.search(r"(\w+)$", item.code))[1]
        elif item.kind in ("macro", "enumerator", "struct", "union", "enum"):
            yield re.match(r"\w*", item.code)[0]
        yield from documented(item.members)


def test_the_reference_has_each_name_of_the_c_abi():
    names = {
        name
        for header in header_text.FOLDER.glob("*.h")
        for name in documented(header_text.read(header.name)[1])
    }
    kinds = r"^(?:macro|enumerator|function|size) (\w+)(?: -?\d+)?$"
    frozen = set(re.findall(kinds, (ROOT / "tests/abi/frozen.txt").read_text(), re.M))
    assert len(frozen) > 200
    assert not frozen - names


README = (ROOT / "README.md").read_text()
TARGET = re.compile(r"\]\(([^)]*)\)")


def test_the_metadata_have_the_readme_with_links_to_the_repository():
    project = {"version": "1.2.3", "urls": {"Source": "https://example.org/tenon"}}
    found = readme.dynamic_metadata({}, project)["readme"]
    targets = TARGET.findall(found["text"])
    assert len(targets) == len(TARGET.findall(README)) > 20
    assert "https://example.org/tenon/raw/v1.2.3/docs/feed.svg" in targets
    for target in targets:
        kind, _, path = target.removeprefix("https://example.org/tenon/").partition("/v1.2.3/")
        assert kind in ("blob", "raw")
        assert (ROOT / path.partition("#")[0]).exists()


def test_without_an_address_the_metadata_have_the_text_of_the_links():
    text = readme.dynamic_metadata({}, {"version": "1.2.3"})["readme"]["text"]
    assert TARGET.findall(text) == []
    assert "![" not in text
    assert "- The contract: the rules" in text
    kept = "see [PEP 8](https://peps.python.org/pep-0008/) and [below](#below)"
    assert readme.absolute(kept) == readme.absolute(kept, "https://example.org/tenon") == kept


PROGRAM = re.compile(r"^```(?:console$|\w+\n(?:/\*|//|!|#) \w+\.\w+(?: \*/)?$)", re.M)


def test_each_page_with_programs_has_an_example_so_that_pytest_runs_it():
    with_programs = [page for page in (ROOT / "docs").rglob("*.md") if PROGRAM.search(page.read_text())]
    assert len(with_programs) >= 12
    without = [page.name for page in with_programs if ">>> " not in page.read_text()]
    assert without == ["go.md"]  # which tests/install/test_builders.py runs
