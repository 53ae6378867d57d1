# SPDX-License-Identifier: Apache-2.0
"""Finds the objects that refer to views of an array, for messages and for `NDArray.drop_views`. It may miss
some."""

from __future__ import annotations

import builtins
import contextlib
import dataclasses
import gc
import sys
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from types import TracebackType
from typing import Any

import numpy as np

from .. import _core
from .._core import NDArray, addresses
from .._errors import LeaseConflict
from .endings import has_retained, no_other_search, release_retained
from .function import CFunction
from .holders import Holder, leases
from .objects import GENERATORS, frame_of_generator, is_a, variables_of
from .search import ONE_OBJECT, QUICK, THOROUGH, Aim, Search, ViewPlace, is_result_name

_MAX_NAMED = 4
_MOST_RECENT = 100
_RECENT_SECONDS = 1.0
_MAX_VIEWS = 64  # of a conflict, for which live references are looked for

# What `find_views` has found, and when the search began.
_recent: dict[tuple[int, int, bool, int], tuple[float, str]] = {}

_object_of: Any = AttributeError.__dict__["obj"].__get__
_set_object_of: Any = AttributeError.__dict__["obj"].__set__


def places(array: NDArray, thorough: bool = False) -> list[ViewPlace]:
    """Where views of an array are referred to: by variables of all threads and of their modules, and by what
    these refer to, up to a number of references. ``thorough``: of all modules, and up to a larger number."""
    return [place for _, place in _search([addresses(array)], THOROUGH if thorough else QUICK)]


def drop_views(array: NDArray) -> list[Holder]:
    """Drops views of ``array`` that are kept by accident, and returns the remaining holders.

    It deletes ``sys.last_value`` and related variables, and a notebook's ``Out[n]``, ``_n`` and ``_``. It
    clears the variables of finished functions in tracebacks, and ``obj`` of AttributeErrors. It does this
    only for objects that refer to a view of the array. Then it runs the garbage collector. It never changes
    variables of running code or of suspended generators.

    Returns
    -------
    list of Holder
        The remaining views. ``where`` names the object that refers to the view, if it was found; if there are
        several views, each has the places of all of them. Objects that refer to the original array of
        `from_numpy` follow; `leases` does not count them.
    """
    with no_other_search():
        search = Search([addresses(array)], ONE_OBJECT)
        _forget_last_error(search)
        _forget_results(search)
        _clear_errors(search)
        del search
    gc.collect()
    release_retained(is_error_near=True)
    views = [holder for holder in leases(array) if holder.kind == "view"]
    found = places(array, thorough=True)
    where = "; ".join(place.text for place in found if not place.is_original)
    if where and len(views) > 1:
        where = f"of {len(views)} views: {where}"
    return [
        *(dataclasses.replace(holder, where=where) for holder in views),
        *(
            Holder("view", "w" if place.is_writable else "r", True, 0, 0.0, "", "", place.text)
            for place in found
            if place.is_original
        ),
    ]


Found = list[tuple[int, ViewPlace]]  # places, each with the number of its use


def find_live(error: LeaseConflict, uses: Iterable[tuple[NDArray, bool, bool]]) -> Found | None:
    """The places of the views with which a push conflicts, if live objects refer to all of them: then a
    collection of garbage would not end the conflict. None if that is not certain."""
    rows = list(uses)
    is_original, is_of_views = _reasons(error)
    if not (is_original or is_of_views) or has_retained() or _core.may_have_second_queues():
        return None
    arrays = {id(array): array for array, *_ in rows}
    holders = [row for array in arrays.values() for row in _core.holders(array)]
    if len(holders) > _MAX_VIEWS or any(kind != "view" for kind, *_ in holders):
        return None  # under a lease of the caller, or in an op, there may be views that are not counted
    aim = Aim(len(holders), is_original, frozenset(i for i, row in enumerate(rows) if row[1]))
    with contextlib.suppress(Exception), no_other_search():
        search = Search([addresses(array) for array, *_ in rows], QUICK, aim=aim)
        found = search.places()
        if search.finds_all():
            return found
    return None


def _reasons(error: LeaseConflict) -> tuple[bool, bool]:
    """Whether a push conflicts with the array that was given to `from_numpy`; whether with views."""
    text = str(error)
    return "from_numpy()" in text, "ordinary code holds" in text


