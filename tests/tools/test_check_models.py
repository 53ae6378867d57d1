# SPDX-License-Identifier: Apache-2.0
"""check_models: passes models that do what they state, and fails on every other end of a search."""

import re
import shutil
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "tools"))
import check_models

pytestmark = pytest.mark.skipif(shutil.which("spin") is None, reason="spin is not installed")

STATED = """
// variant: SOUND holds
// variant: SOUND ends
// variant: NO_LOCK refuted assertion
// variant: NO_UNLOCK refuted deadlock
"""

LOCK = """
bool locked;
byte inside;
active[2] proctype user() {
#ifndef NO_LOCK
  atomic { !locked -> locked = true }
#endif
  inside++;
  assert(inside == 1);
  inside--;
#ifndef NO_UNLOCK
  locked = false
#endif
}
"""


def check(tmp_path, capsys, text, *arguments):
    (tmp_path / "lock.pml").write_text(text)
    status = check_models.main(str(tmp_path), *arguments)
    return status, capsys.readouterr().out


@pytest.mark.slow
def test_a_model_that_does_what_it_states_passes(tmp_path, capsys):
    status, out = check(tmp_path, capsys, STATED + LOCK)
    assert status == 0
    assert out.endswith("1 models, 4 variants: all as stated\n")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        (STATED.replace("SOUND holds", "NO_LOCK holds") + LOCK, "stated; refuted assertion"),
        (STATED.replace("SOUND holds", "NO_UNLOCK holds") + LOCK, "stated; refuted deadlock"),
        (STATED.replace("NO_LOCK refuted", "SOUND refuted") + LOCK, "stated; not refuted"),
        (STATED.replace("NO_LOCK refuted assertion", "NO_LOCK refuted deadlock") + LOCK, "not refuted"),
        (
            STATED + LOCK + "bool b; active proctype idle() { do :: b = !b od }",
            "stated; refuted ends",
        ),
        (
            STATED + LOCK + "active proctype silent() { if :: inside > 9 -> inside = 0 :: true fi }",
            "never reached",
        ),
        (
            STATED + LOCK + "int n; active proctype deep() { do :: n < 200000 -> n++ :: else -> break od }",
            "cut short",
        ),
        (STATED + LOCK + "active proctype wrong() { x = 1 }", "undeclared variable"),
        (STATED.replace("holds", "should hold") + LOCK, "cannot read `variant: SOUND should hold`"),
        ("// variant: SOUND holds\n" + LOCK, "one that is refuted"),
        (LOCK, "a variant that holds"),
    ],
)
def test_any_other_end_fails(tmp_path, capsys, text, complaint):
    status, out = check(tmp_path, capsys, text)
    assert status == 1
    assert complaint in out


@pytest.mark.slow
def test_a_search_that_needs_more_memory_than_it_may_have_fails(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(check_models, "MEMORY_MIB", 60)
    steps = "".join(f" :: n[{i}] < 200 -> n[{i}]++" for i in range(4))
    wide = f"byte n[4]; active proctype wide() {{ do{steps} :: else -> break od }}"
    status, out = check(tmp_path, capsys, STATED.replace("// variant: SOUND ends", "") + LOCK + wide)
    assert status == 1
    assert "SOUND: holds was stated; the search was cut short: Warning: Search not completed" in out


@pytest.mark.slow
def test_one_model_is_checked_alone(tmp_path, capsys):
    (tmp_path / "other.pml").write_text("not a model")
    (tmp_path / "lock.pml").write_text(STATED + LOCK)
    assert check_models.main(str(tmp_path / "lock.pml")) == 0
    out = capsys.readouterr().out
    assert re.search(r"^lock SOUND: holds \([\d,]+ states, \d+\.\d s, [1-9]\d* MiB\)$", out, re.M)
    assert re.search(r"^in all \d+ s of one processor, at most [1-9]\d* MiB at a time$", out, re.M)


@pytest.mark.slow
def test_checks_for_soak_run_only_there(tmp_path, capsys):
    text = STATED.replace("SOUND ends", "SOUND ends soak") + LOCK
    assert "3 variants: all as stated" in check(tmp_path, capsys, text)[1]
    assert "4 variants: all as stated" in check(tmp_path, capsys, text, "--soak")[1]


def test_no_models_at_all_fail(tmp_path):
    assert check_models.main(str(tmp_path)) == 1


def test_without_spin_it_says_what_installs_it(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    status, out = check(tmp_path, capsys, STATED + LOCK)
    assert status == 1
    assert "make deps" in out
