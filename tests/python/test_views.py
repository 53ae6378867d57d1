# SPDX-License-Identifier: Apache-2.0
"""Where views hang: what a conflict says about them, and what `drop_views` lets go of and what it leaves.

The oracle for "nothing is left behind" is the contract's own: after the variable is gone, a push succeeds.
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
import threading
import types

import native_library
import numpy as np
import pytest

import tenon as tn
from tenon._views import drop_views, places

pytestmark = pytest.mark.usefixtures("nothing_stays_behind")


def texts(array, thorough=False):
    return [place.text for place in places(array, thorough)]


def fill(array):
    tn.push(tn.fill, tn.out(array), 1).wait()


def here(offset=0):
    frame = sys._getframe(1)
    return f"{frame.f_code.co_name} ({frame.f_code.co_filename}:{frame.f_lineno + offset})"


class Trainer:
    def __init__(self, batch):
        self.batch = batch

    def step(self):
        pass


class Slotted:
    __slots__ = ("batch",)


def test_a_conflict_names_the_variable_and_the_ways_out():
    a, b = tn.zeros(4), tn.ones(4)
    x = np.asarray(a)[1:]
    other = np.asarray(b.readonly())
    with pytest.raises(tn.LeaseConflict) as caught:
        tn.push(tn.copy, b, tn.out(a))
    message = str(caught.value)
    assert message.startswith("cannot push an op on the array of shape (4,)")
    assert f"ago. It hangs on: variable `x` of {here(-3)}. To go on: drop it (`del x`); or " in message
    assert "host='idle'" in message and "with a.write()" in message
    assert "readonly" not in message  # the op writes
    assert "drop_views" not in message  # nothing that it would clear
    assert "other" not in message
    del x, caught
    tn.push(tn.copy, b, tn.out(a)).wait()
    assert other.tolist() == a.tolist()


def test_a_conflict_of_an_op_that_reads_says_that_readonly_views_would_do():
    a = tn.ones(4)
    x = np.asarray(a)
    with pytest.raises(tn.LeaseConflict, match=r"variable `x` of .*take it from `a\.readonly\(\)`"):
        tn.push(lambda v: None, a)
    assert x.tolist() == [1] * 4


def test_a_conflict_with_an_original_names_it():
    x = np.zeros(4)
    a = tn.from_numpy(x)
    with pytest.raises(tn.LeaseConflict) as caught:
        fill(a)
    assert f"done. It hangs on: variable `x` of {here(-1)}." in str(caught.value)
    assert str(caught.value).count("del x") == 1
    [holder] = drop_views(a)
    assert (holder.kind, holder.mode, holder.where) == ("view", "r", f"variable `x` of {here(-1)}")
    del x, caught
    assert drop_views(a) == []
    fill(a)


def test_a_conflict_of_a_native_function_names_what_its_pointers_write():
    scale = tn.c_function(
        native_library.generators(),
        "int scale(const float *source, float *destination, size_t n, float factor)",
    )
    a, b = tn.ones(8), tn.zeros(8)
    source, destination = np.asarray(a.readonly()), np.asarray(b.readonly())
    with pytest.raises(tn.LeaseConflict) as caught:
        tn.push(scale, a, b, 8, 3.0)
    assert f". It hangs on: variable `destination` of {here(-1)}. To go on" in str(caught.value)
    assert source.size == destination.size == 8


def test_a_conflict_that_new_memory_does_not_end_names_the_variable():
    a = tn.zeros(4)
    x = np.asarray(a)
    with pytest.raises(tn.LeaseConflict, match=r"It hangs on: variable `x` of "):
        tn.push(tn.fill, tn.inout(a), 1, on_conflict="copy")
    assert x.tolist() == [0] * 4


def test_a_conflict_that_no_view_makes_is_told_as_it_is():
    a = tn.zeros(4)
    with a.read():
        seen = np.asarray(a)
        with pytest.raises(tn.LeaseConflict) as caught, a.write():
            pass
    assert "It hangs on" not in str(caught.value)
    del seen


VIEWS = {
    "array": (np.asarray, "ndarray", True),
    "buffer": (memoryview, "memoryview", True),
    "buffer backwards": (lambda a: memoryview(a)[::-2], "memoryview", True),
    "array backwards": (lambda a: np.asarray(a)[::-1], "ndarray", True),
    "other elements": (lambda a: np.asarray(a)[3:].view("u1")[::2], "ndarray", True),
    "other axes": (lambda a: np.asarray(a)[None, 2:3].T, "ndarray", True),
    "class derived": (lambda a: np.asarray(a).view(np.recarray), "recarray", True),
    "readonly array": (lambda a: np.asarray(a.readonly()), "ndarray", False),
    "readonly buffer": (lambda a: memoryview(a.readonly()), "memoryview", False),
    # An export holds for writing.
    "readonly export": (lambda a: np.from_dlpack(a.readonly()), "ndarray", True),
}


@pytest.mark.parametrize("form", VIEWS)
def test_a_view_of_any_form_is_found(form):
    take, kind, is_writable = VIEWS[form]
    a, other = tn.zeros(8), tn.zeros(8)
    x = take(a)
    near = np.asarray(other)
    [place] = places(a)
    assert place.text == f"variable `x` of {here(-1)}"
    assert (place.type, place.is_writable, place.name) == (kind, is_writable, "x")
    del x
    assert places(a) == []
    assert near.size == 8


def test_a_view_of_other_elements_is_no_view_of_these():
    a = tn.zeros((4, 4))
    row = np.asarray(a[1])
    assert texts(a[0]) == texts(a[2:]) == []
    assert texts(a[1:2, 3]) == texts(a[::-1]) == [f"variable `row` of {here()}"]
    part = np.asarray(a[2:])[1:]  # keeps all of what it is a part of
    assert texts(a[2]) == [f"variable `part` of {here()}"]
    assert row.size == part.size == 4


def test_what_variables_hold_is_looked_at():
    a = tn.zeros(4)
    x = np.asarray(a)
    slotted, derived = Slotted(), collections.OrderedDict()
    slotted.batch = x
    derived["key"] = x
    cases = {
        "item 2 of list `kept`": [0, 1, x],
        "item 0 of tuple `kept`": (x, 1),
        "item 1 of deque `kept`": collections.deque([0, x]),
        "item 'k' of dict `kept`": {"k": x},
        "item 'key' of <OrderedDict> `kept`": derived,
        "attribute `batch` of the <Trainer> in an item of set `kept`": {Trainer(x)},
        "attribute `batch` of <Trainer> `kept`": Trainer(x),
        "attribute `batch` of <Slotted> `kept`": slotted,
        "item 1 of the list in item 0 of list `kept`": [[0, x]],
        "item 0 of the tuple in attribute `batch` of <Trainer> `kept`": Trainer((x,)),
        "attribute `batch` of the <Trainer> in item 3 of dict `kept`": {3: Trainer(x)},
        "attribute `batch` of the <Trainer> in the object of method `kept`": Trainer(x).step,
        "variable `v` in the closure of function `kept`": (lambda v: lambda: v)(x),
    }
    del x, slotted, derived
    for text, kept in cases.items():  # noqa: B007
        assert f"{text} of {here()}" in texts(a), text
    del kept
    cases.clear()
    fill(a)


KEPT = []


def test_variables_of_modules_are_looked_at():
    a = tn.zeros(4)
    KEPT.append(np.asarray(a))
    try:
        assert texts(a) == [f"item 0 of list `KEPT` of module {__name__}"]
    finally:
        KEPT.clear()


def test_variables_of_other_threads_are_looked_at():
    a = tn.zeros(4)
    there, go = threading.Event(), threading.Event()

    def hold():
        x = np.asarray(a)
        there.set()
        go.wait(30)
        return x

    thread = threading.Thread(target=hold)
    thread.start()
    there.wait(30)
    try:
        [text] = texts(a)
        assert text.startswith("variable `x` of hold (")
    finally:
        go.set()
        thread.join(30)


def test_functions_of_other_threads_run_on_unharmed():
    # Each call checks by itself that its variables, and the dictionary of them, are as it has left them.
    a = tn.zeros(4)
    stop = threading.Event()
    failures, calls = [], []

    def generate(x, n):
        for i in range(n):
            yield i, x

    def run(n):
        x, twice = np.asarray(a.readonly()), 2 * n
        mine = locals()
        total = sum(i for i, _ in generate(x, n))
        last = (lambda: (n, x.size))()
        if (mine["twice"], total, last) != (2 * n, n * (n - 1) // 2, (n, 4)):
            failures.append((n, mine))

    def churn():
        while not stop.is_set():
            run(len(calls) % 50)
            calls.append(None)

    threads = [threading.Thread(target=churn) for _ in range(2)]
    for thread in threads:
        thread.start()
    before = 0
    try:
        for i in range(100):
            places(a, thorough=i % 50 == 49)
            before = max(before, len(calls))
    finally:
        stop.set()
        for thread in threads:
            thread.join(30)
    assert failures == []
    assert before > 0


def test_the_views_of_an_op_that_runs_are_its_own():
    a = tn.ones(4)
    there, go = threading.Event(), threading.Event()

    def read(v):
        there.set()
        go.wait(30)

    with tn.set_engine("pool"):
        op = tn.push(read, a)
        there.wait(30)
        found = texts(a, True)
        go.set()
        op.wait()
    assert found == []


@pytest.mark.parametrize("thorough", [False, True])
def test_the_search_leaves_nothing_behind(thorough):
    a = tn.zeros(4)

    def search():
        x = np.asarray(a)
        inner = x[1:]
        before = sys.getrefcount(x), sys.getrefcount(inner)
        assert len(places(a, thorough)) == 2
        assert (sys.getrefcount(x), sys.getrefcount(inner)) == before
        del x, inner
        gc.disable()
        try:
            fill(a)
        finally:
            gc.enable()

    search()
    x = np.asarray(a)
    with pytest.raises(tn.LeaseConflict):
        fill(a)
    del x
    fill(a)


@pytest.mark.parametrize("thorough", [False, True])
def test_the_search_makes_no_cycles(thorough):
    a = tn.zeros(4)
    kept = [np.asarray(a)]
    places(a, thorough)
    gc.collect()
    gc.disable()
    try:
        places(a, thorough)
        if not thorough:
            drop_views(a)
        assert gc.collect() == 0
    finally:
        gc.enable()
    assert len(kept) == 1


def test_a_block_leaves_nothing_behind_in_its_frame():
    a, b = tn.zeros(4), tn.zeros(4)
    x = np.asarray(a)
    with b.read():
        pass
    del x
    gc.disable()
    try:
        fill(a)
    finally:
        gc.enable()


def test_variables_that_a_program_has_asked_for_stay_as_they_are():
    a = tn.zeros(4)
    x = np.asarray(a)
    namespace = locals()
    namespace["more"] = 1
    assert f"variable `x` of {here()}" in texts(a)
    assert namespace["more"] == 1
    assert namespace["x"] is x


def test_a_tracer_s_variables_survive_the_search():
    a = tn.zeros(4)
    found = []

    def trace(frame, event, argument):
        if frame.f_code.co_name == "traced" and event == "line":
            found.append(len(places(a)))
        return trace

    def traced():
        x = np.asarray(a)
        y = x[1:]
        return y.size + x.size

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        assert traced() == 7
    finally:
        sys.settrace(before)
    assert len(found) == 3
    fill(a)


def test_no_code_of_the_user_s_objects_runs():
    calls = []

    def note(*arguments):
        calls.append(arguments)
        raise RuntimeError("code of the user")

    class Meta(type):
        __mro__ = property(note)
        __name__ = property(note)
        __hash__ = __eq__ = note

    methods = ("getattribute", "iter", "len", "repr", "eq", "hash", "bool", "getitem")

    class Hostile(metaclass=Meta):
        locals().update({f"__{name}__": note for name in methods})
        __class__ = property(note)
        __dict__ = property(note)
        __slots__ = ("batch",)

    class Sequence(list):
        locals().update({f"__{name}__": note for name in methods})

    class Mapping(dict):
        locals().update({f"__{name}__": note for name in methods})
        items = values = keys = note

    class Array(np.ndarray):
        locals().update({f"__{name}__": note for name in methods})
        base = flags = __array_interface__ = shape = property(note)

    class Failure(Exception):
        __traceback__ = property(note)
        __str__ = __repr__ = note

    a = tn.zeros(4)
    hostile = Hostile()
    Hostile.batch.__set__(hostile, np.asarray(a))
    sequence, mapping = Sequence([np.asarray(a)]), Mapping(k=np.asarray(a))
    array = np.asarray(a).view(Array)
    failure = Failure()
    calls.clear()
    found = texts(a) + texts(a, True)
    assert calls == []
    del failure
    function = here().split()[0]
    for text in (
        "attribute `batch` of <Hostile> `hostile`",
        "item 0 of <Sequence> `sequence`",
        "item 'k' of <Mapping> `mapping`",
        "variable `array`",
    ):
        assert any(part.startswith(f"{text} of {function} (") for part in found), text
    del hostile, sequence, mapping, array


def test_an_object_that_changes_in_size_is_searched_within_the_limit():
    a = tn.zeros(4)
    many = [[] for _ in range(100_000)]
    many.append(np.asarray(a))
    assert texts(a) == []
    assert texts(a, True) == [f"item 100000 of list `many` of {here()}"]


def raise_with(v):
    raise ValueError("text")


def test_a_caught_exception_is_found_named_and_let_go_of():
    a = tn.zeros(4)
    kept = None
    try:
        raise_with(np.asarray(a))
    except ValueError as error:
        kept = error
    line = raise_with.__code__.co_firstlineno + 1
    frame = f"variable `v` of raise_with ({__file__}:{line}), a frame of the traceback of ValueError"
    with pytest.raises(tn.LeaseConflict) as caught:
        fill(a)
    assert f"It hangs on: {frame} kept in variable `kept` of {here(-1)}." in str(caught.value)
    assert "`a.drop_views()`" in str(caught.value)
    del caught
    assert drop_views(a) == []
    fill(a)
    assert str(kept) == "text"
    assert kept.__traceback__ is not None


def test_an_exception_that_is_being_handled_is_found():
    a = tn.zeros(4)
    try:
        raise_with(np.asarray(a))
    except ValueError:
        [text] = texts(a)
        with pytest.raises(tn.LeaseConflict, match="ValueError that is being handled"):
            fill(a)
        assert drop_views(a) == []
        fill(a)
    assert text.endswith("a frame of the traceback of ValueError that is being handled")


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
    assert "of the traceback of ValueError kept in item 0 of list `kept` of " in text
    assert drop_views(a) == []
    fill(a)


def test_a_copy_of_variables_that_a_reader_of_the_traceback_made_is_let_go_of_too():
    a = tn.zeros(4)
    try:
        raise_with(np.asarray(a))
    except ValueError as error:
        kept = error
    copy = kept.__traceback__.tb_next.tb_frame.f_locals
    assert "v" in copy
    assert drop_views(a) == []
    fill(a)
    assert "v" not in copy


def test_the_object_of_an_attribute_error_is_found_named_and_let_go_of():
    a = tn.zeros(4)
    try:
        np.asarray(a).no_attribute  # noqa: B018
    except AttributeError as error:
        kept = error
    assert texts(a) == [f"attribute `obj` of AttributeError `kept` of {here()}"]
    with pytest.raises(tn.LeaseConflict, match=r"call `a\.drop_views\(\)`"):
        fill(a)
    assert drop_views(a) == []
    fill(a)
    assert "no_attribute" in str(kept)


@pytest.mark.parametrize("name", ["last_value", "last_exc", "last_traceback"])
def test_the_last_error_of_a_session_is_found_named_and_let_go_of(name):
    a = tn.zeros(4)
    try:
        raise_with(np.asarray(a))
    except ValueError as error:
        setattr(sys, name, error.__traceback__ if "trace" in name else error)
    line = raise_with.__code__.co_firstlineno + 1
    text = f"sys.{name}: variable `v` of raise_with ({__file__}:{line}), a frame of a traceback"
    assert texts(a) == [text]
    with pytest.raises(tn.LeaseConflict, match=f"It hangs on: sys.{name}: variable `v`"):
        fill(a)
    assert drop_views(a) == []
    assert not hasattr(sys, name)
    fill(a)


def test_the_last_error_stays_where_it_leads_to_no_view(monkeypatch):
    a = tn.zeros(4)
    x = np.asarray(a)
    monkeypatch.setattr(sys, "last_value", ValueError("another"), raising=False)
    assert [holder.where for holder in drop_views(a)] == [f"variable `x` of {here()}"]
    assert str(sys.last_value) == "another"
    assert x.size == 4


def test_the_last_result_of_the_prompt_is_found_named_and_let_go_of():
    a = tn.zeros(4)
    builtins._ = np.asarray(a)
    assert texts(a) == ["`_`"]
    assert drop_views(a) == []
    assert not hasattr(builtins, "_")
    fill(a)


def test_variables_of_code_that_runs_are_left():
    a = tn.zeros(4)
    kept = [np.asarray(a)]

    def run(v):
        try:
            raise_with(None)
        except ValueError as error:
            return drop_views(a), error, v.size

    holders, error, size = run(kept[0])
    assert size == 4
    assert len(holders) == 1
    assert "variable `v` of run (" in holders[0].where
    assert f"item 0 of list `kept` of {here(-4)}" in holders[0].where
    assert error is not None
    kept.clear()
    del error
    fill(a)


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
    assert len(drop_views(a)) == 1
    assert next(generator) == 4
    del error, generator
    fill(a)


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
    assert drop_views(a) == []
    fill(a)
    assert kept is not None


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


def test_containers_that_no_variable_leads_to_are_found_by_the_thorough_search():
    a = tn.zeros(4)
    module = types.ModuleType("tests_of_views")
    module.registry = {"loaders": [Trainer(collections.deque([[np.asarray(a)]]))]}
    sys.modules[module.__name__] = module
    del module
    try:
        assert texts(a) == []
        [holder] = drop_views(a)
        assert holder.where == (
            "item 0 of the list in item 0 of the deque in attribute `batch` of the <Trainer> in "
            "item 0 of the list in item 'loaders' of dict `registry` of module tests_of_views"
        )
    finally:
        del sys.modules["tests_of_views"]
    gc.collect()
    fill(a)


def test_of_several_views_each_names_all_places():
    a = tn.zeros(4)
    x, y = np.asarray(a), memoryview(a)
    first, second = drop_views(a)
    assert (first.where, second.where) == (
        f"of 2 views: variable `x` of {here(-2)}; variable `y` of {here(-2)}",
    ) * 2
    assert first.site != ""
    assert [holder.where for holder in a.leases()] == ["", ""]
    del x, y


def test_a_dead_cycle_is_let_go_of():
    a = tn.zeros(4)
    gc.disable()
    try:
        cycle = [np.asarray(a)]
        cycle.append(cycle)
        del cycle
        assert drop_views(a) == []
    finally:
        gc.enable()


def test_torch_tensors_and_graphs_are_found():
    torch = pytest.importorskip("torch")
    a = tn.ones(4)
    t = torch.from_dlpack(a)[1:]
    assert texts(a) == [f"variable `t` of {here()}"]
    weight = torch.ones(3, requires_grad=True)
    loss = (t * weight).sum() * 2
    del t
    assert texts(a) == [f"the autograd graph of variable `loss` of {here()}"]
    with pytest.raises(tn.LeaseConflict, match="the autograd graph of variable `loss`"):
        fill(a)
    loss.backward()
    assert texts(a) == []
    fill(a)
    parameter = torch.nn.Parameter(torch.from_dlpack(a))
    module = torch.nn.Linear(4, 1)
    module.weight = parameter
    assert f"variable `parameter` of {here()}" in texts(a)
    del parameter
    assert "item 'weight' of the dict in " in texts(a)[0] or "`weight`" in texts(a)[0]
    del module


def test_a_function_of_autograd_s_user_is_looked_at():
    torch = pytest.importorskip("torch")

    class Times(torch.autograd.Function):
        @staticmethod
        def forward(context, x, y):
            context.save_for_backward(x, y)
            return x * y

        @staticmethod
        def backward(context, gradient):
            x, y = context.saved_tensors
            return gradient * y, gradient * x

    a = tn.ones(4)
    loss = Times.apply(torch.from_dlpack(a), torch.ones(4, requires_grad=True)).sum()
    assert texts(a) == [f"the autograd graph of variable `loss` of {here()}"]
    del loss
    fill(a)


def test_hooks_on_what_autograd_has_saved_are_not_called():
    torch = pytest.importorskip("torch")
    calls = []

    def unpack(packed):
        calls.append(packed)
        return packed

    a = tn.ones(4)
    with torch.autograd.graph.saved_tensors_hooks(lambda x: x, unpack):
        loss = (torch.from_dlpack(a) * torch.ones(4, requires_grad=True)).sum()
    assert texts(a) == [f"the autograd graph of variable `loss` of {here()}"]
    assert calls == []
    del loss
    fill(a)


def test_jax_arrays_are_found():
    pytest.importorskip("jax")
    a = tn.ones((64, 64))
    j = a.jax()
    assert texts(a) == [f"variable `j` of {here()}"]
    del j
    fill(a)


def session(*command, text):
    environment = {**os.environ, "TERM": "dumb"}
    process = subprocess.run(
        [sys.executable, *command],
        input=textwrap.dedent(text),
        capture_output=True,
        text=True,
        timeout=120,
        env=environment,
    )
    answers = [line[line.index("ANSWER ") + 7 :] for line in process.stdout.splitlines() if "ANSWER " in line]
    return [json.loads(answer) for answer in answers], process


SESSION = """\
import json, sys, numpy as np, tenon as tn
from tenon._views import places, drop_views
def say(value): print("ANSWER", json.dumps(value))

