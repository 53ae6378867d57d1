# SPDX-License-Identifier: Apache-2.0
"""The states of a DataLoader. Oracle: the run without a stop, also that of PyTorch's loader. A loader that
goes on from a state gives the rest of its epoch and the next epoch, wherever the generators were before."""

import contextlib
import itertools
import pickle
import random
import re

import numpy as np
import pytest
import soak

import tenon as tn

torch = pytest.importorskip("torch")
data = torch.utils.data

from loader_kinds import (  # noqa: E402 - it needs PyTorch
    COUNT,
    KINDS,
    Batches,
    ByEpoch,
    Counted,
    Going,
    NoisyNumbers,
    Numbers,
    NumbersByPlace,
    OwnIterator,
    Repeating,
    Rows,
    Shuffled,
    epochs,
    loader_of,
    plain,
    resumed,
    seed,
    through_a_file,
)

SLOW = pytest.mark.slow


@contextlib.contextmanager
def ended(loader):
    try:
        yield loader
    finally:
        if loader._iterator is not None:
            loader._iterator._shutdown_workers()


def states_of(loader, count):
    """The batches of the epochs, and the state before each one and after each epoch."""
    found, states = [], []
    for epoch in range(count):
        found.append([])
        batches = iter(loader)
        while True:
            states.append((epoch, len(found[-1]), through_a_file(loader.state_dict())))
            try:
                found[-1].append(plain(next(batches)))
            except StopIteration:
                break
        states.append((epoch, len(found[-1]), through_a_file(loader.state_dict())))
    return found, states


# By epoch: the first batch, one of each worker, all requests ahead answered once, and later ones.
SOME_PLACES = ((0, 1, 2, 5, 7, 14), (1, 5))


def assert_goes_on(kind, places=None, **options):
    # PyTorch's loader with workers iterates a sampler twice, and this one draws when it is iterated.
    reference = tn.DataLoader if kind == "iterator of a sampler" else data.DataLoader
    seed(1)
    with ended(loader_of(kind, reference, **{**options, "in_order": True})) as loader:
        expected = epochs(loader, 3)
    seed(1)
    with ended(loader_of(kind, **options)) as loader:
        found, states = states_of(loader, 2)
        found += epochs(loader, 1)
    assert found == expected
    for i, (epoch, taken, state) in enumerate(states):
        is_end = i + 1 == len(states) or states[i + 1][0] != epoch
        if places is not None and taken not in places and not is_end:
            continue
        if options and not soak.IS_SOAK and taken not in SOME_PLACES[epoch] and not is_end:
            continue  # many processes
        seed(100 + i)
        with ended(loader_of(kind, **options)) as again:
            again.load_state_dict(state)
            rest = expected[epoch][taken:]
            if not is_end:
                assert epochs(again, 1) == [rest], (epoch, taken)
            assert epochs(again, 1) == [expected[epoch + 1]], (epoch, taken)


@pytest.fixture(params=[True, False], ids=["marked", "not marked"])
def marks(request, monkeypatch):
    set_marks(monkeypatch, request.param)


def set_marks(monkeypatch, are_told):
    """Whether workers tell where they are after each batch, or what they made is made again."""
    from tenon._loader import workers

    monkeypatch.setattr(workers, "MARK_SECONDS", 0.0 if are_told else 1e9)


@pytest.mark.parametrize("kind", KINDS)
def test_a_loader_goes_on_without_workers(kind):
    assert_goes_on(kind)


def test_a_loader_goes_on_with_workers():
    assert_goes_on("noise", places=[3], num_workers=2)


