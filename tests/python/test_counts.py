# SPDX-License-Identifier: Apache-2.0
"""Counts of references decide nothing that they can miss: docs/dev/counting.md. An interpreter may put a
variable on its evaluation stack without a reference."""

import contextlib
import functools
import gc
import os
import subprocess
import sys
import textwrap
import threading

import numpy as np
import pytest

import tenon as tn
from tenon import _core, _errors
from tenon._sync import counts

N = 1 << 16


@pytest.fixture(autouse=True)
def no_failure_stays_unseen():
    yield
    with contextlib.suppress(ExceptionGroup):
        tn.waitall()


def holds(a):
    return [holder.kind for holder in a.leases()]


def reuse(a):
    """Frees the array, and returns others, one of which would get its memory."""
    shape = a.shape
    del a
    gc.collect()
    return [tn.zeros(shape, "u1") for _ in range(4)]


# --- memory stays for what shows it


def check_that_a_failed_body_frees_nothing(fail, shown):
    """shown: filled by the body, with a memoryview of what it was given."""
    a = tn.zeros(N, "u1")
    op = tn.push(fail, tn.write(a))
    with contextlib.suppress(tn.OpError):
        op.wait()
    assert op.exception() is not None and holds(a) == ["view"]
    del op
    others = reuse(a)
    del a
    assert shown[0][0] == shown[0][-1] == 7 and len(others) == 4


def test_a_part_of_a_view_keeps_its_memory_while_a_memoryview_shows_it():
    def run():
        a = tn.zeros(N, "u1")
        with a.write() as v:
            v[:] = 7
            w = v[16:]
            m = memoryview(w)
        assert holds(a) == ["view"]
        with pytest.raises(tn.LeaseConflict):
            tn.push(tn.fill, tn.overwrite(a), 9)
        return a, m

    a, m = run()
    others = reuse(a)
    del a
    assert m[0] == m[-1] == 7 and len(others) == 4


def in_an_inner_call(stack, v):
    stack.close()


def in_a_call_of_a_call(stack, v):
    in_an_inner_call(stack, v)


def by_a_method(stack, v):
    class Ender:
        def end(self, x):
            stack.close()

    Ender().end(v)


def by_a_default_argument(stack, v):
    def end(x=v):
        stack.close()

    end()


def by_a_keyword(stack, v):
    in_an_inner_call(v=v, stack=stack)


def by_packed_arguments(stack, v):
    in_an_inner_call(*(stack, v))


def in_a_comprehension(stack, v):
    assert [in_an_inner_call(stack, x) for x in (v,)] == [None]


def in_a_generator(stack, v):
    def steps(x):
        stack.close()
        yield x.size

    assert list(steps(v)) == [0]


def in_a_match(stack, v):
    match v:
        case x if in_an_inner_call(stack, x) is None:
            assert x.size == 0


def in_an_f_string(stack, v):
    assert f"{v.size}{in_an_inner_call(stack, v)}{v.size}" == f"{N}None0"


def in_an_assignment_to_an_item(stack, v):
    class Items:
        def __setitem__(self, key, value):
            stack.close()

    items = Items()
    items[0] = v


def in_an_operator(stack, v):
    class Right:
        __array_ufunc__ = None

        def __radd__(self, left):
            stack.close()
            return 0

    right = Right()
    assert v + right == 0


def in_a_ufunc(stack, v):
    class Right:
        def __array_ufunc__(self, *arguments, **keywords):
            stack.close()
            return 0

    assert np.add(v, Right()) == 0


def in_a_class_body(stack, v):
    class _Body:
        x = v
        stack.close()


def in_exec(stack, v):
    exec("stack.close()", {"stack": stack, "x": v})


def under_a_tracer(stack, v):
    def trace(frame, event, argument):
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        in_an_inner_call(stack, v)
    finally:
        sys.settrace(before)


ENDS = [value for name, value in list(globals().items()) if name.startswith(("in_", "by_", "under_"))]


