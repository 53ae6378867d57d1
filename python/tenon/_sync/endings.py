# SPDX-License-Identifier: Apache-2.0
"""Ends of blocks: the arrays of a block after its end, and their memory.

After the block its array has no elements, whatever refers to it. It also releases the memory, unless an
object refers to it that may know the address of the memory, such as a tensor. Then the array is *retained*
until that object is gone. Nothing tells Python of that, so `release_retained` looks again.

Other arrays and tensors over the memory stay as they are: they have *outlived* the block. The library makes
other threads and tasks wait for them. The next block of the same thread would change what they show, so it
looks for them (`warn_of_outlived`, lease.py).
"""

from __future__ import annotations

import builtins
import collections
import contextlib
import contextvars
import functools
import gc
import itertools
import operator
import os
import sys
import threading
import types
import weakref
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any, NamedTuple

from .. import _core
from .tasks import current_task, number_of

_SEARCH_SECONDS = 10.0

# Held by a search for views (search.py). For a moment, the search and the frames that it reads refer to
# variables of all threads. So a thread that counts references waits for the end of the search.
_searching = threading.RLock()

# Ended arrays that still hold the memory, by their identity: a weak reference, and the number of references
# at the last look.
_retained: dict[int, tuple[weakref.ref[Any], int]] = {}
_NEVER = sys.maxsize


class Outlived(NamedTuple):
    """What has outlived a block that wrote. The ended parts of the library have the bytes, the owner and the
    line, too, but not the arrays."""

    root: weakref.ref[Any]  # the base of all arrays over the view of the block
    begin: int  # where the bytes begin and end
    end: int
    task: int  # 0: none
    site: str  # the line of the block
    is_near: bool  # a tensor or memoryview among the variables of the function with the block is a part of it


class _OfThread(threading.local):
    def __init__(self) -> None:
        self.outlived: dict[int, Outlived] = {}  # by the identity of the root


_here = _OfThread()
_outlived: dict[int, dict[int, Outlived]] = {}  # all roots: those of their thread
_core.set_registries(_outlived, _retained)


def outlived_here() -> list[Outlived]:
    """What has outlived blocks of the calling thread."""
    return list(_here.outlived.values())


def _forget_searches() -> None:
    global _searching
    _searching = threading.RLock()


os.register_at_fork(after_in_child=_forget_searches)


@contextlib.contextmanager
def no_other_search() -> Iterator[None]:
    """No search of another thread begins in the block. Waits for one that runs, up to a limit: a finalizer of
    the user that runs during the search may wait for the caller."""
    lock = _searching
    is_held = lock.acquire(timeout=_SEARCH_SECONDS)
    try:
        yield
    finally:
        if is_held:
            lock.release()


def wait_for_searches() -> None:
    """Waits until no search of another thread refers to anything."""
    with no_other_search():
        pass


class _Sequence:
    def __getitem__(self, i: int) -> int:
        raise IndexError


def _plain_types() -> frozenset[type]:
    """Types whose instances have references to objects, and no addresses of their memory."""
    functions: list[Any] = [_plain_types, len, [].append, "".__add__, lambda: None, functools.lru_cache(len)]
    iterators: list[Any] = [iter([]), iter(()), iter(_Sequence()), iter(int, 1), iter({}), iter({}.values())]
    iterators += [iter({}.items()), reversed([]), reversed({}), iter(collections.deque())]
    views = [{}.keys(), {}.values(), {}.items(), types.MappingProxyType({})]
    return frozenset(
        [
            *(cls for cls in vars(builtins).values() if isinstance(cls, type) and cls is not memoryview),
            *(cls for cls in vars(itertools).values() if isinstance(cls, type)),
            *(type(value) for value in functions + iterators + views),
            *(types.MethodType, types.CellType, types.FrameType, types.TracebackType, types.ModuleType),
            *(types.GeneratorType, types.CoroutineType, types.AsyncGeneratorType, types.SimpleNamespace),
            *(collections.deque, collections.defaultdict, collections.OrderedDict, functools.partial),
            *(operator.itemgetter, operator.attrgetter, operator.methodcaller),
            *(contextvars.Context, contextvars.ContextVar, contextvars.Token),
        ]
    )


_core.set_plain_types(_plain_types())


def end_views(views: list[Any], frame: FrameType | None, error: BaseException | None = None) -> bool:
    """Ends the view of a block, and arrays that only the frame of the block refers to, as _end_views does.

    Parameters
    ----------
    views : list
        The view of the block and its root. The list has the only references of the block, and is emptied.
    frame : frame or None
        Of the block.
    error : BaseException or None
        The exception that ended the block.

    Returns
    -------
    bool
        Nothing refers to the memory any more.
    """
    if error is None and frame is not None and _core.end_if_lone(views, frame):
        return True
    roots = [views.pop()]
    trace = error.__traceback__ if error is not None else None
    is_free = _end_views(views, roots, frame, trace, False)
    if not is_free:
        is_near = bool(views) and _has_address_among_variables(views, roots[0], frame)
        is_thorough = bool(views) and not is_near
        with no_other_search():
            is_free = _end_views(views, roots, frame, trace, is_thorough)
        if views:
            _leave_retained(views, is_thorough)
        if not is_free and roots[0].flags.writeable:
            _note_outlived(roots, frame, is_near)
    return is_free


