# SPDX-License-Identifier: Apache-2.0
"""Names of shared arrays: what a process finds under a name, and when the name is free again."""

import contextlib
import gc
import itertools
import os
import signal
import time
import uuid
from pathlib import Path

import pytest
from other_process import Other, files_of_tenon

import tenon as tn


@pytest.fixture
def name():
    return f"test-{uuid.uuid4()}"


def soon(try_it, seconds=600):
    """The result of try_it() as soon as it does not raise."""
    end = time.monotonic() + seconds
    while True:
        try:
            return try_it()
        except (FileNotFoundError, ValueError):
            if time.monotonic() > end:
                raise
        gc.collect()
        time.sleep(0.05)


def test_others_find_an_array_by_its_name(name, other):
    a = tn.zeros((2, 3), "int16", shared=name)
    assert (
        other.ask("b = tn.attach(name); b[1] = [4, 5, 6]; (b.shape, b.dtype.name, b.shared)", name=name)
        is None
    )
    assert other.ask("b.shape, b.dtype.name, b.shared, b.writable") == ((2, 3), "int16", True, True)
    assert a.tolist() == [[0, 0, 0], [4, 5, 6]]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "complex128"])
def test_every_shape_and_dtype_is_found_as_it_was_made(name, dtype, other):
    for shape in ((), (0,), (3, 0, 2), (1,) * 10):
        a = tn.zeros(shape, dtype, shared=f"{name}-{len(shape)}")
        b = other.ask("(lambda b: (b.shape, b.dtype.name, b.nbytes))(tn.attach(n))", n=f"{name}-{len(shape)}")
        assert b == (shape, a.dtype.name, a.nbytes)


def test_attached_twice_it_is_the_same_memory(name):
    a = tn.zeros(4, "int8", shared=name)
    assert tn.attach(name).data_ptr == tn.attach(name).data_ptr == a.data_ptr


def test_views_of_a_readonly_array_are_readonly(name, other):
    a = tn.ones(4, "int8", shared=name)
    other.ask("b = tn.attach(name, readonly=True)", name=name)
    assert other.ask("b.writable") is False
    other.ask("lease = b.lease('r'); v = np.asarray(b)")
    assert other.ask("v.flags.writeable, v.tolist()") == (False, [1, 1, 1, 1])
    for attempt in ("v[0] = 2", "v.flags.writeable = True", "b[0] = 2", "b.lease('w')"):
        with pytest.raises((ValueError, BufferError)):
            other.ask(attempt)
    other.ask("del v; lease.release()")
    a[...] = 3
    assert other.ask("b.tolist()") == [3] * 4


def test_a_native_write_to_a_readonly_array_ends_the_process(name, other):
    a = tn.ones(4, "int8", shared=name)
    other.ask("import ctypes; b = tn.attach(name, readonly=True)", name=name)
    with pytest.raises(EOFError, match=f"exit {-signal.SIGSEGV}"):
        other.ask("ctypes.memset(b.data_ptr, 7, 4)")
    assert a.tolist() == [1] * 4


def test_attached_for_writing_after_it_was_for_reading_it_can_be_written(name, other):
    a = tn.ones(4, "int8", shared=name)
    other.ask("b = tn.attach(name, readonly=True); c = tn.attach(name); c[0] = 5", name=name)
    assert other.ask("b.tolist()") == a.tolist() == [5, 1, 1, 1]
    with pytest.raises(ValueError):
        other.ask("b[0] = 2")


def test_a_name_that_is_taken_is_refused(name, other):
    a = tn.zeros(4, shared=name)
    for attempt in ("tn.zeros(4, shared=name)", "tn.empty(2, 'int8', shared=tn.Shared(name=name))"):
        with pytest.raises(ValueError, match="exists already"):
            other.ask(attempt, name=name)
    with pytest.raises(ValueError, match="exists already"):
        tn.zeros(4, shared=name)
    assert a.tolist() == [0] * 4


