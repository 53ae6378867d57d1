# SPDX-License-Identifier: Apache-2.0
"""Batches and iterators with the interface of MXNet's ``mx.io``.

`NDArrayIter` splits arrays into batches, `FeedIter` makes such an iterator from a `tenon.Feed`, and
`PrefetchingIter` takes batches of other iterators one batch ahead.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Literal

from ._array.creation import asarray, empty
from ._core import NDArray, from_numpy
from ._data.batches import NO_BATCH, BatchIter, DataBatch, DataDesc, DataIter, describe, is_label
from ._data.prefetching import PrefetchingIter

if TYPE_CHECKING:
    import numpy as np

    from ._data.feed import Feed

__all__ = ["DataBatch", "DataDesc", "DataIter", "FeedIter", "NDArrayIter", "PrefetchingIter"]

_LAST_BATCH = ("pad", "discard", "roll_over", "keep")


class NDArrayIter(DataIter):
    """Batches of the rows of arrays.

    A batch of consecutive rows is a view: nothing is copied, and a write to it changes the array. If the rows
    come from several places, they are gathered into new memory by one copy. This applies to every batch of a
    shuffled iterator, to a batch that "pad" fills up, and to one that begins with rows of "roll_over".

    Parameters
    ----------
    data : NDArray, NumPy array, or a list or dict of them
        Arrays with the same number of rows (axis 0). They keep their dtypes and their memory. A NumPy array
        is borrowed as by `tenon.from_numpy`: it is read-only as long as the iterator or a batch exists. Other
        objects are converted by `tenon.asarray`.
    label : the same, optional
    batch_size : int
    shuffle : bool
        Permutes the order of the rows at construction and in each `reset` that begins an epoch, with
        ``numpy.random.shuffle``. The data themselves do not move.
    last_batch_handle : {"pad", "discard", "roll_over", "keep"}
        The handling of the last rows if they do not fill a batch. "pad": the batch is filled up with rows
        from the beginning of the epoch, and its ``pad`` is their number. "discard": they are omitted.
        "roll_over": they are the first rows of the next epoch. "keep": the batch is shorter.
    data_name, label_name : str
        The name of a single array. The arrays of a list are ``_0_name``, ``_1_name``, ... A dict has its own
        names and is sorted by them.

    Attributes
    ----------
    data, label : list of (name, NDArray)
    idx : numpy.ndarray
        The order of the rows in this epoch, without those that were rolled over. With the same state of
        ``numpy.random`` it is MXNet's.
    num_data : int
        The number of rows.
    cursor : int
        The number of rows of this epoch before the current batch.

    Raises
    ------
    TypeError
        An object that is no array, or whose elements are not numbers; a sparse array of SciPy.
    BufferError
        A sparse tensor.
    ValueError
        No data, arrays of different numbers of rows, `batch_size` below 1, an unknown `last_batch_handle`.
    """

    def __init__(
        self,
        data: Any,
        label: Any = None,
        batch_size: int = 1,
        shuffle: bool = False,
        last_batch_handle: Literal["pad", "discard", "roll_over", "keep"] = "pad",
        data_name: str = "data",
        label_name: str = "softmax_label",
    ) -> None:
        if batch_size < 1:
            raise ValueError(f"batch_size is {batch_size}: it must be at least 1")
        if last_batch_handle not in _LAST_BATCH:
            raise ValueError(f"last_batch_handle is {last_batch_handle!r}: it must be one of {_LAST_BATCH}")
        super().__init__(batch_size)
        self.data: list[tuple[str, NDArray]] = _named_arrays(data, data_name)
        self.label: list[tuple[str, NDArray]] = _named_arrays(label, label_name)
        if not self.data:
            raise ValueError("there are no data: give an array, or a list or dict of arrays")
        self.num_data: int = _count_rows(self.data + self.label)
        self.shuffle = shuffle
        self.last_batch_handle = last_batch_handle
        self.provide_data: list[DataDesc] = self._describe(self.data)
        self.provide_label: list[DataDesc] = self._describe(self.label)
        self._order: np.ndarray[Any, Any] | None = None  # None: as they lie
        self._shuffled: np.ndarray[Any, Any] | None = None  # what the last reset applied to the order
        self._rolled_over: np.ndarray[Any, Any] | None = None  # rows of the last epoch, first in this one
        self._begin()

    @property
    def idx(self) -> np.ndarray[Any, Any]:
        import numpy as np

        return np.arange(self.num_data) if self._order is None else self._order

    def reset(self) -> None:
        """Begins the next epoch. Rows are rolled over only if the current epoch is at its end.

        Before the first batch of an epoch, rows that were rolled over are kept.
        """
        if self.cursor >= 0:
            self._rolled_over = self._rest() if self.last_batch_handle == "roll_over" else None
        self._begin()

    def hard_reset(self) -> None:
        """Begins the next epoch, without rows of this one."""
        self._rolled_over = None
        self._begin()

    def iter_next(self) -> bool:
        if self.cursor < self._total():
            self.cursor += self.batch_size
        return self._is_at_a_batch()

    def getdata(self) -> list[NDArray]:
        return [self._batch_of(array) for _, array in self.data]

    def getlabel(self) -> list[NDArray]:
        return [self._batch_of(array) for _, array in self.label]

    def getpad(self) -> int:
        """The number of padding rows of the current batch. Rows that were rolled over do not count."""
        if self.last_batch_handle != "pad":
            return 0
        return max(0, self.cursor + self.batch_size - self._total())

    def _begin(self) -> None:
        self.cursor: int = -self.batch_size
        if self.shuffle:
            import numpy as np

            before = self.idx
            # As MXNet does it: the numbers are shuffled further, and applied to the order of the last epoch.
            self._shuffled = np.arange(self.num_data) if self._shuffled is None else self._shuffled
            np.random.shuffle(self._shuffled)
            self._order = before[self._shuffled]

    def _describe(self, arrays: list[tuple[str, NDArray]]) -> list[DataDesc]:
        return [describe(name, (self.batch_size, *array.shape[1:]), array.dtype) for name, array in arrays]

    def _total(self) -> int:
        return self.num_data + self._count_rolled_over()

    def _count_rolled_over(self) -> int:
        return 0 if self._rolled_over is None else len(self._rolled_over)

    def _is_at_a_batch(self) -> bool:
        left = self._total() - self.cursor
        is_short_ok = self.last_batch_handle in ("pad", "keep")
        return self.cursor >= 0 and (left >= self.batch_size or (left > 0 and is_short_ok))

    def _rest(self) -> np.ndarray[Any, Any] | None:
        """The rows that are left when no whole batch is."""
        left = self._total() - self.cursor
        return self._rows(self.cursor, self._total()) if 0 < left < self.batch_size else None

    def _rows(self, start: int, stop: int) -> np.ndarray[Any, Any]:
        """The rows of the arrays that come from start to stop in the epoch; behind its end the first ones."""
        import numpy as np

        places = np.arange(start, stop) % self._total()
        kept = self._count_rolled_over()
        rows = np.maximum(places - kept, 0)
        if self._order is not None:
            rows = self._order[rows]
        if self._rolled_over is None:
            return rows
        return np.where(places < kept, self._rolled_over[np.minimum(places, kept - 1)], rows)

    def _batch_of(self, array: NDArray) -> NDArray:
        if not self._is_at_a_batch():
            raise ValueError(NO_BATCH)
        start, stop = self.cursor, self.cursor + self.batch_size
        if self.last_batch_handle == "keep":
            stop = min(stop, self._total())
        kept = self._count_rolled_over()
        if self._order is None and start >= kept and stop <= self._total():
            return array[start - kept : stop - kept]
        return _gather(array, self._rows(start, stop))


class FeedIter(BatchIter):
    """The epochs of a `tenon.Feed` as an iterator of DataBatches, which lie on the feed's slots.

    `reset` begins the next epoch; before the first batch of an epoch it does nothing. If an epoch does not
    end (``batches=None``), the script must leave the loop.

    Parameters
    ----------
    feed : Feed
        The caller must close it. Its fields named ``label``, or ending in ``_label``, are the labels.
    device : str, optional
        Where the arrays lie, for example "cuda:0"; None: where the feed delivers. See `Feed`.
    """

    def __init__(self, feed: Feed, device: str | None = None) -> None:
        fields = [(name, describe(name, shape, dtype)) for name, dtype, shape in feed.schema.fields]
        super().__init__(fields[0][1].shape[0])
        self.provide_data: list[DataDesc] = [described for name, described in fields if not is_label(name)]
        self.provide_label: list[DataDesc] = [described for name, described in fields if is_label(name)]
        self._feed = feed
        self._device = device
        self._epoch: Iterator[DataBatch] | None = None

    def reset(self) -> None:
        self.current_batch = None
        self._epoch = None  # dropped: that ends it

    def iter_next(self) -> bool:
        self.current_batch = None  # its slot is free before the wait for the next one
        if self._epoch is None:
            self._epoch = iter(self._feed.databatch(self._device))
        self.current_batch = next(self._epoch, None)
        return self.current_batch is not None

    def getpad(self) -> int:
        return 0


def _named_arrays(source: Any, name: str) -> list[tuple[str, NDArray]]:
    import numpy as np

    if source is None:
        return []
    if isinstance(source, dict):
        named = sorted(source.items())
    elif not isinstance(source, (list, tuple)):
        named = [(name, source)]
    elif len(source) == 1:
        named = [(name, source[0])]
    else:
        named = [(f"_{i}_{name}", one) for i, one in enumerate(source)]
    arrays = []
    for name, one in named:
        try:
            array = from_numpy(one) if isinstance(one, np.ndarray) else asarray(one)
        except (TypeError, ValueError, BufferError) as error:
            error.add_note(f"This was {name!r} of the data for an NDArrayIter.")
            raise
        if array.ndim == 0:
            raise ValueError(f"{name!r} is an array without axes: axis 0 counts its rows")
        arrays.append((name, array))
    return arrays


def _count_rows(arrays: list[tuple[str, NDArray]]) -> int:
    counts = {name: array.shape[0] for name, array in arrays}
    if len(set(counts.values())) > 1:
        raise ValueError(f"the arrays have different numbers of rows: {counts}")
    return arrays[0][1].shape[0]


def _gather(array: NDArray, rows: np.ndarray[Any, Any]) -> NDArray:
    """New memory with these rows."""
    import numpy as np

    batch = empty((len(rows), *array.shape[1:]), array.dtype)
    with array.read() as values, batch.write(overwrite=True) as gathered:
        if array.is_contiguous():
            np.take(values, rows, 0, gathered, "clip")  # in place: with the default mode through a buffer
        else:
            gathered[...] = values[rows]  # np.take would copy all of the values first
    return batch