@pytest.mark.skipif(sys.version_info < (3, 13), reason="f_locals is a copy")
def test_a_value_that_is_replaced_in_a_frame_keeps_its_memory_while_an_instruction_has_it():
    seen = []

    class Right:
        __array_ufunc__ = None

        def __radd__(self, left):
            del left
            sys._getframe(1).f_locals["v"] = None
            stack.close()
            seen.append(holds(a))
            return 0

    a, stack, right = tn.zeros(N, "u1"), contextlib.ExitStack(), Right()

    def add():
        v = stack.enter_context(a.write())
        return v + right

    assert add() == 0 and seen == [["view"]]


@pytest.mark.parametrize("end", ENDS, ids=lambda end: end.__name__)
def test_a_view_keeps_its_memory_while_a_memoryview_shows_it_wherever_its_block_ends(end):
    def run():
        a = tn.zeros(N, "u1")
        stack = contextlib.ExitStack()
        v = stack.enter_context(a.write())
        v[:] = 7
        m = memoryview(v)
        end(stack, v)
        assert v.size == 0 and holds(a) == ["view"]
        return a, m

    a, m = run()
    others = reuse(a)
    del a
    assert m[0] == m[-1] == 7 and len(others) == 4


def test_an_error_that_carries_a_part_of_a_view_keeps_its_memory_while_a_memoryview_shows_it():
    shown = []

    def fail(v):
        v[:] = 7
        w = v[4:]
        shown.append(memoryview(w))
        raise ValueError("failed", w)

    check_that_a_failed_body_frees_nothing(fail, shown)


class HasProperties(Exception):
    def __init__(self, w):
        self.w = w

    @property
    def args(self):
        return self.w, self.w


def with_the_arguments_of_its_cause(w):
    error, cause = KeyError(), ValueError("failed", w)
    error.args = cause.args
    raise error from cause


def with_the_attributes_of_its_cause(w):
    error, cause = KeyError(), ValueError("failed")
    cause.w = w
    error.__dict__ = cause.__dict__
    raise error from cause


def with_a_property(w):
    raise HasProperties(w)


SHARING = [with_the_arguments_of_its_cause, with_the_attributes_of_its_cause, with_a_property]


@pytest.mark.parametrize("fail", SHARING, ids=lambda fail: fail.__name__)
def test_a_reference_that_errors_show_twice_counts_once(fail):
    shown = []

    def run(v):
        v[:] = 7
        w = v[4:]
        shown.append(memoryview(w))
        fail(w)

    a = tn.zeros(N, "u1")
    op = tn.push(run, tn.write(a))
    with contextlib.suppress(tn.OpError):
        op.wait()
    assert op.exception() is not None and holds(a) == ["view"]
    del op
    others = reuse(a)
    del a
    assert shown[0][0] == shown[0][-1] == 7 and len(others) == 4


def test_what_another_thread_makes_of_a_view_behind_the_count_shows_no_memory(monkeypatch):
    shown, kept = [], []
    release = _core.release_if_named

    def and_look(*arguments):
        with contextlib.suppress(ValueError):  # NumPy has no buffer for the dtype of an ended view
            shown.append(memoryview(kept[0]))
        return release(*arguments)

    a = tn.zeros(N, "u1")
    stack = contextlib.ExitStack()
    kept.append(stack.enter_context(a.write()))
    monkeypatch.setattr(_core, "release_if_named", and_look)
    stack.close()
    assert sum(m.nbytes for m in shown) == 0 or holds(a) == ["view"]


def test_a_part_whose_one_name_gives_way_to_a_memoryview_at_the_end_keeps_its_memory(monkeypatch):
    empty, shown, space = _core.empty_view, [], {"a": tn.zeros(N, "u1")}

    def and_take(*arguments):
        empty(*arguments)
        if not shown:
            shown.append(memoryview(space.pop("w")))

    monkeypatch.setattr(_core, "empty_view", and_take)
    exec("with a.write() as v:\n v[:] = 7\n w = v[4:]\n", space)
    assert holds(space["a"]) == ["view"]
    others = reuse(space.pop("a"))
    assert shown[0][0] == shown[0][-1] == 7 and len(others) == 4


