# SPDX-License-Identifier: Apache-2.0
"""Types for the signatures of the package."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Union

if TYPE_CHECKING:  # a Protocol takes 2 ms to make
    from typing import Protocol

    import numpy as np

    from ._core import dtype

    class Block(Protocol):
        """The context manager of `NDArray.read` and `NDArray.write`."""

        def __enter__(self) -> np.ndarray[Any, Any]: ...

        def __exit__(self, *_: object) -> None: ...

        async def __aenter__(self) -> np.ndarray[Any, Any]: ...

        async def __aexit__(self, *_: object) -> None: ...


# What names an element type: a tenon.dtype, a name, a NumPy dtype or scalar type, a torch.dtype.
DTypeLike = Union["dtype", str, type, Any]
