# SPDX-License-Identifier: Apache-2.0
"""Channels of objects: what is sent arrives, items share one budget of memory, and neither a kill nor a stop
loses what was sent or wedges the others."""

import asyncio
import copy
import gc
import multiprocessing
import os
import pickle
import queue
import signal
import threading
import time
import uuid

import numpy as np
import pytest
from other_process import Other

import tenon as tn

SECONDS = 600
MIB = 1 << 20

fork = multiprocessing.get_context("fork")


@pytest.fixture
def name():
    return f"objects-{uuid.uuid4()}"


@pytest.fixture
def channel():
    with tn.Channel(nbytes="8 MiB", slots=8) as channel:
        yield channel
    gc.collect()


def in_use(channel):
    gc.collect()
    return channel.stats()["in_use"]


def await_true(condition):
    end = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.005)


# ------------------------------------------------------------------------------------------ what is sent


def test_any_objects_pass_in_order(channel):
    objects = [None, 5, "text", {"a": [1, 2.5], "b": (b"x", {3})}, ValueError("x"), np.arange(5), range(3)]
    for one in objects:
        channel.send(one)
    assert channel.qsize() == len(objects)
    for one in objects:
        assert repr(channel.recv(timeout=0)) == repr(one)
    with pytest.raises(TimeoutError, match=r"nothing to receive|no item"):
        channel.recv(timeout=0)


@pytest.mark.parametrize("n", [1, 10, 1000, 100_000, 500_000])
def test_an_array_arrives_whole_wherever_it_lies(channel, n):
    x = np.arange(n, dtype="f8")
    channel.send({"x": x, "n": n})
    got = channel.recv(timeout=0)
    assert got["n"] == n and (got["x"] == x).all()
    assert got["x"].flags.writeable and got["x"].ctypes.data % 64 == 0


def test_a_small_object_does_not_keep_its_slot(channel):
    channel.send({"x": np.zeros(100), "y": [np.zeros(50, object)]})
    got = channel.recv(timeout=0)
    assert in_use(channel) == 0 and got["x"].shape == (100,)


def test_a_large_array_keeps_the_slot_until_its_last_view_is_gone(channel):
    channel.send({"x": np.zeros(MIB, "u1"), "y": np.ones(MIB, "u1")})
    got = channel.recv(timeout=0)
    part = got["y"][5:]
    assert in_use(channel) == 1
    del got
    assert in_use(channel) == 1 and part.sum() == MIB - 5
    del part
    assert in_use(channel) == 0


def test_a_copy_frees_the_slot_at_once(channel):
    channel.send(np.arange(MIB, dtype="u1"))
    got = channel.recv(timeout=0, copy=True)
    assert in_use(channel) == 0 and got.flags.writeable and got[300] == 300 % 256


def test_the_elements_of_a_received_array_do_not_change(channel):
    rng = np.random.default_rng(3)
    kept = []
    for number in range(200):
        size = int(rng.integers(1, MIB))
        channel.send((number, np.full(size, number % 256, "u1")), timeout=SECONDS)
        kept.append(channel.recv(timeout=SECONDS))
        while sum(x.nbytes for _, x in kept) > 5 * MIB or len(kept) > 6:
            kept.pop(int(rng.integers(len(kept))))
        for sent, x in kept:
            assert (x == sent % 256).all()


@pytest.mark.parametrize("mode", ["broadcast", "latest"])
def test_objects_for_several_consumers_are_read_only(mode):
    with tn.Channel(nbytes="8 MiB", slots=4, mode=mode, when_full="keep") as channel:
        others = [copy.copy(channel) for _ in range(2)]
        for other in others:  # a consumer from now on
            with pytest.raises(TimeoutError):
                other.recv(timeout=0)
        channel.send({"x": np.arange(100_000), "small": np.arange(3)})
        for other in others:
            got = other.recv(timeout=0)
            assert not got["x"].flags.writeable and got["x"][-1] == 99_999
        channel.send({"x": np.arange(100_000)})
        for other in others:
            copied = other.recv(timeout=0, copy=True)
            assert copied["x"].flags.writeable
        for other in others:
            other.close()


