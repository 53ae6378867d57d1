# SPDX-License-Identifier: Apache-2.0
"""What nobody meant to keep: exceptions, results of sessions. They are found, named and let go of by
`drop_views`, which leaves what running code holds.

The oracle for "let go of" is the contract's own: a push succeeds then.
"""

import asyncio
import builtins
import collections
import gc
import importlib.util
import json
import os
import subprocess
import sys
import textwrap
import types

import numpy as np
import pytest
from view_places import Trainer, fill, here, texts

import tenon as tn

pytestmark = pytest.mark.usefixtures("nothing_stays_behind")


def raise_with(v):
    raise ValueError("text")


@pytest.mark.slow
def test_a_caught_exception_is_found_named_and_let_go_of():
    a = tn.zeros(4)
    kept = None
    try:
        raise_with(np.asarray(a))
    except ValueError as error:
        kept = error
    line = raise_with.__code__.co_firstlineno + 1
    frame = (
        f"variable `v` of raise_with ({__file__}:{line}), a frame of the traceback of ValueError `kept` of"
    )
    with pytest.raises(tn.LeaseConflict) as caught:
        fill(a)
    assert f"It is kept by: {frame} {here(-1)}." in str(caught.value)
    assert "`a.drop_views()`" in str(caught.value)
    del caught
    assert a.drop_views() == []
    fill(a)
    assert str(kept) == "text"
    assert kept.__traceback__ is not None


@pytest.mark.slow
def test_an_exception_that_is_being_handled_is_found():
    a = tn.zeros(4)
    try:
        raise_with(np.asarray(a))
    except ValueError:
        [text] = texts(a)
        with pytest.raises(tn.LeaseConflict, match="ValueError that is being handled"):
            fill(a)
        assert a.drop_views() == []
        fill(a)
    assert text.endswith("a frame of the traceback of the ValueError that is being handled")


@pytest.mark.slow
def test_a_cause_of_an_exception_is_found_and_let_go_of():
    a = tn.zeros(4)
    kept = []
    try:
        try:
            raise_with(np.asarray(a))
        except ValueError as error:
            raise KeyError from error
    except KeyError as error:
        kept.append(error)
    [text] = texts(a)
    assert "of the traceback of the ValueError in item 0 of list `kept` of " in text
    assert a.drop_views() == []
    fill(a)


@pytest.mark.slow
def test_a_copy_of_variables_that_a_reader_of_the_traceback_made_is_let_go_of_too():
    a = tn.zeros(4)
    try:
        raise_with(np.asarray(a))
    except ValueError as error:
        kept = error
    copy = kept.__traceback__.tb_next.tb_frame.f_locals
    assert "v" in copy
    assert a.drop_views() == []
    fill(a)
    assert "v" not in copy


@pytest.mark.slow
def test_the_object_of_an_attribute_error_is_found_named_and_let_go_of():
    a = tn.zeros(4)
    try:
        np.asarray(a).no_attribute  # noqa: B018
    except AttributeError as error:
        kept = error
    assert texts(a) == [f"attribute `obj` of AttributeError `kept` of {here()}"]
    with pytest.raises(tn.LeaseConflict, match=r"call `a\.drop_views\(\)`"):
        fill(a)
    assert a.drop_views() == []
    fill(a)
    assert "no_attribute" in str(kept)


@pytest.mark.parametrize(
    "name",
    ["last_exc", *(pytest.param(name, marks=pytest.mark.slow) for name in ("last_value", "last_traceback"))],
)
def test_the_last_error_of_a_session_is_found_named_and_let_go_of(name):
    a = tn.zeros(4)
    try:
        raise_with(np.asarray(a))
    except ValueError as error:
        setattr(sys, name, error.__traceback__ if "trace" in name else error)
    line = raise_with.__code__.co_firstlineno + 1
    trace = "traceback" if "trace" in name else "traceback of the ValueError"
    text = f"variable `v` of raise_with ({__file__}:{line}), a frame of the {trace} in sys.{name}"
    assert texts(a) == [text]
    with pytest.raises(tn.LeaseConflict, match=f"It is kept by: variable `v` .* in sys.{name}"):
        fill(a)
    assert a.drop_views() == []
    assert not hasattr(sys, name)
    fill(a)


@pytest.mark.slow
def test_the_last_error_stays_where_it_leads_to_no_view(monkeypatch):
    a = tn.zeros(4)
    x = np.asarray(a)
    try:
        raise ValueError("another")
    except ValueError as error:  # its traceback leads to this function, which runs
        monkeypatch.setattr(sys, "last_value", error, raising=False)
    assert [holder.where for holder in a.drop_views()] == [f"variable `x` of {here()}"]
    assert str(sys.last_value) == "another"
    assert x.size == 4


@pytest.mark.slow
def test_the_last_result_of_the_prompt_is_found_named_and_let_go_of():
    a = tn.zeros(4)
    builtins._ = np.asarray(a)
    assert texts(a) == ["`_`"]
    assert a.drop_views() == []
    assert not hasattr(builtins, "_")
    fill(a)


@pytest.mark.slow
def test_variables_of_code_that_runs_are_left():
    a = tn.zeros(4)
    kept = [np.asarray(a)]

    def run(v):
        try:
            raise_with(None)
        except ValueError as error:
            return a.drop_views(), error, v.size

    holders, error, size = run(kept[0])
    assert size == 4
    assert len(holders) == 1
    assert "variable `v` of run (" in holders[0].where
    assert f"item 0 of list `kept` of {here(-4)}" in holders[0].where
    assert error is not None
    kept.clear()
    del error
    fill(a)


