# SPDX-License-Identifier: Apache-2.0
"""Functions to call or to push that write to all of an array. If they are pushed, and NumPy would only copy
elements or a number, the extension does that without the GIL (python/src/native_bodies.cc)."""

from __future__ import annotations

from typing import Any

from .. import _core
from .._core import NDArray


def copy(source: Any, destination: Any) -> None:
    """``destination[...] = source``: called, or pushed as ``push(copy, a, overwrite(b))``."""
    _core.without_verbs(destination, True)[...] = _core.without_verbs(source)


def cast(source: Any, destination: Any) -> None:
    """`copy`, with the conversion to the destination's dtype that NumPy calls 'unsafe'."""
    import numpy as np

    def array(data: Any, write: bool) -> Any:  # both are used by one call of NumPy
        data = _core.without_verbs(data, write)
        return data if isinstance(data, NDArray) else np.asarray(data)

    if isinstance(destination, list | tuple | int | float | complex):
        kind = type(destination).__name__
        raise TypeError(f"destination is {kind}: cast() writes to an array or a buffer")
    np.copyto(array(destination, True), array(source, False), casting="unsafe")


def fill(destination: Any, value: Any) -> None:
    """``destination[...] = value``: called, or pushed as ``push(fill, out(a), 0)``."""
    _core.without_verbs(destination, True)[...] = _core.without_verbs(value)
