# SPDX-License-Identifier: Apache-2.0
"""What outlives a block: names of its array are no views, and views hold the memory until they are gone."""

import asyncio
import collections
import contextlib
import ctypes
import functools
import gc
import itertools
import subprocess
import sys
import textwrap
import threading
import weakref

import numpy as np
import pytest

import tenon as tn
from tenon import _core

pytestmark = pytest.mark.usefixtures("nothing_stays_behind")

WATCHDOG = 600


@pytest.fixture(params=[False, True], ids=["plain", "shared"])
def shared(request):
    return request.param


def array(shared):
    return tn.full((4, 3), 8, shared=shared)


def views_of(array):
    return [holder.mode for holder in array.leases() if holder.kind == "view"]


def in_thread(function):
    failures = []

    def run():
        try:
            function()
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join(WATCHDOG)
    assert not thread.is_alive()
    if failures:
        raise failures[0]


def write_in_another_thread(a):
    """Another thread gets the array at once."""

    def write():
        a.lease("w", timeout=WATCHDOG).release()

    in_thread(write)


# --- names of the array are no views


class Wrapper:
    def __init__(self, a, mode="write"):
        self.block = getattr(a, mode)()

    def __enter__(self):
        self.v = self.block.__enter__()
        return self

    def __exit__(self, *error):
        return self.block.__exit__(*error)


class Slotted:
    __slots__ = ("block", "v")

    def __init__(self, a):
        self.block = a.write()

    def __enter__(self):
        self.v = self.block.__enter__()
        return self

    def __exit__(self, *error):
        return self.block.__exit__(*error)


@contextlib.contextmanager
def writing(a):
    with a.write() as v:
        yield v


def with_context_manager(a):
    with writing(a) as v:
        v += 1
    return [v]


def with_exit_stack(a):
    with contextlib.ExitStack() as stack:
        v = stack.enter_context(a.write())
    return [v]


def with_nested_context_managers(a):
    @contextlib.contextmanager
    def outer():
        with writing(a) as v:
            yield [v]

    with outer() as held:
        pass
    return held


def with_wrapper(a):
    with Wrapper(a) as w:
        w.v += 1
    return [w.v]


def with_slots(a):
    with Slotted(a) as w:
        w.v += 1
    return [w.v]


def with_attribute_in_a_list_in_an_object(a):
    class Store:
        def __init__(self):
            self.parts = {"a": [(1, [])]}

    store = Store()
    with a.write() as v:
        store.parts["a"][0][1].append(v)
    return [v, store]


def with_a_loose_tuple(a):
    store = collections.deque()
    with a.write() as v:
        store.append(("name", v, 3))
        gc.collect()  # takes the tuple out of what the collector knows
        del v
    return [store[0][1]]


def with_a_loose_dict(a):
    store = [{"v": None}]
    with a.write() as v:
        store[0]["v"] = v
        del v
    return [store[0]["v"]]


def with_closure(a):
    with a.write() as v:
        function = lambda: v  # noqa: E731
    return [v, function]


def with_closure_two_frames_share(a):
    v = None

    def run():
        nonlocal v
        with a.write() as v:
            pass

    run()
    return [v]


def with_lambda_default(a):
    with a.write() as v:
        function = lambda x=v: x  # noqa: E731
        del v
    return [function()]


def with_partial(a):
    with a.write() as v:
        function = functools.partial(np.sum, v)
        del v
    return [function.args[0]]


def with_bound_method(a):
    with a.write() as v:
        total = v.sum
        del v
    return [total.__self__]


def with_iterators(a):
    with a.write() as v:
        kept = [iter(v), enumerate(v), zip(v, v), itertools.chain(v), itertools.cycle(v), map(len, v)]
    assert [len(list(rows)) for rows in kept[:4]] == [0] * 4
    return [v, kept]


def with_generator(a):
    def rows(v):
        for i in range(len(v)):
            yield v[i].sum()

    with a.write() as v:
        generator = rows(v)
        assert next(generator) is not None
    return [v, generator]


def with_suspended_block(a):
    def read():
        with a.read() as v:
            yield v

    generator = read()
    v = next(generator)
    generator.close()
    return [v]


def with_class_attribute(a):
    class Kept:
        with a.write() as v:
            pass

    return [Kept.v, Kept]


def with_caught_exception(a):
    def fail(x):
        raise ValueError

    try:
        with a.read() as v:
            fail(v)
    except ValueError as error:
        return [v, error]


def with_exception_handled_inside(a):
    def fail(x):
        raise ValueError

    with a.write() as v:
        try:
            fail(v)
        except ValueError as error:
            kept = error
    return [v, kept]


def with_locals(a):
    with a.write() as v:
        kept = locals()
    return [v, kept]


