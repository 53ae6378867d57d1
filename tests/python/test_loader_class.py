# SPDX-License-Identifier: Apache-2.0
"""DataLoader as a subclass of PyTorch's. Oracle: what libraries do with that class does the same here."""

import copy
import os
import pickle
import signal
import subprocess
import sys
import textwrap
import time
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar, NamedTuple

import numpy as np
import pytest

import tenon as tn

torch = pytest.importorskip("torch")
data = torch.utils.data

from loader_kinds import forked  # noqa: E402 - it needs PyTorch

BOTH = (tn.DataLoader, data.DataLoader)


def rows(count=10):
    return data.TensorDataset(torch.arange(count))


def values(loader):
    return [one for (batch,) in loader for one in batch.tolist()]


def lies_in_slot(tensor):
    for line in Path("/proc/self/maps").read_text().splitlines():
        start, end = (int(part, 16) for part in line.split()[0].split("-"))
        if start <= tensor.data_ptr() < end:
            return "memfd:tenon-feed" in line
    raise AssertionError("the tensor has no memory")


def texts(run):
    """Of the warnings of a call, except those of other libraries in the process that dislike forks."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        warnings.filterwarnings("ignore", r".*\bfork\(\)")
        run()
    return [str(one.message) for one in caught]


def refusal(run):
    with pytest.raises(Exception) as caught:
        run()
    return caught.type, str(caught.value)


@pytest.mark.slow
def test_the_class_is_made_at_its_first_use_as_a_subclass_of_torchs():
    program = """
    import sys
    import tenon as tn
    assert "DataLoader" in dir(tn)
    assert "torch" not in sys.modules
    loader_class = tn.DataLoader
    import torch
    assert issubclass(loader_class, torch.utils.data.DataLoader)
    assert isinstance(tn.DataLoader([1]), torch.utils.data.DataLoader)
    assert tn.DataLoader is loader_class
    try:
        tn.DataLoade
    except AttributeError as error:
        assert str(error) == "module 'tenon' has no attribute 'DataLoade'"
    else:
        raise AssertionError
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(program)], check=True, timeout=600)


class Doubled(tn.DataLoader):
    def __init__(self, dataset, factor, **options):
        super().__init__(dataset, **options)
        self.factor = factor

    def __iter__(self):
        for (batch,) in super().__iter__():
            yield (batch * self.factor,)


@pytest.mark.parametrize(
    "again", [copy.copy, lambda loader: pickle.loads(pickle.dumps(loader))], ids=["copy", "pickle"]
)
def test_loaders_and_subclasses_are_copied_and_pickled(again):
    loader = again(tn.DataLoader[int](rows(), batch_size=4, num_workers=1))
    assert type(loader) is tn.DataLoader
    assert values(loader) == list(range(10))
    doubled = again(Doubled(rows(), 2, batch_size=4, num_workers=1))
    assert type(doubled) is Doubled
    assert values(doubled) == list(range(0, 20, 2))
    with pytest.raises(ValueError, match="dataset attribute should not be set after Doubled is initialized"):
        doubled.dataset = rows()


def test_an_iterator_is_not_pickled():
    batches = iter(tn.DataLoader(rows(), num_workers=1))
    with pytest.raises(NotImplementedError):
        pickle.dumps(batches)


@pytest.mark.parametrize("kind", BOTH, ids=["ours", "theirs"])
def test_a_loader_of_torch_takes_the_class(kind):
    loader = kind(rows(), batch_size=4, num_workers=1)
    loader.__class__ = tn.DataLoader
    assert all(lies_in_slot(batch) for (batch,) in loader)
    assert values(loader) == list(range(10))


class Repeated:
    """Sets the epoch of its sampler, as timm's class does."""

    def __init__(self, sampler):
        self.sampler = sampler

    def __iter__(self):
        sampler = getattr(self.sampler, "sampler", self.sampler)
        epoch = getattr(sampler, "epoch", None)
        while True:
            if epoch is not None:
                sampler.set_epoch(epoch)
                epoch += 1
            yield from iter(self.sampler)


