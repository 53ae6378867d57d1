# SPDX-License-Identifier: Apache-2.0
"""Functions that create arrays: in new memory, aligned to at least 64 bytes, from data, and at addresses."""

from __future__ import annotations

import contextlib
import ctypes
from _ctypes import CFuncPtr
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, Never

from .. import _core
from .._answers import refuse_creation
from .._core import NDArray
from .._typing import DTypeLike
from .share import Shared
from .share import create as _create

Shape = int | Sequence[int]


def empty(
    shape: Shape,
    dtype: DTypeLike | None = "float32",
    device: str = "cpu",
    shared: bool | str | Shared = False,
    *,
    exist_ok: bool = False,
    **others: Never,
) -> NDArray:
    """A new array with undefined elements, C-contiguous, aligned to at least 64 bytes.

    Parameters
    ----------
    shape : int or sequence of ints
    dtype : dtype, str or another dtype
        None: float32.
    device : str
        'cpu', 'cuda' (the first device), 'cuda:1', or 'cuda_host': host memory that is pinned for the
        driver. A device needs the CUDA driver; without it, this is a FileNotFoundError.
    shared : bool, str or Shared
        True: other processes of this user can map the memory; the pickle of the array is a handle on it. A
        name: other processes can also `attach` to it. This call allocates all of the memory. The memory
        exists as long as some process uses it, and nothing remains afterwards. Accesses take turns with
        those of other processes, and views need a lease (`NDArray.read`, `NDArray.write`,
        `NDArray.lease`). On a device the memory ends with this process: the accesses of other
        processes raise OwnerDied from then on.
    exist_ok : bool
        If another process, or this one, has an array of the name, return that one with the elements that it
        has. Options of ``shared`` apply only to a new array.

    Raises
    ------
    ValueError
        The shape is negative or too large, the device is unknown, or the name is taken: with ``exist_ok``, by
        an array of another shape, dtype or device, or by another object.
    MemoryError
        There is not enough memory.
    OSError
        There is no free file descriptor for shared memory, or the driver cannot share memory of the device.
    """
    if others:
        refuse_creation(empty, others)
    return _create(shape, dtype, False, device, shared, exist_ok)


def zeros(
    shape: Shape,
    dtype: DTypeLike | None = "float32",
    device: str = "cpu",
    shared: bool | str | Shared = False,
    *,
    exist_ok: bool = False,
    **others: Never,
) -> NDArray:
    """A new array filled with zeros. Parameters and errors are those of `empty`: with ``exist_ok``, an array
    that exists keeps its elements."""
    if others:
        refuse_creation(zeros, others)
    return _create(shape, dtype, True, device, shared, exist_ok)


def full(
    shape: Shape,
    fill_value: Any,
    dtype: DTypeLike | None = "float32",
    device: str = "cpu",
    shared: bool | str | Shared = False,
    **others: Never,
) -> NDArray:
    """A new array filled with one value.

    Parameters
    ----------
    fill_value : number or array
        Broadcast to the shape, as by ``a[...] = fill_value``: a number that does not fit an integer dtype
        raises OverflowError.

    The other parameters, and the errors, are those of `empty`.
    """
    if others:
        refuse_creation(full, others)
    array = empty(shape, dtype, device, shared)
    array[...] = fill_value
    return array


def ones(
    shape: Shape,
    dtype: DTypeLike | None = "float32",
    device: str = "cpu",
    shared: bool | str | Shared = False,
    **others: Never,
) -> NDArray:
    """A new array filled with ones. Parameters and errors are those of `empty`."""
    if others:
        refuse_creation(ones, others)
    return full(shape, 1, dtype, device, shared)


def array(
    data: Any,
    dtype: DTypeLike | None = None,
    device: str | None = None,
    shared: bool | str | Shared = False,
    **others: Never,
) -> NDArray:
    """A new array with a copy of the elements of ``data``.

    Parameters
    ----------
    data : NDArray, array of another library, buffer, number or nested list
    dtype : dtype, str or another dtype, optional
        Default: the dtype of the data; for numbers and lists, the dtype that NumPy selects. An array is cast
        as by `NDArray.astype`. The numbers of a list have to fit.
    device : str, optional
        As for `empty`. Default: where the data are.
    shared : bool, str or Shared
        As for `empty`. A process that attaches to a name at once may see elements that are not copied yet.

    Returns
    -------
    NDArray
        It shares no memory with ``data``.

    Raises
    ------
    TypeError
        The data are not numbers, or a complex number of a list is to become a real one.
    OverflowError
        A number of a list is outside of the range of the integer dtype.
    ValueError
        A list has different lengths, or a NaN for an integer dtype.
    """
    if others:
        refuse_creation(array, others)
    source = _core.share(data, dtype)
    wanted = source.dtype if dtype is None else dtype
    if shared is not False:
        made = empty(source.shape, wanted, device or _device_of(source), shared)
        made[...] = source.astype(wanted, copy=False)
        return made
    return source.astype(wanted) if device is None else _core.copy_on(source, wanted, device)


