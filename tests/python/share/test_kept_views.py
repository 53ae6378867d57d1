# SPDX-License-Identifier: Apache-2.0
"""The tables of docs/lease_conflict.md that say what happens while a view is kept: each cell is made."""

import pathlib
import re
import threading
import time
import warnings

import numpy as np
import pytest

import tenon as tn

PAGE = pathlib.Path(__file__).parents[3] / "docs/lease_conflict.md"
SECONDS = 600
A_MOMENT = 0.2  # in which work that waits does not end

pytestmark = pytest.mark.usefixtures("nothing_stays_behind", "no_op_is_left")


def rows_of(title):
    """{what is kept: its cells} of a table of the page."""
    table = re.search(rf"<!-- {title}: .*?-->\n(.*?)<!-- end -->", PAGE.read_text(), re.S)[1]
    lines = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in table.splitlines()]
    return {line[0]: line[1:] for line in lines[2:]}


class Block:
    """A `with` block that goes on."""

    def __init__(self, block):
        self._block, self.v = block, block.__enter__()

    def end(self):
        self._block.__exit__(None, None, None)


def part_after(block):
    kept = []
    with block as v:
        kept.append(v[1:])
    return kept


def array_after(block):
    with block as v:
        pass
    return [v]


def tensor_of(a):
    return pytest.importorskip("torch") and a.torch()


KEPT = {
    "`x = np.asarray(a)` or `a.torch()`": [np.asarray, tensor_of],
    "`x = np.asarray(a.readonly())`": [lambda a: np.asarray(a.readonly())],
    "`x = np.asarray(a.unchecked())`": [lambda a: np.asarray(a.unchecked())],
    "`v`, inside of `with a.write() as v`": [lambda a: Block(a.write())],
    "`v`, inside of `with a.read() as v`": [lambda a: Block(a.read())],
    "`v[1:]` in a list, after `with a.write() as v`": [lambda a: part_after(a.write())],
    "`v[1:]` in a list, after `with a.read() as v`": [lambda a: part_after(a.read())],
    "`v`, after its block": [lambda a: array_after(a.write()), lambda a: array_after(a.read())],
}
ZERO = tn.c_function(None, "void bzero(float *s, size_t n)", n=16, threadsafe=True)


def assign(a):
    a[...] = 1


def in_block(block):
    with block:
        pass


WORK = {  # calls, blocks, pushes
    "writes": (
        [assign, lambda a: ZERO(a)],
        [lambda a: in_block(a.write())],
        lambda a, **options: tn.push(tn.fill, tn.overwrite(a), 1, **options),
        "a[...] = 1",
    ),
    "reads": (
        [lambda a: a.tolist()],
        [lambda a: in_block(a.read())],
        lambda a: tn.push(lambda x: None, a),
        "a.tolist()",
    ),
}


def drop(held):
    if isinstance(held[0], Block):
        held[0].end()
    held.clear()


def outcome(work, *arguments):
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        try:
            work(*arguments)
            text = "runs"
        except (tn.LeaseConflict, tn.DeadlockError) as error:
            text = f"`{type(error).__name__}`"
    is_warned = any(issubclass(warning.category, tn.LeaseEscapedWarning) for warning in warned)
    return f"warns, {text}" if is_warned else text


class Elsewhere:
    """Work in another thread."""

    def __init__(self, work, *arguments):
        self._outcomes = []
        self._thread = threading.Thread(target=lambda: self._outcomes.append(outcome(work, *arguments)))
        self._thread.start()

    def is_busy(self, seconds):
        self._thread.join(seconds)
        return self._thread.is_alive()

    def outcome(self):
        assert not self.is_busy(SECONDS)
        return self._outcomes[0]


class Pushed:
    def __init__(self, op):
        self._op = op

    def is_busy(self, seconds):
        end = time.monotonic() + seconds
        while not self._op.done() and time.monotonic() < end:
            time.sleep(0.001)
        return not self._op.done()

    def outcome(self):
        assert not self.is_busy(SECONDS)
        self._op.wait()
        return "runs"


class Told:
    """Work of another process."""

    def __init__(self, process, code, array):
        process.start(code, a=array)
        self._process = process

    def is_busy(self, seconds):
        return self._process.is_busy(seconds)

    def outcome(self):
        return outcome(self._process.answer)


def waits_or_ends(work, held, expected):
    """What the work does beside what is held, which is dropped afterwards."""
    waits = work.is_busy(A_MOMENT) if expected == "waits" else False
    found = None if waits else work.outcome()
    drop(held)
    if waits:
        assert work.outcome() == "runs"
        return "waits"
    return found


def pushed(push, a, held, expected, **options):
    try:
        op = push(a, **options)
    except tn.LeaseConflict:
        drop(held)
        return "`LeaseConflict`"
    return waits_or_ends(Pushed(op), held, expected)


@pytest.mark.parametrize(("title", "kept"), [(title, kept) for title in WORK for kept in KEPT])
def test_each_cell_of_the_process_itself(title, kept):
    for keep in KEPT[kept]:
        check(title, kept, keep)


def check(title, kept, keep):
    calls, blocks, push, _ = WORK[title]
    call, block, elsewhere, op, _ = rows_of(title)[kept]
    for expected, works in ((call, calls), (block, blocks)):
        for work in works:
            a = tn.zeros(4)
            held = [keep(a)]
            assert outcome(work, a) == expected
            drop(held)
    for work in (*calls, *blocks):
        a = tn.zeros(4)
        held = [keep(a)]
        assert waits_or_ends(Elsewhere(work, a), held, elsewhere) == elsewhere
    a = tn.zeros(4)
    held = [keep(a)]
    assert pushed(push, a, held, op) == op


@pytest.mark.slow
def test_each_cell_of_shared_arrays(other):
    cases = [(title, kept, keep) for title in WORK for kept, ways in KEPT.items() for keep in ways]
    for title, kept, keep in cases:
        expected = rows_of(title)[kept][-1]
        a = tn.zeros(4, shared=True)
        try:
            held = [keep(a)]
        except tn.LeaseConflict:
            found = "`LeaseConflict` at `np.asarray(a)`"
        else:
            found = waits_or_ends(Told(other, WORK[title][-1], a), held, expected)
            other.ask("del a")
        assert (title, kept, found) == (title, kept, expected)


@pytest.mark.parametrize("kept", rows_of("on_conflict"))
@pytest.mark.parametrize(("how", "place"), [("raise", 0), ("wait", 1), ("ignore", 2), ("copy", 3)])
def test_each_cell_of_on_conflict(kept, how, place):
    expected = rows_of("on_conflict")[kept][place]
    gets_new = "; `a` has new memory, `x` the old values"
    for keep in KEPT[kept]:
        a = tn.zeros(4)
        held = [keep(a)]
        before = a.data_ptr
        shown = held[0] if how == "copy" else None
        found = pushed(WORK["writes"][2], a, held, expected, on_conflict=how)
        if a.data_ptr != before and shown.tolist() == [0] * 4 and a.tolist() == [1] * 4:
            found += gets_new
        shown = None
        assert found == expected


def test_the_tables_have_every_case():
    for title in WORK:
        assert list(rows_of(title)) == list(KEPT)
