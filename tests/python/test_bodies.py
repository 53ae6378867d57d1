# SPDX-License-Identifier: Apache-2.0
"""What the bodies of ops leave behind: failures of any text, arrays kept by exceptions, Ctrl-C; arrays that
are read and overwritten; new memory for arrays beside readers."""

import functools
import gc
import os
import subprocess
import sys
import textwrap
import threading
import time
import weakref

import native_library
import numpy as np
import pytest

import tenon as tn

pytestmark = pytest.mark.usefixtures("nothing_stays_behind", "no_op_is_left")


class Untold(Exception):
    def __str__(self):
        raise RuntimeError("no text")


def plus_one(source, destination):
    np.add(source, 1, out=destination)


def fail(*_):
    raise RuntimeError("this op fails")


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: ValueError("x \udcff y"), r"x \udcff y"),
        (lambda: ValueError("a\0b"), r"a\x00b"),
        (Untold, "Untold"),
    ],
)
def test_a_failure_of_any_text_is_told(make, text):
    a = tn.zeros(3)
    error = make()

    def body(x):
        raise error

    op = tn.push(body, tn.write(a))
    assert text in str(op.exception())
    assert op.exception().__cause__ is error
    a.clear_error()
    with pytest.raises(type(error)), a.write():
        raise make()
    with pytest.raises(tn.OpError) as told:
        a.tolist()
    assert text in str(told.value)
    a.clear_error()


def test_a_lease_for_writing_that_an_exception_leaves_a_failure():
    a = tn.zeros(3)
    with pytest.raises(KeyError), a.lease("r"):
        raise KeyError
    assert a.tolist() == [0, 0, 0]
    with pytest.raises(KeyError), a.lease("w"):
        raise KeyError(1)
    with pytest.raises(tn.OpError, match="KeyError: 1"):
        a.tolist()
    a[...] = 1
    assert a.tolist() == [1, 1, 1]


def test_an_argument_that_is_read_and_overwritten_is_no_whole_overwrite():
    a = tn.full((4,), 1.0)
    tn.push(fail, tn.write(a)).exception()
    with pytest.raises(tn.OpError, match="this op fails"):
        tn.push(plus_one, a, tn.overwrite(a)).wait()
    a[...] = 1
    reader = np.asarray(a.readonly())
    with pytest.raises(tn.LeaseConflict):
        tn.push(plus_one, a, tn.overwrite(a), on_conflict="copy")
    del reader
    tn.push(plus_one, a, tn.overwrite(a), on_conflict="copy").wait()
    assert a.tolist() == [2, 2, 2, 2]


def test_of_an_array_given_twice_the_unwrapped_one_is_read_only():
    a = tn.zeros(2)
    flags = tn.push(lambda x, y: (x.flags.writeable, y.flags.writeable), a, tn.overwrite(a)).result()
    assert flags == (False, True)


def test_a_native_function_reads_what_is_const_also_where_it_overwrites_the_same_array(tmp_path):
    source = tmp_path / "plus.c"
    source.write_text(
        "#include <stddef.h>\n"
        "int plus(const double *s, double *d, size_t n)"
        "{ for (size_t i = 0; i < n; ++i) d[i] = s[i] + 1; return 0; }\n"
    )
    plus = tn.c_function(native_library.compiled(source), "int plus(const double *s, double *d, size_t n)")
    a = tn.full((4,), 1.0, dtype="f8")
    tn.push(fail, tn.write(a)).exception()
    with pytest.raises(tn.OpError, match="this op fails"):
        tn.push(plus, a, tn.overwrite(a), 4).wait()
    with pytest.raises(tn.OpError, match="this op fails"):
        tn.push(plus, tn.overwrite(a), tn.overwrite(a), 4).wait()
    a[...] = 1
    reader = np.asarray(a.readonly())
    with pytest.raises(tn.LeaseConflict):
        tn.push(plus, a, tn.overwrite(a), 4, on_conflict="copy")
    del reader
    tn.push(plus, a, tn.overwrite(a), 4).wait()
    assert a.tolist() == [2, 2, 2, 2]


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["pool", "inline", "seeded:3"])
def test_new_memory_is_another_s_only_with_the_op_that_fills_it(engine):
    """A thread that reads meanwhile finds whole values, that never go back: an array without its op, on
    memory that nothing was written to, would show."""
    a = tn.full((64,), 1.0, dtype="f8")
    end = threading.Event()
    wrong = []

    def read():
        last = 0
        while not end.is_set():
            seen = a.tolist()
            if min(seen) != max(seen) or seen[0] < last:
                wrong.append((seen[:3], last))
            last = seen[0]

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    thread = threading.Thread(target=read)
    with tn.set_engine(engine):
        thread.start()
        try:
            for number in range(2, 300):
                reader = np.asarray(a.readonly())
                tn.push(tn.fill, tn.overwrite(a), float(number), on_conflict="copy")
                del reader
        finally:
            end.set()
            thread.join()
            sys.setswitchinterval(interval)
    assert wrong == []
    assert a.tolist() == [299.0] * 64


