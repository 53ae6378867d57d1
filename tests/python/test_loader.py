# SPDX-License-Identifier: Apache-2.0
"""DataLoader. Oracle: PyTorch's loader with the same arguments and seeds gives the same batches."""

import collections
import contextlib
import gc
import json
import multiprocessing
import os
import random
import re
import signal
import subprocess
import sys
import threading
import time
import warnings
from pathlib import Path

import numpy as np
import pytest

import tenon as tn
from tenon import _core

torch = pytest.importorskip("torch")
from loader_kinds import forked  # noqa: E402 - it needs PyTorch

from tenon._loader import epochs, packing, workers  # noqa: E402

data = torch.utils.data

Point = collections.namedtuple("Point", ["x", "y"])


class Samples(data.Dataset):
    """Sample i is what make(i) gives."""

    def __init__(self, make, count=10):
        self.make = make
        self.count = count

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        return self.make(index)


class AtOnce(Samples):
    def __getitems__(self, indices):
        return [(torch.tensor(float(i)), "at once") for i in indices]


class Numbers(data.IterableDataset):
    """Each worker has every n-th number, and worker 0 fewer of them."""

    def __init__(self, count):
        self.count = count

    def __iter__(self):
        info = data.get_worker_info()
        worker, step = (0, 1) if info is None else (info.id, info.num_workers)
        count = self.count // 3 if worker == 0 and step > 1 else self.count
        return iter([(torch.tensor(i), worker) for i in range(worker, count, step)])

    def __len__(self):
        return self.count


def nested(i):
    return {
        "a": (torch.full((2, 3), i), [i, float(i)]),
        "b": {"c": np.full(3, i, "f2"), "name": f"sample {i}"},
    }


def noise(i):
    return torch.rand(2), np.random.rand(2), random.random(), data.get_worker_info() is None


def ragged(i):
    return torch.arange(1, i + 2)


def pad(samples):
    lengths = [len(one) for one in samples]
    return torch.nn.utils.rnn.pad_sequence(samples, batch_first=True), lengths


def arrays_and_more(samples):
    columns = torch.stack(samples).T
    array = np.asfortranarray(np.arange(6.0).reshape(2, 3))
    return {
        "same": (columns, columns),
        "array": array,
        "set": {1, 2},
        "none": None,
        "empty": torch.empty(0, 3),
    }


def assert_same(ours, theirs):
    assert type(ours) is type(theirs)
    if isinstance(theirs, torch.Tensor):
        assert ours.dtype == theirs.dtype
        assert ours.stride() == theirs.stride()
        assert torch.equal(ours, theirs)
        assert not ours.requires_grad
    elif isinstance(theirs, np.ndarray):
        assert (ours.dtype, ours.shape, ours.strides) == (theirs.dtype, theirs.shape, theirs.strides)
        assert np.array_equal(ours, theirs)
        assert ours.flags.writeable
    elif isinstance(theirs, dict):
        assert list(ours) == list(theirs)
        for key, value in theirs.items():
            assert_same(ours[key], value)
    elif isinstance(theirs, (list, tuple)):
        assert len(ours) == len(theirs)
        for one, other in zip(ours, theirs, strict=True):
            assert_same(one, other)
    else:
        assert ours == theirs


def children():
    found = set()
    for task in Path("/proc/self/task").iterdir():
        with contextlib.suppress(OSError):  # the thread has ended
            found.update(int(pid) for pid in (task / "children").read_text().split())
    return {pid for pid in found if not is_helper(pid)}


@pytest.fixture(autouse=True)
def nothing_is_left():
    processes, arrays = children(), shared_arrays()
    yield
    gc.collect()
    deadline = time.monotonic() + 600
    while children() - processes and time.monotonic() < deadline:
        time.sleep(0.01)
    assert children() <= processes
    assert shared_arrays() <= arrays