# Whether marks are told, and options.
WAYS = {
    "1": (False, {"num_workers": 1}),
    "2": (True, {"num_workers": 2}),
    "2 persist": (True, {"num_workers": 2, "persistent_workers": True, "prefetch_factor": 3}),
    "3 persist": (False, {"num_workers": 3, "persistent_workers": True, "prefetch_factor": 1}),
    "3 in any order": (False, {"num_workers": 3, "in_order": False}),
}
# Of each two, one tells marks and one does not, and one has workers that persist and one does not.
TWO_WAYS = (("1", "2 persist"), ("2", "3 persist"), ("2 persist", "3 in any order"))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "way"),
    [(kind, way) for i, kind in enumerate(KINDS) for way in soak.times(WAYS, TWO_WAYS[i % len(TWO_WAYS)])],
)
def test_a_loader_goes_on_from_each_batch(monkeypatch, kind, way):
    are_told, options = WAYS[way]
    set_marks(monkeypatch, are_told)
    assert_goes_on(kind, **options)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["noise", "iterated with noise", "iterated dataset with a state"])
def test_workers_without_a_batch_have_a_state(kind):
    seed(1)
    options = {"num_workers": 3, "persistent_workers": True, "batch_size": 20, "prefetch_factor": 1}
    assert_goes_on(kind, **options)


@pytest.mark.slow
def test_a_loader_goes_on_with_workers_that_are_spawned():
    options = {"num_workers": 2, "multiprocessing_context": "spawn"}
    loader = loader_of("noise", **options)
    batches = iter(loader)
    for _ in range(4):
        next(batches)
    state = through_a_file(loader.state_dict())
    rest = [plain(batch) for batch in batches]
    seed(100)
    again = loader_of("noise", **options)
    again.load_state_dict(state)
    assert epochs(again, 1) == [rest]


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize(
    "kind", ["dataset with a state", "sampler with a state", "iterator of a sampler", "own iterator"]
)
def test_a_state_is_a_copy(kind, workers):
    loader = loader_of(kind, num_workers=workers)
    batches = iter(loader)
    next(batches)
    state = loader.state_dict()
    kept = pickle.loads(pickle.dumps(state))
    rest = [plain(batch) for batch in batches]
    for _ in range(2):
        again = loader_of(kind, num_workers=workers)
        again.load_state_dict(state)
        assert epochs(again, 1) == [rest]
    again = loader_of(kind, num_workers=workers)
    again.load_state_dict(kept)
    assert epochs(again, 1) == [rest]


class Faulty(Rows):
    def __getitem__(self, index):
        if index in (4, 13):
            raise ValueError(f"no sample {index}")
        return super().__getitem__(index)


class FaultyNumbers(Numbers):
    def __iter__(self):
        return FaultyPlace(self.numbers())


class FaultyPlace:
    """Has no state, and goes on after an error."""

    def __init__(self, numbers):
        self.numbers = iter(numbers)

    def __next__(self):
        number = next(self.numbers)
        if number % 100 in (4, 13):
            raise ValueError(f"no number {number}")
        return number


class FaultySampler(Shuffled):
    def __iter__(self):
        return FaultyPlace(range(COUNT))


def told(batches):
    """Batches, and the first line of each error between them."""
    found = []
    while True:
        try:
            found.append(plain(next(batches)))
        except ValueError as error:
            found.append(re.findall("no .*", str(error))[-1])
        except StopIteration:
            return found


@pytest.mark.parametrize("workers", [0, pytest.param(1, marks=SLOW), pytest.param(2, marks=SLOW)])
@pytest.mark.parametrize(
    "options",
    [{"dataset": Faulty()}, {"dataset": FaultyNumbers()}, {"dataset": Rows(), "sampler": FaultySampler()}],
    ids=["dataset", "iterable", "sampler"],
)
def test_a_loader_goes_on_after_errors(options, workers, marks):
    options = {**options, "batch_size": None, "num_workers": workers}
    if workers:
        options["prefetch_factor"] = 1
    expected = told(iter(tn.DataLoader(**options)))
    assert any("no " in str(one) for one in expected)
    loader = tn.DataLoader(**options)
    batches = iter(loader)
    for taken in range(len(expected)):
        again = resumed(loader.state_dict(), **options)
        assert told(iter(again)) == expected[taken:], taken
        with contextlib.suppress(ValueError):
            next(batches)


