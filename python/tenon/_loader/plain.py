# SPDX-License-Identifier: Apache-2.0
"""The parts of `torch.utils.data` that a `DataLoader` uses, for programs without PyTorch."""

from __future__ import annotations

import math
import os
import types
import warnings
from collections.abc import Iterator
from typing import Any

from .collate import numpy_collate, unchanged

_FIXED = ("batch_size", "batch_sampler", "sampler", "drop_last", "dataset", "persistent_workers")


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


class Kind:
    """The kinds of datasets."""

    Map = 0
    Iterable = 1


class Fetcher:
    """Takes the samples of a batch from a dataset, in this process or in a worker."""

    def __init__(self, dataset: Any, is_iterable: bool, auto_collation: bool, drop_last: bool) -> None:
        self.dataset = dataset
        self._auto_collation = auto_collation
        self._drop_last = drop_last
        self.dataset_iter = iter(dataset) if is_iterable else None
        self.ended = False

    def fetch(self, index: Any) -> Any:
        """One batch's samples, not collated. StopIteration: the dataset is exhausted."""
        if self.dataset_iter is not None:
            return self._take(index)
        if not self._auto_collation:
            return self.dataset[index]
        if getattr(self.dataset, "__getitems__", None):
            return self.dataset.__getitems__(index)
        return [self.dataset[one] for one in index]

    def _take(self, index: Any) -> Any:
        if self.ended:
            raise StopIteration
        assert self.dataset_iter is not None
        if not self._auto_collation:
            try:
                return next(self.dataset_iter)
            except StopIteration:
                self.ended = True
                raise
        samples = []
        for _ in index:
            try:
                samples.append(next(self.dataset_iter))
            except StopIteration:
                self.ended = True
                break
        if not samples or (self._drop_last and len(samples) < len(index)):
            raise StopIteration
        return samples


class DataLoader:
    """The arguments of a loader and their checks. Named as PyTorch's, since subclasses use names that Python
    makes of the class's: ``_DataLoader__initialized``."""

    __class_getitem__: Any = classmethod(types.GenericAlias)
    __initialized = False

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
        is_iterable = not hasattr(dataset, "__getitem__") and hasattr(dataset, "__iter__")
        if is_iterable:
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
        if sampler is None:
            if is_iterable:
                sampler = Endless()
            elif shuffle:
                sampler = RandomSampler(dataset, generator)
            else:
                sampler = SequentialSampler(dataset)
        if batch_size is not None and batch_sampler is None:
            batch_sampler = BatchSampler(sampler, batch_size, drop_last)
        if collate_fn is None:
            collate_fn = unchanged if batch_sampler is None else numpy_collate
        self.dataset = dataset
        self.batch_size = batch_size
        self.sampler = sampler
        self.batch_sampler = batch_sampler
        self.num_workers = num_workers
        self.collate_fn = collate_fn
        self.pin_memory = pin_memory
        self.pin_memory_device = pin_memory_device
        self.drop_last = drop_last
        self.timeout = timeout
        self.worker_init_fn = worker_init_fn
        self.multiprocessing_context = multiprocessing_context
        self.generator = generator
        self.prefetch_factor = 2 if num_workers and prefetch_factor is None else prefetch_factor
        self.persistent_workers = persistent_workers
        self.in_order = in_order
        self._dataset_kind = Kind.Iterable if is_iterable else Kind.Map
        self._iterator: Any = None
        self._IterableDataset_len_called: int | None = None
        self.__initialized = True
        self.check_worker_number_rationality()

    def __setattr__(self, name: str, value: Any) -> None:
        if self.__initialized and name in _FIXED:
            raise ValueError(f"{name} attribute should not be set after {type(self).__name__} is initialized")
        if name == "multiprocessing_context":
            value = _context(value, self.num_workers)
        super().__setattr__(name, value)

    def __iter__(self) -> Any:
        if not self.persistent_workers:
            return self._get_iterator()
        if self._iterator is None:
            self._iterator = self._get_iterator()
        else:
            self._iterator._reset(self)
        return self._iterator

    def _get_iterator(self) -> Any:
        """Without workers."""
        return SingleProcessIterator(self)

    def __len__(self) -> int:
        if self._dataset_kind == Kind.Map:
            return len(self._index_sampler)
        length = self._IterableDataset_len_called = len(self.dataset)
        if self.batch_size is None:
            return length
        return length // self.batch_size if self.drop_last else math.ceil(length / self.batch_size)

    def check_worker_number_rationality(self) -> None:
        """Warns of more workers than processors."""
        processors = len(os.sched_getaffinity(0))
        if self.num_workers > processors:
            warnings.warn(
                f"This DataLoader will create {self.num_workers} worker processes in total. Our suggested "
                f"max number of worker in current system is {processors}, which is smaller than what this "
                "DataLoader is going to create.",
                stacklevel=3,
            )

    @property
    def _auto_collation(self) -> bool:
        return self.batch_sampler is not None

    @property
    def _index_sampler(self) -> Any:
        return self.sampler if self.batch_sampler is None else self.batch_sampler