def shared_arrays():
    """Of this process' own making, those that somebody has or may still open."""
    segments = json.loads(_core.describe_shared())["segments"]
    return {
        (one["id"], array["block"])
        for one in segments
        if is_own(one)
        for array in one["arrays"]
        if array["users"] or array["handles"] or array["more_handles"]
    }


def is_own(segment):
    return segment["creator"] is not None and segment["creator"]["pid"] == os.getpid()


def is_helper(pid):
    try:
        command = Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return True
    return b"resource_tracker" in command or b"forkserver" in command


def both(dataset, epochs=1, **options):
    """All epochs of our loader, and of theirs."""
    results = []
    for loader_class in (tn.DataLoader, data.DataLoader):
        torch.manual_seed(7)
        random.seed(7)
        np.random.seed(7)
        given = {key: value() if key == "generator" else value for key, value in options.items()}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            loader = loader_class(dataset, **given)
            results.append([list(loader) for _ in range(epochs)])
            results[-1].append(torch.rand(1))  # they have drawn as often from the global generator
    return results


KINDS = {
    "tensors": (data.TensorDataset(torch.arange(40.0).reshape(10, 4), torch.arange(10)), {"batch_size": 4}),
    "shuffled": (Samples(lambda i: i), {"batch_size": 3, "shuffle": True}),
    "generator": (
        Samples(lambda i: i),
        {"batch_size": 3, "shuffle": True, "generator": lambda: torch.Generator().manual_seed(3)},
    ),
    "last dropped": (Samples(lambda i: float(i)), {"batch_size": 4, "drop_last": True}),
    "nested": (Samples(nested), {"batch_size": 4}),
    "named tuples": (Samples(lambda i: Point(i, np.float32(i))), {"batch_size": 4}),
    "dtypes": (
        Samples(
            lambda i: [
                torch.full((3,), i, dtype=kind)
                for kind in (torch.bfloat16, torch.float16, torch.uint8, torch.bool, torch.complex64)
            ]
        ),
        {"batch_size": 4},
    ),
    "bytes": (Samples(lambda i: (b"%d" % i, torch.tensor(i))), {"batch_size": 4}),
    "noise": (Samples(noise), {"batch_size": 2}),
    "padded": (Samples(ragged), {"batch_size": 2, "collate_fn": pad}),
    "collated by hand": (
        Samples(lambda i: torch.ones(3) * i),
        {"batch_size": 4, "collate_fn": arrays_and_more},
    ),
    "not collated": (Samples(lambda i: (torch.ones(3) * i, np.ones(2), "a")), {"batch_size": None}),
    "at once": (AtOnce(None), {"batch_size": 4}),
    "weighted": (
        Samples(lambda i: i),
        {"batch_size": 4, "sampler": data.WeightedRandomSampler([1.0, 2, 3, 4, 5, 6, 7, 8, 9, 10], 12)},
    ),
    "batch sampler": (
        Samples(lambda i: i),
        {"batch_sampler": data.BatchSampler(data.SequentialSampler(range(10)), 3, True)},
    ),
    "empty": (Samples(lambda i: i, 0), {"batch_size": 3}),
    "large indices": (Samples(lambda i: i, 3000), {"batch_size": 1500}),
    "iterated": (Numbers(20), {"batch_size": 3}),
    "iterated, last dropped": (Numbers(20), {"batch_size": 3, "drop_last": True}),
    "iterated, not collated": (Numbers(9), {"batch_size": None}),
}


@pytest.mark.slow
@pytest.mark.parametrize("workers", [0, 1, 2])
@pytest.mark.parametrize("kind", KINDS)
def test_batches_are_those_of_torch(kind, workers):
    dataset, options = KINDS[kind]
    ours, theirs = both(dataset, epochs=2, **forked(workers), **options)
    assert_same(ours, theirs)


def test_three_workers_that_end_at_different_times():
    ours, theirs = both(Numbers(40), batch_size=3, num_workers=3)
    assert_same(ours, theirs)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["noise", "shuffled", "iterated"])
