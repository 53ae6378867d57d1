# SPDX-License-Identifier: Apache-2.0
"""Leases: `NDArray.read`, `NDArray.write`, `NDArray.lease`, and the holders of an array."""

from __future__ import annotations

import asyncio
import gc
import importlib
import os
import sys
from types import FrameType, TracebackType
from typing import Any, Literal

from .. import _core
from .._array.share import OnOwnerDied, check_on_owner_died
from .._core import NativeLease, NDArray
from .._errors import LeaseEscaped, OpError, OwnerDied, TenonError, text_of
from .endings import end_views, settle
from .holders import Holder, leases
from .tasks import Signal, current_task, number_of, until_empty

Mode = Literal["r", "w"]

_MAX_NAMED = 4


def give_back(array: NDArray, error: BaseException | None) -> None:
    """The end of ``with array:``; ``error`` is what ended it. No error of the end takes its place."""
    failure: OpError | None = None
    try:
        try:
            array.wait_to_write()
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
    released at the end of the block. If an exception leaves the block of a write lease, the array holds no
    value until all of it is overwritten.
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
        self._native = NativeLease(array, mode == "w", ignores_owner_died=on_owner_died == "ignore")
        self._task = current_task()
        while True:
            try:
                self._native.acquire(timeout, number_of(self._task))
                return
            except OwnerDied as error:
                repair(array, error, on_owner_died)

    def release(self) -> None:
        """Releases the lease. Idempotent. May be called from any thread, and never waits."""
        self._native.release()
        self._task = None

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


class Block:
    """What ``with a.read() as v`` and ``with a.write() as v`` enter where more is to be done than taking
    turns (python/src/block.cc has the usual one): in asyncio's tasks, and to call a function that repairs."""

    def __init__(
        self, array: NDArray, is_write: bool, is_overwrite: bool, on_owner_died: OnOwnerDied
    ) -> None:
        self._array = array
        self._on_owner_died = check_on_owner_died(on_owner_died)
        self._is_write = is_write
        self._is_overwrite = is_overwrite
        self._lease: NativeLease | None = None
        self._task: asyncio.Task[Any] | None = None
        self._root: Any = None
        self._view: Any = None

    def _begin(self) -> NativeLease:
        if self._lease is not None:
            raise RuntimeError("a block cannot be entered a second time: call read() or write() again")
        if "numpy" not in sys.modules:
            importlib.import_module("numpy")  # takes long the first time: not while others wait for the lease
        ignores = self._on_owner_died == "ignore"
        self._lease = NativeLease(self._array, self._is_write, self._is_overwrite, ignores)
        self._task = current_task()
        return self._lease

    def _view_of_array(self) -> Any:
        array = self._array if self._is_write else self._array.readonly()
        try:
            # What is made of the view stands on the root, so that the view itself can let go of it.
            self._root = array.numpy()
        except BaseException:
            self._end(None, None)
            raise
        self._view = self._root[...]
        return self._view

    def __enter__(self) -> Any:
        lease = self._begin()
        while True:
            try:
                lease.acquire(None, number_of(self._task))
                return self._view_of_array()
            except OwnerDied as error:
                repair(self._array, error, self._on_owner_died)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end(error, sys._getframe(1))

    async def __aenter__(self) -> Any:
        lease = self._begin()
        while True:
            try:
                await granted(lease, self._task)
                lease.check()
                return self._view_of_array()
            except OwnerDied as error:
                repair(self._array, error, self._on_owner_died)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end(error, sys._getframe(1))

    def _end(self, error: BaseException | None, frame: FrameType | None) -> None:
        self._task = None
        views = [self._view, self._root]
        self._view = self._root = None
        is_free = views[1] is None or end_views(views, frame, error)
        del frame, views
        assert self._lease is not None
        if error is not None and self._is_write:
            has_escaped = self._lease.fail(f"the block that wrote it ended with {text_of(error)}")
        else:
            has_escaped = self._lease.release()
        if (has_escaped or not is_free) and error is None:
            heed_survivors(self._array, "array")


def heed_survivors(array: NDArray, what: str) -> None:
    """After the end of a block whose views live on: they hold the memory until they are gone, which is an
    error with ``TENON_DEBUG=leases`` alone."""
    if "leases" not in os.environ.get("TENON_DEBUG", "").split(","):
        return
    gc.collect()  # what nobody refers to is no view that lives on
    settle(is_error_near=True)
    views = [holder for holder in leases(array) if holder.kind == "view"]
    if views:
        raise LeaseEscaped(
            f"{len(views)} views of the {what} live on after the block"
            f"{where_views_hang([array], views)}; drop them, or copy what is to be kept"
        )


def where_views_hang(arrays: list[NDArray], views: list[Holder] | None = None) -> str:
    """For a message: where views of the arrays were taken, and on what they hang, if that is found."""
    if views is None:
        views = [holder for array in arrays for holder in leases(array) if holder.kind == "view"]
    text = ""
    sites = sorted({holder.site for holder in views if holder.site})
    if sites:
        text = f", taken at {', '.join(sites)}"
    from .views import places

    try:
        found = list(dict.fromkeys(place.text for array in arrays for place in places(array)))
    except Exception:  # whatever it is, the caller has something else to tell
        return text
    if found:
        text += f"; they hang on: {'; '.join(found[:_MAX_NAMED])}"
    return text


async def granted(
    lease: NativeLease,
    task: asyncio.Task[Any] | None,
    arena: _core.NativeArena | None = None,
) -> None:
    """Until a lease that is asked for now is granted to a task: to be checked then, or, of an arena,
    entered."""
    signal = Signal(lease.report)

    def tell() -> None:
        if not signal.set():
            lease.cancel()

    if not lease.request(tell, number_of(task), arena):
        try:
            await signal
        except BaseException:
            lease.cancel()
            raise
    if lease.call_ahead():
        try:
            await until_empty(lease.call_ahead)
        except BaseException:
            lease.cancel()
            raise
