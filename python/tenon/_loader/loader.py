# SPDX-License-Identifier: Apache-2.0
"""`DataLoader`: PyTorch's loader over a feed. Samples are collated into recycled slots."""

from __future__ import annotations

from typing import Any, TypeVar

from .base import BaseLoader, Kind, torch
from .state import begin_after

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

    _progress: Any = None  # of the last iterator
    _state: dict[str, Any] | None = None  # for the next iterator

    def __iter__(self) -> Any:
        if getattr(self._iterator, "is_closed", False):  # a worker of it was killed
            self._iterator = None
        return super().__iter__()

    def _get_iterator(self) -> Any:
        if _is_pipe(self.dataset):
            return super()._get_iterator()
        from .epochs import Here, Processes  # needs NumPy

        if self.num_workers:
            self.check_worker_number_rationality()
        make = Processes if self.num_workers else Here
        state, self._state = self._state, None
        if state is None:
            return make(self, None)
        if state["finished"]:
            begin_after(state, self._index_sampler, self.generator)
            return make(self, None)
        if self._dataset_kind == Kind.Map or any(state["workers"]):
            return make(self, state)
        batches = make(self, {**state, "taken": 0, "yielded": 0, "sampler": None})
        for _ in range(state["yielded"]):  # of rows without a state
            next(batches)
        return batches

    def state_dict(self) -> dict[str, Any]:
        """The place in the epoch, after the batches that the consumer has got. It may be pickled.

        Samplers, datasets and their iterators may have ``state_dict`` and ``load_state_dict``. Before the
        first epoch the state is empty.
        """
        if self._state is not None:
            return self._state
        return {} if self._progress is None else dict(self._progress.state())

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """The next iteration goes on behind the batches before a `state_dict`.

        Parameters
        ----------
        state : dict
            Of a loader with the same dataset, sampler and arguments. Empty: a new epoch.

        Raises
        ------
        ValueError
            The state is of a loader of another class, or with another number of workers.
        """
        if state and "finished" not in state:
            raise ValueError(f"the state has the keys {sorted(state)}: it is not of a tenon.DataLoader")
        if state and not state["finished"] and state["num_workers"] != self.num_workers:
            raise ValueError(
                f"the state is of a loader with num_workers={state['num_workers']}, "
                f"but this one has num_workers={self.num_workers}"
            )
        self._iterator = self._progress = None
        self._state = state or None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_progress": None}


def _is_pipe(dataset: Any) -> bool:
    kinds = [getattr(torch.utils.data, name, ()) for name in ("IterDataPipe", "MapDataPipe")] if torch else []
    return any(isinstance(dataset, kind) for kind in kinds)
