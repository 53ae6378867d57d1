# SPDX-License-Identifier: Apache-2.0
"""Leases: `NDArray.read`, `NDArray.write`, `NDArray.lease`, and the holders of an array."""

from __future__ import annotations

import functools
import gc
import os
import sys
import warnings
from collections import Counter
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Any, Literal, NamedTuple

from .. import _core
from .._array.share import OnOwnerDied, check_on_owner_died
from .._core import NativeLease, NDArray
from .._errors import LeaseEscaped, LeaseEscapedWarning, OpError, OwnerDied, TenonError, text_of
from .endings import Outlived, outlived_here, release_retained
from .holders import Holder, leases
from .tasks import Signal, current_task, number_of, until_empty

Mode = Literal["r", "w"]

_MAX_NAMED = 4
_POLL_SECONDS = 0.0001


def give_back(array: NDArray, error: BaseException | None) -> None:
    """The end of ``with array:``. ``error``: the exception that ended it, which no other error replaces."""
    failure: OpError | None = None
    try:
        try:
            array.wait_to_write() if array.writable else array.wait_to_read()
        except OpError as op_error:
            failure = op_error
            array.clear_error()
        _core.give_back(array)
    except TenonError:
        if error is None:
            raise
    if failure is not None and error is None:
        raise failure


class Lease:
    """A lease of an array, held from its creation until `release`.

    It belongs to the thread (in asyncio: the task) that took it, until `detach`. As a context manager, it is
    released at the end of the block. If an exception leaves the block of a write lease, the values of
    the array are invalid until all of them are overwritten.
    """

    def __init__(
        self,
        array: NDArray,
        mode: Mode,
        timeout: float | None = None,
        on_owner_died: OnOwnerDied = "raise",
    ) -> None:
        if mode not in ("r", "w"):
            raise ValueError(f"mode is {mode!r}: it must be 'r' or 'w'")
        self.array = array
        self.mode = mode
        check_on_owner_died(on_owner_died)
        if mode == "w" and _core.has_outlived_views(array):
            warn_of_outlived(array)
        self._native = NativeLease(array, mode == "w", ignores_owner_died=on_owner_died == "ignore")
        task = number_of(current_task())
        while True:  # as take(), inlined: a call takes a fifth of the time of a lease
            try:
                self._native.acquire(timeout, task)
                return
            except OwnerDied as error:
                repair(array, error, on_owner_died)

    def release(self) -> None:
        """Releases the lease. Idempotent. May be called from any thread, and never waits."""
        self._native.release()

    def detach(self) -> Lease:
        """Removes the owner of the lease, so any thread may release it. Returns the lease."""
        self._native.detach()
        return self

    def __enter__(self) -> Lease:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None and self.mode == "w":
            self._native.fail(f"the block under its lease ended with {text_of(error)}")
        self.release()


def repair(array: NDArray, error: OwnerDied, on_owner_died: OnOwnerDied) -> None:
    """Calls the caller's function, which repairs memory that a dead process has left half written. If the
    function fails, the memory stays as it is, half written, so that another function can repair it."""
    if not callable(on_owner_died):
        raise error
    failure = None
    with array.write(on_owner_died="ignore") as values:
        try:
            on_owner_died(values, error)
            array.clear_error()  # under the lease: no other access raises OwnerDied from here on
        except BaseException as raised:
            failure = raised
    if failure is not None:
        try:
            raise failure
        finally:
            del failure  # its traceback refers to this frame


def enter_block(
    block: object,
    array: NDArray,
    is_write: bool,
    is_overwrite: bool,
    timeout: float | None,
    on_died: OnOwnerDied,
) -> Any:
    """Enters ``with a.read()`` or ``with a.write()`` (python/src/block.cc) in a task of asyncio, or with a
    function that repairs. Returns the view."""
    lease = NativeLease(array, is_write, is_overwrite, on_died == "ignore")
    take(functools.partial(lease.acquire, timeout), array, on_died)
    return lease.open_block(block)


