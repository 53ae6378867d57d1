# SPDX-License-Identifier: Apache-2.0
"""The state of a DataLoader. Oracle: a loader that goes on from a state, in whatever state the generators of
random numbers are, gives the batches that the loader of the state gives from there on, in this epoch and the
next one."""

import contextlib
import io
import itertools
import multiprocessing
import pickle
import random
import re
import subprocess
import sys
import textwrap

import numpy as np
import pytest

import tenon as tn

torch = pytest.importorskip("torch")
data = torch.utils.data


class Rows(data.Dataset):
    def __len__(self):
        return 22

    def __getitem__(self, index):
        return index


class Counted(Rows):
    """Each sample tells how many this process has made before."""

    def __init__(self):
        self.made = 0

    def __getitem__(self, index):
        self.made += 1
        return index, self.made

    def state_dict(self):
        return {"made": self.made}

    def load_state_dict(self, state):
        self.made = state["made"]


class Numbers(data.IterableDataset):
    """Worker w has 16 + 3 w of them."""

    def numbers(self):
        info = data.get_worker_info()
        worker = 0 if info is None else info.id
        return range(100 * worker, 100 * worker + 16 + 3 * worker)

    def __iter__(self):
        return iter(self.numbers())


class Place:
    """An iterator with a state."""

    def __init__(self, numbers):
        self.numbers = numbers
        self.next = 0

    def __iter__(self):
        return self

    def __next__(self):
        if self.next == len(self.numbers):
            raise StopIteration
        self.next += 1
        return self.numbers[self.next - 1]

    def state_dict(self):
        return {"next": self.next, "tensor": torch.tensor(self.next)}

    def load_state_dict(self, state):
        assert int(state["tensor"]) == state["next"]
        self.next = state["next"]


class NumbersByPlace(Numbers):
    def __iter__(self):
        return Place(self.numbers())


class NumbersWithState(Numbers):
    """The dataset itself has the state: the iterations that it began, and the place in the last one."""

    def __init__(self):
        self.begun = 0
        self.next = 0
        self.goes_on = False

    def __iter__(self):
        if not self.goes_on:
            self.begun += 1
            self.next = 0
        self.goes_on = False
        numbers = self.numbers()
        while self.next < len(numbers):
            self.next += 1
            yield numbers[self.next - 1], self.begun

    def state_dict(self):
        return {"begun": self.begun, "next": self.next}

    def load_state_dict(self, state):
        self.begun, self.next, self.goes_on = state["begun"], state["next"], state["next"] > 0


class Shuffled(data.Sampler):
    """Draws from the generators of Python and NumPy."""

    def __iter__(self):
        order = np.random.permutation(22).tolist()
        random.shuffle(order)
        return iter(order)

    def __len__(self):
        return 22


class Going(data.Sampler):
    """A sampler with a state, which has an epoch."""

    def __init__(self):
        self.epoch = self.next = 0

    def __iter__(self):
        while self.next < 22:
            self.next += 1
            yield (self.next * 5 + self.epoch) % 22
        self.epoch += 1
        self.next = 0

    def __len__(self):
        return 22

    def state_dict(self):
        return {"epoch": self.epoch, "next": self.next}

    def load_state_dict(self, state):
        self.epoch, self.next = state["epoch"], state["next"]


def any_generator():
    return torch.Generator().manual_seed(int(torch.randint(1000, ())))


KINDS = {
    "in order": (Rows, dict),
    "shuffled": (Rows, lambda: {"shuffle": True}),
    "generator": (Rows, lambda: {"shuffle": True, "generator": any_generator()}),
    "replaced": (Rows, lambda: {"sampler": data.RandomSampler(range(22), replacement=True)}),
    "not collated": (Rows, lambda: {"batch_size": None, "shuffle": True}),
    "other generators": (Rows, lambda: {"sampler": Shuffled()}),
    "sampler with a state": (Rows, lambda: {"sampler": Going()}),
    "dataset with a state": (Counted, lambda: {"shuffle": True}),
    "iterated": (Numbers, dict),
    "iterated, last dropped": (Numbers, lambda: {"drop_last": True}),
    "iterator with a state": (NumbersByPlace, dict),
    "iterator with a state, not collated": (NumbersByPlace, lambda: {"batch_size": None}),
    "iterated dataset with a state": (NumbersWithState, dict),
}


