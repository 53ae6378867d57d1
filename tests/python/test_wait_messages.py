# SPDX-License-Identifier: Apache-2.0
"""Reports of long waits, and errors that end a wait, say what holds the memory, at which line it was taken
and on which variable the view hangs. Ctrl-C in the middle of a report ends the wait."""

import asyncio
import concurrent.futures
import contextlib
import functools
import logging
import re
import signal
import sys
import threading
import time

import numpy as np
import pytest

import tenon as tn
from tenon._sync import tasks as _tasks
from tenon._sync import views as _views

pytestmark = pytest.mark.usefixtures("nothing_stays_behind")

SECONDS = 60.0
HERE = r"\S*test_wait_messages\.py:\d+"


class Holder:
    """Holds an array in a way of `HOLDS` until `end`. ``thread``: the kernel's number of its thread."""

    def __init__(self, kind, array):
        self.may_end, self._holds = threading.Event(), threading.Event()
        self._array = array
        self.thread = 0
        self._worker = threading.Thread(target=getattr(self, kind), daemon=True)
        self._worker.start()
        assert self._holds.wait(SECONDS)

    def end(self):
        self.may_end.set()
        self._worker.join(SECONDS)
        assert not self._worker.is_alive()

    def _hold(self):
        self.thread = threading.get_native_id()
        self._holds.set()
        assert self.may_end.wait(SECONDS)

    def kept_view(self):
        with self._array.lease("w"):
            kept = np.asarray(self._array)
        self._hold()
        del kept

    def block(self):
        with self._array.write() as view_of_block:
            self._hold()
            del view_of_block

    def lease(self):
        with self._array.lease("w"):
            self._hold()

    def op(self):
        op = tn.push(lambda x: self.may_end.wait(SECONDS) and None, tn.write(self._array), name="slow")
        while not any(holder.is_granted for holder in self._array.leases()):
            time.sleep(0.001)
        self._hold()
        op.wait()

    def call(self):
        def function(x):
            if not self._holds.is_set():
                self._hold()
            return x

        np.frompyfunc(function, 1, 1)(self._array)


# How the text of each begins, with the thread, and the variable of which a report tells.
HOLDS = {
    "kept_view": (
        f"a writable view of it, taken at {HERE} by thread THREAD",
        "it is kept by: variable `kept` of",
    ),
    "block": (
        f"a lease for writing, taken at {HERE} by thread THREAD",
        "its view is kept by: variable `view_of_block` of",
    ),
    "lease": (f"a lease for writing, taken at {HERE} by thread THREAD", ""),
    "op": (f"the op 'slow' that writes it, pushed at {HERE} by thread THREAD", ""),
    "call": (f"the call of .+, made at {HERE} by thread THREAD", ""),
}

WAY_OUT = (
    "; if the thread or task that holds the lease waits for this code, both wait for ever: use the array "
    "before the block of the lease, or pass the view of the block to this code"
)


def _block(a):
    with a.write():
        pass


def _push(a):
    return tn.push(tn.fill, tn.overwrite(a), 1, on_conflict="wait", name="waits")


async def _async_block(a):
    async with a.write():
        pass


async def _await(op):
    await op


WAITS = {
    "lease": lambda a: a.lease("w").release(),
    "block": _block,
    "call": lambda a: a.__setitem__(..., 1),
    "wait_to_write": lambda a: a.wait_to_write(),
    "op": lambda a: _push(a).wait(),
    "await": lambda a: asyncio.run(_await(_push(a))),
    "async block": lambda a: asyncio.run(_async_block(a)),
}


def matches(text, kind, holder, has_variable=True):
    holds, variable = HOLDS[kind]
    found = re.search(holds.replace("THREAD", str(holder.thread)), text)
    return found is not None and (not has_variable or variable in text[found.end() :])


class Reports(logging.Handler):
    """What the library has logged, by the name of the thread."""

    def __init__(self):
        super().__init__()
        self.texts = {}

    def emit(self, record):
        self.texts.setdefault(record.threadName, []).append(record.getMessage())

    def of(self, thread, what):
        return [text for text in list(self.texts.get(thread, ())) if re.search(what, text)]


@pytest.fixture
def reports(quick_reports):
    handler = Reports()
    logger = logging.getLogger("tenon")
    logger.addHandler(handler)
    yield handler
    logger.removeHandler(handler)


@pytest.fixture
def many_workers():
    with tn.set_engine("pool", 32):
        yield


