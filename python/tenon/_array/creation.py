# SPDX-License-Identifier: Apache-2.0
"""Functions that make arrays: in new memory, aligned to at least 64 bytes, from data, at addresses."""

from __future__ import annotations

import ctypes
from _ctypes import CFuncPtr
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from .. import _core
from .._core import NDArray
from .._typing import DTypeLike
from .share import Shared
from .share import create as _create

Shape = int | Sequence[int]


def _check_device(device: str) -> None:
    if device != "cpu":
        raise ValueError(f"device is {device!r}: arrays live on 'cpu'")


def empty(
    shape: Shape, dtype: DTypeLike = "float32", device: str = "cpu", shared: bool | str | Shared = False
) -> NDArray:
    """New memory with whatever was in it before.

    Parameters
    ----------
    shape : int or sequence of ints
    dtype : dtype, str or another dtype
    device : {'cpu'}
    shared : bool, str or Shared
        True: other processes of this user can use the same memory: a pickled array is a handle on it. A name:
        they can also `attach` to it. All of the memory is taken by this call, and lives as long as some
        process uses it; nothing is left behind, however they end. Accesses take turns with those of the other
        processes, and views need a lease (`NDArray.read`, `NDArray.write`, `NDArray.lease`).

    Raises
    ------
    ValueError
        The shape is negative or too large, the device is unknown, or the name is taken.
    MemoryError
        The memory is not there.
    OSError
        No file descriptor is left for shared memory.
    """
    _check_device(device)
    return _create(shape, dtype, False, shared)


def zeros(
    shape: Shape, dtype: DTypeLike = "float32", device: str = "cpu", shared: bool | str | Shared = False
) -> NDArray:
    """New memory, all zero. Parameters and errors as of `empty`."""
    _check_device(device)
    return _create(shape, dtype, True, shared)


def full(
    shape: Shape,
    fill_value: Any,
    dtype: DTypeLike = "float32",
    device: str = "cpu",
    shared: bool | str | Shared = False,
) -> NDArray:
    """New memory with one value everywhere.

    Parameters
    ----------
    fill_value : number or array
        Broadcast to the shape. An int that the dtype cannot hold is an OverflowError.

    The others, and the errors, are those of `empty`.
    """
    array = empty(shape, dtype, device, shared)
    array[...] = fill_value
    return array


def ones(
    shape: Shape, dtype: DTypeLike = "float32", device: str = "cpu", shared: bool | str | Shared = False
) -> NDArray:
    """New memory, all one. Parameters and errors as of `empty`."""
    return full(shape, 1, dtype, device, shared)


def array(data: Any, dtype: DTypeLike | None = None, device: str = "cpu") -> NDArray:
    """A new array with the elements of ``data``.

    Parameters
    ----------
    data : NDArray, array of another library, buffer, number or nested list
    dtype : dtype, str or another dtype, optional
        The data's own if left out; of numbers and lists NumPy's choice.

    Returns
    -------
    NDArray
        Shares nothing with ``data``.

    Raises
    ------
    TypeError
        The data are no numbers.
    """
    _check_device(device)
    source = _core.share(data)
    return source.astype(source.dtype if dtype is None else dtype)


def asarray(data: Any, dtype: DTypeLike | None = None, device: str = "cpu") -> NDArray:
    """``data`` as an array, on its own memory where possible.

    Parameters
    ----------
    data : NDArray, array of another library, buffer, number or nested list
        An NDArray is returned as it is. A NumPy array keeps its flags: both sides may write (`from_numpy`
        lends it to one). Byte-swapped and unaligned arrays, and lists, are copied.
    dtype : dtype, str or another dtype, optional
        Another dtype than the data's makes a copy.

    Raises
    ------
    TypeError
        The data are no numbers.
    BufferError
        The data's library refuses to export them.
    """
    _check_device(device)
    source = _core.share(data)
    return source if dtype is None else source.astype(dtype, copy=False)


def empty_like(prototype: Any, dtype: DTypeLike | None = None, device: str = "cpu") -> NDArray:
    """`empty` with the shape, and unless given the dtype, of an array."""
    like = _core.share(prototype)
    return empty(like.shape, like.dtype if dtype is None else dtype, device)


def zeros_like(prototype: Any, dtype: DTypeLike | None = None, device: str = "cpu") -> NDArray:
    """`zeros` with the shape, and unless given the dtype, of an array."""
    like = _core.share(prototype)
    return zeros(like.shape, like.dtype if dtype is None else dtype, device)


def ones_like(prototype: Any, dtype: DTypeLike | None = None, device: str = "cpu") -> NDArray:
    """`ones` with the shape, and unless given the dtype, of an array."""
    return full_like(prototype, 1, dtype, device)


def full_like(
    prototype: Any, fill_value: Any, dtype: DTypeLike | None = None, device: str = "cpu"
) -> NDArray:
    """`full` with the shape, and unless given the dtype, of an array."""
    like = _core.share(prototype)
    return full(like.shape, fill_value, like.dtype if dtype is None else dtype, device)


def from_pointer(
    address: int,
    shape: Shape,
    dtype: DTypeLike,
    strides: Sequence[int] | None = None,
    owner: Any = None,
    deleter: Callable[[Any], object] | None = None,
    readonly: bool = False,
) -> NDArray:
    """An array over memory at an address.

    Parameters
    ----------
    address : int
        Of element 0. Nobody can check it: a wrong one ends the process.
    shape : int or sequence of ints
    dtype : dtype, str or another dtype
    strides : sequence of ints, optional
        In bytes; C order if left out.
    owner : object, optional
        Kept alive as long as the array or a view of it lives.
    deleter : callable, optional
        Called once with the address after the last array and view has gone; a function of ctypes gets it as a
        ``c_void_p``. It does not run when this call fails.
    readonly : bool

    Raises
    ------
    ValueError
        The strides do not fit the shape or the itemsize; the address is 0.
    BufferError
        The address is not aligned for the dtype.
    """
    last_call = None
    if deleter is not None:
        is_native = isinstance(deleter, CFuncPtr)
        last_call = partial(deleter, ctypes.c_void_p(address) if is_native else address)
    return _core.from_pointer(address, shape, dtype, strides, owner, last_call, readonly)
