# SPDX-License-Identifier: Apache-2.0
"""What worker processes of a `DataLoader` send: each object as it was, once, and errors with any text."""

import os
import threading
import time
from typing import NamedTuple

import numpy as np
import pytest

import tenon as tn

torch = pytest.importorskip("torch")
from loader_kinds import forked  # noqa: E402 - it needs PyTorch


class MadeWhenPickled:
    """The array in its state exists only during the pickling."""

    def __init__(self, value):
        self.mask = np.full(64, value % 2 == 0)
        self.tensor = torch.full((8,), float(value))

    def __getstate__(self):
        return np.packbits(self.mask), self.tensor * 1

    def __setstate__(self, state):
        bits, self.tensor = state
        self.mask = np.unpackbits(bits).astype(bool)


class MadeWhenIterated(list):
    def __reduce__(self):
        return MadeWhenIterated, (), None, (np.full(4, value) for value in self)


class Values(torch.utils.data.Dataset):
    def __init__(self, make, count=8):
        self.make, self.count = make, count

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        return self.make(index)


def itself(samples):
    return samples


def test_arrays_that_exist_only_during_the_pickling_are_not_mixed_up():
    for batch in tn.DataLoader(Values(MadeWhenPickled), batch_size=4, collate_fn=itself, **forked(1)):
        first = batch[0].tensor[0].item()
        assert [one.tensor[0].item() for one in batch] == [first, first + 1, first + 2, first + 3]
        assert [one.mask.all() for one in batch] == [True, False, True, False]
    lists = Values(lambda index: MadeWhenIterated([index, index + 1, index + 2]), 1)
    [[made]] = tn.DataLoader(lists, collate_fn=itself, **forked(1))
    assert [array[0] for array in made] == [0, 1, 2]


class Kept(NamedTuple("Pair", [("x", object), ("y", object)])):
    """Refers to itself for ever, and so to the tensors of which it is made."""

    def __new__(cls, *values):
        KEPT.append(super().__new__(cls, *values))
        return KEPT[-1]


KEPT = []
FORMS = {
    "tensor": lambda x: x,
    "tuple": lambda x: (x, 1),
    "dict": lambda x: {"x": x},
    "kept": lambda x: Kept(x, 1),
}


@pytest.mark.parametrize("form", FORMS)
def test_stacked_tensors_are_copied_only_if_code_of_the_user_keeps_them(form, tmp_path, monkeypatch):
    x, clone, copies = torch.ones(1000), torch.Tensor.clone, tmp_path / "copies"

    def noted(self, *arguments, **options):
        copies.touch()
        return clone(self, *arguments, **options)

    monkeypatch.setattr(torch.Tensor, "clone", noted)
    list(tn.DataLoader(Values(lambda index: FORMS[form](x)), batch_size=4, **forked(1)))
    assert copies.exists() == (form == "kept")


def raise_for_a_file_name(index):
    if index == 1:
        raise ValueError(f"bad file {os.fsdecode(bytes([0x61, 0xFF]))}.jpg")
    return index


def test_an_error_may_name_a_file_whose_name_is_no_utf_8():
    batches = iter(tn.DataLoader(Values(raise_for_a_file_name, 4), batch_size=None, num_workers=1))
    assert next(batches) == 0
    with pytest.raises(ValueError, match=r"bad file a\\udcff\.jpg"):
        next(batches)
    assert list(batches) == [2, 3]


class WithMessage(Exception):
    message = "none"

    def __init__(self, *, message):
        self.message = message
        super().__init__(message)


def raise_with_message(index):
    raise WithMessage(message="no data")


def test_an_error_that_takes_a_message_keeps_its_type():
    with pytest.raises(WithMessage, match="no data"):
        next(iter(tn.DataLoader(Values(raise_with_message, 4), num_workers=1)))


def test_many_large_requests_do_not_fill_the_pipe_of_a_worker_that_waits_for_a_slot():
    indices = [[(7 * batch + k) % 50_000 + 300 for k in range(600)] for batch in range(100)]
    loader = tn.DataLoader(
        Values(lambda index: index, 60_000),
        batch_sampler=indices,
        prefetch_factor=64,
        timeout=60,
        **forked(1),
    )
    kept = list(loader)
    assert [batch.tolist() for batch in kept] == indices


def use_another_device(worker=None):
    torch.set_default_device("meta")


def on_cpu(index):
    return torch.full((3,), float(index), device="cpu"), torch.empty(0, index, device="cpu")


class Numbers(torch.utils.data.Dataset):
    def __len__(self):
        return 60

    def __getitem__(self, i):
        time.sleep(0.0005)
        return i


@pytest.mark.parametrize("options", [{}, {"num_workers": 2, "multiprocessing_context": "fork"}])
def test_threads_that_share_an_iterator_get_each_batch_once_and_all_get_to_its_end(options):
    batches = iter(tn.DataLoader(Numbers(), **options))
    numbers, errors = [], []

    def take():
        try:
            for batch in batches:
                numbers.append(int(batch))
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=take) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(numbers) == list(range(60))
    assert errors == []


@pytest.mark.parametrize("where", ["the consumer", "the workers"])
def test_batches_lie_in_slots_also_with_another_default_device(where):
    init = use_another_device if where == "the workers" else None
    found = []
    for kind in (tn.DataLoader, torch.utils.data.DataLoader):
        batches = iter(kind(Values(on_cpu, 2), worker_init_fn=init, **forked(1)))
        try:
            if where == "the consumer":
                use_another_device()
            found.append([[(str(one.device), one.tolist()) for one in batch] for batch in batches])
        finally:
            torch.set_default_device(None)
    assert found[0] == found[1]
    assert [batch[0] for batch in found[0]] == [("cpu", [[i] * 3]) for i in range(2)]