# ------------------------------------------------------------------------------------------ memory


def test_items_wait_for_bytes_and_for_slots(channel):
    channel.send(np.zeros(5 * MIB, "u1"))
    with pytest.raises(TimeoutError, match=r"of 8388608 bytes in use"):
        channel.send(np.zeros(4 * MIB, "u1"), timeout=0.01)
    channel.send(np.zeros(2 * MIB, "u1"), timeout=0)
    assert channel.recv(timeout=0).nbytes == 5 * MIB
    gc.collect()
    channel.send(np.zeros(4 * MIB, "u1"), timeout=0)
    for _ in range(6):
        channel.send(1, timeout=0)
    with pytest.raises(TimeoutError, match=r"8 of 8 slots|no slot"):
        channel.send(2, timeout=0)
    assert channel.full()


def test_an_item_that_can_never_fit_is_refused_at_once():
    with tn.Channel(nbytes="8 MiB", largest="1 MiB", slots=4) as channel:
        assert (channel.nbytes, channel.largest) == (8 * MIB, MIB)
        with pytest.raises(ValueError, match="larger than the largest"):
            channel.send(np.zeros(MIB, "u1"))
        channel.send(np.zeros(MIB - 8192, "u1"))
        assert channel.recv(timeout=0).nbytes == MIB - 8192


# ------------------------------------------------------------------------------------------ queue.Queue


def test_the_names_of_queues_raise_what_queues_raise():
    with tn.Channel(nbytes="1 MiB", slots=2) as channel:
        assert channel.empty() and not channel.full() and channel.maxsize == 2
        with pytest.raises(queue.Empty):
            channel.get_nowait()
        with pytest.raises(queue.Empty):
            channel.get(timeout=0.01)
        channel.put("a")
        channel.put_nowait("b")
        assert channel.full() and channel.qsize() == 2
        for call in (lambda: channel.put_nowait("c"), lambda: channel.put("c", timeout=0.01)):
            with pytest.raises(queue.Full):
                call()
        assert channel.get() == "a" and channel.get(timeout=1) == "b"
        other = copy.copy(channel)
        channel.put("last")
        channel.close()
        assert other.get() == "last"
        with pytest.raises(EOFError):
            other.get()
        other.close()


def test_a_channel_that_raises_when_it_is_full_raises_full():
    with tn.Channel(nbytes="1 MiB", slots=1, when_full="raise") as channel:
        channel.put(1)
        with pytest.raises(queue.Full):
            channel.put(2)
        with pytest.raises(tn.LeaseConflict, match="no room"):
            channel.send(2)


def test_channels_with_a_schema_have_the_same_names():
    with tn.Channel({"x": ("i8", (3,)), "k": ("i8", ())}, slots=2) as channel:
        channel.put({"x": [1, 2, 3], "k": 4})
        got = channel.get()
        assert got.x.tolist() == [1, 2, 3] and got.k.item() == 4
        with pytest.raises(ValueError, match="field 'k' is missing"):
            channel.send({"x": [1, 2, 3]})
        with pytest.raises(ValueError, match="'z' is no field"):
            channel.send({"x": [1, 2, 3], "k": 4, "z": 5})
        del got
        channel.send({"x": 0, "k": 0})
        channel.send({"x": 0, "k": 0})
        with pytest.raises(queue.Full):
            channel.put({"x": 0, "k": 0}, block=False)


# ------------------------------------------------------------------------------------------ loans


