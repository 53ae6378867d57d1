# SPDX-License-Identifier: Apache-2.0
"""`DataLoader`: PyTorch's loader over a feed. Samples are collated into recycled slots."""

from __future__ import annotations

import math
import multiprocessing
import multiprocessing.context
import types
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from .collate import (
    BatchSampler,
    Endless,
    RandomSampler,
    SequentialSampler,
    find_torch,
    numpy_collate,
    unchanged,
)

if TYPE_CHECKING:
    from .epochs import Processes

_FIXED = ("batch_size", "batch_sampler", "sampler", "drop_last", "dataset", "persistent_workers")


class DataLoader:
    """`torch.utils.data.DataLoader` with the same arguments, on recycled slots.

    Worker processes stack the samples of a batch directly in the memory of the consumer's tensors. A slot is
    filled again when the tensors of its batch are gone. Order, seeds, types and errors are those of PyTorch;
    ``docs/loader.md`` lists the differences. Without PyTorch, batches consist of NumPy arrays.

    Parameters
    ----------
    dataset : object
        With ``__getitem__`` and ``__len__``, or a `torch.utils.data.IterableDataset`.
    batch_size : int, optional
        None: samples are not collated.
    shuffle, sampler, batch_sampler, drop_last, generator
        They select the samples of a batch, as in PyTorch.
    num_workers : int
        The number of processes. 0: samples are fetched in this process, without shared memory.
    collate_fn : callable, optional
        Makes a batch from a list of samples. Tensors and arrays in its result are copied to the slot once.
    pin_memory : bool
        Copies batches to pinned memory if there is an accelerator.
    timeout : float
        The seconds that a batch may take; 0: no limit.
    worker_init_fn : callable, optional
        Called with the number of the worker in each worker.
    multiprocessing_context : str or context, optional
        The start method of processes; default: that of `multiprocessing`.
    prefetch_factor : int, optional
        The number of prefetched batches for each worker; default 2.
    persistent_workers : bool
        Keeps the workers from one epoch to the next.
    pin_memory_device : str
        Ignored, as in PyTorch.
    in_order : bool
        False: any free worker makes the next batch. Batches still arrive in order.

    Raises
    ------
    ValueError
        Arguments that exclude each other, or are out of range.
    TypeError
        An invalid multiprocessing context; a dataset that is a DataPipe.
    """

    __class_getitem__: Any = classmethod(types.GenericAlias)
    _is_made = False

    def __init__(
        self,
        dataset: Any,
        batch_size: int | None = 1,
        shuffle: bool | None = None,
        sampler: Any = None,
        batch_sampler: Any = None,
        num_workers: int = 0,
        collate_fn: Any = None,
        pin_memory: bool = False,
        drop_last: bool = False,
        timeout: float = 0,
        worker_init_fn: Any = None,
        multiprocessing_context: Any = None,
        generator: Any = None,
        *,
        prefetch_factor: int | None = None,
        persistent_workers: bool = False,
        pin_memory_device: str = "",
        in_order: bool = True,
    ) -> None:
        _check_numbers(num_workers, timeout, prefetch_factor, persistent_workers)
        torch = find_torch()
        self._is_iterable = _is_iterable(torch, dataset)
        if self._is_iterable:
            for name, value in (
                ("shuffle", shuffle or None),
                ("sampler", sampler),
                ("batch_sampler", batch_sampler),
            ):
                if value is not None:
                    raise ValueError(
                        f"DataLoader with IterableDataset: expected unspecified {name} option, "
                        f"but got {name}={value}"
                    )
        if sampler is not None and shuffle:
            raise ValueError("sampler option is mutually exclusive with shuffle")
        if batch_sampler is not None:
            if batch_size != 1 or shuffle or sampler is not None or drop_last:
                raise ValueError(
                    "batch_sampler option is mutually exclusive with batch_size, shuffle, sampler, and "
                    "drop_last"
                )
            batch_size = None
        elif batch_size is None and drop_last:
            raise ValueError(
                "batch_size=None option disables auto-batching and is mutually exclusive with drop_last"
            )
        kinds: Any = (
            torch.utils.data
            if torch
            else types.SimpleNamespace(
                RandomSampler=RandomSampler, SequentialSampler=SequentialSampler, BatchSampler=BatchSampler
            )
        )
        if sampler is None:
            if self._is_iterable:
                sampler = Endless()
            elif shuffle:
                sampler = kinds.RandomSampler(dataset, generator=generator)
            else:
                sampler = kinds.SequentialSampler(dataset)
        if batch_size is not None and batch_sampler is None:
            batch_sampler = kinds.BatchSampler(sampler, batch_size, drop_last)
        self.dataset = dataset
        self.batch_size = batch_size
        self.sampler = sampler
        self.batch_sampler = batch_sampler
        self.num_workers = num_workers
        self.pin_memory = pin_memory
        self.pin_memory_device = pin_memory_device
        self.drop_last = drop_last
        self.timeout = timeout
        self.worker_init_fn = worker_init_fn
        self.multiprocessing_context = _context(multiprocessing_context, num_workers)
        self.generator = generator
        self.prefetch_factor = 2 if num_workers and prefetch_factor is None else prefetch_factor
        self.persistent_workers = persistent_workers
        self.in_order = in_order
        self._collates_by_default = collate_fn is None and batch_sampler is not None
        if collate_fn is None:
            if batch_sampler is None:
                collate_fn = torch.utils.data.default_convert if torch else unchanged
            else:
                collate_fn = torch.utils.data.default_collate if torch else numpy_collate
        elif torch and batch_sampler is not None:
            self._collates_by_default = collate_fn is torch.utils.data.default_collate
        self.collate_fn = collate_fn
        self._iterator: Processes | None = None
        self._said_length: int | None = None
        self._is_made = True

    def __setattr__(self, name: str, value: Any) -> None:
        if self._is_made and name in _FIXED:
            raise ValueError(f"{name} attribute should not be set after {type(self).__name__} is initialized")
        super().__setattr__(name, value)

    def __iter__(self) -> Iterator[Any]:
        from .epochs import Here, Processes  # needs NumPy

        if self.num_workers == 0:
            return Here(self)
        if not self.persistent_workers:
            return Processes(self)
        if self._iterator is None or self._iterator.is_closed:
            self._iterator = Processes(self)
        else:
            self._iterator.reset(self)
        return self._iterator

    def __len__(self) -> int:
        if not self._is_iterable:
            return len(self._index_sampler)
        length = self._said_length = len(self.dataset)
        if self.batch_size is None:
            return length
        return length // self.batch_size if self.drop_last else math.ceil(length / self.batch_size)

    @property
    def _auto_collation(self) -> bool:
        return self.batch_sampler is not None

    @property
    def _index_sampler(self) -> Any:
        return self.sampler if self.batch_sampler is None else self.batch_sampler


