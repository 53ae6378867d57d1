# SPDX-License-Identifier: Apache-2.0
"""Every advice of a refusal works: it is taken from the message and followed, without looking at it.

A scene is a program that pushes an op and is refused. Its source is one string, into which the statements of
the message are put, each in a fresh run of the program.
"""

import builtins
import dataclasses
import importlib.util
import re
import sys
import types

import native_library
import numpy as np
import pytest

import tenon as tn

WRITE = "tn.push(f, tn.out(a), 1)"
READ = "tn.push(f, a)"
PART = "tn.push(f, tn.out(a[:1]), 1)"
BOTH = "tn.push(g, a, tn.out(a))"
HAS_TORCH = importlib.util.find_spec("torch") is not None
HAS_PANDAS = importlib.util.find_spec("pandas") is not None

# A program whose one PUSH is refused, what stands for PUSH, and what the first advice is about. "# in main"
# marks the line before which a statement for the function main is put.
SCENES = {
    "a live array": ("x = np.asarray(a)\nPUSH", WRITE, "`del x`"),
    "two names": ("x = y = np.asarray(a)\nPUSH", WRITE, "`del x, y`"),
    "a slice": ("x = np.asarray(a)[1:3]\nPUSH", WRITE, "`del x`"),
    "an array and a slice": ("x = np.asarray(a)\ny = x[1:]\nPUSH", WRITE, "`del x, y`"),
    "a memoryview": ("m = memoryview(a)\nPUSH", WRITE, "`del m`"),
    "a memoryview of an array": ("x = np.asarray(a)\nm = memoryview(x)[1:]\nPUSH", WRITE, "`del m, x`"),
    "a memoryview that could be read-only": ("m = memoryview(a)\nPUSH", READ, "a.copy()"),
    "an array that came by DLPack": ("x = np.from_dlpack(a)\nPUSH", READ, "a.copy()"),
    "a row in a list": ("rows = [np.asarray(a)[0]]\nPUSH", WRITE, "rows[0] = rows[0].copy()"),
    "rows of a loop": (
        "rows = []\nwith a.read() as v:\n    for row in v:\n        rows.append(row)\ndel row\nPUSH",
        WRITE,
        "rows[1] = rows[1].copy()",
    ),
    "an item of a dictionary": ("cache = {'x': np.asarray(a)}\nPUSH", WRITE, "cache['x'] = "),
    "the variable of a loop that has ended": ("for x in [np.asarray(a)]:\n    pass\nPUSH", WRITE, "`del x`"),
    "the variable of a loop": ("for x in [np.asarray(a)]:\n    PUSH", WRITE, "a.drop_views()"),
    "a loop over numbers": ("for x in [1]:\n    x = np.asarray(a)\n    PUSH", WRITE, "`del x`"),
    "a row of a loop": ("x = np.asarray(a)\nfor row in x:\n    PUSH\n    break", WRITE, "a.drop_views()"),
    "an array that a loop counts": (
        "for i, x in enumerate(map(np.asarray, [a])):\n    PUSH",
        WRITE,
        "a.drop_views()",
    ),
    "an iterator of an array": ("x = np.asarray(a)\nsteps = x.flat\nPUSH", WRITE, "a.drop_views()"),
    "an object of a loop": ("for box in [Slotted(np.asarray(a))]:\n    PUSH", WRITE, "a.drop_views()"),
    "an object of a with statement": (
        "with Slotted(np.asarray(a)) as box:\n    PUSH",
        WRITE,
        "a.drop_views()",
    ),
    "an expression": ("tuple(PUSH for x in map(np.asarray, [a]))", WRITE, "on_conflict='wait'"),
    "a variable of the caller": (
        "def main():\n    x = np.asarray(a)\n    step()  # in main\ndef step():\n    PUSH\nmain()",
        WRITE,
        "drop it in main (`del x`)",
    ),
    "a variable of the module": (
        "x = np.asarray(a)\ndef step():\n    PUSH\nstep()  # in module __main__",
        WRITE,
        "drop it in module __main__ (`del x`)",
    ),
    "variables of the function and of the caller": (
        "def main():\n    x = np.asarray(a)\n    step()  # in main\n"
        "def step():\n    y = np.asarray(a)\n    PUSH\nmain()",
        WRITE,
        "drop it (`del y`) and drop it in main (`del x`)",
    ),
    "an item of a list of the caller": (
        "def main():\n    rows = [np.asarray(a)[0]]\n    step()  # in main\ndef step():\n    PUSH\nmain()",
        WRITE,
        "keep a copy instead in main (`rows[0] = rows[0].copy()`)",
    ),
    "a variable of the function around": (
        "def main():\n    x = np.asarray(a)\n    def step():\n        return PUSH, lambda: x\n"
        "    step()  # in main\nmain()",
        WRITE,
        "drop it in main (`del x`)",
    ),
    "an attribute": ("box = Box()\nbox.x = np.asarray(a)\nPUSH", WRITE, "`del box.x`"),
    "an attribute of an object of a loop": (
        "for box in [Box()]:\n    box.x = np.asarray(a)\n    PUSH",
        WRITE,
        "`del box.x`",
    ),
    "an attribute of a frozen dataclass": ("box = Frozen(np.asarray(a))\nPUSH", WRITE, "`del box`"),
    "a frozen dataclass of a loop": (
        "for box in [Frozen(np.asarray(a))]:\n    PUSH",
        WRITE,
        "a.drop_views()",
    ),
    "an attribute behind a property": ("box = Guarded(np.asarray(a))\nPUSH", WRITE, "`del box`"),
    "a slot": ("box = Slotted(np.asarray(a))\nPUSH", WRITE, "`del box`"),
    "a tuple": ("pair = (np.asarray(a), 1)\nPUSH", WRITE, "`del pair`"),
    "a tuple of two names": ("pair = other = (np.asarray(a), 1)\nPUSH", WRITE, "`del pair, other`"),
    "a tuple that an object has, too": (
        "pair = (np.asarray(a), 1)\nbox = Box()\nbox.pair = pair\nPUSH",
        WRITE,
        "a.drop_views()",
    ),
    "a part of an object that has two names": (
        "inner = Slotted(np.asarray(a))\npair = (inner, 1)\nPUSH",
        WRITE,
        "a.drop_views()",
    ),
    "a closure": (
        "def make(v):\n    return lambda: v\nfunction = make(np.asarray(a))\nPUSH",
        WRITE,
        "`del function`",
    ),
    "a generator": (
        "def walk(v):\n    yield v[0]\n    yield v[1]\nsteps = walk(np.asarray(a))\nnext(steps)\nPUSH",
        WRITE,
        "`del steps`",
    ),
    "an argument": ("x = np.asarray(a)\ndef step(x):\n    return PUSH\nstep(x)", WRITE, "on_conflict='wait'"),
    "an argument of a reader": (
        "x = np.asarray(a)\ndef step(x):\n    return PUSH\nstep(x)",
        READ,
        "a.copy()",
    ),
    "a checkpoint": ("state = {'w': np.asarray(a)}\nPUSH", READ, "a.copy()"),
    "a view that reads": ("x = np.asarray(a.readonly())\nPUSH", WRITE, "`del x`"),
    "a part of the array": ("x = np.asarray(a.readonly())\nPUSH", PART, "`del x`"),
    "an array that is read, too": ("x = np.asarray(a.readonly())\nPUSH", BOTH, "`del x`"),
    "another order": ("a = a.T\nx = np.asarray(a.readonly())\nPUSH", WRITE, "`del x`"),
    "the original": ("x = np.zeros((2, 3), 'f4')\na = tn.from_numpy(x)\nPUSH", WRITE, "`del x`"),
    "the original of the caller": (
        "def main():\n    x = np.zeros((2, 3), 'f4')\n    b = tn.from_numpy(x)\n    step(b)  # in main\n"
        "def step(a):\n    PUSH\nmain()",
        WRITE,
        "drop it in main (`del x`)",
    ),
    "an original of a loop": (
        "for x in [np.zeros((2, 3), 'f4')]:\n    a = tn.from_numpy(x)\n    PUSH",
        WRITE,
        "import a copy",
    ),
    "an original that is a view": (
        "x = np.zeros(6, 'f4').reshape(2, 3)\na = tn.from_numpy(x)\nPUSH",
        WRITE,
        "`del x`",
    ),
    "an original that may be written": (
        "x = np.zeros((2, 3), 'f4')\na = tn.from_numpy(x, mode='writable')\nPUSH",
        WRITE,
        "`del x`",
    ),
    "a base of the original": (
        "base = np.zeros((4, 3), 'f4')\na = tn.from_numpy(base[:2])\nPUSH",
        WRITE,
        "`del base`",
    ),
    "all of a base of the original": (
        "base = np.zeros((2, 3), 'f4')\na = tn.from_numpy(base[:])\nPUSH",
        WRITE,
        "`del base`",
    ),
    "a result of a notebook": ("builtins._ = np.asarray(a)\nPUSH", WRITE, "a.drop_views()"),
    "a result of a notebook and a name": (
        "builtins._ = x = np.asarray(a)\nPUSH",
        WRITE,
        "and drop it (`del x`)",
    ),
    "an exception": (
        "def fail(v):\n    raise ValueError\ntry:\n    fail(np.asarray(a))\nexcept ValueError as e:\n"
        "    kept = e\nPUSH",
        WRITE,
        "a.drop_views()",
    ),
    "an exception and a name": (
        "x = np.asarray(a)\ndef fail(v):\n    raise ValueError\ntry:\n    fail(x)\nexcept ValueError as e:\n"
        "    kept = e\nPUSH",
        WRITE,
        "and drop it (`del x`)",
    ),
    "a view that the search does not see": (
        "hidden = np.empty(1, object)\nhidden[0] = np.asarray(a)\nPUSH",
        READ,
        "a.copy()",
    ),
    "a view that reads and is not seen": (
        "hidden = np.empty(1, object)\nhidden[0] = np.asarray(a.readonly())\nPUSH",
        WRITE,
        "a.drop_views()",
    ),
}
if HAS_TORCH:
    SCENES |= {
        "a tensor": ("import torch\nt = torch.from_dlpack(a)\nPUSH", WRITE, "`del t`"),
        "a tensor over an array": (
            "import torch\nx = np.asarray(a)\nt = torch.from_numpy(x)\nPUSH",
            WRITE,
            "`del t, x`",
        ),
        "a parameter": (
            "import torch\nmodel = torch.nn.Linear(3, 2)\n"
            "model.weight = torch.nn.Parameter(torch.from_dlpack(a))\nPUSH",
            READ,
            "a.copy()",
        ),
        "an attribute of a module": (
            "import torch\nmodel = torch.nn.Linear(3, 2)\nmodel.batch = np.asarray(a)\nPUSH",
            WRITE,
            "`del model.batch`",
        ),
    }
