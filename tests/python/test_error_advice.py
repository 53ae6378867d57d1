# SPDX-License-Identifier: Apache-2.0
"""The advice of errors works: of what a native function refuses, of an op that writes what it may only read,
of a feed whose batches are all kept, and of calls with wrong arguments."""

import ctypes
import importlib.util
import re

import native_library
import numpy as np
import pytest

import tenon as tn

HAS_TORCH = importlib.util.find_spec("torch") is not None


def typed(dtype, order="C"):
    return np.array([[1, 2], [3, 4]], dtype, order=order)


# What a native function refuses: the argument, whether it is written, and the advice.
ARGUMENTS = {
    "an NDArray of another dtype": (lambda: tn.array(typed("f8")), "r", "a.astype('float32')"),
    "a NumPy array of another dtype": (lambda: typed("i8"), "r", "a.astype('float32')"),
    "a buffer of another dtype": (lambda: memoryview(typed("f8")), "r", "np.asarray(a).astype('float32')"),
    "an NDArray in another order": (lambda: tn.array(typed("f4")).T, "r", "a.copy()"),
    "a NumPy array in another order": (lambda: typed("f4", "F"), "r", "a.copy()"),
    "a buffer with gaps": (lambda: memoryview(np.ones(8, "f4"))[::2], "r", "np.asarray(a).copy()"),
    "an output of another dtype": (lambda: np.zeros((2, 2), "f8"), "w", "dtype='float32'"),
    "an output in another order": (lambda: np.zeros((2, 2), "f4", order="F"), "w", "order='C'"),
}
if HAS_TORCH:
    import torch

    ARGUMENTS["a tensor of another dtype"] = (
        lambda: torch.ones((2, 2), dtype=torch.float64),
        "r",
        "tn.from_dlpack(a).astype('float32')",
    )


@pytest.mark.parametrize("is_pushed", [False, True])
@pytest.mark.parametrize("name", ARGUMENTS)
def test_the_advice_for_an_argument_of_a_native_function_works(name, is_pushed):
    make, mode, expected = ARGUMENTS[name]
    scale = tn.c_function(
        native_library.generators(),
        "int scale(const float *source, float *destination, size_t n, float factor)",
    )
    good = tn.ones(4)

    def call(a):
        arguments = (a, good, 4, 2.0) if mode == "r" else (good, a, 4, 2.0)
        tn.push(scale, *arguments, on_conflict="ignore").wait() if is_pushed else scale(*arguments)

    a = make()
    with pytest.raises((TypeError, BufferError)) as caught:
        call(a)
    message = str(caught.value)
    [code] = re.findall(r"`([^`]*(?:astype|copy|dtype|order)[^`]*)`", message)
    assert code == expected, message
    if mode == "r":
        call(eval(code))
        assert good.tolist() == (2 * np.asarray(eval(code)).ravel()[:4]).tolist()
    else:
        assert "astype" not in message
        assert "copy()" not in message
        fresh = eval(f"np.zeros((2, 2), **dict(dict(dtype='f4'), {code}))")
        call(fresh)
        assert fresh.tolist() == [[2, 2], [2, 2]]


# ------------------------------------------------------------------ what an op may do with an array


def scale_of(source):
    return tn.c_function(
        native_library.generators(),
        f"int scale({source}float *source, float *destination, size_t n, float factor)",
    )


