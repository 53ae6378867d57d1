# SPDX-License-Identifier: Apache-2.0
"""Registers NDArray with numba, which compiled functions then take as an array without a copy."""

from __future__ import annotations

from typing import Any

from numba.core import types
from numba.core.datamodel import models
from numba.extending import NativeValue, box, register_model, typeof_impl, unbox

from .. import _core


class _Array(types.Array):
    """The type of an argument that is an NDArray. In compiled code it is a `types.Array`."""

    def as_numpy(self) -> Any:
        return types.Array(self.dtype, self.ndim, self.layout, readonly=not self.mutable)


register_model(_Array)(models.ArrayModel)


@typeof_impl.register(_core.NDArray)
def _type_of(array: _core.NDArray, context: Any) -> Any:
    known = typeof_impl(array.numpy(), context)
    return _Array(known.dtype, known.ndim, known.layout, readonly=not known.mutable)


@unbox(_Array)
def _unbox(kind: _Array, value: Any, context: Any) -> Any:
    """The view of `NDArray.numpy`, which lives until the function returns."""
    view = context.pyapi.call_method(value, "numpy")
    native = context.unbox(kind.as_numpy(), view)
    context.pyapi.decref(view)
    return NativeValue(native.value, is_error=native.is_error, cleanup=native.cleanup)


@box(_Array)
def _box(kind: _Array, value: Any, context: Any) -> Any:
    """A function that returns its argument returns a NumPy array on the same memory."""
    return context.box(kind.as_numpy(), value)
