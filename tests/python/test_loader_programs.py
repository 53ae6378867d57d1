# SPDX-License-Identifier: Apache-2.0
"""Loaders that go on from a state in random programs. Oracle: the program without a stop.

A program iterates two epochs, of which it may leave some, and then two more. It stops at each place. A new
loader goes on from the state there, after other random numbers, with the rest of the program. It may stop
once more."""

import importlib.util
import random

import numpy as np
import pytest
import soak

import tenon as tn

torch = pytest.importorskip("torch")
data = torch.utils.data

from loader_kinds import (  # noqa: E402 - it needs PyTorch
    ByEpoch,
    Going,
    Noise,
    NoisyNumbers,
    Numbers,
    NumbersByPlace,
    NumbersThatReset,
    NumbersWithState,
    OwnIterator,
    Repeating,
    Rows,
    StatefulBatches,
    WithGenerators,
    forked,
    generator,
    plain,
    seed,
    through_a_file,
)

LEFT = range(5)  # how many batches a program takes of an epoch that it leaves


class OneBuffer:
    """A batch sampler that fills the same buffer again for each batch, of 2 indices."""

    def __init__(self, count, buffer):
        self.count, self.buffer = count // 2 * 2, buffer

    def __iter__(self):
        for i, index in enumerate(torch.randperm(self.count).tolist()):
            if isinstance(self.buffer[0], list):
                self.buffer[i % 2][0] = index
            else:
                self.buffer[i % 2] = index
            if i % 2:
                yield self.buffer

    def __len__(self):
        return self.count // 2


class Nested(Rows):
    """Takes an index in a list."""

    def __getitem__(self, index):
        return index[0]


class AtItsEnd(data.Sampler):
    """Prepares the order of the next epoch at the end of this one."""

    def __init__(self, count):
        self.epoch, self.count = 0, count
        self.rng = random.Random(7)
        self.step = 1

    def __iter__(self):
        for i in range(self.count):
            yield (i * self.step + self.epoch) % self.count
        self.epoch += 1
        self.step = self.rng.choice((1, -1, self.count - 1))

    def __len__(self):
        return self.count


class SeededByEpoch(data.RandomSampler):
    """Seeds its generator with its epoch and counts epochs at their ends, as Accelerate's sampler does."""

    def __init__(self, source):
        super().__init__(source, generator=torch.Generator())
        self.epoch = 0

    def __iter__(self):
        self.generator.manual_seed(self.epoch + 5)
        yield from super().__iter__()
        self.epoch += 1


class OfRank:
    """Each second batch of a batch sampler, as Accelerate shards it."""

    def __init__(self, batch_sampler, rank):
        self.batch_sampler, self.rank = batch_sampler, rank

    def __iter__(self):
        for i, batch in enumerate(self.batch_sampler):
            if i % 2 == self.rank:
                yield batch

    def __len__(self):
        return len(range(self.rank, len(self.batch_sampler), 2))


def batches_of_rank(rows, rank):
    return OfRank(data.BatchSampler(data.RandomSampler(rows, generator=generator()), 2, False), rank)


def weights(rows):
    return [1.0 + i % 3 for i in range(len(rows))]


# Options of a loader over so many rows. Those that take a batch sampler have no size of a batch.
SAMPLERS = {
    "shuffled": lambda rows: {"shuffle": True},
    "with the loader's generator": lambda rows: {"shuffle": True, "generator": generator()},
    "with a generator": lambda rows: {"sampler": data.RandomSampler(rows, generator=generator())},
    "replaced": lambda rows: {"sampler": data.RandomSampler(rows, True, 37, generator())},
    "more than once": lambda rows: {
        "sampler": data.RandomSampler(rows, False, 2 * len(rows) + 1, generator())
    },
    "weighted": lambda rows: {"sampler": data.WeightedRandomSampler(weights(rows), len(rows))},
    "weighted, with a generator": lambda rows: {
        "sampler": data.WeightedRandomSampler(weights(rows), 9, True, generator())
    },
    "a subset": lambda rows: {"sampler": data.SubsetRandomSampler(range(1, len(rows)), generator())},
    "distributed": lambda rows: {"sampler": data.DistributedSampler(rows, 2, 1, seed=3)},
    "by epoch": lambda rows: {"sampler": ByEpoch()},
    "at its end": lambda rows: {"sampler": AtItsEnd(len(rows))},
    "seeded by epoch": lambda rows: {"sampler": SeededByEpoch(rows)},
    "own generators": lambda rows: {"sampler": WithGenerators()},
    "with a state": lambda rows: {"sampler": Going()},
    "with the state of its end": lambda rows: {"sampler": Repeating()},
    "batches of a rank": lambda rows: {"batch_sampler": batches_of_rank(rows, 1)},
    "batches with a state": lambda rows: {"batch_sampler": StatefulBatches(data.RandomSampler(rows))},
    "batches of a sampler that counts": lambda rows: {
        "batch_sampler": data.BatchSampler(SeededByEpoch(rows), 3, True)
    },
    "one list": lambda rows: {"batch_sampler": OneBuffer(len(rows), [0, 0])},
    "one nested list": lambda rows: {"batch_sampler": OneBuffer(len(rows), [[0], [0]])},
    "one array": lambda rows: {"batch_sampler": OneBuffer(len(rows), np.zeros(2, int))},
    "one tensor": lambda rows: {"batch_sampler": OneBuffer(len(rows), torch.zeros(2, dtype=int))},
}
if importlib.util.find_spec("torchdata"):
    from torchdata.stateful_dataloader import sampler as theirs

    SAMPLERS |= {
        "torchdata's, distributed": lambda rows: {"sampler": theirs.StatefulDistributedSampler(rows, 2, 0)},
        "torchdata's": lambda rows: {"sampler": theirs.RandomSampler(rows, generator=generator())},
    }
