# SPDX-License-Identifier: Apache-2.0
"""Random programs of one thread against contract_model.py: ops, leases, views, host calls, moves.

Oracle: the model executes each step at once, in the order in which it is made. What a step raises, or that it
succeeds, and the elements that views, calls and bodies of ops find, must be what the model says; at the end
nothing may be left behind. Where the model says that a step would wait for a lease that belongs to nobody,
or for views, the same request with no time to wait must end in TimeoutError; now and then, where no other
thread runs Python code, the search for views is waited for, which must end in DeadlockError.

TENON_SOAK=1 runs 20 times as many programs.
"""

import dataclasses
import functools
import gc
import os
import sys
import threading

import contract_model as model
import native_library
import numpy as np
import pytest
from contract_model import FREE, Answer, LeaseClaim, Memory, Model, OpClaim, Wait, Window
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

import tenon as tn
from tenon import _core

try:
    import torch
except ImportError:
    torch = None

PROGRAMS = 2000 if os.environ.get("TENON_SOAK") == "1" else 100
STEPS = 40
MOST_ARRAYS = 8
SHAPE = (4, 2)
MODES = ("read", "inout", "out")
LENT = ("readonly", "writable", "move")


@dataclasses.dataclass(eq=False)
class Array:
    real: object
    window: Window


@dataclasses.dataclass(eq=False)
class Held:
    """A view, or the elements of a block."""

    real: object
    view: object
    kind: str


@dataclasses.dataclass(eq=False)
class Taken:
    """A lease, or a block with the view that it gave."""

    real: object
    claim: LeaseClaim
    window: Window
    given: object = None
    view: object = None
    is_block: bool = False


def mix(salt, is_failing, modes, *windows):
    """The body of the ops: from all that it reads, everything that it writes."""
    total = salt
    for mode, window in zip(modes, windows):
        if mode != "out":
            total += int(window.sum())
    for i, (mode, window) in enumerate(zip(modes, windows)):
        if mode != "read":
            window[...] = (np.arange(window.size).reshape(window.shape) * 7 + total + i) % 1000
    if is_failing:
        raise RuntimeError("this op fails")


@functools.cache
def fill_label():
    return tn.c_function(
        native_library.generators(), "int fill_label(int64_t *label, uint64_t index)", threadsafe=True
    )


def in_another_thread(function):
    result = []
    thread = threading.Thread(target=lambda: result.append(outcome(function)))
    thread.start()
    thread.join()
    return result.pop()


def is_alone():
    return len(sys._current_frames()) == 1


def outcome(function):
    """(name of the exception, op that it names, what was returned); keeps no exception alive."""
    try:
        return None, None, function()
    except Exception as error:
        return type(error).__name__, getattr(error, "op", None), None


numbers = st.integers(0, 7)
values = st.integers(0, 99)


