# SPDX-License-Identifier: Apache-2.0
"""One buffer for several layouts: offsets and sizes, dtypes, existing buffers, copies, damaged memory."""

import copy
import ctypes
import gc
import mmap
import random
import subprocess
import sys

import numpy as np
import pytest
from arena_cases import LAYOUTS, each_arena

import tenon as tn
from tenon import _core

pytestmark = pytest.mark.usefixtures("nothing_stays_behind")


def address(array):
    return array.__array_interface__["data"][0]


# ------------------------------------------------------------------------------------- places and sizes


@each_arena
def test_the_size_is_that_of_the_largest_layout_and_the_saving_is_shown(make_arena):
    arena = make_arena()
    features = 4032 + 128 + 4  # 1000 floats, 30 floats, one: each from a multiple of 64 on
    counts = 2048 + 160
    assert arena.nbytes == features
    assert arena.total_nbytes == features + counts
    assert repr(arena) == (
        f"<tenon.Arena of {features} bytes, {counts} less than side by side: features: A, B, C; counts: D, E>"
    )
    html = arena._repr_html_()
    assert html.startswith(
        f"<div><b>tenon.Arena</b> {features:,} bytes, {features + counts:,} side by side, not used"
    )
    assert "features.A: float32 (1000,)\n" in html and "\ncounts.D: " in html
    with arena.use("counts"):
        assert "in use: counts" in arena._repr_html_()


@each_arena
def test_every_field_begins_on_a_multiple_of_64_bytes(make_arena):
    arena = make_arena()
    starts = []
    for name, fields in LAYOUTS.items():
        with arena.use(name) as f:
            assert list(f) == list(fields)
            assert [(f[field].dtype, f[field].shape) for field in f] == [
                (np.dtype(dtype), shape) for dtype, shape in fields.values()
            ]
            places = [address(f[field]) for field in f]
            assert [place - places[0] for place in places] == {
                "features": [0, 4032, 4160],
                "counts": [0, 2048],
            }[name]
            starts.append(places[0])
    assert starts[0] == starts[1]
    if arena._native.memory() is not None:
        assert starts[0] % 64 == 0


@each_arena
def test_the_arrays_keep_what_is_written_while_the_layout_stays(make_arena):
    arena = make_arena()
    with arena.use("features") as f:
        f.A[:] = np.arange(1000)
        f.C[...] = 7
    with arena.use("features", "r") as f:
        assert f.A.sum() == 499500
        assert f.C == 7
    with arena.use("features") as f:
        f.A[0] = 1
        assert f["A"][999] == 999


@each_arena
def test_active_and_generation_tell_of_changes(make_arena):
    arena = make_arena()
    assert (arena.active, arena.generation) == (None, 0)
    for mode, layout, generation in [
        ("w", "counts", 1),
        ("r", "counts", 1),
        ("w", "counts", 1),
        ("w", "features", 2),
        ("w", "counts", 3),
    ]:
        with arena.use(layout, mode):
            assert (arena.active, arena.generation) == (layout, generation)
        assert (arena.active, arena.generation) == (layout, generation)


def test_layouts_are_as_given():
    arena = tn.Arena({"x": {"n": ("int64", 3), "b": (tn.bfloat16, [2, 2])}, "y": {"z": (np.float32, ())}})
    assert arena.layouts == {
        "x": {"n": (tn.dtype("int64"), (3,)), "b": (tn.bfloat16, (2, 2))},
        "y": {"z": (tn.dtype("float32"), ())},
    }


def test_empty_fields_take_no_bytes():
    arena = tn.Arena(
        {"x": {"a": ("f8", (0, 3)), "b": ("u1", (5,)), "c": ("f8", (0,))}, "y": {"d": ("f8", (0,))}}
    )
    assert (arena.nbytes, arena.total_nbytes) == (64, 64)
    with arena.use("x") as f:
        assert (f.a.shape, f.b.shape, f.c.shape) == ((0, 3), (5,), (0,))
    with arena.use("y") as f:
        assert f.d.shape == (0,)
    nothing = tn.Arena({"x": {"a": ("f8", (0,))}}, buffer=bytearray(0))
    assert nothing.nbytes == 0
    with nothing.use("x") as f:
        assert f.a.shape == (0,)


def test_a_thousand_layouts():
    arena = tn.Arena({f"l{i}": {"a": ("i4", (i + 1,)), "b": ("i4", ())} for i in range(1000)}, shared=True)
    for i in range(0, 1000, 37):
        with arena.use(f"l{i}") as f:
            assert f.a.shape == (i + 1,)
            f.a[:] = i
            f.b[...] = i
        with arena.use(f"l{i}", "r") as f:
            assert set(f.a.tolist()) == {i} == {int(f.b)}
    assert arena.generation == 28
    with pytest.raises(ValueError, match="1025 layouts are too many"):
        tn.Arena({f"l{i}": {"a": ("i4", 1)} for i in range(1025)})