if HAS_PANDAS:
    SCENES["a data frame"] = (
        "import pandas\ntable = pandas.DataFrame(np.asarray(a), copy=False)\nPUSH",
        READ,
        "a.copy()",
    )


class Box:
    pass


@dataclasses.dataclass(frozen=True)
class Frozen:
    x: object


class Guarded:
    def __init__(self, x):
        self.__dict__["x"] = x

    @property
    def x(self):
        return 1


class Slotted:
    __slots__ = ("x",)

    def __init__(self, x):
        self.x = x

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass


def f(x, *_):
    RUNS.append(x.flags.writeable)
    x if not x.flags.writeable else x.fill(1)


def g(x, y):
    RUNS.append(True)
    np.add(x, 1, out=y)


RUNS = []


def ways_of(message):
    ways = re.search(r" To go on: (.*)\.$", message)
    assert ways is not None, message
    return ways[1].split("; or ")


def run(source, push, monkeypatch):
    """Runs a scene as the main module. Returns its variables."""
    scene = types.ModuleType("__main__")
    names = {"np": np, "tn": tn, "Box": Box, "Frozen": Frozen, "Guarded": Guarded, "Slotted": Slotted}
    scene.__dict__.update(names, f=f, g=g, a=tn.zeros((2, 3)), builtins=builtins)
    monkeypatch.setitem(sys.modules, "__main__", scene)
    try:
        exec(source.replace("PUSH", push), scene.__dict__)
    except BaseException as error:
        drop(scene)
        error.__traceback__ = None
        raise
    return scene


