# SPDX-License-Identifier: Apache-2.0
"""Pickling. A shared array is pickled as a handle on its memory, any other array by value. With protocol 5
the elements are a PickleBuffer; if the pickler takes it out of band, Tenon does not copy them."""

from __future__ import annotations

import contextlib
import math
import os
import pickle
import sys
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any

from .. import _core
from .._errors import text_of
from . import passing

# What makes handles of other arrays than shared ones; each returns None for an array that is not of its kind.
reducers: list[Callable[[_core.NDArray], tuple[Any, ...] | None]] = []


def reduce_array(array: _core.NDArray, protocol: int) -> tuple[Any, ...]:
    """The result of ``NDArray.__reduce_ex__``."""
    if array.shared:
        handle = _core.send_array(array)
        context = sys.modules.get("multiprocessing.context")
        popen = context.get_spawning_popen() if context is not None else None
        if popen is not None:
            _bindings.add(popen, handle)
        elif array.device == "cpu":  # memory of another device ends with this process
            passing.note(handle, math.inf, sys._getframe(1))
        return open_shared_array, (handle,)
    for reducer in reducers:
        if (reduced := reducer(array)) is not None:
            return reduced
    # Elements without gaps in another order of axes are sent in that order, and keep it.
    axes = _axes_in_memory(array)
    source = array if axes is None else array.transpose(axes)
    if not source.is_contiguous():
        source, axes = array.copy(), None
    content = bytes_of(source)
    rebuild = rebuild_padded_array if has_padding(array) else rebuild_array
    about = (array.dtype.name, source.shape)
    if protocol < 5:
        parts: tuple[Any, ...] = rebuild, (bytearray(content), *about)
    else:
        buffers = pickle.PickleBuffer(bytearray(1)), pickle.PickleBuffer(content)
        parts = rebuild_from_buffers, (*buffers, rebuild, *about)
    return parts if axes is None else (rebuild_transposed, (*parts, axes))


def has_padding(array: _core.NDArray) -> bool:
    """Whether each element of fewer than 8 bits has a byte of its own."""
    return array.dtype.bits * array.dtype.lanes % 8 != 0 and array.itemsize != 0


def bytes_of(array: _core.NDArray) -> _core.NDArray:
    """The bytes of an array in C order: its memory, or a copy if packed elements end inside of a byte."""
    if array.itemsize == 0 and array.size * array.dtype.bits * array.dtype.lanes % 8 != 0:
        return _core.from_buffer(bytearray(array.tobytes()), "uint8")
    return array.reshape(-1).view("uint8")


def _axes_in_memory(array: _core.NDArray) -> tuple[int, ...] | None:
    """The axes by their strides, largest first; None if this is C order."""
    if array.is_contiguous():
        return None
    return tuple(sorted(range(array.ndim), key=lambda axis: -array.strides[axis]))


def rebuild_transposed(
    rebuild: Callable[..., _core.NDArray], arguments: tuple[Any, ...], axes: tuple[int, ...]
) -> _core.NDArray:
    """The array whose axes were put into the order ``axes`` before ``rebuild`` took its elements."""
    return rebuild(*arguments).transpose(sorted(range(len(axes)), key=axes.__getitem__))


class _Bindings:
    """Handles that are arguments of a `multiprocessing.Process`: they keep their arrays only while that
    process runs. Its pid is known only after the handles were pickled, so a thread waits for it."""

    _SECONDS = 60.0  # after which a new process must have its number

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: list[tuple[weakref.ref[Any], bytes, float]] = []
        self._is_running = False
        os.register_at_fork(after_in_child=self._clear)

    def _clear(self) -> None:
        self._lock = threading.Lock()
        self._waiting = []
        self._is_running = False

    def add(self, popen: Any, handle: bytes) -> None:
        with self._lock:
            self._waiting.append((weakref.ref(popen), handle, time.monotonic() + self._SECONDS))
            if self._is_running:
                return
            self._is_running = True
        threading.Thread(target=self._run, name="tenon-handles", daemon=True).start()

    def _run(self) -> None:
        while True:
            with self._lock:
                self._waiting = [entry for entry in self._waiting if not _bind(*entry)]
                if not self._waiting:
                    self._is_running = False
                    return
            time.sleep(0.01)


def _bind(reference: weakref.ref[Any], handle: bytes, end: float) -> bool:
    """Sets the limit of a handle. False: the number of the process is not known yet."""
    popen = reference()
    pid = getattr(popen, "pid", None)
    if pid is None and popen is not None:
        return time.monotonic() > end
    with contextlib.suppress(MemoryError):  # there were too many handles: it then has no limit
        try:
            # Without an object of the process, the process could not be started.
            _core.limit_handle(handle, pid or 0, None if pid else 0.0)
        except FileNotFoundError:  # it has ended already
            _core.limit_handle(handle, 0, 0.0)
    return True


_bindings = _Bindings()


def limit_to(popen: Any, handle: bytes) -> None:
    """Ends what a handle keeps with the process of a `multiprocessing.Process` that is being started."""
    _bindings.add(popen, handle)


def open_shared_array(handle: bytes) -> _core.NDArray:
    """Opens the array of a handle, on the memory of the process that pickled it, without a copy.

    If it cannot be opened, each use of the result raises the error. Nothing is raised here: threads and
    processes of `multiprocessing.Pool` that unpickle take an OSError for the end of their pipe, and end."""
    return _core.receive_array(handle)


def opened_or_lost(
    kind: type[Any], open_memory: Callable[[_core.NDArray], Any], memory: _core.NDArray
) -> Any:
    """``open_memory(memory)``, for pickles; if that fails, an object of this class whose every use raises the
    error."""
    try:
        return open_memory(memory)
    except Exception as error:
        lost = object.__new__(_lost_class(kind))
        object.__setattr__(lost, "why", (type(error), error.args, text_of(error)))
        return lost


def _lost_class(kind: type[Any]) -> type[Any]:
    def use(lost: Any, name: str, *_: object) -> Any:
        if name == "__class__":
            return type(lost)
        error, arguments, _text = object.__getattribute__(lost, "why")
        raise error(*arguments)

    def text(lost: Any) -> str:
        return f"<tenon.{kind.__name__} that cannot be opened: {object.__getattribute__(lost, 'why')[2]}>"

    return type(kind.__name__, (kind,), {"__getattribute__": use, "__setattr__": use, "__repr__": text})


def rebuild_from_buffers(
    _first: Any, content: Any, rebuild: Callable[..., _core.NDArray], dtype: str, shape: tuple[int, ...]
) -> _core.NDArray:
    """The array over the second of two buffers, without a copy.

    Dask receives the first buffer of a message together with the head of the message, at an unaligned
    address, and every other buffer into separate memory. So the pickle has a first buffer before the
    elements."""
    return rebuild(content, dtype, shape)


def rebuild_array(content: Any, dtype: str, shape: tuple[int, ...]) -> _core.NDArray:
    """The array over the bytes of ``content``, without a copy; read-only if ``content`` is read-only.

    If the transport has put the bytes at an address that is not aligned for the dtype, they are copied.
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
    return _core.share(elements)
