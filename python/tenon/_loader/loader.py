# SPDX-License-Identifier: Apache-2.0
"""`DataLoader`: PyTorch's loader over a feed. Samples are collated into recycled slots."""

from __future__ import annotations

from typing import Any, TypeVar

from .base import BaseLoader, torch

_T_co = TypeVar("_T_co", covariant=True)


class DataLoader(BaseLoader[_T_co]):
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
        An invalid multiprocessing context.
    """

    def __iter__(self) -> Any:
        if getattr(self._iterator, "is_closed", False):  # a worker of it was killed
            self._iterator = None
        return super().__iter__()

    def _get_iterator(self) -> Any:
        if self.num_workers == 0 or _is_pipe(self.dataset):
            return super()._get_iterator()
        from .epochs import Processes  # needs NumPy

        self.check_worker_number_rationality()
        return Processes(self)


def _is_pipe(dataset: Any) -> bool:
    kinds = [getattr(torch.utils.data, name, ()) for name in ("IterDataPipe", "MapDataPipe")] if torch else []
    return any(isinstance(dataset, kind) for kind in kinds)
