# SPDX-License-Identifier: Apache-2.0
"""Channels between real processes: items arrive complete, in order, as often as the mode says; only the items
of dead processes are lost."""

import asyncio
import copy
import gc
import inspect
import multiprocessing
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
import weakref
from pathlib import Path

import numpy as np
import pytest

import tenon as tn

SCHEMA = {"x": ("float32", (1000,)), "k": ("int64", ())}
SECONDS = 600

fork = multiprocessing.get_context("fork")


def put(channel, numbers):
    for number in numbers:
        with channel.loan(timeout=SECONDS) as item:
            item.x[...] = number
            item.k[...] = number


def send(channel, numbers):
    put(channel, numbers)
    channel.close()


def taken(channel, n):
    return [int(channel.recv(timeout=0).k.item()) for _ in range(n)]


def numbers_of(channel):
    """The numbers of all items until the channel has ended. Checks that each item is complete."""
    numbers = []
    for item in channel:
        values = item.x.numpy()
        number = int(item.k.item())
        assert (values == number).all()
        numbers.append(number)
        del values, item
    return numbers


def collect(channel, results):
    results.put(numbers_of(channel))


def started(target, *args, context=fork):
    process = context.Process(target=target, args=args, daemon=True)
    process.start()
    return process


def ended(process):
    process.join(SECONDS)
    assert process.exitcode == 0


@pytest.mark.slow
@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_items_arrive_whole_and_in_order(method):
    channel = tn.Channel(SCHEMA, slots=3)
    producer = started(send, channel, range(200), context=multiprocessing.get_context(method))
    assert numbers_of(channel) == list(range(200))
    ended(producer)
    assert channel.stats() | {"consumers": 0} == channel.stats() | {
        "sent": 200, "received": 200, "dropped": 0, "deaths": 0,
        "ready": 0, "in_use": 0, "producers": 0, "consumers": 0, "used": 0,
    }  # fmt: skip


def test_each_item_of_a_queue_goes_to_one_of_several_consumers_from_several_producers():
    channel = tn.Channel(SCHEMA, slots=8)
    results = fork.Queue()
    consumers = [started(collect, channel, results) for _ in range(3)]
    end = time.monotonic() + SECONDS
    while channel.stats()["consumers"] < 3 and time.monotonic() < end:
        time.sleep(0.01)
    put(channel, [1000])  # a producer until all have begun, so that no consumer sees an end before
    producers = [started(send, channel, range(100 * p, 100 * p + 100)) for p in range(2)]
    while channel.stats()["sent"] < 201 and time.monotonic() < end:
        time.sleep(0.01)
    channel.close()
    parts = [results.get(timeout=SECONDS) for _ in consumers]
    assert sorted(number for part in parts for number in part) == [*range(200), 1000]
    for process in producers + consumers:
        ended(process)


def test_each_consumer_of_a_broadcast_gets_every_item():
    channel = tn.Channel(SCHEMA, slots=4, mode="broadcast")
    results = fork.Queue()
    consumers = [started(collect, channel, results) for _ in range(2)]
    end = time.monotonic() + SECONDS
    while channel.stats()["consumers"] < 2 and time.monotonic() < end:
        time.sleep(0.01)
    send(channel, range(100))
    assert [results.get(timeout=SECONDS) for _ in consumers] == [list(range(100))] * 2
    for consumer in consumers:
        ended(consumer)


def test_a_broadcast_is_read_only_and_a_queue_s_item_is_writable():
    for mode, is_writable in (("queue", True), ("broadcast", False), ("latest", False)):
        channel = tn.Channel(SCHEMA, slots=4, mode=mode)
        put(channel, [7])
        item = channel.recv(timeout=SECONDS)
        x = item.x
        if is_writable:
            x[0] = 1
            assert x.tolist()[0] == 1
        else:
            assert not x.writable
            with pytest.raises((ValueError, BufferError), match="read-only"):
                x[0] = 1


