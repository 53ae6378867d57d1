# SPDX-License-Identifier: Apache-2.0
"""The attribute ``a.ctypes``: the memory of an array for ctypes."""

from __future__ import annotations

import ctypes
from typing import Any

from .. import _core


class ArrayCTypes:
    """The memory of an array for functions called through ctypes.

    It can be passed as a ``c_void_p``. The object, and every pointer of ``data_as``, keeps the memory alive.
    The memory is shared, not copied.
    """

    def __init__(self, array: _core.NDArray) -> None:
        self._array = array
        self._view = _core.hold_view(array)

    @property
    def data(self) -> int:
        """The address of element 0."""
        return self._array.data_ptr

    @property
    def shape(self) -> Any:
        """The shape as a ctypes array of ``c_ssize_t``."""
        return (ctypes.c_ssize_t * self._array.ndim)(*self._array.shape)

    @property
    def strides(self) -> Any:
        """The strides in bytes as a ctypes array of ``c_ssize_t``."""
        return (ctypes.c_ssize_t * self._array.ndim)(*self._array.strides)

    def data_as(self, pointer_type: Any) -> Any:
        """The address as ``pointer_type``, such as ``ctypes.POINTER(ctypes.c_float)``."""
        pointer = ctypes.cast(ctypes.c_void_p(self.data), pointer_type)
        pointer._tenon = self  # keeps the memory for as long as the pointer lives
        return pointer

    @property
    def _as_parameter_(self) -> ctypes.c_void_p:
        return self.data_as(ctypes.c_void_p)  # type: ignore[no-any-return]
