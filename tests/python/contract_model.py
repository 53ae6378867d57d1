# SPDX-License-Identifier: Apache-2.0
"""What docs/contract.md says of arrays, leases, ops and views, as a sequential program: for a single thread
that drives them. It knows nothing of Tenon; test_contract_machine.py compares the two.

An op that nothing is in the way of is executed at its push, one after the other, as if there were no engine;
one that stands behind a lease, or that waits for views, is executed when that has gone. So only leases and
work that cannot run stand in the queues of the model, and only ops wait there. How entries and views wait for
each other, and where an entry is put, is docs/dev/turns.md.

What a step may raise is a set of names of exceptions; an empty one means that it must succeed. A step that
would wait for somebody who never comes is said to hang.
"""

import dataclasses
import enum

import numpy as np

CONFLICT, DEADLOCK, MOVED, FAILED = "LeaseConflict", "DeadlockError", "MovedError", "OpError"


class Wait(enum.Enum):
    """On whom somebody who cannot go on waits."""

    OWN = "a lease of the thread itself"
    HOST = "views of ordinary code"
    NOBODY = "a lease that belongs to nobody here, or an export"


@dataclasses.dataclass(frozen=True)
class Answer:
    """What a step may raise; and whom it would wait for, where it would wait."""

    raises: frozenset = frozenset()
    waits: frozenset = frozenset()

    @property
    def is_told_at_once(self):
        return bool(self.raises) or not self.waits or Wait.OWN in self.waits

    @property
    def names(self):
        return self.raises or (frozenset([DEADLOCK]) if Wait.OWN in self.waits else frozenset())


def refused(*names):
    return Answer(frozenset(names))


FREE = Answer()


class Memory:
    """One storage: its queue, the views of it, and what failed to be written."""

    def __init__(self, values):
        self.values = values
        self.extent = extent_of(values)
        self.queue = []  # entries of leases and of blocked ops
        self.views = []
        self.failures = []  # (extent, names of the ops that may be told as the cause)
        self.is_moved = False
        self.original = None  # the NumPy array that was lent, while somebody refers to it
        self.is_original_writable = False
        self.writes = 0  # how often it may have been written

    def causes(self, extent):
        return set().union(*(names for where, names in self.failures if overlap(where, extent)))

    def heal(self, extent):
        rest = []
        for (begin, end), names in self.failures:
            before = (begin, min(end, extent[0]))
            behind = (max(begin, extent[1]), end)
            rest += [(part, names) for part in (before, behind) if part[0] < part[1]]
        self.failures = rest

    def add_failure(self, extent, names):
        self.heal(extent)
        self.failures.append((extent, frozenset(names)))

    def host_views(self):
        return [view for view in self.views if view.holder is None]


@dataclasses.dataclass(eq=False)
class Window:
    """A handle: elements of a memory."""

    memory: Memory
    values: np.ndarray
    is_readonly: bool = False

    @property
    def extent(self):
        return extent_of(self.values)

    @property
    def is_dense(self):
        low, high = self.extent
        return high - low == self.values.nbytes

    def is_whole(self):
        return self.values.flags.c_contiguous and self.extent == self.memory.extent


@dataclasses.dataclass(eq=False)
class Entry:
    claim: object
    memory: Memory
    extent: tuple
    is_write: bool
    is_overwrite: bool = False
    is_overwriting: bool = False  # it acts under one that writes every byte
    waits_for_host: bool = False
    is_granted: bool = False

    def conflicts(self, other):
        return (
            self.claim is not other.claim
            and (self.is_write or other.is_write)
            and overlap(self.extent, other.extent)
        )

    def allows(self, extent, is_write):
        return (self.is_write or not is_write) and contains(self.extent, extent)


@dataclasses.dataclass(eq=False)
class View:
    memory: Memory
    values: np.ndarray
    extent: tuple
    is_write: bool
    holder: Entry | None = None  # the lease under which it was taken; None: ordinary code's
    has_outlived: bool = False  # it continues a lease of this thread that has ended
    is_export: bool = False  # another library may drop it at any time

    @property
    def waits(self):
        return Wait.NOBODY if self.is_export else Wait.OWN if self.has_outlived else Wait.HOST

    def conflicts(self, entry):
        return (self.is_write or entry.is_write) and overlap(self.extent, entry.extent)

    def allows(self, entry):
        return (self.is_write or not entry.is_write) and contains(self.extent, entry.extent)


