# SPDX-License-Identifier: Apache-2.0
"""Datasets, samplers and loaders for the tests of states: with states, without them, with random numbers."""

import io
import random

import numpy as np
import torch

import tenon as tn

data = torch.utils.data

COUNT = 22


class Rows(data.Dataset):
    def __len__(self):
        return COUNT

    def __getitem__(self, index):
        return index


class Noise(Rows):
    """Draws from all generators of its process."""

    def __getitem__(self, index):
        return index, random.random(), np.random.rand(), torch.rand(())


class Counted(Rows):
    """Each sample tells how many this process has made before."""

    def __init__(self):
        self.made = {"samples": 0}  # which its state refers to

    def __getitem__(self, index):
        self.made["samples"] += 1
        return index, self.made["samples"], random.random()

    def state_dict(self):
        return self.made

    def load_state_dict(self, state):
        self.made = state


class Numbers(data.IterableDataset):
    """Worker w has 16 + 3 w of them."""

    def numbers(self):
        info = data.get_worker_info()
        worker = 0 if info is None else info.id
        return range(100 * worker, 100 * worker + 16 + 3 * worker)

    def __iter__(self):
        return iter(self.numbers())


class NoisyNumbers(Numbers):
    def __iter__(self):
        order = torch.randperm(len(self.numbers()))
        for i in order.tolist():
            yield self.numbers()[i], random.random(), np.random.rand()


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
        return self.numbers[self.next - 1], random.random()

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
        self.begun = self.next = 0
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


class NumbersThatReset(NumbersWithState):
    """Its state after an epoch is that before the next one."""

    def __iter__(self):
        numbers = self.numbers()
        while self.next < len(numbers):
            self.next += 1
            yield numbers[self.next - 1], self.begun
        self.next = 0
        self.begun += 1

    def load_state_dict(self, state):
        self.begun, self.next = state["begun"], state["next"]


class OwnIterator(Numbers):
    """Is its own iterator."""

    def __init__(self):
        self.next = self.begun = 0

    def __iter__(self):
        self.next = 0
        self.begun += 1
        return self

    def __next__(self):
        if self.next == len(self.numbers()):
            raise StopIteration
        self.next += 1
        return self.numbers()[self.next - 1], self.begun

    def state_dict(self):
        return vars(self)

    def load_state_dict(self, state):
        vars(self).update(state)


class Shuffled(data.Sampler):
    """Draws from the generators of Python and NumPy, when it is iterated."""

    def __iter__(self):
        order = np.random.permutation(COUNT).tolist()
        random.shuffle(order)
        return iter(order)

    def __len__(self):
        return COUNT


class WithGenerators(Shuffled):
    """Has generators of its own, of all kinds."""

    def __init__(self):
        self.rng = np.random.default_rng(4)
        self.old = np.random.RandomState(5)
        self.generator = random.Random(6)

    def __iter__(self):
        order = self.rng.permutation(COUNT)
        for i in self.old.permutation(order).tolist():
            yield (i + self.generator.randrange(COUNT)) % COUNT


class ByEpoch(Shuffled):
    """Counts its epochs itself."""

    def __init__(self):
        self.epoch = 0

    def __iter__(self):
        self.epoch += 1
        return iter([i * 5 % COUNT for i in range(self.epoch, COUNT)])


class ByPair(Shuffled):
    """Holds its epoch as a number of NumPy and in a tuple."""

    def __init__(self):
        self.epoch, self.pair = np.int64(0), (0, 3)

    def __iter__(self):
        self.epoch += 1
        self.pair = (self.pair[0] + 2, 3)
        return iter([int(i * 5 + self.epoch + self.pair[0]) % COUNT for i in range(COUNT)])


class OfNumPy(Shuffled):
    """Gives arrays of NumPy, or its numbers."""

    def __init__(self, width):
        self.width = width
        self.epoch = (np.int64(0),)

    def __iter__(self):
        self.epoch = (self.epoch[0] + 1,)
        order = np.random.permutation(COUNT).astype("int32") + self.epoch[0]
        yield from order if self.width is None else order.reshape(-1, self.width)


class Doubled(Rows):
    """What a list and an array give differs."""

    def __getitem__(self, index):
        return index * 2


class Around(Shuffled):
    """Wraps a sampler that has a generator, and names it as it likes."""

    def __init__(self):
        self.inner = data.RandomSampler(range(COUNT), generator=generator())

    def __iter__(self):
        return iter(self.inner)


class Going(Shuffled):
    """Has a state, with its epoch."""

    def __init__(self):
        self.epoch = self.next = 0

    def __iter__(self):
        while self.next < COUNT:
            self.next += 1
            yield (self.next * 5 + self.epoch) % COUNT
        self.epoch += 1
        self.next = 0

    def state_dict(self):
        return vars(self)

    def load_state_dict(self, state):
        vars(self).update(state)


