# SPDX-License-Identifier: Apache-2.0
"""Where views hang: what the search finds, what a conflict says about it, and that it changes nothing.

The oracle for "nothing is left behind" is the contract's own: after the variable is gone, a push succeeds.
"""

import collections
import gc
import os
import subprocess
import sys
import threading

import native_library
import numpy as np
import pytest
from view_places import Trainer, fill, here, texts

import tenon as tn
from tenon import _core
from tenon._sync.views import drop_views, places

pytestmark = pytest.mark.usefixtures("nothing_stays_behind")


class Slotted:
    __slots__ = ("batch",)


def test_a_conflict_names_the_variable_and_the_ways_out():
    a, b = tn.zeros(4), tn.ones(4)
    x = np.asarray(a)[1:]
    other = np.asarray(b.readonly())
    with pytest.raises(tn.LeaseConflict) as caught:
        tn.push(tn.copy, b, tn.overwrite(a))
    message = str(caught.value)
    assert message.startswith("cannot push an op on the array of shape (4,)")
    assert f"ago. It is kept by: variable `x` of {here(-3)}. To go on: drop it (`del x`); or " in message
    assert "on_conflict='ignore'" in message and "with a.write()" in message
    assert "readonly" not in message  # the op writes
    assert "drop_views" not in message  # nothing that it would clear
    assert "other" not in message
    del x, caught
    tn.push(tn.copy, b, tn.overwrite(a)).wait()
    assert other.tolist() == a.tolist()


def test_a_conflict_of_an_op_that_reads_says_that_readonly_views_would_do():
    a = tn.ones(4)
    x = np.asarray(a)
    with pytest.raises(tn.LeaseConflict, match=r"variable `x` of .*take it from `a\.readonly\(\)`"):
        tn.push(lambda v: None, a)
    assert x.tolist() == [1] * 4


@pytest.mark.slow
def test_a_conflict_with_an_original_names_it():
    x = np.zeros(4)
    a = tn.from_numpy(x)
    with pytest.raises(tn.LeaseConflict) as caught:
        fill(a)
    here_name = "test_a_conflict_with_an_original_names_it"  # fill() has pushed the op
    way = f"To go on: drop it in {here_name} (`del x`); or import a copy (`a = tn.from_numpy(x.copy())`); or "
    assert f"a base of it. It is kept by: variable `x` of {here(-3)}. {way}" in str(caught.value)
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
    assert f". It is kept by: variable `destination` of {here(-1)}. To go on" in str(caught.value)
    assert source.size == destination.size == 8


def test_a_conflict_that_new_memory_does_not_end_names_the_variable():
    a = tn.zeros(4)
    x = np.asarray(a)
    with pytest.raises(tn.LeaseConflict, match=r"It is kept by: variable `x` of "):
        tn.push(tn.fill, tn.write(a), 1, on_conflict="copy")
    assert x.tolist() == [0] * 4


def test_a_conflict_that_no_view_makes_is_told_as_it_is():
    a = tn.zeros(4)
    with a.read():
        seen = np.asarray(a)
        with pytest.raises(tn.LeaseConflict) as caught, a.write():
            pass
    assert "It is kept by" not in str(caught.value)
    del seen


VIEWS = {
    "array": (np.asarray, True),
    "buffer": (memoryview, True),
    "buffer backwards": (lambda a: memoryview(a)[::-2], True),
    "array backwards": (lambda a: np.asarray(a)[::-1], True),
    "other elements": (lambda a: np.asarray(a)[3:].view("u1")[::2], True),
    "other axes": (lambda a: np.asarray(a)[None, 2:3].T, True),
    "class derived": (lambda a: np.asarray(a).view(np.recarray), True),
    "readonly array": (lambda a: np.asarray(a.readonly()), False),
    "readonly buffer": (lambda a: memoryview(a.readonly()), False),
    # An export holds for writing.
    "readonly export": (lambda a: np.from_dlpack(a.readonly()), True),
}


@pytest.mark.parametrize("form", VIEWS)
def test_a_view_of_any_form_is_found(form):
    if form == "readonly export" and np.lib.NumpyVersion(np.__version__) < "2.1.0":
        pytest.skip("NumPy takes read-only arrays by DLPack from 2.1 on")
    take, is_writable = VIEWS[form]
    a, other = tn.zeros(8), tn.zeros(8)
    x = take(a)
    near = np.asarray(other)
    [place] = places(a)
    assert place.text == f"variable `x` of {here(-1)}"
    assert (place.is_writable, place.change) == (is_writable, "`del x`")
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
    slotted, deep, derived = Slotted(), Slotted(), collections.OrderedDict()
    slotted.batch = x
    deep.batch = (Trainer(x),)
    derived["key"] = x
    cases = {
        "item 2 of list `kept`": [0, 1, x],
        "item 0 of tuple `kept`": (x, 1),
        "item 1 of deque `kept`": collections.deque([0, x]),
        "item 'k' of dict `kept`": {"k": x},
        "item 'key' of OrderedDict `kept`": derived,
        "attribute `batch` of the Trainer in an item of set `kept`": {Trainer(x)},
        "attribute `batch` of Trainer `kept`": Trainer(x),
        "attribute `batch` of Slotted `kept`": slotted,
        "item 1 of the list in item 0 of list `kept`": [[0, x]],
        "item 0 of the tuple in attribute `batch` of Trainer `kept`": Trainer((x,)),
        "attribute `batch` of the Trainer in item 3 of dict `kept`": {3: Trainer(x)},
        "attribute `batch` of the Trainer in attribute `__self__` of method `kept`": Trainer(x).step,
        # As a data frame holds its columns.
        "attribute `batch` of the Trainer in item 0 of the tuple in attribute `batch` of the Slotted in "
        "attribute `batch` of Trainer `kept`": Trainer(deep),
        "variable `v` in the closure of function `kept`": (lambda v: lambda: v)(x),
    }
    del x, slotted, deep, derived
    for text, kept in cases.items():  # noqa: B007
        assert f"{text} of {here()}" in texts(a), text
    del kept
    cases.clear()
    fill(a)