def test_what_an_error_gives_away_while_it_is_looked_at_keeps_its_memory(monkeypatch):
    stands_on, errors, shown = _errors._stands_on, [], []

    def and_take(value, numbers):
        if stands_on(value, numbers) and not shown:
            shown.append(memoryview(value))
            del errors.pop().w
            return True
        return stands_on(value, numbers)

    def fail(v):
        v[:] = 7
        errors.append(ValueError("failed"))
        errors[0].w = v[4:]
        raise errors[0]

    monkeypatch.setattr(_errors, "_stands_on", and_take)
    check_that_a_failed_body_frees_nothing(fail, shown)


@pytest.mark.skipif(_core.counting() == "owned", reason="no instruction lends a variable")
def test_a_frame_that_has_moved_on_meanwhile_in_another_thread_keeps_what_it_has_lent(monkeypatch):
    operands, go, computes, end = counts._operands, *(threading.Event() for _ in range(3))

    class Right:
        __array_ufunc__ = None

        def __radd__(self, left):
            del left
            computes.set()
            end.wait(60)
            return 0

    def compute():
        v = views.pop()
        go.wait(60)
        v + Right()

    def and_wait(code, instruction):
        found = operands(code, instruction)
        if code is compute.__code__ and not computes.is_set():
            go.set()
            computes.wait(60)
        return found

    root, *views = reversed(_core.rooted_pair(tn.zeros(N, "u1")))
    thread = threading.Thread(target=compute)
    thread.start()
    frame = None
    while frame is None or frame.f_code is not compute.__code__:
        frame = frame.f_back if frame is not None else sys._current_frames()[thread.ident]
    pair = [dict(_core.variables_of(frame))["v"], root]
    del root
    monkeypatch.setattr(counts, "_operands", and_wait)
    is_ended = _core.end_if_lone(pair, frame)
    end.set()
    thread.join()
    assert go.is_set() and not is_ended


def test_a_body_that_keeps_one_reference_to_its_view_is_told():
    kept = []
    with pytest.raises(tn.OpError, match="lives on after it"):
        tn.push(kept.append, tn.write(tn.zeros(3))).wait()


@pytest.mark.parametrize(
    "options", [{"workers": 0}, {}, {"workers": 2}], ids=["inline", "a thread", "threads"]
)
def test_a_generator_that_keeps_a_part_of_a_batch_is_told(options):
    kept = []

    def fill(batch):
        data = batch.data
        data[...] = batch.index
        kept.append(data[1:])

    def read():
        with tn.Feed(fill, tn.schema(data=("i8", (4,))), batches=6, slots=3, **options) as feed:
            for _ in feed:
                pass

    with pytest.raises(tn.OpError, match=r"views of field 'data' live on .* list `kept`"):
        read()


@tn.worker(tn.schema(data=("i8", (4,))))
def keeping_a_local(batches):
    for batch in batches:
        data = batch.data
        data[...] = batch.index


def test_a_worker_whose_variable_outlives_a_batch_keeps_nothing():
    with tn.Feed(keeping_a_local(), batches=6, slots=3) as feed:
        assert [batch.data.tolist() for batch in feed] == [[i] * 4 for i in range(6)]