def until(is_so, what):
    end = time.monotonic() + SECONDS
    while not is_so():
        assert time.monotonic() < end, what()
        time.sleep(0.01)


@pytest.mark.slow
@pytest.mark.timeout(180)
@pytest.mark.parametrize("kind", HOLDS)
def test_every_long_wait_names_the_holder_its_line_and_the_variable(kind, reports, many_workers):
    holders, waiters = {}, {}
    try:
        for name, wait in WAITS.items():
            array = tn.zeros(8)
            holders[name] = Holder(kind, array)
            waiters[name] = threading.Thread(
                target=wait, args=(array,), name=f"{name} behind {kind}", daemon=True
            )
            waiters[name].start()
        for name, waiter in waiters.items():
            # It looks for kept views after 1 s, and then before each report, and logs each once.
            long = functools.partial(reports.of, waiter.name, r"waiting for \d+ s")
            until(lambda long=long: len(long()) > 2, lambda: str(reports.texts))
            text = long()[0]
            assert matches(text, kind, holders[name]), (waiter.name, text)
            assert (WAY_OUT in text) == (kind in ("block", "lease")), (waiter.name, text)
            kept = reports.of(waiter.name, "outlived its block")
            assert len(kept) == (kind == "kept_view"), (waiter.name, kept)
            assert all(matches(text, kind, holders[name]) for text in kept), kept
    finally:
        for holder in holders.values():
            holder.end()
        for waiter in waiters.values():
            waiter.join(SECONDS)
    tn.waitall()


def test_threads_that_wait_for_one_holder_share_reports_and_searches(reports, monkeypatch):
    a, n = tn.zeros(8), 30
    searches = []
    search = _views._search
    monkeypatch.setattr(_views, "_search", lambda *given: searches.append(given) or search(*given))
    holder = Holder("block", a)
    waiters = [threading.Thread(target=lambda: a.lease("r").release(), daemon=True) for _ in range(n)]
    began = time.monotonic()
    for waiter in waiters:
        waiter.start()
    time.sleep(1)
    seconds = time.monotonic() - began
    texts = [text for texts in list(reports.texts.values()) for text in list(texts) if "s behind" in text]
    n_searches = len(searches)
    holder.end()
    for waiter in waiters:
        waiter.join(SECONDS)
    assert 3 < len(texts) <= 2 + seconds / 0.1, "not one for each thread"
    assert all("its view is kept by: variable `view_of_block` of" in text for text in texts), texts
    assert 0 < n_searches <= 2 + seconds, "not one for each thread"


def test_threads_that_run_out_of_time_share_searches(monkeypatch):
    a, n = tn.zeros(8), 30
    searches, texts = [], []
    search = _views._search

    def slow_search(*given):
        searches.append(given)
        time.sleep(0.2)
        return search(*given)

    monkeypatch.setattr(_views, "_search", slow_search)
    holder = Holder("kept_view", a)

    def wait():
        with pytest.raises(TimeoutError) as caught:
            a.lease("r", timeout=0.01)
        texts.append(str(caught.value))

    waiters = [threading.Thread(target=wait, daemon=True) for _ in range(n)]
    for waiter in waiters:
        waiter.start()
    for waiter in waiters:
        waiter.join(SECONDS)
    assert len(texts) == n and all("it is kept by: variable `kept` of" in text for text in texts)
    assert len(searches) < n / 2, "not one for each thread"
    holder.end()


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["kept_view", "lease"])
def test_a_wait_for_all_ops_names_the_holder_of_what_an_op_waits_for(kind, reports):
    a = tn.zeros(8)
    holder = Holder(kind, a)
    op = _push(a)
    waiter = threading.Thread(target=tn.waitall, name="waiter", daemon=True)
    waiter.start()
    until(lambda: len(reports.of("waiter", r"waiting for \d+ s")) > 2, lambda: str(reports.texts))
    text = reports.of("waiter", "waiting for ")[0]
    assert "the op 'waits' that writes it, pushed at" in text and ", which waits for " in text, text
    assert matches(text, kind, holder), text
    kept = reports.of("waiter", "outlived its block")
    assert len(kept) == (kind == "kept_view")
    holder.end()
    waiter.join(SECONDS)
    op.wait()