def test_arrays_of_a_loan_are_sent_in_place(channel):
    with channel.loan() as item:
        x = item.empty((300, 1000), "f4")
        y = item.empty(5, "i8")
        x.numpy()[...] = 7
        y.numpy()[...] = range(5)
        address = x.data_ptr
        item.send({"x": x, "y": y, "copied": np.arange(10_000)})
    got = channel.recv(timeout=0)
    assert type(got["x"]) is tn.NDArray and got["x"].data_ptr == address
    assert got["x"].shape == (300, 1000) and (got["x"].numpy() == 7).all()
    assert got["y"].tolist() == [0, 1, 2, 3, 4] and got["copied"][-1] == 9999
    with pytest.raises((tn.LeaseConflict, ValueError)):
        x.numpy()


def test_a_loan_that_is_not_sent_is_dropped(channel):
    with channel.loan() as item:
        item.empty(MIB, "u1")
    with pytest.raises(ValueError, match="sent or dropped"):
        item.empty(1)
    assert in_use(channel) == 0 and channel.empty()
    with pytest.raises(RuntimeError), channel.loan() as item:
        item.empty(1)
        raise RuntimeError
    assert in_use(channel) == 0


def test_an_array_of_a_loan_does_not_wait_for_room(channel):
    channel.send(np.zeros(4 * MIB, "u1"))
    with channel.loan() as item:
        x = item.empty(2 * MIB, "u1")
        with pytest.raises(MemoryError, match="no room"):
            item.empty(4 * MIB, "u1")
        item.send(x)
    assert channel.recv(timeout=0).nbytes == 4 * MIB


def test_a_view_that_is_kept_keeps_the_loan_from_being_sent(channel):
    with channel.loan() as item:
        view = item.empty(1000).numpy()
        with pytest.raises(tn.LeaseEscaped):
            item.send("x")
    assert channel.empty()
    del view
    assert in_use(channel) == 0


# ------------------------------------------------------------------------------------------ errors


class Unreadable:
    def __init__(self, error):
        self.error = error

    def __reduce__(self):
        return _fail, (self.error,)


def _fail(error):
    raise error


def test_an_object_that_cannot_be_pickled_takes_no_slot(channel):
    with pytest.raises((TypeError, AttributeError, pickle.PicklingError)):
        channel.send(lambda: 1)
    assert channel.stats()["sent"] == 0 and in_use(channel) == 0


def test_an_object_that_cannot_be_read_is_lost(channel):
    channel.send(Unreadable(LookupError("class")))
    channel.send("next")
    with pytest.raises(LookupError):
        channel.recv(timeout=0)
    assert channel.recv(timeout=0) == "next" and in_use(channel) == 0


def test_an_error_that_is_kept_does_not_keep_the_object_that_cannot_be_read(channel):
    errors = []
    for _ in range(channel.slots + 1):
        channel.send([np.zeros(100_000), Unreadable(LookupError("class"))], timeout=0)
        with pytest.raises(LookupError) as caught:
            channel.recv(timeout=0)
        errors.append(caught.value)


@pytest.mark.parametrize("n", [1, 100_000])
def test_an_interrupt_while_an_object_is_read_puts_it_back(channel, n):
    channel.send([np.arange(n), Unreadable(KeyboardInterrupt())])
    for _ in range(3):
        with pytest.raises(KeyboardInterrupt):
            channel.recv(timeout=0)
        gc.collect()
        assert channel.qsize() == 1


class Stop(BaseException):
    pass


@pytest.mark.parametrize("nbytes", [1, 20_000])
@pytest.mark.parametrize("method", ["recv", "get"])
def test_an_interrupt_that_comes_with_an_object_leaves_it(channel, method, nbytes):
    is_armed = [False]

    def interrupt(*_):
        if is_armed[0]:
            raise Stop

    receive = getattr(channel, method)
    got, stops = [], 0
    numbers = range(1, 5001 if nbytes == 1 else 1501)
    content = np.ones(nbytes, "u1")
    channel.send([0, content]), channel.recv()  # imports
    before = signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, *((0.0005, 0.00037) if nbytes == 1 else (0.003, 0.0011)))
    try:
        for number in numbers:
            channel.send([number, content])
            value = None
            while value is None:
                try:
                    is_armed[0] = True
                    try:
                        value = receive(timeout=0)
                    finally:
                        is_armed[0] = False
                except Stop:
                    stops += 1
                except (TimeoutError, queue.Empty):
                    break
            got.append(value and value[0])
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert got == list(numbers) and stops > 0