class LeaseClaim:
    is_op = is_call = False

    def __init__(self, is_own=True):
        self.is_own = is_own
        self.entry = None


class CallClaim:
    is_op, is_call, is_own = False, True, True


class OpClaim:
    is_op, is_call = True, False

    def __init__(self, name, body, fails, heeds_views):
        self.name = name
        self.body = body
        self.fails = fails
        self.heeds_views = heeds_views
        self.entries = []
        self.causes = None  # of its failure; None: it is not done
        self.is_done = False


def extent_of(values):
    return np.lib.array_utils.byte_bounds(values)


def overlap(a, b):
    return a[0] < b[1] and b[0] < a[1]


def contains(a, b):
    return a[0] <= b[0] and b[1] <= a[1]


class Model:
    def __init__(self):
        self.blocked = []  # ops that cannot run, in the order of their push
        self.roots = 0  # ops that failed by themselves since waitall() told

    # --- who is in whose way

    def own_lease(self, memory, extent, is_write):
        """The innermost lease of this thread that allows an access; else one that overlaps, or None."""
        weaker = innermost = None
        for entry in memory.queue:
            if entry.claim.is_op or not entry.claim.is_own or not overlap(entry.extent, extent):
                continue
            if entry.allows(extent, is_write):
                innermost = entry
            else:
                weaker = entry
        return innermost or weaker

    def is_covered(self, entry, is_host):
        """A view of its thread allows it: one that has outlived its lease; for ordinary code any."""
        return any(v.allows(entry) and (v.has_outlived or is_host) for v in entry.memory.host_views())

    def views_in_the_way(self, entry):
        views = [view for view in entry.memory.host_views() if view.conflicts(entry)]
        if entry.claim.is_op:
            return views if entry.waits_for_host else []
        views = [view for view in views if view.has_outlived]
        if not entry.claim.is_own:
            return views
        return [] if self.is_covered(entry, False) else [view for view in views if not view.is_write]

    def is_kept(self, entry, is_host):
        """It waits for a view that would let this thread act: one that has outlived its lease, or for
        ordinary code any."""
        views = [] if entry.is_granted else self.views_in_the_way(entry)
        return any(view.has_outlived or is_host for view in views)

    def place_before_kept(self, entry, is_host):
        """Before the first that conflicts and waits for such a view, directly or behind others."""
        queue = entry.memory.queue
        kept = []
        for i, other in enumerate(queue):
            if other.is_granted:
                continue
            if any(other.conflicts(e) for e in kept) or self.is_kept(other, is_host):
                if entry.conflicts(other):
                    return i
                kept.append(other)
        return len(queue)

    def would_wait_for_host(self, entry):
        """Behind an op that waits for a view of ordinary code, or behind an export that has outlived its
        lease, directly or behind others. No search for deadlocks follows these, so a call is refused."""
        behind_exports = []
        for other in entry.memory.queue:
            if other.is_granted:
                continue
            views = self.views_in_the_way(other)
            is_behind = any(view.has_outlived and view.is_export for view in views)
            is_behind = is_behind or any(other.conflicts(e) for e in behind_exports)
            if is_behind:
                behind_exports.append(other)
            if entry.conflicts(other) and (is_behind or not all(view.has_outlived for view in views)):
                return True
        return False

    def stand(self, entry):
        """Where synchronous code would stand: (the own lease that it acts under, its place in the queue). A
        LeaseConflict: (None, None)."""
        queue = entry.memory.queue
        is_host = entry.claim.is_call
        if entry.claim.is_own:
            own = self.own_lease(entry.memory, entry.extent, entry.is_write)
            if own is not None and own.allows(entry.extent, entry.is_write):
                return own, None
            if own is not None and not own.is_write and entry.is_write:
                return None, None
            if self.is_covered(entry, is_host):
                return None, self.place_before_kept(entry, is_host)
            if is_host and self.would_wait_for_host(entry):
                return None, None
        return None, len(queue)

    def waits_of_entry(self, entry, place, known):
        """Whom it would wait for there, directly or behind others."""
        queue = entry.memory.queue
        found = {view.waits for view in self.views_in_the_way(entry)}
        for i, other in enumerate(queue):
            if not entry.conflicts(other) or (i >= place and not other.is_granted):
                continue
            if not other.claim.is_op:
                found.add(Wait.OWN if other.claim.is_own else Wait.NOBODY)
            elif other.claim not in known:
                found |= self.waits_of(other.claim, known)
        return found

    def waits_of(self, op, known=None):
        """Whom an op in the queues waits for, directly or behind others."""
        known = set() if known is None else known
        known.add(op)
        found = set()
        for entry in op.entries:
            if not entry.is_granted:
                found |= self.waits_of_entry(entry, entry.memory.queue.index(entry), known)
        return found

    def is_blocked(self, entry):
        queue = entry.memory.queue
        return any(entry.conflicts(e) for e in queue[: queue.index(entry)]) or bool(
            self.views_in_the_way(entry)
        )

    # --- what synchronous code may do

    def access(self, uses, is_lease=False):
        """uses: (window, is write, is overwrite). Of a call, or of a lease for one window."""
        claim = LeaseClaim() if is_lease else CallClaim()
        raises, waits, is_unread = set(), set(), False
        for window, is_write, is_overwrite in uses:
            memory, extent = window.memory, window.extent
            if memory.is_moved:
                raises.add(MOVED)
                continue
            entry = Entry(claim, memory, extent, is_write)
            own, place = self.stand(entry)
            is_overwritten = is_overwrite and window.is_dense
            is_overwritten |= own is not None and (own.is_overwrite or own.is_overwriting)
            is_unread |= not is_overwritten and bool(memory.causes(extent))
            if place is not None:
                waits |= self.waits_of_entry(entry, place, set())
            elif own is None:
                raises.add(CONFLICT)
        if raises or waits:
            return Answer(frozenset(raises), frozenset() if raises else frozenset(waits))
        return refused(FAILED) if is_unread else FREE

    def look(self, window, may_weaken, is_write):
        """A view of ordinary code: (answer, the view that it would be)."""
        memory, extent = window.memory, window.extent
        view = View(memory, window.values, extent, is_write)
        if memory.is_moved:
            return refused(MOVED), view
        own = self.own_lease(memory, extent, is_write)
        if own is not None and not own.allows(extent, is_write):
            if may_weaken and own.allows(extent, False):
                view.is_write = False
            elif not own.is_write and is_write:
                return refused(CONFLICT), view
            else:
                own = None
        view.holder = own
        if own is None:
            # It takes its turn as a call does.
            entry = Entry(CallClaim(), memory, extent, view.is_write)
            _, place = self.stand(entry)
            if place is None:
                return refused(CONFLICT), view
            if waits := self.waits_of_entry(entry, place, set()):
                return Answer(waits=frozenset(waits)), view
        is_overwritten = own is not None and (own.is_overwrite or own.is_overwriting)
        return refused(FAILED) if memory.causes(extent) and not is_overwritten else FREE, view

    def open(self, view):
        view.memory.views.append(view)
        if view.holder is None:
            self.hinder(view)

    def hinder(self, view):
        """It has become one of ordinary code's: work that waits in the queue waits for it, too."""
        for entry in view.memory.queue:
            if entry.claim.is_op and not entry.is_granted and view.conflicts(entry):
                entry.waits_for_host |= entry.claim.heeds_views

    def move(self, window):
        memory = window.memory
        if memory.is_moved:
            return refused(MOVED)
        raises = set()
        if memory.original is not None:
            raises.add(CONFLICT)
        answer = self.access([(_Whole(memory, window.values), True, False)])
        raises |= answer.raises
        own = self.own_lease(memory, memory.extent, True)
        is_held = memory.views or (own is not None and own.allows(memory.extent, True))
        if is_held and not answer.waits:
            raises.add(CONFLICT)
        return Answer(frozenset(raises), frozenset() if raises else answer.waits)

    # --- leases

    def take_lease(self, window, is_write, is_overwrite, is_own=True):
        claim = LeaseClaim(is_own)
        entry = Entry(claim, window.memory, window.extent, is_write, is_overwrite and window.is_dense)
        own, place = self.stand(entry)
        if own is not None:
            entry.is_overwriting = own.is_overwrite or own.is_overwriting
            place = window.memory.queue.index(own) + 1
        entry.is_granted = True
        claim.entry = entry
        window.memory.queue.insert(place, entry)
        return claim

    def other_thread(self, window, is_write):
        """A lease that another thread, which does not wait, asks for."""
        memory = window.memory
        if memory.is_moved:
            return refused(MOVED)
        entry = Entry(LeaseClaim(is_own=False), memory, window.extent, is_write)
        if self.views_in_the_way(entry) or any(entry.conflicts(e) for e in memory.queue):
            return refused("TimeoutError")
        return refused(FAILED) if memory.causes(window.extent) else FREE

    def end_lease(self, claim, failure=None):
        """Returns what has run. Views that were taken under it go to an outer lease, or continue it."""
        entry = claim.entry
        memory = entry.memory
        if failure is not None:
            memory.add_failure(entry.extent, {failure})
        elif entry.is_overwrite:
            memory.heal(entry.extent)
        memory.writes += entry.is_write
        memory.queue.remove(entry)
        for view in [view for view in memory.views if view.holder is entry]:
            outer = self.own_lease(memory, view.extent, view.is_write)
            is_allowed = outer is not None and outer.allows(view.extent, view.is_write)
            view.holder = outer if is_allowed else None
            if not is_allowed:
                view.has_outlived = True
                self.hinder(view)
        return self.run()

    # --- ops

    def is_host_in_the_way(self, entry):
        return any(view.conflicts(entry) for view in entry.memory.host_views())

    def push(self, uses, policy):
        """uses: (window, is write, is overwrite)."""
        raises = set()
        for window, is_write, _ in uses:
            memory = window.memory
            if memory.is_moved:
                raises.add(MOVED)
                continue
            is_original_used = memory.original is not None and (is_write or memory.is_original_writable)
            if policy != "ignore" and is_original_used:
                raises.add(CONFLICT)
            entry = Entry(None, memory, window.extent, is_write)
            if policy in ("raise", "copy") and self.is_host_in_the_way(entry):
                raises.add(CONFLICT)
        return Answer(frozenset(raises))

    def renewed(self, uses):
        """Which windows get new memory when a push that was refused copies, or what it raises."""
        overwritten = [window for window, _, is_overwrite in uses if is_overwrite]
        viewed = [w for w in overwritten if any(overlap(v.extent, w.extent) for v in w.memory.host_views())]
        chosen = viewed or overwritten
        raises = set()
        for window in chosen:
            memory = window.memory
            if not window.is_whole():
                raises.add("ValueError")
            if any(v.is_write and overlap(v.extent, window.extent) for v in memory.views):
                raises.add(CONFLICT)
            if memory.original is not None and memory.is_original_writable:
                raises.add(CONFLICT)
        if raises:
            return refused(*raises), []
        others = [use for use in uses if use[0] not in chosen]
        return self.push(others, "raise"), chosen

    def append(self, op, uses, policy):
        """Queues it; returns the ops that have run."""
        for window, is_write, is_overwrite in uses:
            entry = Entry(op, window.memory, window.extent, is_write, is_overwrite and window.is_dense)
            entry.waits_for_host = policy == "wait" and self.is_host_in_the_way(entry)
            op.entries.append(entry)
        for entry in op.entries:
            entry.memory.queue.append(entry)
        self.blocked.append(op)
        return self.run()

    def run(self):
        """Executes what nothing is in the way of any more."""
        done = []
        while True:
            for op in self.blocked:
                for entry in op.entries:
                    entry.is_granted = entry.is_granted or not self.is_blocked(entry)
            ready = [op for op in self.blocked if all(entry.is_granted for entry in op.entries)]
            if not ready:
                return done
            self.execute(ready[0])
            done.append(ready[0])

    def execute(self, op):
        self.blocked.remove(op)
        op.causes = set()
        for entry in op.entries:
            entry.memory.queue.remove(entry)
            if not entry.is_overwrite:
                op.causes |= entry.memory.causes(entry.extent)
        if not op.causes:
            op.body()
            if op.fails:
                op.causes = {op.name}
                self.roots += 1
        op.is_done = True
        for entry in op.entries:
            if not entry.is_write:
                continue
            entry.memory.writes += 1
            if op.causes:
                entry.memory.add_failure(entry.extent, op.causes)
            elif entry.is_overwrite:
                entry.memory.heal(entry.extent)

    def close(self, view):
        view.memory.views.remove(view)
        view.memory.writes += view.is_write
        return self.run()

    def all_ops(self):
        found = set()
        for op in self.blocked:
            found |= self.waits_of(op)
        return found


class _Whole(Window):
    """All of a memory."""

    @property
    def extent(self):
        return self.memory.extent