def test_a_thousand_fields():
    arena = tn.Arena({"x": {f"f{i}": ("u1", (3,)) for i in range(1000)}})
    assert arena.nbytes == 999 * 64 + 3
    with arena.use("x") as f:
        for i, name in enumerate(f):
            f[name][:] = i % 251
    with arena.use("x", "r") as f:
        assert [int(f[name][2]) for name in f] == [i % 251 for i in range(1000)]


# ------------------------------------------------------------------------------------------------ dtypes


@pytest.mark.parametrize("name", ["bfloat16", "float8_e4m3fn", "float8_e5m2", "complex64", "bool", "float16"])
def test_dtypes_of_whole_bytes(name):
    arena = tn.Arena({"x": {"a": (name, (3,)), "b": (name, ())}, "y": {"z": ("u1", (128,))}})
    with arena.use("x") as f:
        f.a[:] = 1
        f.b[...] = f.a[1]
        assert tn.dtype(f.a.dtype) == tn.dtype(name)
        assert f.a.tolist() == [1, 1, 1]


def test_a_dtype_that_numpy_does_not_have_is_named_and_leaves_nothing_held():
    arena = tn.Arena({"x": {"a": ("f4", 2), "b": ("float4_e2m1fn", (3, 3))}, "y": {"z": ("u1", (128,))}})
    assert arena.layouts["x"]["b"] == (tn.float4_e2m1fn, (3, 3))
    use = arena.use("x")
    with arena.use("y") as y:
        y.z[...] = 7
    with pytest.raises(TypeError, match="field 'b' of layout 'x': NumPy has no dtype for float4_e2m1fn"):
        use.__enter__()
    assert arena.active == "y"
    with arena.use("y") as y:
        assert (y.z == 7).all()