def test_an_array_that_the_push_only_reads_is_not_given_to_a_function_that_may_write_it():
    a, b = tn.ones(4), tn.zeros(4)
    pushes = {
        "read": lambda scale, use: tn.push(scale, use, b, 4, 2.0),
        "read beside another use": lambda scale, use: tn.push(
            scale, use, tn.overwrite(b), 4, 2.0, writes=[b]
        ),
        "by name": lambda scale, use: tn.push(scale, source=use, destination=b, n=4, factor=2.0),
    }
    for push in pushes.values():
        with pytest.raises(TypeError) as caught:
            push(scale_of(""), tn.read(a))
        message = str(caught.value)
        assert "parameter 'source' of 'int scale(float *source, float *destination, " in message
        assert "declare the parameter const" in message
        [code] = re.findall(r"`([^`]+)`", message)
        push(scale_of(""), eval(code)).wait()
        assert b.tolist() == [2] * 4
        push(scale_of("const "), tn.read(a)).wait()
    with pytest.raises(TypeError, match="declare the parameter const"):
        tn.push(scale_of(""), a, b, 4, 2.0, reads=[a])
    with pytest.raises(TypeError, match="declare the parameter const"):
        tn.push(scale_of(""), tn.read(a), tn.overwrite(a), 4, 2.0)
    tn.push(scale_of("const "), tn.read(a), tn.overwrite(b), 4, 2.0, reads=[a]).wait()
    tn.push(scale_of(""), a, b, 4, 2.0).wait()


def test_an_array_that_is_marked_as_read_is_read_only_in_the_body():
    a, b = tn.ones(3), tn.zeros(3)
    tn.push(np.copyto, tn.overwrite(b), tn.read(a)).wait()
    assert b.tolist() == [1] * 3
    assert tn.push(lambda x: x.flags.writeable, tn.read(a)).result() is False
    reader = np.asarray(a.readonly())
    assert tn.push(lambda x: float(x[0]), tn.read(a)).result() == reader[0]


READ_ONLY = {
    "an output by name": lambda a, out: tn.push(np.multiply, a, 2, out=out),
    "an output by place": lambda a, out: tn.push(np.multiply, a, 2, out),
    "a function of the user": lambda a, out: tn.push(lambda x, y: np.copyto(y, 2 * x), a, out),
}


@pytest.mark.parametrize("name", READ_ONLY)
def test_an_op_that_writes_what_it_may_only_read_is_told_how_to_push_it(name):
    a, out = tn.ones(3), tn.zeros(3)
    with pytest.raises(tn.OpError) as caught:
        READ_ONLY[name](a, out).wait()
    code = re.findall(r"`([^`]+)`", str(caught.value).rpartition("wrap that in the push")[2])[0]
    assert code == ("out=tn.overwrite(out)" if name == "an output by name" else "tn.overwrite(a)")
    out.clear_error()
    READ_ONLY[name](a, eval(code.removeprefix("out="), {"tn": tn, "a": out, "out": out})).wait()
    assert out.tolist() == [2] * 3
    with pytest.raises(ExceptionGroup):
        tn.waitall()


# ------------------------------------------------------------------------------ a consumer of a feed


def fill_feed(batch):
    batch.x[...] = batch.index


@pytest.mark.parametrize("n_slots", [2, 3, 4])
def test_every_advice_for_a_feed_whose_batches_are_all_kept_works(n_slots):
    """Its consumer keeps all batches, or all copies, or as many as before the error."""

    def batches_kept(is_copied=False, n_kept=20, **options):
        options = {"slots": n_slots, "batches": 20, "timeout": 0.2, **options}
        with tn.Feed(fill_feed, {"x": ("f4", (4,))}, **options) as feed:
            kept = []
            batches = iter(feed)
            while True:
                try:
                    batch = next(batches, None)
                except TimeoutError as error:
                    if "slots hold" in str(error):
                        return len(kept), str(error)
                    continue  # the worker had no time
                if batch is None:
                    break
                kept = [*kept, np.asarray(batch.x).copy() if is_copied else batch][-n_kept:]
                del batch
            return [int(np.asarray(part if is_copied else part.x)[0]) for part in kept], ""

    n_kept, message = batches_kept()
    assert n_kept == n_slots
    ways = message.partition("slots hold delivered batches. ")[2].partition(" Held, ")[0].split("; or ")
    assert len(ways) == 3, message
    assert ways[0].endswith("keep copies of fields (.copy())")
    assert batches_kept(is_copied=True)[0] == list(range(20))
    [(name, value)] = re.findall(r'use (\w+)="(\w+)"', ways[1])
    assert batches_kept(**{name: value})[0] == list(range(20))
    [(name, value)] = re.findall(r"(slots)=(\d+), if no more are kept than now\.", ways[2])
    assert batches_kept(n_kept=n_kept, **{name: int(value)})[0] == list(range(20))[-n_kept:]
    assert batches_kept(**{name: int(value)})[1] != ""  # no number is enough for a list of all