def with_global(a):
    space = {"a": a}
    exec("with a.write() as v:\n    pass", space)
    return [space["v"], space]


def with_task(a):
    async def write():
        async with a.write() as v:
            return v

    return [asyncio.run(write())]


def with_task_and_context_manager(a):
    @contextlib.asynccontextmanager
    async def awriting():
        async with a.write() as v:
            yield v

    async def write():
        async with awriting() as v:
            v += 1
        return v

    return [asyncio.run(write())]


def with_future(a):
    loop = asyncio.new_event_loop()
    future = loop.create_future()
    with a.write() as v:
        future.set_result(v)
        del v
    loop.close()
    return [future.result(), future]


def with_variable_of_another_thread(a):
    given, ended = threading.Event(), threading.Event()
    slot = []

    def use():
        x = slot.pop()
        given.set()
        assert ended.wait(WATCHDOG)
        assert x.size == 0

    thread = threading.Thread(target=use)
    with a.write() as v:
        slot.append(v)
        thread.start()
        assert given.wait(WATCHDOG)
    views = views_of(a)
    ended.set()
    thread.join(WATCHDOG)
    assert views == []
    return [v]


def with_exit_in_another_thread(a):
    block = a.write()
    v = block.__enter__()
    in_thread(lambda: block.__exit__(None, None, None))
    return [v]


NAMES = {name[5:]: value for name, value in list(globals().items()) if name.startswith("with_")}


# Where variables of other functions than that of the block name it.
OF_OTHERS = """exit_stack generator caught_exception exception_handled_inside variable_of_another_thread
exit_in_another_thread""".split()
BODIES = [
    pytest.param(body, id=name, marks=[pytest.mark.names_count] if name in OF_OTHERS else [])
    for name, body in NAMES.items()
]


@pytest.mark.parametrize("body", BODIES)
def test_an_ended_array_is_no_view_whatever_names_it(body, shared):
    a = array(shared)
    kept = body(a)
    assert kept[0].size == 0
    if body is with_generator and tn._core.counting() != "owned":  # the array may be lent on its stack
        assert views_of(a) == ["w"]
        kept.pop().close()
    assert views_of(a) == []
    if not a.shared:
        assert kept[0].base is None
        tn.push(tn.fill, tn.overwrite(a), 2).wait()
    write_in_another_thread(a)
    with pytest.raises(TypeError, match="ended with its block"):
        kept[0] + 1


@pytest.fixture
def of_a_fixture():
    held = {"a": tn.ones(3)}
    with held["a"].write() as held["v"]:
        yield held
    held.clear()


@pytest.fixture
def after_a_fixture():
    """What is checked when a fixture that ends before this one has ended."""
    checks = []
    yield checks
    assert [check() for check in checks] == [[]]
    checks.clear()


def test_an_array_that_a_fixture_gave_is_no_view(after_a_fixture, of_a_fixture):
    a, v = of_a_fixture["a"], of_a_fixture["v"]
    v += 1
    after_a_fixture.append(lambda: views_of(a))


# --- views hold the memory until they are gone


def tensor_of(v):
    return pytest.importorskip("torch").from_numpy(v)


def frame_of(v):
    return pytest.importorskip("pandas").DataFrame(v, copy=False)


def numpy_of_capsule(v):
    return np.from_dlpack(v)


class Masked(np.ndarray):
    pass


VIEWS = {
    "slice": lambda v: [v[1:]],
    "row": lambda v: {"row": v[0]},
    "transposed": lambda v: (v.T,),
    "asarray": lambda v: [np.asarray(v)[...]],
    "tensor": tensor_of,
    "tensor of a slice": lambda v: tensor_of(v[1:]),
    "tensor in a dict": lambda v: {"t": tensor_of(v)},
    "memoryview": memoryview,
    "frombuffer": lambda v: [np.frombuffer(v, "f4")],
    "dlpack": numpy_of_capsule,
    "capsule": lambda v: v.__dlpack__(),
    "data frame": frame_of,
    "subclass": lambda v: v.view(Masked),
    "masked": lambda v: np.ma.masked_array(v),
    "flat": lambda v: v.flat,
    "nditer": lambda v: np.nditer(v),
    "ctypes": lambda v: v.ctypes.data_as(ctypes.c_void_p),
    "ctypes array": lambda v: np.ctypeslib.as_ctypes(v),
    "ctypes from buffer": lambda v: (ctypes.c_char * 4).from_buffer(v),
    "closure": lambda v: (lambda part: lambda: part)(v[1:]),
    "partial": lambda v: functools.partial(np.sum, v[1:]),
    "generator": lambda v: (lambda rows: (next(rows), rows))(row for row in [v[0], v[1]]),
    "iterators": lambda v: [zip([v[0]], [v[1]]), enumerate([v[0]])],
    "list of rows": list,
}