def test_bfloat16_without_ml_dtypes_is_named():
    program = """
import sys
sys.modules["ml_dtypes"] = None
import tenon as tn
arena = tn.Arena({"x": {"a": ("f4", 2), "b": (tn.bfloat16, (3, 3))}, "y": {"z": ("u1", (128,))}})
try:
    arena.use("x").__enter__()
except TypeError as error:
    print(error)
with arena.use("y") as f:
    f.z[:] = 1
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=600, check=True
    )
    assert done.stdout.startswith("field 'b' of layout 'x': ")
    assert "ml_dtypes" in done.stdout


# ------------------------------------------------------------------------------------------ bad layouts


@pytest.mark.parametrize(
    ("layouts", "error", "message"),
    [
        ({}, ValueError, "at least one layout"),
        ({"x": {}}, ValueError, "layout 'x': at least one field"),
        ({"": {"a": ("f4", 1)}}, ValueError, "'' cannot name a layout"),
        ({"x" * 101: {"a": ("f4", 1)}}, ValueError, "cannot name a layout: 1 to 100 bytes"),
        ({"x": {"": ("f4", 1)}}, ValueError, "layout 'x': '' cannot name a field"),
        ({"x": {"a b": ("f4", 1)}}, ValueError, "'a b' cannot name a field"),
        ({"x": {"a" * 101: ("f4", 1)}}, ValueError, "cannot name a field"),
        ({"x": {"a\0b": ("f4", 1)}}, ValueError, "layout 'x' has the name .*NUL"),
        ({"x\0y": {"a": ("f4", 1)}}, ValueError, "layouts has the name .*NUL"),
        ({"\ud800": {"a": ("f4", 1)}}, ValueError, "cannot be written as UTF-8"),
        ({1: {"a": ("f4", 1)}}, TypeError, "layouts has the name 1: names must be str"),
        ({"x": {1: ("f4", 1)}}, TypeError, "layout 'x' has the name 1: names must be str"),
        ({"x": {"a": "f4"}}, TypeError, r"field 'a' of layout 'x' is 'f4': it must be \(dtype, shape\)"),
        ({"x": {"a": ("f4",)}}, TypeError, r"it must be \(dtype, shape\)"),
        ({"x": {"a": ("nope", 1)}}, TypeError, "unknown dtype 'nope'"),
        ({"x": {"a": ("f4", -1)}}, ValueError, "negative"),
        ({"x": {"a": ("f4", (3, -2))}}, ValueError, "negative"),
        ({"x": {"a": ("f4", 1.5)}}, TypeError, "shape is .*: it must be an int or a sequence"),
        ({"x": {"a": ("f4", "7")}}, TypeError, "shape is .*: it must be an int or a sequence"),
        ({"x": {"a": ("f4", (2**62,))}}, ValueError, "takes more than 2"),
        ({"x": {f"a{i}": ("u1", (2**59,)) for i in range(9)}}, ValueError, "do not fit"),
        ({"x": {"a": ("f4", (1,) * 65)}}, ValueError, "at most 64"),
        ({"x": 7}, TypeError, "layout 'x' is 7: it must be a mapping"),
        ([("x", {"a": ("f4", 1)})], TypeError, "it must be a mapping"),
        ({"x": {f"a{i}": ("u1", 1) for i in range(4097)}}, ValueError, "4097 fields are more than 4096"),
    ],
)
def test_bad_layouts_are_refused(layouts, error, message):
    with pytest.raises(error, match=message):
        tn.Arena(layouts)


def test_memory_that_is_not_there_is_a_memory_error():
    with pytest.raises(MemoryError):
        tn.Arena({"x": {"a": ("f4", (2**50,))}})
    with pytest.raises(MemoryError, match="bytes"):
        tn.Arena({"x": {"a": ("f4", (2**50,))}}, shared=True)


def test_field_names_that_python_uses_itself_work():
    names = ["_let_go", "__class__", "__dict__", "__getitem__", "self", "class", "\xe9", "a-b"]
    arena = tn.Arena({"x": dict.fromkeys(names, ("f4", 2))})
    with arena.use("x") as f:
        for i, name in enumerate(names):
            f[name][:] = i
    with arena.use("x", "r") as f:
        assert [int(f[name][0]) for name in f] == list(range(len(names)))
    with arena.use("x"):
        pass


# ---------------------------------------------------------------------------------------------- buffers


def _bytearray():
    return bytearray(5000)


def _ctypes():
    return (ctypes.c_float * 1250)()


def _mmap():
    return mmap.mmap(-1, 8192)


def _numpy():
    return np.zeros(5000, "u1")


def _numpy_matrix():
    return np.zeros((5, 250), "f4")


def _numpy_of_a_base():
    return np.zeros(6000, "u1")[64:5064]


def _numpy_over_bytearray():
    return np.frombuffer(bytearray(5000), "u1")


def _ndarray():
    return tn.zeros((50, 25))


def _torch():
    return pytest.importorskip("torch").zeros(1250)


@pytest.mark.parametrize(
    "make",
    [
        _bytearray,
        _ctypes,
        _mmap,
        _numpy,
        _numpy_matrix,
        _numpy_of_a_base,
        _numpy_over_bytearray,
        _ndarray,
        _torch,
    ],
)
def test_an_arena_lies_in_the_buffer_and_keeps_it(make):
    buffer = make()
    arena = tn.Arena(LAYOUTS, buffer=buffer)
    with arena.use("features") as f:
        f.A[:] = 1
        first = address(f.A)
    with arena.use("counts") as f:
        assert address(f.D) == first
        assert f.D[0] == np.float32(1).view("i4")
        f.D[:] = 0x01020304
    if isinstance(buffer, tn.NDArray):
        assert buffer.data_ptr == first
    else:
        seen = bytes(memoryview(buffer.numpy() if hasattr(buffer, "numpy") else buffer).cast("B")[:4])
        assert seen == (0x01020304).to_bytes(4, sys.byteorder)
        del seen
    del buffer
    gc.collect()
    with arena.use("counts", "r") as f:
        assert f.D[499] == 0x01020304
    with pytest.raises(TypeError, match="only shared arenas can be pickled"):
        copy.copy(arena)


def test_buffers_that_do_not_do_are_refused():
    with pytest.raises(ValueError, match="the buffer has 4163 bytes; the largest layout needs 4164"):
        tn.Arena(LAYOUTS, buffer=bytearray(4163))
    tn.Arena(LAYOUTS, buffer=bytearray(4164))
    with pytest.raises(BufferError, match="must be writable"):
        tn.Arena(LAYOUTS, buffer=bytes(5000))
    with pytest.raises(BufferError, match="must be writable"):
        tn.Arena(LAYOUTS, buffer=memoryview(bytearray(5000)).toreadonly())
    with pytest.raises(BufferError, match="must be writable"):
        tn.Arena(LAYOUTS, buffer=tn.zeros(5000).readonly())
    with pytest.raises(ValueError, match=r"contiguous|C order"):
        tn.Arena(LAYOUTS, buffer=np.zeros(10000, "u1")[::2])
    with pytest.raises(ValueError, match=r"contiguous|C order"):
        tn.Arena(LAYOUTS, buffer=tn.zeros(10000, "uint8")[::2])
    for nothing in (7, 1.5, "text", [0] * 5000, object()):
        with pytest.raises(TypeError):
            tn.Arena(LAYOUTS, buffer=nothing)
    with pytest.raises(ValueError, match="cannot be shared"):
        tn.Arena(LAYOUTS, buffer=bytearray(5000), shared=True)


def test_a_field_that_is_not_aligned_is_named():
    memory = np.zeros(6000, "u1")
    start = -address(memory) % 64
    with pytest.raises(ValueError, match=r"field 'E' of layout 'counts' cannot lie in this buffer: .*int64"):
        tn.Arena(LAYOUTS, buffer=memory[start + 4 :])
    with pytest.raises(
        ValueError, match=r"field 'A' of layout 'features' cannot lie in this buffer: .*float32"
    ):
        tn.Arena(LAYOUTS, buffer=memory[start + 1 :])
    arena = tn.Arena(LAYOUTS, buffer=memory[start + 8 :])
    with arena.use("counts") as f:
        f.E[:] = 1


# ------------------------------------------------------------------------------------------------ copies


def test_copies_and_names():
    arena = tn.Arena(LAYOUTS, shared="tenon.test.arena")
    with arena.use("features") as f:
        f.A[:] = 4
    same, attached = copy.copy(arena), tn.Arena.attach("tenon.test.arena")
    apart = copy.deepcopy(arena)
    with arena.use("counts") as f:
        f.D[:] = 5
    for other in (same, attached):
        assert other.layouts == arena.layouts
        assert (other.active, other.generation) == ("counts", 2)
        with other.use("counts", "r") as f:
            assert f.D[0] == 5
    with apart.use("features", "r") as f:
        assert f.A[0] == 4
    reader = tn.Arena.attach("tenon.test.arena", readonly=True)
    with reader.use("counts", "r") as f:
        assert f.D[0] == 5
    with pytest.raises(BufferError, match="read-only"):
        reader.use("counts").__enter__()
    with pytest.raises(ValueError, match="exists already"):
        tn.Arena(LAYOUTS, shared="tenon.test.arena")


def test_a_name_of_something_else_is_refused():
    array = tn.zeros(5000, "uint8", shared="tenon.test.noarena")
    with pytest.raises(ValueError, match="holds no arena"):
        tn.Arena.attach("tenon.test.noarena")
    with pytest.raises(FileNotFoundError):
        tn.Arena.attach("tenon.test.nobody")
    with pytest.raises(ValueError, match="cannot name"):
        tn.Arena(LAYOUTS, shared="a name")
    del array


def test_memory_that_is_no_arena_is_refused():
    memory = tn.Arena(LAYOUTS)._native.memory()
    for part in (
        memory[::-1],
        memory[1:],
        memory[:20],
        memory[:2000],
        memory.reshape((2, -1)),
        memory.view("i4"),
    ):
        with pytest.raises(ValueError, match="arena"):
            _core.NativeArena.open(part)


# ---------------------------------------------------------------------------------------------- damage


def test_a_damaged_description_gives_an_error_and_never_a_crash():
    """Changes every bit, and some thousand times several bytes. If the memory is still accepted as an arena,
    its arrays lie inside of the memory, so that all elements can be written and read."""
    arena = tn.Arena({"ab": {"x": ("f4", (5, 2)), "y": ("u1", ())}, "c": {"z": ("i8", (3,))}})
    memory = arena._native.memory()
    with arena.use("ab") as f:
        f.x[:] = 1
    with memory.read() as bytes_of_it:
        whole = bytes_of_it.copy()
    used = int(np.flatnonzero(whole[:4096]).max()) + 16
    random_numbers = random.Random(20)
    damages = [[(at, 1 << bit)] for at in range(used) for bit in range(8)]
    damages += [
        [
            (random_numbers.randrange(used), random_numbers.randrange(1, 256))
            for _ in range(random_numbers.randrange(2, 6))
        ]
        for _ in range(3000)
    ]
    refused = 0
    allowed = (ValueError, TypeError, OverflowError, tn.LeaseConflict, UnicodeDecodeError)
    for damage in damages:
        changed = whole.copy()
        for at, bits in damage:
            changed[at] ^= bits
        target = tn.empty(len(changed), "uint8")
        target[...] = changed
        try:
            found = tn.Arena._of(target)
            repr(found)
            assert found.nbytes <= len(changed)
            for name in found.layouts:
                with found.use(name) as f:
                    for field in f:
                        f[field][...] = 0
        except allowed:
            refused += 1
    assert refused > len(damages) // 2
    # The current layout can be damaged later, while the arena is open.
    for word in (0xFFFFFFFF, 0x80000000, 3):
        with memory.write() as values:
            values[16:20] = np.frombuffer(word.to_bytes(4, sys.byteorder), "u1")
        assert arena.active is None
        with pytest.raises(tn.LeaseConflict, match="holds nothing"):
            arena.use("ab", "r").__enter__()
        kept = []
        with arena.use("ab") as f:
            kept.append(f.x[1:])
        with memory.write() as values:
            values[16:20] = 255
        with pytest.raises(tn.LeaseConflict, match="cannot change"):
            arena.use("c").__enter__()
        kept.clear()
