# SPDX-License-Identifier: Apache-2.0
"""The collation of samples without PyTorch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from .._core import NDArray


def in_hand(array: NDArray) -> NDArray:
    """The array, or a copy of a shared one, whose views would need a lease."""
    return array.copy() if array.shared else array


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
