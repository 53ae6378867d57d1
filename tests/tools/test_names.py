# SPDX-License-Identifier: Apache-2.0
"""The table of names in docs/glossary.md: each name of it exists, in C, C++ and Python."""

import contextlib
import re
from pathlib import Path

import pytest

import tenon as tn

ROOT = Path(__file__).parents[2]
SECTION = "## Names in C, C++ and Python"
C = "\n".join(path.read_text() for path in (ROOT / "include/tenon").glob("*.h"))
CPP = "\n".join(path.read_text() for path in (ROOT / "include/tenon").glob("*.hpp"))


def cells(column):
    """The names in backticks of a column."""
    rows = (ROOT / "docs/glossary.md").read_text().split(SECTION)[1].split("|---|---|---|---|\n")[1]
    table = [row.split("|") for row in rows.split("\n\n")[0].splitlines()]
    assert all(len(row) == 6 for row in table)
    return [name for row in table for name in re.findall(r"`([^`]+)`", row[column])]


def test_the_glossary_is_short_and_has_each_word_once():
    terms = (ROOT / "docs/glossary.md").read_text().split(SECTION)[0]
    words = [word for row in re.findall(r"^\| \*\*(.+?)\*\*", terms, re.M) for word in row.split(", ")]
    assert len(re.findall(r"^\| \*\*", terms, re.M)) <= 60
    assert sorted(words) == sorted(set(words))


@pytest.mark.parametrize("name", sorted({name for name in cells(2) if name != "-1"}))
def test_names_of_c_are_in_its_headers(name):
    assert re.search(rf"\b{name}\b", C)


@pytest.mark.parametrize("name", sorted(set(cells(3))))
def test_names_of_cpp_are_in_its_headers(name):
    word = re.split(r"::|\.", name.split("(")[0])[-1]
    assert re.search(rf"\b{word}\b", C if word.isupper() else CPP)


@pytest.mark.parametrize("name", sorted(set(cells(4))))
def test_names_of_python_are_in_the_package(name):
    owners = {"tn": tn, "a": tn.NDArray, "op": tn.Op}
    owner, *path = name.split("(")[0].split(".")
    if owner not in owners or "=" in owner:
        pytest.skip("not a name of the package")
    thing = owners[owner]
    for part in path:
        thing = getattr(thing, part)


def test_uses_of_an_op_have_the_words_of_cpp():
    a, b = tn.ones(3), tn.zeros(3)

    def body(x, y):
        assert not x.flags.writeable
        y += x

    tn.push(body, tn.read(a), tn.write(b)).wait()
    tn.push(tn.fill, tn.overwrite(a), 5).wait()
    assert (a.tolist(), b.tolist()) == ([5] * 3, [1] * 3)
    for wrap in (tn.read, tn.write, tn.overwrite):
        with pytest.raises(TypeError, match="NDArray, not"):
            wrap([1.0])
    with contextlib.suppress(ExceptionGroup):  # of ops of earlier tests
        tn.wait_all()


def test_each_environment_variable_has_a_row():
    files = [path for path in (ROOT / "src").rglob("*.cc") if not path.stem.endswith("_test")]
    files += [*(ROOT / "python").rglob("*.py"), *(ROOT / "python").rglob("*.cc")]
    text = "\n".join(path.read_text() for path in files)
    declared = re.sub(r"/\*.*?\*/", "", C, flags=re.S)
    found = {
        name for name in re.findall(r'"(TENON_[A-Z_]+)"', text) if not re.search(rf"\b{name}\b", declared)
    }
    rows = re.findall(r"^\| `(\w+)` \|", (ROOT / "docs/environment.md").read_text(), re.M)
    assert found - {"TENON_CRASH_AT"} == {
        name for name in rows if name.startswith("TENON_")
    }  # that: of tests
    assert len(found) > 2