def test_an_item_is_sent_on_and_wrong_fields_take_no_slot():
    with tn.Channel({"x": ("f4", np.int64(3)), "k": ("i8", ())}, slots=1) as first, copy.copy(first) as same:
        first.send({"x": 5, "k": 7})
        with pytest.raises(ValueError, match="'k' is missing"):
            first.put_nowait({"x": 1})
        with pytest.raises(ValueError, match="'z' is no field"):
            first.put_nowait({"x": 1, "k": 2, "z": 3})
        with tn.Channel({"k": ("i8", ()), "x": ("f4", 3)}, slots=1) as second:
            second.send(same.get_nowait())
            item = second.recv(timeout=0)
            assert (item.x.tolist(), int(item.k)) == ([5, 5, 5], 7)


def test_a_loan_that_is_dropped_frees_its_slot_although_its_arrays_exist(channel):
    for _ in range(3):
        with channel.loan() as item:
            x = item.empty(6 * MIB, "u1")  # of which there is room for one
    with pytest.raises(tn.LeaseConflict):
        x.numpy()
    assert channel.stats()["in_use"] == 0


def test_a_loan_with_more_memory_than_its_object_leaves_the_rest_to_others(channel):
    with channel.loan(nbytes=6 * MIB) as item:
        item.send("small")
    channel.send(np.zeros(6 * MIB, "u1"), timeout=0)
    assert channel.recv() == "small"


def test_a_tensor_that_shrinks_while_it_is_sent_is_an_error(channel):
    torch = pytest.importorskip("torch")
    from tenon._ipc.objects import Writer

    for tensor in (torch.ones(100_000, dtype=torch.uint8), torch.ones(1000, 100)[:, ::2]):
        writer = Writer(tensor, 1)
        tensor.untyped_storage().resize_(0)
        with pytest.raises(ValueError, match="became smaller"):
            channel._send_written(writer, 0)
    assert in_use(channel) == 0


def test_a_forked_child_that_has_inherited_a_view_waits_for_bytes(channel):
    channel.send(np.zeros(MIB, "u1"))
    got = channel.recv()
    ends = os.pipe()
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            os.read(ends[0], 1)
            channel.send(np.ones(3 * MIB, "u1"), timeout=SECONDS)
            status = 0
        finally:
            os._exit(status)
    channel.send(np.zeros(6 * MIB, "u1"))  # in another slot than that of the view
    del got
    os.write(ends[1], b"x")
    time.sleep(0.2)
    channel.recv(copy=True)
    assert channel.recv(timeout=SECONDS).sum() == 3 * MIB
    assert os.waitpid(pid, 0)[1] == 0
    os.close(ends[0]), os.close(ends[1])


def test_a_forked_child_is_told_that_an_inherited_view_keeps_the_bytes(channel):
    channel.send(np.zeros(6 * MIB, "u1"))
    got = channel.recv()
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            channel.send(np.ones(3 * MIB, "u1"), timeout=SECONDS)
        except tn.LeaseConflict:
            status = 0
        finally:
            os._exit(status)
    del got
    assert os.waitpid(pid, 0)[1] == 0


class Logged(tn.Channel):
    def recv(self, timeout=None):
        return super().recv(timeout)

    def loan(self, timeout=None):
        return super().loan(timeout)


def test_a_subclass_with_methods_of_its_own_waits_as_others():
    async def run(channel):
        loop = asyncio.get_running_loop()
        loop.call_later(0.05, channel.send, {"x": 5})
        assert (await channel.arecv()).x == 5
        channel.send({"x": 1})
        loop.call_later(0.05, channel.recv)
        (await channel.aloan()).drop()

    with Logged({"x": ("i8", ())}, slots=1) as channel:
        asyncio.run(run(channel))
        with pytest.raises(queue.Empty):
            channel.get_nowait()
        channel.put_nowait({"x": 1})
        with pytest.raises(queue.Full):
            channel.put_nowait({"x": 2})


