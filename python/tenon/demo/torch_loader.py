# SPDX-License-Identifier: Apache-2.0
"""The same augmentation behind PyTorch's DataLoader: what one writes today, at its best setting.

The C function fills whole batches into fresh tensors through ctypes; the loader neither stacks nor collates.
"""

from __future__ import annotations

import ctypes
import warnings
from collections.abc import Iterator

import torch
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from tenon.demo.source import SIDE, Source


class AugmentedBatches(IterableDataset[tuple[torch.Tensor, torch.Tensor]]):
    """An endless stream of batches; it can be pickled to worker processes."""

    def __init__(self, source: Source, rows: int, seed: int) -> None:
        self._source = source
        self._rows = rows
        self._seed = seed

    def __iter__(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        digits = self._source.digits
        augment = ctypes.CDLL(str(self._source.library)).augment
        pointer, size = ctypes.c_void_p, ctypes.c_size_t
        augment.argtypes = [pointer, pointer, size, pointer, pointer, size, ctypes.c_uint64]
        images, labels, count = digits.images.ctypes.data, digits.labels.ctypes.data, len(digits.labels)
        worker = get_worker_info()
        seed = self._seed + (worker.id << 32 if worker else 0)
        while True:
            seed += 1
            data = torch.empty(self._rows, 1, SIDE, SIDE)
            label = torch.empty(self._rows, dtype=torch.int64)
            code = augment(data.data_ptr(), label.data_ptr(), self._rows, images, labels, count, seed)
            if code != 0:
                raise RuntimeError(f"augment returned {code}")
            yield data, label


def loader_batches(
    source: Source, rows: int, workers: int, seed: int
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """The endless batches of a DataLoader; its workers run until the iterator is dropped."""
    loader = DataLoader(AugmentedBatches(source, rows, seed), batch_size=None, num_workers=workers)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of fork beside threads, from Python 3.12 on
        return iter(loader)