def loader_of(kind, **more):
    make, options = KINDS[kind]
    return tn.DataLoader(make(), **{"batch_size": 3, **options(), **more})


def plain(batch):
    return [part.tolist() for part in batch] if isinstance(batch, list) else torch.as_tensor(batch).tolist()


def seed(number):
    torch.manual_seed(number)
    random.seed(number)
    np.random.seed(number)


def through_a_file(state):
    """As a checkpoint: only of types that need no code to be loaded."""
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


@contextlib.contextmanager
def ended(loader):
    yield loader
    if loader._iterator is not None:
        loader._iterator._shutdown_workers()


def assert_goes_on(kind, taken, **options):
    seed(1)
    with ended(loader_of(kind, **options)) as loader:
        batches = iter(loader)
        for _ in range(taken):
            next(batches)
        state = through_a_file(loader.state_dict())
        rest = [plain(batch) for batch in batches]
    seed(2)
    with ended(loader_of(kind, **options)) as again:
        again.load_state_dict(state)
        assert again.state_dict() is state
        batches = iter(again)
        found = [plain(next(batches)) for _ in range(min(1, len(rest)))]
        second = through_a_file(again.state_dict())
        found += [plain(batch) for batch in batches]
        assert found == rest
    seed(3)
    with ended(loader_of(kind, **options)) as third:
        third.load_state_dict(second)
        assert [plain(batch) for batch in third] == rest[1:]


@pytest.mark.parametrize("taken", [0, 1, 4])
@pytest.mark.parametrize("kind", KINDS)
def test_a_loader_goes_on_without_workers(kind, taken):
    assert_goes_on(kind, taken)


@pytest.mark.slow
@pytest.mark.parametrize("taken", [0, 1, 4, 5])
@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("kind", KINDS)
def test_a_loader_goes_on_with_workers(kind, workers, taken):
    assert_goes_on(kind, taken, num_workers=workers)


@pytest.mark.slow
@pytest.mark.parametrize("taken", [11, 12, 13])
@pytest.mark.parametrize("kind", ["iterated", "iterator with a state", "iterated dataset with a state"])
def test_a_loader_goes_on_when_workers_have_ended(kind, taken):
    """They have 6 and 7 batches."""
    assert_goes_on(kind, taken, num_workers=2)


@pytest.mark.parametrize("kind", ["shuffled", "sampler with a state", "iterator with a state", "iterated"])
def test_a_loader_goes_on_with_workers_that_persist(kind):
    assert_goes_on(kind, 3, num_workers=2, persistent_workers=True)


class Read(Numbers):
    """Counts the rows that all processes read."""

    def __init__(self):
        self.count = multiprocessing.Value("i", 0)

    def __iter__(self):
        return CountedPlace(self.numbers(), self.count)


class CountedPlace(Place):
    def __init__(self, numbers, count):
        super().__init__(numbers)
        self.count = count

    def __next__(self):
        row = super().__next__()
        with self.count:
            self.count.value += 1
        return row


@pytest.mark.parametrize("workers", [0, 2])
def test_rows_before_the_place_of_an_iterator_are_not_read_again(workers):
    loader = tn.DataLoader(Read(), batch_size=3, num_workers=workers)
    batches = iter(loader)
    for _ in range(4):
        next(batches)
    state = loader.state_dict()
    dataset = Read()
    again = tn.DataLoader(dataset, batch_size=3, num_workers=workers)
    again.load_state_dict(state)
    rest = list(again)
    assert dataset.count.value == sum(map(len, rest)) > 0


