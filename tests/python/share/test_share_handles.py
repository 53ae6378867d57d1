# SPDX-License-Identifier: Apache-2.0
"""Memory that unopened handles keep, and for how long; the cost of an array beside many others."""

import gc
import json
import multiprocessing
import os
import pickle
import subprocess
import sys
import time

import pytest
from other_process import SECONDS, Other

import tenon as tn
from tenon import _core

ARRAY = 1 << 20
COUNT = 32


def until(condition, seconds=600):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it has not come true"
        time.sleep(0.01)


def handles_of_this_process():
    """The number of unopened handles, as `tenon ls` counts them."""
    return sum(
        handle["count"]
        for segment in json.loads(_core.describe_shared())["segments"]
        for array in segment["arrays"]
        for handle in array["handles"]
        if handle["pid"] == os.getpid()
    )


@pytest.fixture(autouse=True)
def shown():
    """How many more handles there are than at first. The test leaves none."""
    gc.collect()
    before = handles_of_this_process()
    yield lambda: handles_of_this_process() - before
    gc.collect()
    until(lambda: handles_of_this_process() <= before)


def is_gone(data):
    try:
        pickle.loads(data).tolist()
    except FileNotFoundError:
        return True
    return False


def test_a_pickle_keeps_the_array_until_it_is_revoked():
    a = tn.full(4, 7, shared=True)
    data = pickle.dumps(a)
    b = a
    del a
    gc.collect()
    assert pickle.loads(data).tolist() == [7] * 4
    more = [pickle.dumps(b) for _ in range(3)]
    assert tn.revoke_handles(b) == 3
    assert tn.revoke_handles(b) == 0
    assert pickle.loads(more[0]).tolist() == [7] * 4, "the array is still there"
    del b
    gc.collect()
    until(lambda: is_gone(more[1]))


@pytest.mark.parametrize("count", [1, 24, 100])
def test_revoked_handles_of_any_number_keep_nothing(count):
    a = tn.zeros(4, shared=True)
    data = [pickle.dumps(a) for _ in range(count)]
    assert tn.revoke_handles(a) == count
    del a
    gc.collect()
    until(lambda: is_gone(data[-1]))


def test_revoking_leaves_the_handles_of_other_processes_alone(other):
    a = tn.full(4, 7, shared=True)
    data = other.ask("__import__('pickle').dumps(a)", a=a)
    other.ask("a = None")
    tn.revoke_handles(a)
    del a
    gc.collect()
    assert pickle.loads(data).tolist() == [7] * 4


def test_an_array_that_is_not_shared_has_no_handles_to_revoke():
    with pytest.raises(TypeError, match="shared"):
        tn.revoke_handles(tn.zeros(3))
    with pytest.raises(TypeError, match="shared"):
        tn.Handle(tn.zeros(3))


def test_a_handle_that_expires_keeps_its_array_until_then(other, shown):
    a = tn.full(4, 7, shared=True)
    early, late = tn.Handle(a, timeout=600), tn.Handle(a, timeout=0.05)
    data = pickle.dumps(late)
    until(lambda: shown() == 1)
    other.ask("import pickle; b = pickle.loads(data)", data=pickle.dumps(early))
    until(lambda: shown() == 0)
    del a, early, late
    gc.collect()
    assert other.ask("b.tolist()") == [7] * 4
    other.ask("b = None")
    until(lambda: is_gone(data))


def test_a_handle_can_be_revoked_by_itself(shown):
    a = tn.full(4, 7, shared=True)
    one, two = tn.Handle(a), tn.Handle(a)
    one.revoke()
    until(lambda: shown() == 1)
    data = pickle.dumps(two)
    del a
    gc.collect()
    assert pickle.loads(data).tolist() == [7] * 4
    del one, two


def test_what_was_sent_to_a_process_that_has_died_is_free(shown):
    """No process opens the handles: they are in a pipe whose reader was killed."""
    with Other() as receiver:
        handles = []
        for _ in range(COUNT):
            a = tn.ones(ARRAY, "uint8", shared=True)
            handles.append(pickle.dumps(tn.Handle(a, receiver=receiver.pid)))
            del a
        gc.collect()
        assert shown() >= COUNT
        receiver.kill()
        until(lambda: shown() == 0)
    assert all(map(is_gone, handles))


def test_bad_limits_are_refused(other):
    a = tn.zeros(3, shared=True)
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    with pytest.raises(ProcessLookupError, match=str(gone.pid)):
        tn.Handle(a, receiver=gone.pid)
    with pytest.raises(ValueError, match="timeout"):
        tn.Handle(a, timeout=-1)
    with pytest.raises(ValueError, match="this process"):
        _core.limit_handle(other.ask("tn.Handle(a)._data", a=a), 0, 1.0)
    tn.revoke_handles(a)