class ContractMachine(RuleBasedStateMachine):
    def __init__(self):
        super().__init__()
        self.before = _core.statistics()
        self.model = Model()
        self.arrays = []
        self.views = []
        self.taken = []
        self.memories = []
        self.moved = []  # (NumPy array, elements)
        self.ops = []  # the last ones: (real, claim)
        self.real_ops = {}  # of all that may not be done
        self.versions = {}
        self.count = 0

    @initialize(engine=st.sampled_from(["pool", "inline", "seeded:1", "seeded:7", "seeded:42"]))
    def begin(self, engine):
        try:
            tn.waitall()
        except ExceptionGroup:  # of other tests
            pass
        tn.set_engine(engine)
        self.new_zeros()
        self.new_zeros()

    # --- helpers

    def expect(self, answer, function, *windows):
        """Makes a step, of which the model has said how it ends. Returns whether it succeeded, and what it
        gave."""
        assert answer.is_told_at_once, answer
        name, op, result = outcome(function)
        if not answer.names:
            assert name is None, f"{name} was raised, but the step must succeed"
        else:
            assert name in answer.names, f"{name} was raised, and not one of {sorted(answer.names)}"
        if name == "OpError" and windows:
            causes = set().union(*(w.memory.causes(w.extent) for w in windows))
            assert op in causes, f"{op} is told as the cause, and not one of {causes}"
        return name is None, result

    def attempt(self, answer, function, array, is_write, is_patient=False):
        """As `expect`; what would hang is asked for as a lease with no time to wait."""
        if answer.is_told_at_once:
            return self.expect(answer, function, array.window)
        if is_patient and Wait.HOST in answer.waits and is_alone():
            self.expect(model.refused("DeadlockError"), function)
        elif not is_write or not array.window.is_readonly:
            # A lease waits for all that a call or a view waits for, and for more.
            answer = self.model.access([(array.window, is_write, False)], is_lease=True)
            answer = answer if answer.is_told_at_once else model.refused("TimeoutError")
            assert answer.names
            self.expect(answer, lambda: array.real.lease("w" if is_write else "r", timeout=0), array.window)
        return False, None

    def after(self, done):
        """Ops have run in the model. Those that do not heed views must have run before anyone looks."""
        for op in done:
            if not op.heeds_views:
                self.real_ops.pop(op).exception()

    def at(self, items, number):
        return items[number % len(items)]

    def add(self, real, window):
        if len(self.arrays) >= MOST_ARRAYS:
            self.arrays.pop(0)
        self.arrays.append(Array(real, window))

    def add_memory(self, real, elements, is_readonly=False):
        memory = Memory(elements)
        self.memories.append(memory)
        self.add(real, Window(memory, elements, is_readonly))
        return memory

    def wait_for_what_runs(self):
        for op, real in list(self.real_ops.items()):
            if op.is_done:
                real.exception()
                del self.real_ops[op]

    # --- arrays

    def new_zeros(self):
        self.add_memory(tn.zeros(SHAPE, "i8"), np.zeros(SHAPE, "i8"))

    @rule(value=values, mode=st.sampled_from((None, *LENT)))
    def make(self, value, mode):
        if mode is None:
            return self.new_zeros()
        x = np.full(SHAPE, value)
        memory = self.add_memory(tn.from_numpy(x, mode=mode), x.copy())
        if mode != "move":
            memory.original = x
            memory.is_original_writable = mode == "writable"
        return None

    @rule(n=numbers, part=st.sampled_from(["rows", "row", "column", "element", "readonly", "all"]), i=numbers)
    def derive(self, n, part, i):
        array = self.at(self.arrays, n)
        window = array.window
        if part == "readonly":
            return self.add(array.real.readonly(), dataclasses.replace(window, is_readonly=True))
        index = {
            "rows": slice(i % 2, i % 2 + 2),
            "row": i % window.values.shape[0] if window.values.ndim else ...,
            "column": (..., slice(i % 2, i % 2 + 1)) if window.values.ndim else ...,
            "element": (..., slice(0, 1)) if window.values.ndim else ...,
            "all": ...,
        }[part]
        if part == "rows" and window.values.ndim == 0:
            index = ...
        elements = window.values[index]
        if isinstance(elements, np.ndarray) and elements.size:
            self.add(array.real[index], dataclasses.replace(window, values=elements))
        return None

    @rule(n=numbers, is_original=st.booleans())
    def let_go(self, n, is_original):
        if is_original:
            self.at(self.memories, n).original = None
        elif len(self.arrays) > 2:
            self.arrays.pop(n % len(self.arrays))

    @rule(n=numbers)
    def alias(self, n):
        if not self.views:
            return
        held = self.at(self.views, n)
        if held.view.memory.is_moved or held.kind == "memoryview":
            return
        take = tn.from_dlpack if held.kind in ("torch", "dlpack") else tn.from_numpy
        real = take(held.real)
        is_readonly = not getattr(getattr(held.real, "flags", None), "writeable", True)
        window = Window(held.view.memory, held.view.values, is_readonly or not held.view.is_write)
        assert real.writable is not window.is_readonly
        self.add(real, window)

    # --- calls of ordinary code

    @rule(n=numbers, how=st.sampled_from(["tolist", "snapshot", "wait_to_read"]), patience=numbers)
    def read(self, n, how, patience):
        array = self.at(self.arrays, n)
        answer = self.model.access([(array.window, False, False)], is_lease=how == "wait_to_read")
        functions = {
            "tolist": array.real.tolist,
            "snapshot": lambda: array.real.snapshot().tolist(),
            "wait_to_read": array.real.wait_to_read,
        }
        is_done, found = self.attempt(answer, functions[how], array, False, patience == 0)
        if is_done and how != "wait_to_read":
            assert found == array.window.values.tolist()

    @rule(n=numbers, value=values, how=st.sampled_from(["set", "add", "array"]), patience=numbers)
    def write(self, n, value, how, patience):
        array = self.at(self.arrays, n)
        window = array.window
        elements = np.full(window.values.shape, value)

        def call():
            if how == "set":
                array.real[...] = value
            elif how == "array":
                array.real[...] = elements
            else:
                array.real += value

        answer = self.model.access([(window, True, how != "add")])
        if window.is_readonly:
            answer = Answer(frozenset(["ValueError"]))
        is_done, _ = self.attempt(answer, call, array, True, patience == 0)
        if not is_done:
            return
        window.memory.writes += 1
        if how == "add":
            window.values[...] += value
        else:
            window.values[...] = elements
            if window.is_dense:
                window.memory.heal(window.extent)

    @rule(n=numbers, m=numbers)
    def copyto(self, n, m):
        source, array = self.at(self.arrays, n), self.at(self.arrays, m)
        a, b = source.window, array.window
        if a.values.shape != b.values.shape or model.overlap(a.extent, b.extent):
            return
        answer = self.model.access([(a, False, False), (b, True, True)])
        if b.is_readonly:
            answer = Answer(frozenset(["ValueError"]))
        if not answer.is_told_at_once:
            return
        is_done, _ = self.expect(answer, lambda: source.real.copyto(array.real), a, b)
        if is_done:
            b.values[...] = a.values
            b.memory.writes += 1
            if b.is_dense:
                b.memory.heal(b.extent)

    # --- views

    @rule(
        n=numbers,
        kind=st.sampled_from(["asarray", "memoryview", "readonly", "torch", "dlpack"]),
        patience=numbers,
    )
    def look(self, n, kind, patience):
        array = self.at(self.arrays, n)
        window = array.window
        if kind == "torch" and (torch is None or window.is_readonly):
            kind = "dlpack"
        functions = {
            "asarray": lambda: np.asarray(array.real),
            "memoryview": lambda: memoryview(array.real),
            "readonly": lambda: np.asarray(array.real.readonly()),
            "torch": lambda: torch.from_dlpack(array.real),
            "dlpack": lambda: np.from_dlpack(array.real),
        }
        is_export = kind in ("torch", "dlpack")
        is_write = kind != "readonly" and not window.is_readonly
        answer, view = self.model.look(window, not is_export, is_write)
        view.is_export = is_export
        is_done, real = self.attempt(answer, functions[kind], array, view.is_write, patience == 0)
        if is_done:
            self.model.open(view)
            self.views.append(Held(real, view, kind))
            if not is_export and kind != "memoryview":
                assert real.flags.writeable is view.is_write

    @precondition(lambda self: self.views)
    @rule(n=numbers)
    def drop_view(self, n):
        held = self.views.pop(n % len(self.views))
        view, held.real = held.view, None
        self.after(self.model.close(view))

    @precondition(lambda self: self.views)
    @rule(n=numbers, value=values)
    def write_view(self, n, value):
        held = self.at(self.views, n)
        is_writable = held.kind == "torch" or (
            held.kind != "memoryview" and np.asarray(held.real).flags.writeable
        )
        if is_writable:
            held.real[...] = value
            held.view.values[...] = value
            held.view.memory.writes += 1

    # --- leases and blocks

    @rule(n=numbers, mode=st.sampled_from(["read", "write", "overwrite"]), patience=numbers)
    def enter_block(self, n, mode, patience):
        self.enter(n, mode, patience)

    @rule(n=numbers, mode=st.sampled_from(["r", "w", "thread r", "thread w"]), patience=numbers)
    def take_lease(self, n, mode, patience):
        self.enter(n, mode, patience)

    def enter(self, n, mode, patience):
        array = self.at(self.arrays, n)
        window = array.window
        is_write, is_overwrite = (
            mode.startswith("w") or mode in ("overwrite", "thread w"),
            mode == "overwrite",
        )
        is_own = not mode.startswith("thread")
        is_block = mode in ("read", "write", "overwrite")
        if is_block:
            real = array.real.write(is_overwrite) if is_write else array.real.read()
        if is_write and window.is_readonly:
            answer = Answer(frozenset(["BufferError"]))
        elif is_own:
            answer = self.model.access([(window, is_write, is_overwrite)], is_lease=True)
        else:
            answer = self.model.other_thread(window, is_write)
        if is_block:
            is_done, given = self.attempt(answer, real.__enter__, array, is_write, patience == 0)
        elif is_own:
            is_done, real = self.attempt(
                answer, lambda: array.real.lease(mode), array, is_write, patience == 0
            )
        else:
            timeout = 0 if "TimeoutError" in answer.raises else None
            name, _, real = in_another_thread(lambda: array.real.lease(mode[-1], timeout=timeout))
            assert (name in answer.raises) if answer.raises else name is None, (name, answer)
            is_done = name is None
        if not is_done:
            return
        claim = self.model.take_lease(window, is_write, is_overwrite, is_own)
        taken = Taken(real, claim, window, is_block=is_block)
        if is_block:
            assert given.flags.writeable is is_write
            assert given.tolist() == window.values.tolist()
            taken.given = given
            held = model.View(window.memory, window.values, window.extent, is_write)
            held.holder = self.model.own_lease(window.memory, window.extent, is_write)
            self.model.open(held)
            taken.view = held
        self.taken.append(taken)

    @precondition(lambda self: any(t.is_block and t.claim.entry.is_write for t in self.taken))
    @rule(n=numbers, value=values)
    def write_in_block(self, n, value):
        taken = self.at([t for t in self.taken if t.is_block and t.claim.entry.is_write], n)
        taken.given[...] = value
        taken.window.values[...] = value

    @precondition(lambda self: self.taken)
    @rule(n=numbers, how=st.sampled_from(["normal", "normal", "error", "keep", "thread"]))
    def leave(self, n, how):
        taken = self.taken.pop(n % len(self.taken))
        if not taken.is_block:
            done = self.model.end_lease(taken.claim)
            in_another_thread(taken.real.release) if how == "thread" else taken.real.release()
            return self.after(done)
        entry = taken.claim.entry
        v, taken.given = taken.given, None
        if how == "keep":
            self.views.append(Held(v[...], taken.view, "part"))
        else:
            self.model.close(taken.view)
        failure = "write()" if how == "error" and entry.is_write else None
        done = self.model.end_lease(taken.claim, failure)
        error = ZeroDivisionError("division") if how == "error" else None
        taken.real.__exit__(type(error) if error else None, error, None)
        assert v.size == 0
        del v
        return self.after(done)

    @precondition(lambda self: any(not t.is_block and t.claim.is_own for t in self.taken))
    @rule(n=numbers)
    def detach(self, n):
        taken = self.at([t for t in self.taken if not t.is_block and t.claim.is_own], n)
        assert taken.real.detach() is taken.real
        taken.claim.is_own = False

    # --- ops

    @rule(
        picked=st.lists(
            st.tuples(numbers, st.sampled_from(["read", "inout", "out"])), min_size=1, max_size=3
        ),
        policy=st.sampled_from(["raise", "raise", "raise", "wait", "copy", "ignore"]),
        is_failing=st.sampled_from([False] * 9 + [True]),
    )
    def push(self, picked, policy, is_failing):
        chosen, modes = [], []
        for n, mode in picked:
            array = self.at(self.arrays, n)
            if array not in chosen:
                chosen.append(array)
                modes.append(mode)
        self.count += 1
        salt, name = self.count, f"op{self.count}"
        wrapped = [
            {"read": lambda a: a, "inout": tn.write, "out": tn.overwrite}[mode](a.real)
            for mode, a in zip(modes, chosen)
        ]
        options = {"on_conflict": policy}

        def submit():
            return tn.push(mix, salt, is_failing, modes, *wrapped, name=name, **options)

        def body(windows):
            try:
                mix(salt, is_failing, modes, *windows)
            except RuntimeError:
                pass

        self.submit(chosen, modes, policy, is_failing, name, submit, body)

    # Together rarely by chance: a reader and an overwrite that leaves it the old elements; a failure and what
    # heals it; a view that only a dead cycle holds.

    @rule(n=numbers, m=numbers, is_second_viewed=st.booleans(), mode=st.sampled_from(MODES))
    def push_beside_readers(self, n, m, is_second_viewed, mode):
        self.look(n, "readonly", 1)
        if is_second_viewed:
            self.look(m, "readonly", 1)
        self.push([(n, "out"), (m, mode)], "copy", False)

    @rule(n=numbers, m=numbers, mode=st.sampled_from(["read", "write", "overwrite"]))
    def leave_by_exception(self, n, m, mode):
        before = len(self.taken)
        self.enter(n, mode, 1)
        if len(self.taken) > before:
            self.leave(before, "error")
        self.read(m, "tolist", 1)

    @rule(n=numbers, picked=st.lists(st.tuples(numbers, st.sampled_from(MODES)), max_size=2))
    def push_after_failure(self, n, picked):
        self.push([(n, "inout")], "raise", True)
        self.push([*picked, (n, "read")], "raise", False)
        self.wait(-1, 1)
        self.push([(n, "out"), *picked], "raise", False)

    @rule(n=numbers, mode=st.sampled_from(MODES))
    def push_beside_dead_view(self, n, mode):
        array = self.at(self.arrays, n)
        answer, view = self.model.look(array.window, True, not array.window.is_readonly)
        if answer is not FREE or view.holder is not None:
            return
        cycle = [np.asarray(array.real)]
        cycle.append(cycle)
        del cycle
        array.window.memory.writes += view.is_write
        self.push([(n, mode)], "raise", False)
        gc.collect()

    @rule(n=numbers, value=values, policy=st.sampled_from(["raise", "raise", "wait", "ignore"]))
    def push_native(self, n, value, policy):
        array = self.at(self.arrays, n)
        if not array.window.values.flags.c_contiguous:
            return
        self.count += 1
        name = f"op{self.count}"
        options = {"on_conflict": policy}

        def submit():
            return tn.push(fill_label(), array.real, value, name=name, **options)

        def body(windows):
            windows[0].flat[0] = value

        self.submit([array], ["inout"], policy, False, name, submit, body)

    def submit(self, chosen, modes, policy, is_failing, name, submit, body):
        uses = [(a.window, mode != "read", mode == "out") for a, mode in zip(chosen, modes)]
        if any(is_write and window.is_readonly for window, is_write, _ in uses):
            self.expect(Answer(frozenset(["BufferError", "MovedError"])), submit)
            return
        answer = self.model.push(uses, policy)
        fresh = []
        if policy == "copy" and answer.raises == {model.CONFLICT}:
            answer, fresh = self.model.renewed(uses)
        elif policy == "copy" and answer.raises:
            answer = Answer(answer.raises | {"ValueError"})
        is_done, real = self.expect(answer, submit)
        if not is_done:
            return
        for window in fresh:
            array = next(a for a in chosen if a.window is window)
            elements = np.zeros_like(window.values)
            memory = Memory(elements)
            self.memories.append(memory)
            array.window = Window(memory, elements)
        windows = [array.window for array in chosen]
        uses = [(w, mode != "read", mode == "out") for w, mode in zip(windows, modes)]
        op = OpClaim(name, lambda: body([w.values for w in windows]), is_failing, policy != "ignore")
        self.real_ops[op] = real
        self.ops = [*self.ops[-4:], (real, op)]
        self.after(self.model.append(op, uses, policy))

    @rule(n=numbers, patience=numbers)
    def wait(self, n, patience):
        if not self.ops:
            return
        real, op = self.at(self.ops, n)
        if op.is_done:
            name, told, _ = outcome(real.wait)
            assert name == ("OpError" if op.causes else None)
            assert told is None or told in op.causes
            assert real.done()
            return
        assert not real.done()
        waits = self.model.waits_of(op)
        answer = Answer(waits=frozenset(waits))
        if answer.is_told_at_once:
            self.expect(answer, real.wait)
        elif Wait.HOST in waits and patience == 0 and is_alone():
            self.expect(Answer(frozenset(["DeadlockError"])), real.wait)
        else:
            self.expect(Answer(frozenset(["TimeoutError"])), lambda: real.wait(0))

    @rule(patience=numbers)
    def waitall(self, patience):
        if not self.model.blocked:
            self.wait_for_all()
            return
        waits = self.model.all_ops()
        if Wait.OWN in waits or (Wait.HOST in waits and patience == 0 and is_alone()):
            self.expect(Answer(frozenset(["DeadlockError"])), tn.waitall)
        else:
            self.wait_for_what_runs()
            self.expect(Answer(frozenset(["TimeoutError"])), lambda: tn.waitall(0))

    def wait_for_all(self):
        told = 0
        try:
            tn.waitall()
        except ExceptionGroup as group:
            told = len(group.exceptions)
        assert told == self.model.roots
        self.model.roots = 0
        self.real_ops.clear()

    # --- memory that changes hands

    @rule(n=numbers)
    def move(self, n):
        array = self.at(self.arrays, n)
        window = array.window
        answer = self.model.move(window)
        if not answer.is_told_at_once:
            return
        is_done, x = self.expect(answer, array.real.move_to_numpy)
        if is_done:
            window.memory.is_moved = True
            assert x.flags.writeable is not window.is_readonly
            assert x.tolist() == window.values.tolist()
            self.moved.append((x, window.values))

    @precondition(lambda self: self.moved)
    @rule(n=numbers, mode=st.sampled_from(LENT))
    def come_back(self, n, mode):
        x, elements = self.moved.pop(n % len(self.moved))
        is_readonly = not x.flags.writeable
        address = x.ctypes.data
        real = tn.from_numpy(x, mode=mode)
        assert real.data_ptr == address
        memory = self.add_memory(real, elements, is_readonly)
        if mode != "move" and not is_readonly:
            memory.original = x
            memory.is_original_writable = mode == "writable"

    # --- what asks only

    @rule(n=numbers)
    def clear_error(self, n):
        array = self.at(self.arrays, n)
        self.wait_for_what_runs()
        array.real.clear_error()
        if not array.window.memory.is_moved:
            array.window.memory.heal(array.window.extent)

    @rule(n=numbers, what=st.sampled_from(["version", "text", "unchecked", "collection"]))
    def ask(self, n, what):
        if what == "collection":
            gc.collect()
        else:
            getattr(self, what)(self.at(self.arrays, n))

    def version(self, array):
        memory = array.window.memory
        self.wait_for_what_runs()
        if memory.is_moved:
            return
        first, second = array.real.version, array.real.version
        assert (first != second) is any(view.is_write for view in memory.views)
        seen, writes = self.versions.get(memory, (None, None))
        assert writes == memory.writes or first != seen
        self.versions[memory] = second, memory.writes

    def text(self, array):
        window = array.window
        self.wait_for_what_runs()
        found = repr(array.real)
        answer = (
            self.model.access([(window, False, False)], is_lease=True)
            if not window.memory.is_moved
            else model.refused("MovedError")
        )
        if "MovedError" in answer.raises:
            assert "moved to NumPy at" in found
        elif "OpError" in answer.raises:
            assert ", failed: op " in found
        elif answer is FREE:
            shown = np.array2string(window.values, separator=", ", prefix="tenon.array(")
            assert found == f"tenon.array({shown}, dtype=int64)"
        else:
            assert found.startswith("<tenon.NDArray of shape")

    def unchecked(self, array):
        self.wait_for_what_runs()
        if not array.window.memory.is_moved:
            assert array.real.unchecked().tolist() == array.window.values.tolist()

    # --- after each step

    @invariant()
    def some_arrays_have_memory(self):
        moved = [array for array in self.arrays if array.window.memory.is_moved]
        for array in moved[:-2]:
            self.arrays.remove(array)
        if len(moved) == len(self.arrays):
            self.new_zeros()

    @invariant()
    def views_show_the_elements(self):
        for held in self.views:
            assert held.real.tolist() == held.view.values.tolist()
        for memory in self.memories:
            x = memory.original
            if x is not None:
                assert x.tolist() == memory.values.tolist()
        for x, elements in self.moved:
            assert x.tolist() == elements.tolist()

    def teardown(self):
        try:
            while self.taken:
                self.leave(len(self.taken) - 1, "normal")
            while self.views:
                self.drop_view(0)
            self.check_all()
        finally:
            self.forget()
        if sys.exc_info()[0] is not None:
            return  # a step has failed, and its variables live on
        after = _core.statistics()
        if after != self.before:
            gc.collect()  # only now: it takes long
            after = _core.statistics()
        assert all(after[name] <= self.before[name] for name in after), (self.before, after)

    def check_all(self):
        assert not self.model.blocked
        for array in self.arrays:
            answer = self.model.access([(array.window, False, False)])
            is_done, found = self.expect(answer, array.real.tolist, array.window)
            if is_done:
                assert found == array.window.values.tolist()
        self.wait_for_all()

    def forget(self):
        try:
            tn.waitall()
        except ExceptionGroup:
            pass
        for name in ("arrays", "views", "taken", "memories", "moved", "ops", "real_ops"):
            getattr(self, name).clear()
        tn.set_engine("pool")
        memoryview(tn.zeros(1)).release()  # the reason of the last refused one is kept until then


ContractMachine.TestCase.settings = settings(
    max_examples=PROGRAMS,
    stateful_step_count=STEPS,
    phases=(Phase.generate, Phase.shrink),
    suppress_health_check=list(HealthCheck),
)


@pytest.fixture(autouse=True, scope="module")
def a_small_heap():
    """A collection looks at the objects of these programs alone: it belongs to many steps."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


TestContract = pytest.mark.slow(ContractMachine.TestCase)