@pytest.mark.parametrize("wait", ["lease", "wait_to_write", "op", "waitall"])
@pytest.mark.parametrize("kind", HOLDS)
def test_a_wait_that_runs_out_of_time_names_the_holder_its_line_and_the_variable(kind, wait, many_workers):
    a = tn.zeros(8)
    holder = Holder(kind, a)
    op = _push(a) if wait in ("op", "waitall") else None
    waits = {
        "lease": lambda: a.lease("w", timeout=0.01),
        "wait_to_write": lambda: a.wait_to_write(0.01),
        "op": lambda: op.wait(0.01),
        "waitall": lambda: tn.waitall(0.01),
    }
    try:
        with pytest.raises(TimeoutError) as caught:
            waits[wait]()
        assert matches(str(caught.value), kind, holder, has_variable=kind == "kept_view"), caught.value
    finally:
        holder.end()
        if op is not None:
            op.wait()


@pytest.mark.parametrize("wait", ["await", "async block"])
@pytest.mark.parametrize("kind", HOLDS)
def test_a_task_that_waits_names_the_holder_its_line_and_the_variable(
    kind, wait, reports, many_workers, monkeypatch
):
    monkeypatch.setattr(_tasks, "_OUTLIVED_SECONDS", 0.005)
    a = tn.zeros(8)
    holder = Holder(kind, a)
    waiter = threading.Thread(target=WAITS[wait], args=(a,), name="waiter", daemon=True)
    waiter.start()
    try:
        until(lambda: len(reports.of("waiter", "waiting for ")) > 1, lambda: str(reports.texts))
        text = reports.of("waiter", "waiting for ")[0]
        assert matches(text, kind, holder), text
        assert (WAY_OUT in text) == (kind in ("block", "lease")), text
        kept = reports.of("waiter", "outlived its block")
        assert len(kept) == (kind == "kept_view"), kept
        assert all(matches(text, kind, holder) for text in kept), kept
    finally:
        holder.end()
        waiter.join(SECONDS)


@pytest.mark.slow
def test_a_thread_for_which_the_block_waits_is_told_the_way_out(reports):
    a = tn.zeros(8)

    async def main():
        loop = asyncio.get_running_loop()
        with concurrent.futures.ThreadPoolExecutor(2, "pool") as pool:
            with a.write(overwrite=True) as view:
                view[:] = 1
                stuck = loop.run_in_executor(pool, a.tolist)
                line = sys._getframe().f_lineno - 3
                end = loop.time() + SECONDS
                while not (texts := [t for name in list(reports.texts) for t in reports.of(name, WAY_OUT)]):
                    assert not stuck.done() and loop.time() < end, reports.texts
                    await asyncio.sleep(0.01)
                assert f"test_wait_messages.py:{line} by thread {threading.get_native_id()}" in texts[0]
                assert await loop.run_in_executor(pool, view.tolist) == [1] * 8  # the way out
            assert await stuck == [1] * 8

    asyncio.run(main())


def test_a_wait_that_only_an_own_view_keeps_from_ending_says_to_drop_it():
    a, kept = tn.zeros(4), []
    with a.read() as v:
        op = tn.push(tn.fill, tn.overwrite(a), 1)
        kept.append(v[1:])
    del v
    told = rf"behind a view of it, taken at {HERE}.*; it is kept by: item 0 of list `kept` .*"
    for wait in (op.wait, lambda: a.lease("w")):
        with pytest.raises(
            tn.DeadlockError,
            match=told
            + r"; only the waiting code could end that: drop the view first, by `a\.drop_views\(\)` if ",
        ):
            wait()
    kept.clear()
    op.wait()


def test_a_wait_behind_an_op_names_whom_the_op_waits_for(many_workers):
    a, b = tn.zeros(8), tn.zeros(8)
    holder = Holder("kept_view", a)
    first = tn.push(lambda x, y: None, tn.write(a), tn.write(b), on_conflict="wait")
    second = tn.push(tn.fill, tn.overwrite(b), 1)
    try:
        with pytest.raises(TimeoutError) as caught:
            second.wait(0.01)
        assert matches(str(caught.value), "kept_view", holder), caught.value
    finally:
        holder.end()
    second.wait()
    assert first.done()


def test_the_views_of_the_holder_s_thread_are_named_first():
    a = tn.zeros(8)
    own = np.asarray(a.readonly())
    holder = Holder("kept_view", a)
    with pytest.raises(TimeoutError, match="it is kept by: variable `kept` of"):
        a.lease("r", timeout=0.01)
    threads = {"kept": holder.thread, "own": threading.get_native_id()}
    for name, thread in threads.items():
        text = _views.find_views(a.data_ptr, a.data_ptr + a.nbytes, False, thread)
        assert text.startswith(f"variable `{name}` of")
    holder.end()
    del own


