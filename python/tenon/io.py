# SPDX-License-Identifier: Apache-2.0
"""Batches in the form of MXNet's ``mx.io``: `DataBatch` and `DataDesc`."""

from __future__ import annotations

from typing import Any, NamedTuple

from ._core import Batch

__all__ = ["DataBatch", "DataDesc"]


class DataDesc(NamedTuple):
    """Name, shape, dtype and layout of one array of a batch; layout names the axes, N for rows."""

    name: str
    shape: tuple[int, ...]
    dtype: Any = "float32"
    layout: str = "NCHW"


class DataBatch:
    """The arrays of one batch.

    Parameters
    ----------
    data : list of NDArray
    label : list of NDArray, optional
    pad : int, optional
        Rows at the end that only fill the batch up.
    index : int or array, optional
        Which batch, or which samples.
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
        return f"DataBatch: data shapes: {shapes[0]} label shapes: {shapes[1]}"


def databatch(batch: Batch) -> DataBatch:
    """A batch of a feed as a DataBatch on the same memory."""
    data: list[Any] = []
    label: list[Any] = []
    described: tuple[list[DataDesc], list[DataDesc]] = ([], [])
    for name, array in zip(batch.keys(), batch.arrays, strict=True):
        is_label = name == "label" or name.endswith("_label")
        (label if is_label else data).append(array)
        layout = "NCHW"[: array.ndim] if array.ndim <= 4 else "NCDHW"[: array.ndim]
        described[is_label].append(DataDesc(name, array.shape, array.dtype, layout))
    return DataBatch(data, label, 0, batch.index, None, *described)
