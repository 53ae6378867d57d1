# SPDX-License-Identifier: Apache-2.0
"""Who holds the memory of an array, and what the search for views knows of leases and ops."""

from __future__ import annotations

import dataclasses

from .. import _core
from .._core import NDArray
from .endings import settle

# The identities of types whose objects have views of their own until they end, and of the code that runs the
# body of an op. The modules that define them enter them here: the search for views is below leases and ops.
OWNERS: set[int] = set()
BODY_CODES: set[int] = set()


@dataclasses.dataclass(frozen=True)
class Holder:
    """Somebody who holds the memory of an array, or waits for it.

    Attributes
    ----------
    kind : {'view', 'op', 'lease', 'call', 'process'}
        Of a shared array also other processes.
    mode : {'r', 'w'}
    is_granted : bool
        False: it waits.
    thread : int
        The kernel's number of the thread that took or pushed it; of a process: its number.
    age : float
        Seconds.
    name : str
        Of an op, a call or a wait; the command of a process; else empty.
    site : str
        Where it was taken or pushed, as 'train.py:12'; empty where no Python code ran.
    where : str
        What `NDArray.drop_views` has found that it hangs on, else empty.
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
    """Who holds the memory of ``array`` or waits for it, in the order of the queue, then views, then other
    processes."""
    settle()
    return [Holder(*row) for row in _core.holders(array)]
