# SPDX-License-Identifier: Apache-2.0
"""Types for the signatures of the package."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Union

if TYPE_CHECKING:
    from ._core import dtype

# What names an element type: a tenon.dtype, a name, a NumPy dtype or scalar type, a torch.dtype.
DTypeLike = Union["dtype", str, type, Any]