def asarray(
    data: Any,
    dtype: DTypeLike | None = None,
    device: str | None = None,
    shared: bool | str | Shared = False,
    **others: Never,
) -> NDArray:
    """``data`` as an array, without a copy if possible.

    Parameters
    ----------
    data : NDArray, array of another library, buffer, number or nested list
        An NDArray is returned unchanged. A NumPy array shares its memory and stays writable, so both sides
        may write (`from_numpy` allows only one). An array of MXNet shares its memory and gives a read-only
        array: `from_dlpack` makes writable ones. Byte-swapped and unaligned arrays, and lists, are copied.
    dtype : dtype, str or another dtype, optional
        If it differs from the dtype of the data, the elements are copied, as by `array`.
    device : str, optional
        As for `empty`. If the data are elsewhere, the elements are copied. Default: where the data are.
    shared : bool, str or Shared
        True: a shared array is returned unchanged, and the elements of others are copied, as by `array`. A
        name, or options: they are always copied.

    Raises
    ------
    TypeError, OverflowError, ValueError
        Those of `array`.
    BufferError
        The library of the data refuses to export them.
    """
    if others:
        refuse_creation(asarray, others)
    source = _core.share(data, dtype)
    converted = source if dtype is None else source.astype(dtype, copy=False)
    if device is not None:
        converted = converted.to(device)
    if shared is False or (shared is True and converted.shared):
        return converted
    return array(converted, shared=shared)


def _device_of(like: NDArray) -> str:
    """Of an array that is like another one: pinned memory and managed memory are not asked for by that."""
    return like.device if like.device.startswith("cuda:") else "cpu"


def empty_like(
    prototype: Any,
    dtype: DTypeLike | None = None,
    device: str | None = None,
    shared: bool | str | Shared = False,
    **others: Never,
) -> NDArray:
    """`empty` with the shape of an array, and by default with its dtype, and on its GPU if it is on one. It
    is shared only if ``shared`` says so."""
    if others:
        refuse_creation(empty_like, others)
    like = _core.share(prototype)
    return empty(like.shape, like.dtype if dtype is None else dtype, device or _device_of(like), shared)


def zeros_like(
    prototype: Any,
    dtype: DTypeLike | None = None,
    device: str | None = None,
    shared: bool | str | Shared = False,
    **others: Never,
) -> NDArray:
    """`zeros` with the shape of an array, and by default with its dtype, and on its GPU if it is on one. It
    is shared only if ``shared`` says so."""
    if others:
        refuse_creation(zeros_like, others)
    like = _core.share(prototype)
    return zeros(like.shape, like.dtype if dtype is None else dtype, device or _device_of(like), shared)


def ones_like(
    prototype: Any,
    dtype: DTypeLike | None = None,
    device: str | None = None,
    shared: bool | str | Shared = False,
    **others: Never,
) -> NDArray:
    """`ones` with the shape of an array, and by default with its dtype, and on its GPU if it is on one. It is
    shared only if ``shared`` says so."""
    if others:
        refuse_creation(ones_like, others)
    return full_like(prototype, 1, dtype, device, shared)


def full_like(
    prototype: Any,
    fill_value: Any,
    dtype: DTypeLike | None = None,
    device: str | None = None,
    shared: bool | str | Shared = False,
    **others: Never,
) -> NDArray:
    """`full` with the shape of an array, and by default with its dtype, and on its GPU if it is on one. It is
    shared only if ``shared`` says so."""
    if others:
        refuse_creation(full_like, others)
    like = _core.share(prototype)
    wanted = like.dtype if dtype is None else dtype
    return full(like.shape, fill_value, wanted, device or _device_of(like), shared)


def arange(
    start: Any,
    stop: Any = None,
    step: Any = None,
    dtype: DTypeLike | None = None,
    device: str = "cpu",
    shared: bool | str | Shared = False,
    **others: Never,
) -> NDArray:
    """A new array of ``start``, ``start + step``, ... before ``stop``, as `numpy.arange`.

    Parameters
    ----------
    start, stop, step : number
        With one of them: 0, 1, ... before it.
    dtype : dtype, str or another dtype, optional
        Default: the dtype that NumPy selects.
    device : str
    shared : bool, str or Shared
        Both as for `empty`.
    """
    if others:
        refuse_creation(arange, others)
    import numpy as np

    bounds = (start,) if stop is None and step is None else (start, stop, 1 if step is None else step)
    return asarray(np.arange(*bounds), dtype, device, shared)