def test_each_channel_object_that_receives_gets_every_item():
    channel = tn.Channel(SCHEMA, slots=3, mode="broadcast", when_full="raise")
    recorder, viewer = copy.deepcopy(channel), copy.deepcopy(channel)
    for consumer in (recorder, viewer):
        with pytest.raises(TimeoutError):
            consumer.recv(timeout=0)
    put(channel, range(2))
    kept = viewer.recv(timeout=0).x
    assert taken(recorder, 2) == [0, 1]
    put(channel, [2])
    with pytest.raises(tn.LeaseConflict):  # the viewer has item 0 in hand, and the others to receive
        channel.loan()
    assert kept.tolist() == [0] * 1000
    assert taken(viewer, 2) == [1, 2]
    assert taken(recorder, 1) == [2]


def test_whoever_asks_for_the_latest_gets_it_and_who_sends_never_waits():
    channel = tn.Channel(SCHEMA, slots=4, mode="latest", name="tenon.test.latest")
    reader = tn.Channel.attach("tenon.test.latest")
    kept = []
    for number in range(50):
        put(channel, [number])
        if number in (10, 30):
            kept.append(reader.recv(timeout=0).x)
    assert int(reader.recv(timeout=0).k.item()) == 49
    assert [x.tolist()[0] for x in kept] == [10, 30]  # slots in hand are not written
    with pytest.raises(TimeoutError):
        reader.recv(timeout=0.01)


def test_a_slot_is_not_written_while_any_view_of_its_item_lives():
    channel = tn.Channel(SCHEMA, slots=2, when_full="raise")
    put(channel, [1, 2])
    first = channel.recv(timeout=0)
    view = np.asarray(first.x)[10:]
    del first
    second = channel.recv(timeout=0)
    del second
    put(channel, [3])
    with pytest.raises(tn.LeaseConflict, match="all 2 slots"):
        channel.loan()
    assert (view == 1).all()
    del view
    channel.loan().drop()


def test_a_view_that_ends_lets_a_waiting_producer_go_on():
    channel = tn.Channel(SCHEMA, slots=1)
    put(channel, [1])
    view = np.asarray(channel.recv(timeout=0).x)
    done = []
    producer = threading.Thread(target=lambda: done.append(channel.loan(timeout=SECONDS)))
    producer.start()
    time.sleep(0.05)
    assert not done
    del view
    producer.join(SECONDS)
    assert len(done) == 1


def test_the_oldest_items_go_where_the_channel_says_so():
    channel = tn.Channel(SCHEMA, slots=3, when_full="drop_oldest")
    put(channel, range(10))
    assert taken(channel, 3) == [7, 8, 9]
    assert channel.stats()["dropped"] == 7


@pytest.mark.parametrize("check", ["", "fields"])
def test_what_was_not_written_is_no_item_of_another_sender(check, monkeypatch):
    """By default a field that was not used; with the check also the rest of a field."""
    monkeypatch.setenv("TENON_DEBUG", check)
    channel = tn.Channel(SCHEMA, slots=1)
    put(channel, [7])
    assert taken(channel, 1) == [7]
    with channel.loan() as item:
        item.k = 8
        if check:
            item.x[:3] = 1
    received = channel.recv(timeout=0)
    assert received.k.item() == 8
    assert received.x.tolist() == ([1] * 3 + [0] * 997 if check else [0] * 1000)


def test_an_exception_drops_the_item_and_so_does_a_view_that_lives_on():
    channel = tn.Channel(SCHEMA, slots=2)
    with pytest.raises(KeyError), channel.loan() as item:
        raise KeyError
    kept = []
    with pytest.raises(tn.LeaseEscaped, match="item 0 of list `kept`") as told, channel.loan() as item:
        kept.append(item.x[3:])
    assert f"still exists (taken at {__file__}:" in str(told.value)
    assert channel.stats()["sent"] == 0
    kept.clear()
    with pytest.raises(AttributeError, match="sent or dropped"):
        _ = item.x
    assert channel.stats()["in_use"] == 0