@pytest.mark.slow
def test_a_suspended_generator_is_named_and_left():
    a = tn.zeros(4)

    def generate(x):
        try:
            raise_with(None)
        except ValueError as error:
            yield error
        yield x.size

    generator = generate(np.asarray(a))
    error = next(generator)
    [text] = texts(a)
    assert text.startswith("variable `x` of generate (")
    assert f", kept by generator `generator` of {here(-2)}" in text
    assert len(a.drop_views()) == 1
    assert next(generator) == 4
    del error, generator
    fill(a)


@pytest.mark.slow
def test_a_generator_that_has_ended_is_let_go_of():
    a = tn.zeros(4)

    def generate(x):
        yield x.size
        raise ValueError

    try:
        for _ in generate(np.asarray(a)):
            pass
    except ValueError as error:
        kept = error
    assert "variable `x` of generate (" in texts(a)[0]
    assert a.drop_views() == []
    fill(a)
    assert kept is not None


@pytest.mark.slow
def test_a_coroutine_that_waits_is_found_by_the_thorough_search():
    a = tn.zeros(4)

    async def hold():
        x = np.asarray(a)
        await asyncio.sleep(0)
        return x

    async def main():
        task = asyncio.ensure_future(hold())
        await asyncio.sleep(0)
        found = texts(a, True)
        await task
        return found

    [text] = asyncio.run(main())
    assert text.startswith("variable `x` of hold (")


@pytest.mark.slow
def test_containers_that_no_variable_leads_to_are_found_by_the_thorough_search():
    a = tn.zeros(4)
    module = types.ModuleType("tests_of_views")
    module.registry = {"loaders": [Trainer(collections.deque([[np.asarray(a)]]))]}
    sys.modules[module.__name__] = module
    del module
    try:
        assert texts(a) == []
        [holder] = a.drop_views()
        assert holder.where == (
            "item 0 of the list in item 0 of the deque in attribute `batch` of the Trainer in "
            "item 0 of the list in item 'loaders' of dict `registry` of module tests_of_views"
        )
    finally:
        del sys.modules["tests_of_views"]
    gc.collect()
    fill(a)


@pytest.mark.slow
def test_of_several_views_each_names_all_places():
    a = tn.zeros(4)
    x, y = np.asarray(a), memoryview(a)
    first, second = a.drop_views()
    assert (first.where, second.where) == (
        f"of 2 views: variable `x` of {here(-2)}; variable `y` of {here(-2)}",
    ) * 2
    assert first.site != ""
    assert [holder.where for holder in a.leases()] == ["", ""]
    del x, y


@pytest.mark.slow
def test_a_dead_cycle_is_let_go_of():
    a = tn.zeros(4)
    gc.disable()
    try:
        cycle = [np.asarray(a)]
        cycle.append(cycle)
        del cycle
        assert a.drop_views() == []
    finally:
        gc.enable()


def session(*command, text):
    environment = {**os.environ, "TERM": "dumb"}
    process = subprocess.run(
        [sys.executable, *command],
        input=textwrap.dedent(text),
        capture_output=True,
        text=True,
        timeout=600,
        env=environment,
    )
    answers = [line[line.index("ANSWER ") + 7 :] for line in process.stdout.splitlines() if "ANSWER " in line]
    return [json.loads(answer) for answer in answers], process


SESSION = """\
import json, sys, numpy as np, tenon as tn
from tenon._sync.views import places, drop_views
def say(value): print("ANSWER", json.dumps(value))

def found(): return sorted(place.text for place in places(a))

def can_push(): tn.push(tn.fill, tn.overwrite(a), 1).wait(); return True

a = tn.zeros(4)
"""


def test_in_a_session_of_python_results_and_errors_are_let_go_of():
    answers, process = session(
        "-i",
        text=SESSION
        + """\
        np.asarray(a)
        say(found())
        say(len(a.drop_views()))
        say(can_push())
        (lambda v: v.no_attribute)(np.asarray(a))
        say(found())
        say(len(a.drop_views()))
        say(can_push())
        """.replace("        ", ""),
    )
    error = "last_exc" if sys.version_info >= (3, 12) else "last_value"
    assert answers[:3] == [["`_`"], 0, True], process.stderr
    assert len(answers) == 6, process.stderr
    attribute, variable = answers[3]
    assert attribute == f"attribute `obj` of the AttributeError in sys.{error}"
    assert variable.startswith("variable `v` of <lambda> (<")
    assert variable.endswith(f", a frame of the traceback of the AttributeError in sys.{error}")
    assert answers[4:] == [0, True]


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("IPython") is None, reason="IPython is not installed")
def test_in_ipython_results_and_errors_are_let_go_of(tmp_path, monkeypatch):
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path))
    answers, process = session(
        "-m",
        "IPython",
        "--simple-prompt",
        "--no-banner",
        "--colors=NoColor",
        text=SESSION
        + """\
        np.asarray(a)
        say(found())
        (np.asarray(a)[1:], 2)
        7
        say(len(found()))
        say(len(a.drop_views()))
        say(can_push())
        _
        (lambda v: v.no_attribute)(np.asarray(a))
        say(found())
        say(len(a.drop_views()))
        say(can_push())
        kept = np.asarray(a)
        kept
        say([holder.where for holder in a.drop_views()])
        say([kept.size, sorted(key for key in Out)])
        """.replace("        ", ""),
    )
    out = process.stdout + process.stderr
    assert len(answers) == 9, out
    assert any(text.startswith("Out[") for text in answers[0]) and "`_`" in answers[0], out
    assert answers[2:4] == [0, True], out
    assert any("variable `v` of <lambda>" in text and " in sys.last_" in text for text in answers[4]), out
    assert answers[5:7] == [0, True], out
    assert answers[7] == ["variable `kept` of module __main__"], out
    assert answers[8][0] == 4