class BaseIterator:
    """One pass over a loader."""

    def __init__(self, loader: Any) -> None:
        self._dataset = loader.dataset
        self._dataset_kind = loader._dataset_kind
        self._IterableDataset_len_called = loader._IterableDataset_len_called
        self._auto_collation = loader._auto_collation
        self._drop_last = loader.drop_last
        self._index_sampler = loader._index_sampler
        self._num_workers = loader.num_workers
        self._pin_memory = False
        self._pin_memory_device = None
        if loader.pin_memory:
            warnings.warn(
                "'pin_memory' argument is set as true but no accelerator is found, then device pinned memory "
                "won't be used.",
                stacklevel=4,
            )
        self._timeout = loader.timeout
        self._collate_fn = loader.collate_fn
        self._sampler_iter = iter(self._index_sampler)
        self._base_seed = _draw_seed(loader.generator)
        self._persistent_workers = loader.persistent_workers
        self._num_yielded = 0

    def _reset(self, loader: Any, first_iter: bool = False) -> None:
        self._sampler_iter = iter(self._index_sampler)
        self._num_yielded = 0
        self._IterableDataset_len_called = loader._IterableDataset_len_called

    def __iter__(self) -> Any:
        return self

    def __len__(self) -> int:
        return len(self._index_sampler)

    def __next__(self) -> Any:
        data = self._next_data()
        self._num_yielded += 1
        length = self._IterableDataset_len_called
        if length is not None and self._num_yielded > length:
            warnings.warn(
                f"Length of IterableDataset {self._dataset} was reported to be {length}"
                f"(when accessing len(dataloader)), but {self._num_yielded} samples have been fetched. ",
                stacklevel=2,
            )
        return data

    def _next_index(self) -> Any:
        return next(self._sampler_iter)

    def _next_data(self) -> Any:
        raise NotImplementedError

    def __getstate__(self) -> Any:
        raise NotImplementedError(f"{type(self).__name__} cannot be pickled")


class SingleProcessIterator(BaseIterator):
    """Without workers."""

    def __init__(self, loader: Any) -> None:
        super().__init__(loader)
        if self._timeout != 0:
            raise AssertionError("timeout needs num_workers > 0")
        is_iterable = self._dataset_kind == Kind.Iterable
        self._dataset_fetcher = Fetcher(self._dataset, is_iterable, self._auto_collation, self._drop_last)

    def _next_data(self) -> Any:
        return self._collate_fn(self._dataset_fetcher.fetch(self._next_index()))


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


def _context(given: Any, workers: int) -> Any:
    if given is None:
        return None
    if workers == 0:
        raise ValueError(
            "multiprocessing_context can only be used with multi-process loading (num_workers > 0), "
            f"but got num_workers={workers}"
        )
    import multiprocessing.context

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


def _draw_seed(generator: Any) -> int:
    import numpy as np

    if generator is None:
        return int(np.random.randint(0, 2**63 - 1, dtype=np.int64))
    return int(generator.integers(0, 2**63 - 1))