def lend_and_wait(channel, has_begun):
    loan = channel.loan()
    has_begun.set()
    time.sleep(3600)
    del loan


def test_a_killed_producer_loses_its_loan_and_consumers_are_told_once():
    channel = tn.Channel(SCHEMA, slots=2)
    has_begun = fork.Event()
    producer = started(lend_and_wait, channel, has_begun)
    assert has_begun.wait(SECONDS)
    raised = []

    def receive():
        try:
            channel.recv(timeout=SECONDS)
        except tn.OwnerDied as error:
            raised.append(error)

    consumer = threading.Thread(target=receive)
    consumer.start()
    time.sleep(0.05)
    os.kill(producer.pid, signal.SIGKILL)
    consumer.join(SECONDS)
    producer.join(SECONDS)
    assert [error.pid for error in raised] == [producer.pid]
    put(channel, [1, 2])  # both slots are there
    assert taken(channel, 2) == [1, 2]
    assert channel.stats()["deaths"] == 1


def answer(requests, replies, end):
    requests.recv(timeout=SECONDS)
    if end == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    if end == "raises":
        raise KeyError
    if end == "replies":
        with replies.loan() as item:
            item.k = 1


@pytest.mark.parametrize(
    ("end", "wanted"),
    [("killed", tn.OwnerDied), ("raises", tn.OwnerDied), ("returns", TimeoutError), ("replies", EOFError)],
)
@pytest.mark.parametrize("method", ["fork", pytest.param("spawn", marks=pytest.mark.slow)])
def test_a_client_is_told_how_its_server_has_ended(end, wanted, method):
    """Also if it ends after it has got its first request, and before its first reply. A normal end closes."""
    requests, replies = tn.Channel(SCHEMA), tn.Channel(SCHEMA)
    server = started(answer, requests, replies, end, context=multiprocessing.get_context(method))
    put(requests, [1])
    server.join(SECONDS)
    if end == "replies":
        assert replies.recv(timeout=SECONDS).k.item() == 1
    with pytest.raises(wanted) as told:
        replies.recv(timeout=0)
    if wanted is tn.OwnerDied:
        assert told.value.pid == server.pid
    with pytest.raises(TimeoutError):
        replies.recv(timeout=0)


@pytest.mark.parametrize(
    ("end", "wanted"), [("pass", EOFError), ("raise KeyboardInterrupt", EOFError), ("1 / 0", tn.OwnerDied)]
)
def test_a_program_that_ends_normally_closes_its_channels(end, wanted, name):
    channel = tn.Channel(SCHEMA, name=name)
    program = f"import tenon as tn; c = tn.Channel.attach({name!r}); c.loan().send(); kept = c.loan(); {end}"
    subprocess.run([sys.executable, "-c", program], stderr=subprocess.DEVNULL, check=False)
    assert channel.recv(timeout=0).k.item() == 0
    with pytest.raises(wanted):
        channel.recv(timeout=0)


def test_a_thread_that_waits_for_a_slot_at_the_normal_end_is_no_death(name):
    channel = tn.Channel(SCHEMA, slots=1, name=name)
    program = f"""
import threading, time, tenon as tn
c = tn.Channel.attach({name!r})
c.loan().send()
threading.Thread(target=c.loan, daemon=True).start()
time.sleep(0.1)
"""
    subprocess.run([sys.executable, "-c", program], stderr=subprocess.DEVNULL, check=True)
    assert channel.recv(timeout=0).k.item() == 0
    with pytest.raises(EOFError):
        channel.recv(timeout=0)


def send_in_a_thread(channel, may_send):
    def send():
        may_send.wait(SECONDS)
        put(channel, range(3))

    threading.Thread(target=send).start()


def test_a_process_closes_its_channels_after_its_threads():
    channel, may_send = tn.Channel(SCHEMA), fork.Event()
    process = started(send_in_a_thread, channel, may_send)
    with pytest.raises(TimeoutError):
        channel.recv(timeout=0.1)
    may_send.set()
    process.join(SECONDS)
    assert [item.k.item() for item in channel] == [0, 1, 2]