def found(): return sorted(place.text for place in places(a))

def can_push(): tn.push(tn.fill, tn.out(a), 1).wait(); return True

a = tn.zeros(4)
"""


def test_in_a_session_of_python_results_and_errors_are_let_go_of():
    answers, process = session(
        "-i",
        text=SESSION
        + """\
        np.asarray(a)
        say(found())
        say(len(drop_views(a)))
        say(can_push())
        (lambda v: v.no_attribute)(np.asarray(a))
        say(found())
        say(len(drop_views(a)))
        say(can_push())
        """.replace("        ", ""),
    )
    error = "last_exc" if sys.version_info >= (3, 12) else "last_value"
    assert answers[:3] == [["`_`"], 0, True], process.stderr
    assert len(answers) == 6, process.stderr
    attribute, variable = answers[3]
    assert attribute == f"attribute `obj` of the AttributeError in sys.{error}"
    assert variable.startswith(f"sys.{error}: variable `v` of <lambda> (<")
    assert answers[4:] == [0, True]


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
        say(len(drop_views(a)))
        say(can_push())
        _
        (lambda v: v.no_attribute)(np.asarray(a))
        say(found())
        say(len(drop_views(a)))
        say(can_push())
        kept = np.asarray(a)
        kept
        say([holder.where for holder in drop_views(a)])
        say([kept.size, sorted(key for key in Out)])
        """.replace("        ", ""),
    )
    out = process.stdout + process.stderr
    assert len(answers) == 9, out
    assert any(text.startswith("Out[") for text in answers[0]) and "`_`" in answers[0], out
    assert answers[2:4] == [0, True], out
    assert any(text.startswith("sys.last_") and "variable `v` of <lambda>" in text for text in answers[4]), (
        out
    )
    assert answers[5:7] == [0, True], out
    assert answers[7] == ["variable `kept` of module __main__"], out
    assert answers[8][0] == 4