def drop(scene):
    scene.__dict__.clear()
    vars(builtins).pop("_", None)


def with_statement(source, scope, code):
    """The source with a statement where the way says, before the push or in a function."""
    mark = f"# in {scope}" if scope else "PUSH"
    lines = source.split("\n")
    [n] = [n for n, line in enumerate(lines) if mark in line]
    if "(PUSH for" in lines[n]:
        return source.replace("PUSH", f"[PUSH, exec({code!r})]")
    indent = lines[n][: len(lines[n]) - len(lines[n].lstrip())]
    return "\n".join([*lines[:n], indent + code, *lines[n:]])


def in_block(source, head, is_kept):
    if not is_kept:
        return f"{head}\n    v.sum()\n    PUSH"
    # The array is taken in the block, and the other code goes on in there.
    source = source.replace("map(np.asarray, [a])", "[np.asarray(a)]")
    source, n = re.subn(r"np\.(asarray|from_dlpack)\(a(\.readonly\(\))?\)", "v", source)
    assert n
    return "\n".join([head, *("    " + line for line in source.split("\n"))])


def followed(way, source, push):
    """The program after somebody has done what the message says."""
    codes = re.findall(r"`([^`]+)`", way)
    if way.startswith("push a copy"):
        return source, push.replace("(f, a", codes[0].removeprefix("push").removesuffix(")"))
    if way.startswith(("let the op wait", "promise with", "give `a` new memory")):
        return source, f"{push[:-1]}, {codes[-1]})"
    if way.startswith(("take it from", "take it as")):
        assert codes[0] in ("a.readonly()", "np.asarray(a.readonly())")
        source, n = re.subn(r"(np\.asarray|memoryview|from_dlpack)\(a\)", r"\1(a.readonly())", source)
        assert n == 1
        return source, push
    if way.startswith("take it in a block"):
        return in_block(source, codes[0], "keep no part of it" not in way), push
    if way.startswith(("import a copy", "give the memory away at the import")):
        [given] = re.findall(r"tn\.from_numpy\(([^)]*?)(?:, mode='writable')?\)", source)
        code = codes[0].removeprefix("a = ").replace("(x", f"({given}")
        return re.sub(r"tn\.from_numpy\([^)]*\)", code, source), push
    if way.startswith("call `a.drop_views()`: "):
        return with_statement(source, "", "left = a.drop_views()"), push
    for step in re.split(r" and (?=drop it|keep a copy)", way):
        first = re.fullmatch(r"call `(a\.drop_views\(\))`, .*", step)
        statement = re.fullmatch(r"(?:drop it|keep a copy instead)(?: in ([\w ]+))? \((.*)\)", step)
        assert first or statement, f"no test follows this advice: {step}"
        if first:
            source = with_statement(source, "", first[1])
            continue
        for code in re.findall(r"`([^`]+)`", statement[2]):
            source = with_statement(source, statement[1], code)
    return source, push


