# SPDX-License-Identifier: Apache-2.0
"""States that a DataLoader refuses, since they are damaged, or are of another loader."""

import random
import re

import pytest
import soak

import tenon as tn

torch = pytest.importorskip("torch")

from loader_kinds import (  # noqa: E402 - it needs PyTorch
    COUNT,
    Rows,
    Shuffled,
    epochs,
    loader_of,
    plain,
    resumed,
    through_a_file,
)

from tenon._loader import checksums  # noqa: E402 - it needs PyTorch


def test_states_of_other_loaders_are_refused():
    loader = loader_of("in order", num_workers=1)
    next(iter(loader))
    state = loader.state_dict()
    for options, message in (
        ({}, "num_workers=1, but this one has num_workers=0"),
        ({"num_workers": 1, "batch_size": 4}, "batch_size=3, but this one has batch_size=4"),
        ({"num_workers": 1, "drop_last": True}, "drop_last=False, but this one has drop_last=True"),
    ):
        with pytest.raises(ValueError, match=re.escape(f"the state is of a loader with {message}")):
            loader_of("in order", **options).load_state_dict(state)
    with pytest.raises(ValueError, match=re.escape("the state has the keys ['_snapshot']")):
        loader.load_state_dict({"_snapshot": {}})


def changed(source, value):
    """A copy with one part less, or with another value in one place."""
    if isinstance(value, dict) and value:
        key = source.choice(list(value))
        rest = {name: one for name, one in value.items() if name != key}
        return rest if source.random() < 0.3 else {**value, key: changed(source, value[key])}
    if isinstance(value, (list, tuple)) and value:
        place = source.randrange(len(value))
        part = [] if source.random() < 0.3 else [changed(source, value[place])]
        return type(value)([*value[:place], *part, *value[place + 1 :]])
    if isinstance(value, torch.Tensor):
        return value + 1
    if isinstance(value, bool) or not isinstance(value, int):
        return "other" if value is None else None
    return source.choice([-1 - value, value + 1, 10**18 + value, None, [value]])


@pytest.mark.parametrize("workers", [0, 2])
def test_a_damaged_state_is_refused_and_changes_nothing(workers):
    loader = loader_of("noise", num_workers=workers)
    before = through_a_file(loader.state_dict())
    batches = iter(loader)
    next(batches)
    for i in range(soak.times(5000, 100)):
        state = changed(random.Random(i), source := loader.state_dict() if i % 4 else before)
        numbers = [torch.get_rng_state(), random.getstate()]
        told = r"the state (is damaged: its? .*Load what state_dict|has the keys .*: it is not of a)"
        with pytest.raises(ValueError, match=told):
            loader_of("noise", num_workers=workers).load_state_dict(state)
        assert torch.equal(torch.get_rng_state(), numbers[0]) and random.getstate() == numbers[1]
        loader_of("noise", num_workers=workers).load_state_dict(source)


def test_the_places_where_lists_end_are_part_of_a_checksum():
    sums = [
        checksums._checksum({"ahead": lists})
        for lists in ([[1, 2], [3]], [[1], [2, 3]], [[1, 2, 3]], [1, 2, 3])
    ]
    assert len(set(sums)) == 4


def test_parts_of_two_states_are_no_state():
    """As a checkpoint of several ranks is that stores equal names once."""
    loader = loader_of("shuffled")
    batches = iter(loader)
    states = [(next(batches), loader.state_dict())[1] for _ in range(2)]
    with pytest.raises(ValueError, match="the state is damaged: its calls is changed; its last"):
        loader.load_state_dict({**states[0], "calls": states[1]["calls"], "last": states[1]["last"]})


def test_what_a_checkpoint_changes_is_no_damage():
    """Another order of keys, lists for tuples, more keys."""
    loader = loader_of("shuffled")
    batches = iter(loader)
    next(batches)
    state = loader.state_dict()
    state = {key: state[key] for key in reversed(state)} | {"more": 1}
    state["now"]["random"] = [3, list(state["now"]["random"][1]), None]
    again = loader_of("shuffled")
    again.load_state_dict(state)
    assert epochs(again, 1) == [[plain(batch) for batch in batches]]


class Late(Shuffled):
    """Makes its generator in its first epoch."""

    def __iter__(self):
        if "rng" not in vars(self):
            self.rng = random.Random(3)
        return iter(self.rng.sample(range(COUNT), COUNT))


def test_a_generator_that_is_made_in_an_epoch_is_asked_for_in_the_next_one():
    loader = tn.DataLoader(Rows(), sampler=Late())
    batches = iter(loader)
    next(batches)
    inside, rest = loader.state_dict(), [plain(batch) for batch in batches]
    assert epochs(resumed(inside, Rows(), sampler=Late()), 2) == [rest, *epochs(loader, 1)]
    with pytest.raises(ValueError, match=r"generator Late.rng \(1\).*makes its generator in __init__"):
        resumed(loader.state_dict(), Rows(), sampler=Late())


class LateOfTorch(Shuffled):
    """As the sampler of Accelerate."""

    def __init__(self):
        super().__init__()
        self.generator, self.epoch = None, 0

    def __iter__(self):
        if self.generator is None:
            self.generator = torch.Generator()
        self.generator.manual_seed(self.epoch + 7)
        yield from torch.randperm(COUNT, generator=self.generator).tolist()
        self.epoch += 1


def test_a_generator_that_is_none_until_the_first_epoch_goes_on():
    loader = tn.DataLoader(Rows(), sampler=LateOfTorch())
    epochs(loader, 1)
    batches = iter(loader)
    next(batches)
    inside, rest = loader.state_dict(), [plain(batch) for batch in batches]
    assert epochs(resumed(inside, Rows(), sampler=LateOfTorch()), 2) == [rest, *epochs(loader, 1)]
