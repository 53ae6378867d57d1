# SPDX-License-Identifier: Apache-2.0
"""Arrays handed to JAX, which reads only and knows only the legacy form of DLPack."""

from __future__ import annotations

from typing import Any

from .. import _core


class _ForRead:
    """What ``jax.dlpack.from_dlpack`` asks for a capsule; it only reads, also from a read-only array."""

    def __init__(self, array: _core.NDArray) -> None:
        self._array = array

    def __dlpack__(self, **_: Any) -> Any:
        return self._array.to_dlpack_for_read()

    def __dlpack_device__(self) -> tuple[int, int]:
        return self._array.__dlpack_device__()


def check_width(dtype: _core.dtype, what: str) -> None:
    """Refuses elements that JAX would silently cut to 32 bits, in a copy."""
    import jax

    name = str(dtype)
    is_wide = name in ("int64", "uint64", "float64", "complex128")
    if is_wide and not getattr(jax.config, "jax_enable_x64"):  # noqa: B009 - not declared there
        narrow = name.replace("128", "64") if name.startswith("complex") else name.replace("64", "32")
        raise ValueError(
            f"JAX would cut the elements of {what} from {name} to {narrow}, in a copy: use {narrow}, or call "
            "jax.config.update('jax_enable_x64', True)"
        )


def to_jax(array: _core.NDArray) -> Any:
    """A ``jax.Array`` on the memory of ``array``, which is contiguous."""
    import jax.dlpack

    check_width(array.dtype, "the array")

    return jax.dlpack.from_dlpack(_ForRead(array))