def test_an_error_of_the_class_of_an_object_is_not_the_end_of_a_wait(channel):
    for receive in (channel.get, lambda: asyncio.run(channel.arecv()), lambda: next(iter(channel))):
        channel.send(Unreadable(TimeoutError("own")))
        with pytest.raises(TimeoutError, match="own"):
            receive()
    channel.send(1)
    assert channel.get_nowait() == 1


def test_a_subclass_has_a_schema(name):
    class Own(tn.Channel):
        pass

    with pytest.raises(TypeError, match="subclass"):
        Own(nbytes=MIB)
    with Own({"x": ("f4", np.int64(3))}, name=name, exist_ok=True) as channel:
        assert channel.schema["x"][1] == (3,)
        with Own({"x": ("f4", np.int64(3))}, name=name, exist_ok=True):
            pass


def test_other_bytes_are_an_error(channel):
    from tenon._ipc.objects import Reader

    for size in (0, 63, 64, 5000):
        item = channel._loan_bytes(size, 0)
        if size:
            item._bytes().numpy()[...] = 255
        item._send_item()
        item._release()
        with pytest.raises(ValueError, match="no object"):
            channel.recv(timeout=0)
    assert Reader is not None and in_use(channel) == 0


def test_a_viewer_beside_a_recorder(name):
    with tn.Channel(nbytes="8 MiB", slots=4, mode="broadcast", name=name) as camera:
        recorder = tn.Channel.attach(name)
        viewer = tn.Channel(nbytes="8 MiB", name=name, exist_ok=True, receives="latest", on_death="wait")
        assert (recorder.receives, viewer.receives) == ("every", "latest")
        assert copy.copy(viewer).receives == "latest"
        with pytest.raises(TimeoutError):
            recorder.recv(timeout=0)
        shown = None
        for k in range(50):
            camera.send((k, np.full(MIB, k, "u1")), timeout=SECONDS)
            assert recorder.recv(timeout=0, copy=True)[0] == k
            if k % 7 == 0:
                shown = None
                shown = viewer.recv(timeout=0)
                assert shown[0] == k
            assert shown is not None and (shown[1] == shown[0]).all()
        recorder.close()
        viewer.close()
    for mode in ("queue", "latest"):
        with pytest.raises(ValueError, match=r"queue|newest item only"):
            tn.Channel(nbytes=MIB, mode=mode, receives="latest" if mode == "queue" else "every")


def test_options_are_checked(name):
    with pytest.raises(TypeError, match="a channel has a schema, or nbytes"):
        tn.Channel()
    with pytest.raises(TypeError, match="a channel has a schema, or nbytes"):
        tn.Channel({"x": ("f4", ())}, nbytes=5)
    with pytest.raises(TypeError, match="largest"):
        tn.Channel({"x": ("f4", ())}, largest=5)
    with pytest.raises(ValueError, match="exist_ok"):
        tn.Channel(nbytes=MIB, exist_ok=True)
    with pytest.raises(ValueError, match="on_death"):
        tn.Channel(nbytes=MIB, on_death="ignore")
    with pytest.raises(ValueError, match="cannot have"):
        tn.Channel(nbytes=MIB, largest=2 * MIB)
    with pytest.raises(ValueError, match="huge pages and populated"):
        tn.Channel(nbytes=MIB, name=tn.Shared(populate=True))


# ------------------------------------------------------------------------------------------ names