@pytest.mark.parametrize("workers", [0, 2])
def test_the_state_is_that_after_the_loop_was_left(workers):
    seed(4)
    loader = loader_of("shuffled", num_workers=workers)
    head = [plain(batch) for batch in itertools.islice(loader, 3)]
    state = loader.state_dict()
    again = loader_of("shuffled", num_workers=workers)
    again.load_state_dict(state)
    tail = [plain(batch) for batch in again]
    assert sorted(itertools.chain(*head, *tail)) == list(range(22))
    assert len(tail) == 5


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("kind", ["shuffled", "generator", "sampler with a state"])
def test_after_an_epoch_the_next_one_is_begun(kind, workers):
    seed(5)
    loader = loader_of(kind, num_workers=workers)
    first = [plain(batch) for batch in loader]
    state = through_a_file(loader.state_dict())
    random_state = torch.get_rng_state()
    second = [plain(batch) for batch in loader]
    assert first != second
    again = loader_of(kind, num_workers=workers)
    again.load_state_dict(state)
    torch.set_rng_state(random_state)
    assert [plain(batch) for batch in again] == second


@pytest.mark.parametrize("workers", [0, 2])
def test_the_epochs_after_the_restored_one_are_the_same_with_a_generator(workers):
    loaders = [loader_of("generator", num_workers=workers) for _ in range(2)]
    batches = iter(loaders[0])
    next(batches)
    loaders[1].load_state_dict(loaders[0].state_dict())
    list(batches)
    list(loaders[1])
    assert [plain(batch) for batch in loaders[0]] == [plain(batch) for batch in loaders[1]]


def test_the_global_generators_go_on_from_where_they_are():
    loader = loader_of("other generators")
    next(iter(loader))
    state = loader.state_dict()
    again = loader_of("other generators")
    again.load_state_dict(state)
    seed(6)
    torch.empty((), dtype=torch.int64).random_()  # the seed of the workers
    expected = torch.rand(1), random.random(), np.random.rand()
    seed(6)
    next(iter(again))
    assert (torch.rand(1), random.random(), np.random.rand()) == expected


def test_seeds_of_workers_are_those_of_the_state():
    class Seeds(Rows):
        def __getitem__(self, index):
            return data.get_worker_info().seed

    loader = tn.DataLoader(Seeds(), num_workers=2)
    batches = iter(loader)
    next(batches)
    again = tn.DataLoader(Seeds(), num_workers=2)
    again.load_state_dict(loader.state_dict())
    assert list(map(int, again)) == list(map(int, batches))


def test_a_loader_before_its_first_epoch_has_an_empty_state():
    loader = loader_of("in order")
    assert loader.state_dict() == {}
    next(iter(loader))
    loader.load_state_dict({})
    assert len(list(loader)) == 8


def test_states_of_other_loaders_are_refused():
    loader = loader_of("in order", num_workers=1)
    next(iter(loader))
    message = "the state is of a loader with num_workers=1, but this one has num_workers=0"
    with pytest.raises(ValueError, match=re.escape(message)):
        loader_of("in order").load_state_dict(loader.state_dict())
    with pytest.raises(ValueError, match=re.escape("the state has the keys ['_snapshot']")):
        loader.load_state_dict({"_snapshot": {}})


def test_a_loader_with_a_state_is_pickled():
    loader = loader_of("shuffled")
    next(iter(loader))
    assert len(list(pickle.loads(pickle.dumps(loader)))) == 8


def test_a_batch_with_a_state_lies_in_a_slot_and_the_state_does_not():
    loader = tn.DataLoader(NumbersByPlace(), batch_size=3, num_workers=1)
    batches = iter(loader)
    stats = batches.stats()

    def lies_in_slot(tensor):
        return 0 <= tensor.data_ptr() - stats.memory < stats.slots * stats.slot_nbytes

    for batch in batches:
        assert lies_in_slot(batch)
        (state,) = loader.state_dict()["workers"]
        assert not lies_in_slot(state["iterator"]["tensor"])


def test_without_torch():
    program = """
    import sys
    sys.modules["torch"] = None
    import numpy as np, tenon as tn
    class Rows:
        def __len__(self): return 22
        def __getitem__(self, i): return i
    for workers in (0, 2):
        for generator in (lambda: None, np.random.default_rng):
            def make():
                return tn.DataLoader(
                    Rows(), batch_size=3, shuffle=True, num_workers=workers, generator=generator()
                )
            loader = make()
            batches = iter(loader)
            next(batches), next(batches)
            state = loader.state_dict()
            again = make()
            again.load_state_dict(state)
            assert [b.tolist() for b in again] == [b.tolist() for b in batches]
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(program)], check=True, timeout=600)
