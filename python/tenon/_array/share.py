# SPDX-License-Identifier: Apache-2.0
"""Arrays that several processes use: how they are made, and what `NDArray.read` and its kind do about the
death of a process that was writing."""

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
    """How the memory of a shared array is taken: ``tn.zeros(shape, shared=tn.Shared(name="camera"))``.

    Attributes
    ----------
    name : str or None
        For `attach` in other processes of this user: letters, digits and ``_ - .``, at most 100. None: the
        array goes to them by being pickled.
    huge_pages : bool
        Of the pool that the administrator has set aside (``vm.nr_hugepages``).
    populate : bool
        The pages are entered into this process' page table now, and not at the first access.
    numa_node : int or None
        From which the memory is to come; None: any.
    """

    name: str | None = None
    huge_pages: bool = False
    populate: bool = False
    numa_node: int | None = None


class Handle:
    """A handle of a shared array that keeps its memory for a limited time. Its pickle gives the array.

    The pickle of a shared array itself keeps the memory until some process has opened it, `revoke_handles` is
    called, or this process ends. This one can be sent through a queue as well::

        queue.put(tn.Handle(a, receiver=worker.pid, timeout=60))

    It can be opened more than once, and after its limit, as long as some process has the array.

    Parameters
    ----------
    array : NDArray
        A shared one.
    receiver : int or None
        The process (pid) that is to open it: the memory is free within a second after that process has died.
        None: any may open it.
    timeout : float or None
        Seconds after which it does not keep the memory any more. None: without an end.

    Raises
    ------
    TypeError
        The array is not shared.
    ProcessLookupError
        There is no such process.
    ValueError
        24 handles of the array were not opened yet: open some, or call `revoke_handles` first.
    """

    __slots__ = ("_data",)

    def __init__(self, array: NDArray, *, receiver: int | None = None, timeout: float | None = None) -> None:
        if timeout is not None and not timeout >= 0:
            raise ValueError(f"timeout is {timeout}: it must be seconds, or None")
        self._data = _core.send_array(array)
        self.limit(receiver=receiver, timeout=timeout)

    def limit(self, *, receiver: int | None = None, timeout: float | None = None) -> None:
        """Says anew until when it keeps the memory. Only where it was made."""
        try:
            _core.limit_handle(self._data, receiver or 0, timeout)
        except FileNotFoundError as error:
            raise ProcessLookupError(str(error)) from None

    def revoke(self) -> None:
        """It keeps the memory no longer."""
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
