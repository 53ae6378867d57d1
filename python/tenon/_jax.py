# SPDX-License-Identifier: Apache-2.0
"""Arrays handed to JAX, which reads only and knows only the legacy form of DLPack."""

from __future__ import annotations

from typing import Any

from . import _core


class _ForRead:
    """What ``jax.dlpack.from_dlpack`` asks for a capsule; it only reads, also from a read-only array."""

    def __init__(self, array: _core.NDArray) -> None:
        self._array = array

    def __dlpack__(self, **_: Any) -> Any:
        return self._array.to_dlpack_for_read()

    def __dlpack_device__(self) -> tuple[int, int]:
        return self._array.__dlpack_device__()


def to_jax(array: _core.NDArray) -> Any:
    """A ``jax.Array`` on the memory of ``array``, which is contiguous."""
    import jax.dlpack

    return jax.dlpack.from_dlpack(_ForRead(array))