class Repeating(Going):
    """Its state tells of the end of an epoch, not of the next one."""

    def __init__(self):
        super().__init__()
        self.goes_on = False

    def __iter__(self):
        if not self.goes_on:
            self.epoch += 1
            self.next = 0
        self.goes_on = False
        while self.next < COUNT:
            self.next += 1
            yield (self.next * 5 + self.epoch) % COUNT

    def load_state_dict(self, state):
        super().load_state_dict(state)
        self.goes_on = self.next > 0


class SteppingSampler(Shuffled):
    """Its iterator has a state."""

    def __iter__(self):
        return Steps(np.random.permutation(COUNT).tolist())


class Steps:
    def __init__(self, order):
        self.order = order
        self.next = 0

    def __iter__(self):
        return self

    def __next__(self):
        if self.next == len(self.order):
            raise StopIteration
        self.next += 1
        return self.order[self.next - 1]

    def state_dict(self):
        return vars(self)

    def load_state_dict(self, state):
        vars(self).update(state)


class Batches:
    """A batch sampler without a state; batches of one to three."""

    def __init__(self, sampler):
        self.sampler = sampler

    def __iter__(self):
        order = list(self.sampler)
        while order:
            count = 1 + len(order) % 3
            yield order[:count]
            order = order[count:]

    def __len__(self):
        return 10


class StatefulBatches(Batches):
    def __init__(self, sampler):
        super().__init__(sampler)
        self.left = None

    def __iter__(self):
        if self.left is None:
            self.left = list(self.sampler)
        while self.left:
            count = 1 + len(self.left) % 3
            batch, self.left = self.left[:count], self.left[count:]
            yield batch
        self.left = None

    def state_dict(self):
        return {"left": self.left}

    def load_state_dict(self, state):
        self.left = state["left"]


def generator():
    return torch.Generator().manual_seed(8)


KINDS = {
    "in order": (Rows, dict),
    "shuffled": (Rows, lambda: {"shuffle": True}),
    "generator": (Rows, lambda: {"shuffle": True, "generator": generator()}),
    "replaced": (Rows, lambda: {"sampler": data.RandomSampler(range(70), replacement=True, num_samples=40)}),
    "drawn in parts": (
        Noise,
        lambda: {
            "sampler": data.RandomSampler(range(9), num_samples=30, generator=generator()),
            "drop_last": True,
        },
    ),
    "not collated": (Rows, lambda: {"batch_size": None, "shuffle": True}),
    "noise": (Noise, lambda: {"shuffle": True}),
    "global generators": (Rows, lambda: {"sampler": Shuffled()}),
    "own generators": (Rows, lambda: {"sampler": WithGenerators()}),
    "epochs": (Rows, lambda: {"sampler": ByEpoch()}),
    "pair": (Rows, lambda: {"sampler": ByPair()}),
    "numbers of NumPy": (Rows, lambda: {"sampler": OfNumPy(None)}),
    "arrays of NumPy": (Doubled, lambda: {"sampler": OfNumPy(2), "batch_size": None}),
    "around a sampler": (Rows, lambda: {"sampler": Around()}),
    "sampler with a state": (Noise, lambda: {"sampler": Going()}),
    "sampler that ends": (Rows, lambda: {"sampler": Repeating()}),
    "iterator of a sampler": (Rows, lambda: {"sampler": SteppingSampler(), "batch_size": None}),
    "batch sampler": (Noise, lambda: {"batch_sampler": Batches(Shuffled()), "batch_size": 1}),
    "batch sampler with a state": (
        Rows,
        lambda: {"batch_sampler": StatefulBatches(Shuffled()), "batch_size": 1},
    ),
    "dataset with a state": (Counted, lambda: {"shuffle": True}),
    "iterated": (Numbers, dict),
    "iterated, last dropped": (Numbers, lambda: {"drop_last": True}),
    "iterated with noise": (NoisyNumbers, dict),
    "iterator with a state": (NumbersByPlace, dict),
    "iterator with a state, not collated": (NumbersByPlace, lambda: {"batch_size": None}),
    "iterated dataset with a state": (NumbersWithState, dict),
    "iterated dataset that resets": (NumbersThatReset, lambda: {"drop_last": True}),
    "own iterator": (OwnIterator, dict),
}


def forked(workers):
    """Workers that have what the test has made and patched, also where fork is not the start method."""
    return {"num_workers": workers, **({"multiprocessing_context": "fork"} if workers else {})}


def loader_of(kind, cls=tn.DataLoader, **more):
    make, options = KINDS[kind]
    return cls(make(), **{"batch_size": 3, **options(), **forked(more.get("num_workers", 0)), **more})


def plain(batch):
    return (
        [torch.as_tensor(part).tolist() for part in batch]
        if isinstance(batch, (list, tuple))
        else torch.as_tensor(batch).tolist()
    )


def resumed(state, *arguments, **options):
    loader = tn.DataLoader(*arguments, **options)
    loader.load_state_dict(state)
    return loader


def epochs(loader, count):
    return [[plain(batch) for batch in loader] for _ in range(count)]


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