# --- Ctrl-C


class Interrupting(logging.Handler):
    def emit(self, record):
        if "outlived its block" in record.getMessage():
            signal.raise_signal(signal.SIGINT)


@contextlib.contextmanager
def no_error_is_swallowed():
    swallowed = []
    before = sys.unraisablehook
    sys.unraisablehook = lambda told: swallowed.append(repr(told.exc_value))
    try:
        yield
    finally:
        sys.unraisablehook = before
    assert not swallowed


@pytest.mark.parametrize("where", ["handler", "search"])
@pytest.mark.parametrize("wait", ["lease", "call", "op"])
def test_an_interrupt_in_the_middle_of_a_report_ends_the_wait(wait, where, monkeypatch):
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    a = tn.zeros(8)
    holder = Holder("kept_view", a)
    op = _push(a) if wait == "op" else None
    # Without the interrupt the view goes after a while, so that the test fails instead of hanging.
    later = threading.Timer(20, holder.may_end.set)
    later.start()
    waits = {"lease": lambda: a.lease("r").release(), "call": a.tolist, "op": lambda: op.wait()}
    logger, handler = logging.getLogger("tenon"), Interrupting()
    if where == "handler":
        logger.addHandler(handler)
    else:
        monkeypatch.setattr(_views, "find_views", lambda *_: signal.raise_signal(signal.SIGINT))
    try:
        with no_error_is_swallowed(), pytest.raises(KeyboardInterrupt):
            waits[wait]()
        assert not holder.may_end.is_set(), "it waited to the end"
    finally:
        later.cancel()
        logger.removeHandler(handler)
        monkeypatch.undo()
        holder.end()
        if op is not None:
            op.wait()


def test_another_error_of_a_handler_ends_no_wait(monkeypatch):
    class Broken(logging.Handler):
        def emit(self, record):
            raise OSError("no space")

    # Without the error itself: its traceback refers to this frame, and the collector does not see the object
    # that the hook is given.
    swallowed = []
    monkeypatch.setattr(sys, "unraisablehook", lambda told: swallowed.append(told.exc_type))
    a = tn.zeros(8)
    holder = Holder("kept_view", a)
    logger, handler = logging.getLogger("tenon"), Broken()
    logger.addHandler(handler)
    try:
        with pytest.raises(TimeoutError):
            a.lease("r", timeout=1.5)
    finally:
        logger.removeHandler(handler)
        holder.end()
    assert swallowed == [OSError]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda a: a.tolist(), r"cannot read the array of shape \(3,\) and dtype float32"),
        (lambda a: a.astype("int8"), r"cannot read the array of shape \(3,\) and dtype float32"),
        (lambda a: np.add(np.ones(3), a), r"cannot read the array of shape \(3,\) and dtype float32"),
        (lambda a: a[1:].copyto(np.zeros(2)), r"cannot read the array of shape \(2,\) and dtype float32"),
        (lambda a: tn.copy(a, tn.zeros(3)), r"cannot read the array of shape \(3,\) and dtype float32"),
        (lambda a: tn.copy(tn.zeros(3), a), r"cannot write the array of shape \(3,\) and dtype float32"),
        (lambda a: a.__iadd__(1), r"cannot write the array of shape \(3,\) and dtype float32"),
        (lambda a: a.__setitem__(0, 1), r"cannot write an element of dtype float32 of an array of 12 bytes"),
        (lambda a: a[1].item(), r"cannot read an element of dtype float32 of an array of 12 bytes"),
    ],
    ids=range(9),
)
def test_errors_of_waits_name_the_access_that_was_asked_for(call, message):
    mine, others = tn.zeros(3), tn.zeros(3)
    has_others, may_wait = threading.Event(), threading.Event()
    errors = []

    def wait_for_mine():
        with others.write():
            has_others.set()
            assert may_wait.wait(SECONDS)
            try:
                call(mine)
            except tn.DeadlockError as error:
                errors.append(str(error))

    other = threading.Thread(target=wait_for_mine)
    with mine.write():
        other.start()
        assert has_others.wait(SECONDS)
        may_wait.set()
        try:
            call(others)
        except tn.DeadlockError as error:
            errors.append(str(error))
    other.join(SECONDS)
    assert errors
    for error in errors:
        assert re.match(message, error), error