def test_workers_that_persist_give_the_same(kind):
    dataset, options = KINDS[kind]
    ours, theirs = both(dataset, epochs=3, **forked(2), persistent_workers=True, **options)
    assert_same(ours, theirs)


def pid_of(i):
    return os.getpid()


def test_workers_that_persist_are_the_same_processes_also_after_an_epoch_is_left():
    loader = tn.DataLoader(Samples(pid_of, 40), batch_size=2, num_workers=2, persistent_workers=True)
    first = {int(pid) for batch in loader for pid in batch}
    for batch in loader:
        assert int(batch[0]) in first
        break
    again = [int(pid) for batch in loader for pid in batch]
    assert set(again) == first
    assert len(first) == 2
    assert len(again) == 40
    loader._iterator.close()


@pytest.mark.slow
@pytest.mark.parametrize("start", ["spawn", "forkserver"])
def test_start_methods(start):
    dataset = data.TensorDataset(torch.arange(8.0))
    loader = tn.DataLoader(dataset, batch_size=4, num_workers=1, multiprocessing_context=start)
    assert_same(list(loader), list(data.DataLoader(dataset, batch_size=4)))


def test_tensors_lie_in_slots_that_are_used_again():
    loader = tn.DataLoader(Samples(lambda i: (torch.full((64, 8), i), i), 60), batch_size=2, **forked(2))
    batches = iter(loader)
    stats = batches.stats()
    seen = []
    for images, labels in batches:
        for tensor in (images, labels):
            assert 0 <= tensor.data_ptr() - stats.memory < stats.slots * stats.slot_nbytes
        assert not images._is_view()
        images += 1  # writable
        assert torch.equal(labels, images[:, 0, 0] - 1)
        seen.append(images.data_ptr())
    assert len(seen) == 30
    assert len(set(seen)) <= stats.slots < 30


def test_a_consumer_may_keep_every_batch():
    loader = tn.DataLoader(Samples(lambda i: torch.full((100,), i), 60), batch_size=2, **forked(2))
    kept = list(loader)
    assert [int(batch[0, 0]) for batch in kept] == list(range(0, 60, 2))
    assert all(bool((batch == torch.arange(2 * i, 2 * i + 2)[:, None]).all()) for i, batch in enumerate(kept))


def test_batches_beyond_the_slot_come_all_the_same(monkeypatch):
    monkeypatch.setattr(epochs, "SLOT_NBYTES", 1 << 16)
    loader = tn.DataLoader(Samples(lambda i: torch.full((4000 * i,), i)), batch_size=None, **forked(2))
    batches = iter(loader)
    stats = batches.stats()
    is_in_slot = []
    for i, batch in enumerate(batches):
        assert torch.equal(batch, torch.full((4000 * i,), i))
        if len(batch):
            is_in_slot.append(0 <= batch.data_ptr() - stats.memory < stats.slots * stats.slot_nbytes)
    assert is_in_slot == [True, True, *[False] * 7]


def resident_nbytes(loader_process):
    """Of the memory files of feeds that the process maps."""
    text = Path(f"/proc/{loader_process}/smaps").read_text()
    maps = re.findall(r"memfd:tenon-feed.*\n(?:.*\n)*?Rss: +(\d+) kB", text)
    return sum(int(kilobytes) for kilobytes in maps) << 10


def test_slots_have_memory_for_what_they_have_held_alone():
    loader = tn.DataLoader(Samples(lambda i: torch.ones(1 << 20), 12), batch_size=1, **forked(1))
    batches = iter(loader)
    assert next(batches).sum() == 1 << 20
    for batch in batches:
        assert batch.sum() == 1 << 20
    stats = batches.stats()
    assert stats.slot_nbytes > 256 << 20
    assert 4 << 20 <= resident_nbytes(os.getpid()) < stats.slots * (6 << 20)


