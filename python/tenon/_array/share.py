# SPDX-License-Identifier: Apache-2.0
"""Arrays that several processes use: their options, and `on_owner_died` of `NDArray.read`, `write` and
`lease`."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from .. import _core
from .._core import NDArray
from .._typing import DTypeLike

OnOwnerDied = str | Callable[[Any, Exception], object]


@dataclasses.dataclass(frozen=True)
class Shared:
    """Options of a shared array: ``tn.zeros(shape, shared=tn.Shared(name="camera"))``.

    Attributes
    ----------
    name : str or None
        For `attach` in other processes of this user: at most 100 letters, digits and ``_ - .``. None: other
        processes get the array only by its pickle.
    huge_pages : bool
        Use the reserved huge pages (``vm.nr_hugepages``).
    populate : bool
        Map all pages into this process now, instead of at the first access.
    numa_node : int or None
        The NUMA node of the memory; None: any node.
    """

    name: str | None = None
    huge_pages: bool = False
    populate: bool = False
    numa_node: int | None = None


class Handle:
    """A handle of a shared array that keeps its memory for a limited time. Unpickling it returns the array.

    The pickle of the shared array itself keeps the memory until a process has opened it, `revoke_handles` is
    called, or this process ends. A Handle can be sent in the same ways::

        queue.put(tn.Handle(a, receiver=worker.pid, timeout=60))

    It can be opened several times, also after its limit, as long as some process has the array.

    Parameters
    ----------
    array : NDArray
        A shared array.
    receiver : int or None
        The process (pid) that will open it. After the end of that process, the memory is freed within one
        second. None: any process.
    timeout : float or None
        The number of seconds for which it keeps the memory. None: no limit.

    Raises
    ------
    TypeError
        The array is not shared.
    ProcessLookupError
        There is no such process.
    ValueError
        24 handles of the array are unopened: open some, or call `revoke_handles` first.
    """

    __slots__ = ("_data",)

    def __init__(self, array: NDArray, *, receiver: int | None = None, timeout: float | None = None) -> None:
        if timeout is not None and not timeout >= 0:
            raise ValueError(f"timeout is {timeout}: it must be seconds, or None")
        self._data = _core.send_array(array)
        self.limit(receiver=receiver, timeout=timeout)

    def limit(self, *, receiver: int | None = None, timeout: float | None = None) -> None:
        """Sets a new limit. Only in the process that made the handle."""
        try:
            _core.limit_handle(self._data, receiver or 0, timeout)
        except FileNotFoundError as error:
            raise ProcessLookupError(str(error)) from None

    def revoke(self) -> None:
        """Ends the effect of the handle: it does not keep the memory any more."""
        _core.limit_handle(self._data, 0, 0.0)

    def __reduce__(self) -> tuple[Any, ...]:
        from .pickle import open_shared_array

        return open_shared_array, (self._data,)


def settings(shared: bool | str | Shared) -> tuple[str, bool, bool, int] | None:
    """(name, huge pages, populate, NUMA node) as the native part takes them; None: not shared."""
    if shared is False:
        return None
    if shared is True:
        shared = Shared()
    elif isinstance(shared, str):
        if not shared:
            raise ValueError("shared is '': the name of a shared array has at least one character")
        shared = Shared(name=shared)
    elif not isinstance(shared, Shared):
        raise TypeError(f"shared is {shared!r}: it must be False, True, a name or a tenon.Shared")
    node = -1 if shared.numa_node is None else shared.numa_node
    return shared.name or "", shared.huge_pages, shared.populate, node


def create(shape: Any, dtype: DTypeLike, zeroed: bool, shared: bool | str | Shared) -> NDArray:
    """New memory, shared or not, as `empty` and `zeros` say."""
    options = settings(shared)
    if options is None:
        return _core.create(shape, dtype, zeroed=zeroed)
    return _core.create_shared(shape, dtype, zeroed, *options)


def check_on_owner_died(value: OnOwnerDied) -> OnOwnerDied:
    if value not in ("raise", "ignore") and not callable(value):
        raise ValueError(f"on_owner_died is {value!r}: it must be 'raise', 'ignore' or a function")
    return value
