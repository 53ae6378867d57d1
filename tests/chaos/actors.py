# SPDX-License-Identifier: Apache-2.0
"""The actions of the processes of the tests. All of this runs in children of the nursery."""

import contextlib
import gc
import json
import multiprocessing
import os
import pickle
import random
import signal
import socket
import threading
import time

import denials
import numpy as np
from oracle import MOST_ITEMS, ROW_WORDS, ROWS, Board, Violation, check_equal

import tenon as tn
from tenon import _core

# ------------------------------------------------------------------------------------------ small things


def outcome(call):
    """The value of a call as text, or the name of the exception that it raises."""
    try:
        return repr(call())
    except Exception as error:
        return type(error).__name__


def error_text(call):
    """The message of the exception that a call raises."""
    try:
        call()
    except Exception as error:
        return str(error)
    return ""


def timed(call):
    """How long a call takes, and its outcome."""
    began = time.monotonic()
    result = outcome(call)
    return time.monotonic() - began, result


def opened(handle):
    """The value that another process has pickled."""
    return pickle.loads(handle)


def write_lease(array):
    """A write lease, under which half of the array was changed."""
    lease = array.lease("w")
    np.asarray(array)[: len(array) // 2] = 7
    return lease


def pickled(value):
    return pickle.dumps(value)


def race(call, at):
    """The outcome of a call that begins at a time of the monotonic clock."""
    while time.monotonic() < at:
        pass
    return outcome(call)


# ------------------------------------------------------------------------------------------ single attacks

_kept = {}


def full_array(nbytes):
    """The pickle of a shared array of ones, which this process keeps as its victim."""
    _kept["victim"] = tn.full(nbytes, 1, "uint8", shared=True)
    return pickle.dumps(_kept["victim"])


def read_for_long(say):
    """Reads zeros into the victim in one system call, under a write lease."""
    array = _kept["victim"]
    source = os.memfd_create("zeros")
    os.ftruncate(source, len(array))
    with array.write() as v:
        say(b"!")
        os.preadv(source, [memoryview(v)], 0)
        os.kill(os.getpid(), signal.SIGSTOP)  # it was not killed in time: the lease is kept


def separate_arrays(n, prefix):
    """Small arrays, each in its own segment. prefix: of their names."""
    if prefix is not None:
        return [tn.zeros(2, "int32", shared=f"{prefix}.{i}") for i in range(n)]
    return [tn.zeros(2, "int32", shared=tn.Shared(numa_node=0)) for i in range(n)]


def overwrite_until_one_fails(arrays):
    """The outcomes of a full overwrite of each array, from the last one to the first, until one fails."""
    outcomes = []
    for array in reversed(arrays):
        outcomes.append(outcome(lambda array=array: array.__setitem__(..., 1)))
        if outcomes[-1] != "None":
            break
    return outcomes


def collect():
    """As `tenon gc`."""
    return json.loads(_core.collect_shared())


def segments_named(prefix):
    """The segments with names that begin with the prefix, as `tenon ls` shows them."""
    segments = json.loads(_core.describe_shared())["segments"]
    return [segment for segment in segments if (segment["name"] or "").startswith(prefix)]


def places_of(pid):
    """The number of places of a process, after `tenon gc`."""
    collect()
    segments = json.loads(_core.describe_shared())["segments"]
    return sum(p["pid"] == pid for s in segments for p in s["participants"] or ())


def take_and_give_back(array, timeout):
    with array[1].lease("w", timeout=timeout, on_owner_died="ignore"):
        pass


def pass_through(channel, timeout):
    """Sends an item and receives one."""
    with channel.loan(timeout=timeout) as item:
        item.x[...] = 1
    channel.recv(timeout=timeout).release()


def fork_while(action, name, n):
    """Forks n children, which wait, while a thread repeatedly uses the name."""
    has_ended, has_begun = threading.Event(), threading.Event()

    def use():
        while not has_ended.is_set():
            with contextlib.suppress(Exception):
                array = tn.attach(name) if action == "attach" else tn.zeros(4, shared=name)
                del array
            has_begun.set()

    thread = threading.Thread(target=use)
    thread.start()
    has_begun.wait()
    children = []
    for _ in range(n):
        child = os.fork()
        if child == 0:
            with contextlib.suppress(BaseException):
                while True:
                    signal.pause()
            os._exit(0)
        children.append(child)
        time.sleep(0.001)
    has_ended.set()
    thread.join()
    return children


def end_all(children):
    for child in children:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def send_to_a_process_that_dies(nbytes):
    """Sends an array to a process that is killed at its start, and releases it. Returns how many bytes of
    memory this process' shared memory still has after a second."""
    array = tn.ones(nbytes, "uint8", shared=f"tenon.chaos.sent.{os.getpid()}")
    process = multiprocessing.get_context("spawn").Process(target=len, args=(array,))
    process.start()
    process.kill()
    process.join()
    del array, process
    gc.collect()
    end = time.monotonic() + 300.0
    while (left := shared_memory_nbytes()) > nbytes // 8 and time.monotonic() < end:
        time.sleep(0.01)
    return left


def damaged_memory(name, seed):
    """Makes an array of this name, and flips some bits in the header of its memory file."""
    chance = random.Random(seed)
    _kept["victim"] = tn.ones(100, "int64", shared=name)
    (file,) = (
        int(fd)
        for fd in os.listdir("/proc/self/fd")
        if os.path.islink(f"/proc/self/fd/{fd}")
        and os.readlink(f"/proc/self/fd/{fd}").startswith("/memfd:tenon")
    )
    header_nbytes = 4096
    for _ in range(chance.choice((1, 3, 30))):
        at = chance.choice((chance.randrange(256), chance.randrange(header_nbytes)))
        os.pwrite(file, bytes([os.pread(file, 1, at)[0] ^ (1 << chance.randrange(8))]), at)


def damaged_handle(seed):
    """The pickle of an array that this process keeps, with some bits of the handle flipped."""
    chance = random.Random(seed)
    _kept["victim"] = tn.ones(100, "int64", shared=True)
    data = bytearray(pickle.dumps(_kept["victim"]))
    begin = data.index(b"TNHANDL")
    for _ in range(chance.choice((1, 3, 10))):
        data[begin + chance.randrange(96)] ^= 1 << chance.randrange(8)
    return bytes(data)


def use_whatever_is_there(get):
    """The outcomes of all actions on an array that may be damaged."""
    tn.set_lock_timeout(0.2)
    made = []
    outcomes = [outcome(lambda: made.append(get()))]
    for use in (
        lambda array: len(array.tolist()),
        lambda array: array.leases(),
        lambda array: array.__setitem__(..., 1),
        lambda array: array.lease("w", timeout=0.1).release(),
        lambda array: pickle.dumps(array),
        lambda array: array.shared,
    ):
        outcomes += [outcome(lambda use=use, array=array: use(array)) for array in made]
    made.clear()
    return [*outcomes, outcome(list_shared), outcome(collect)]


def list_shared():
    """As `tenon ls`."""
    return len(json.loads(_core.describe_shared())["segments"])


def shared_memory_nbytes():
    """The memory of the files of shared arrays that this process has open."""
    total = 0
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            if os.readlink(f"/proc/self/fd/{name}").startswith("/memfd:tenon"):
                total += os.stat(f"/proc/self/fd/{name}").st_blocks * 512
    return total


# ------------------------------------------------------------------------------------------- the long chaos

LOCK_SECONDS = 0.5  # that calls wait for other processes


def make_world(name):
    """The pickle of the objects that all actors share. This process keeps them, and checks them at the
    end."""
    tn.set_lock_timeout(LOCK_SECONDS)
    _kept["world"] = world = {
        "rows": tn.zeros((ROWS, ROW_WORDS), "int64", shared=True),
        "cells": tn.zeros((4, ROW_WORDS), "int64", shared=f"{name}.cells"),
        "tape": tn.zeros((4, ROW_WORDS), "int64", shared=True),
        "queue": tn.Channel({"at": ("i8", (2,)), "x": ("i8", (256,))}, slots=32),
        "latest": tn.Channel({"x": ("i8", (256,))}, slots=40, mode="latest"),
        "arena": tn.Arena({"i": {"x": ("i8", (512,))}, "f": {"y": ("f4", (1024,))}}, shared=True),
    }
    return pickle.dumps(world)


def overwrite_world():
    """The outcomes of a full overwrite of each array."""
    world = _kept["world"]
    return [outcome(lambda k=k: world[k].__setitem__(..., 0)) for k in ("rows", "cells", "tape")]


def check_world(board_file, actors, slots):
    """At the end, when no actor is left: every row has a value, and all acknowledged updates are there."""
    tn.set_lock_timeout(300)
    board, world = Board(board_file, actors, slots), _kept["world"]
    values = []
    for row in world["rows"]:
        with row.read(on_owner_died=heal) as v:
            values.append(check_equal(v, "a row at the end"))
    board.check_rows(values)
    while True:
        try:
            note_item(board, world["queue"].recv(timeout=0))
        except (TimeoutError, EOFError):
            break
        except tn.OwnerDied:
            continue
    board.check_items(list(CALLS).index("receive_item"))
    _kept.clear()
    gc.collect()
    return values


def heal(values, _):
    """Repairs a half-written row: its words differ by one."""
    values[...] = values.max()


def note_item(board, item):
    with item:
        actor, n = item.at.tolist()
        if check_equal(np.asarray(item.x), "an item") != actor * MOST_ITEMS + n:
            raise Violation(f"item {n} of actor {actor} has the values of another one")
        board.seen[actor, n] += 1
        if board.seen[actor, n] != 1:
            raise Violation(f"item {n} of actor {actor} came {board.seen[actor, n]} times")


# The calls of an actor, with their weights.
CALLS = {
    "increment": 20,
    "read": 20,
    "hold_two_rows": 5,
    "lease_and_view": 5,
    "overwrite_cells": 8,
    "read_cells": 8,
    "push_ops": 8,
    "send_item": 12,
    "receive_item": 12,
    "publish": 5,
    "look": 5,
    "use_arena": 8,
    "attach": 3,
    "make_arrays": 3,
    "send_handle": 3,
    "open_handle": 3,
    "fork": 2,
    "feed": 1,
    "list": 1,
}


class Actor:
    """Makes random calls until the board says stop, and checks the laws of oracle.py in each."""

    def __init__(self, board, number, slot, world, mailbox, name, seed):
        self.board, self.number, self.slot, self.name = board, number, slot, name
        self.mailbox, self.random = mailbox, random.Random(seed)
        self.counts = {}
        self.pushed = None  # an op that was not done in time
        for part, value in world.items():
            setattr(self, part, value)

    # The errors that the contract allows while other processes die, stop and compete.
    EXPECTED = (
        TimeoutError,
        tn.OwnerDied,
        tn.DeadlockError,
        tn.LeaseConflict,
        tn.OpError,
        EOFError,
    )

    expected = EXPECTED  # of this actor; further ones if it is denied something

    def run(self):
        self.board.pid[self.number] = os.getpid()
        while not self.board.stop[0]:
            self.call_any()
        return self.counts

    def call_any(self):
        names, weights = list(CALLS), list(CALLS.values())
        (call,) = self.random.choices(range(len(names)), weights)
        self.board.begin(self.number, call)
        try:
            getattr(self, names[call])()
            result = "done"
        except self.expected as error:
            result = type(error).__name__
        self.board.end(self.number)
        self.counts[result] = self.counts.get(result, 0) + 1

    # ---------------------------------------------------------------------------------- rows that count

    @contextlib.contextmanager
    def noted(self, row, mode):
        """Inside of a lease of the row: the board knows who has it."""
        try:
            if mode == "w":
                self.board.got_for_writing(row)
            else:
                self.board.got_for_reading(row, self.slot)
            yield
        except Violation as error:
            error.add_note(f"{list(CALLS)[self.board.call[self.number]]}: {self.rows[row].leases()}")
            raise
        finally:
            self.board.gives_back(row, self.slot)

    def add_one(self, row, v):
        before = check_equal(v, f"row {row}")
        self.board.begun[self.number, row] += 1
        v[: ROW_WORDS // 2] += 1
        v[ROW_WORDS // 2 :] += 1
        if check_equal(v, f"row {row}, under a lease,") != before + 1:
            raise Violation(f"row {row} was {before} and is {v[0]}: another process has written it")

    def any_row(self):
        return self.random.randrange(ROWS)

    def increment(self):
        row = self.any_row()
        with self.rows[row].write(on_owner_died=heal) as v, self.noted(row, "w"):
            self.add_one(row, v)
        self.board.acknowledged[self.number, row] += 1

    def read(self):
        row = self.any_row()
        with self.rows[row].read(on_owner_died=heal) as v, self.noted(row, "r"):
            check_equal(v, f"row {row}")

    def hold_two_rows(self):
        """In any order, so that processes wait for each other."""
        first, second = self.random.sample(range(ROWS), 2)
        with self.rows[first].write(on_owner_died=heal) as v, self.noted(first, "w"):
            self.add_one(first, v)
            try:
                with self.rows[second].read(on_owner_died=heal) as w, self.noted(second, "r"):
                    check_equal(w, f"row {second}")
            except (TimeoutError, tn.DeadlockError):
                pass
        self.board.acknowledged[self.number, first] += 1

    def lease_and_view(self):
        row = self.any_row()
        lease = self.rows[row].lease("w", timeout=self.random.choice((0.0, 0.1)), on_owner_died=heal)
        try:
            with self.noted(row, "w"):
                v = np.asarray(self.rows[row])
                self.add_one(row, v)
                del v
        finally:
            lease.release()
        self.board.acknowledged[self.number, row] += 1

    # ---------------------------------------------------------------------------- calls and pushed ops

    def overwrite_cells(self):
        self.cells[self.random.randrange(4)] = self.random.randrange(1 << 40)

    def read_cells(self):
        cell = self.random.randrange(4)
        check_equal(np.array(self.cells[cell].tolist()), f"cell {cell}")

    def push_ops(self):
        """On a separate array, because ops wait for other processes without a limit, and calls behind ops."""
        cell = self.tape[self.random.randrange(4)]
        try:
            if self.pushed is None:
                tn.push(tn.fill, tn.overwrite(cell), self.random.randrange(1 << 40))
                self.pushed = tn.push(np.copy, cell)
            self.pushed.wait(LOCK_SECONDS)
            check_equal(self.pushed.result(), "a cell in an op")
        except tn.OpError:
            self.pushed = None  # the next one overwrites what is half written
            raise
        self.pushed = None

    # --------------------------------------------------------------------------------- channels, arenas

    def send_item(self):
        n = int(self.board.sent[self.number])
        if n == MOST_ITEMS:
            return
        with self.queue.loan(timeout=0.05) as item:
            item.at[...] = self.number, n
            item.x[...] = self.number * MOST_ITEMS + n
        self.board.sent[self.number] = n + 1

    def receive_item(self):
        note_item(self.board, self.queue.recv(timeout=0.02))

    def publish(self):
        with self.latest.loan(timeout=0.2) as item:
            item.x[...] = self.random.randrange(1 << 40)

    def look(self):
        with self.latest.recv(timeout=0.01) as item:
            check_equal(np.asarray(item.x), "the latest item")

    def use_arena(self):
        layout, mode = self.random.choice("if"), self.random.choice("rw")
        field = {"i": "x", "f": "y"}[layout]
        with self.arena.use(layout, mode, on_owner_died=heal_arena) as fields:
            values = getattr(fields, field)
            if mode == "w":
                values[...] = self.random.randrange(1 << 20)
            else:
                check_equal(values, f"layout {layout} of the arena")

    # ------------------------------------------------------------------------- handles, names, processes

    def attach(self):
        cells = tn.attach(f"{self.name}.cells", readonly=self.random.random() < 0.3)
        check_equal(np.array(cells[0].tolist()), "cell 0")

    def make_arrays(self):
        n = self.random.randrange(1, 50_000)
        for name in (True, f"{self.name}.{self.number}.{self.slot}"):
            array = tn.full(n, 7, "int64", shared=name)
            if check_equal(np.array(array.tolist()), "an array of its own") != 7:
                raise Violation("an array of its own has other values")

    def send_handle(self):
        array = tn.full(1000, self.number, "int64", shared=True)
        with contextlib.suppress(BlockingIOError, ConnectionRefusedError):
            self.mailbox.send(pickle.dumps((self.number, array)))

    def open_handle(self):
        try:
            sender, array = pickle.loads(self.mailbox.recv(1 << 16))
            values = array.tolist()
        except (BlockingIOError, FileNotFoundError):
            return  # there is none, or its sender has ended
        if check_equal(np.array(values), "an array that was sent") != sender:
            raise Violation(f"the array that actor {sender} has sent has other values")

    def fork(self):
        """The child is a participant of its own, and has none of the parent's leases."""
        row = self.any_row()
        block = self.rows[row].write(on_owner_died=heal)
        with block if self.random.random() < 0.3 else contextlib.nullcontext():
            child = os.fork()
            if child == 0:
                self.work_in_child()
        status = os.waitpid(child, 0)[1]
        if status not in (0, signal.SIGKILL):
            raise Violation(f"a forked child has ended with status {status}")

    def work_in_child(self):
        denials.die_with_parent()
        status = 0
        try:
            for call in (self.increment, self.read, self.read_cells):
                with contextlib.suppress(*self.expected):
                    call()
        except BaseException as error:
            print(f"in a forked child: {error!r}", flush=True)
            status = 1
        os._exit(status)

    def feed(self):
        schema = tn.schema(x=("i8", (64,)))
        has_processes = self.random.random() < 0.5
        with tn.Feed(fill_batch, schema, workers=1, processes=has_processes, batches=4) as feed:
            for n, batch in enumerate(feed):
                if check_equal(np.asarray(batch.x), "a batch") != n:
                    raise Violation(f"batch {n} holds another one")

    def list(self):
        json.loads(_core.describe_shared() if self.random.random() < 0.5 else _core.collect_shared())


def fill_batch(batch):
    batch.x[...] = batch.index


def heal_arena(values, _):
    values[...] = 0


# The further errors of an actor that is denied something.
OF_DENIALS = (OSError, MemoryError, tn.TenonError, RuntimeError)


def make_actor(files, shape, number, slot, world, name, seed):
    """files: the board, the mailbox."""
    tn.set_lock_timeout(LOCK_SECONDS)
    mailbox = socket.socket(fileno=files[1])
    return Actor(Board(files[0], *shape), number, slot, pickle.loads(world), mailbox, name, seed)


def act(denial, **how):
    """Runs an actor; all random choices come from its seed. denial: a system call, "files", or None."""
    actor = make_actor(**how)
    if denial == "files":
        denials.leave_descriptors(actor.random.randrange(0, 12))
    elif denial is not None:
        denials.deny(denial)
    if denial is not None:
        actor.expected += OF_DENIALS
    return actor.run()


def act_in_want(want, calls, **how):
    """The outcomes of random calls in a process that lacks something."""
    actor = make_actor(**how)
    want(actor.random)
    actor.expected += OF_DENIALS
    for _ in range(calls):
        actor.call_any()
    return actor.counts