# Before it is asked for a row, an iteration of these that goes on has not begun, and the next one may go on
# in its place. So programs do not leave their epochs.
WITH_STATES = {name for name in SAMPLERS if "state" in name or "torchdata" in name}
ITERATED = (Numbers, NoisyNumbers, NumbersByPlace, NumbersWithState, NumbersThatReset, OwnIterator)
WITH_STATES |= set(ITERATED[2:])


class Program:
    """Random, from a seed: how a loader is made, and what is taken of each epoch (None: all)."""

    def __init__(self, number, workers, kind=None):
        source = random.Random(number)
        self.workers = forked(workers)
        if workers:
            self.workers |= {
                "prefetch_factor": source.randint(1, 3),
                "persistent_workers": source.random() < 0.5,
            }
        self.count, self.size = source.randint(9, 22), source.randint(1, 4)
        self.drops_last = source.random() < 0.5
        self.kind = kind or source.choice([*SAMPLERS, *ITERATED])
        self.rows = source.choice((Rows, Noise))
        self.sets_epochs = self.kind == "distributed" and source.random() < 0.7
        # What workers that persist have made of an epoch that is left depends on their speed.
        depends = self.workers.get("persistent_workers") and (self.kind in ITERATED or self.rows is Noise)
        is_whole = depends or self.kind in WITH_STATES
        left = [None if is_whole or source.random() < 0.5 else source.choice(LEFT) for _ in range(2)]
        self.taken = [*left, None, None]

    def __repr__(self):
        return str(vars(self))

    def make(self):
        if self.kind in ITERATED:
            rows, options = self.kind(), {}
        else:
            rows = Nested() if self.kind == "one nested list" else self.rows()
            options = SAMPLERS[self.kind](range(self.count))
        if "batch_sampler" not in options:
            options |= {"batch_size": self.size, "drop_last": self.drops_last}
        rows = rows if "shuffle" not in options else data.Subset(rows, range(self.count))
        return tn.DataLoader(rows, **options, **self.workers)

    def run(self, loader, place=(0, 0), tell=lambda loader, *place: None):
        """The batches from a place on. Tells each place that it comes to."""
        found = []
        try:
            for epoch in range(place[0], len(self.taken)):
                taken = place[1] if epoch == place[0] else 0
                found.append([])
                if self.sets_epochs:
                    loader.sampler.set_epoch(epoch)
                batches = iter(loader)
                while tell(loader, epoch, taken) or taken != self.taken[epoch]:
                    batch = next(batches, None)
                    if batch is None:
                        tell(loader, epoch + 1, 0)
                        break
                    found[-1].append(plain(batch))
                    taken += 1
                del batches
        finally:
            if loader._iterator is not None:
                loader._iterator._shutdown_workers()
        return found

    def check(self, number, stops):
        """Stops at so many places."""
        seed(number)
        expected = self.run(self.make())
        states = []
        seed(number)
        again = self.run(
            self.make(),
            tell=lambda loader, *place: states.append((place, through_a_file(loader.state_dict()))),
        )
        assert again == expected
        source = random.Random(number)
        for place, state in source.sample(states, min(stops, len(states))):
            self.check_stop(source, place, state, expected, is_last=source.random() < 0.7)

    def check_stop(self, source, place, state, expected, *, is_last):
        later = []

        def tell(loader, *place):
            if not is_last and source.random() < 0.2 and not later:
                later.append((place, through_a_file(loader.state_dict())))

        seed(source.randrange(1000))
        loader = self.make()
        loader.load_state_dict(state)
        epoch, taken = place
        rest = [expected[epoch][taken:], *expected[epoch + 1 :]] if epoch < len(expected) else []
        assert self.run(loader, place, tell) == rest, place
        for place, state in later:
            self.check_stop(source, place, state, expected, is_last=True)


@pytest.mark.parametrize("kind", [*SAMPLERS, *ITERATED])
def test_each_sampler_and_iterated_dataset_goes_on(kind):
    Program(1, 0, kind).check(1, 12)


@pytest.mark.slow
@pytest.mark.parametrize("kind", [*SAMPLERS, *ITERATED])
def test_each_sampler_and_iterated_dataset_goes_on_at_each_place(kind):
    for number in range(2, soak.times(100, 5)):
        Program(number, 0, kind).check(number, 1000)


@pytest.mark.parametrize("kind", ["with a generator", "at its end", "one nested list", "one tensor"])
@pytest.mark.parametrize("left", [None, 1], ids=["whole", "left"])
def test_a_sampler_that_ended_before_its_batches_came_goes_on(kind, left):
    """Also if the epoch that goes on is left at once."""
    program = Program(4, 1, kind)
    program.count, program.size, program.taken = 9, 4, [left, None]
    program.workers["prefetch_factor"] = 3
    program.check(4, soak.times(100, 5))


@pytest.mark.slow
@pytest.mark.parametrize("number", range(soak.times(1000, 24)))
def test_a_program_with_workers_goes_on_at_each_place(number):
    Program(number, 1 + number % 2).check(number, soak.times(1000, 6))