def test_a_batch_for_which_there_is_no_memory_is_a_memory_error_at_its_place(monkeypatch):
    """The batch needs 2 TiB, of which nothing would be written."""
    monkeypatch.setattr(epochs, "SLOT_NBYTES", 1 << 42)

    class Huge(int):
        pass

    def persistent_id(self, obj):
        if type(obj) is Huge:
            self._take(1 << 41)
        return find(self, obj)

    find = packing.Writer.persistent_id
    monkeypatch.setattr(packing.Writer, "persistent_id", persistent_id)
    loader = tn.DataLoader(
        Samples(lambda i: Huge(i) if i == 1 else i, 4), collate_fn=lambda samples: samples, **forked(1)
    )
    batches = iter(loader)
    assert next(batches) == [0]
    with pytest.raises(MemoryError, match="a batch of 2199023255552 bytes"):
        next(batches)
    assert list(batches) == [[2], [3]]


@pytest.mark.parametrize("workers", [0, 1])
def test_rows_of_a_shared_array_are_samples(workers):
    shared = tn.empty((4, 3), shared=True)
    shared[...] = np.arange(12).reshape(4, 3)
    loader = tn.DataLoader(Samples(lambda i: shared[i], 4), batch_size=2, **forked(workers))
    assert torch.cat(list(loader)).tolist() == np.arange(12).reshape(4, 3).tolist()


class Lines(data.IterableDataset):
    """The lines of a file that is open before there are workers, which share its position."""

    def __init__(self, path):
        self.file = open(path, buffering=1)  # noqa: SIM115

    def __iter__(self):
        return iter(self.file)


def test_an_iterable_dataset_gives_each_row_once(tmp_path):
    path = tmp_path / "rows"
    path.write_text("".join(f"{i}\n" for i in range(5000)))
    loader = tn.DataLoader(Lines(path), batch_size=7, **forked(1))
    assert [int(line) for batch in loader for line in batch] == list(range(5000))


def test_items_of_a_queue_come_once_and_in_order():
    class Items(data.IterableDataset):
        def __iter__(self):
            return iter(queue.get, None)

    queue = multiprocessing.Queue()
    for i in [*range(8), None]:
        queue.put(i)
    loader = tn.DataLoader(Items(), batch_size=None, **forked(1))
    assert list(loader) == list(range(8))


def test_workers_that_meet_at_a_barrier_are_as_many_as_were_asked_for():
    """The barrier breaks if another process is set up, and each sample is made once."""
    barrier = multiprocessing.Barrier(3)
    made = multiprocessing.Array("i", 12)
    set_up = multiprocessing.Value("i", 0)

    def init(worker):
        with set_up:
            set_up.value += 1
        barrier.wait(600)

    def make(i):
        with made:
            made[i] += 1
        return i

    loader = tn.DataLoader(Samples(make, 12), batch_size=2, worker_init_fn=init, **forked(3))
    assert [batch.tolist() for batch in loader] == [[i, i + 1] for i in range(0, 12, 2)]
    assert list(made) == [1] * 12
    assert set_up.value == 3


def test_the_first_batch_has_the_timeout_too():
    batches = iter(tn.DataLoader(Samples(lambda i: time.sleep(3600)), timeout=1, **forked(1)))
    with pytest.raises(RuntimeError, match=re.escape("DataLoader timed out after 1 seconds")):
        next(batches)
    batches.close()


def test_two_iterators_at_a_time():
    loader = tn.DataLoader(Samples(lambda i: i), **forked(1))
    pairs = [(int(one), int(other)) for one, other in zip(loader, loader, strict=True)]
    assert pairs == [(i, i) for i in range(10)]


class TwoArguments(Exception):
    def __init__(self, one, two):
        super().__init__(one, two)


def fails_at_3(i):
    if i == 3:
        raise KeyError("no such picture")
    if i == 5:
        raise TwoArguments(1, 2)
    return torch.tensor(i)


