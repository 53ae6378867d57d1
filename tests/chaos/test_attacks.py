# SPDX-License-Identifier: Apache-2.0
"""Single attacks on shared memory, each with the law that it tries to break.

They are short forms of attacks that broke an earlier version. `TENON_SOAK=1` makes more rounds of each.
"""

import errno
import os
import socket
import threading
import time

import numpy as np
import pytest
from denials import COLUMN
from oracle import Board
from steered import SECONDS

import tenon as tn

SOAK = bool(os.environ.get("TENON_SOAK"))


def rounds(short, full):
    return full if SOAK else short


# ------------------------------------------------------------------------------------------------ death


@pytest.mark.parametrize("round_", range(rounds(2, 20)))
def test_a_writer_that_is_killed_inside_one_long_read_changes_no_byte_under_the_next_holder(
    child, chance, round_
):
    """The kernel continues a read into the array after it has marked the process as dead."""
    nbytes = 512 << 20
    victim, heir = child(), child()
    handle = victim.ask(f"actors.full_array({nbytes})")
    heir.ask(
        "a = actors.opened(handle); a[:1].tolist(); tn.set_lock_timeout(300)\n"
        "def inherit():\n"
        "    with a.write(on_owner_died='ignore') as v:\n"
        "        first = v[:: 1 << 16].copy()\n"
        "        time.sleep(0.3)\n"
        "        return int(np.count_nonzero(v[:: 1 << 16] != first))\n",
        handle=handle,
    )
    victim.start("actors.read_for_long(say)")
    assert victim.says() == b"!"
    heir.start("inherit()")
    time.sleep(chance.uniform(0.005, 0.05))
    victim.kill()
    changed = heir.answer()
    assert changed == 0, f"{changed} of {nbytes >> 16} bytes were changed by the dead process under the lease"


def test_a_dead_writer_is_told_until_its_bytes_are_healed(child):
    """A process that only reads, as a monitor does, does not clear the owner-died state."""
    victim, monitor, worker = child(), child(), child()
    handle = victim.ask("actors.pickled(a := tn.zeros(4, 'int32', shared=True))")
    look = "actors.outcome(lambda: a.tolist())"
    for process in (monitor, worker):
        process.ask("a = actors.opened(handle)", handle=handle)
    victim.ask("lease = a.lease('w'); np.asarray(a)[:2] = 7")
    victim.end()
    assert [monitor.ask(look) for _ in range(2)] == ["OwnerDied"] * 2
    assert worker.ask(look) == "OwnerDied"
    assert worker.ask("actors.outcome(lambda: a[0].tolist())") == "OwnerDied"
    assert worker.ask("actors.outcome(lambda: a[3].tolist())") in ("0", "OwnerDied")
    worker.ask("a[...] = 5")
    assert monitor.ask(look) == worker.ask(look) == "[5, 5, 5, 5]"


def test_2200_segments_of_a_killed_writer_are_recovered_and_collected(child):
    """The kernel marks at most 2,048 robust mutexes of a thread, and this one has more."""
    n = 2200
    victim, heir = child(), child()
    victim.ask(f"arrays = actors.separate_arrays({n}, 'tenon.chaos.{os.getpid()}' if {SOAK} else None)")
    victim.ask("leases = [a.lease('w') for a in arrays]")
    handles = victim.ask("actors.pickled(arrays)")
    heir.ask("arrays = actors.opened(handles)", handles=handles)
    victim.end()
    heir.ask("tn.set_lock_timeout(300)")
    outcomes = heir.ask("actors.overwrite_until_one_fails(arrays)")
    assert outcomes == ["None"] * n, (len(outcomes), outcomes[-1])
    dead = heir.ask(f"actors.places_of({victim.pid})")
    assert dead == 0, f"{dead} places of the dead process are still taken"


