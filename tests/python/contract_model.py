# SPDX-License-Identifier: Apache-2.0
"""What docs/contract.md says of arrays, leases, ops and views, as a sequential program: for a single thread
that drives them. It knows nothing of Tenon; test_contract_machine.py compares the two.

An op that nothing is in the way of is executed at its push, one after the other, as if there were no engine;
one that stands behind a lease, or that waits for views, is executed when that has gone. So only leases and
work that cannot run stand in the queues of the model.

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
    NOBODY = "a lease that belongs to nobody here"


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
        self.poisons = []  # (extent, names of the ops that may be told as the cause)
        self.is_moved = False
        self.original = None  # the NumPy array that was lent, while somebody refers to it
        self.is_original_writable = False
        self.writes = 0  # how often it may have been written

    def causes(self, extent):
        return set().union(*(names for where, names in self.poisons if overlap(where, extent)))

    def heal(self, extent):
        rest = []
        for (begin, end), names in self.poisons:
            before = (begin, min(end, extent[0]))
            behind = (max(begin, extent[1]), end)
            rest += [(part, names) for part in (before, behind) if part[0] < part[1]]
        self.poisons = rest

    def poison(self, extent, names):
        self.heal(extent)
        self.poisons.append((extent, frozenset(names)))

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
    waits_for_host: bool = False

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

    def conflicts(self, extent, is_write):
        return (self.is_write or is_write) and overlap(self.extent, extent)


class LeaseClaim:
    is_op = False

    def __init__(self):
        self.is_own = True
        self.entry = None


class OpClaim:
    is_op = True

    def __init__(self, name, body, fails, heeds_host):
        self.name = name
        self.body = body
        self.fails = fails
        self.heeds_host = heeds_host
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
        """The lease of this thread under which an access acts, or one that overlaps and does not allow it."""
        weaker = None
        for entry in memory.queue:
            if entry.claim.is_op or not entry.claim.is_own or not overlap(entry.extent, extent):
                continue
            if entry.allows(extent, is_write):
                return entry
            weaker = entry
        return weaker

    def host_holds(self, memory, extent, is_write):
        return any((v.is_write or not is_write) and contains(v.extent, extent) for v in memory.host_views())

    def acts_without_a_turn(self, window, is_write):
        """A call needs no turn of its own: a lease of this thread, or views, hold the memory for it."""
        memory, extent = window.memory, window.extent
        own = self.own_lease(memory, extent, is_write)
        is_under = own is not None and own.allows(extent, is_write)
        return is_under or self.host_holds(memory, extent, is_write)

    def is_host_in_the_way(self, entry):
        return any(view.conflicts(entry.extent, entry.is_write) for view in entry.memory.host_views())

    def is_blocked(self, entry):
        queue = entry.memory.queue
        before = queue[: queue.index(entry)] if entry in queue else queue
        return any(entry.conflicts(e) for e in before) or (
            entry.waits_for_host and self.is_host_in_the_way(entry)
        )

    def waits_of(self, entries, known=None):
        """Whom a claim of these entries would wait for, directly or behind others."""
        known = set() if known is None else known
        found = set()
        for entry in entries:
            if entry.waits_for_host and self.is_host_in_the_way(entry):
                found.add(Wait.HOST)
            queue = entry.memory.queue
            for other in queue[: queue.index(entry)] if entry in queue else queue:
                if not entry.conflicts(other):
                    continue
                if not other.claim.is_op:
                    found.add(Wait.OWN if other.claim.is_own else Wait.NOBODY)
                elif other.claim not in known:
                    known.add(other.claim)
                    found |= self.waits_of(other.claim.entries, known)
        return frozenset(found)

    # --- what synchronous code may do

    def access(self, uses, is_lease=False):
        """uses: (window, is write, is overwrite). Of a call, or of a lease for one window."""
        raises, waiting, unread = set(), [], False
        for window, is_write, is_overwrite in uses:
            memory, extent = window.memory, window.extent
            if memory.is_moved:
                raises.add(MOVED)
                continue
            unread |= not (is_overwrite and window.is_dense) and bool(memory.causes(extent))
            own = self.own_lease(memory, extent, is_write)
            if own is not None and own.allows(extent, is_write):
                continue
            if own is not None and not own.is_write and is_write:
                raises.add(CONFLICT)
                continue
            entry = Entry(object(), memory, extent, is_write)
            if not is_lease and memory.queue and memory.host_views():
                if self.host_holds(memory, extent, is_write):
                    continue
                if self.waits_for_views(entry):
                    raises.add(CONFLICT)
                    continue
            waiting.append(entry)
        waits = self.waits_of(waiting)
        if raises or waits:
            return Answer(frozenset(raises), frozenset() if raises else waits)
        return refused(FAILED) if unread else FREE

    def waits_for_views(self, entry):
        """Work that waits for views of ordinary code itself is in the way."""
        return any(
            e.claim.is_op and e.waits_for_host and self.is_host_in_the_way(e) and entry.conflicts(e)
            for e in entry.memory.queue
        )

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
            entry = Entry(object(), memory, extent, view.is_write)
            if not (memory.queue and self.host_holds(memory, extent, view.is_write)):
                if self.waits_for_views(entry):
                    return refused(CONFLICT), view
                if waits := self.waits_of([entry]):
                    return Answer(waits=waits), view
        is_unread = bool(memory.causes(extent)) and not (own is not None and self.overwrites(own))
        return refused(FAILED) if is_unread else FREE, view

    def overwrites(self, entry):
        """The view acts under a lease of which every byte is written before it is read."""
        queue = entry.memory.queue
        leases = [e for e in queue if not e.claim.is_op and e.claim.is_own]
        return any(e.is_overwrite and contains(e.extent, entry.extent) for e in leases)

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
        claim = LeaseClaim()
        claim.is_own = is_own
        memory, extent = window.memory, window.extent
        entry = Entry(claim, memory, extent, is_write, is_overwrite and window.is_dense)
        claim.entry = entry
        own = self.own_lease(memory, extent, is_write) if is_own else None
        place = memory.queue.index(own) + 1 if own is not None else len(memory.queue)
        memory.queue.insert(place, entry)
        return claim

    def other_thread(self, window, is_write):
        """A lease that another thread, which does not wait, asks for."""
        memory = window.memory
        if memory.is_moved:
            return refused(MOVED)
        entry = Entry(object(), memory, window.extent, is_write)
        if any(entry.conflicts(e) for e in memory.queue):
            return refused("TimeoutError")
        return refused(FAILED) if memory.causes(window.extent) else FREE

    def end_lease(self, claim, failure=None):
        """Returns whether a view that was taken under it stands in the way of work now, whether any view does
        for which work waits behind it, and what has run."""
        entry = claim.entry
        memory = entry.memory
        if failure is not None:
            memory.poison(entry.extent, {failure})
        elif entry.is_overwrite:
            memory.heal(entry.extent)
        memory.writes += entry.is_write
        memory.queue.remove(entry)
        escaped = []
        has_views = False
        for view in memory.views:
            if view.holder is entry:
                has_views = True
                outer = self.own_lease(memory, view.extent, view.is_write)
                is_allowed = outer is not None and outer.allows(view.extent, view.is_write)
                view.holder = outer if is_allowed else None
                if not is_allowed:
                    escaped.append(view)
        has_escaped = is_hindered = False
        for waiting in memory.queue:
            if has_views and waiting.claim.is_op and waiting.claim.heeds_host:
                has_escaped |= any(v.conflicts(waiting.extent, waiting.is_write) for v in escaped)
                is_hindered |= self.is_host_in_the_way(waiting)
                waiting.waits_for_host |= self.is_host_in_the_way(waiting)
        return has_escaped, is_hindered, self.run()

    # --- ops

    def push(self, uses, policy):
        """uses: (window, is write, is overwrite)."""
        raises = set()
        for window, is_write, _ in uses:
            memory = window.memory
            if memory.is_moved:
                raises.add(MOVED)
                continue
            is_original_used = memory.original is not None and (is_write or memory.is_original_writable)
            if policy != "idle" and is_original_used:
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
            ready = [op for op in self.blocked if not any(self.is_blocked(e) for e in op.entries)]
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
                entry.memory.poison(entry.extent, op.causes)
            elif entry.is_overwrite:
                entry.memory.heal(entry.extent)

    def close(self, view):
        view.memory.views.remove(view)
        view.memory.writes += view.is_write
        return self.run()

    def all_ops(self):
        known = set(self.blocked)
        found = set()
        for op in self.blocked:
            found |= self.waits_of(op.entries, known)
        return frozenset(found)


class _Whole(Window):
    """All of a memory."""

    @property
    def extent(self):
        return self.memory.extent
