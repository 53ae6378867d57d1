# SPDX-License-Identifier: Apache-2.0
"""`DataLoader`: PyTorch's loader over a feed. Samples are collated into recycled slots."""

from __future__ import annotations

import reprlib
from typing import Any, TypeVar

import torch
import torch.utils.data

from .checksums import with_checksums
from .epochs import Processes
from .here import Here
from .state import begin, load, new_state

_T_co = TypeVar("_T_co", covariant=True)


class DataLoader(torch.utils.data.DataLoader[_T_co]):
    """`torch.utils.data.DataLoader` with the same arguments, on recycled slots.

    Worker processes stack the samples of a batch directly in the memory of the consumer's tensors. A slot is
    filled again when the tensors of its batch are gone. Order, seeds, types and errors are those of PyTorch;
    ``docs/loader.md`` lists the differences.

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
        Copies batches to pinned memory of PyTorch if there is an accelerator. The slots are not pinned:
        copies from them with ``non_blocking=True`` would read slots that are filled again.
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

    _progress: Any = None  # of the last iteration
    _numbers_at_first: Any = None  # of samplers, before the first epoch
    _state: Any = None  # from which the next iteration goes on

    def __iter__(self) -> Any:
        if getattr(self._iterator, "is_over", False):  # a worker was killed, or an interrupt came
            self._iterator = None
        return super().__iter__()

    def _get_iterator(self) -> Any:
        if _is_pipe(self.dataset):
            return super()._get_iterator()
        if self.num_workers:
            self.check_worker_number_rationality()
        batches = begin(self, Processes if self.num_workers else Here, self._state)
        self._state = None
        return batches

    def state_dict(self) -> dict[str, Any]:
        """The place after the batches that the consumer has got, of plain Python objects and tensors.

        Samplers, datasets and the iterators of datasets may have ``state_dict`` and ``load_state_dict``.
        ``docs/loader.md`` states what a state holds, and what is run again when a loader goes on from it.

        Raises
        ------
        NotImplementedError
            The dataset is a DataPipe.
        RuntimeError
            A worker could not give the state of its dataset.
        """
        _check_no_pipe(self.dataset)
        if self._state is not None:
            return dict(self._state)
        return with_checksums(new_state(self) if self._progress is None else self._progress.state(self))

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Lets the next iteration go on from a `state_dict`, and sets the global random generators of Python,
        NumPy and PyTorch as they were then.

        Parameters
        ----------
        state_dict : dict
            Of a loader with the same arguments. Empty: a new epoch.

        Raises
        ------
        TypeError
            The state is no dict.
        ValueError
            The state is of a loader of another class, or with other arguments. The next iteration raises it,
            too, if what it must run again gives something else.
        """
        _check_no_pipe(self.dataset)
        if not isinstance(state_dict, dict):
            raise TypeError(
                f"state_dict is {reprlib.repr(state_dict)}: it must be a dict, which state_dict() of a "
                "tenon.DataLoader has returned"
            )
        if state_dict:
            load(self, state_dict)
        self._iterator = self._progress = None
        self._state = dict(state_dict) or None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_progress": None, "_numbers_at_first": None}


def _check_no_pipe(dataset: Any) -> None:
    if _is_pipe(dataset):
        raise NotImplementedError(
            "a loader of a DataPipe has no state: PyTorch's iterator runs, which has none. Use a Dataset or "
            "an IterableDataset, with state_dict and load_state_dict if it is iterable"
        )


def _is_pipe(dataset: Any) -> bool:
    kinds = [getattr(torch.utils.data, name, ()) for name in ("IterDataPipe", "MapDataPipe")]
    return any(isinstance(dataset, kind) for kind in kinds)
