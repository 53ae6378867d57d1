# SPDX-License-Identifier: Apache-2.0
"""The holders of the memory of an array."""

from __future__ import annotations

import dataclasses

from .. import _core
from .._core import NDArray
from .endings import settle


@dataclasses.dataclass(frozen=True)
class Holder:
    """A holder of the memory of an array, or a waiter for it.

    Attributes
    ----------
    kind : {'view', 'op', 'lease', 'call', 'process'}
        'process': another process, for a shared array.
    mode : {'r', 'w'}
    is_granted : bool
        False: it is waiting.
    thread : int
        The kernel's number of the thread that took or pushed it (`threading.get_native_id`); for a process
        its pid.
    age : float
        In seconds.
    name : str
        The name of an op, a call or a wait; the command of a process; else empty.
    site : str
        The line that took or pushed it, for example 'train.py:12'; empty if it was not Python code.
    where : str
        The object that refers to it, if `NDArray.drop_views` found one, else empty.
    """

    kind: str
    mode: str
    is_granted: bool
    thread: int
    age: float
    name: str
    site: str
    where: str = ""


def leases(array: NDArray) -> list[Holder]:
    """The holders of the memory of ``array`` and the waiters for it: the queue in its order, then views, then
    other processes."""
    settle()
    return [Holder(*row) for row in _core.holders(array)]
