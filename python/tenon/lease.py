# SPDX-License-Identifier: Apache-2.0
"""Leases: `NDArray.read`, `NDArray.write`, `NDArray.lease`, and who holds an array."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import gc
import importlib
import inspect
import os
import sys
import threading
from collections.abc import Callable, Iterator
from types import FrameType, TracebackType
from typing import Any, Literal

from . import _core
from ._core import NativeLease, NDArray
from ._errors import LeaseEscaped, OpError, OwnerDied, TenonError, text_of
from ._tasks import Signal, current_task, number_of
from .share import OnOwnerDied, check_on_owner_died

Mode = Literal["r", "w"]

_SEARCH_SECONDS = 10.0

# Held by a search for views (_search.py). It refers to variables of all threads for a moment, and so do the
# frames at which it looks: whoever counts references waits for its end.
_searching = threading.RLock()


def _forget_searches() -> None:
    global _searching
    _searching = threading.RLock()


os.register_at_fork(after_in_child=_forget_searches)


@contextlib.contextmanager
def no_other_search() -> Iterator[None]:
    """No search of another thread begins in the block; one that runs is waited for, though not for ever: code
    of the user's that it calls, such as a finalizer, may wait for the caller."""
    lock = _searching
    is_held = lock.acquire(timeout=_SEARCH_SECONDS)
    try:
        yield
    finally:
        if is_held:
            lock.release()


def wait_for_searches() -> None:
    """Until no search that another thread has begun refers to anything."""
    with no_other_search():
        pass


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
    return [Holder(*row) for row in _core.holders(array)]


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
    """A lease of an array, held from the call that gives it until `release`.

    It belongs to the thread (in asyncio: the task) that took it, until `detach`. As a context manager it is
    released at the end of the block; an exception that leaves the block of one for writing means that the
    array holds no value, until all of it is written.
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
        """Gives the lease back. Idempotent, from any thread; never waits."""
        self._native.release()
        self._task = None

    def detach(self) -> Lease:
        """From now on the lease belongs to nobody: any thread may release it. Returns the lease."""
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
    """Has the caller's function make the memory good that a dead process has left half written."""
    if not callable(on_owner_died):
        raise error
    with array.write(on_owner_died="ignore") as values:
        on_owner_died(values, error)
        array.clear_error()  # under the lease: nobody is told any more


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
                await granted(lease, self._task, self._describe_wait)
                lease.check()
                return self._view_of_array()
            except OwnerDied as error:
                repair(self._array, error, self._on_owner_died)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end(error, sys._getframe(1))

    def _describe_wait(self) -> str:
        return describe_wait(self._array, self._is_write)

    def _end(self, error: BaseException | None, frame: FrameType | None) -> None:
        self._task = None
        views = [self._view, self._root]
        self._view = self._root = None
        if views[1] is not None:
            end_views(views, frame)
        del frame, views
        assert self._lease is not None
        if error is not None and self._is_write:
            has_escaped = self._lease.fail(f"the block that wrote it ended with {text_of(error)}")
        else:
            has_escaped = self._lease.release()
        if has_escaped and error is None:
            tell_of_escaped(self._array, "array")


def end_views(views: list[Any], frame: FrameType | None) -> bool:
    """Ends a block's view and what only the block's own frame names, as _end_views does.

    Parameters
    ----------
    views : list
        The block's view and its root, and the block's only references to them: they are taken out.
    frame : frame or None
        Of the block.

    Returns
    -------
    bool
        Nothing stands on the memory any more.
    """
    root = views.pop()
    is_free = _end_views(views, root, frame)
    if not is_free:
        with no_other_search():
            is_free = _end_views(views, root, frame)
    views.clear()
    return is_free


def tell_of_escaped(array: NDArray, what: str) -> None:
    """Raises LeaseEscaped if views live on."""
    for generation in (1, 2):
        gc.collect(generation)  # what nobody refers to is no view that lives on
        views = [holder for holder in leases(array) if holder.kind == "view"]
        if not views:
            return
    places = ", ".join(sorted({holder.site for holder in views if holder.site}))
    behind = "other processes cannot have it" if array.shared else "work waits behind it"
    raise LeaseEscaped(
        f"{len(views)} views of the {what} live on after the block, and {behind}"
        f"{': taken at ' + places if places else ''}; drop them, or copy what is to be kept"
    )


async def granted(
    lease: NativeLease,
    task: asyncio.Task[Any] | None,
    describe: Callable[[], str],
    arena: _core.NativeArena | None = None,
) -> None:
    """Until a lease that is asked for now is granted to a task: to be checked then, or, of an arena,
    entered."""
    signal = Signal(describe)

    def tell() -> None:
        if not signal.set():
            lease.cancel()

    if not lease.request(tell, number_of(task), arena):
        try:
            await signal
        except BaseException:
            lease.cancel()
            raise


def describe_wait(array: NDArray, is_write: bool) -> str:
    holders = (holder for holder in leases(array) if holder.is_granted and holder.kind != "view")
    behind = next((f"{holder.kind} of {holder.site}" for holder in holders if holder.site), "others")
    return f"a lease for {'writing' if is_write else 'reading'} behind {behind}"


def _end_views(views: list[Any], root: Any, frame: FrameType | None) -> bool:
    """Makes the block's view, and arrays over it that only the block's own frame names, arrays of no
    elements: late use is an error and never a race. Whatever else stands on the memory lives on.

    Parameters
    ----------
    views : list
        The block's view alone; empty when that has let go of the memory.
    root : numpy.ndarray
        On which all of them stand.
    frame : frame or None
        Of the block.

    Returns
    -------
    bool
        Nothing stands on the memory any more.
    """
    names = _names_in(frame, root)
    del frame
    # Besides the variables of the frame: the variable here, and the argument of getrefcount.
    if views:
        view = views.pop()
        expected = names.pop(id(view), (view, 0))[1]
        is_alone = sys.getrefcount(view) <= expected + 2
        _core.empty_view(view, is_alone)
        if not is_alone:
            views.append(view)
        del view
    for key in list(names):
        array, expected = names.pop(key)
        if sys.getrefcount(array) <= expected + 2:
            _core.empty_view(array, True)
        del array
    return sys.getrefcount(root) <= 3  # the variable of the caller besides


def _names_in(frame: FrameType | None, root: Any) -> dict[int, tuple[Any, int]]:
    """The arrays over ``root`` among the variables of a frame, each with the number of references that its
    variables make; by their identity."""
    import numpy as np

    found: dict[int, tuple[Any, int]] = {}
    if frame is None:
        return found
    # Before Python 3.13 f_locals of a function is a copy of the variables that the frame keeps: each counts
    # twice. From then on it shows the variables themselves; elsewhere it is the dictionary that holds them.
    is_copy = sys.version_info < (3, 13) and (frame.f_code.co_flags & inspect.CO_OPTIMIZED) != 0
    variables = frame.f_locals
    values = list(variables.values())
    is_traced = frame.f_trace is not None or sys.gettrace() is not None or sys.getprofile() is not None
    # A copy that nobody else uses would keep values that the variables let go of later. The count is of the
    # frame, the variable here and the argument. A debugger writes the copy back into the variables.
    if is_copy and not is_traced and sys.getrefcount(variables) <= 3:
        variables.clear()
        is_copy = False
    del variables
    while values:
        value = values.pop()
        if isinstance(value, np.ndarray) and value.base is root:
            found[id(value)] = (value, found.get(id(value), (value, 0))[1] + (2 if is_copy else 1))
    return found