@pytest.mark.parametrize(
    ("limits", "error", "text"),
    [
        ({"timeout": -1}, ValueError, "timeout is -1:"),
        ({"timeout": float("nan")}, ValueError, "timeout is nan:"),
        ({"timeout": "soon"}, TypeError, "timeout is 'soon':"),
        ({"timeout": [1]}, TypeError, r"timeout is \[1\]:"),
        ({"receiver": -5}, ValueError, "receiver is -5:"),
        ({"receiver": 0}, ValueError, "receiver is 0:"),
        ({"receiver": 2**40}, ValueError, f"receiver is {2**40}:"),
        ({"receiver": 1.5}, TypeError, "receiver is 1.5:"),
        ({"receiver": "init"}, TypeError, "receiver is 'init':"),
    ],
)
def test_bad_values_of_limits_are_named_and_no_handle_is_left(limits, error, text, shown):
    a = tn.zeros(3, shared=True)
    with pytest.raises(error, match=text):
        tn.Handle(a, **limits)
    assert shown() == 0
    handle = tn.Handle(a, timeout=SECONDS)
    with pytest.raises(error, match=text):
        handle.limit(**limits)
    assert shown() == 1
    handle.limit(timeout=1e300)
    handle.limit(timeout=10**400)
    handle.revoke()


def test_the_native_part_refuses_bad_times_too():
    """It raises while the GIL is held."""
    a = tn.zeros(3, shared=True)
    for seconds, text in ((-1.0, "it must not be negative"), (float("nan"), "it must be seconds")):
        with pytest.raises(ValueError, match=f"timeout is {seconds}: {text}"):
            _core.limit_handle(_core.send_array(a), 0, seconds)
    tn.revoke_handles(a)


def test_a_hundred_handles_of_one_array_can_have_limits(shown):
    a = tn.full(4, 7, shared=True)
    plain = [pickle.dumps(a) for _ in range(24)]
    limited = [tn.Handle(a, timeout=0.05 if n % 2 else 600) for n in range(100)]
    data = [pickle.dumps(handle) for handle in limited]
    until(lambda: shown() == 24 + 50)
    del a, limited
    gc.collect()
    for one in plain + data[2::2]:
        assert pickle.loads(one).tolist() == [7] * 4
    assert shown() == 1
    assert pickle.loads(data[0]).tolist() == [7] * 4
    assert shown() == 0
    until(lambda: is_gone(data[1]))


def open_in(process, data):
    return process.ask("import pickle; a = pickle.loads(data)", data=data)


@pytest.mark.parametrize("is_dropped", [False, True])
def test_as_many_processes_open_a_handle_as_may(is_dropped, other, another, shown):
    a = tn.full(4, 7, shared=True)
    data = pickle.dumps(tn.Handle(a, opens=3))
    if is_dropped:
        del a
        gc.collect()
    open_in(other, data)
    open_in(other, data)  # is not counted
    open_in(another, data)
    assert shown() == 1
    assert pickle.loads(data).tolist() == [7] * 4
    assert shown() == 0
    with Other() as fourth:
        open_in(fourth, data)
        with pytest.raises(tn.MessageGone, match="handle cannot be opened: as many processes") as raised:
            fourth.ask("a.tolist()")
        assert raised.value.reason == "opened"
    assert other.ask("pickle.loads(data).tolist()", data=data) == [7] * 4
    assert another.ask("a.tolist()") == [7] * 4


def test_a_process_that_dies_after_it_has_opened_a_handle_is_counted(other, another, shown):
    data = pickle.dumps(tn.Handle(tn.full(4, 7, shared=True), opens=2))
    open_in(other, data)
    other.kill()
    assert shown() == 1
    open_in(another, data)
    assert shown() == 0 and another.ask("a.tolist()") == [7] * 4
    with pytest.raises(tn.MessageGone):
        pickle.loads(data).tolist()


@pytest.mark.parametrize("reason", ["revoked", "expired", "receivers gone"])
def test_a_handle_for_any_number_of_processes_ends_with_its_limits_and_says_why(
    reason, other, another, shown
):
    with Other() as receiver:
        limits = {"revoked": {}, "expired": {"timeout": 2.0}, "receivers gone": {"receiver": receiver.pid}}
        a = tn.full(4, 7, shared=True)
        handle = tn.Handle(a, opens=None, **limits[reason])
        data = pickle.dumps(handle)
        for process in (other, another):
            open_in(process, data)
            assert process.ask("a.tolist()") == [7] * 4
            assert shown() == 1
        if reason == "revoked":
            assert tn.revoke_handles(a) == 1
        receiver.kill()
        until(lambda: shown() == 0)
    with pytest.raises(tn.MessageGone) as raised:
        pickle.loads(data).tolist()
    assert raised.value.reason == reason
    assert other.ask("pickle.loads(data).tolist()", data=data) == [7] * 4, "it has opened it before"