# ------------------------------------------------------------------------------------ other refusals


def undeclared(a, b, **uses):
    def body(x):
        b[...] = 1

    return tn.push(body, a, **uses).wait()


def in_a_block(block):
    with block as v:
        return v.sum()


def fields(batch):
    batch.x[...] = batch.index


@tn.worker({"x": ("f4", (4,))})
def numbers(batches):
    for batch in batches:
        batch.x[...] = batch.index


def fed(generator=fields, schema=None, **options):
    with tn.Feed(generator, schema or {"x": ("f4", (4,))}, **options) as feed:
        return len(feed)


def shared():
    return tn.zeros(3, shared=True)


X = np.ones(3, "f4")
A = tn.ones((2, 3))
LIBRARY_CALL = "int scale(const float *source, float *destination, size_t n, float factor)"


def legacy(is_written):
    """An import from a library whose legacy tensors do not say whether they may be written."""
    a = tn.zeros(3)
    return tn.from_dlpack(a.to_dlpack_for_write(), writable=True) if is_written else a.readonly()


def fill(view):
    view[...] = 1


# What is refused, words of the advice, and programs that follow them.
OTHERS = {
    "writes= of a NumPy array": (
        lambda: tn.push(list, writes=[X]),
        "make an NDArray of it with tn.array()",
        [lambda: tn.push(list, writes=[tn.array(X)]).wait()],
    ),
    "reads= of a list": (
        lambda: tn.push(list, reads=[[1, 2]]),
        "make an NDArray of it with tn.array()",
        [lambda: tn.push(list, reads=[tn.array([1, 2])]).wait()],
    ),
    "out() of a NumPy array": (
        lambda: tn.overwrite(X),
        "make one with tn.array()",
        [lambda: tn.push(tn.fill, tn.overwrite(tn.array(X)), 1).wait()],
    ),
    "an array that an op does not name": (
        lambda: undeclared(A, tn.zeros(3)),
        "name it in reads= of the push, or in writes= if the op writes to it",
        [lambda: undeclared(A, b := tn.zeros(3), writes=[b])],
    ),
    "an array that an op only reads": (
        lambda: undeclared(A, A),
        "name it in writes= of the push",
        [lambda: undeclared(A, A, writes=[A])],
    ),
    "a view of a shared array": (
        lambda: np.asarray(shared()),
        "take it inside of `with a.read():` or `with a.write():`, or while a.lease() holds; a.copy() and "
        "np.array(a) copy it",
        [
            lambda: in_a_block(shared().read()),
            lambda: in_a_block(shared().write()),
            lambda: np.array(shared()),
            lambda: shared().copy(),
        ],
    ),
    "the truth of an array": (lambda: bool(A), "use numpy.any(a)", [lambda: np.any(A), lambda: np.all(A)]),
    "a shape that is no window": (
        lambda: A.T.reshape(6),
        "reshape with a copy",
        [lambda: A.T.reshape(6, copy=True)],
    ),
    "an element of a read-only array": (
        lambda: A.readonly().__setitem__(0, 1),
        "write to a.copy()",
        [lambda: A.readonly().copy().__setitem__(0, 1)],
    ),
    "a lease of a read-only array": (
        lambda: legacy(False).write().__enter__(),
        "tn.from_dlpack(x, writable=True)",
        [lambda: legacy(False).copy().lease("w").release(), lambda: legacy(True).lease("w").release()],
    ),
    "an op that writes a read-only array": (
        lambda: tn.push(print, tn.write(legacy(False))),
        "tn.from_dlpack(x, writable=True)",
        [
            lambda: tn.push(fill, tn.write(legacy(False).copy())).wait(),
            lambda: tn.push(fill, tn.write(legacy(True))).wait(),
        ],
    ),
    "a legacy export of a read-only array": (
        lambda: legacy(False).to_dlpack_for_write(),
        "tn.from_dlpack(x, writable=True)",
        [lambda: legacy(False).copy().to_dlpack_for_write(), lambda: legacy(True).to_dlpack_for_write()],
    ),
    "a list for from_numpy": (
        lambda: tn.from_numpy([1]),
        "tn.asarray() and tn.array() take other data",
        [lambda: tn.asarray([1]), lambda: tn.array([1])],
    ),
    "a view that is to be moved": (
        lambda: tn.from_numpy(X[:2], mode="move"),
        "pass x.copy()",
        [lambda: tn.from_numpy(X[:2].copy(), mode="move")],
    ),
    "a byte order": (
        lambda: tn.from_numpy(X.astype(">f4")),
        "pass x.astype(x.dtype.newbyteorder('=')), or zero_copy=False",
        [
            lambda: tn.from_numpy((x := X.astype(">f4")).astype(x.dtype.newbyteorder("="))),
            lambda: tn.from_numpy(X.astype(">f4"), zero_copy=False),
        ],
    ),
    "read-only memory that is to be written": (
        lambda: tn.from_dlpack(A.readonly(), writable=True),
        "pass copy=True for memory of your own, or leave out writable=",
        [
            lambda: tn.from_dlpack(A.readonly(), writable=True, copy=True),
            lambda: tn.from_dlpack(A.readonly()),
        ],
    ),
    "a library with the interpreter's lock": (
        lambda: tn.c_function(ctypes.PyDLL(native_library.generators()), LIBRARY_CALL),
        "load the library as ctypes.CDLL",
        [lambda: tn.c_function(ctypes.CDLL(native_library.generators()), LIBRARY_CALL)],
    ),
    "a feed without a length": (lambda: fed(), "give batches=", [lambda: fed(batches=3)]),
    "an endless epoch that is shuffled": (
        lambda: fed(shuffle=True),
        "so give batches=",
        [lambda: fed(shuffle=True, batches=3)],
    ),
    "too few slots": (
        lambda: fed(slots=2, workers=2, batches=3, generator=numbers(), schema=numbers.schema),
        "at least 3 are needed",
        [lambda: fed(slots=3, workers=2, batches=3, generator=numbers(), schema=numbers.schema)],
    ),
    "a worker that was not called": (
        lambda: tn.Feed(numbers, batches=3),
        "call it, with its arguments",
        [lambda: tn.Feed(numbers(), batches=3).close()],
    ),
}