@pytest.mark.parametrize("name", SCENES)
def test_every_advice_of_a_refused_push_works(name, monkeypatch):
    source, push, expected = SCENES[name]
    with pytest.raises(tn.LeaseConflict) as caught:
        run(source, push, monkeypatch)
    message = str(caught.value)
    caught = None
    ways = ways_of(message)
    assert expected in ways[0], message
    assert ways[-1] == "promise with `on_conflict='ignore'` that no code uses it before the op is done"
    for way in ways:
        RUNS.clear()
        program = "\n".join(followed(way, source, push))
        try:
            scene = run(*followed(way, source, push), monkeypatch)
        except tn.LeaseConflict as error:
            # The search of drop_views() is as far as this advice goes.
            assert way.startswith("call `a.drop_views()`: "), f"{way!r} is followed in\n{program}\n: {error}"
            continue
        except Exception as error:
            raise AssertionError(f"{way!r} is followed in\n{program}\n: {error}") from None
        if "'wait'" in way:
            drop(scene)
        try:
            tn.waitall(timeout=60)
        except (TimeoutError, tn.DeadlockError) as error:
            raise AssertionError(f"{way!r} is followed in\n{program}\n: {error}") from None
        finally:
            drop(scene)
        assert len(RUNS) == 1, way


def test_new_memory_is_offered_where_it_can_be_had(monkeypatch):
    for name in ("a view that reads", "a view that reads and is not seen"):
        source, push, _ = SCENES[name]
        with pytest.raises(tn.LeaseConflict, match="on_conflict='copy'"):
            run(source, push, monkeypatch)


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
        "read beside another use": lambda scale, use: tn.push(scale, use, tn.out(b), 4, 2.0, writes=[b]),
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
        tn.push(scale_of(""), tn.read(a), tn.out(a), 4, 2.0)
    tn.push(scale_of("const "), tn.read(a), tn.out(b), 4, 2.0, reads=[a]).wait()
    tn.push(scale_of(""), a, b, 4, 2.0).wait()


def test_an_array_that_is_marked_as_read_is_read_only_in_the_body():
    a, b = tn.ones(3), tn.zeros(3)
    tn.push(np.copyto, tn.out(b), tn.read(a)).wait()
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
    code = re.findall(r"`([^`]+)`", str(caught.value).rpartition("Wrap what it writes")[2])[0]
    assert code == ("out=tn.out(out)" if name == "an output by name" else "tn.out(a)")
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
            try:
                for batch in feed:
                    kept = [*kept, np.asarray(batch.x).copy() if is_copied else batch][-n_kept:]
                    del batch
            except TimeoutError as error:
                return len(kept), str(error)
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
