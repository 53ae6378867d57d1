# SPDX-License-Identifier: Apache-2.0
"""Exports to JAX, which only reads and supports only the legacy form of DLPack."""

from __future__ import annotations

from typing import Any

from .. import _core


class _ForRead:
    """The object from which ``jax.dlpack.from_dlpack`` requests a capsule. JAX only reads, so the array may
    be read-only."""

    def __init__(self, array: _core.NDArray) -> None:
        self._array = array

    def __dlpack__(self, *, stream: Any = None, **_: Any) -> Any:
        if self._array.device.startswith("cuda:"):  # JAX's stream waits for the work on the array
            return self._array.__dlpack__(stream=stream)
        return self._array.to_dlpack_for_read()

    def __dlpack_device__(self) -> tuple[int, int]:
        return self._array.__dlpack_device__()


def _is_cut(dtype: _core.dtype) -> bool:
    """Whether JAX would silently copy elements of the dtype and truncate them to 32 bits."""
    import jax

    is_wide = str(dtype) in ("int64", "uint64", "float64", "complex128")
    return is_wide and not getattr(jax.config, "jax_enable_x64")  # noqa: B009 - not declared there


def check_width(dtype: _core.dtype, what: str) -> None:
    """Raises for elements that JAX would silently copy and truncate to 32 bits."""
    if _is_cut(dtype):
        name = str(dtype)
        narrow = name.replace("128", "64") if name.startswith("complex") else name.replace("64", "32")
        raise ValueError(
            f"JAX would cut the elements of {what} from {name} to {narrow}, in a copy: use {narrow}, or call "
            "jax.config.update('jax_enable_x64', True)"
        )


def device_name(device: Any) -> str:
    """Tenon's name of a device of JAX, or of what has such a name already. Raises if JAX does not have it."""
    if isinstance(device, str) and device.partition(":")[0] == "cpu":
        return "cpu"
    platform = device.partition(":")[0] if isinstance(device, str) else device.platform
    if platform not in ("cpu", "gpu", "cuda"):
        raise ValueError(f"device is {device!r}: a feed delivers to 'cpu' and 'cuda:N'")
    import jax

    if isinstance(device, str):
        place = device.partition(":")[2]
        try:
            known = {f"cuda:{one.local_hardware_id}" for one in jax.devices(platform)}
        except RuntimeError as error:
            raise ValueError(
                f"device is {device!r}: JAX {jax.__version__} cannot use it ({error}). "
                'Install jax[cuda12], or use feed.jax("cpu")'
            ) from None
        name = f"cuda:{place or 0}"
        if name not in known:
            raise ValueError(f"device is {device!r}: JAX has {sorted(known)}")
        return name
    return "cpu" if device.platform == "cpu" else f"cuda:{device.local_hardware_id}"


def to_jax(array: _core.NDArray) -> Any:
    """A ``jax.Array`` on the memory of ``array``, which must be contiguous. Nothing is copied."""
    import jax.dlpack

    check_width(array.dtype, "the array")

    return jax.dlpack.from_dlpack(_ForRead(array))


def as_jax(array: _core.NDArray) -> Any:
    """``NDArray.__jax_array__``: as `to_jax`. Elements that JAX would truncate are copied and truncated, as
    those of a NumPy array are."""
    import jax.numpy

    return jax.numpy.asarray(array.asnumpy()) if _is_cut(array.dtype) else to_jax(array)