OF_WRITABLE = [
    "tensor",
    "tensor of a slice",
    "tensor in a dict",
    "capsule",
    "ctypes array",
    "ctypes from buffer",
]
CASES = [(name, mode) for name in VIEWS for mode in ("read", "write")[name in OF_WRITABLE :]]


@pytest.mark.parametrize(("name", "mode"), CASES)
def test_a_view_that_outlives_its_block_holds_the_memory_and_is_no_error(name, mode, shared):
    if (name, mode) == ("dlpack", "read") and np.lib.NumpyVersion(np.__version__) < "2.1.0":
        pytest.skip("NumPy 2.0 exports no read-only array by DLPack")
    a, take = array(shared), VIEWS[name]

    def work():
        with getattr(a, mode)() as v:
            kept = take(v)
        assert v.size == 0
        assert views_of(a) != []  # what stands on the memory is counted
        with a.read() as w:  # this thread goes on
            assert w.sum() == 96
        return kept is not None

    assert work()
    if views_of(a):
        gc.collect()
    assert a.leases() == []
    write_in_another_thread(a)


@pytest.mark.names_count
def test_survivors_show_the_elements(shared):
    a = array(shared)
    torch = pytest.importorskip("torch")
    with a.write() as v:
        tensor, part, bytes_of = torch.from_numpy(v), [v[1:]], memoryview(v)
        v[...] = 5
    assert tensor.sum() == 60 and part[0].sum() == 45 and bytes_of[0, 0] == 5
    del tensor, part, bytes_of
    assert views_of(a) == []


@pytest.mark.names_count
def test_an_array_goes_on_counting_until_the_last_export_has_gone(shared):
    a = array(shared)
    with a.write() as v:
        m = memoryview(v)
    assert views_of(a) == ["w"] and v.size == 0
    assert m[0, 0] == 8
    m.release()
    del m
    assert v.size == 0 and views_of(a) == []  # v itself is still named
    with pytest.raises(TypeError, match="ended with its block"):
        v.sum()


@pytest.mark.names_count
def test_an_array_that_is_looked_at_again_names_the_line_of_its_block(shared):
    a = array(shared)
    with a.write() as v:
        m = memoryview(v)
    before = v.dtype
    del m
    assert views_of(a) == [] and v.base is None
    assert v.dtype == before


def test_a_push_looks_again_at_arrays_that_had_exports():
    torch = pytest.importorskip("torch")
    a = tn.ones(4)
    held = {}
    with a.write() as held["v"]:
        held["t"] = torch.from_numpy(held["v"])
    with pytest.raises(tn.LeaseConflict):
        tn.push(tn.fill, tn.overwrite(a), 1)
    del held["t"]
    tn.push(tn.fill, tn.overwrite(a), 1).wait()


@pytest.mark.names_count
def test_an_array_that_another_thread_computes_with_keeps_its_memory():
    """NumPy has the array on the stack of another thread, and its memory stays until it has done with it."""
    a = tn.ones(4, "f8")
    inside, ended = threading.Event(), threading.Event()
    seen = []

    def use(x):
        def wait(value):
            inside.set()
            assert ended.wait(WATCHDOG)
            return value

        result = np.zeros(4, object)
        np.frompyfunc(wait, 1, 1)(x, result)
        seen.append(result.tolist())

    slot = []
    thread = threading.Thread(target=lambda: use(slot.pop()))
    with a.write() as v:
        slot.append(v)
        thread.start()
        assert inside.wait(WATCHDOG)
    views = views_of(a)
    ended.set()
    thread.join(WATCHDOG)
    assert views == ["w"]
    assert seen == [[1.0] * 4]
    assert v.size == 0 and views_of(a) == []


def test_the_search_for_names_counts_no_reference_twice():
    """Many ways to the same reference: a cell of two frames, a dictionary of two objects, a running
    generator. A tensor keeps the memory all the same."""
    torch = pytest.importorskip("torch")
    a = tn.ones(4)

    class Shared:
        pass

    def run():
        space = {}
        first, second = Shared(), Shared()
        first.__dict__ = second.__dict__ = space

        def write():
            nonlocal space
            with a.write() as v:
                space["v"] = v

                def again():
                    return v, space

                first.t = torch.from_numpy(v)
                yield again

        generators = [write()]
        functions = [next(generators[0])]
        functions.append(functions[0])
        generators += generators
        for _ in generators[0]:
            pass
        assert first.v.size == 0
        assert views_of(a) == ["w"]
        first.t.fill_(3)

    run()
    gc.collect()
    assert a.tolist() == [3] * 4
    assert views_of(a) == []