KEEPER = """
import numpy as np
import tenon as tn
from tenon._sync.views import places

KEPT = []


def keep():
    a = tn.zeros(4)
    KEPT.append(np.asarray(a))
    print([place.text for place in places(a, False)])
"""


def test_variables_of_modules_are_looked_at(tmp_path):
    """In an interpreter of its own: the test runner has more objects than the search looks at."""
    (tmp_path / "keeper.py").write_text(KEEPER)
    done = subprocess.run(
        [sys.executable, "-c", "import keeper; keeper.keep()"],
        env={**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"},
        capture_output=True,
        text=True,
    )
    assert done.stdout == "['item 0 of list `KEPT` of module keeper']\n", done.stderr


@pytest.mark.slow
def test_attributes_of_classes_are_found_by_the_thorough_search():
    a = tn.zeros(4)
    Trainer.shared = [np.asarray(a)]
    try:
        [text] = texts(a, True)
    finally:
        del Trainer.shared
    assert text == "item 0 of the list in attribute `shared` of type `Trainer` of module view_places"
    fill(a)


def test_all_names_of_a_view_are_told():
    a = tn.zeros(4)
    x = y = np.asarray(a)
    assert texts(a) == [f"variable `x` of {here()}", f"variable `y` of {here()}"]
    with pytest.raises(
        tn.LeaseConflict, match=r"drop it in test_all_names_of_a_view_are_told \(`del x, y`\)"
    ):
        fill(a)
    assert x is y


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
        thread.join(600)


@pytest.mark.slow
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
            thread.join(600)
    assert failures == []
    assert before > 0


@pytest.mark.slow
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


@pytest.mark.parametrize("thorough", [False, pytest.param(True, marks=pytest.mark.slow)])
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


@pytest.mark.slow
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


@pytest.mark.slow
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
        "attribute `batch` of Hostile `hostile`",
        "item 0 of Sequence `sequence`",
        "item 'k' of Mapping `mapping`",
        "variable `array`",
    ):
        assert any(part.startswith(f"{text} of {function} (") for part in found), text
    del hostile, sequence, mapping, array


class Batches(list):
    pass


@pytest.mark.parametrize("kind", [list, tuple, Batches, collections.deque, dict])
def test_an_item_of_a_long_container_is_named(kind):
    """The search follows some of the references. Like the garbage collector, it begins at the end of a list
    and at the start of a dictionary."""
    a = tn.zeros(4)
    number = 0 if kind in (collections.deque, dict) else 20_000
    items = [[] for _ in range(20_000)]
    items.insert(number, np.asarray(a))
    kept = kind(enumerate(items) if kind is dict else items)
    del items
    assert texts(a) == [f"item {number} of {kind.__name__} `kept` of {here()}"]
    del kept


@pytest.mark.slow
def test_an_object_that_changes_in_size_is_searched_within_the_limit():
    a = tn.zeros(4)
    many = [[] for _ in range(100_000)]
    many.insert(50_000, np.asarray(a))
    assert texts(a) == []
    assert texts(a, True) == [f"item 50000 of list `many` of {here()}"]


@pytest.mark.slow
def test_of_many_views_some_are_named():
    a = tn.zeros(4)
    views = [np.asarray(a)[i % 4 :] for i in range(30_000)]
    objects = [Trainer(view) for view in views]
    for thorough in (False, True):
        found = texts(a, thorough)
        assert any(" of list `views` of " in text for text in found)
        assert any(" of list `objects` of " in text for text in found) or not thorough
        assert len(found) <= 100
    views.clear()
    objects.clear()


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


@pytest.mark.parametrize("part", [np.s_[:], np.s_[::-1, ::2], np.s_[1:3, 1], np.s_[2:2], np.s_[None, ::-3]])
def test_the_search_knows_which_bytes_an_array_has(part):
    x = np.arange(20, dtype="i4").reshape(4, 5)
    expected = np.lib.array_utils.byte_bounds(x[part]) if x[part].size else (0, 0)
    assert _core.addresses(x[part]) == expected
    assert _core.addresses(tn.from_numpy(x)[part]) == expected


def test_an_array_that_leaves_the_address_space_may_have_any_byte():
    x = np.lib.stride_tricks.as_strided(np.zeros(2), (3, 3), (2**62, 2**62))
    assert _core.addresses(x) == (0, 2**64 - 1)
    with pytest.raises(TypeError, match="no array"):
        _core.addresses([1])