class Closed(Numbers):
    def __init__(self):
        self.is_closed = False

    def __iter__(self):
        try:
            yield from range(20)
        finally:
            self.is_closed = True


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("kind", ["shuffled", "noise", "iterated", "iterator with a state"])
def test_the_state_is_that_after_the_loop_was_left(kind, workers, marks):
    seed(4)
    expected = epochs(loader_of(kind, num_workers=workers), 1)[0]
    seed(4)
    loader = loader_of(kind, num_workers=workers)
    for _ in itertools.islice(loader, 3):
        pass
    again = loader_of(kind, num_workers=workers)
    again.load_state_dict(loader.state_dict())
    assert epochs(again, 1) == [expected[3:]]


def test_the_loop_that_was_left_ends_the_iteration_of_the_dataset():
    dataset = Closed()
    loader = tn.DataLoader(dataset)
    for _ in itertools.islice(loader, 3):
        pass
    assert dataset.is_closed
    assert loader.state_dict()["yielded"] == 3


class Transform(torch.nn.Module):
    """A dataset with weights."""

    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 4)

    def __len__(self):
        return 8

    def __getitem__(self, index):
        return index


class NotImplementedState(Counted):
    def state_dict(self):
        raise NotImplementedError


class BrokenState(Counted):
    def state_dict(self):
        raise KeyError("the place")


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("make", [Transform, NotImplementedState])
def test_weights_and_what_is_not_implemented_are_no_states(make, workers):
    loader = tn.DataLoader(make(), batch_size=2, num_workers=workers)
    batches = iter(loader)
    next(batches)
    state = loader.state_dict()
    part = state["fetcher"] if workers == 0 else (state["marks"][0][1] or {"dataset": None})
    assert part["dataset"] is None
    found = [plain(batch)[0] for batch in resumed(state, make(), batch_size=2, num_workers=workers)]
    assert found == [plain(batch)[0] for batch in batches]


@pytest.mark.parametrize("workers", [0, 1])
def test_a_state_that_fails_is_an_error_of_who_asks_for_it(workers):
    loader = tn.DataLoader(BrokenState(), num_workers=workers)
    batches = iter(loader)
    next(batches)
    with pytest.raises((KeyError, RuntimeError), match="the place"):
        loader.state_dict()
    assert len(list(batches)) == COUNT - 1


def test_a_loader_of_a_data_pipe_refuses():
    if not hasattr(data, "IterDataPipe"):
        pytest.skip("this PyTorch has no DataPipes")
    from torch.utils.data.datapipes.iter import IterableWrapper

    loader = tn.DataLoader(IterableWrapper(range(4)))
    next(iter(loader))
    with pytest.raises(NotImplementedError, match=r"DataPipe has no state.*Use a Dataset"):
        loader.state_dict()
    with pytest.raises(NotImplementedError, match="DataPipe has no state"):
        loader.load_state_dict({})


class InPlace(Shuffled):
    """Shuffles a list that it keeps, and that is too long for a state."""

    def __init__(self):
        self.order = list(range(100))

    def __iter__(self):
        random.shuffle(self.order)
        return iter(self.order)


class Hidden(InPlace):
    """Keeps it where nobody sees it."""

    def __init__(self):
        self.held = {"order": list(range(COUNT))}

    def __iter__(self):
        random.shuffle(self.held["order"])
        return iter(self.held["order"])


class OneByOne(Shuffled):
    """Draws each index when it is asked for it."""

    def __iter__(self):
        for _ in range(COUNT):
            yield random.randrange(COUNT)


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize(
    ("make", "message"), [(InPlace, r"InPlace.order was changed"), (Hidden, "Hidden gave other")]
)
def test_a_sampler_that_changed_in_an_earlier_epoch_is_refused(make, message, workers):
    seed(1)
    loader = tn.DataLoader(Rows(), sampler=make(), num_workers=workers)
    first = iter(loader)
    next(first)
    rest = [
        plain(batch) for batch in resumed(loader.state_dict(), Rows(), sampler=make(), num_workers=workers)
    ]
    assert rest == [plain(batch) for batch in first]
    next(iter(loader))
    again = resumed(loader.state_dict(), Rows(), sampler=make(), num_workers=workers)
    for _ in range(2):  # it does not begin a new epoch instead
        with pytest.raises(ValueError, match=f"cannot go on from the state: {message}.*Give .*state_dict"):
            iter(again)