class Views:
    """The NumPy arrays of a block, by name. Arrays that are made from one have the same base (its root), so
    that it can release the memory itself."""

    def __init__(self) -> None:
        self.named: dict[str, Any] = {}
        self._pairs: list[list[Any]] = []  # of a view and its root

    def add(self, name: str, pair: list[Any]) -> Any:
        """Takes an array and its root, and returns the array."""
        view = self.named[name] = pair[0]
        self._pairs.append(pair)
        return view

    def end(self, frame: FrameType | None, error: BaseException | None = None) -> bool:
        """As `end_views`, for all of them. Forgets them."""
        self.named.clear()
        is_free = True
        while self._pairs:
            is_free &= end_views(self._pairs.pop(), frame, error)
        return is_free


def _end_views(
    views: list[Any], roots: list[Any], frame: FrameType | None, trace: Any, is_thorough: bool
) -> bool:
    """Makes the view of the block, and arrays over it that only the frame of the block refers to, arrays
    without elements: late use is an error and never a race. Other objects over the memory stay as they are.

    Parameters
    ----------
    views : list
        The view of the block; empty when it has released the memory.
    roots : list
        The base of all of them, a NumPy array.
    frame : frame or None
        Of the block.
    trace : traceback or None
        Of the exception that ended the block.
    is_thorough : bool
        Searches all objects for references to the view.

    Returns
    -------
    bool
        Nothing refers to the memory any more.
    """
    if views:
        _core.empty_view(views[0], False)  # first: another thread may run between the count and the release
    if frame is not None:
        _core.end_named(views, roots[0], frame)
    if views:
        _core.release_if_named(views, trace, is_thorough, frame)
    return _core.references(roots) == 0


# --- what has outlived its block


def _note_outlived(roots: list[Any], frame: FrameType | None, is_near: bool) -> None:
    mine, key = _here.outlived, id(roots[0])
    site = _core.site_at(frame) if frame is not None else None
    mine[key] = Outlived(
        weakref.ref(roots[0], functools.partial(_forget_outlived, key)),
        *_core.addresses(roots[0]),
        number_of(current_task()),
        site or "a line that is not known",
        is_near,
    )
    _outlived[key] = mine


# Those that forget run also while the interpreter ends. Then the names of modules are None, and no module can
# be imported.


def _forget_outlived(key: int, _: Any, is_python_ending: Callable[[], bool] = sys.is_finalizing) -> None:
    if not is_python_ending():
        _outlived.pop(key, {}).pop(key, None)


# --- views that are retained


def _has_address_among_variables(views: list[Any], root: Any, frame: FrameType | None) -> bool:
    """Whether a variable of the frame of the block is a memoryview or a tensor over the memory. Then the
    search for what refers to the view can wait."""
    from .objects import variables_of

    if frame is None:
        return False
    torch = sys.modules.get("torch")
    tensor = getattr(torch, "Tensor", None)
    begin = root.__array_interface__["data"][0]
    for _, value in variables_of(frame):
        if type(value) is memoryview and value.obj is views[0]:
            return True
        if type(value) is tensor and begin <= value.data_ptr() < begin + max(root.nbytes, 1):
            return True
    return False


def _leave_retained(views: list[Any], is_searched: bool) -> None:
    """Notes a view that keeps its memory for now. Empties the list."""
    key = id(views[0])
    if not _retained:
        gc.callbacks.append(_release_after_collection)
    known = _core.references(views) if is_searched else _NEVER
    _retained[key] = (weakref.ref(views[0], functools.partial(_forget, key)), known)
    views.clear()


def _forget(key: int, _: Any = None, is_python_ending: Callable[[], bool] = sys.is_finalizing) -> None:
    if is_python_ending() or _retained.pop(key, None) is None:
        return
    if not _retained:
        with contextlib.suppress(ValueError):
            gc.callbacks.remove(_release_after_collection)


def _release_after_collection(
    phase: str, _: dict[str, int], is_python_ending: Callable[[], bool] = sys.is_finalizing
) -> None:
    if phase == "stop" and not is_python_ending():
        release_retained()


def has_retained() -> bool:
    """Whether an ended view still holds memory."""
    return bool(_retained)


def release_retained(is_error_near: bool = False) -> None:
    """Makes ended views release their memory if only names refer to them by now.

    Parameters
    ----------
    is_error_near : bool
        Looks at all of them; otherwise at those that have lost a reference since the last look.
    """
    for key in list(_retained):
        entry = _retained.get(key)
        if entry is None:
            continue
        views = [entry[0]()]
        if views[0] is None:
            continue
        known = _core.references(views)
        if known < entry[1] or is_error_near:
            if _core.release_if_named(views, None, True, None):
                _forget(key)
            else:
                _retained[key] = (entry[0], known)
