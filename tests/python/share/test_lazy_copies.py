# SPDX-License-Identifier: Apache-2.0
"""Writable exports of received items that others read, too: what is written to one shows nowhere else, and
each has the elements of its item."""

import gc
import os
import threading

import numpy as np
import pytest
from other_process import Other

import tenon as tn

torch = pytest.importorskip("torch")
from_capsule = pytest.importorskip("torch.utils.dlpack").from_dlpack

LARGE = (1026, 1024)  # of float32: it and all but two rows of it lie in private pages
SCHEMA = {"before": ("u1", (100,)), "x": ("f4", LARGE), "small": ("f4", (4, 4)), "y": ("f4", LARGE)}
FIELDS = ("x", "small", "y")  # x and y share pages with the field before them

WRITABLE = {
    "from_dlpack": lambda a: torch.from_dlpack(a),
    "from_dlpack without a copy": lambda a: torch.from_dlpack(a, copy=False),
    "torch()": lambda a: a.torch(),
    "legacy capsule": lambda a: from_capsule(a.__dlpack__()),
    "capsule for writing": lambda a: from_capsule(a.to_dlpack_for_write()),
    "lazy_copy()": lambda a: a.lazy_copy().torch(),
    "NumPy": lambda a: torch.from_numpy(np.asarray(a.lazy_copy())),
}


@pytest.fixture(params=["broadcast", "latest"])
def channel(request):
    return tn.Channel(SCHEMA, slots=4, mode=request.param)


def put(channel, number):
    with channel.loan(timeout=600) as item:
        item.before = number
        for name in FIELDS:
            item[name] = number


def received(channel, number):
    put(channel, number)
    return channel.recv(timeout=600)


@pytest.fixture(scope="module")
def reader():
    with Other() as process:
        process.ask("import torch")
        yield process


@pytest.fixture
def other(channel, reader):
    """Another process that reads."""
    reader.ask("", ch=channel)
    reader.ask("try: ch.recv(timeout=0)\nexcept TimeoutError: pass")
    yield reader
    reader.ask("item = t = ch = None")


@pytest.mark.parametrize("take", WRITABLE.values(), ids=WRITABLE)
def test_a_write_shows_nowhere_else(channel, other, take):
    with pytest.raises(TimeoutError):
        channel.recv(timeout=0)  # a consumer from here on
    for number in range(1, 10):  # each slot is used again: what was written to it before is gone
        item = received(channel, number)
        other.ask("item = ch.recv(timeout=600)")
        for name in FIELDS:
            tensor = take(item[name])
            assert bool((tensor == number).all())
            tensor += 100
            tensor[1:3].mul_(2)
            assert (item[name].numpy() == number).all()
            values = {"name": name, "number": number}
            assert other.ask("bool((item[name].numpy() == number).all())", **values)
            other.ask("t = item[name].torch(); t -= 7", **values)
            assert other.ask("bool((t == number - 7).all())", **values)
            assert float(tensor[0, 0]) == number + 100
            assert float(tensor[2, 0]) == 2 * (number + 100)
        del item, tensor
        other.ask("item = t = None")


def test_each_export_has_values_of_its_own(channel):
    item = received(channel, 5)
    tensors = [item.x.torch() for _ in range(7)]  # more than there are private mappings
    rows = item.x[3:300].torch()
    for i, tensor in enumerate(tensors):
        tensor.fill_(i)
    rows += 1
    for i, tensor in enumerate(tensors):
        assert bool((tensor == i).all())
    assert bool((rows == 6).all())
    assert (item.x.numpy() == 5).all()


def test_a_large_one_keeps_the_item_and_a_small_one_does_not(channel):
    item = received(channel, 5)
    small = item.small.torch()
    del item
    assert channel.stats()["in_use"] == 0
    item = received(channel, 6)
    large = item.x[2:].torch()
    item.release()
    del item
    assert channel.stats()["in_use"] == 1
    for number in range(7, 20):  # the other slots are filled meanwhile
        received(channel, number)
    assert bool((large == 6).all())
    assert bool((small == 5).all())
    del large
    assert channel.stats()["in_use"] == 0


def test_reads_stay_on_the_shared_pages_and_trust_shares_them(channel):
    item = received(channel, 5)
    for view in (np.asarray(item.x), item.x.numpy(), np.from_dlpack(item.x)):
        assert not view.flags.writeable
        assert view.ctypes.data == item.x.data_ptr
    assert item.x.torch(trust=True).data_ptr() == item.x.data_ptr
    copy = torch.from_dlpack(item.x, copy=True)
    address = item.x.data_ptr
    del item, view
    assert channel.stats()["in_use"] == 0, "copy=True is a copy"
    assert copy.data_ptr() != address
    with pytest.raises(BufferError):
        tn.ones(LARGE).readonly().to_dlpack_for_write()  # of no item