def take_and_wait(channel, has_begun):
    item = channel.recv(timeout=SECONDS)
    has_begun.set()
    time.sleep(3600)
    del item


def test_a_killed_consumer_loses_what_it_held_and_nothing_else():
    channel = tn.Channel(SCHEMA, slots=2)
    has_begun = fork.Event()
    consumer = started(take_and_wait, channel, has_begun)
    put(channel, [1, 2])
    assert has_begun.wait(SECONDS)
    os.kill(consumer.pid, signal.SIGKILL)
    consumer.join(SECONDS)
    put(channel, [3])  # its slot is free
    assert taken(channel, 2) == [2, 3]


def test_a_loop_waits_for_items_and_a_cancelled_task_takes_none():
    channel = tn.Channel(SCHEMA, slots=4)

    async def program():
        async def all_numbers():
            return [int(item.k.item()) async for item in channel]

        waiting = asyncio.create_task(channel.arecv())
        await asyncio.sleep(0.05)
        waiting.cancel()
        task = asyncio.create_task(all_numbers())
        await asyncio.sleep(0)
        producer = started(send, channel, range(20))
        numbers = await asyncio.wait_for(task, SECONDS)
        ended(producer)
        return numbers

    assert asyncio.run(program()) == list(range(20))


def test_a_loop_does_not_hold_an_item_that_its_body_has_deleted():
    channel = tn.Channel(SCHEMA, slots=2)
    put(channel, range(2))
    for item in channel:
        del item
        assert channel.stats()["in_use"] == 0
        break

    async def program():
        async for item in channel:
            del item
            assert channel.stats()["in_use"] == 0
            break

    asyncio.run(program())


def test_other_tasks_run_while_items_and_slots_are_ready():
    channel = tn.Channel(SCHEMA, slots=2)
    opened_again = copy.deepcopy(channel)

    async def program():
        async def trips():
            while True:
                with await channel.aloan() as item:
                    item.k = 1
                await opened_again.arecv()

        await asyncio.wait_for(trips(), 0.02)

    with pytest.raises(asyncio.TimeoutError):
        asyncio.run(program())


class Interrupted(Exception):
    pass


def interrupt(*_):
    raise Interrupted


@pytest.mark.parametrize("mode", ["queue", "broadcast", "latest"])
def test_a_signal_that_comes_with_an_item_leaves_it(mode):
    """It comes while this thread has the item, and waits for the GIL to return it."""
    before = signal.signal(signal.SIGUSR1, interrupt)
    try:
        assert any(is_interrupted_with_an_item(mode) for _ in range(50))
    finally:
        signal.signal(signal.SIGUSR1, before)


def is_interrupted_with_an_item(mode):
    """Checks that the item is left. False: the signal could not be sent in time, and the item came."""
    channel = tn.Channel(SCHEMA, slots=4, mode=mode)
    main = threading.main_thread()

    def send_and_interrupt():
        asleep = 0
        while asleep < 5:
            time.sleep(0.01)
            asleep = asleep + 1 if is_asleep(main) else 0
        interval = sys.getswitchinterval()
        sys.setswitchinterval(SECONDS)  # from here on, this thread keeps the GIL
        put(channel, [7])
        end = time.monotonic() + 0.1  # the other thread may need the GIL before it receives
        while channel.stats()["received"] == 0 and time.monotonic() < end:
            pass
        if channel.stats()["received"] == 1:
            signal.pthread_kill(main.ident, signal.SIGUSR1)
        sys.setswitchinterval(interval)

    thread = threading.Thread(target=send_and_interrupt)
    thread.start()
    try:
        item = channel.recv(timeout=SECONDS)
        assert item.k == 7
        return False
    except Interrupted:
        assert channel.stats()["in_use"] == 0
        assert taken(channel, 1) == [7]
        return True
    finally:
        thread.join(SECONDS)


