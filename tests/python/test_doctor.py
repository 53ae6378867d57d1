# SPDX-License-Identifier: Apache-2.0
"""`tenon doctor` and `tenon config` without options."""

import json
import resource
import subprocess
import sys

import pytest

import tenon as tn
from tenon.__main__ import CONFIG_OPTIONS, main
from tenon._tools import doctor


def test_config_without_options_prints_all_of_them(capsys):
    assert main(["config"]) == 0
    lines = [line.split(None, 1) for line in capsys.readouterr().out.splitlines()]
    assert {option for option, _ in lines} == CONFIG_OPTIONS.keys()
    for option, answer in lines:
        assert main(["config", option]) == 0
        assert capsys.readouterr().out == f"{answer}\n"


@pytest.mark.slow
def test_a_screen_says_what_there_is(capsys):
    status = main(["doctor"])
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) <= 24 and (lines[-1] == "no problems") == (status == 0)
    names = "versions", "memory", "descriptors", "/dev/shm", "huge pages", "namespaces", "names", "processes"
    for name in names:
        assert any(line.split(None, 1)[1].startswith(name) for line in lines[:-1]), name
    assert any(f"tenon {tn.__version__}" in line for line in lines)


@pytest.mark.slow
def test_a_program_reads_it_as_json():
    command = [sys.executable, "-m", "tenon", "doctor", "--json"]
    done = subprocess.run(command, capture_output=True, text=True)
    found = json.loads(done.stdout)
    assert {finding["state"] for finding in found} <= {"ok", "note", "problem"}
    assert done.returncode == any(finding["state"] == "problem" for finding in found)


def test_few_descriptors_are_noted_with_what_to_do():
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(soft, 512), hard))
    try:
        (finding,) = doctor._files()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert finding.state == "note" and "ulimit -n" in finding.text


def test_a_check_that_fails_is_a_problem(monkeypatch):
    def _names():
        raise OSError("no directory for names")

    monkeypatch.setattr(doctor, "_CHECKS", (doctor._kernel, _names))
    found = doctor.findings()
    assert [finding.state for finding in found] == ["ok", "problem"]
    assert found[1] == ("problem", "names", "no directory for names")
    assert doctor.listing(found).endswith("\n1 problem")


def test_a_library_that_is_there_twice_is_a_problem(monkeypatch):
    lines = "1-2 r-xp 0 00:00 1 /a/libtenon.so.0\n3-4 r-xp 0 00:00 1 /b b/libtenon.so.0\n5-6 rw-p 0 00:00 0"
    monkeypatch.setattr(doctor, "_text", lambda path: lines)
    (finding,) = doctor._libraries()
    assert finding == ("problem", "library", "/a/libtenon.so.0, /b b/libtenon.so.0")
