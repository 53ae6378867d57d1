# SPDX-License-Identifier: Apache-2.0
"""The first advice of each refusal works: it is taken from the message and followed, without looking at it.

A scene is a program that pushes an op and is refused. Its source is one string, so that statements of the
message can be run among its variables.
"""

import importlib.util
import re
import sys
import types

import native_library
import numpy as np
import pytest

import tenon as tn

PUSH = "tn.push(f, tn.out(a), 1)"
READ = "tn.push(f, a)"
HAS_TORCH = importlib.util.find_spec("torch") is not None
HAS_PANDAS = importlib.util.find_spec("pandas") is not None

# The beginning, the push that is refused, and what the first advice is about.
SCENES = {
    "a live array": ("x = np.asarray(a)", PUSH, "`del x`"),
    "two names": ("x = y = np.asarray(a)", PUSH, "`del x, y`"),
    "a slice": ("x = np.asarray(a)[1:3]", PUSH, "`del x`"),
    "a memoryview": ("m = memoryview(a)", PUSH, "`del m`"),
    "a row in a list": ("rows = [np.asarray(a)[0]]", PUSH, "rows[0] = rows[0].copy()"),
    "rows of a loop": (
        "rows = []\nwith a.read() as v:\n    for row in v:\n        rows.append(row)\ndel row",
        PUSH,
        "rows[1] = rows[1].copy()",
    ),
    "an item of a dictionary": ("cache = {'x': np.asarray(a)}", PUSH, "cache['x'] = "),
    "a loop variable": ("for x in [np.asarray(a)]:\n    pass", PUSH, "`del x`"),
    "an attribute": ("box = Box()\nbox.x = np.asarray(a)", PUSH, "`del box.x`"),
    "a closure": (
        "def make(v):\n    return lambda: v\nfunction = make(np.asarray(a))",
        PUSH,
        "`del function`",
    ),
    "a generator": (
        "def walk(v):\n    yield v[0]\n    yield v[1]\nsteps = walk(np.asarray(a))\nnext(steps)",
        PUSH,
        "`del steps`",
    ),
    "an argument": ("x = np.asarray(a)\ndef step(x):\n    return PUSH\n", "step(x)", "on_conflict='wait'"),
    "an argument of a reader": ("x = np.asarray(a)\ndef step(x):\n    return READ\n", "step(x)", "a.copy()"),
    "a checkpoint": ("state = {'w': np.asarray(a)}", READ, "a.copy()"),
    "the original": ("x = np.zeros((2, 3), 'f4')\na = tn.from_numpy(x)", PUSH, "`del x`"),
    "a base of the original": (
        "base = np.zeros((4, 3), 'f4')\na = tn.from_numpy(base[:2])",
        PUSH,
        "`del base`",
    ),
    "a result of a notebook": ("builtins._ = np.asarray(a)", PUSH, "a.drop_views()"),
    "an exception": (
        "def fail(v):\n    raise ValueError\ntry:\n    fail(np.asarray(a))\nexcept ValueError as e:\n"
        "    kept = e",
        PUSH,
        "a.drop_views()",
    ),
    "an exception and a name": (
        "x = np.asarray(a)\ndef fail(v):\n    raise ValueError\ntry:\n    fail(x)\nexcept ValueError as e:\n"
        "    kept = e",
        PUSH,
        "and drop it (`del x`)",
    ),
    "a view of a reader's other variable": ("x = np.asarray(a.readonly())", PUSH, "`del x`"),
    "a view that the search does not see": (
        "hidden = np.empty(1, object)\nhidden[0] = np.asarray(a)",
        READ,
        "a.copy()",
    ),
}
if HAS_TORCH:
    SCENES |= {
        "a tensor": ("import torch\nt = torch.from_dlpack(a)", PUSH, "`del t`"),
        "a parameter": (
            "import torch\nmodel = torch.nn.Linear(3, 2)\n"
            "model.weight = torch.nn.Parameter(torch.from_dlpack(a))",
            READ,
            "a.copy()",
        ),
    }
if HAS_PANDAS:
    SCENES["a data frame"] = (
        "import pandas\ntable = pandas.DataFrame(np.asarray(a), copy=False)",
        READ,
        "a.copy()",
    )