def test_an_item_that_code_has_seen_is_received_once():
    """Of a call that fails after `recv` has returned."""
    channel = tn.Channel(SCHEMA, slots=4)
    put(channel, range(3))
    with pytest.raises(TypeError):
        int(channel.recv(timeout=0))
    with pytest.raises(ZeroDivisionError):
        (channel.recv(timeout=0).k, 1 / 0)
    assert taken(channel, 1) == [2]


def is_asleep(thread):
    return Path(f"/proc/self/task/{thread.native_id}/stat").read_text().rpartition(")")[2].split()[0] == "S"


def test_the_end_is_told_to_each_thread_that_waits():
    channel = tn.Channel(SCHEMA, slots=4)
    opened_again = copy.deepcopy(channel)
    threads = [threading.Thread(target=lambda: list(opened_again), daemon=True) for _ in range(3)]
    for thread in threads:
        thread.start()
    channel.loan().drop()
    asleep = 0  # how often all were seen asleep; this thread lets go of the GIL, so they wait for an item
    while asleep < 5:
        time.sleep(0.01)
        asleep = asleep + 1 if all(is_asleep(thread) for thread in threads) else 0
    channel.close()
    for thread in threads:
        thread.join(SECONDS)
        assert not thread.is_alive()


def test_a_loan_of_a_closed_channel_is_not_sent():
    channel = tn.Channel(SCHEMA, slots=2)
    opened_again = copy.deepcopy(channel)
    loan = channel.loan()
    channel.close()
    assert list(opened_again) == []
    with pytest.raises(ValueError, match="was closed here before the item was sent"):
        loan.send()
    loan.drop()


def test_a_process_whose_name_is_no_utf_8_is_named(name, other):
    """The kernel cuts names after 15 bytes, also within a character."""
    channel = tn.Channel(SCHEMA, slots=2, name=name)
    other.ask(
        r"open('/proc/self/comm', 'wb').write('\u00e9\u00e9\u00e9\u00e9\u00e9\u00e9\u00e9\u00e9'.encode())"
    )
    other.ask("channel = tn.Channel.attach(name); channel.loan().drop()", name=name)
    other.stop()
    with pytest.raises(TimeoutError, match=r"\(\u00e9{7}\?\), which is stopped"):
        channel.recv(timeout=0.1)
    other.go_on()


def test_a_pickled_channel_is_the_same_one():
    channel = tn.Channel(tn.schema(data=("f4", (4, 2)), label=("i8", (4,))), slots=2)
    again = pickle.loads(pickle.dumps(channel))
    with channel.loan() as item:
        item.data[...] = 2
        item.label[...] = 3
    received = again.recv(timeout=0)
    assert received.sequence == 1
    assert received.data.tolist() == [[2.0, 2.0]] * 4
    assert received["label"].tolist() == [3] * 4
    assert again.schema == channel.schema
    assert (again.slots, again.mode, again.when_full) == (2, "queue", "wait")


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"slots": 0}, "slots is 0: it must lie between 1 and 4095"),
        ({"slots": 5000}, "4095"),
        ({"mode": "stack"}, "stack"),
        ({"when_full": "burn"}, "burn"),
        ({"mode": "latest", "slots": 2}, "at least 3"),
        ({"schema": {}}, "at least one field"),
        ({"schema": {"x": ("f4", (-1,))}}, "-1"),
        ({"name": "a/b"}, "a/b"),
    ],
)
def test_what_cannot_work_is_refused(arguments, text):
    with pytest.raises(ValueError, match=text):
        tn.Channel(**({"schema": SCHEMA} | arguments))


def test_a_timeout_says_which_slots_are_in_use():
    channel = tn.Channel(SCHEMA, slots=2)
    loans = [channel.loan(), channel.loan()]
    with pytest.raises(TimeoutError) as told:
        channel.loan(timeout=0.01)
    assert " in the time given (0.01 s): 2 of 2 slots in use, 0 items, 1 producer and 0 c" in str(told.value)
    for loan in loans:
        loan.drop()


