# SPDX-License-Identifier: Apache-2.0
"""Arrays in queues and pipes whose sender has ended, and what is received when an array is lost."""

import multiprocessing
import os
import pickle
import signal
import time

import numpy as np
import pytest
from test_share_handles import handles_of_this_process, is_gone, until

import tenon as tn
from tenon import _core
from tenon._array import passing
from tenon._array.pickle import open_shared_array

METHODS = [
    "fork",
    pytest.param("spawn", marks=pytest.mark.slow),
    pytest.param("forkserver", marks=pytest.mark.slow),
]


def put_arrays(queue, link):
    for number in range(30):  # more than have entries in the memory
        queue.put(tn.full(3, number, shared=True))
    whole = tn.full((4, 3), 7, shared=True)
    link.send([whole[1], tn.Channel({"x": ("i8", ())}), tn.Arena({"a": {"x": ("i8", (2,))}}, shared=True)])
    for _ in range(30):
        queue.put(whole)


@pytest.mark.parametrize("method", METHODS)
def test_what_a_child_has_sent_before_its_normal_end_arrives(method):
    context = multiprocessing.get_context(method)
    queue, (ours, theirs) = context.Queue(), context.Pipe()
    process = context.Process(target=put_arrays, args=(queue, theirs))
    process.start()
    process.join()
    assert process.exitcode == 0
    for number in range(30):
        assert queue.get().tolist() == [number] * 3
    row, channel, arena = ours.recv()
    assert row.tolist() == [7] * 3
    with channel.loan() as item:
        item.x = 5
    assert channel.recv().x.item() == 5
    with arena.use("a") as fields:
        fields.x[...] = 6
    for _ in range(30):
        assert queue.get().shape == (4, 3)


def sent_by_a_child(how, *arguments):
    """A handle that a forked child has sent by a pipe, before it ended so."""
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe()
    process = context.Process(target=how, args=(theirs, *arguments))
    process.start()
    process.join()
    return ours.recv_bytes()


def end(link, *_):
    link.send(tn.full(3, 7, shared=True))


def end_after_limit(link, *_):
    link.send(tn.Handle(tn.full(3, 7, shared=True), timeout=600))


def leave(link, *_):
    end(link)
    os._exit(0)


def be_killed(link, *_):
    end(link)
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.parametrize("how", [end, end_after_limit])
def test_the_parent_keeps_it_until_a_process_has_opened_it(how, other):
    before = handles_of_this_process()
    data = sent_by_a_child(how)
    assert handles_of_this_process() == before + 1
    assert other.ask("import pickle; a = pickle.loads(data)", data=data) is None
    assert handles_of_this_process() == before
    assert other.ask("a.tolist()") == [7] * 3
    other.ask("a = None")
    until(lambda: is_gone(data))


def test_the_parent_keeps_it_no_longer_than_its_time(monkeypatch):
    monkeypatch.setattr(passing, "KEPT_SECONDS", 0.05)
    data = sent_by_a_child(end)
    until(lambda: is_gone(data))


@pytest.mark.parametrize("how", [leave, be_killed])
def test_other_ends_lose_it_and_the_first_use_says_so(how):
    array = pickle.loads(sent_by_a_child(how))
    assert isinstance(array, tn.NDArray) and array.shape == (3,) and array.dtype == tn.float32
    with pytest.raises(FileNotFoundError, match="no process has it any more"):
        array.tolist()


def test_a_limit_of_the_sender_does_not_end_what_was_taken_over(other):
    other.ask("a = tn.full(3, 7, shared=True)")
    other.ask("handles = [tn.Handle(a) for _ in range(2)]")
    one, two = other.ask("[handle._data for handle in handles]")
    before = handles_of_this_process()
    assert _core.take_over_handle(one, 600.0)
    other.ask("_ = [tn._core.limit_handle(handle._data, 0, 0.05) for handle in handles]")
    until(lambda: not other.ask("tn._core.is_handle_unopened(handles[1]._data)"))
    assert handles_of_this_process() == before + 1
    assert not _core.take_over_handle(two, 600.0)
    assert open_shared_array(one).tolist() == [7] * 3
    assert handles_of_this_process() == before


def test_the_limit_of_a_process_that_takes_over_is_not_that_of_a_living_sender(other):
    other.ask("a = tn.full(3, 7, shared=True); handle = tn.Handle(a)._data; a = None")
    before = handles_of_this_process()
    handle = other.ask("handle")
    assert _core.take_over_handle(handle, 0.05)
    until(lambda: handles_of_this_process() == before)
    assert other.ask("tn._core.is_handle_unopened(handle)")
    assert _core.open_array(handle).tolist() == [7] * 3


def test_a_process_that_keeps_a_message_again_has_a_new_limit(other):
    other.ask("pool = tn.TensorPool('1 MiB'); message = pool.dumps(np.ones(5000))")
    message = other.ask("message")
    core = _core.core_of_message(message)
    assert _core.take_over_message(core, 0.05)
    assert _core.take_over_message(core, 600.0)
    time.sleep(0.1)
    _core.linger_pools(0.0)  # it looks at what it keeps
    other.kill()
    assert tn.loads(message).sum() == 5000


