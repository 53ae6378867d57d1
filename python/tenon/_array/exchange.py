# SPDX-License-Identifier: Apache-2.0
"""The functions of MXNet that export an array as a DLPack capsule."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .._core import NDArray

if TYPE_CHECKING:
    from typing_extensions import CapsuleType


def to_dlpack_for_read(data: NDArray) -> CapsuleType:
    """A legacy DLPack capsule of ``data`` for a consumer that only reads, by the caller's promise, which the
    consumer does not check: `NDArray.to_dlpack_for_read`."""
    return data.to_dlpack_for_read()


def to_dlpack_for_write(data: NDArray) -> CapsuleType:
    """A legacy DLPack capsule of ``data`` for a consumer that may write: `NDArray.to_dlpack_for_write`.

    Raises
    ------
    BufferError
        The array is read-only.
    """
    return data.to_dlpack_for_write()