def test_errors_come_at_their_place_and_the_epoch_goes_on():
    outcomes = []
    for loader_class in (tn.DataLoader, data.DataLoader):
        batches = iter(loader_class(Samples(fails_at_3), num_workers=2))
        found = []
        while True:
            try:
                found.append(int(next(batches)))
            except StopIteration:
                break
            except Exception as error:
                found.append((type(error), str(error).partition("\n")[0], "fails_at_3" in str(error)))
        outcomes.append(found)
    assert outcomes[0] == outcomes[1]
    assert outcomes[0][3] == (KeyError, "Caught KeyError in DataLoader worker process 1.", True)
    assert outcomes[0][5][0] is RuntimeError


def fails_to_start(worker):
    raise LookupError("no such disk")


def test_errors_of_the_init_function_and_of_samplers():
    with pytest.raises(LookupError, match="no such disk"):
        list(tn.DataLoader(Samples(lambda i: i), worker_init_fn=fails_to_start, **forked(1)))

    def indices():
        yield from range(4)
        raise LookupError("no more indices")

    with pytest.raises(LookupError, match="no more indices"):
        list(tn.DataLoader(Samples(lambda i: i), sampler=indices(), **forked(1)))


def killed_at_3(i):
    if i == 3:
        os.kill(os.getpid(), signal.SIGKILL)
    return i


def test_a_killed_worker_is_told():
    batches = iter(tn.DataLoader(Samples(killed_at_3), num_workers=2))
    assert [int(next(batches)) for _ in range(3)] == [0, 1, 2]
    with pytest.raises(RuntimeError, match=r"DataLoader worker \(pid \d+\) is killed by signal: Killed"):
        next(batches)
    assert list(batches) == []


class FourOfSeven(torch.utils.data.IterableDataset):
    def __iter__(self):
        return iter(range(7))


def test_a_worker_that_is_killed_with_a_request_of_the_next_epoch_is_told(monkeypatch):
    """The batch before it is of an epoch that has ended: its loss ends nothing."""
    receive = workers.Loop._receive
    reader, writer = os.pipe()

    def told(loop, epoch):
        os.write(writer, b"waits")
        found = receive(loop, epoch)
        if loop._message is not None:
            os.write(writer, b"holds")
            time.sleep(600)
        return found

    monkeypatch.setattr(workers.Loop, "_receive", told)
    options = {"batch_size": 4, "prefetch_factor": 1, "persistent_workers": True, **forked(1)}
    loader = tn.DataLoader(FourOfSeven(), **options)
    assert len(list(loader)) == 2
    for _ in range(loader._iterator._sent + 1):  # the last one waits
        assert os.read(reader, 5) == b"waits"
    batches = iter(loader)
    assert os.read(reader, 5) == b"holds"
    os.kill(batches._workers[0].pid, signal.SIGKILL)
    with pytest.raises(RuntimeError, match="is killed by signal: Killed"):
        next(batches)
    monkeypatch.undo()
    assert len(list(loader)) == 2
    loader._iterator._shutdown_workers()
    os.close(reader)
    os.close(writer)


def test_indices_that_no_worker_has_taken_leave_no_memory():
    before = shared_arrays()
    killing = Samples(killed_at_3, 100_000)
    batches = iter(tn.DataLoader(killing, batch_size=1500, prefetch_factor=8, **forked(2)))
    assert shared_arrays() - before
    with pytest.raises(RuntimeError, match="is killed by signal"):
        list(batches)
    assert shared_arrays() <= before

    loader = tn.DataLoader(
        Samples(lambda i: i, 100_000),
        batch_size=1500,
        prefetch_factor=8,
        persistent_workers=True,
        **forked(2),
    )
    for _ in range(3):
        batches = iter(loader)
        next(batches)
        assert len(shared_arrays() - before) <= 18
    batches.close()


def sleeps(i):
    if i == 1:
        time.sleep(3600)
    return i


@pytest.mark.slow
def test_timeout():
    batches = iter(tn.DataLoader(Samples(sleeps), num_workers=1, timeout=10))
    next(batches)
    with pytest.raises(RuntimeError, match=re.escape("DataLoader timed out after 10 seconds")):
        next(batches)
    batches.close()


