# SPDX-License-Identifier: Apache-2.0
"""Batches with the interface of MXNet's ``mx.io``, and the base class of its iterators."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterable
from typing import Any, NamedTuple

from .._core import Batch, float32

NO_BATCH = "there is no current batch: call iter_next(), and reset() after it has returned False"


class _NameAndShape(NamedTuple):
    name: str
    shape: tuple[int, ...]


class DataDesc(_NameAndShape):
    """One array of a batch: the pair (name, shape), with attributes. Equality compares the pair.

    Attributes
    ----------
    name : str
    shape : tuple of int
    dtype : dtype
        Default: float32.
    layout : str or None
        A letter for each axis, N for the rows.
    """

    dtype: Any = float32
    layout: str | None = "NCHW"

    def __new__(
        cls, name: str, shape: tuple[int, ...], dtype: Any = float32, layout: str | None = "NCHW"
    ) -> DataDesc:
        described = super().__new__(cls, name, shape)
        described.dtype = dtype
        described.layout = layout
        return described

    def __repr__(self) -> str:
        return f"DataDesc[{self.name},{self.shape},{self.dtype},{self.layout}]"

    def _replace(self, **changes: Any) -> DataDesc:
        return DataDesc(**{"name": self.name, "shape": self.shape, **vars(self), **changes})

    @staticmethod
    def get_batch_axis(layout: str | None) -> int:
        """The axis of the rows: 0 without a layout, and -1 if it has no N."""
        return 0 if layout is None else layout.find("N")

    @staticmethod
    def get_list(
        shapes: Iterable[tuple[str, Any]], types: Iterable[tuple[str, Any]] | None
    ) -> list[DataDesc]:
        """Makes descriptions from pairs of name and shape, and of name and dtype; None: float32."""
        if types is None:
            return [DataDesc(name, shape) for name, shape in shapes]
        dtypes = dict(types)
        return [DataDesc(name, shape, dtypes[name]) for name, shape in shapes]


class DataBatch:
    """The arrays of one batch.

    Parameters
    ----------
    data : list of NDArray
    label : list of NDArray, optional
    pad : int, optional
        The number of padding rows at the end.
    index : int or array, optional
        The index of the batch, or of its samples.
    bucket_key : optional
    provide_data, provide_label : list of DataDesc, optional
    """

    def __init__(
        self,
        data: list[Any],
        label: list[Any] | None = None,
        pad: int | None = None,
        index: Any = None,
        bucket_key: Any = None,
        provide_data: list[DataDesc] | None = None,
        provide_label: list[DataDesc] | None = None,
    ) -> None:
        for name, arrays in (("data", data), ("label", label)):
            if arrays is not None and not isinstance(arrays, (list, tuple)):
                raise TypeError(f"{name} is {type(arrays).__name__}: it must be a list of arrays")
        self.data = data
        self.label = label
        self.pad = pad
        self.index = index
        self.bucket_key = bucket_key
        self.provide_data = provide_data
        self.provide_label = provide_label

    def __str__(self) -> str:
        shapes = [[tuple(array.shape) for array in arrays or []] for arrays in (self.data, self.label)]
        return f"{type(self).__name__}: data shapes: {shapes[0]} label shapes: {shapes[1] or None}"


class _Base:
    """The base of `DataIter` without MXNet; Python does not replace `object` itself as a base."""


class DataIter(_Base):
    """The base class of iterators of batches. A subclass has `iter_next` and `getdata`, or its own `next`.

    An iterator stays at its end until `reset`: a second ``for`` loop over it gets no batch. One thread at a
    time may use it.

    Attributes
    ----------
    batch_size : int
    provide_data, provide_label : list of DataDesc
        The arrays of a batch, in order.
    """

    batch_size: int
    provide_data: list[DataDesc]
    provide_label: list[DataDesc]

    def __init__(self, batch_size: int = 0) -> None:
        _become_mxnets()
        self.batch_size = batch_size

    def __iter__(self) -> DataIter:
        return self

    def __next__(self) -> DataBatch:
        return self.next()

    def next(self) -> DataBatch:
        """Returns the next batch; StopIteration at the end."""
        if not self.iter_next():
            raise StopIteration
        return DataBatch(self.getdata(), self.getlabel(), self.getpad(), self.getindex())

    def reset(self) -> None:
        """Returns to the beginning."""

    def iter_next(self) -> bool:
        """Moves to the next batch; returns False at the end."""
        raise NotImplementedError(f"{type(self).__name__} has no iter_next()")

    def getdata(self) -> list[Any]:
        """The data of the current batch."""
        raise NotImplementedError(f"{type(self).__name__} has no getdata()")

    def getlabel(self) -> list[Any] | None:
        """The labels of the current batch."""
        return None

    def getindex(self) -> Any:
        """The index of the current batch, or of its samples."""
        return None

    def getpad(self) -> int | None:
        """The number of padding rows at the end of the current batch."""
        return 0


def _become_mxnets() -> None:
    """Derives `DataIter` from MXNet's class, which has the same methods, once a program has imported MXNet:
    `Module.predict` asks for an instance of that."""
    theirs = getattr(sys.modules.get("mxnet.io"), "DataIter", None)
    if theirs is not None and not issubclass(DataIter, theirs):
        with contextlib.suppress(TypeError):  # a class of the program derives from theirs, and then from ours
            DataIter.__bases__ = (theirs,)


class BatchIter(DataIter):
    """The base class of iterators that get whole batches: `iter_next` sets ``current_batch``."""

    current_batch: DataBatch | None = None

    def next(self) -> DataBatch:
        if not self.iter_next():
            raise StopIteration
        batch, self.current_batch = self._current(), None  # only the caller has it: its memory can be reused
        return batch

    def getdata(self) -> list[Any]:
        return self._current().data

    def getlabel(self) -> list[Any] | None:
        return self._current().label

    def getindex(self) -> Any:
        return self._current().index

    def getpad(self) -> int | None:
        return self._current().pad

    def _current(self) -> DataBatch:
        if self.current_batch is None:
            raise ValueError(NO_BATCH)
        return self.current_batch


def is_label(field: str) -> bool:
    """Whether a field of a feed is a label of its DataBatch."""
    return field == "label" or field.endswith("_label")


def describe(name: str, shape: tuple[int, ...], dtype: Any) -> DataDesc:
    ndim = len(shape)
    return DataDesc(name, shape, dtype, "NCHW"[:ndim] if ndim <= 4 else "NCDHW"[:ndim])


def databatch(batch: Batch) -> DataBatch:
    """A batch of a feed as a DataBatch on the same memory."""
    arrays: tuple[list[Any], list[Any]] = ([], [])
    described: tuple[list[DataDesc], list[DataDesc]] = ([], [])
    for name, array in zip(batch.keys(), batch.arrays, strict=True):
        which = is_label(name)
        arrays[which].append(array)
        described[which].append(describe(name, array.shape, array.dtype))
    return DataBatch(*arrays, 0, batch.index, None, *described)
