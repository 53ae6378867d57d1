# SPDX-License-Identifier: Apache-2.0
"""``NDArray.__array_interface__``: NumPy's array interface, version 3."""

from __future__ import annotations

from typing import Any

from .._core import NDArray
from .._errors import TenonError


def array_interface(array: NDArray) -> dict[str, Any]:
    """The dict, with a memoryview as its ``data``.

    The usual ``data`` is an address, which holds nothing: memory could be freed or written while an array
    that was made from the address exists. The interface also allows an object with the buffer protocol. A
    memoryview is an open view as long as the dict, or an array that was made from it, exists.

    A missing view is an AttributeError, because NumPy then goes on with ``__array__``, which can copy.
    """
    try:
        values: Any = array.numpy()
    except (TenonError, TypeError) as error:
        raise AttributeError(f"the array has no __array_interface__: {error}") from error
    if not values.flags.c_contiguous or values.dtype.isbuiltin != 1:
        raise AttributeError(
            f"the array has no __array_interface__: it describes contiguous elements of NumPy's own dtypes, "
            f"not {values.dtype} with strides of {values.strides} bytes: pass np.asarray(a)"
        )
    return {**values.__array_interface__, "data": memoryview(values)}
