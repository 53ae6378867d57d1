# SPDX-License-Identifier: Apache-2.0
"""Every advice of a refusal works: it is taken from the message and followed, without looking at it.

A scene is a program that pushes an op and is refused. Its source is one string, into which the statements of
the message are put, each in a fresh run of the program.
"""

import builtins
import collections
import dataclasses
import functools
import importlib.util
import re
import sys
import types

import native_library
import numpy as np
import pytest

import tenon as tn

WRITE = "tn.push(f, tn.overwrite(a), 1)"
READ = "tn.push(f, a)"
PART = "tn.push(f, tn.overwrite(a[:1]), 1)"
BOTH = "tn.push(g, a, tn.overwrite(a))"
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
    "a variable of a notebook": ("Out = _oh = {}\nx = np.asarray(a)\nPUSH", WRITE, "`del x`"),
    "an object of a notebook": ("Out = _oh = {}\nbox = Slotted(np.asarray(a))\nPUSH", WRITE, "`del box`"),
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
    "a memoryview in a list": ("parts = [memoryview(a)]\nPUSH", WRITE, "`del parts`"),
    "an item of a list of an object": (
        "box = Frozen([np.asarray(a)])\nPUSH",
        WRITE,
        "box.x[0] = box.x[0].copy()",
    ),
    "an item of a nested dictionary": (
        "cache = {'m': {1: np.asarray(a)}}\nPUSH",
        WRITE,
        "cache['m'][1] = cache['m'][1].copy()",
    ),
    "an item of a list in a tuple": ("pair = ([np.asarray(a)], 1)\nPUSH", WRITE, "`del pair`"),
    "an item of a queue": ("rows = collections.deque([np.asarray(a)])\nPUSH", WRITE, "`del rows`"),
    "a bound argument": ("function = functools.partial(f, np.asarray(a))\nPUSH", WRITE, "`del function`"),
    "a bound method": (
        "box = Slotted(np.asarray(a))\nfunction = box.__enter__\nPUSH",
        WRITE,
        "a.drop_views()",
    ),
    "a default of a function": ("def function(v=np.asarray(a)):\n    pass\nPUSH", WRITE, "a.drop_views()"),
    "an attribute of a class": ("class Kept:\n    x = np.asarray(a)\nPUSH", WRITE, "a.drop_views()"),
    "a copy of the variables": (
        "def main():\n    x = np.asarray(a)\n    kept = locals()\n    PUSH\nmain()",
        WRITE,
        "`del x`",
    ),
    "an exception that is handled": (
        "def fail(v):\n    raise ValueError\ntry:\n    fail(np.asarray(a))\nexcept ValueError:\n    PUSH",
        WRITE,
        "a.drop_views()",
    ),
    "a slice of a block": (
        "def main():\n    with a.write() as v:\n        x = v[1:]\n        y = [x]\n    PUSH\nmain()",
        WRITE,
        "keep a copy",
    ),
    "a row of a block of a shared array": (
        "a = tn.zeros((2, 3), shared=True)\nrows = []\nwith a.write() as v:\n    rows.append(v[0])\nPUSH",
        READ,
        "a.copy()",
    ),
    "a row of a block of a shared array, for a writer": (
        "a = tn.zeros((2, 3), shared=True)\nrows = []\nwith a.write() as v:\n    rows.append(v[0])\nPUSH",
        WRITE,
        "rows[0] = rows[0].copy()",
    ),
    "an original that is lent twice": (
        "x = np.zeros((2, 3), 'f4')\nb = tn.asarray(x)\na = tn.from_numpy(x)\nPUSH",
        WRITE,
        "`del x`",
    ),
    "two arrays": (
        "b = tn.zeros(3)\nx = np.asarray(a)\ny = np.asarray(b)\nPUSH",
        "tn.push(f, tn.overwrite(a), tn.overwrite(b))",
        "`del x, y`",
    ),
    "two arrays that are read": (
        "b = tn.zeros(3)\nx = np.asarray(a)\ny = np.asarray(b)\nPUSH",
        "tn.push(f, a, b)",
        "push a copy of each",
    ),
    "two views that read": (
        "b = tn.zeros(3)\nx = np.asarray(a.readonly())\ny = np.asarray(b.readonly())\nPUSH",
        "tn.push(f, tn.overwrite(a), tn.overwrite(b))",
        "`del x, y`",
    ),
    "two views that are not seen": (
        "b = tn.zeros(3)\nhidden = np.empty(2, object)\nhidden[:] = np.asarray(a), np.asarray(b)\nPUSH",
        "tn.push(f, a, b)",
        "push a copy of each",
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


RUNS = []  # of f and g
LEFT = []  # what drop_views() has returned


def ways_of(message):
    ways = re.search(r" To go on: (.*)\.$", message)
    assert ways is not None, message
    return ways[1].split("; or ")


def run(source, push, monkeypatch):
    """Runs a scene as the main module. Returns its variables."""
    scene = types.ModuleType("__main__")
    names = {"np": np, "tn": tn, "Box": Box, "Frozen": Frozen, "Guarded": Guarded, "Slotted": Slotted}
    scene.__dict__.update(names, f=f, g=g, a=tn.zeros((2, 3)))
    scene.__dict__.update(LEFT=LEFT, builtins=builtins, collections=collections, functools=functools)
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
    if way.startswith("push a copy of each"):
        return source, push.replace("a, b", "a.copy(), b.copy()")
    if way.startswith("push a copy"):
        return source, push.replace("(f, a", codes[0].removeprefix("push").removesuffix(")"))
    if way.startswith(("let the op wait", "promise with", "give `a` new memory", "give each new memory")):
        return source, f"{push[:-1]}, {codes[-1]})"
    if way.startswith(("take it from", "take it as", "take each from", "take each as")):
        assert codes[0] in ("a.readonly()", "np.asarray(a.readonly())")
        views = r"(np\.asarray|memoryview|from_dlpack)\(([ab])\)"
        source, n = re.subn(views, r"\1(\2.readonly())", source)
        assert n == 1 + ("each" in way)
        return source, push
    if way.startswith("take each in a block"):
        head = codes[0].replace(" as v:", " as v, b") + codes[0].removeprefix("with a").replace(
            "as v", "as w"
        )
        inner, n = re.subn(r"np\.asarray\(b(\.readonly\(\))?\)", "w", source.replace("b = tn.zeros(3)\n", ""))
        assert n == 1
        return "b = tn.zeros(3)\n" + in_block(inner, head, "keep no part of it" not in way), push
    if way.startswith("take it in a block"):
        return in_block(source, codes[0], "keep no part of it" not in way), push
    if way.startswith(("import a copy", "give the memory away at the import")):
        [given] = re.findall(r"tn\.from_numpy\(([^)]*?)(?:, mode='writable')?\)", source)
        code = codes[0].removeprefix("a = ").replace("(x", f"({given}")
        return re.sub(r"tn\.from_numpy\([^)]*\)", code, source), push
    if way.startswith("call `a.drop_views()`: "):
        return with_statement(source, "", "LEFT[:] = a.drop_views()"), push
    if way.startswith("call `a.drop_views()` of each: "):
        return with_statement(source, "", "LEFT[:] = a.drop_views() + b.drop_views()"), push
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


# Their advice is `drop_views()`, which searches the whole process.
SLOW = {
    "two views that are not seen",
    "an exception and a name",
    "a bound method",
    "an attribute of a class",
    "a view that reads and is not seen",
    "a default of a function",
    "a result of a notebook",
    "an exception that is handled",
    "a result of a notebook and a name",
    "a tuple that an object has, too",
    "an object of a with statement",
    "a part of an object that has two names",
    "a frozen dataclass of a loop",
    "an iterator of an array",
    "an array that a loop counts",
    "a row of a loop",
    "an object of a loop",
    "a view that the search does not see",
    "an exception",
}
assert SLOW.issubset(SCENES)


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] * (name in SLOW)) for name in SCENES]
)
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
        LEFT.clear()
        program = "\n".join(followed(way, source, push))
        try:
            scene = run(*followed(way, source, push), monkeypatch)
        except tn.LeaseConflict as error:
            # This advice goes as far as to show the views.
            is_shown = re.match(r"call `a.drop_views\(\)`( of each)?: ", way) is not None and LEFT != []
            assert is_shown, f"{way!r} is followed in\n{program}\n: {error}"
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