def test_a_counted_handle_of_a_dead_sender_says_so(other, another):
    other.ask("import pickle; a = tn.full(4, 7, shared=True); kept = tn.zeros(3, shared=True)")
    data = other.ask("pickle.dumps(tn.Handle(a, opens=2))")
    open_in(another, data)
    other.kill()
    with pytest.raises(tn.MessageGone) as raised:
        pickle.loads(data).tolist()
    assert raised.value.reason == "sender gone"
    assert another.ask("a.tolist()") == [7] * 4


@pytest.mark.parametrize(
    ("opens", "error"), [(0, ValueError), (-1, ValueError), ("2", TypeError), (2**40, ValueError)]
)
def test_bad_numbers_of_opens_are_refused(opens, error, shown):
    a = tn.zeros(3, shared=True)
    with pytest.raises(error, match="opens is "):
        tn.Handle(a, opens=opens)
    assert shown() == 0


def test_a_handle_that_was_opened_gets_no_number_of_opens(other):
    a = tn.zeros(3, shared=True)
    data = _core.send_array(a)
    _core.open_array(data)
    with pytest.raises(ValueError, match="has ended"):
        _core.set_handle_opens(data, 2)
    with pytest.raises(ValueError, match="not this process"):
        _core.set_handle_opens(other.ask("tn.Handle(a)._data", a=a), 2)
    tn.revoke_handles(a)


def test_a_name_is_free_while_handles_of_its_array_are_unopened(other):
    name = f"handles-of-{os.getpid()}"
    a = tn.full(4, 7, shared=name)
    first, second = pickle.dumps(a), pickle.dumps(tn.Handle(a, opens=None))
    open_in(other, first)
    other.ask("a = None")
    del a
    gc.collect()
    b = tn.full(4, 8, shared=name)
    c = pickle.loads(second)
    assert c.tolist() == [7] * 4 and b.tolist() == [8] * 4
    assert tn.revoke_handles(c) == 1


@pytest.mark.parametrize("shared", [True, "own"])
def test_a_handle_that_is_refused_leaves_nothing_mapped_and_nothing_open(shared, other, another):
    """In a process that has no other array of the sender. The sender lives, and has other arrays in the
    pool."""
    look = "(len(os.listdir('/proc/self/fd')), sorted(l.split(None, 5)[5] for l in open('/proc/self/maps') "
    look += "if 'memfd' in l))"
    name = True if shared is True else f"handles-{os.getpid()}"
    another.ask("import pickle; kept = tn.zeros(3, shared=True); a = tn.zeros(3, shared=name)", name=name)
    data = another.ask("pickle.dumps(tn.Handle(a, timeout=0))")
    another.ask("del a")
    other.ask("import pickle; tn.zeros(3, shared=True)")  # its own memory is there
    before = other.ask(look)
    until(lambda: is_gone(data))
    for _ in range(5):
        with pytest.raises(FileNotFoundError):
            other.ask("pickle.loads(data).tolist()", data=data)
        assert other.ask(look) == before


def end_before_it_opens(*_):
    os._exit(3)


class EndsWhenItIsUnpickled:
    def __reduce__(self):
        return end_before_it_opens, ()


def never(*_):
    pass


def test_what_a_process_was_started_with_is_free_when_it_has_died_over_it(shown):
    a = tn.zeros(3, shared=True)
    context = multiprocessing.get_context("spawn")
    process = context.Process(target=never, args=(EndsWhenItIsUnpickled(), a))
    process.start()
    process.join(600)
    assert process.exitcode == 3
    until(lambda: shown() == 0)


def test_what_a_process_was_started_with_is_there_when_it_comes():
    a = tn.zeros(3, shared=True)
    context = multiprocessing.get_context("spawn")
    process = context.Process(target=tn.NDArray.__setitem__, args=(a, 1, 5))
    process.start()
    process.join(600)
    assert process.exitcode == 0 and a.tolist() == [0, 5, 0]


def test_a_process_that_cannot_be_started_keeps_nothing(shown):
    a = tn.zeros(3, shared=True)
    context = multiprocessing.get_context("spawn")
    process = context.Process(target=never, args=(a, lambda: None))
    with pytest.raises((pickle.PicklingError, AttributeError)):
        process.start()
    del process
    gc.collect()
    until(lambda: shown() == 0)