@pytest.mark.skipif(COLUMN is None, reason="the numbers of system calls are not known here")
@pytest.mark.parametrize("error", [errno.EPERM, errno.ENOSYS], ids=errno.errorcode.get)
@pytest.mark.parametrize(
    "call", ["set_robust_list", "pidfd_open", "futex_waitv", "memfd_create", "fallocate"]
)
def test_without_a_system_call_deaths_are_seen_or_the_first_use_says_so(child, call, error):
    victim, heir = child(), child()
    victim.ask(f"denials.deny({call!r}, error={error})")
    made = victim.ask("actors.outcome(lambda: names.update(a=tn.zeros(4, 'int32', shared=True)))")
    assert made in ("None", "OSError", "MemoryError", "TenonError"), made
    if made != "None":
        text = victim.ask("actors.error_text(lambda: tn.zeros(4, shared=True))")
        assert call in text or "seccomp" in text or "not permitted" in text or "not implemented" in text, text
        return
    handle = victim.ask("lease = actors.write_lease(a)") or victim.ask("actors.pickled(a)")
    heir.ask("a = actors.opened(handle); tn.set_lock_timeout(300)", handle=handle)
    victim.end()
    assert heir.ask("actors.outcome(lambda: a.tolist())") == "OwnerDied"


WANTS = {
    "descriptors": "lambda chance: denials.leave_descriptors(chance.randrange(12))",
    "addresses": "lambda chance: denials.leave_addresses(chance.randrange(64))",
    "threads": "lambda chance: denials.leave_no_threads()",
}


@pytest.mark.skipif(COLUMN is None, reason="the numbers of system calls are not known here")
@pytest.mark.parametrize("round_", range(rounds(1, 50)))
@pytest.mark.parametrize("want", WANTS)
def test_a_process_in_want_gets_errors_and_harms_no_other(child, chance, want, round_):
    board, mailbox = Board.make(1, 1), socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    mailbox[0].setblocking(False)
    rich, poor = child(board.file), child(board.file, mailbox[0].fileno())
    name = f"tenon.chaos.want.{os.getpid()}"
    how = {
        "shape": (1, 1),
        "number": 0,
        "slot": 0,
        "world": rich.ask("actors.make_world(name)", name=name),
        "name": name,
        "seed": chance.randrange(1 << 32),
    }
    outcomes = poor.ask(f"actors.act_in_want({WANTS[want]}, 200, files=files, **how)", how=how)
    print(outcomes)
    assert rich.ask("actors.overwrite_world()") == ["None"] * 3
    poor.end()
    assert rich.ask("actors.overwrite_world()") == ["None"] * 3


# ------------------------------------------------------------------------------------------------ stops

BUSY_ARRAY = """
while True:
    for row in a:
        with row.write(on_owner_died="ignore") as v:
            v += 1
"""
BUSY_CHANNEL = """
while True:
    with ch.loan() as item:
        item.x[...] = 1
    ch.recv().release()
"""


@pytest.mark.parametrize(
    ("busy", "calls"),
    [
        (BUSY_ARRAY, "actors.timed(lambda: actors.take_and_give_back(shared, timeout=0.1))"),
        (BUSY_CHANNEL, "actors.timed(lambda: actors.pass_through(shared, timeout=0.1))"),
    ],
    ids=["array", "channel"],
)
def test_calls_with_a_timeout_end_whatever_process_is_stopped(child, chance, busy, calls):
    """The victim is repeatedly stopped at a random moment, and continues in between."""
    victim, other = child(), child()
    make = "tn.zeros((4, 8), shared=True)" if "row" in busy else "tn.Channel({'x': ('i4', (8,))}, slots=4)"
    handle = victim.ask(f"actors.pickled(a := (ch := {make}))")
    other.ask("shared = actors.opened(handle)", handle=handle)
    other.ask(calls)
    victim.start(busy)
    for i in range(rounds(30, 1000)):
        time.sleep(chance.uniform(0, 0.01))
        victim.stop()
        other.start(calls)
        try:
            seconds, outcome = other.answer(120.0)
        except TimeoutError:
            pytest.fail(f"stop {i}: a call with a timeout of 0.1 s has not ended after 120 s")
        assert outcome in ("None", "TimeoutError"), (i, seconds, outcome)
        victim.go_on()


# ---------------------------------------------------------------------------------------- names and forks


@pytest.mark.parametrize("action", ["attach", "create"])
def test_a_fork_during_the_use_of_a_name_leaves_the_name_free(child, action):
    """The forked children continue to live, with everything that they have inherited."""
    maker, forker, other = child(), child(), child()
    name = f"tenon.chaos.fork.{os.getpid()}.{action}"
    if action == "attach":
        maker.ask("a = tn.zeros(4, shared=name)", name=name)
    forker.ask(f"children = actors.fork_while({action!r}, name, {rounds(20, 300)})", name=name)
    try:
        outcome = other.ask(
            "actors.outcome(lambda: tn.attach(name).tolist())"
            if action == "attach"
            else "actors.outcome(lambda: tn.zeros(4, shared=name).tolist())",
            name=name,
        )
    finally:
        forker.ask("actors.end_all(children)")
    # A child that was forked while the array existed has it, and keeps the name.
    assert outcome == "[0.0, 0.0, 0.0, 0.0]" or (action == "create" and outcome == "ValueError")