@pytest.mark.parametrize(
    ("on_conflict", "begin"),
    [("raise", "cannot push an op on the array"), ("copy", "cannot leave the old values of the array")],
)
def test_a_refusal_because_of_a_view_says_what_was_refused_and_who_holds_the_view(on_conflict, begin):
    a = tn.zeros(3)
    x = np.asarray(a)
    with pytest.raises(tn.LeaseConflict) as caught:
        tn.push(tn.fill, tn.overwrite(a), 1, on_conflict=on_conflict)
    rest = r" of shape \(3,\) and dtype float32: ordinary code holds a writable view of it, taken at "
    assert re.match(re.escape(begin) + rest, str(caught.value)), caught.value
    del x


def test_a_view_whose_place_is_not_found_leaves_all_ways_open(monkeypatch):
    a = tn.zeros(3)
    hidden = np.empty(1, object)
    hidden[0] = np.asarray(a)
    with pytest.raises(tn.LeaseConflict) as caught:
        tn.push(tn.fill, tn.overwrite(a), 1)
    message = str(caught.value)
    assert "It is kept by" not in message
    for way in ("a.drop_views()", "with a.write() as v:", "'wait'", "'ignore'"):
        assert way in message
    assert "'copy'" not in message  # the view writes
    hidden[0] = np.asarray(a.readonly())
    with pytest.raises(tn.LeaseConflict, match="on_conflict='copy'"):
        tn.push(tn.fill, tn.overwrite(a), 1)
    tn.push(tn.fill, tn.overwrite(a), 1, on_conflict="copy").wait()
    assert a.tolist() == [1, 1, 1]


