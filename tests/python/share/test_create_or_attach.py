# SPDX-License-Identifier: Apache-2.0
"""``shared=`` of every function that makes arrays, ``exist_ok=`` and ``wait=``."""

import contextlib
import inspect
import pickle
import threading

import numpy as np
import pytest
from other_process import Other

import tenon as tn

X = np.arange(6, dtype="i4").reshape(2, 3)

MAKE = {
    "array": lambda **options: tn.array(X, **options),
    "asarray": lambda **options: tn.asarray(X, **options),
    "empty": lambda **options: tn.empty(3, **options),
    "zeros": lambda **options: tn.zeros(3, **options),
    "ones": lambda **options: tn.ones(3, **options),
    "full": lambda **options: tn.full(3, 7, **options),
    "empty_like": lambda **options: tn.empty_like(X, **options),
    "zeros_like": lambda **options: tn.zeros_like(X, **options),
    "ones_like": lambda **options: tn.ones_like(X, **options),
    "full_like": lambda **options: tn.full_like(X, 7, **options),
    "arange": lambda **options: tn.arange(5, **options),
    "concatenate": lambda **options: tn.concatenate([X, X], **options),
}


def test_every_function_that_takes_a_device_takes_shared():
    found = {name for name in tn.__all__ if "device" in _parameters(getattr(tn, name))}
    assert found - {"DataLoader", "Feed"} == MAKE.keys() - {"concatenate"}
    assert all("shared" in _parameters(getattr(tn, name)) for name in MAKE)


def _parameters(function):
    if not inspect.isfunction(function):
        return {}
    return inspect.signature(function).parameters


@pytest.mark.parametrize("make", MAKE.values(), ids=MAKE)
def test_the_array_of_each_is_the_same_memory_elsewhere(make, other):
    a = make(shared=True)
    assert a.shared and not make().shared
    assert make().dtype == a.dtype and make().shape == a.shape
    a[...] = 1
    other.ask("import pickle; pickle.loads(data)[...] = 5", data=pickle.dumps(a))
    assert set(a.copy().numpy().ravel().tolist()) == {5}


def test_elements_are_those_of_the_data():
    assert tn.array(X, shared=True).tolist() == X.tolist()
    assert tn.asarray([1.5, 2], "int8", shared=True).tolist() == [1, 2]
    assert tn.array(X, "bfloat16", shared=True).dtype == tn.bfloat16
    assert tn.arange(2, 8, 3, shared=True).tolist() == [2, 5]
    assert tn.concatenate([X, X], 1, shared=True).tolist() == np.concatenate([X, X], 1).tolist()
    assert tn.ones_like(X, shared=True).tolist() == [[1] * 3] * 2
    with pytest.raises(OverflowError):
        tn.array([300], "uint8", shared=True)


def test_asarray_returns_a_shared_array_as_it_is(name):
    a = tn.array(X, shared=True)
    assert tn.asarray(a, shared=True) is a
    b = tn.asarray(a, shared=name)
    assert b.data_ptr != a.data_ptr and tn.attach(name).tolist() == X.tolist()
    c = tn.asarray(a, "float64", shared=True)
    assert c.shared and c.dtype == tn.float64


@pytest.mark.parametrize("make", [tn.zeros, tn.empty])
def test_the_first_makes_it_and_the_others_open_it(make, name, other):
    a = make(np.int64(3), "int32", shared=name, exist_ok=True)
    assert make([np.int64(3)], "i4", shared=name, exist_ok=True).data_ptr == a.data_ptr
    assert make(np.int64(3), "i4", shared=name, exist_ok=True).data_ptr == a.data_ptr
    a[...] = 4
    call = f"tn.{make.__name__}((3,), 'i4', shared=tn.Shared(name=n, populate=True), exist_ok=True)"
    assert other.ask(f"b = {call}; b[0] = 9; b.tolist()", n=name) is None
    assert a.tolist() == [9, 4, 4]
    del a
    assert other.ask("b.tolist()") == [9, 4, 4]


@pytest.mark.parametrize(
    ("shape", "dtype"), [(4, "i4"), ((3, 1), "i4"), ((), "i4"), (3, "u4"), ([3], "f4")], ids=str
)
def test_another_array_of_the_name_is_an_error_with_both(name, shape, dtype):
    a = tn.zeros(3, "i4", shared=name)
    with pytest.raises(ValueError, match=r"exists with shape \(3,\), dtype int32 .*, and not"):
        tn.zeros(shape, dtype, shared=name, exist_ok=True)
    assert a.tolist() == [0, 0, 0]