class Box:
    pass


def f(x, *_):
    x if not x.flags.writeable else x.fill(1)


def first_way(message):
    way = re.search(r" To go on: (.*?)(; or |\.$)", message)
    assert way is not None, message
    return way[1]


def follow(way, scene, push):
    """Does what the message says, and pushes again."""
    for code in re.findall(r"`([^`]+)`", way):
        if code.startswith("push("):
            push = push.replace("(f, a)", code.removeprefix("push"))
            if "step" in push:
                push = "READ".replace("READ", READ).replace("(f, a)", code.removeprefix("push"))
        elif code.startswith("on_conflict="):
            push = f"op = {PUSH[:-1]}, {code})"
        else:
            exec(code, scene.__dict__)
    exec(push, scene.__dict__)


@pytest.mark.parametrize("name", SCENES)
def test_the_first_advice_of_a_refused_push_works(name, monkeypatch):
    begin, push, expected = SCENES[name]
    scene = types.ModuleType("scene")
    scene.__dict__.update(np=np, tn=tn, Box=Box, f=f, a=tn.zeros((2, 3)), builtins=__import__("builtins"))
    monkeypatch.setitem(sys.modules, "__main__", scene)
    exec(begin.replace("PUSH", PUSH).replace("READ", READ), scene.__dict__)
    with pytest.raises(tn.LeaseConflict) as caught:
        exec(push, scene.__dict__)
    message = str(caught.value)
    caught = None
    way = first_way(message)
    assert expected in way, message
    assert message.endswith("promise with `on_conflict='ignore'` that no code uses it before the op is done.")
    follow(way, scene, push)
    for variable in ("x", "step"):
        scene.__dict__.pop(variable, None)
    tn.waitall()


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


@pytest.mark.parametrize(
    ("on_conflict", "begin"),
    [("raise", "cannot push an op on the array"), ("copy", "cannot leave the old values of the array")],
)
def test_a_refusal_because_of_a_view_says_what_was_refused_and_who_holds_the_view(on_conflict, begin):
    a = tn.zeros(3)
    x = np.asarray(a)
    with pytest.raises(tn.LeaseConflict) as caught:
        tn.push(tn.fill, tn.out(a), 1, on_conflict=on_conflict)
    rest = r" of shape \(3,\) and dtype float32: ordinary code holds a writable view of it, taken at "
    assert re.match(re.escape(begin) + rest, str(caught.value)), caught.value
    del x


def test_a_view_whose_place_is_not_found_leaves_all_ways_open(monkeypatch):
    a = tn.zeros(3)
    hidden = np.empty(1, object)
    hidden[0] = np.asarray(a)
    with pytest.raises(tn.LeaseConflict) as caught:
        tn.push(tn.fill, tn.out(a), 1)
    message = str(caught.value)
    assert "It hangs on" not in message
    for way in ("a.drop_views()", "with a.write() as v:", "'wait'", "'ignore'"):
        assert way in message
    assert "'copy'" not in message  # the view writes
    hidden[0] = np.asarray(a.readonly())
    with pytest.raises(tn.LeaseConflict, match="on_conflict='copy'"):
        tn.push(tn.fill, tn.out(a), 1)
    tn.push(tn.fill, tn.out(a), 1, on_conflict="copy").wait()
    assert a.tolist() == [1, 1, 1]


def test_an_argument_is_not_to_be_deleted_where_the_caller_has_it():
    a = tn.zeros(3)

    def step(batch):
        tn.push(tn.fill, tn.out(a), batch.size)

    x = np.asarray(a)
    with pytest.raises(tn.LeaseConflict) as caught:
        step(x)
    assert "variable `batch` of step" in str(caught.value)
    assert "`del " not in str(caught.value)


def test_an_attribute_is_deleted_before_the_variable_that_leads_to_it():
    class Holder:
        pass

    s, m = tn.zeros(3), Holder()
    m.w, m.views = s.numpy(), (s.numpy(),)
    with pytest.raises(tn.LeaseConflict, match=r"`del m\.w, m`"):
        tn.push(np.copyto, tn.out(s), 1)