def test_an_array_costs_the_same_beside_many_as_beside_few():
    """In a separate process without other arrays: 1,000 arrays beside 0 and beside 9,000."""
    code = """
import time, tenon as tn
kept = []
def cost(n):
    best = float("inf")
    for _ in range(4):
        begin = time.perf_counter()
        for _ in range(n // 4):
            kept.append(tn.empty(16, "int8", shared=True))
        best = min(best, (time.perf_counter() - begin) / (n // 4))
    return best
few = cost(1000)
while len(kept) < 9000:
    kept.append(tn.empty(16, "int8", shared=True))
print(cost(1000) / few)
# The same, but each array is dropped after the next one was created.
last = None
def turnover(n):
    global last
    begin = time.perf_counter()
    for _ in range(n):
        last = tn.empty(16, "int8", shared=True)
    return (time.perf_counter() - begin) / n
many = min(turnover(300) for _ in range(4))
kept.clear()
print(many / min(turnover(300) for _ in range(4)))
"""
    ratios = [float("inf")]
    for _ in range(10):  # other processes may take the core away from one of the measurements
        if max(ratios) > 5:
            text = subprocess.check_output([sys.executable, "-c", code], text=True)
            ratios = [float(line) for line in text.split()]
    assert max(ratios) <= 5, ratios


def test_a_handle_is_opened_where_another_owner_has_lent_the_same_memory():
    a = tn.full(3, 7, shared=True)
    lent = tn.from_pointer(a.data_ptr, a.shape, a.dtype, owner=a)
    before = handles_of_this_process()
    opened = pickle.loads(pickle.dumps(a))
    assert opened.tolist() == lent.tolist() == [7] * 3
    assert handles_of_this_process() == before


def test_where_too_many_handles_are_unopened_one_with_limits_is_refused_and_keeps_nothing():
    a = tn.zeros(4, shared=True)
    for _ in range(16_384):
        _core.send_array(a)
    with pytest.raises(MemoryError, match="16384 handles"):
        tn.Handle(a, opens=2)
    with pytest.raises(MemoryError, match="16384 handles"):
        tn.Handle(a, timeout=60)
    with subprocess.Popen(["true"]) as gone:
        gone.wait()
    with pytest.raises(ProcessLookupError):
        tn.Handle(a, receiver=gone.pid)
    handle = tn.Handle(a)  # shares the record of another one
    with pytest.raises(MemoryError, match="16384 handles"):
        handle.limit(timeout=60)
    with pytest.raises(MemoryError, match="16384 handles"):
        handle.revoke()
    assert tn.revoke_handles(a) == 16_385
    assert tn.revoke_handles(a) == 0
    tn.Handle(a, opens=2, timeout=60).revoke()


def test_a_process_that_rests_gives_back_the_records_of_its_handles(other):
    a = tn.zeros(4, shared=True)
    other.ask("from tenon import _core; b = _core.open_array(data)", data=_core.send_array(a))
    handles = [_core.send_array(a) for _ in range(16_384)]
    with pytest.raises(MemoryError, match="16384 handles"):
        other.ask("_core.send_array(b)")
    other.ask("for handle in handles: _core.open_array(handle)", handles=handles)

    def can_send():
        try:
            other.ask("_core.send_array(b)")
        except MemoryError:
            return False
        return True

    until(can_send)
    other.ask("tn.revoke_handles(b)")


def test_a_forked_child_that_rests_does_so_too():
    a = tn.zeros(4, shared=True)
    ours, theirs = multiprocessing.Pipe()

    def send():
        theirs.send([_core.send_array(a) for _ in range(16_384)])
        theirs.recv()

    child = multiprocessing.get_context("fork").Process(target=send)
    child.start()
    for handle in ours.recv():
        _core.open_array(handle)

    def can_send():
        try:
            _core.send_array(a)
        except MemoryError:
            return False
        return True

    until(can_send)
    assert tn.revoke_handles(a) == 1
    ours.send("end")
    child.join(SECONDS)
    assert child.exitcode == 0


def test_a_forked_child_ends_its_handles_for_a_process_that_has_ended(other, shown):
    a = tn.zeros(4, shared=True)
    ours, theirs = multiprocessing.Pipe()

    def send():
        theirs.send(tn.Handle(a, receiver=other.pid)._data)
        theirs.recv()

    child = multiprocessing.get_context("fork").Process(target=send)
    child.start()
    data = ours.recv()
    assert _core.is_handle_unopened(data)
    other.kill()
    until(lambda: not _core.is_handle_unopened(data))
    ours.send("end")
    child.join(SECONDS)
    assert child.exitcode == 0