@pytest.mark.parametrize(("draw", "is_exact"), [(random.random, False), (np.random.rand, True), (None, True)])
@pytest.mark.parametrize("options", [{"dataset": NoisyNumbers()}, {"dataset": Rows(), "sampler": OneByOne()}])
def test_draws_of_the_program_between_those_that_are_run_again_are_seen(options, draw, is_exact):
    if "sampler" not in options and draw is np.random.rand:
        draw = lambda: torch.rand(1)  # noqa: E731 - the dataset draws from that of NumPy
    seed(2)
    loader = tn.DataLoader(**options)
    batches = iter(loader)
    for _ in range(3):
        next(batches)
        if draw is not None:
            draw()
    state = loader.state_dict()
    rest = [plain(batch) for batch in batches]
    seed(3)
    again = resumed(state, **options)
    if is_exact:
        assert epochs(again, 1) == [rest]
    else:
        with pytest.raises(
            ValueError, match=r"and other code drew from the generator random in turn.*Give it"
        ):
            iter(again)


@pytest.mark.parametrize("workers", [0, 2])
def test_data_that_became_shorter_is_refused(workers):
    loader = tn.DataLoader(range(20), num_workers=workers)
    batches = iter(loader)
    for _ in range(9):
        next(batches)
    again = resumed(loader.state_dict(), range(5), num_workers=workers)
    with pytest.raises(
        ValueError, match=r"SequentialSampler ended after 5 of .* indices when it was run again"
    ):
        iter(again)


def test_the_epoch_of_a_distributed_sampler_is_kept():
    def make():
        sampler = data.DistributedSampler(Rows(), num_replicas=2, rank=1, seed=3)
        return tn.DataLoader(Rows(), sampler=sampler, batch_size=2)

    loader = make()
    for epoch in range(3):
        loader.sampler.set_epoch(epoch)
        batches = iter(loader)
        next(batches)
        state = loader.state_dict()
        assert state["numbers"][1] == ({"epoch": epoch} if epoch else {})  # not the rank
        again = make()
        again.load_state_dict(state)
        assert epochs(again, 1)[0] == [plain(batch) for batch in batches]


@pytest.mark.parametrize(
    "options", [{}, {"num_workers": 1}, {"num_workers": 1, "persistent_workers": True}], ids=str
)
def test_an_epoch_that_is_set_after_the_state_was_loaded_holds(options):
    def make():
        sampler = data.DistributedSampler(Rows(), num_replicas=2, rank=1, seed=3)
        return tn.DataLoader(Rows(), sampler=sampler, batch_size=2, **options)

    expected, states = [], []
    with ended(make()) as loader:
        for epoch in range(4):
            loader.sampler.set_epoch(epoch)
            expected += epochs(loader, 1)
            states.append(loader.state_dict())
    for done, following in ((1, 2), (2, 3), (2, 0)):
        with ended(make()) as again:
            again.load_state_dict(states[done])
            again.sampler.set_epoch(following)
            assert epochs(again, 1) == [expected[following]]


def test_a_loader_that_was_used_goes_back_to_a_state_of_its_own():
    loader = tn.DataLoader(Rows(), sampler=ByEpoch(), batch_size=3)
    expected, states = states_of(loader, 3)
    for epoch, taken, state in [one for one in states if one[1] in (0, 4)]:
        loader.load_state_dict(state)
        assert next(iter(loader)).tolist() == expected[epoch][taken]
        next(iter(loader))


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("make", [Going, Repeating, None])
def test_a_state_before_the_first_batch_after_an_epoch_that_was_left(make, workers):
    if make is None:
        pytest.importorskip("torchdata")
        from torchdata.stateful_dataloader.sampler import StatefulDistributedSampler

        def make():
            return StatefulDistributedSampler(Rows(), num_replicas=2, rank=1, seed=4)

    loader = tn.DataLoader(Rows(), sampler=make(), batch_size=3, num_workers=workers)
    next(iter(loader))
    batches = iter(loader)
    again = resumed(loader.state_dict(), Rows(), sampler=make(), batch_size=3, num_workers=workers)
    assert epochs(again, 1) == [[plain(batch) for batch in batches]]


