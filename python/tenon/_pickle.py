# SPDX-License-Identifier: Apache-2.0
"""Pickling. A shared array is pickled as a handle on its memory, any other by value: with protocol 5 the
elements travel as a PickleBuffer, which a pickler may take out of band; then they are not copied here."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

from . import _core


def reduce_array(array: _core.NDArray, protocol: int) -> tuple[Any, ...]:
    """What ``NDArray.__reduce_ex__`` returns."""
    if array.shared:
        return open_shared_array, (_core.send_array(array),)
    # What lies in another order of axes without gaps travels as it lies, and keeps that order.
    axes = _axes_in_memory(array)
    source = array if axes is None else array.transpose(axes)
    if not source.is_contiguous():
        source, axes = array.copy(), None
    content = source.reshape(-1).view("uint8")
    is_padded = array.dtype.bits * array.dtype.lanes % 8 != 0 and array.itemsize != 0
    rebuild = rebuild_padded_array if is_padded else rebuild_array
    about = (array.dtype.name, source.shape)
    if protocol < 5:
        parts: tuple[Any, ...] = rebuild, (bytearray(content), *about)
    else:
        buffers = pickle.PickleBuffer(bytearray(1)), pickle.PickleBuffer(content)
        parts = rebuild_from_buffers, (*buffers, rebuild, *about)
    return parts if axes is None else (rebuild_transposed, (*parts, axes))


def _axes_in_memory(array: _core.NDArray) -> tuple[int, ...] | None:
    """The axes by their strides, largest first; None where C order has them so."""
    if array.is_contiguous():
        return None
    return tuple(sorted(range(array.ndim), key=lambda axis: -array.strides[axis]))


def rebuild_transposed(
    rebuild: Callable[..., _core.NDArray], arguments: tuple[Any, ...], axes: tuple[int, ...]
) -> _core.NDArray:
    """The array whose axes were put into the order ``axes`` before ``rebuild`` took its elements."""
    return rebuild(*arguments).transpose(sorted(range(len(axes)), key=axes.__getitem__))


def open_shared_array(handle: bytes) -> _core.NDArray:
    """The array of a handle, on the memory that the process which pickled it uses.

    Raises
    ------
    FileNotFoundError
        Nobody has the array any more, or this is another machine, user or PID namespace.
    """
    return _core.open_array(handle)


def rebuild_from_buffers(
    _first: Any, content: Any, rebuild: Callable[..., _core.NDArray], dtype: str, shape: tuple[int, ...]
) -> _core.NDArray:
    """The array over the second one of two buffers.

    Dask receives the first buffer of a message together with the message's head, at an odd address that no
    array of floats can have, and every other one into memory of its own. So there is one in front.
    """
    return rebuild(content, dtype, shape)


def rebuild_array(content: Any, dtype: str, shape: tuple[int, ...]) -> _core.NDArray:
    """The array over the bytes of ``content``, which it shares; read-only if ``content`` is.

    Where the transport has put the bytes at an address that is not aligned for the dtype, a copy.
    """
    try:
        return _core.from_buffer(content, dtype, shape)
    except BufferError:
        return _core.from_buffer(bytearray(content), dtype, shape)


def rebuild_padded_array(content: Any, dtype: str, shape: tuple[int, ...]) -> _core.NDArray:
    """The same for sub-byte elements that take whole bytes, as those of ml_dtypes do."""
    import ml_dtypes
    import numpy as np

    elements = np.frombuffer(content, getattr(ml_dtypes, dtype)).reshape(shape)
    return _core.from_numpy(elements, keep="writable")