def explain(
    error: LeaseConflict,
    uses: Iterable[tuple[NDArray, bool, bool]],
    arguments: Sequence[Any],
    can_renew: Callable[[list[NDArray]], bool],
    found: Found | None = None,
    function: Any = None,
) -> LeaseConflict:
    """Adds to the message of a push that conflicts what refers to the views, if that is found, and what to
    do, the likely ways first. ``uses``: (array, is write, is overwrite) of all that the op uses.
    ``can_renew``: whether ``on_conflict="copy"`` would work if views are in the way of these arrays only.
    ``found``: the result of `find_live`; None: it searches. ``function``: what the op runs."""
    text = str(error)
    is_original, is_of_views = _reasons(error)
    if not is_original and not is_of_views:
        return error
    rows = list(uses)
    if found is None:
        found = []
        with contextlib.suppress(Exception):  # else the caller would get this error instead of the conflict
            found = _search([addresses(array) for array, *_ in rows])
    found = [(i, place) for i, place in found if rows[i][1] or place.is_writable]
    places = [place for _, place in found]
    originals = {id(rows[i][0]) for i, _ in found} if is_original else set()

    def is_in_way(array: NDArray, is_write: bool) -> bool:
        held = any(h.kind == "view" and (is_write or h.mode == "w") for h in leases(array))
        return held or id(array) in originals

    in_way = [row for row in rows if is_in_way(*row[:2])] or rows
    if places:
        text += f". It is kept by: {_some([place.text for place in places])}"
    ways = _ways_out(in_way, places, is_original, arguments, can_renew)
    if isinstance(function, CFunction):  # which takes arrays in a direct call, too, beside all views
        ways.insert(0, f"call it without a push (`{function.name}(...)`), for a call runs beside views")
    text += f". To go on: {'; or '.join(ways)}."
    error.args = (text, *error.args[1:])
    return error


def _ways_out(
    in_way: list[tuple[NDArray, bool, bool]],
    places: list[ViewPlace],
    is_original: bool,
    arguments: Sequence[Any],
    can_renew: Callable[[list[NDArray]], bool],
) -> list[str]:
    """What the caller of a push can do that conflicts with views at these places. Each way is sufficient. It
    works at the line of the push, or the text says where it works."""
    ways = []
    # A native function may get the NumPy array itself, which the search does not see.
    given = [array for array in arguments if is_a(array, np.ndarray)] if is_original and not places else []
    is_read_only = not any(is_write for _, is_write, _ in in_way) and not given
    is_leftover = any(place.is_leftover for place in places)
    it, of_each = ("each", " of each") if len({id(array) for array, *_ in in_way}) > 1 else ("it", "")
    drop = _drop_text(places)
    if drop and is_leftover and _shell() is not None:
        ways.append(drop)
    if is_read_only and all(any(array is given for given in arguments) for array, *_ in in_way):
        ways.append(f"push a copy{of_each} (`push(f, a.copy())`), for the op only reads")
    if drop not in ("", *ways):
        ways.append(drop)
    if is_original:
        if given and all(map(_is_movable, given)):
            ways.append("pass an NDArray that has the memory (`a = tn.from_numpy(x, mode='move')`)")
        ways.append("import a copy (`a = tn.from_numpy(x.copy())`)")
        if len(places) == 1 and drop.startswith("drop it") and places[0].is_movable:
            ways.append("give the memory away at the import (`a = tn.from_numpy(x, mode='move')`)")
    else:
        if not places or (not drop and any(place.is_held_elsewhere for place in places)):
            ways.append(
                f"call `a.drop_views()`{of_each}: it drops what notebooks and tracebacks keep, and returns "
                "the other views, with what refers to them if that is found, for you to drop"
            )
        can_be_taken = is_read_only and not any(array.shared for array, *_ in in_way)  # outside of blocks
        if can_be_taken and not places:
            ways.append(f"take {it} as `np.asarray(a.readonly())`, for the op only reads")
        elif can_be_taken and all(place.is_of_buffer for place in places):
            ways.append(f"take {it} from `a.readonly()`, for the op only reads")
        if can_renew([array for array, *_ in in_way]):
            what = "each" if of_each else "`a`"
            ways.append(f"give {what} new memory (`on_conflict='copy'`), and the views keep the old values")
        block = f"(`with {'a.read()' if is_read_only else 'a.write()'} as v:`), behind which ops queue"
        wait = "let the op wait until it is dropped (`on_conflict='wait'`)"
        later = [wait]
        if all(place.is_of_block for place in places):
            is_all = places and not any(place.is_held_elsewhere for place in places)
            later.append(f"take {it} in a block {block}{'' if is_all else ', and keep no part of it'}")
        ways += later[::-1] if drop else later  # what a caller has passed on is the caller's to change
    ways.append("promise with `on_conflict='ignore'` that no code uses it before the op is done")
    return ways


def _is_movable(x: np.ndarray[Any, Any]) -> bool:
    """Whether from_numpy(mode='move') takes an array that was passed: at most one name refers to it."""
    if not x.flags.owndata:
        return False
    address, _ = x.__array_interface__["data"]
    return len(_search([(address, address + x.nbytes)])) <= 1