class OneList(Batches):
    """Gives the same list again and again."""

    def __iter__(self):
        batch = []
        for index in range(COUNT):
            batch.append(index)
            if len(batch) == 2:
                yield batch
                batch.clear()


class Sorted(Rows):
    """Changes the list of indices."""

    def __getitems__(self, indices):
        indices.sort(reverse=True)
        return [indices.pop() for _ in range(len(indices))]


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize(
    "options",
    [{"dataset": Rows(), "batch_sampler": OneList(None)}, {"dataset": Sorted(), "batch_size": 2}],
    ids=["sampler", "dataset"],
)
def test_lists_of_indices_that_are_changed_later_are_copied(options, workers):
    loader = tn.DataLoader(**options, num_workers=workers)
    batches = iter(loader)
    next(batches)
    again = resumed(loader.state_dict(), **options, num_workers=workers)
    rest = [plain(batch) for batch in batches]
    assert rest == [[i, i + 1] for i in range(2, COUNT, 2)]
    assert epochs(again, 1) == [rest]


class Interrupted:
    """Rows with an index, or iterated, that are interrupted once."""

    def __init__(self):
        self.is_due = True

    def __getitem__(self, index):
        if index == 7 and self.is_due:
            self.is_due = False
            raise KeyboardInterrupt
        return index

    def __len__(self):
        return 11


class InterruptedNumbers(data.IterableDataset):
    def __init__(self):
        self.rows = Interrupted()

    def __iter__(self):
        return (self.rows[i] for i in range(len(self.rows)))


@pytest.mark.parametrize("make", [Interrupted, InterruptedNumbers])
def test_an_interrupt_without_workers_leaves_the_state_before_its_batch(make):
    loader = tn.DataLoader(make(), batch_size=2)
    batches = iter(loader)
    found = [plain(next(batches)) for _ in range(3)]
    with pytest.raises(KeyboardInterrupt):
        next(batches)
    dataset = make()
    vars(getattr(dataset, "rows", dataset))["is_due"] = False
    rest = epochs(resumed(through_a_file(loader.state_dict()), dataset, batch_size=2), 1)[0]
    assert found + rest == [[0, 1], [2, 3], [4, 5], [6, 7], [8, 9], [10]]
    if make is Interrupted:
        assert [plain(batch) for batch in batches] == rest


class Unforeseen(Shuffled):
    """Has a generator without a state, tensors without elements to read, and an attribute that cannot be
    read."""

    def __init__(self):
        self.rng = random.SystemRandom()
        self.sparse = torch.eye(3)[0].to_sparse()
        self.meta = torch.empty(3, device="meta")

    @property
    def sampler(self):
        raise RuntimeError("not yet")

    def __iter__(self):
        return iter(range(COUNT))


class Strict(Rows):
    """Knows no other attributes."""

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        raise RuntimeError(f"what is {name}?")


@pytest.mark.parametrize("workers", [0, 1])
def test_samplers_and_datasets_with_parts_that_have_no_state_are_iterated(workers):
    loader = tn.DataLoader(Strict(), sampler=Unforeseen(), num_workers=workers)
    batches = iter(loader)
    next(batches)
    again = resumed(loader.state_dict(), Strict(), sampler=Unforeseen(), num_workers=workers)
    assert len(list(again)) == COUNT - 1


def test_a_killed_worker_leaves_the_state_before_its_batch():
    import os
    import signal

    loader = loader_of("noise", num_workers=2)
    seed(5)
    expected = epochs(loader, 1)[0]
    seed(5)
    batches = iter(loader)
    found = [plain(next(batches)), plain(next(batches))]
    for worker in batches._workers:
        os.kill(worker.pid, signal.SIGKILL)
    with pytest.raises(RuntimeError, match="killed by signal"):
        while True:
            found.append(plain(next(batches)))
    assert list(batches) == []
    again = loader_of("noise", num_workers=2)
    again.load_state_dict(loader.state_dict())
    assert found + epochs(again, 1)[0] == expected