def test_create_or_attach_is_one_call(name):
    first = tn.Channel(nbytes="1 MiB", name=name, exist_ok=True, slots=5)
    second = tn.Channel(nbytes="1 MiB", name=name, exist_ok=True)
    first.send("x")
    assert second.slots == 5 and second.recv(timeout=0) == "x"
    for wrong in ({"slots": 6}, {"mode": "latest"}, {"when_full": "raise"}, {"nbytes": "2 MiB"}):
        (what,) = wrong
        with pytest.raises(ValueError, match=f"exists with {what}="):
            tn.Channel(**{"nbytes": "1 MiB", "name": name, "exist_ok": True, **wrong})
    with pytest.raises(ValueError, match="exists with schema=None"):
        tn.Channel({"x": ("f4", ())}, name=name, exist_ok=True)
    with pytest.raises(ValueError, match="exists already"):
        tn.Channel(nbytes="1 MiB", name=name)
    first.close(), second.close()


def test_create_or_attach_of_a_schema(name):
    first = tn.Channel({"x": ("f4", 3)}, name=name, exist_ok=True)
    second = tn.Channel({"x": ("float32", (3,))}, name=name, exist_ok=True)
    first.send({"x": 5})
    assert second.recv(timeout=0).x.tolist() == [5, 5, 5]
    with pytest.raises(ValueError, match="exists with schema="):
        tn.Channel({"x": ("f4", 4)}, name=name, exist_ok=True)
    first.close(), second.close()


def _create(name, start, results):
    start.wait()
    channel = tn.Channel(nbytes="1 MiB", name=name, exist_ok=True, on_death="wait")
    channel.send(os.getpid(), timeout=SECONDS)
    results.put(os.getpid())
    time.sleep(SECONDS)


@pytest.mark.slow
def test_processes_that_create_at_once_get_one_channel(name):
    for round in range(20):
        start, results = fork.Event(), fork.Queue()
        processes = [fork.Process(target=_create, args=(f"{name}-{round}", start, results)) for _ in range(4)]
        for process in processes:
            process.start()
        start.set()
        pids = {results.get(timeout=SECONDS) for _ in processes}
        with tn.Channel(nbytes="1 MiB", name=f"{name}-{round}", exist_ok=True) as channel:
            assert {channel.recv(timeout=SECONDS) for _ in processes} == pids
            for process in processes:
                process.kill()
                process.join()


def test_attach_waits_for_the_name(name):
    made = []
    maker = threading.Timer(0.05, lambda: made.append(tn.Channel(nbytes="1 MiB", name=name)))
    maker.start()
    with tn.Channel.attach(name, wait=SECONDS) as channel:
        maker.join()
        made[0].send(1)
        assert channel.recv(timeout=SECONDS) == 1
    made[0].close()
    with pytest.raises(FileNotFoundError):
        tn.Channel.attach(f"{name}-none", wait=0.01)


# ------------------------------------------------------------------------------------------ processes


def test_a_pickle_is_the_channel_with_its_settings():
    with tn.Channel(nbytes="1 MiB", on_death="wait", inline=100) as channel, Other() as other:
        other.ask("ch = __import__('pickle').loads(data)", data=pickle.dumps(channel))
        assert other.ask("(ch.on_death, ch._inline_nbytes, ch.nbytes)") == ("wait", 100, MIB)
        other.ask("ch.send({'x': np.arange(100_000 // 8)})")
        assert channel.recv(timeout=SECONDS)["x"][-1] == 12_499


def test_what_a_killed_sender_has_sent_arrives(name):
    with tn.Channel(nbytes="8 MiB", name=name, on_death="wait") as channel:
        for round in range(3):
            with Other() as other:
                other.ask("ch = tn.Channel.attach(name)", name=name)
                other.ask(f"ch.send(np.full(1 << 20, {round}, 'u1'))")
                other.ask("loan = ch.loan(); x = loan.empty(1 << 22, 'u1')")
                other.kill()
            got = channel.recv(timeout=SECONDS)
            assert got.nbytes == MIB and (got == round).all()
            del got
            gc.collect()
            with pytest.raises(TimeoutError):
                channel.recv(timeout=0.01)
        channel.send(np.zeros(7 * MIB, "u1"), timeout=SECONDS)  # nothing is lost
        assert channel.stats()["deaths"] == 3