@pytest.mark.parametrize(
    "options",
    [
        {"num_workers": -1},
        {"timeout": -1},
        {"prefetch_factor": 2},
        {"persistent_workers": True},
        {"shuffle": True, "sampler": [0]},
        {"batch_sampler": [[0]], "batch_size": 2},
        {"batch_size": None, "drop_last": True},
        {"multiprocessing_context": "fork"},
        {"multiprocessing_context": "thread", "num_workers": 1},
        {"multiprocessing_context": 3, "num_workers": 1},
        {"batch_size": 0},
    ],
)
def test_wrong_arguments_are_refused_as_by_torch(options):
    errors = []
    for loader_class in (tn.DataLoader, data.DataLoader):
        with pytest.raises((ValueError, TypeError)) as caught:
            loader_class(Samples(lambda i: i), **options)
        errors.append((caught.type, str(caught.value)))
    assert errors[0] == errors[1]


def test_attributes_and_lengths():
    for kind, (dataset, options) in KINDS.items():
        options = {key: value for key, value in options.items() if key != "generator"}
        ours, theirs = tn.DataLoader(dataset, **options), data.DataLoader(dataset, **options)
        assert len(ours) == len(theirs), kind
        for name in ("dataset", "batch_size", "num_workers", "collate_fn", "drop_last", "prefetch_factor"):
            assert getattr(ours, name) == getattr(theirs, name)
    with pytest.raises(ValueError, match="batch_size attribute should not be set"):
        ours.batch_size = 3


SCRIPT = """
import torch
from torch import nn
{line}

class Squares(torch.utils.data.Dataset):
    def __len__(self):
        return 64
    def __getitem__(self, index):
        x = torch.tensor([index / 64.0])
        return {{"x": x + 0.01 * torch.randn(1), "y": x * x}}

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(1, 16), nn.Tanh(), nn.Linear(16, 1))
optimizer = torch.optim.Adam(model.parameters(), 0.02)
loader = DataLoader(Squares(), batch_size=16, shuffle=True, num_workers=2)
for epoch in range(3):
    for batch in loader:
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(batch["x"]), batch["y"])
        loss.backward()
        optimizer.step()
    print(epoch, loss.item())
"""


@pytest.mark.slow
def test_a_script_needs_but_another_import():
    outputs = []
    for line in ("from tenon import DataLoader", "from torch.utils.data import DataLoader"):
        command = [sys.executable, "-W", "ignore", "-c", SCRIPT.format(line=line)]
        outputs.append(
            subprocess.run(command, check=True, capture_output=True, text=True, timeout=600).stdout
        )
    assert outputs[0] == outputs[1]
    assert outputs[0].count("\n") == 3


class Tenon(Samples):
    """Arrays of Tenon where `Samples` has those of NumPy."""

    def __getitem__(self, index):
        return tenon_of(self.make(index))


def tenon_of(sample):
    if isinstance(sample, np.ndarray):
        return tn.from_numpy(sample)
    if isinstance(sample, dict):
        return {key: tenon_of(value) for key, value in sample.items()}
    if isinstance(sample, Point):
        return Point(*map(tenon_of, sample))
    return tuple(map(tenon_of, sample)) if isinstance(sample, tuple) else sample


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize(
    "make",
    [
        lambda i: np.full((2, 3), i, "f4"),
        lambda i: np.array(i, "i8"),
        lambda i: (np.full(3, i, "f8"), i),
        lambda i: {"x": np.full(3, i, "u1"), "more": (np.zeros(2, "?"), {"z": np.full((1, 2), i, "i2")})},
        lambda i: Point(np.full(3, i, "f4"), str(i)),
    ],
    ids=["array", "scalar", "tuple", "nested", "named tuple"],
)
def test_arrays_of_tenon_are_stacked_as_those_of_numpy_are(make, workers):
    results = []
    for dataset in (Samples(make), Tenon(make)):
        results.append(list(tn.DataLoader(dataset, batch_size=4, **forked(workers))))
    assert_same(results[1], results[0])
    leaves = [results[1]]
    while leaves:
        leaf = leaves.pop()
        assert not isinstance(leaf, tn.NDArray)
        if isinstance(leaf, (list, tuple, dict)):
            leaves += leaf.values() if isinstance(leaf, dict) else leaf