def test_an_argument_that_a_closure_shares_is_one_reference():
    """The search finds the variable in the frame and in the closure, and must count it once: the reference of
    a memoryview remains, and keeps the memory."""
    a = tn.ones(4)

    def run(v):
        def again():
            return v

        with a.write() as v:
            export = memoryview(v)
        assert again().size == 0
        assert views_of(a) == ["w"]
        export.release()

    run(None)
    gc.collect()
    assert views_of(a) == []


@pytest.mark.names_count
@pytest.mark.skipif(sys.version_info[:2] == (3, 12), reason="3.12 has no function that returns the copy")
def test_a_copy_of_the_variables_that_only_the_frame_keeps_is_a_name():
    """The collector knows nothing of the copy, because no value in it can be a part of a cycle."""

    def run(a):
        with writing(a) as v:
            locals()
        assert v.size == 0
        assert views_of(a) == []

    run(tn.ones(4))


@pytest.mark.slow
def test_exits_and_forks_with_survivors_end_well():
    program = """
        import contextlib, os, sys, threading
        import numpy as np
        import tenon as tn

        a = tn.ones(4)
        s = tn.ones(4, shared=True)
        kept = []

        @contextlib.contextmanager
        def writing(x):
            with x.write() as v:
                yield v

        for x in (a, s):
            with writing(x) as v:
                kept += [v, memoryview(v), v[1:]]
        manager = writing(a)
        kept.append(manager.__enter__())
        pid = os.fork()
        if pid == 0:
            manager.__exit__(None, None, None)
            kept.clear()
            sys.exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        print("done")
    """
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", textwrap.dedent(program)],
        capture_output=True,
        text=True,
        timeout=WATCHDOG,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "done\n", "")


# --- TENON_DEBUG=leases


@pytest.mark.names_count
def test_in_the_debug_mode_every_escape_is_an_error(shared, monkeypatch):
    a = array(shared)
    monkeypatch.setenv("TENON_DEBUG", "leases")
    kept = []

    def write():
        with a.write() as v:
            kept.append(v[1:])  # the escape

    with pytest.raises(tn.LeaseEscaped, match=r"`kept` of") as told:
        write()
    assert f"{__file__}:" in str(told.value)
    kept.clear()
    names = []
    with a.write() as v:
        names.append(v)  # no escape
    with writing(a) as v:
        names.append(v)
    assert a.leases() == []


def test_in_the_debug_mode_the_error_of_a_block_goes_first(shared, monkeypatch):
    a = array(shared)
    monkeypatch.setenv("TENON_DEBUG", "leases")
    kept = []
    with pytest.raises(ZeroDivisionError), a.read() as v:
        kept.append(v[1:])
        raise ZeroDivisionError


# --- cost


def test_the_end_of_a_usual_block_searches_nothing(shared, monkeypatch):
    a = array(shared)
    searches = []
    monkeypatch.setattr(_core, "release_if_named", lambda *args: searches.append(args[2]) or False)
    monkeypatch.setattr(gc, "collect", lambda *args: searches.append("collect"))
    with a.write() as v:
        part = v[1:]
    with a.read():
        pass
    assert searches == [] and part.size == 0 and v.size == 0


def test_the_end_of_a_block_never_collects(shared, monkeypatch):
    a = array(shared)
    collections_run = []
    monkeypatch.setattr(gc, "collect", lambda *args: collections_run.append(args))
    kept = []
    with writing(a) as v:
        kept.append(v[1:])
    with a.write() as v:
        kept.append(memoryview(v))
    with Wrapper(a) as w:
        kept.append(w)
    assert collections_run == []
    kept.clear()


def test_weak_references_and_registries_do_not_grow(shared):
    a = array(shared)
    torch = pytest.importorskip("torch")
    from tenon._sync import endings as _endings

    before = len(_endings._retained), len(gc.callbacks)
    for _ in range(50):
        with a.write() as v:
            t = torch.from_numpy(v)
        reference = weakref.ref(v)
        del v, t
        assert reference() is None
    assert (len(_endings._retained), len(gc.callbacks)) == before


# --- messages of waits


@pytest.mark.parametrize("how", ["write", "lease"])
def test_who_would_wait_for_a_view_is_told_on_what_it_hangs(how, in_a_process_with_one_thread):
    def wait_for_own_view():
        a = tn.ones(4)
        view = np.asarray(a)
        op = tn.push(tn.fill, tn.overwrite(a), 1, on_conflict="wait")
        calls = {"write": lambda: a.write().__enter__(), "lease": lambda: a.lease("w")}
        with pytest.raises(tn.DeadlockError, match=r"it is kept by: variable `view` of .*wait_for_own_view"):
            calls[how]()
        del view
        op.wait()

    in_a_process_with_one_thread(wait_for_own_view)