def test_a_stacked_tensor_that_the_program_keeps_is_its_own():
    pytest.importorskip("torch")
    program = """
        import torch, tenon as tn
        from torch.utils.data import default_collate

        kept = []

        def collate(samples):
            batch = default_collate(samples)
            kept.append(batch)
            for i, old in enumerate(kept):
                assert old.tolist() == [float(4 * i + j) for j in range(4)], (i, old)
            return batch

        def main():
            samples = [torch.tensor(float(i)) for i in range(64)]
            options = {"num_workers": 1, "multiprocessing_context": "fork"}  # no other start finds collate
            loader = tn.DataLoader(samples, batch_size=4, collate_fn=collate, **options)
            assert sum(len(batch) for batch in loader) == 64

        if __name__ == "__main__":
            main()
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stderr


# --- mode="move"


def moved(x):
    return tn.from_numpy(x, mode="move")


def test_a_view_of_an_array_keeps_it_from_being_moved():
    x = np.arange(9.0)
    w = x[1:]
    with pytest.raises(ValueError, match=r"2 references.*|3 references.*") as told:
        tn.from_numpy(x, mode="move")
    assert "mode='writable'" in str(told.value) and w.flags.writeable


MOVES_WITH_A_VIEW = {
    "a packed call": lambda x: tn.from_numpy(*x, mode="move"),
    "a partial function": lambda x: functools.partial(tn.from_numpy, *x, mode="move")(),
    "an item": lambda x: tn.from_numpy(x[0], mode="move"),
    "a mapping": lambda x: list(map(moved, x)),
}


@pytest.mark.parametrize("move", MOVES_WITH_A_VIEW.values(), ids=MOVES_WITH_A_VIEW)
def test_a_view_keeps_an_array_without_a_name_from_being_moved(move):
    arguments = [np.arange(9.0)]
    w = arguments[0][1:]
    with pytest.raises(ValueError, match="mode='move'"):
        move(arguments)
    assert w.flags.writeable and w.tolist() == list(range(1, 9))


def test_a_variable_around_the_caller_keeps_its_array_from_being_moved():
    x = np.arange(9.0)
    with pytest.raises(ValueError, match="mode='move'"):
        moved(x)
    assert x.flags.writeable


@pytest.mark.names_count
def test_an_array_that_only_a_parameter_names_can_be_moved():
    a = moved(np.arange(3.0))
    assert a.tolist() == [0, 1, 2]


X = None


@pytest.mark.parametrize("where", ["a module", "a global of a function", "a closure"])
@pytest.mark.names_count
def test_an_array_with_one_name_can_be_moved(where):
    if where == "a module":
        space = {"np": np, "tn": tn}
        exec("x = np.arange(3.0)\na = tn.from_numpy(x, mode='move')", space)
        assert space["a"].tolist() == [0, 1, 2]
    elif where == "a closure":
        x = np.arange(3.0)
        assert (lambda: tn.from_numpy(x, mode="move"))().tolist() == [0, 1, 2]
    else:
        globals()["X"] = np.arange(3.0)
        a = tn.from_numpy(X, mode="move")
        globals()["X"] = None
        assert a.tolist() == [0, 1, 2]


# --- variables on the evaluation stack


class Anything:
    """It takes part in any expression, and keeps nothing."""

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return f

    def __call__(self, *arguments, **keywords):
        return f

    def __getitem__(self, key):
        return f

    def __setitem__(self, key, value):
        pass

    def __setattr__(self, name, value):
        pass

    def __add__(self, other):
        return f

    def __format__(self, how):
        return how


class Counted(Anything):
    pass


f = Anything()
SEEN = []


def inner():
    """Notes for the one `Counted`: the references of variables that count, and all references."""
    n, frame = 0, sys._getframe(1)
    while frame is not None:
        n += sum(type(value) is Counted for value in _core.counted_variables(frame))
        frame = frame.f_back
    frame, holder = sys._getframe(1), []
    while frame is not None:
        for _, value in _core.variables_of(frame):
            if type(value) is Counted and not holder:
                holder.append(value)
        value, frame = None, frame.f_back
    SEEN.append((n, _core.references(holder)))
    return 1


ON_THE_STACK = [
    "f(v, inner())",
    "f(1, 2, v, inner(), 3)",
    "f(v, x=inner())",
    "f(f, x=v, y=inner())",
    "v[inner()]",
    "v[inner()] = 1",
    "v + inner()",
    "[v, inner()]",
    "(v, *[inner()])",
    "{'a': v, 'b': inner()}",
    "f'{v:{inner()}}'",
    "f(*[v], inner())",
    "f(*[f], v, inner())",
    "w = v, inner(); del w",
    "f[inner()] = v",
    "f.x = f(v, inner())",
    "(lambda x, y: f)(v, inner())",
    "a = b = v, inner(); del a, b",
    "f(f(v, inner()), f)",
]
NEAR_THE_STACK = [
    "f(v, inner() if f else 0)",
    "f(v, [inner() for _ in (1,)])",
    "v and f(v, inner())",
    "f(f(v), f(inner()))",
    "f(v)(inner())",
    "f(v, inner())(inner())",
    "v.g(inner())",
    "w = v; f(v, w, inner()); del v; inner()",
    "f[v] = inner()",
    "f(v)[inner()] = f",
    "f(v, *(inner() for _ in (1,)))",
    "for x in (v, f): inner()",
]
OFF_THE_STACK = [
    "f(v); inner()",
    "x = f(v); inner(); del x",
    "v[0] = 1; inner()",
    "f[v] = 1; inner()",
    "v.x = 2; inner()",
    "assert v is not None; inner()",
    "for _ in (1, 2): inner()",
    "inner()",
    "f(inner())",
    "f(inner(), v)",
    "f(v, f(v), v + f); f(inner(), v)",
]


def counts_at(statement, kind):
    """What inner() notes in the statement, where ``v`` is the one reference to the object, or a parameter."""
    SEEN.clear()
    body = (
        f"def run(v):\n    {statement}\n"
        if kind != "variable"
        else f"def run():\n    v = Counted()\n    {statement}\n"
    )
    calls = {"variable": "run()", "parameter": "run(Counted())", "passed on": "w = Counted()\n    run(w)"}
    exec(f"{body}def begin():\n    {calls[kind]}\n", space := {"Counted": Counted, "f": f, "inner": inner})
    space["begin"]()
    return list(SEEN)


KINDS = ["variable", "parameter", "passed on"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("statement", ON_THE_STACK)
def test_a_variable_on_the_evaluation_stack_explains_fewer_references_than_there_are(statement, kind):
    for n, all_references in counts_at(statement, kind):
        assert n < all_references, (n, all_references)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("statement", NEAR_THE_STACK)
def test_variables_never_explain_more_references_than_there_are(statement, kind):
    for n, all_references in counts_at(statement, kind):
        assert n <= all_references, (n, all_references)


@pytest.mark.parametrize("statement", OFF_THE_STACK)
def test_a_variable_between_statements_explains_its_reference(statement):
    assert set(counts_at(statement, "variable")) == {(1, 1)}


@pytest.mark.names_count
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("statement", OFF_THE_STACK)
def test_variables_of_several_functions_explain_all_their_references(statement, kind):
    """Unless one of the functions has lent the object to another."""
    is_lent = kind == "passed on" and _core.counting() == "lent"
    assert all(
        (n, all_references) == (0, 1) if is_lent else n == all_references
        for n, all_references in counts_at(statement, kind)
    )


# --- interpreters


def run(program, **environment):
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)],
        capture_output=True,
        text=True,
        timeout=600,
        env={**os.environ, **environment},
    )


@pytest.mark.parametrize(("version", "way"), [((3, 16), "strict"), ((4, 0), "strict"), ((3, 14), "strict")])
def test_an_interpreter_that_is_not_known_is_counted_strictly(version, way, monkeypatch, caplog):
    if sys.version_info[:2] >= (3, 14):
        monkeypatch.setattr(counts.dis, "opmap", {})
    monkeypatch.setattr(counts.sys, "version_info", (*version, 0, "final", 0))
    monkeypatch.delenv("TENON_COUNTS", raising=False)
    assert counts._way_of_counting() == way
    [record] = caplog.records
    assert f"CPython {version[0]}.{version[1]} is not known" in record.getMessage()


def test_this_interpreter_is_known(monkeypatch, caplog):
    monkeypatch.delenv("TENON_COUNTS", raising=False)
    assert counts._way_of_counting() == ("owned" if sys.version_info < (3, 14) else "lent")
    assert caplog.records == []


def test_a_wrong_way_of_counting_is_said():
    done = run("import tenon as tn; print(tn._core.counting())", TENON_COUNTS="loose")
    assert done.stdout.strip() in ("owned", "lent")
    assert "TENON_COUNTS is 'loose'" in done.stderr and "'strict'" in done.stderr


# Rows of the table in docs/dev/counting.md: a program, what `strict` prints, and what `owned` prints; what
# `lent` prints, if that is another text.
STRICT = {
    "a block in a function": ("def f():\n with a.write() as v: v[:] = 1\n return v\nv = f()\n", "", ""),
    "a block of a module": ("with a.write() as v: v[:] = 1\n", "", ""),
    "a part in the same function": (
        "def f():\n with a.write() as v: w = v[1:]\n print(*holders(), w.size)\nf()\n",
        "0",
        "0",
    ),
    "an exit stack": (
        "def f():\n with contextlib.ExitStack() as s: v = s.enter_context(a.write())\n"
        " print(*holders(), v.size)\nf()\n",
        "w 0",
        "0",
    ),
    "an exit stack of a module": (
        "with contextlib.ExitStack() as s: v = s.enter_context(a.write())\nprint(*holders(), v.size)\n",
        "0",
        "0",
    ),
    "a handled exception": (
        "def g(v): raise ValueError\ndef f():\n try:\n  with a.write() as v: g(v)\n"
        " except ValueError: print(*holders(), v.size)\nf()\na.clear_error()\n",
        "w 0",
        "0",
    ),
    "a variable in the function around": (
        "def g(v, s): s.close()\n"
        "def f():\n s = contextlib.ExitStack(); v = s.enter_context(a.write()); g(v, s)\n"
        " print(*holders(), v.size)\nf()\n",
        "w 0",
        "0",
        "w 0",
    ),
    "a suspended generator": (
        "def g(v): yield v.size; yield v.size\ndef f():\n with a.write() as v: s = g(v); next(s)\n"
        " print(*holders(), next(s))\nf()\n",
        "w 0",
        "0",
        "w 0",
    ),
    "after the variables": (
        "def f():\n with contextlib.ExitStack() as s: v = s.enter_context(a.write())\nf()\n"
        "print(*holders())\n",
        "",
        "",
    ),
    "an array with a name that moves": (
        "x = np.zeros(3)\ntry: tn.from_numpy(x, mode='move'); print('moved')\n"
        "except ValueError as e: print('writable' in str(e))\n",
        "True",
        "moved",
    ),
    "an array without a name that moves": (
        "tn.from_numpy(np.zeros(3), mode='move'); print('moved')\n",
        "moved",
        "moved",
    ),
}


@pytest.mark.parametrize("row", STRICT)
def test_what_the_strict_way_of_counting_does_otherwise(row):
    program, strict, owned, *lent = STRICT[row]
    other = [owned, *lent][-1] if _core.counting() == "lent" else owned
    head = "import contextlib\nimport numpy as np, tenon as tn\na = tn.zeros(4)\n"
    head += "def holders(): return [h.mode for h in a.leases()]\n"
    end = "op = tn.push(tn.fill, tn.overwrite(a), 2); op.wait(); assert a.tolist() == [2] * 4\n"
    for way, expected in (("strict", strict), ("", other)):
        done = run(head + program + end, TENON_COUNTS=way)
        assert (done.returncode, done.stdout.strip()) == (0, expected), (way, done.stdout, done.stderr)
