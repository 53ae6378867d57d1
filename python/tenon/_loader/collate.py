# SPDX-License-Identifier: Apache-2.0
"""What a `DataLoader` takes of PyTorch where that is installed, and has instead where it is not: samplers,
and the collation of samples."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from .._core import NDArray


def in_hand(array: NDArray) -> NDArray:
    """An array that gives views without a lease: of a shared one a copy."""
    return array.copy() if array.shared else array


def find_torch() -> Any:
    """PyTorch with its loader's parts, or None."""
    try:
        import torch
        import torch.utils.data._utils.worker
    except ImportError:
        return None
    return torch


class SequentialSampler:
    def __init__(self, data_source: Any) -> None:
        self.data_source = data_source

    def __iter__(self) -> Iterator[int]:
        return iter(range(len(self.data_source)))

    def __len__(self) -> int:
        return len(self.data_source)


class RandomSampler:
    """Each index once, in an order from a NumPy generator; by default from NumPy's global one."""

    def __init__(self, data_source: Any, generator: Any = None) -> None:
        self.data_source = data_source
        self.generator = generator

    def __iter__(self) -> Iterator[int]:
        import numpy as np

        random = np.random if self.generator is None else self.generator
        yield from random.permutation(len(self.data_source)).tolist()

    def __len__(self) -> int:
        return len(self.data_source)


class BatchSampler:
    def __init__(self, sampler: Any, batch_size: int, drop_last: bool) -> None:
        if not isinstance(batch_size, int) or batch_size < 1:
            raise ValueError(
                f"batch_size should be a positive integer value, but got batch_size={batch_size}"
            )
        self.sampler = sampler
        self.batch_size = batch_size
        self.drop_last = drop_last

    def __iter__(self) -> Iterator[list[Any]]:
        batch = []
        for index in self.sampler:
            batch.append(index)
            if len(batch) == self.batch_size:
                yield batch
                batch = []
        if batch and not self.drop_last:
            yield batch

    def __len__(self) -> int:
        count = len(self.sampler)
        return count // self.batch_size if self.drop_last else -(-count // self.batch_size)


class Endless:
    """The sampler of datasets that are iterated."""

    def __iter__(self) -> Iterator[None]:
        while True:
            yield None


def numpy_collate(samples: Sequence[Any], stack: Any = None) -> Any:
    """As PyTorch's ``default_collate``, with NumPy arrays in place of tensors, also of Tenon's arrays."""
    import numpy as np

    stack = stack or np.stack
    if isinstance(samples[0], NDArray):
        samples = [np.asarray(in_hand(one)) for one in samples]
    first = samples[0]
    if isinstance(first, np.ndarray):
        alike = all(one.shape == first.shape and one.dtype == first.dtype for one in samples)
        return stack(samples) if alike and first.dtype.kind in "biufc" else np.stack(samples)
    if isinstance(first, (np.number, np.bool_, int, float)):
        return np.asarray(samples)
    if isinstance(first, (str, bytes)):
        return samples
    if isinstance(first, Mapping):
        return {key: numpy_collate([one[key] for one in samples], stack) for key in first}
    if isinstance(first, tuple) and hasattr(first, "_fields"):
        columns = zip(*samples, strict=True)
        return type(first)(*(numpy_collate(column, stack) for column in columns))
    if isinstance(first, Sequence):
        if any(len(one) != len(first) for one in samples):
            raise RuntimeError("the sequences of a batch must have one length: give a collate_fn")
        return [numpy_collate(column, stack) for column in zip(*samples, strict=True)]
    raise TypeError(
        f"samples of {type(first)} cannot be collated: they are arrays, numbers, strings, dicts or lists; "
        "give a collate_fn"
    )


def unchanged(sample: Any) -> Any:
    return sample