def test_the_end_of_a_channel_is_no_other_error():
    channel = tn.Channel(SCHEMA, slots=2)
    with pytest.raises(ValueError, match="timeout is -1: it must not be negative"):
        channel.recv(timeout=-1)
    channel.close()
    with pytest.raises(EOFError):
        channel.recv()


def test_what_is_no_channel_is_refused():
    array = tn.zeros((4096,), dtype="uint8", shared="tenon.test.array")
    with pytest.raises(ValueError, match="no channel"):
        tn.Channel.attach("tenon.test.array")
    del array
    with pytest.raises(FileNotFoundError):
        tn.Channel.attach("tenon.test.nothing")


def test_a_trip_runs_few_functions_of_python():
    """Each takes a tenth of a microsecond, and the whole trip of a small item less than ten."""
    channel = tn.Channel({"x": ("i8", (1,))})

    def trip():
        with channel.loan() as item:
            item.x[0] = 7
        received = channel.recv(timeout=0)
        value = received.x.numpy()[0]
        received.release()
        return value

    called = []

    def note(frame, event, _):
        if event == "call" and frame.f_code is not trip.__code__:
            called.append(frame.f_code.co_qualname)

    assert trip() == 7
    sys.setprofile(note)
    try:
        trip()
    finally:
        sys.setprofile(None)
    channel.close()
    assert 0 < len(called) <= 7, called


def test_fields_of_an_item_are_the_same_array_each_time_and_none_after_its_end():
    with tn.Channel({"x": ("i8", (1,)), "y": ("i8", (1,))}) as channel:
        with channel.loan() as item:
            assert item.x is item.x is item["x"] and item.x is not item.y
            kept = item.y
        assert kept.size == 0
        with pytest.raises(AttributeError, match="no field 'x' any more: it was sent or dropped"):
            item.x  # noqa: B018
        with pytest.raises(KeyError, match="no field 'x' any more"):
            item["x"]
        received = channel.recv()
        assert received.x is received.x is received["x"] and received.x is not received.y
        assert (type(item).__name__, isinstance(item, type(channel.loan(0)))) == ("Loan", True)


def test_calls_take_the_arguments_that_their_signatures_say():
    with tn.Channel({"x": ("i8", (1,))}) as channel:
        assert (
            str(inspect.signature(channel.loan)) == str(inspect.signature(channel.recv)) == "(timeout=None)"
        )
        for call in (channel.loan, channel.recv):
            for arguments, named in [
                ((0, 0), {}),
                ((0,), {"timeout": 0}),
                ((), {"time": 0}),
                (("soon",), {}),
            ]:
                with pytest.raises(TypeError):
                    call(*arguments, **named)
            with pytest.raises(ValueError, match="timeout is -1"):
                call(-1)
        channel.loan().send()
        assert channel.recv(0).sequence == 1
        for _ in range(2):
            with pytest.raises(TimeoutError, match="no item is ready"):
                channel.recv(timeout=0)


def test_a_channel_is_opened_once():
    with pytest.raises(ValueError, match="the channel is not open"):
        object.__new__(tn.Channel).recv(0)
    with tn.Channel({"x": ("i8", (1,))}) as channel:
        with pytest.raises(RuntimeError, match="make another one"):
            channel.__init__({"y": ("i8", (2,))})
        channel.loan().send()
        assert (list(channel.schema), channel.stats()["sent"]) == (["x"], 1)
        with pytest.raises(TypeError, match="is not derived from NativeItem"):
            object.__new__(tn.Channel)._open_calls(channel._native, int, int, False)


def test_copies_of_a_channel_are_openings_of_it():
    with tn.Channel({"x": ("i8", (1,))}) as channel:
        for copied in (copy.copy(channel), copy.deepcopy(channel)):
            with copied.loan() as item:
                item.x[...] = 7
            assert channel.recv(0).x.item() == 7