def _check_numbers(workers: int, timeout: float, prefetch: int | None, persists: bool) -> None:
    if workers < 0:
        raise ValueError(
            "num_workers option should be non-negative; use num_workers=0 to disable multiprocessing."
        )
    if timeout < 0:
        raise ValueError("timeout option should be non-negative")
    if workers == 0 and prefetch is not None:
        raise ValueError("prefetch_factor option could only be specified in multiprocessing: num_workers > 0")
    if prefetch is not None and prefetch < 0:
        raise ValueError("prefetch_factor option should be non-negative")
    if persists and workers == 0:
        raise ValueError("persistent_workers option needs num_workers > 0")


def _is_iterable(torch: Any, dataset: Any) -> bool:
    if torch is None:
        return not hasattr(dataset, "__getitem__") and hasattr(dataset, "__iter__")
    for name in ("IterDataPipe", "MapDataPipe"):
        if isinstance(dataset, getattr(torch.utils.data, name, ())):
            raise TypeError("DataPipes are not supported: use torch.utils.data.DataLoader for them")
    return isinstance(dataset, torch.utils.data.IterableDataset)


def _context(given: Any, workers: int) -> Any:
    if given is None:
        return None
    if workers == 0:
        raise ValueError(
            "multiprocessing_context can only be used with multi-process loading (num_workers > 0), "
            f"but got num_workers={workers}"
        )
    if isinstance(given, str):
        if given not in multiprocessing.get_all_start_methods():
            raise ValueError(
                "multiprocessing_context option should specify a valid start method in "
                f"{multiprocessing.get_all_start_methods()!r}, but got multiprocessing_context={given!r}"
            )
        return multiprocessing.get_context(given)
    if not isinstance(given, multiprocessing.context.BaseContext):
        raise TypeError(
            "multiprocessing_context option should be a valid context object or a string specifying the "
            f"start method, but got multiprocessing_context={given}"
        )
    return given