def test_read_only_and_mixed_arrays_are_stacked():
    def make(i):
        return tn.zeros(2).readonly() if i % 2 else np.ones(2, "f4")

    for kind in (tn.DataLoader, torch.utils.data.DataLoader):
        for first, rows in ((0, [[1, 1], [0, 0]]), (1, [[0, 0], [1, 1]])):
            samples = Samples(lambda i, first=first: make(i + first), 2)
            assert next(iter(kind(samples, batch_size=2))).tolist() == rows
    batch = next(iter(tn.DataLoader(Samples(lambda i: tn.zeros(2).readonly()), batch_size=2)))
    assert batch.tolist() == [[0, 0], [0, 0]]


def test_arrays_of_tenon_of_different_shapes_are_an_error():
    with pytest.raises(RuntimeError, match="equal size"):
        list(tn.DataLoader(Samples(lambda i: tn.zeros(i + 1)), batch_size=2))


class EndsAgainAndAgain(data.IterableDataset):
    """Its iterator of worker w goes on after each end, which comes after w + 1 samples."""

    def __iter__(self):
        self.count = -1
        return self

    def __next__(self):
        self.count += 1
        worker = data.get_worker_info().id
        if self.count % (worker + 2) == worker + 1:
            raise StopIteration
        return 100 * worker + self.count


@pytest.mark.parametrize("size", [None, 1])
def test_a_worker_whose_dataset_has_ended_once_makes_no_more_batches(size):
    found = [
        [int(batch) for batch in kind(EndsAgainAndAgain(), batch_size=size, num_workers=3)]
        for kind in (tn.DataLoader, data.DataLoader)
    ]
    assert found[0] == found[1] == [0, 100, 200, 101, 201, 202]


def test_threads_are_gone_with_the_iterator():
    before = threading.active_count()
    batches = iter(tn.DataLoader(Samples(lambda i: i), **forked(2)))
    next(batches)
    del batches
    assert threading.active_count() == before


class InterruptedSampler:
    """Ctrl-C comes in one of its steps, once."""

    def __init__(self, place):
        self.place = place

    def __len__(self):
        return 20

    def __iter__(self):
        for i in range(20):
            if i == self.place:
                self.place = None
                signal.raise_signal(signal.SIGINT)
            yield i


@pytest.mark.parametrize("persists", [False, True])
def test_an_iteration_that_was_interrupted_in_a_step_does_not_go_on_without_its_rows(persists):
    options = {"num_workers": 2, "prefetch_factor": 1, "persistent_workers": persists}
    loader = tn.DataLoader(range(20), sampler=InterruptedSampler(9), **options)
    batches = iter(loader)
    assert [int(next(batches)) for _ in range(7)] == list(range(7))
    with pytest.raises(KeyboardInterrupt):
        next(batches)
    with pytest.raises(RuntimeError, match=r"was interrupted .*Iterate the loader again"):
        next(batches)
    assert [int(batch) for batch in loader] == list(range(20))
    if persists:
        loader._iterator._shutdown_workers()


class FailingOnce:
    epochs = 0

    def __len__(self):
        return 6

    def __iter__(self):
        self.epochs += 1
        if self.epochs == 2:
            raise ValueError("no order")
        yield from range(6)


def test_workers_persist_when_a_sampler_failed():
    loader = tn.DataLoader(range(6), sampler=FailingOnce(), num_workers=2, persistent_workers=True)
    assert len(list(loader)) == 6
    workers = loader._iterator._workers
    with pytest.raises(ValueError, match="no order"):
        list(loader)
    assert [int(batch) for batch in loader] == list(range(6))
    assert loader._iterator._workers == workers
    loader._iterator._shutdown_workers()