def test_between_any_two_lines_of_a_push_an_array_holds_a_value():
    a = tn.full((64,), 1.0, dtype="f8")
    reader = np.asarray(a.readonly())
    seen = []

    def trace(frame, event, argument):
        seen.append(a.tolist()[0])
        tn.full((64,), 9.0, dtype="f8")  # what new memory holds then, which nothing was written to
        return trace

    sys.settrace(trace)
    try:
        tn.push(tn.fill, tn.overwrite(a), 2.0, on_conflict="copy")
    finally:
        sys.settrace(None)
    assert set(seen) == {1.0, 2.0}
    assert seen == sorted(seen)
    del reader


@pytest.mark.parametrize("engine", ["pool", "inline"])
def test_a_body_on_new_memory_finds_it_in_the_array_itself(engine):
    a = tn.zeros(2)
    reader = np.asarray(a.readonly())
    with tn.set_engine(engine):
        tn.push(lambda: tn.fill(a, 4), overwrites=[a], on_conflict="copy").wait()
    assert (a.tolist(), reader.tolist()) == ([4, 4], [0, 0])


def test_a_refused_copy_changes_nothing():
    a, b = tn.ones(2), tn.zeros(2)
    address = a.data_ptr
    views = [np.asarray(a.readonly()), np.asarray(b)]
    with pytest.raises(tn.LeaseConflict):
        tn.push(lambda x, y: None, tn.overwrite(a), tn.write(b), on_conflict="copy")
    assert a.data_ptr == address
    del views


def of_missing_attribute(x):
    x.summ()


def of_argument(x):
    raise ValueError(x)


def of_part(x):
    raise ValueError(x[1:])


def of_group(x):
    errors = []
    try:
        x[10**6]
    except IndexError as error:
        errors.append(error)
    raise ExceptionGroup("group", errors)


def of_cause(x):
    def deep():
        y = x
        raise KeyError(len(y))

    try:
        deep()
    except KeyError as error:
        cause = error
    raise ValueError from cause


@pytest.mark.parametrize("body", [fail, of_missing_attribute, of_argument, of_part, of_group, of_cause])
def test_what_a_failed_body_raised_keeps_no_memory(body):
    a = tn.zeros(3)
    op = tn.push(body, tn.write(a))
    error = op.exception()
    assert error.__cause__ is not None
    assert a.leases() == []
    tn.push(tn.fill, tn.overwrite(a), 1).wait()
    assert all(np.size(value) == 0 for value in error.__cause__.args if isinstance(value, np.ndarray))


def test_an_array_that_a_body_has_kept_is_an_escape_and_has_no_elements():
    a = tn.zeros(3)
    kept = []
    with pytest.raises(tn.OpError) as caught:
        tn.push(kept.append, a).wait()
    assert isinstance(caught.value.__cause__, tn.LeaseEscaped)
    assert "item 0 of list `kept`" in str(caught.value.__cause__)
    assert kept[0].shape == (0,)
    assert len(a.leases()) == 1
    kept.clear()
    assert a.leases() == []