@pytest.mark.parametrize("name", OTHERS)
def test_the_advice_of_other_errors_works(name):
    fail, words, programs = OTHERS[name]
    with pytest.raises(Exception) as caught:
        fail()
    assert words in str(caught.value)
    caught = None
    for program in programs:
        program()
    try:
        tn.waitall()
    except ExceptionGroup:  # the op of fail()
        pass


def test_an_error_about_something_else_that_is_read_only_gets_no_advice():
    def body(x):
        raise ValueError("the dataset was opened read-only; cannot write")

    assert "push" not in str(tn.push(body, tn.zeros(2)).exception()).partition("cannot write")[2]
    with pytest.raises(ExceptionGroup):
        tn.waitall()


def test_a_wrapped_argument_is_no_array():
    a = tn.ones(3)
    for wrap in (tn.read, tn.write, tn.overwrite):
        with pytest.raises(
            TypeError, match=rf"tn.{wrap.__name__}\(.*wraps an argument of tn.push: pass the array"
        ):
            np.asarray(wrap(a))
        with pytest.raises(TypeError, match="pass the array itself"):
            np.sum(wrap(a))
        for name in ("reads", "writes", "overwrites"):
            with pytest.raises(TypeError, match=rf"{name} has tn.{wrap.__name__}\(.*: pass the array itself"):
                tn.push(list, **{name: [wrap(a)]})