@pytest.mark.parametrize("apart", [False, True], ids=["one network", "several networks"])
def test_of_processes_that_make_one_name_at_once_one_wins(child, apart):
    makers = [child() for _ in range(4)]
    if apart and False in [maker.ask("denials.leave_this_network()") for maker in makers]:
        pytest.skip("a network namespace of its own is not allowed here")
    for i in range(rounds(15, 300)):
        name = f"tenon.chaos.race.{os.getpid()}.{i}"
        at = time.monotonic() + 0.02
        for maker in makers:
            maker.start(
                "actors.race(lambda: names.update(won=tn.zeros(4, shared=name)), at)", name=name, at=at
            )
        outcomes = sorted(maker.answer() for maker in makers)
        for maker in makers:
            maker.ask("won = None")
        assert outcomes == ["None"] + ["ValueError"] * (len(makers) - 1), f"race {i}: {outcomes}"


# --------------------------------------------------------------------------------------------- handles


def test_the_memory_of_a_handle_for_a_process_that_died_is_freed(child):
    """The receiver is killed before it opens the array that was sent as an argument."""
    sender = child()
    left = sender.ask("actors.send_to_a_process_that_dies(64 << 20)")
    assert left < 8 << 20, f"{left >> 20} of 64 MiB are still taken"


@pytest.mark.parametrize("what", ["memory", "handle"])
def test_damaged_memory_and_handles_are_errors_and_end_no_process(child, chance, what):
    """Bits are flipped in the header of a memory file, or in a handle, before another process opens it."""
    stranger = child()
    for i in range(rounds(6, 1000)):
        maker, seed = child(), chance.randrange(1 << 32)
        name = f"tenon.chaos.damaged.{os.getpid()}.{i}"
        if what == "memory":
            maker.ask("actors.damaged_memory(name, seed)", name=name, seed=seed)
            stranger.start("actors.use_whatever_is_there(lambda: tn.attach(name))", name=name)
        else:
            handle = maker.ask("actors.damaged_handle(seed)", seed=seed)
            stranger.start("actors.use_whatever_is_there(lambda: actors.opened(handle))", handle=handle)
        try:
            stranger.answer()
        except (EOFError, TimeoutError) as error:
            pytest.fail(
                f"round {i}, seed {seed}: the process has ended or hangs: {error!r}, {stranger.end()}"
            )
        maker.kill()


# --------------------------------------------------------------------------------------------- threads


COPIES = {
    "snapshot": lambda a: a.snapshot(),
    "copy": lambda a: a.copy(),
    "tolist": lambda a: a.tolist(),
    "ufunc": lambda a: np.add(a, 0),
    "operator": lambda a: a + 0,
    "range": lambda a: (np.ptp(a), 0),
}


@pytest.mark.parametrize("keeps_a_view", [False, True], ids=["without a view", "beside a kept view"])
@pytest.mark.parametrize("way", COPIES)
def test_no_copy_is_torn_by_the_holder_of_a_write_lease(way, keeps_a_view):
    """One thread writes both halves under a lease; the copies of another one have equal halves."""
    a = tn.zeros(20_000, "int64")
    kept = np.asarray(a) if keeps_a_view else None
    has_ended = threading.Event()

    def write():
        k = 0
        while not has_ended.is_set():
            k += 1
            with a.write() as v:
                v[:10_000] = k
                v[10_000:] = k

    writer = threading.Thread(target=write)
    writer.start()
    try:
        end = time.monotonic() + rounds(1.5, 20)
        torn = n = 0
        while time.monotonic() < end and n < rounds(2000, 100_000):
            values = np.asarray(COPIES[way](a))
            torn += int((values != values[0]).any())
            n += 1
    finally:
        has_ended.set()
        writer.join(SECONDS)
    assert torn == 0, f"{torn} of {n} were torn"
    del kept
