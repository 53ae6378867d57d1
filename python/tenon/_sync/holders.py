# SPDX-License-Identifier: Apache-2.0
"""The holders of the memory of an array."""

from __future__ import annotations

import dataclasses

from .. import _core
from .._core import NDArray
from .endings import release_retained


@dataclasses.dataclass(frozen=True, init=False)
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

    def __init__(
        self,
        kind: str,
        mode: str,
        is_granted: bool,
        thread: int,
        age: float,
        name: str,
        site: str,
        where: str = "",
    ) -> None:
        # The method that `dataclass` makes for a frozen class takes twice as long.
        fields = self.__dict__
        fields["kind"] = kind
        fields["mode"] = mode
        fields["is_granted"] = is_granted
        fields["thread"] = thread
        fields["age"] = age
        fields["name"] = name
        fields["site"] = site
        fields["where"] = where


def leases(array: NDArray) -> list[Holder]:
    """The holders of the memory of ``array`` and the waiters for it: the queue in its order, then views, then
    other processes."""
    release_retained()
    rows = _core.holders(array)
    rows.reverse()
    # Each row is freed before the next holder is made: the garbage collector visits half of the objects.
    return [Holder(*rows.pop()) for _ in range(len(rows))]