def test_an_argument_is_not_to_be_deleted_where_the_caller_has_it():
    a = tn.zeros(3)

    def step(batch):
        tn.push(tn.fill, tn.overwrite(a), batch.size)

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
        tn.push(np.copyto, tn.overwrite(s), 1)


# A NumPy array that a native function is to write, and whether from_numpy() can take its memory over.
GIVEN = {
    "an array": ("x = np.ones(4, 'f4')", True),
    "a view": ("x = np.ones((2, 4), 'f4')[0]", False),
    "an array of two names": ("x = y = np.ones(4, 'f4')", False),
    "an item of a list": ("rows = [np.ones(4, 'f4')]\nx = rows[0]", False),
}


@pytest.mark.parametrize("name", GIVEN)
def test_every_advice_for_an_array_that_a_native_function_is_to_write_works(name, monkeypatch):
    source, is_movable = GIVEN[name]
    scale = tn.c_function(
        native_library.generators(),
        "int scale(const float *source, float *destination, size_t n, float factor)",
    )
    monkeypatch.setattr(builtins, "scale", scale, raising=False)
    push = "op = tn.push(scale, tn.full((4,), 3.0), x, 4, 2.0)"
    with pytest.raises(tn.LeaseConflict) as caught:
        run(f"{source}\nPUSH", push, monkeypatch)
    ways = ways_of(str(caught.value))
    caught = None
    assert any("mode='move'" in way for way in ways) == is_movable
    for way in ways:
        [code] = re.findall(r"`([^`]+)`", way)
        if way.startswith("call it without a push"):
            assert code == "scale(...)"
            scene = run(f"{source}\nPUSH", "op = scale(tn.full((4,), 3.0), x, 4, 2.0)", monkeypatch)
            assert scene.x.tolist() == [6] * 4
            drop(scene)
            continue
        if way.startswith("promise with"):
            scene = run(f"{source}\nPUSH", f"{push[:-1]}, {code})", monkeypatch)
        else:
            assert way.startswith(("pass an NDArray that has the memory", "import a copy")), way
            scene = run(f"{source}\n{code}\nPUSH", push.replace("x,", "a,"), monkeypatch)
        scene.op.wait()
        written = scene.x if way.startswith("promise with") else scene.a
        assert written.tolist() == [6] * 4
        del written
        drop(scene)


def refusal(a):
    with pytest.raises(tn.LeaseConflict) as refused:
        tn.push(tn.fill, tn.overwrite(a), 1)
    return str(refused.value)


def test_the_advice_names_all_parts_of_one_view():
    a = tn.zeros(4)
    first, *rest = np.asarray(a).reshape(2, 2)
    assert "`rest[0] = rest[0].copy()`" in refusal(a)
    del first
    rest[0] = rest[0].copy()
    tn.push(tn.fill, tn.overwrite(a), 1).wait()


def test_the_advice_is_not_to_delete_the_variable_of_a_loop_over_a_view():
    a = tn.zeros(4)
    for row in np.asarray(a).reshape(2, 2):
        assert "`del row`" not in refusal(a), row
