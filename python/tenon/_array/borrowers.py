# SPDX-License-Identifier: Apache-2.0
"""Which arrays use the memory of a NumPy array."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from .. import _core

if TYPE_CHECKING:
    import numpy as np


@dataclasses.dataclass(frozen=True)
class Borrower:
    """An array that uses the memory of a NumPy array. It does not keep that array or the memory alive.

    Attributes
    ----------
    mode : {'readonly', 'writable'}
        'readonly': the NumPy array is read-only until the borrow ends (`from_numpy`), or it was read-only
        before and stays so.
    shape : tuple of int
        Of the NumPy array that is lent. A read-only view of it counts as the array itself.
    dtype : str
    site : str
        The line that borrowed the memory, for example 'train.py:12'; empty if it was not Python code.
    """

    mode: str
    shape: tuple[int, ...]
    dtype: str
    site: str


def borrowers(x: np.ndarray[Any, Any]) -> list[Borrower]:
    """The arrays that use memory of a NumPy array, each with the line that borrowed it.

    It explains NumPy's error "assignment destination is read-only": while `from_numpy` borrows the memory
    of an array, that array is read-only, and so are the views that are taken of it meanwhile. The arrays of
    one that was read-only before are listed, too.

    Parameters
    ----------
    x : numpy.ndarray
        The array that was given to `from_numpy`, a view of it, or an array that it is a view of.

    Returns
    -------
    list of Borrower
        Empty if no memory of ``x`` is lent. A lent array stays so as long as an NDArray, a slice of
        that, a view or an op uses the memory.

    Raises
    ------
    TypeError
        ``x`` is no NumPy array.
    """
    return [Borrower(*row) for row in _core.borrowers(x)]