def test_a_view_that_was_returned_lives_as_long_as_the_body():
    a = tn.zeros(3)
    op = tn.push(lambda x: x, a)
    assert isinstance(op.exception().__cause__, tn.LeaseEscaped)
    assert a.leases() == []


def test_the_view_of_a_body_is_taken_at_the_line_of_its_function():
    a = tn.zeros(3)
    kept = []

    def body(x):
        kept.append(x)

    assert tn.push(body, a).exception() is not None
    assert [holder.site for holder in a.leases()] == [f"{__file__}:{body.__code__.co_firstlineno}"]
    kept.clear()


INTERRUPTED = """
    import os, signal, threading, time
    import numpy as np
    import tenon as tn

    tn.set_engine("seeded:1")
    a = tn.zeros(3)
    began = threading.Event()

    def interrupt():
        began.wait(600)
        os.kill(os.getpid(), signal.SIGINT)

    def slow(x):
        began.set()
        for _ in range(500):
            time.sleep(0.01)

    threading.Thread(target=interrupt).start()
    op = tn.push(slow, tn.write(a))
    try:
        {wait}
    except KeyboardInterrupt:
        print("interrupted")
    try:
        op.wait()
    except tn.OpError as error:
        print(repr(error.__cause__))
    time.sleep(0.05)
    print("end")
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    "wait", ["op.wait()", "op.exception()", "op.result()", "tn.waitall()", "a.tolist()", "np.asarray(a)"]
)
def test_ctrl_c_in_a_body_that_a_wait_runs_reaches_the_program_once(wait):
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(INTERRUPTED).format(wait=wait)],
        capture_output=True,
        text=True,
        timeout=600,
        env={**os.environ},
    )
    assert done.stdout.split() == ["interrupted", "KeyboardInterrupt()", "end"], done.stderr


def test_a_search_of_another_thread_is_no_escape():
    """Its references last for a moment: a block and a body that end meanwhile wait for it."""
    from tenon._sync.views import places

    a, b = tn.zeros(64), tn.zeros(4)
    x = np.asarray(b)
    end = threading.Event()

    def search():
        while not end.is_set():
            places(b)

    thread = threading.Thread(target=search)
    thread.start()
    try:
        stop = time.monotonic() + 1.5
        while time.monotonic() < stop:
            with a.write() as v:
                v[0] = 1
                time.sleep(0.0002)
                op = tn.push(lambda y: time.sleep(0.0002), tn.write(a))
            op.wait()
    finally:
        end.set()
        thread.join()
    del x


def test_an_engine_for_a_block_gives_the_number_of_workers_back():
    def most_at_once():
        here, most = [], []

        def body(x):
            here.append(1)
            most.append(len(here))
            time.sleep(0.02)
            here.pop()

        for _ in range(8):
            tn.push(body, tn.zeros(1))
        time.sleep(0.3)
        tn.waitall()
        return max(most)

    with tn.set_engine("pool", workers=1):
        assert most_at_once() == 1
        with tn.set_engine("pool", workers=4):
            pass
        assert most_at_once() == 1


def negate(source, *, out):
    return np.negative(source, out=out)


OUTPUTS = {
    "by place": lambda a, b: tn.push(np.negative, a, tn.overwrite(b)),
    "by name": lambda a, b: tn.push(np.negative, a, out=tn.overwrite(b)),
    "by name only": lambda a, b: tn.push(negate, a, out=tn.overwrite(b)),
    "in new memory": lambda a, b: tn.push(np.negative, a, out=tn.overwrite(b), on_conflict="copy"),
    "in the debug mode": lambda a, b: tn.push(np.negative, a, out=tn.overwrite(b), on_conflict="ignore"),
}


@pytest.mark.parametrize("push", OUTPUTS)
def test_a_body_may_return_one_of_its_outputs(push, monkeypatch):
    monkeypatch.setenv("TENON_DEBUG", "1" if push == "in the debug mode" else "0")
    a, b = tn.ones(3), tn.zeros(3)
    view = np.asarray(b.readonly()) if push == "in new memory" else None
    op = OUTPUTS[push](a, b)
    assert op.result() is b
    assert b.tolist() == [-1, -1, -1]
    if view is not None:
        assert view.tolist() == [0, 0, 0]
    del view
    tn.push(tn.fill, tn.overwrite(b), 2).wait()  # no view has stayed


def test_a_body_may_return_several_outputs():
    a, whole, part = tn.full(2, 1.5), tn.zeros(2), tn.zeros(2)
    result = tn.push(np.modf, a, tn.overwrite(part), tn.overwrite(whole)).result()
    assert result[0] is part
    assert result[1] is whole
    assert (part.tolist(), whole.tolist()) == ([0.5, 0.5], [1, 1])


def test_a_body_may_not_return_what_it_reads_or_a_part_of_an_output():
    a, b = tn.ones(3), tn.zeros(3)
    for function in (lambda x, y: x, lambda x, y: y[1:]):
        assert isinstance(tn.push(function, a, tn.overwrite(b)).exception().__cause__, tn.LeaseEscaped)
    b[...] = 0


class Steps:
    def steps(self, x):
        x[...] = 1
        yield

    async def __call__(self, x):
        x[...] = 1


async def steps_later(x):
    x[...] = 1
    yield


@pytest.mark.parametrize(
    ("function", "text"),
    [
        (Steps().steps, "steps is a generator function"),
        (functools.partial(Steps.steps, None), "partial is a generator function"),
        (Steps(), "Steps is a coroutine function"),
        (Steps().__call__, "__call__ is a coroutine function"),
        (steps_later, "steps_later is a generator function"),
    ],
)
def test_a_push_refuses_a_function_whose_body_would_not_run(function, text):
    a = tn.zeros(2)
    tn.push(fail, tn.write(a)).exception()
    with pytest.raises(TypeError, match=rf"{text}.*work before it returns"):
        tn.push(function, tn.overwrite(a))
    with pytest.raises(tn.OpError, match="this op fails"):
        a.tolist()


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    ("method", "text"), [("steps", "a generator"), ("__call__", "a coroutine")], ids=["steps", "call"]
)
def test_an_op_fails_if_its_function_returns_a_body_that_has_not_run(method, text):
    a = tn.zeros(2)
    op = tn.push(lambda x: getattr(Steps(), method)(x), tn.overwrite(a))
    with pytest.raises(tn.OpError, match=f"returned {text}, whose body has not run") as caught:
        op.wait()
    assert isinstance(caught.value.__cause__, TypeError)
    with pytest.raises(tn.OpError):
        a.tolist()


def test_keywords_of_a_push_are_the_function_s():
    a = tn.ones(3)
    assert tn.push(lambda x, scale=1: float(x.sum()) * scale, a, scale=2).result() == 6
    assert tn.push(lambda *, x: x.flags.writeable, x=a).result() is False
    other = tn.zeros(3)
    error = tn.push(lambda x, y=None: None, a, z=other).exception()
    assert isinstance(error.__cause__, TypeError)


def test_keywords_of_a_native_function_are_its_parameters():
    absolute = tn.c_function(None, "int32_t abs(int i)")
    assert tn.push(absolute, i=-3).result() == 3
    with pytest.raises(ValueError, match="no parameter"):
        tn.push(absolute, j=-3)


def test_an_op_whose_result_refers_to_the_op_is_collected():
    class Job:
        def __init__(self):
            self.array = tn.zeros(4)
            self.op = tn.push(self.work, tn.write(self.array))

        def work(self, x):
            x[...] = 1
            return self

    job = Job()
    assert job.op.result() is job
    tn.waitall()
    ref = weakref.ref(job)
    del job
    gc.collect()
    assert ref() is None