def test_a_close_ends_a_channel_that_waits_for_crashed_producers(name):
    with tn.Channel(nbytes="1 MiB", name=name, on_death="wait") as channel:
        with Other() as other:
            other.ask("ch = tn.Channel.attach(name); ch.send(1)", name=name)
            other.kill()
        assert channel.recv(timeout=SECONDS) == 1
        with pytest.raises(TimeoutError):
            channel.recv(timeout=0.01)
        with Other() as other:
            other.ask("ch = tn.Channel.attach(name); ch.send(2); ch.close()", name=name)
            assert list(channel) == [2]


def test_a_killed_receiver_loses_what_it_had_and_blocks_nothing(name):
    with tn.Channel(nbytes="8 MiB", name=name) as channel, Other() as other:
        other.ask("ch = tn.Channel.attach(name)", name=name)
        channel.send(np.zeros(7 * MIB, "u1"))
        other.ask("got = ch.recv(timeout=600)")
        with pytest.raises(TimeoutError):
            channel.send(np.zeros(7 * MIB, "u1"), timeout=0)
        other.kill()
        channel.send(np.ones(7 * MIB, "u1"), timeout=SECONDS)
        assert channel.recv(timeout=0).sum() == 7 * MIB


def _produce(channel, first, n):
    for number in range(first, first + n):
        channel.send((number, np.full(1 + number * 977 % 300_000, number % 251, "u1")), timeout=SECONDS)
    channel.close()


@pytest.mark.slow
def test_many_producers_pass_objects_of_all_sizes():
    with tn.Channel(nbytes="2 MiB", slots=16) as channel:
        processes = [fork.Process(target=_produce, args=(channel, 1000 * p, 300)) for p in range(3)]
        for process in processes:
            process.start()
        last = {}
        for _ in range(900):
            number, x = channel.recv(timeout=SECONDS)
            assert (x == number % 251).all() and len(x) == 1 + number * 977 % 300_000
            assert last.get(number // 1000, -1) < number
            last[number // 1000] = number
        for process in processes:
            process.join()


def test_a_stopped_producer_blocks_its_own_bytes_alone(name):
    with tn.Channel(nbytes="8 MiB", name=name) as channel, Other() as other:
        other.ask("ch = tn.Channel.attach(name); loan = ch.loan(); x = loan.empty(1 << 21, 'u1')", name=name)
        os.kill(other.pid, signal.SIGSTOP)
        for number in range(20):
            channel.send((number, np.zeros(5 * MIB, "u1")), timeout=SECONDS)
            assert channel.recv(timeout=SECONDS)[0] == number
            gc.collect()
        with pytest.raises(TimeoutError, match="stopped"):
            channel.send(np.zeros(7 * MIB, "u1"), timeout=0.01)
        os.kill(other.pid, signal.SIGCONT)


# ------------------------------------------------------------------------------------------ asyncio


def test_asyncio_sends_and_receives_without_a_thread():
    async def run():
        with tn.Channel(nbytes="1 MiB", slots=2) as channel:
            got = []

            async def consume():
                async for value in channel:
                    got.append(value)
                    if value == "end":
                        return

            task = asyncio.create_task(consume())
            for number in range(50):
                await channel.asend({"n": number, "x": np.zeros(3000, "u1")})
            await channel.asend("end")
            await asyncio.wait_for(task, SECONDS)
            assert [one["n"] for one in got[:-1]] == list(range(50))

            await channel.asend(1)
            await channel.asend(2)
            waiting = asyncio.create_task(channel.asend(3))
            await asyncio.sleep(0.01)
            assert not waiting.done()
            assert await channel.arecv() == 1
            await asyncio.wait_for(waiting, SECONDS)
            assert [await channel.arecv(), await channel.arecv()] == [2, 3]

    asyncio.run(run())
