# SPDX-License-Identifier: Apache-2.0
"""Arrays that several processes use: their options, and `on_owner_died` of `NDArray.read`, `write` and
`lease`."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import operator
import sys
import time
from collections.abc import Callable
from types import EllipsisType
from typing import Any, Literal, TypeVar

from .. import _core
from .._core import NDArray
from .._typing import DTypeLike
from .._values import INT32_MAX, count, flag, seconds, text_for_c
from . import passing

_T = TypeVar("_T")

OnOwnerDied = Literal["raise", "ignore"] | Callable[[Any, Exception], object]


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


_MOST_OPENS = 65_534


class Handle:
    """A handle of a shared array that keeps its memory for some processes or for some time. Unpickling it
    returns the array.

    The pickle of the shared array itself keeps the memory until a process has opened it, `revoke_handles` is
    called, or this process ends. A Handle can be sent in the same ways::

        queue.put(tn.Handle(a, receiver=worker.pid, timeout=60))
        data = pickle.dumps(tn.Handle(a, opens=3))  # for three processes

    Parameters
    ----------
    array : NDArray
        A shared array.
    opens : int or None, optional
        How many processes may open it. It keeps the memory until then, and a use of what a further process
        has received raises `MessageGone`. None: any number. A second open in one process is not counted; one
        by a process that dies afterwards is. Without ``opens``, the first process that opens it ends what it
        keeps, and it can be opened, also after its limit, as long as some process has the array.
    receiver : int or None
        The process (pid) that will open it. After the end of that process, the memory is freed within one
        second. None: any process.
    timeout : float or None
        The number of seconds for which it keeps the memory. None: no limit.

    Raises
    ------
    TypeError
        The array is not shared; the receiver or ``opens`` is no integer, or the timeout no number.
    ProcessLookupError
        There is no such process.
    ValueError
        ``receiver`` is not a process number. ``opens`` is not positive. ``timeout`` is negative or NaN.
    MemoryError
        16,384 handles of arrays in the same memory are unopened: open some of them, or call `revoke_handles`
        first.
    """

    __slots__ = ("_data", "_until")

    def __init__(
        self,
        array: NDArray,
        *,
        opens: int | EllipsisType | None = ...,
        receiver: int | None = None,
        timeout: float | None = None,
    ) -> None:
        limits = _limits(receiver, timeout)
        most = 0 if opens is None or opens is ... else count(opens, "opens", 1, _MOST_OPENS)
        self._data = _core.send_array(array)
        try:
            if opens is not ...:
                self._data = _core.set_handle_opens(self._data, most)
            self._limit(*limits)
        except BaseException:  # no process has it
            try:
                self.revoke()
            except MemoryError:
                _core.open_array(self._data)  # it shares its record with other handles: an open takes it back
            raise

    def limit(self, *, receiver: int | None = None, timeout: float | None = None) -> None:
        """Sets a new limit. Only in the process that made the handle. Raises as the constructor."""
        self._limit(*_limits(receiver, timeout))

    def _limit(self, receiver: int, timeout: float | None) -> None:
        self._until = math.inf if timeout is None else time.monotonic() + timeout
        try:
            _core.limit_handle(self._data, receiver, timeout)
        except FileNotFoundError as error:
            raise ProcessLookupError(str(error)) from None

    def revoke(self) -> None:
        """Ends the effect of the handle: it does not keep the memory any more. Raises `MemoryError` for a
        handle whose record others share, because 16,384 were unopened; `revoke_handles` ends it, too."""
        _core.limit_handle(self._data, 0, 0.0)

    def __reduce__(self) -> tuple[Any, ...]:
        from .pickle import open_shared_array

        passing.note(self._data, self._until, sys._getframe(1))
        return open_shared_array, (self._data,)


def _limits(receiver: int | None, timeout: float | None) -> tuple[int, float | None]:
    """The limits for `limit_handle`."""
    pid = 0 if receiver is None else count(receiver, "receiver", 1, INT32_MAX)
    return pid, None if timeout is None else seconds(timeout, "timeout", ", or None")


def attach(name: str, readonly: bool = False, wait: float = 0.0) -> NDArray:
    """The array that a process of this user shares under a name.

    Parameters
    ----------
    name : str
    readonly : bool
        The array is read-only. The memory is mapped read-only, too, unless this process has mapped it
        writable already: so a write by native code ends the process.
    wait : float
        The seconds to wait for the name to appear.

    Returns
    -------
    NDArray
        An array on the same memory, in C order.

    Raises
    ------
    FileNotFoundError
        No running process of this user shares an array under the name, or only processes in another PID
        namespace do.
    ValueError
        The name is that of a channel, an arena or a feed; the message names the call that opens it. Or the
        memory is damaged, or was made by another version of Tenon.
    TimeoutError
        Other processes were making or opening the name for 5 s.
    MemoryError, OSError
        No address space, or no file descriptor, is left.
    """
    return _checked_array(memory_named(name, readonly, wait), name)


_POLL_SECONDS = 0.005


def memory_named(name: str, readonly: bool, wait: float) -> NDArray:
    """The memory that has a name, for which it waits."""
    end = time.monotonic() + seconds(wait, "wait")
    while True:
        try:
            return _core.attach(name, readonly)
        except FileNotFoundError:
            if time.monotonic() >= end:
                raise
        time.sleep(_POLL_SECONDS)


def opened_or_made(
    options: _Settings | None, opened: Callable[[NDArray, str], _T], made: Callable[[_Settings], _T]
) -> _T:
    """For ``exist_ok=True``: ``opened(memory, name)`` of the memory that has the name, or ``made(options)``,
    which makes memory of this name. Each of the two steps is under the lock of the name."""
    if options is None or not options[0]:
        raise ValueError("exist_ok is True, but there is no name to look for: shared='name'")
    name, errors = options[0], 0
    while True:
        try:
            memory = _core.attach(name, False)
        except FileNotFoundError:
            try:
                return made(options)
            except ValueError:  # the name is taken now, or an argument is wrong
                errors += 1
                if errors == _MOST_ERRORS:
                    raise
        else:
            return opened(memory, name)


_MOST_ERRORS = 3  # a name may be taken and free again between two looks


def _checked_array(array: NDArray, name: str) -> NDArray:
    kind = _kind_of(array)
    if kind is None:
        return array
    raise ValueError(f"{name!r} is the name of no array: open it with tn.{kind}.attach({name!r})")


def _kind_of(memory: NDArray) -> str | None:
    if memory.ndim != 1 or memory.dtype.name != "uint8":
        return None
    for kind, native in (("Channel", _core.NativeChannel), ("Arena", _core.NativeArena)):
        with contextlib.suppress(ValueError):
            native.open(memory)
            return kind
    return None


_Settings = tuple[str, bool, bool, int]


def set_lock_timeout(seconds: float | None) -> float | None:
    """Sets how long calls and blocks on shared arrays wait for other processes before they raise
    TimeoutError, which names the process that holds the array. The initial value is 5 seconds.

    Parameters
    ----------
    seconds : float or None
        None: no limit.

    Returns
    -------
    float or None
        The old value.
    """
    return _core.set_lock_timeout(seconds)


def revoke_handles(array: NDArray) -> int:
    """Revokes the handles (pickles) of a shared array that this process has made and that no process has
    opened: they no longer keep its memory.

    Returns
    -------
    int
        How many there were.

    Raises
    ------
    TypeError
        The array is not shared.
    """
    return _core.revoke_handles(array)


def settings(shared: bool | str | Shared) -> _Settings | None:
    """(name, huge pages, populate, NUMA node) for the functions of `_core`; None: not shared."""
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
    name = "" if shared.name is None else text_for_c(shared.name, "name of tenon.Shared")
    if shared.name == "":
        raise ValueError("name of tenon.Shared is '': it has at least one character; None gives it none")
    node = -1 if shared.numa_node is None else count(shared.numa_node, "numa_node", 0, INT32_MAX)
    return name, flag(shared.huge_pages, "huge_pages"), flag(shared.populate, "populate"), node


def create(
    shape: Any,
    dtype: DTypeLike | None,
    zeroed: bool,
    device: str,
    shared: bool | str | Shared,
    exist_ok: bool = False,
) -> NDArray:
    """New memory, shared or not, for `empty` and `zeros`."""
    if dtype is None:
        dtype = "float32"
    elif type(dtype) is int:
        raise TypeError(
            f"dtype is {dtype}: it must be a dtype, such as 'float32'; a shape of several axes is a tuple: "
            f"({shape}, {dtype})"
        )
    options = settings(shared)
    if exist_ok is not False and flag(exist_ok, "exist_ok"):
        return opened_or_made(
            options,
            lambda found, name: _as_asked(_checked_array(found, name), name, shape, dtype, device),
            lambda settings: _core.create_shared(shape, dtype, zeroed, *settings, device),
        )
    if options is None and device == "cpu":
        return _core.create(shape, dtype, zeroed=zeroed)
    if options is None:
        return _core.create_on(shape, dtype, zeroed, device)
    return _core.create_shared(shape, dtype, zeroed, *options, device)


def axes_of(shape: Any) -> tuple[int, ...]:
    """A valid shape as the tuple that an array of it has."""
    try:
        return (operator.index(shape),)
    except TypeError:
        return tuple(map(operator.index, shape))


def _as_asked(array: NDArray, name: str, shape: Any, dtype: DTypeLike, device: str) -> NDArray:
    """The array that exists. Fails with ValueError if the call would have made another one."""
    wanted = axes_of(shape)
    kind = _core.dtype(dtype)
    if (array.shape, array.dtype, array.device) != (wanted, kind, "cuda:0" if device == "cuda" else device):
        raise ValueError(
            f"the array named {name!r} exists with shape {array.shape}, dtype {array.dtype} and device "
            f"{array.device!r}, and not {wanted}, {kind} and {device!r}"
        )
    return array


def check_on_owner_died(value: OnOwnerDied) -> OnOwnerDied:
    if value not in ("raise", "ignore") and not callable(value):
        raise ValueError(f"on_owner_died is {value!r}: it must be 'raise', 'ignore' or a function")
    return value
