# SPDX-License-Identifier: Apache-2.0
"""A block that would change what a part of an earlier block's array shows says so before it begins."""

import asyncio
import contextlib
import os
import queue
import sys
import threading
import warnings

import pytest

import tenon as tn

PACKAGE = os.path.dirname(tn.__file__)

pytestmark = pytest.mark.usefixtures("nothing_stays_behind")


@pytest.fixture(params=[False, True], ids=["plain", "shared"])
def shared(request):
    return request.param


def tensor_of(v):
    return pytest.importorskip("torch").from_numpy(v)


PARTS = {
    "slice": lambda v: v[1:],
    "memoryview": memoryview,
    "tensor": tensor_of,
    "part of a tensor": lambda v: tensor_of(v)[1:],
}
BLOCKS = {
    "write": lambda a: a.write(),
    "overwrite": lambda a: a.write(overwrite=True),
    "part": lambda a: a[2:].write(),
    "lease": lambda a: a.lease("w"),
}


@contextlib.contextmanager
def warnings_are(action):
    with warnings.catch_warnings(record=True) as shown:
        warnings.simplefilter(action)
        yield shown


@pytest.mark.names_count
@pytest.mark.parametrize("block", BLOCKS)
@pytest.mark.parametrize("part", PARTS)
def test_a_block_that_would_change_what_a_view_shows_does_not_begin_silently(
    part, block, shared, monkeypatch
):
    monkeypatch.setattr("tenon._sync.lease._warned", {})  # of the other cases
    a, kept = tn.full((4, 3), 8, shared=shared), queue.Queue()

    def write():
        with a.write() as v:
            kept.put(PARTS[part](v))

    def write_again():
        with BLOCKS[block](a):
            a[2:] = 2

    write()
    for _ in range(2):
        with warnings_are("error"), pytest.raises(tn.LeaseEscapedWarning, match=r"kept by: .*`kept`") as told:
            write_again()
    assert f"outlived that block at {__file__}:{write.__code__.co_firstlineno + 1};" in str(told.value)
    assert a.tolist() == [[8] * 3] * 4
    with warnings_are("always") as shown:
        for _ in range(3):
            write_again()
    assert [(w.category, w.filename) for w in shown] == [(tn.LeaseEscapedWarning, __file__)]
    kept.get()
    with warnings_are("error"):
        write_again()


@pytest.mark.names_count
def test_a_block_begins_silently_if_no_other_code_has_its_memory(shared):
    a = tn.full((4, 3), 8, shared=shared)
    torch = pytest.importorskip("torch")

    def loop():
        for _ in range(5):
            with a.write() as v:
                part, export, t = v[1:], memoryview(v), torch.from_numpy(v)
                t += 1
        assert part.size == 0 and export[0, 0] == 13 and t[0, 0] == 13

    def leave_a_cycle():
        with a[:2].write() as v:
            cycle = [v[1:]]
            cycle.append(cycle)

    with warnings_are("error"):
        loop()
        with a.write():
            raw = torch.from_dlpack(a)  # on purpose
        with a.write() as v:
            v += 1
            assert raw[0, 0] == 14
        del raw
        for _ in range(3):
            leave_a_cycle()
        kept = []
        with a[:2].write() as v:
            kept.append(v[1:])
        for block in (a[2:].write(), a.read()):
            with block:
                pass


@pytest.mark.parametrize("begin", [lambda a: a.write(), lambda a: a.lease("w")], ids=["block", "lease"])
def test_views_of_other_arrays_make_no_block_slower(begin, shared):
    kept = []

    def lines_of_package(n):
        """Those that Python executes for a block while n views of blocks of other arrays are kept."""
        while len(kept) < n:
            other = tn.zeros(4, shared=shared)
            with other.write() as v:
                kept.append((other, v[1:]))
        lines = 0

        def note(frame, event, _):
            nonlocal lines
            lines += event == "line" and frame.f_code.co_filename.startswith(PACKAGE)
            return note

        sys.settrace(note)
        try:
            with begin(a):
                pass
        finally:
            sys.settrace(None)
        return lines

    a = tn.zeros(4, shared=shared)
    without = lines_of_package(0)
    one = lines_of_package(1)
    assert lines_of_package(50) == one
    kept.clear()
    assert lines_of_package(0) == without
    with a.write() as v:
        kept.append(v[1:])
    with warnings_are("error"), pytest.raises(tn.LeaseEscapedWarning), begin(a):
        pass


def test_names_of_ended_arrays_give_no_warning(shared):
    """Also where it is not certain that they are names alone, so that they hold the memory."""
    a = tn.full((4, 3), 8, shared=shared)

    def rows(v):
        for i in range(len(v)):
            yield v[i].sum()

    with warnings_are("error"):
        for _ in range(2):
            with contextlib.ExitStack() as stack:
                v = stack.enter_context(a.write())
            with a.write() as v:
                kept = rows(v)
                next(kept)
    assert v.size == 0


def test_a_task_and_an_arena_warn_of_what_has_outlived_their_blocks(monkeypatch):
    a, arena, kept = tn.ones(4), tn.Arena({"x": {"v": ("f4", (4,))}}), []

    async def write():
        async with a.write() as v:
            kept.append(v[1:])

    async def run():
        await write()
        await write()

    def use():
        with arena.use("x") as f:
            kept.append(f.v[1:])

    for begin in (lambda: asyncio.run(run()), lambda: (use(), use())):
        with warnings_are("error"), pytest.raises(tn.LeaseEscapedWarning, match="`kept`"):
            begin()
    monkeypatch.setenv("TENON_DEBUG", "leases")
    with pytest.raises(tn.LeaseEscaped, match="`kept`"):
        use()
    kept.clear()
    with a.write():
        pass


def test_a_view_of_a_thread_that_has_ended_is_not_one_of_a_later_thread_with_its_number():
    a, kept, numbers, errors = tn.ones(4), [], [], []

    def write():
        numbers.append(threading.get_ident())
        try:
            with a.write(timeout=0.01) as v:
                kept.append(v[1:])
        except Exception as error:
            errors.append(type(error))

    with warnings_are("error"):
        for _ in range(50):
            thread = threading.Thread(target=write)
            thread.start()
            thread.join()
            if numbers[0] in numbers[1:]:
                break
        else:
            pytest.skip("no thread has got the number of the first one")
    assert set(errors) == {TimeoutError}


def test_a_call_that_would_wait_for_its_own_export_is_refused():
    torch = pytest.importorskip("torch")
    a = tn.zeros((3, 4))
    with a.write():
        row = torch.from_dlpack(a[0])
    op = tn.push(lambda x: None, tn.write(a), on_conflict="wait")
    with pytest.raises(tn.LeaseConflict):
        a.copy()
    del row
    op.wait()
    assert a.copy().shape == (3, 4)