def test_an_object_of_another_kind_is_named(name):
    channel = tn.Channel({"x": ("f4", 3)}, name=name)
    for make in (lambda: tn.zeros(3, shared=name, exist_ok=True), lambda: tn.attach(name, wait=5)):
        with pytest.raises(ValueError, match=r"tn\.Channel\.attach"):
            make()
    with pytest.raises(ValueError):
        tn.Arena({"a": {"x": ("f4", 3)}}, shared=name, exist_ok=True)
    channel.close()


def test_exist_ok_needs_a_name_and_a_truth_value(name):
    for shared in (False, True, tn.Shared()):
        with pytest.raises(ValueError, match="exist_ok is True, but there is no name"):
            tn.zeros(3, shared=shared, exist_ok=True)
        with pytest.raises(ValueError, match="exist_ok is True, but there is no name"):
            tn.Arena({"a": {"x": ("f4", 3)}}, shared=shared, exist_ok=True)
    with pytest.raises(TypeError, match="exist_ok"):
        tn.zeros(3, shared=name, exist_ok="yes")
    with pytest.raises(ValueError, match="negative"):
        tn.zeros(-3, shared=name, exist_ok=True)
    with pytest.raises(ValueError, match="letters"):
        tn.zeros(3, shared="a name", exist_ok=True)


def test_of_all_that_come_at_once_one_makes_it(name):
    start, found = threading.Barrier(8), []

    def come():
        start.wait()
        found.append(tn.zeros(1, "i8", shared=name, exist_ok=True))

    for _ in range(20):
        threads = [threading.Thread(target=come) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len({a.data_ptr for a in found}) == 1 and len(found) == 8
        found.clear()


def test_of_all_processes_that_come_at_once_one_makes_it(name):
    with contextlib.ExitStack() as stack:
        others = [stack.enter_context(Other()) for _ in range(3)]
        start = tn.zeros(1, "i8", shared=f"{name}-start")
        for number in range(10):
            code = (
                "import time\n"
                "start = tn.attach(f'{n}-start', wait=60)\n"
                "with start.write() as v: v += 1\n"
                "while int(start.copy()[0]) < 3: time.sleep(0)\n"
                "a = tn.zeros(1, 'i8', shared=f'{n}-{k}', exist_ok=True)\n"
                "with a.write() as v: v += 1\n"
            )
            for process in others:
                process.start(code, n=name, k=number)
            for process in others:
                process.answer()
            assert [int(process.ask("a.copy()[0]")) for process in others] == [3, 3, 3]
            start[...] = 0


def test_wait_waits_for_the_name(name, other):
    made = threading.Event()
    found = []

    def look():
        found.append(tn.attach(name, wait=600))
        made.wait()

    thread = threading.Thread(target=look)
    thread.start()
    other.ask("a = tn.ones(2, shared=n)", n=name)
    made.set()
    thread.join()
    assert found[0].tolist() == [1, 1]
    with pytest.raises(FileNotFoundError):
        tn.attach(f"{name}-other", wait=0.02)
    with pytest.raises(ValueError, match="wait"):
        tn.attach(name, wait=-1)


def test_an_arena_is_made_or_opened(name, other):
    layouts = {"a": {"x": ("f4", (2,)), "n": ("i8", ())}, "b": {"y": ("u1", 8)}}
    arena = tn.Arena(layouts, shared=name, exist_ok=True)
    with arena.use("a") as f:
        f.x = [1, 2]
    again = other.ask(
        "b = tn.Arena(layouts, shared=n, exist_ok=True)\nwith b.use('a', 'r') as f: x = f.x.tolist()",
        n=name,
        layouts=layouts,
    )
    assert again is None and other.ask("x") == [1, 2]
    assert tn.Arena.attach(name, wait=1).layouts == arena.layouts
    layouts["b"] = {"y": ("u1", np.int64(8))}
    tn.Arena(layouts, shared=name, exist_ok=True)
    for wrong in (
        {"a": layouts["a"]},
        {"b": layouts["b"], "a": layouts["a"]},
        {**layouts, "b": {"y": ("u1", 9)}},
        {**layouts, "b": {"z": ("u1", 8)}},
        {**layouts, "b": {"y": ("i1", 8)}},
    ):
        with pytest.raises(ValueError, match="exists with the layouts"):
            tn.Arena(wrong, shared=name, exist_ok=True)
