# SPDX-License-Identifier: Apache-2.0
"""Tensor pools: every kind of array comes back as what it was, a sent array ends, and memory is free when a
message and the arrays that were made of it are gone."""

import asyncio
import gc
import multiprocessing
import os
import pickle
import random
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

import tenon as tn
from tenon import _core

SECONDS = 600
MiB = 1 << 20

fork = multiprocessing.get_context("fork")


def await_true(condition):
    end = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < end
        gc.collect()
        time.sleep(0.005)


@pytest.fixture
def pool():
    pool = tn.TensorPool("64 MiB", inline=256, idle=0, linger=0)
    yield pool
    gc.collect()


def in_child(function, *arguments):
    """What the function returns in a forked child."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            result = (True, function(*arguments))
        except BaseException as error:
            result = (False, error)
        with os.fdopen(writer, "wb") as file:
            file.write(pickle.dumps(result))
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as file:
        data = file.read()
    os.waitpid(pid, 0)
    is_good, value = pickle.loads(data)
    if not is_good:
        raise value
    return value


# ------------------------------------------------------------------------------------- small arrays


class Labelled:
    def __init__(self, **members):
        self.__dict__.update(members)


def test_small_arrays_travel_in_the_message(pool):
    before = pool.stats()["used"]
    message = pool.dumps({"x": np.zeros(31), "y": Labelled(x=np.zeros(31))})
    assert pool.stats()["used"] == before
    assert tn.loads(message)["y"].x.shape == (31,)
    assert pool.dumps({"x": np.zeros(32)}) and pool.stats()["used"] > before


# -------------------------------------------------------------------------- who may write, and the end


def test_a_sent_array_ends(pool):
    x = pool.empty((100, 10), "i4")
    x.numpy()[...] = 7
    message = pool.dumps({"x": x, "part": x[:3], "again": x})
    with pytest.raises(tn.MovedError):
        x.numpy()
    read = tn.loads(message)
    assert read["x"] is read["again"] and read["x"].numpy().sum() == 7000
    read["x"].numpy()[...] = 1  # handed over: both are on one memory
    assert read["part"].numpy().sum() == 30


def test_a_view_keeps_its_array_from_being_sent(pool):
    x, other = pool.empty(1000), pool.empty(1000)
    view = x.numpy()
    view[...] = 3
    for others in ([], [np.zeros(5000)]):
        with pytest.raises(tn.LeaseEscaped, match=r"test_tensor_pool\.py"):
            pool.dumps([other, x, *others])
    used = pool.stats()
    assert used["messages"] == 0 and used["blocks"] == 2
    other[...] = 1  # both are as they were
    del view
    assert tn.loads(pool.dumps(x)).numpy().sum() == 3000


def test_a_view_in_a_cycle_that_nothing_uses_does_not_count(pool):
    x = pool.empty(1000)
    gc.disable()
    try:
        cycle = [x.numpy()]
        cycle.append(cycle)
        del cycle
        assert pool.dumps(x)
    finally:
        gc.enable()


def test_frozen_arrays_are_sent_repeatedly(pool):
    x = pool.empty(1000)
    x[...] = 2
    frozen = pool.freeze(x)
    with pytest.raises(tn.MovedError):
        x.numpy()
    messages = [pool.dumps({"x": frozen}) for _ in range(3)]
    assert pool.stats()["blocks"] == 1
    for message in messages:
        read = tn.loads(message)["x"]
        read.numpy()[...] = 9  # on pages of its own
        assert frozen.numpy().sum() == 2000
    with pytest.raises(ValueError, match="read-only"):
        frozen.numpy()[0] = 1


def test_put_copies(pool):
    data = np.arange(1000.0)
    x = pool.put(data)
    data[...] = 0
    assert x.numpy()[999] == 999 and tn.loads(pool.dumps(x)).numpy()[999] == 999


def test_several_readers_do_not_see_each_others_writes(pool):
    torch = pytest.importorskip("torch")
    message = pool.dumps({"a": np.ones(5000), "t": torch.ones(5000)}, opens=3)

    def write():
        read = tn.loads(message)
        read["a"] += 1
        read["t"].mul_(5)
        return read["a"].sum() + float(read["t"].sum())

    assert in_child(write) == in_child(write) == 5000 * 7
    read = tn.loads(message)
    assert read["a"].sum() == 5000 and read["t"].sum() == 5000


def test_a_message_that_was_sent_on_is_not_opened_for_writing_again(pool):
    pixels = pool.put(np.ones(5 * MiB, "u1"))
    first = pool.dumps(pixels)
    second = pool.dumps(tn.loads(first))
    with pytest.raises(tn.MessageGone, match="opened"):
        tn.loads(first)
    assert tn.loads(second).nbytes == 5 * MiB

    def send_on(end):
        ours = tn.loads(message, writable=False)
        end.send_bytes(pool.dumps(ours, opens=None))
        end.recv()
        again = tn.loads(message)  # shares no memory with what was sent on
        again.numpy()[...] = 9
        end.send(True)
        end.recv()

    message = pool.dumps(pool.put(np.ones(5 * MiB, "u1")))
    here, there = fork.Pipe()
    process = fork.Process(target=send_on, args=(there,))
    process.start()
    read = tn.loads(here.recv_bytes(), writable=False)
    here.send(True)
    assert here.recv() and (np.asarray(read) == 1).all()
    here.send(True)
    process.join()


def test_readers_may_ask_for_read_only_arrays(pool):
    torch = pytest.importorskip("torch")
    message = pool.dumps({"a": np.ones(5000), "small": np.ones(3), "t": torch.ones(5000)}, opens=2)
    read = tn.loads(message, writable=False)
    for name in ("a", "small"):
        with pytest.raises(ValueError, match="read-only"):
            read[name][0] = 1
    small = pool.dumps([np.ones(3), {"x": np.arange(5)}], opens=None)  # nothing is in the pool
    assert tn.loads(small)[0].flags.writeable and not tn.loads(small, writable=False)[0].flags.writeable
    assert not tn.loads(pool.dumps(tn.zeros(3)), writable=False).numpy().flags.writeable
    read["t"].zero_()  # PyTorch has no read-only tensors: a copy
    assert tn.loads(message)["t"].sum() == 5000


def test_a_received_read_only_array_is_sent_on_without_a_copy(pool):
    frozen = pool.freeze(pool.put(np.ones(100_000)))
    message = pool.dumps(frozen, opens=2)

    def pass_on():
        own = tn.TensorPool("1 MiB", inline=0, linger=0)
        read = tn.loads(message, writable=False)
        sent = own.dumps(read, opens=None)
        used = own.stats()["used"]
        return used, tn.loads(sent, writable=False).numpy().sum()

    assert in_child(pass_on) == (0, 100_000)


# ------------------------------------------------------------------------------------------- lifetime


def test_memory_is_free_after_the_last_view_in_every_process(pool):
    message = pool.dumps({"x": np.ones(MiB)})
    assert pool.stats()["used"] >= 8 * MiB
    read = tn.loads(message)["x"]
    part = read[5:9]
    del read
    gc.collect()
    assert pool.stats()["used"] >= 8 * MiB
    assert part.sum() == 4
    del part
    await_true(lambda: pool.stats()["used"] == 0)


def test_a_message_is_opened_as_often_as_it_says(pool):
    message = pool.dumps(np.ones(5000), opens=2)

    def opened():
        first = tn.loads(message, writable=False)
        return first.sum() + tn.loads(message, writable=False).sum()  # the second one is free

    assert in_child(opened) == in_child(opened) == 10_000
    with pytest.raises(tn.MessageGone) as raised:
        tn.loads(message)
    assert raised.value.reason == "opened"
    copied = pickle.loads(pickle.dumps(raised.value))
    assert (type(copied), copied.reason, str(copied)) == (tn.MessageGone, "opened", str(raised.value))
    unlimited = pool.dumps(np.ones(5000), opens=None)
    for _ in range(4):
        in_child(tn.loads, unlimited)
    assert tn.loads(unlimited).sum() == 5000


def test_messages_are_revoked_by_tag(pool):
    kept = pool.dumps(np.ones(5000), tag="kept")
    opened = pool.dumps(np.ones(5000), tag=17, opens=2)
    read = tn.loads(opened)
    gone = [pool.dumps(np.ones(5000), tag=17) for _ in range(3)]
    assert pool.revoke(tag=17) == 4 and pool.revoke(tag=17) == 0
    for message in gone:
        with pytest.raises(tn.MessageGone) as raised:
            in_child(tn.loads, message)
        assert raised.value.reason == "revoked"
    assert read.sum() == 5000 and tn.loads(kept).sum() == 5000
    one = pool.dumps(np.ones(5000))
    assert pool.revoke(message=one) == 1 and pool.revoke(message=memoryview(one)) == 0
    del read
    await_true(lambda: pool.stats()["used"] == 0)


def test_a_deadline_ends_a_message(pool):
    message = pool.dumps(np.ones(5000), timeout=0.05)
    await_true(lambda: pool.stats()["used"] == 0)
    with pytest.raises(tn.MessageGone) as raised:
        tn.loads(message)
    assert raised.value.reason == "expired"
    short = tn.TensorPool("1 MiB", timeout=0.0, linger=0)
    with pytest.raises(tn.MessageGone):
        tn.loads(short.dumps({"x": 1}))
    assert tn.loads(short.dumps({"x": 1}, timeout=None)) == {"x": 1}


def test_a_message_ends_with_its_receivers(pool):
    child = subprocess.Popen(["sleep", "600"])
    message = pool.dumps(np.ones(5000), receivers=child.pid)
    other = pool.dumps(np.ones(5000), receivers=[child.pid, os.getpid()])
    child.kill()
    child.wait()
    await_true(lambda: pool.stats()["messages"] == 1)
    with pytest.raises(tn.MessageGone) as raised:
        tn.loads(message)
    assert raised.value.reason == "receivers gone"
    assert tn.loads(other).sum() == 5000


def test_a_receiver_that_has_ended_is_refused_and_named(pool):
    child = subprocess.Popen(["true"])
    child.wait()
    x = pool.empty(5000)
    for value in (1, {"x": x}):
        with pytest.raises(ProcessLookupError, match=f"no process {child.pid} "):
            pool.dumps(value, receivers=child.pid)
    assert tn.loads(pool.dumps(x, receivers=[os.getpid()])).shape == (5000,)  # it had stayed


def test_messages_outlive_the_pool_object():
    pool = tn.TensorPool("1 MiB", inline=0, linger=0)
    messages = [pool.dumps(np.ones(1000)), pool.dumps({"k": 1})]
    del pool
    gc.collect()
    assert tn.loads(messages[0]).sum() == 1000 and tn.loads(messages[1]) == {"k": 1}


def test_a_killed_sender_takes_what_nobody_has_opened():
    def send(pipe):
        pool = tn.TensorPool("4 MiB", inline=0, linger=0)
        pipe.send_bytes(pool.dumps(np.ones(5000)))
        pipe.send_bytes(pool.dumps(np.ones(5000)))
        signal.pause()

    here, there = fork.Pipe()
    child = fork.Process(target=send, args=(there,))
    child.start()
    read = tn.loads(here.recv_bytes())
    unopened = here.recv_bytes()
    os.kill(child.pid, signal.SIGKILL)
    child.join()

    def is_gone():
        try:
            in_child(tn.loads, unopened)
        except tn.MessageGone as error:
            return error.reason == "sender gone"

    await_true(is_gone)
    assert read.sum() == 5000


def test_a_killed_receiver_gives_its_memory_back(pool):
    message = pool.dumps(np.ones(5000))
    pid = os.fork()
    if pid == 0:
        read = tn.loads(message)
        os.kill(os.getpid(), signal.SIGKILL)
        os._exit(int(read[0]))
    os.waitpid(pid, 0)
    await_true(lambda: pool.stats()["used"] == 0)


SENDER = """
import sys, numpy as np, tenon as tn
pool = tn.TensorPool("4 MiB", inline=0, linger={linger})
sys.stdout.buffer.write(pool.dumps(np.ones(5000)))
sys.stdout.buffer.flush()
"""


def test_a_process_waits_at_its_end_for_messages_that_are_not_opened():
    child = subprocess.Popen(
        [sys.executable, "-c", SENDER.format(linger=SECONDS)], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    data = child.stdout.read(1)
    while len(data) < 56 or len(data) < 56 + sum(np.frombuffer(data[8:48], "u8")) + 16:
        data += child.stdout.read1()
    assert b"not opened" in child.stderr.readline()
    assert tn.loads(data).sum() == 5000
    assert child.wait(SECONDS) == 0


def test_a_process_does_not_wait_longer_than_it_says():
    command = [sys.executable, "-c", SENDER.format(linger=0)]
    done = subprocess.run(command, capture_output=True, timeout=SECONDS)
    assert done.returncode == 0 and b"are lost" in done.stderr
    with pytest.raises(tn.MessageGone) as raised:
        tn.loads(done.stdout)
    assert raised.value.reason == "sender gone"


def test_the_limit_of_a_process_that_keeps_a_message_is_not_that_of_a_living_sender(pool):
    message = pool.dumps(np.ones(5000), opens=None)
    core = _core.core_of_message(message)

    def keep():
        assert _core.take_over_message(core, 0.01)
        time.sleep(0.02)
        _core.linger_pools(0.0)  # it looks at what it keeps
        return tn.loads(message).sum()

    assert in_child(keep) == 5000
    assert tn.loads(message).sum() == 5000
    assert pool.revoke(message=message) == 1


def _send_and_end(queue):
    pool = tn.TensorPool("4 MiB", inline=0, linger=SECONDS)
    queue.put(pool.dumps({"x": np.ones(5000)}))
    queue.put(pool.dumps({"small": 1}))


@pytest.mark.parametrize("method", ["fork", pytest.param("spawn", marks=pytest.mark.slow)])
def test_a_child_of_multiprocessing_passes_its_messages_to_its_parent(method):
    context = multiprocessing.get_context(method)
    queue = context.Queue()
    child = context.Process(target=_send_and_end, args=(queue,))
    child.start()
    messages = [queue.get(), queue.get()]
    child.join(SECONDS)
    assert child.exitcode == 0
    assert tn.loads(messages[0])["x"].sum() == 5000 and tn.loads(messages[1]) == {"small": 1}


def test_the_parent_revokes_what_it_keeps_of_an_ended_child(pool):
    queue = fork.Queue()
    child = fork.Process(target=_send_and_end, args=(queue,))
    child.start()
    first, second = queue.get(), queue.get()
    child.join(SECONDS)
    assert pool.revoke(message=first) == 1 and pool.revoke(message=first) == 0
    with pytest.raises(tn.MessageGone) as raised:
        tn.loads(first)
    assert raised.value.reason in ("revoked", "sender gone")
    assert tn.loads(second) == {"small": 1}
    assert pool.revoke(message=second) == 0


def _send_small_and_end(queue):
    queue.put(tn.TensorPool("4 MiB", linger=SECONDS).dumps({"small": 1}))


def test_a_message_without_arrays_stays_with_the_parent():
    queue = fork.Queue()
    child = fork.Process(target=_send_small_and_end, args=(queue,))
    child.start()
    message = queue.get()
    child.join(SECONDS)
    time.sleep(1)  # the parent has looked at what it has open
    assert tn.loads(message) == {"small": 1}


def test_a_forked_child_gets_a_pool_of_its_own(pool):
    x = pool.empty(1000)
    x[...] = 3
    used = pool.stats()["used"]

    def use():
        assert pool.stats()["used"] == 0
        message = pool.dumps({"x": np.ones(5000), "parents": x})
        read = tn.loads(message)
        return read["x"].sum() + float(read["parents"].numpy().sum())

    assert in_child(use) == 8000
    assert pool.stats()["used"] == used and x.numpy().sum() == 3000


# ------------------------------------------------------------------------------------------- a full pool


def test_a_full_pool_raises_and_names_the_holders(pool):
    held = pool.empty(60 * MiB, "u1")
    with pytest.raises(MemoryError, match=str(os.getpid())):
        pool.dumps(np.zeros(MiB), when_full="raise")
    with pytest.raises(MemoryError):
        pool.empty(8 * MiB, "u1", when_full="raise")
    assert tn.loads(pool.dumps(np.ones(MiB), when_full="inline")).sum() == MiB
    assert pool.stats()["messages"] == 0 and held.nbytes
    with pytest.raises(MemoryError, match="the pool has"):
        pool.dumps(np.zeros(9 * MiB))  # no wait would help


def test_a_full_pool_waits_for_a_release(pool):
    held = [pool.empty(60 * MiB, "u1")]
    sent = []
    thread = threading.Thread(target=lambda: sent.append(pool.dumps(np.ones(MiB))))
    thread.start()
    await_true(lambda: pool.stats()["waiting"] == 1)
    held.clear()
    thread.join(SECONDS)
    assert tn.loads(sent[0]).sum() == MiB


def test_a_message_that_waits_for_room_delays_only_others_that_wait(pool):
    pixels = pool.empty(48 * MiB, "u1")
    sent = []
    thread = threading.Thread(target=lambda: sent.append(pool.dumps(np.ones(32 * MiB, "u1"))))
    thread.start()
    await_true(lambda: pool.stats()["waiting"] == 1)
    with pytest.raises(MemoryError, match="no room"):
        pool.dumps(np.ones(32 * MiB, "u1"), when_full="raise")
    assert (tn.loads(pool.dumps(np.ones(MiB, "u1"), when_full="raise")) == 1).all()
    assert tn.loads(pool.dumps(pixels)).nbytes == 48 * MiB  # its memory is free then
    gc.collect()
    thread.join()
    assert tn.loads(sent[0]).sum() == 32 * MiB


def test_a_message_that_never_fits_raises(pool):
    page = 4096
    arrays = [np.zeros(MiB + 1, "u1") for _ in range(64 * MiB // (MiB + page) + 1)]
    with pytest.raises(MemoryError, match="the pool has"):
        pool.dumps(arrays)
    with pytest.raises(MemoryError, match="the pool has"):
        pool.dumps([pool.empty(48 * MiB, "u1"), np.zeros(32 * MiB, "u1")])


def test_a_signal_handler_may_send_while_a_call_waits(pool):
    held, sent = [pool.empty(60 * MiB, "u1")], []

    def handle(*_):
        sent.append(pool.dumps(np.ones(5000), when_full="inline"))
        held.clear()

    before = signal.signal(signal.SIGALRM, handle)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        sent.append(pool.dumps(np.ones(MiB)))
    finally:
        signal.signal(signal.SIGALRM, before)
    assert [tn.loads(message).size for message in sent] == [5000, MiB]


def test_a_sender_waits_for_a_record_of_its_message(pool):
    messages = []
    with pytest.raises(MemoryError, match="have not ended"):
        for _ in range(100_000):
            messages.append(pool.dumps(None, when_full="raise"))
    waiting = []
    thread = threading.Thread(target=lambda: waiting.append(pool.dumps(None)))
    thread.start()
    time.sleep(0.01)
    tn.loads(messages.pop())
    thread.join(SECONDS)
    assert tn.loads(waiting[0]) is None


def test_asyncio_waits_for_room_without_blocking_the_loop(pool):
    async def main():
        held = [pool.empty(60 * MiB, "u1")]
        calls = pool.adumps(np.ones(MiB)), pool.aput(np.ones(MiB))
        waiting = [asyncio.create_task(call) for call in calls]
        for _ in range(10):
            await asyncio.sleep(0.002)  # the loop runs
        assert not any(task.done() for task in waiting)
        held.clear()
        message, array = await asyncio.gather(*waiting)
        with pytest.raises(MemoryError):
            await pool.adumps(np.ones(9 * MiB))
        return tn.loads(message).sum() + array.numpy().sum()

    assert asyncio.run(main()) == 2 * MiB


# --------------------------------------------------------------------------------------- hostile bytes


class _Evil:
    def __reduce__(self):
        return os.abort, ()


def test_nothing_is_unpickled_of_bytes_that_no_process_of_the_user_has_made(pool):
    good = pool.dumps(Labelled(x=1))
    pickled = pickle.dumps(_Evil(), 5)
    sizes = np.frombuffer(good[8:48], "u8").copy()
    begin = 56 + int(sizes[:3].sum())
    sizes[3] = len(pickled)
    forged = good[:8] + sizes.tobytes() + good[48:begin] + pickled + good[-16:]
    with pytest.raises(ValueError, match="was changed"):
        tn.loads(forged)
    with pytest.raises(ValueError, match="arrays_only"):
        tn.loads(good, arrays_only=True)
    assert tn.loads(good).x == 1


def test_changed_messages_give_an_error(pool):
    seed = random.randrange(2**32)
    print("seed", seed)
    rng = random.Random(seed)
    message = pool.dumps({"x": np.ones(5000), "y": Labelled(z=np.ones(3)), "w": [1, "a"]}, opens=None)
    cases = [message[:n] for n in range(len(message))] + [message + b"x", b"", b"x" * 100]
    for _ in range(3000):
        changed = bytearray(message)
        changed[rng.randrange(len(changed))] ^= 1 << rng.randrange(8)
        cases.append(bytes(changed))
    for data in cases:
        with pytest.raises((ValueError, FileNotFoundError, tn.MessageGone)):
            tn.loads(data)
    assert tn.loads(bytearray(message))["x"].sum() == 5000
    assert tn.loads(memoryview(message))["w"] == [1, "a"]


def test_handles_are_messages_of_one_array(pool):
    handle = pool.handle(np.arange(5000), opens=2, tag="x")
    assert tn.open(handle).sum() == 12_497_500
    assert in_child(lambda: tn.open(handle, writable=False).sum()) == 12_497_500
    with pytest.raises(TypeError, match="a handle is of an array"):
        pool.handle({"x": 1})
    with pytest.raises(TypeError, match="shared memory"):
        pool.handle(tn.zeros(5000, shared=True))


INVALID = {
    ValueError: [
        lambda pool: tn.TensorPool("8 XB"),
        lambda pool: tn.TensorPool("nan GiB"),
        lambda pool: tn.TensorPool("inf"),
        lambda pool: tn.TensorPool(-1),
        lambda pool: tn.TensorPool(1 << 20, when_full="never"),
        lambda pool: pool.dumps(1, opens=0),
        lambda pool: pool.dumps(1, timeout=-1),
        lambda pool: pool.dumps(1, receivers=[]),
        lambda pool: pool.dumps(1, tag=""),
        lambda pool: pool.dumps(1, when_full="never"),
    ],
    TypeError: [
        lambda pool: tn.TensorPool(1.5),
        lambda pool: pool.dumps(1, tag=1.5),
        lambda pool: pool.revoke(),
        lambda pool: pool.freeze(np.ones(3)),
        lambda pool: pickle.dumps(pool),
        lambda pool: tn.loads("text"),
        lambda pool: tn.loads(pool.dumps(1), writable=1),
    ],
    pickle.PicklingError: [lambda pool: pool.dumps(test_sizes_are_bytes_or_texts.__code__)],
}


@pytest.mark.parametrize("error", INVALID)
def test_invalid_arguments_are_refused(pool, error):
    for call in INVALID[error]:
        with pytest.raises((error, TypeError) if error is pickle.PicklingError else error):
            call(pool)


def test_sizes_are_bytes_or_texts():
    from tenon._ipc.pool import nbytes_from

    texts = {"8 GiB": 8 << 30, "512 MB": 512_000_000, "1.5 KiB": 1536, "7": 7, "64MiB": 64 << 20, "3 B": 3}
    assert {text: nbytes_from(text, "n") for text in texts} == texts


def test_a_core_dump_takes_no_memory_for_what_was_never_lent(pool):
    address = pool.empty(10, "u1").numpy().ctypes.data
    is_here = False
    with open("/proc/self/smaps") as lines:
        for line in lines:
            first, *rest = line.split()
            if not first.endswith(":"):
                begin, end = (int(part, 16) for part in first.split("-"))
                is_here = begin <= address < end
            elif is_here and first == "VmFlags:":
                assert "dd" in rest  # not dumped
                return
    raise AssertionError("the array is mapped nowhere")