async def enter_block_later(
    block: object,
    array: NDArray,
    is_write: bool,
    is_overwrite: bool,
    timeout: float | None,
    on_died: OnOwnerDied,
) -> Any:
    """As enter_block, for ``async with``."""
    lease = NativeLease(array, is_write, is_overwrite, on_died == "ignore")
    doing = "lease for writing" if is_write else "lease for reading"
    limit = TimeLimit(timeout, f"{doing} the array of shape {array.shape} and dtype {array.dtype}")
    await take_later(lease, lease.check, array, on_died, limit)
    return lease.open_block(block)


async def nothing_later() -> None:
    pass


def check_outlived(array: NDArray, what: str) -> None:
    """After the end of a block with views that still exist. They hold the memory until they are gone. With
    ``TENON_DEBUG=leases`` this is an error."""
    if not _is_debugging():
        return
    gc.collect()  # which frees views in dead cycles
    release_retained(is_error_near=True)
    views = [holder for holder in leases(array) if holder.kind == "view"]
    if views:
        count = "a view" if len(views) == 1 else f"{len(views)} views"
        raise LeaseEscaped(
            f"{count} of the {what} still exist{'s' * (len(views) == 1)} after the block"
            f"{where_views_are_kept([array], views)}; drop such views, or copy what is to be kept"
        )


def _is_debugging() -> bool:
    return "leases" in os.environ.get("TENON_DEBUG", "").split(",")


_Line = tuple[str, int]  # file and number
_warned: dict[_Line, list[Any]] = {}  # with the filters of warnings: where these change, it warns again
_looks: Counter[_Line] = Counter()


def warn_of_outlived(array: NDArray) -> None:
    """Before a block or lease that writes: warns, once a line, if something has outlived an earlier block on
    these bytes. It continues the lease of that block, so all other threads and tasks wait for it, but not the
    owner of the lease, which would change what it shows. With ``TENON_DEBUG=leases`` this is an error.

    It is none if only a variable of the calling function shows the bytes."""
    kept = _outlived_on(array)
    if not kept:
        return
    frame = _caller()
    line = frame.f_code.co_filename, frame.f_lineno
    if _warned.get(line) == warnings.filters:
        return
    if all(one.is_near for one in kept) and not (_is_debugging() or _is_error()):
        # Usually a variable of the function, which a loop sets again. A search takes long: not in each step.
        _looks[line] += 1
        if _looks[line].bit_count() != 1:
            return
    texts = _kept_elsewhere(array)
    if texts is None:
        return
    for generation in range(0 if texts else 3):  # it may be in a dead cycle
        gc.collect(generation)
        release_retained(is_error_near=True)
        kept = [one for one in _outlived_on(array) if _is_certain(one)]
        if not kept:
            return
    sites = ", ".join(sorted({one.site for one in kept}))
    text = (
        "this block is about to change what a view of an earlier block shows, which outlived that block at "
        f"{sites}{'; kept by: ' if texts else ''}{'; '.join(texts[:_MAX_NAMED])}; copy what is to be kept "
        "(`v.copy()`), or drop such views before the next block"
    )
    if _is_debugging():
        raise LeaseEscaped(text)
    registry = frame.f_globals.setdefault("__warningregistry__", {})
    module = frame.f_globals.get("__name__", "?")
    try:
        warnings.warn_explicit(text, LeaseEscapedWarning, *line, module, registry)
    except LeaseEscapedWarning:  # a filter makes it an error
        _looks[line] = 0
        raise
    _warned[line] = list(warnings.filters)


def _is_error() -> bool:
    """A filter makes the warning an error for all code."""
    for action, message, category, module, line in warnings.filters:
        if issubclass(LeaseEscapedWarning, category) and not (message or module or line):
            return action == "error"
    return False


def _outlived_on(array: NDArray) -> list[Outlived]:
    """What the caller's own blocks have left on these bytes."""
    begin, end = _core.addresses(array)
    task = number_of(current_task())
    return [one for one in outlived_here() if one.begin < end and begin < one.end and one.task in (0, task)]


def _is_certain(one: Outlived) -> bool:
    """More refers to the memory than the ended array of the block, which may hold it for names alone."""
    return _core.counting() == "owned" or _core.references([one.root()]) > 1