def test_a_channel_in_a_cycle_with_its_items_is_collected():
    channel = tn.Channel({"x": ("i8", (1,))})
    other = copy.copy(channel)
    type(channel.loan()).channel = channel
    assert other.stats()["producers"] == 1
    del channel
    gc.collect()
    assert other.stats()["producers"] == 0


@pytest.mark.parametrize("end", ["drop", "send"])
def test_a_callback_may_end_the_item_that_is_being_sent(end):
    with tn.Channel({"x": ("f4", (2, 3)), "k": ("i8", ()), "y": ("f4", (4,))}) as channel:
        item, found = channel.loan(), []

        def end_it(_):
            with pytest.raises(KeyError, match="sent or dropped"):
                item["y"]
            try:
                getattr(item, end)()
            except tn.LeaseEscaped:  # from send: the other views still exist
                found.append(end)

        watching = weakref.ref(item.x, end_it)
        item.k[...], item.y[...] = 1, 2
        with pytest.raises(ValueError, match="was sent or released before"):
            item.send()
        assert (watching(), found) == (None, ["send"] if end == "send" else [])
        assert (channel.stats()["sent"], channel.stats()["in_use"]) == (0, 0)


@pytest.mark.parametrize("mode", ["queue", "broadcast", "latest"])
def test_an_item_whose_object_cannot_be_made_is_received_again(mode):
    memory = pytest.importorskip("_testcapi")  # a module of CPython's tests
    with tn.Channel({"x": ("i8", (1,))}, slots=3, mode=mode, when_full="keep") as channel:
        failed = 0
        for number in range(20):
            with channel.loan() as item:
                item.x[...] = number
            memory.set_nomemory(number, number + 1)  # this allocation fails
            try:
                received = channel.recv(0)
            except MemoryError:
                failed += 1
                memory.remove_mem_hooks()
                received = channel.recv(0)
            memory.remove_mem_hooks()
            assert received.x.item() == number
        assert failed > 0


def test_only_channels_make_items():
    with tn.Channel({"x": ("i8", (1,))}) as channel:
        with channel.loan() as loan:
            loan.x[...] = 1
        received = channel.recv()
        for item in (loan, received):
            for make in (
                type(item),
                lambda item=item: object.__new__(type(item)),
                lambda item=item: copy.copy(item),
            ):
                with pytest.raises(TypeError):
                    make()
        assert channel.stats()["in_use"] == 1, "the received item has it"
        assert (weakref.ref(received)(), int(received.x.item())) == (received, 1)


def test_a_field_may_be_asked_for_while_the_item_lets_go_of_it():
    with tn.Channel({"x": ("f4", (4,))}) as channel:
        with channel.loan() as item:
            item.x[...] = 1
        received, again = channel.recv(), []
        reference = weakref.ref(received.x, lambda _: again.append(received.x))
        received.release()
        assert reference() is None and again[0].tolist() == [1] * 4
        kept = [tn.zeros(4) for _ in range(10)]  # in memory that was freed
        assert again[0].tolist() == [1] * 4 and sum(map(sum, kept)) == 0


def test_leases_and_ops_of_a_received_item_take_turns():
    with tn.Channel({"x": ("f4", (4,)), "y": ("f4", (4,))}, slots=1) as channel:
        with channel.loan() as item:
            item.x[...], item.y[...] = 3, 0
        received = channel.recv()
        with received.x.write() as x:
            op = tn.push(np.add, received.x, 5, out=tn.write(received.y))
            x[...] = 5
        op.wait()
        assert received.y.tolist() == [10] * 4


def test_a_received_item_of_which_an_op_failed_does_not_spoil_its_slot():
    def fail():
        raise RuntimeError("no data")

    with tn.Channel({"x": ("f4", (4,))}, slots=1) as channel:
        for n in range(3):
            with channel.loan() as item:
                item.x[...] = n
            received = channel.recv()
            assert received.x.tolist() == [n] * 4
            with pytest.raises(tn.OpError, match="no data"):
                tn.push(fail, writes=[received.x]).wait()
            with pytest.raises(tn.OpError, match="no data"):
                received.x.tolist()
            del received