def _drop_text(places: list[ViewPlace]) -> str:
    """How all of the views are dropped; empty if that is not known of one of them."""
    deleted = {place.change for place in places if place.change.startswith("`del ")}
    # A deleted variable is also gone from the closures of inner functions.
    places = [place for place in places if f"`del {place.cell}`" not in deleted]
    deleted = {place.change for place in places if place.change.startswith("`del ")}
    is_leftover = any(place.is_leftover for place in places)
    # `drop_views` finds what else a notebook keeps.
    is_held = any(place.is_held_elsewhere for place in places) and not is_leftover
    if is_held or not places or not all(place.change or place.is_leftover for place in places):
        return ""
    ways = []
    if is_leftover:
        ways.append("call `a.drop_views()`, which clears what notebooks and tracebacks keep")
    for is_deleted, what in ((True, "drop it"), (False, "keep a copy instead")):
        changes = [place for place in places if place.change and (place.change in deleted) is is_deleted]
        for scope in sorted({place.scope for place in changes}):
            codes = list(dict.fromkeys(place.change for place in changes if place.scope == scope))
            if is_deleted:
                names = [code.removeprefix("`del ").removesuffix("`") for code in codes]
                # `del m` has to come after `del m.w`.
                names.sort(key=lambda name: (-name.count(".") - name.count("["), name))
                codes = [f"`del {', '.join(names)}`"]
            ways.append(f"{what}{f' in {scope}' if scope else ''} ({', '.join(codes)})")
    return " and ".join(ways)


def _shell() -> Any:
    """The shell of IPython that runs; None if there is none."""
    try:
        return sys.modules["IPython"].get_ipython()
    except Exception:  # not there, or not that far
        return None


def find_views(begin: int, end: int, is_write: bool, thread: int, is_report: bool = False) -> str:
    """What refers to views of some memory, for messages of the library about waits, as 'variable `x` of main
    (train.py:12)'; empty if nothing is found. ``is_write``: the holder in question holds the bytes for
    writing. ``thread``: the kernel's number of its thread, whose variables are named first.

    Many waits may ask at a time: they share a search that began after they had asked. ``is_report``: for the
    report of a long wait or for a task, which may use a recent search."""
    key = begin, end, is_write, thread
    oldest = time.monotonic() - (_RECENT_SECONDS if is_report else 0.0)
    with no_other_search():
        began = time.monotonic()
        if key in _recent and _recent[key][0] >= oldest:
            return _recent[key][1]
        text = _found_text(begin, end, is_write, thread)
        if len(_recent) >= _MOST_RECENT:
            _recent.clear()
        _recent[key] = began, text
        return text


def _found_text(begin: int, end: int, is_write: bool, thread: int) -> str:
    threads: dict[int, Any] = getattr(threading, "_active", {})
    idents = [ident for ident, known in list(threads.items()) if known.native_id == thread]
    found = [place for _, place in _search([(begin, end)], QUICK, *idents[:1])]
    if not found:
        gc.collect()  # which ends views in dead reference cycles
    views = [place for place in found if not place.is_original] or found
    if is_write:
        views = [place for place in views if place.is_writable] or views
    return _some(list(dict.fromkeys(place.text for place in views)))


def _some(texts: list[str]) -> str:
    return "; ".join(texts[:_MAX_NAMED] + [f"and {len(texts) - _MAX_NAMED} more"] * (len(texts) > _MAX_NAMED))


def _search(
    extents: list[tuple[int, int]], budget: int = QUICK, first: int | None = None
) -> list[tuple[int, ViewPlace]]:
    """As `Search.places`, while no other thread searches."""
    with no_other_search():
        return Search(extents, budget, first).places()


# --- dropping


def _forget_last_error(search: Search) -> None:
    names = ("last_exc", "last_value", "last_traceback", "last_type")
    if search.leads_to_view(*map(sys.__dict__.get, names)):
        for name in names:
            sys.__dict__.pop(name, None)


def _forget_results(search: Search) -> None:
    """The results that the prompt of Python and IPython keep by themselves."""
    if search.leads_to_view(builtins.__dict__.get("_")):
        del builtins._  # type: ignore[attr-defined]
    shell = _shell()
    if shell is None:
        return
    for space in (shell.user_ns, shell.user_ns_hidden, shell.user_ns.get("_oh", {}), vars(shell.displayhook)):
        for name in [name for name in list(space) if is_result_name(name) or type(name) is int]:
            if not search.leads_to_view(space[name]):
                continue
            if type(name) is int or name.strip("_"):
                del space[name]
            else:  # IPython stops to set `_` where it finds it deleted
                space[name] = ""
    last = getattr(shell, "last_execution_result", None)
    if last is not None and (search.leads_to_view(last.result) or search.leads_to_view(last.error_in_exec)):
        shell.last_execution_result = None


def _clear_errors(search: Search) -> None:
    """Clears the variables of finished functions in tracebacks if one of them leads to a view, and ``obj`` of
    AttributeErrors that leads to a view."""
    suspended = set()
    frames = {}
    for value in gc.get_objects():
        if type(value) is TracebackType:
            frames[id(value.tb_frame)] = value.tb_frame
        elif type(value) in GENERATORS:
            suspended.add(id(frame_of_generator(value)))
        elif is_a(value, AttributeError) and search.leads_to_view(_object_of(value)):
            _set_object_of(value, None)
    del value
    for frame in frames.values():
        if id(frame) in suspended or id(frame) in search.running:
            continue
        if search.leads_to_view(*(variable for _, variable in variables_of(frame))):
            try:
                frame.clear()
            except RuntimeError:  # it runs
                continue
            if sys.version_info < (3, 13):
                _ = frame.f_locals  # updates the copy of the variables, if code has asked for one