def _caller() -> FrameType:
    """The innermost function outside of this package and of contextlib."""
    frame = sys._getframe(1)
    while frame.f_back is not None:
        if frame.f_globals.get("__name__", "").partition(".")[0] not in ("tenon", "contextlib"):
            break
        frame = frame.f_back
    return frame


def _kept_elsewhere(array: NDArray) -> list[str] | None:
    """What shows the bytes of an array, besides variables of the calling function; None: only these do."""
    from .views import places

    try:
        found = [place for place in places(array) if not (place.is_original or place.has_ended)]
    except Exception:  # the warning matters more
        return []
    others = [place.text for place in found if not place.is_own_variable]
    is_near = found and not others and not any(place.is_held_elsewhere for place in found)
    return None if is_near else list(dict.fromkeys(others))


def where_views_are_kept(arrays: list[NDArray], views: list[Holder] | None = None) -> str:
    """For a message: where views of the arrays were taken, and what refers to them, if that is found."""
    if views is None:
        views = [holder for array in arrays for holder in leases(array) if holder.kind == "view"]
    text = ""
    sites = sorted({holder.site for holder in views if holder.site})
    if sites:
        text = f", taken at {', '.join(sites)}"
    from .views import places

    try:
        found = list(dict.fromkeys(place.text for array in arrays for place in places(array)))
    except Exception:  # the message of the caller matters more
        return text
    if found:
        text += f"; kept by: {'; '.join(found[:_MAX_NAMED])}"
    return text


def take(acquire: Callable[[int], object], array: NDArray, on_owner_died: OnOwnerDied) -> None:
    """Calls ``acquire`` with the number of the caller's task, again after each repair."""
    task = number_of(current_task())
    while True:
        try:
            acquire(task)
            return
        except OwnerDied as error:
            repair(array, error, on_owner_died)


class TimeLimit(NamedTuple):
    """The limit of a wait of a task."""

    seconds: float | None
    doing: str  # what the wait is for, after "cannot"


async def take_later(
    lease: NativeLease,
    check: Callable[[], None],
    array: NDArray,
    on_owner_died: OnOwnerDied,
    limit: TimeLimit,
    arena: _core.NativeArena | None = None,
) -> None:
    """As take(), with a request. Calls ``check`` when the lease has been granted."""
    task = number_of(current_task())
    while True:
        try:
            await granted(lease, task, limit, arena)
            check()
            return
        except OwnerDied as error:
            repair(array, error, on_owner_died)


async def granted(
    lease: NativeLease,
    task: int,
    limit: TimeLimit,
    arena: _core.NativeArena | None = None,
) -> None:
    """Requests a lease and waits until it is granted to the task. The caller then checks it or, for an arena,
    enters it."""
    import asyncio

    signal = Signal(lease.report)

    def tell() -> None:
        if not signal.set():
            lease.cancel()

    is_granted = lease.request(tell, task, arena)
    if is_granted and not lease.call_ahead():
        return
    behind = ""
    try:
        async with asyncio.timeout(limit.seconds) as timer:
            try:
                if not is_granted:
                    await signal
                    is_granted = True
                await until_empty(lease.call_ahead)
            except asyncio.CancelledError:  # before the request ends
                if timer.expired():
                    behind = lease.call_ahead() if is_granted else lease.report(True)
                await cancelled(lease)
                raise
    except TimeoutError:
        raise TimeoutError(
            f"cannot {limit.doing} in the time given ({limit.seconds:g} s){behind and ': ' + behind}"
        ) from None
    except BaseException:
        lease.cancel()
        raise


async def cancelled(lease: NativeLease) -> None:
    """Cancels a lease, and waits until it is not held. The thread that granted it may still wait for the GIL
    to call `tell`. A cancellation meanwhile is raised at the end."""
    import asyncio

    cancellation = None
    while not lease.cancel():
        try:
            await asyncio.sleep(_POLL_SECONDS)
        except asyncio.CancelledError as error:
            cancellation = error
    if cancellation is not None:
        raise cancellation