@pytest.mark.parametrize("bad", ["a/b", "a b", "x" * 101, "\u00e4", "a\0b", "", "a\n"])
def test_bad_names_are_refused(bad):
    with pytest.raises(ValueError, match="name"):
        tn.zeros(4, shared=bad)
    with pytest.raises(ValueError, match="name"):
        tn.attach(bad)


@pytest.mark.parametrize("good", ["x" * 100, "-", "...", "A_z-0.9"])
def test_good_names_are_taken(good):
    a = tn.zeros(4, shared=good)
    assert tn.attach(good).data_ptr == a.data_ptr


def test_names_are_told_apart(name):
    a, b = tn.zeros(4, shared=name), tn.ones(4, shared=name + "x")
    assert tn.attach(name).tolist() == [0] * 4 and tn.attach(name + "x").tolist() == [1] * 4
    with pytest.raises(FileNotFoundError, match=name[:-1]):
        tn.attach(name[:-1])
    del a, b


def test_a_name_is_free_as_soon_as_its_last_user_has_let_go(name):
    for _ in range(10):
        a = tn.zeros(4, shared=name)
        b = tn.attach(name)
        del a, b
        with pytest.raises(FileNotFoundError, match=name):
            tn.attach(name)


def end_by(way, process):
    if way == "kill":
        process.kill()
    elif way == "exit":
        process.start("os._exit(0)")
    elif way == "drop":
        process.ask("a = None")
    if way != "drop":
        with contextlib.suppress(OSError, EOFError):
            process.answer()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("ways", "order"),
    list(zip(itertools.permutations(["kill", "exit", "drop"]), [(0, 1, 2), (2, 0, 1)] * 3, strict=True)),
)
def test_a_name_is_free_after_its_users_have_ended_in_any_order(name, ways, order):
    with Other() as maker, Other() as second, Other() as third:
        processes = (maker, second, third)
        maker.ask("a = tn.full(5, 7, 'int32', shared=name)", name=name)
        for process in processes[1:]:
            process.ask("a = tn.attach(name)", name=name)
        for i, way in zip(order, ways, strict=True):
            b = tn.attach(name)  # as long as one has it
            assert b.tolist() == [7] * 5
            del b
            gc.collect()
            end_by(way, processes[i])
        b = soon(lambda: tn.zeros(3, "int8", shared=name))
        assert tn.attach(name).data_ptr == b.data_ptr and b.shape == (3,)


def test_sharing_starts_no_process_and_makes_no_file(other):
    before, name = files_of_tenon(), f"x-{os.getpid()}"
    other.ask("a = tn.zeros(4, shared=True); b = tn.zeros(4, shared=n); a[0] = 1; b[0] = 1", n=name)
    children = Path(f"/proc/{other.pid}/task/{other.pid}/children").read_text()
    assert children == ""
    assert files_of_tenon() <= before
    assert not [entry for folder in ("/dev/shm", "/tmp") for entry in os.listdir(folder) if name in entry]


def test_attach_opens_arrays_only_and_names_the_right_call(name):
    things = {
        "Channel": tn.Channel({"x": ("u1", (64,))}, name=name + "-c"),
        "Arena": tn.Arena({"a": {"x": ("u1", (64,))}}, shared=name + "-a"),
    }
    for kind, suffix in (("Channel", "-c"), ("Arena", "-a")):
        for readonly in (False, True):
            with pytest.raises(ValueError, match=rf"tn\.{kind}\.attach\('{name + suffix}'\)"):
                tn.attach(name + suffix, readonly)
        assert getattr(tn, kind).attach(name + suffix) is not None
    feed = tn.Feed(lambda batch: None, tn.schema(x=("u1", (8,))), shared=name)
    with feed, feed.serve(background=True):
        with pytest.raises(ValueError, match=rf"tn\.Feed\.attach\('{name}'\)"):
            tn.attach(name)
        with pytest.raises(ValueError, match=rf"tn\.Feed\.attach\('{name}'\)"):
            tn.Channel.attach(name)  # the batches are not for it
    with pytest.raises(ValueError, match=rf"tn\.Channel\.attach\('{name}-c'\)"):
        tn.attach(name + "-c")
    del things