def put_for_three(link):
    link.send(tn.Handle(tn.full(3, 7, shared=True), opens=3))


def test_the_parent_keeps_it_for_as_many_processes_as_may_open_it(other, another):
    before = handles_of_this_process()
    data = sent_by_a_child(put_for_three)
    for process, left in ((other, 1), (another, 1)):
        assert process.ask("import pickle; pickle.loads(data).tolist()", data=data) is None
        assert handles_of_this_process() == before + left
    assert pickle.loads(data).tolist() == [7] * 3
    assert handles_of_this_process() == before


def open_and_end(link, data):
    array = pickle.loads(data)
    del array
    end(link)


def test_only_handles_that_are_unopened_are_passed(monkeypatch):
    array = tn.full(3, 5, shared=True)
    before = handles_of_this_process()
    own = pickle.dumps(array)
    sent_by_a_child(open_and_end, own)
    assert handles_of_this_process() == before + 1
    tn.revoke_handles(array)


@pytest.fixture
def lost():
    """The pickles of an array, a channel and an arena that no process has any more."""
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe()

    def send(link):
        link.send_bytes(pickle.dumps(tn.full((2, 3), 7, "i4", shared=True)))
        link.send_bytes(pickle.dumps(tn.Channel({"x": ("i8", ())})))
        link.send_bytes(pickle.dumps(tn.Arena({"a": {"x": ("i8", (2,))}}, shared=True)))

    process = context.Process(target=send, args=(theirs,))
    process.start()
    process.join()
    return [ours.recv_bytes() for _ in range(3)]


USES = [
    lambda a: a.tolist(),
    lambda a: a.numpy(),
    lambda a: np.asarray(a),
    lambda a: memoryview(a),
    lambda a: np.add(a, 1),
    lambda a: a + 1,
    lambda a: a[0],
    lambda a: a[0].tolist(),
    lambda a: a.__setitem__(0, 1),
    lambda a: a.__setitem__(..., 1),
    lambda a: a.copy(),
    lambda a: a.unchecked(),
    lambda a: a.data_ptr,
    lambda a: a[1:].data_ptr,
    lambda a: a.lease("w"),
    lambda a: a.read().__enter__(),
    lambda a: a.write(overwrite=True).__enter__(),
    lambda a: np.from_dlpack(a),
    lambda a: pickle.dumps(a),
    lambda a: tn.Handle(a),
    lambda a: tn.push(lambda x: x.tolist(), a).wait(),
    lambda a: a.move_to_numpy(),
    lambda a: a.reshape(3, 2).T.tolist(),
]


@pytest.mark.parametrize("use", USES, ids=range(len(USES)))
def test_a_lost_array_is_received_and_each_use_raises(lost, use):
    array = pickle.loads(lost[0])
    assert array.shape == (2, 3) and array.nbytes == 24 and not array.shared
    assert "no process has it any more" in repr(array)
    if use is USES[6]:  # a part of it, which is not used
        assert use(array).shape == (3,)
        return
    with pytest.raises(FileNotFoundError, match="no process has it any more"):
        use(array)


def test_lost_channels_and_arenas_are_received_and_their_uses_raise(lost):
    channel, arena = map(pickle.loads, lost[1:])
    assert isinstance(channel, tn.Channel) and isinstance(arena, tn.Arena)
    assert "cannot be opened" in repr(channel) and "cannot be opened" in repr(arena)
    for use in (
        lambda: channel.recv(),
        lambda: channel.loan(timeout=0),
        lambda: next(iter(channel)),
        lambda: channel.mode,
        lambda: pickle.dumps(channel),
        lambda: arena.use("a"),
        lambda: arena.nbytes,
        lambda: pickle.dumps(arena),
    ):
        with pytest.raises(FileNotFoundError, match="no process has it any more"):
            use()


class Given:
    """Its pickle is one that was made before."""

    def __init__(self, data):
        self.data = data

    def __reduce__(self):
        return pickle.loads, (self.data,)


def given(data):
    return Given(data)


@pytest.mark.parametrize("which", range(3))
def test_a_pool_goes_on_after_a_lost_result_or_argument(lost, which):
    """It takes an OSError of an unpickling for the end of its pipe."""
    with multiprocessing.get_context("fork").Pool(1) as pool:
        assert pool.apply_async(given, (lost[which],)).get(600) is not None
        kinds = (tn.NDArray, tn.Channel, tn.Arena)
        result = pool.apply_async(isinstance, (Given(lost[which]), kinds[which])).get(600)
        assert result and pool.apply_async(abs, (-1,)).get(600) == 1


def test_what_is_no_handle_is_refused_at_once():
    with pytest.raises(ValueError, match="not a handle"):
        open_shared_array(b"TNHANDL1 and so on")