def test_any_window_of_an_item_has_a_lazy_copy(channel):
    values = np.arange(1026 * 1024, dtype="f4").reshape(LARGE)
    with channel.loan(timeout=600) as item:
        item.x = values
    item = channel.recv(timeout=600)
    for window in (np.s_[::-1], np.s_[:, ::2], np.s_[7:500, 3:], np.s_[4], np.s_[2, 3], np.s_[:0]):
        own = item.x[window].lazy_copy()
        assert own.tolist() == values[window].tolist()
        own[...] = 1
        assert (np.asarray(own) == 1).all()
    assert item.x.T.lazy_copy().tolist() == values.T.tolist()
    assert (item.x.numpy() == values).all()


def private_kib():
    with open("/proc/self/smaps_rollup") as lines:
        return sum(int(line.split()[1]) for line in lines if line.startswith("Anonymous:"))


@pytest.mark.slow
def test_written_pages_and_mappings_do_not_grow(channel):
    def run(items):
        for number in range(items):
            item = received(channel, number)
            for name in ("x", "y"):
                tensor = item[name].torch()
                tensor += 1
            del item, tensor
        gc.collect()
        return private_kib(), len(open("/proc/self/maps").readlines()), len(os.listdir("/proc/self/fd"))

    run(20)
    kib, maps, files = run(20)
    kib_after, maps_after, files_after = run(200)
    assert (maps_after, files_after) == (maps, files)
    assert kib_after < kib + 4096, "400 fields of 4 MiB were written"


def test_a_fork_keeps_the_values(channel):
    item = received(channel, 5)
    x = item.x.torch().numpy()  # PyTorch's threads do not exist in the child
    y = item.y
    x[0] = 1
    go = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.read(go[0], 1)
        is_kept = (x[0] == 1).all() and (x[1:] == 5).all()
        x[:] = 3
        try:
            y.lazy_copy()
        except tn.LeaseConflict:  # the item belongs to the parent
            os._exit(0 if is_kept else 1)
        os._exit(2)
    x[:] = 2
    del item, x, y
    for number in range(10, 30):
        received(channel, number)
    os.write(go[1], b"x")
    assert os.waitpid(pid, 0)[1] == 0
    for end in go:
        os.close(end)
    assert bool((received(channel, 40).x.torch() == 40).all())


def test_threads_take_lazy_copies_at_once(channel):
    item = received(channel, 5)
    wrong = []

    def work(number):
        for _ in range(50):
            tensor = item.x.torch()
            if not bool((tensor == 5).all()):
                wrong.append(number)
            tensor.fill_(number)
            if not bool((tensor == number).all()):
                wrong.append(number)

    threads = [threading.Thread(target=work, args=(10 + i,)) for i in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert (item.x.numpy() == 5).all()


def fill(batch):
    batch.x[...] = batch.index + 1
    batch.y[...] = batch.index + 1


TRAIN = """
def run(name):
    with tn.Feed.attach(name, wait=600) as feed:
        values = []
        for batch in feed:
            x = batch.x.torch()
            values.append([float(batch.x.numpy().min()), float(x.min()), float(x.max())])
            x += 100
            torch.from_dlpack(batch.y, copy=False).fill_(7)
            values[-1] += [float(batch.x.numpy().max()), float(batch.y.numpy().max())]
            del x, batch
        return values
"""


def test_batches_of_an_attached_feed_have_lazy_copies(reader):
    name = f"tenon.test.lazy.{os.getpid()}"
    schema = {"x": ("f4", (256, 1024)), "y": ("f4", (256, 1024))}
    feed = tn.Feed(fill, schema, batches=12, slots=3, shared=name)
    with feed, feed.serve("broadcast", consumers=2, background=True):
        reader.ask(TRAIN)
        reader.start("run(name)", name=name)
        names = {"tn": tn, "torch": torch}
        exec(TRAIN, names)
        expected = [[float(number)] * 5 for number in range(1, 13)]
        assert names["run"](name) == expected
        assert reader.answer() == expected


def test_a_lazy_copy_keeps_the_batch_of_an_attached_feed():
    name = f"tenon.test.lazy.kept.{os.getpid()}"
    schema = {"x": ("f4", (256, 1024)), "y": ("f4", (256, 1))}
    feed = tn.Feed(fill, schema, batches=20, slots=4, shared=name)
    with feed, feed.serve("broadcast", background=True), tn.Feed.attach(name) as attached:
        batches = iter(attached.torch())
        first = next(batches)[0]
        for x, _ in batches:
            x.fill_(9)
            assert bool((first == 1).all())
            first[0] = 1
    assert bool((first == 1).all()), "also after the end of the feed"