def test_the_global_generators_are_those_of_the_state():
    seed(6)
    loader = loader_of("global generators")
    next(iter(loader))
    torch.rand(3)
    state = loader.state_dict()
    expected = torch.rand(1), random.random(), np.random.rand()
    again = loader_of("global generators")
    again.load_state_dict(state)
    next(iter(again))
    assert (torch.rand(1), random.random(), np.random.rand()) == expected


class FromTheDevice(Shuffled):
    def __iter__(self):
        return iter(torch.randperm(COUNT, generator=torch.cuda.default_generators[0]).tolist())


def test_the_generator_of_the_default_device_is_in_a_state(monkeypatch):
    from tenon._loader import generators

    monkeypatch.setattr(generators, "default_device", lambda: torch.device("cuda", 0))
    monkeypatch.setattr(torch.cuda, "default_generators", (torch.Generator().manual_seed(3),))
    loader = tn.DataLoader(Rows(), sampler=FromTheDevice())
    batches = iter(loader)
    next(batches)
    state = through_a_file(loader.state_dict())
    expected = [[plain(batch) for batch in batches], *epochs(loader, 2)]
    torch.cuda.default_generators[0].manual_seed(4)
    assert epochs(resumed(state, Rows(), sampler=FromTheDevice()), 3) == expected


def test_a_loader_before_its_first_epoch_has_the_state_of_the_generators():
    seed(7)
    loader = loader_of("shuffled")
    state = loader.state_dict()
    expected = epochs(loader, 2)
    seed(8)
    again = loader_of("shuffled")
    again.load_state_dict(through_a_file(state))
    assert epochs(again, 2) == expected


def test_an_empty_state_begins_a_new_epoch():
    loader = loader_of("in order")
    batches = iter(loader)
    next(batches)
    loader.load_state_dict(loader.state_dict())
    loader.load_state_dict({})
    assert len(list(loader)) == 8


def test_a_state_that_was_loaded_is_the_state():
    loader = loader_of("noise")
    next(iter(loader))
    state = loader.state_dict()
    again = loader_of("noise")
    again.load_state_dict(state)
    assert again.state_dict() == state


def test_a_loader_with_a_state_is_pickled():
    loader = loader_of("shuffled")
    next(iter(loader))
    assert len(list(pickle.loads(pickle.dumps(loader)))) == 8


@pytest.mark.parametrize("workers", [0, pytest.param(2, marks=SLOW)])
@pytest.mark.parametrize(
    "kind", ["in order", "sampler of torchdata", "counted", "iterated", "by place", "own iterator"]
)
def test_the_rows_are_those_of_torchdata(kind, workers):
    theirs = pytest.importorskip("torchdata.stateful_dataloader")
    from torchdata.stateful_dataloader.sampler import StatefulDistributedSampler

    make, options = {
        "in order": (Rows, dict),
        "sampler of torchdata": (
            Rows,
            lambda: {"sampler": StatefulDistributedSampler(Rows(), num_replicas=2, rank=1, seed=4)},
        ),
        "counted": (Counted, dict),
        "iterated": (Numbers, dict),
        "by place": (NumbersByPlace, dict),
        "own iterator": (OwnIterator, dict),
    }[kind]

    def rows_after(cls, taken):
        loaders = [cls(make(), batch_size=3, num_workers=workers, **options()) for _ in range(2)]
        batches = iter(loaders[0])
        for _ in range(taken):
            next(batches)
        loaders[1].load_state_dict(loaders[0].state_dict())
        return [
            torch.as_tensor(batch[0] if isinstance(batch, list) else batch).tolist() for batch in loaders[1]
        ]

    for taken in (1, 2, 3):
        found = rows_after(tn.DataLoader, taken)
        assert found == rows_after(theirs.StatefulDataLoader, taken)
        assert found