def concatenate(
    arrays: Sequence[Any],
    axis: int | None = 0,
    dtype: DTypeLike | None = None,
    shared: bool | str | Shared = False,
    **others: Never,
) -> NDArray:
    """A new array of the elements of several, along an existing axis, as `numpy.concatenate`.

    Parameters
    ----------
    arrays : sequence of arrays
        Of the same shape except along the axis. They are read in one call.
    axis : int or None
        None: the arrays are flattened first.
    dtype : dtype, str or another dtype, optional
        Default: the dtype that NumPy selects.
    shared : bool, str or Shared
        As for `empty`.
    """
    if others:
        refuse_creation(concatenate, others)
    import numpy as np

    joined = np.concatenate([_core.without_verbs(array) for array in arrays], axis=axis)
    return asarray(joined, dtype, None, shared)


def from_buffer(obj: Any, dtype: DTypeLike, shape: Shape | None = None, offset: int = 0) -> NDArray:
    """The bytes of a buffer (bytearray, mmap, ctypes array, array.array) as an array.

    Parameters
    ----------
    obj : object with the buffer protocol
        Contiguous. It is kept alive, and cannot be resized or closed, while the array or a view lives.
    dtype : dtype, str or another dtype
    shape : int, sequence of ints or None
        None: one axis with all elements from ``offset`` on.
    offset : int
        Bytes.

    Returns
    -------
    NDArray
        Shares the memory; read-only when the buffer is (``bytes``).

    Raises
    ------
    ValueError
        The shape does not fit into the bytes.
    BufferError
        The elements would lie unaligned, or the buffer is not contiguous.
    TypeError
        ``obj`` has no buffer.
    """
    return _core.from_buffer(obj, dtype, shape, offset)


def from_pointer(
    address: int,
    shape: Shape,
    dtype: DTypeLike,
    strides: Sequence[int] | None = None,
    owner: Any = None,
    deleter: Callable[[Any], object] | None = None,
    readonly: bool = False,
) -> NDArray:
    """An array over existing memory at an address, without a copy.

    Parameters
    ----------
    address : int
        The address of element 0. It cannot be checked: a wrong address crashes the process.
    shape : int or sequence of ints
    dtype : dtype, str or another dtype
    strides : sequence of ints, optional
        In bytes; default: C order.
    owner : object, optional
        Kept alive as long as the array or a view of it exists.
    deleter : callable, optional
        Called once with the address after the last array and view are gone. A ctypes function gets the
        address as a ``c_void_p``. The deleter is not called if this function fails.
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
        if not callable(deleter):
            raise TypeError(f"deleter is {deleter!r}: it must be callable")
        is_native = isinstance(deleter, CFuncPtr)
        last_call = partial(deleter, ctypes.c_void_p(address) if is_native else address)
    return _core.from_pointer(address, shape, dtype, strides, owner, last_call, readonly)


@contextlib.contextmanager
def pinned(*arrays: NDArray) -> Iterator[None]:
    """Pins the memory of arrays on the host where it lies, during a ``with`` block, without a copy. Copies
    between it and a device then run beside other work at the full speed of the bus. Memory of shared arrays
    stays shared; it is pinned in this process only.

    The end of the block waits for the ops and copies of Tenon that use the arrays. Frameworks may still copy
    from or to the arrays then: the memory stays pinned, and exists, until the work is done that this process
    has submitted to its GPUs. See `graph_capture` for programs that capture graphs.

    Parameters
    ----------
    arrays : NDArray
        All of the memory is pinned of which an array is a part. Memory may be pinned several times.

    Raises
    ------
    ValueError
        An array is on a device, or has no bytes.
    OSError
        The driver refuses to pin the memory. The message has its reason.
    FileNotFoundError
        There is no CUDA driver.
    """
    with contextlib.ExitStack() as stack:
        for array in arrays:
            stack.callback(_core.NativeRegistration(array).release)
            stack.callback(array.wait_to_write)
        yield


@contextlib.contextmanager
def graph_capture() -> Iterator[None]:
    """Announces that the ``with`` block captures a stream to a CUDA graph::

        with tn.graph_capture(), torch.cuda.graph(graph):
            y = model(x)

    Pinned memory (`pinned`, ``device="cuda_host"``, ``TensorPool(pinned=True)``) is used again after the work
    that was submitted to the GPUs before. The driver does not tell of that work during a capture, and the
    question would make the capture invalid. So a program with pinned memory captures graphs in such a block,
    in which no pinned memory is freed. Blocks of several threads, and nested ones, are counted. Without
    pinned memory, the block does nothing.
    """
    _core.begin_graph_capture()
    try:
        yield
    finally:
        _core.end_graph_capture()