class ManyEpochs(data.DataLoader):
    """Workers that live for all epochs, as timm's MultiEpochsDataLoader and others write it beside PyTorch's
    class."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self._DataLoader__initialized = False
        if self.batch_sampler is None:
            self.sampler = Repeated(self.sampler)
        else:
            self.batch_sampler = Repeated(self.batch_sampler)
        self._DataLoader__initialized = True
        self.iterator = None

    def __len__(self):
        return len(self.sampler) if self.batch_sampler is None else len(self.batch_sampler.sampler)

    def __iter__(self):
        if self.iterator is None:
            self.iterator = super().__iter__()
        for _ in range(len(self)):
            yield next(self.iterator)

    def reset(self):
        self.iterator = self._get_iterator()

    def end(self):
        for worker in self.iterator._workers:
            if worker.is_alive():
                worker.terminate()
        self.iterator._shutdown_workers()


class OursForManyEpochs(ManyEpochs, tn.DataLoader):
    pass


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("options", [{"batch_size": 4}, {"batch_size": 4, "drop_last": True}])
@pytest.mark.parametrize("is_sharded", [False, True])
def test_a_subclass_may_keep_one_iterator_for_all_epochs(options, workers, is_sharded):
    found = []
    for kind in (OursForManyEpochs, ManyEpochs):
        torch.manual_seed(5)
        order = {"shuffle": True}
        if is_sharded:
            order = {"sampler": data.DistributedSampler(rows(), num_replicas=2, rank=1)}
        loader = kind(rows(), num_workers=workers, **options, **order)
        epochs = [[batch.clone() for (batch,) in loader] for _ in range(3)]
        found.append([[batch.tolist() for batch in epoch] for epoch in epochs])
        assert len(epochs[0]) == len(loader)
        processes = [worker.pid for worker in getattr(loader.iterator, "_workers", [])]
        assert len(processes) == workers
        if kind is OursForManyEpochs and workers:
            (batch,) = next(iter(loader))
            assert lies_in_slot(batch)
            assert [worker.pid for worker in loader.iterator._workers] == processes
    assert found[0] == found[1]
    assert found[0][0] != found[0][1]


@pytest.mark.parametrize("workers", [0, 2])
def test_a_subclass_that_keeps_one_iterator_has_a_state(workers):
    torch.manual_seed(5)
    loader = OursForManyEpochs(rows(), batch_size=4, shuffle=True, num_workers=workers)
    values(loader)
    next(iter(loader))
    state = loader.state_dict()
    expected = [next(iter(loader))[0].tolist() for _ in range(5)]
    again = OursForManyEpochs(rows(), batch_size=4, shuffle=True, num_workers=workers)
    again.load_state_dict(state)
    assert [next(iter(again))[0].tolist() for _ in range(5)] == expected


def test_a_subclass_may_replace_the_sampler_and_end_the_workers():
    found = []
    for kind in (OursForManyEpochs, ManyEpochs):
        torch.manual_seed(5)
        loader = kind(rows(), batch_size=4, shuffle=True, num_workers=2)
        found.append([values(loader) for _ in range(3)])
        loader.reset()
        found[-1].append(values(loader))
        processes = [worker.pid for worker in loader.iterator._workers]
        assert len(set(processes)) == 2
        loader.end()
        deadline = time.monotonic() + 600
        while any(Path(f"/proc/{pid}").exists() for pid in processes):
            assert time.monotonic() < deadline
            time.sleep(0.01)
    assert found[0] == found[1]
    assert sorted(found[0][0]) == list(range(10))


@pytest.mark.parametrize("persists", [False, True])
def test_workers_of_an_iterator_that_is_gone_are_joined(persists):
    loader = tn.DataLoader(rows(), batch_size=2, num_workers=2, persistent_workers=persists)
    batches = iter(loader)
    workers = batches._workers
    next(batches)
    del batches, loader
    for worker in workers:
        worker.join(60)
        assert not worker.is_alive()
        assert worker.exitcode == 0
        worker.terminate()  # of no effect


class Faulty:
    """Iterators without ``__iter__``, which fail at index 3 and can go on."""

    def __init__(self):
        self.generator = np.random.default_rng(3)
        self.begun = []

    def __iter__(self):
        self.begun.append([])
        return Steps(self.begun[-1])

    def __len__(self):
        return 6


class Steps:
    def __init__(self, given):
        self.given = given

    def __next__(self):
        self.given.append(len(self.given))
        if self.given[-1] == 3:
            raise ValueError("no index 3")
        if len(self.given) > 6:
            raise StopIteration
        return self.given[-1]


def told(batches):
    """Values, and the errors between them."""
    found = []
    while True:
        try:
            found.append(next(batches)[0].tolist())
        except ValueError as error:
            found.append(str(error))
        except StopIteration:
            return found


@pytest.mark.parametrize("workers", [0, 1])
def test_a_sampler_is_iterated_once_in_an_epoch_and_goes_on_after_an_error(workers):
    found = []
    for kind in BOTH:
        sampler = Faulty()
        options = {"prefetch_factor": 1} if workers else {}
        loader = kind(rows(), batch_size=None, sampler=sampler, num_workers=workers, **options)
        found.append([told(iter(loader)) for _ in range(2)])
        if kind is tn.DataLoader:
            assert len(sampler.begun) == 2
    assert found[0] == found[1]
    assert "no index 3" in found[0][0]


class Numbers(data.IterableDataset):
    def __init__(self, count=9):
        self.count = count

    def __iter__(self):
        return iter(range(self.count))

    def __len__(self):
        return 4

    def __repr__(self):
        return "<numbers>"


def test_private_names_that_libraries_read():
    for dataset in (rows(), Numbers()):
        ours, theirs = (kind(dataset, batch_size=4, num_workers=2) for kind in BOTH)
        for name in ("_dataset_kind", "_auto_collation", "_iterator", "_IterableDataset_len_called"):
            assert getattr(ours, name) == getattr(theirs, name)
        assert type(ours._index_sampler) is type(theirs._index_sampler)
        batches = iter(ours)
        assert isinstance(batches, data.dataloader._BaseDataLoaderIter)
        next(batches)
        assert batches._num_yielded == 1
        assert [worker.is_alive() for worker in batches._workers] == [True, True]
        batches._shutdown_workers()
        assert batches._workers == []


@pytest.mark.parametrize("workers", [0, 1, 2])
def test_the_warning_of_a_wrong_length_is_torchs(workers):
    found = []
    for kind in BOTH:
        loader = kind(Numbers(), batch_size=None, num_workers=workers)
        assert len(loader) == 4
        found.append(texts(lambda loader=loader: list(loader)))
    assert found[0] == found[1]
    assert len(found[0]) == 9 * max(workers, 1) - 4


def test_the_warning_of_too_many_workers_is_torchs():
    workers = len(os.sched_getaffinity(0)) + 1
    made = [texts(lambda kind=kind: kind(rows(), num_workers=workers)) for kind in BOTH]
    assert made[0] == made[1]
    assert len(made[0]) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        loaders = [kind(rows(), num_workers=workers) for kind in BOTH]
    begun = [texts(lambda loader=loader: next(iter(loader))) for loader in loaders]
    assert begun[0] == begun[1]
    assert len(begun[0]) == 1


def test_contexts_are_checked_when_they_are_set():
    for workers, context in ((1, "thread"), (1, 3), (0, "fork")):
        loaders = [kind(rows(), num_workers=workers) for kind in BOTH]
        refusals = [
            refusal(
                lambda loader=loader, context=context: setattr(loader, "multiprocessing_context", context)
            )
            for loader in loaders
        ]
        assert refusals[0] == refusals[1]
    loader = tn.DataLoader(rows(), num_workers=1)
    loader.multiprocessing_context = "spawn"
    assert loader.multiprocessing_context.get_start_method() == "spawn"


def largest(samples):
    return (torch.stack([sample for (sample,) in samples]).max()[None],)


def test_a_collation_that_is_set_later_is_used():
    loader = tn.DataLoader(rows(), batch_size=5, num_workers=1)
    assert values(loader) == list(range(10))
    loader.collate_fn = largest
    assert values(loader) == [4, 9]


class Point(NamedTuple):
    x: object
    y: object


class Scaled(Point):
    """Converts what it gets."""

    def __new__(cls, x, y):
        return super().__new__(cls, x + 0, y)


class Checked(dict):
    """Takes only tensors."""

    def update(self, other):
        for key, value in other.items():
            self[key] = value

    def __setitem__(self, key, value):
        if not isinstance(value, torch.Tensor):
            raise ValueError(f"{key} is no tensor: {value}")
        super().__setitem__(key, value)


def checked(x, y):
    return Checked(x=x, y=y)


class Own:
    """A type with a collation of its own."""

    kept: ClassVar = []

    def __init__(self, value):
        self.value = value


class Loop:
    """Refers to itself."""

    def __init__(self, value):
        self.value = value
        self.me = self


def nested(batch, ways):
    return data._utils.collate.collate([one.value for one in batch], collate_fn_map=ways)


def doubled(batch, *, collate_fn_map=None):
    return nested(batch, collate_fn_map) * 2


def changed(batch, *, collate_fn_map=None):
    return nested(batch, collate_fn_map).add_(1)


def turned(batch, *, collate_fn_map=None):
    return nested(batch, collate_fn_map).t_()


def cast(batch, *, collate_fn_map=None):
    result = nested(batch, collate_fn_map)
    result.data = result.int()
    return result


def parts(batch, *, collate_fn_map=None):
    result = nested(batch, collate_fn_map)
    return [result, result[0], result, result.requires_grad_(False)[:, 1]]


def keeping(batch, *, collate_fn_map=None):
    Own.kept.append(nested(batch, collate_fn_map))
    return [Own.kept[0], Own.kept[-1]]


def looping(batch, *, collate_fn_map=None):
    return Loop(nested(batch, collate_fn_map)).me


def failing(batch, *, collate_fn_map=None):
    Own.kept.append(nested(batch, collate_fn_map))
    raise RuntimeError(f"of {len(Own.kept)}")


def plain(batch):
    if isinstance(batch, torch.Tensor):
        return str(batch.dtype), batch.tolist()
    if isinstance(batch, Mapping):
        return type(batch), {key: plain(value) for key, value in batch.items()}
    if isinstance(batch, Loop):
        return plain(batch.value)
    return type(batch), [plain(one) for one in batch]


@pytest.mark.parametrize("way", [doubled, changed, turned, cast, parts, keeping, looping])
def test_types_that_are_added_to_the_map_get_tensors(monkeypatch, way):
    monkeypatch.setitem(data._utils.collate.default_collate_fn_map, Own, way)
    samples = [(Own(torch.arange(3.0) + 10 * i), torch.tensor(i)) for i in range(8)]
    found = [[plain(one) for one in kind(samples, batch_size=2, **forked(1))] for kind in BOTH]
    assert found[0] == found[1]
    assert len(found[0]) == 4


def keeping_a_view(batch, *, collate_fn_map=None):
    result = nested(batch, collate_fn_map)
    Own.kept.append(result[0])
    return result


def test_a_collation_that_keeps_a_view_is_an_error(monkeypatch):
    monkeypatch.setitem(data._utils.collate.default_collate_fn_map, Own, keeping_a_view)
    with pytest.raises(RuntimeError, match="at batch 0"):
        list(tn.DataLoader([Own(torch.arange(3.0))] * 3, **forked(1)))


def test_a_collation_that_keeps_tensors_and_fails_is_an_error_of_its_batch(monkeypatch):
    monkeypatch.setitem(data._utils.collate.default_collate_fn_map, Own, failing)
    batches = iter(tn.DataLoader([Own(torch.arange(3.0))] * 3, **forked(1)))
    for i in range(3):
        with pytest.raises(RuntimeError, match=f"of {i + 1}"):
            next(batches)


@pytest.mark.parametrize("make", [Point, Scaled, checked])
def test_containers_get_tensors(make):
    samples = [make(torch.arange(3.0) + i, torch.tensor(i)) for i in range(5)]
    found = [[plain(one) for one in kind(samples, batch_size=2, num_workers=1)] for kind in BOTH]
    assert found[0] == found[1]


def test_data_pipes_are_those_of_torch():
    if not hasattr(data, "IterDataPipe"):
        pytest.skip("this PyTorch has no DataPipes")
    from torch.utils.data.datapipes.iter import IterableWrapper

    found = []
    for kind in BOTH:
        torch.manual_seed(2)
        pipe = IterableWrapper(range(20)).shuffle().sharding_filter()
        found.append([b.tolist() for b in kind(pipe, batch_size=4, shuffle=True, num_workers=2)])
    assert found[0] == found[1]
    assert sorted(i for batch in found[0] for i in batch) == list(range(20))


@pytest.mark.parametrize("workers", [0, 1])
def test_a_profile_names_each_batch(workers):
    loader = tn.DataLoader(rows(), batch_size=5, num_workers=workers)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        assert values(loader) == list(range(10))
    names = [event.name for event in profile.events()]
    assert sum(name.startswith("enumerate(DataLoader)#") for name in names) == 3  # with the end


def test_a_loader_whose_worker_was_killed_begins_again():
    loader = tn.DataLoader(rows(), batch_size=4, num_workers=1, persistent_workers=True)
    batches = iter(loader)
    os.kill(batches._workers[0].pid, signal.SIGKILL)
    with pytest.raises(RuntimeError, match="is killed by signal"):
        while True:
            next(batches)
    assert values(loader) == list(range(10))
    loader._iterator.close()


INTERRUPTED = r"""
import os, signal, time
import tenon as tn
signal.signal(signal.SIGINT, signal.default_int_handler)  # also where the caller has it ignored
class Stuck:
    def __len__(self): return 4
    def __getitem__(self, i):
        os.write(1, b"loading\n")  # one write a line: print may write the end of the line by itself
        time.sleep(3600)
batches = iter(tn.DataLoader(Stuck(), num_workers=1))
os.write(1, b"%d\n" % batches._workers[0].pid)
next(batches)
"""


@pytest.mark.slow
def test_ctrl_c_ends_the_wait_and_the_workers():
    """The terminal sends it to all processes."""
    process = subprocess.Popen(
        [sys.executable, "-c", INTERRUPTED],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    lines = {process.stdout.readline().strip() for _ in range(2)}  # of two processes, in any order
    assert "loading" in lines
    (pid,) = map(int, lines - {"loading"})
    os.killpg(process.pid, signal.SIGINT)
    _, errors = process.communicate(timeout=600)
    assert errors.rstrip().endswith("KeyboardInterrupt"), errors
    assert errors.count("Traceback") == 1, errors
    assert not Path(f"/proc/{pid}").exists()
