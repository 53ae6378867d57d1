# SPDX-License-Identifier: Apache-2.0
"""Finds the objects that refer to views of an array, for messages and for `NDArray.drop_views`.

This is a search, so it may miss a view. It names objects that refer to the memory.
"""

from __future__ import annotations

import builtins
import dataclasses
import gc
import sys
import threading
import types
from collections.abc import Iterable
from types import TracebackType
from typing import Any

import numpy as np

from .._core import NDArray
from .._errors import LeaseConflict
from .endings import no_other_search, settle
from .holders import Holder, leases
from .objects import (
    ITERABLES,
    attributes_of,
    class_name_of,
    dict_of,
    frame_of_generator,
    is_a,
    items_of,
    module_dict,
    variables_of,
)
from .search import (
    KINDS,
    ONE_OBJECT,
    QUICK,
    THOROUGH,
    Label,
    Node,
    Search,
    array_base,
    is_result_name,
    range_of_array,
)

_MAX_NAMED = 4

_PLAIN = {id(cls) for cls in KINDS}  # types that everybody knows by their name

_object_of: Any = AttributeError.__dict__["obj"].__get__
_set_object_of: Any = AttributeError.__dict__["obj"].__set__
_array_flags: Any = np.ndarray.__dict__["flags"].__get__


@dataclasses.dataclass(frozen=True)
class Place:
    """Where an object hangs that looks at the memory of an array.

    Attributes
    ----------
    text : str
        As 'variable `x` of main (train.py:12)'.
    type : str
        Of the object, as 'ndarray'.
    is_writable : bool
        The view holds the memory for writing, as far as can be seen.
    name : str
        Of the variable, where it is one that can be deleted, else empty.
    is_leftover : bool
        A notebook or a traceback keeps it: `drop_views` lets go of it.
    is_original : bool
        It is the array that was given to `from_numpy`, or stands on that, and not on a view of the NDArray.
    """

    text: str
    type: str
    is_writable: bool
    name: str
    is_leftover: bool
    is_original: bool

    def __str__(self) -> str:
        return self.text


def places(array: NDArray, thorough: bool = False) -> list[Place]:
    """Where objects hang that look at the memory of an array.

    Parameters
    ----------
    array : NDArray
    thorough : bool
        False: in variables of all threads and modules and one or two levels below, in the results of a
        notebook, in tracebacks of exceptions found there; a bounded number of objects. True: all containers
        of the process besides.
    """
    return [place for _, place in _search([array], thorough)]


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
        search = Search([range_of_array(array)], ONE_OBJECT)
        search.leave_out_running_code()
        _forget_last_error(search)
        _forget_results(search)
        _clear_errors(search)
        del search
    gc.collect()
    settle(is_error_near=True)
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


def explain(error: LeaseConflict, uses: Iterable[tuple[NDArray, bool, bool]]) -> LeaseConflict:
    """Adds to the message of a push that conflicts where the views hang, if that is found, and what to do.

    Parameters
    ----------
    error : LeaseConflict
        It is changed and returned.
    uses : iterable of (NDArray, is write, is overwrite)
        All that the op uses.
    """
    text = str(error)
    is_original = "from_numpy()" in text
    if not is_original and "ordinary code holds" not in text:
        return error
    rows = list(uses)
    try:
        found = [
            (rows[i][1], place)
            for i, place in _search([row[0] for row in rows], False)
            if rows[i][1] or place.is_writable
        ]
    except Exception:  # whatever it is, the conflict is what the caller has to hear of
        return error
    if not found:
        return error
    named = [place.text for _, place in found[:_MAX_NAMED]]
    if len(found) > len(named):
        named.append(f"and {len(found) - len(named)} more")
    text += f". It hangs on: {'; '.join(named)}."
    ways = []
    if not is_original:
        names = sorted({place.name for _, place in found if place.name})
        ways.append(f"drop it (`del {', '.join(names)}`)" if names else "drop it")
        if not any(is_write for is_write, _ in found):
            ways.append("take it from `a.readonly()`, for the op only reads")
        ways.append("take it in a block (`with a.write() as v:`), behind which ops queue")
        ways.append("promise with host='idle' that no code uses it before the op is done")
    if any(place.is_leftover for _, place in found):
        ways.append("call `a.drop_views()`, which clears what notebooks and tracebacks keep")
    if ways:
        text += f" To go on: {'; or '.join(ways)}."
    error.args = (text, *error.args[1:])
    return error


def find_views(begin: int, end: int, is_write: bool, thread: int) -> str:
    """On what views of some memory hang, for messages of the library about waits.

    Parameters
    ----------
    begin, end : int
        The bytes that the holder in question holds.
    is_write : bool
        It holds them for writing.
    thread : int
        The kernel's number of its thread: what that one's functions refer to is named first.

    Returns
    -------
    str
        As 'variable `x` of main (train.py:12)'; empty if nothing is found.
    """
    threads: dict[int, Any] = getattr(threading, "_active", {})
    idents = [ident for ident, known in list(threads.items()) if known.native_id == thread]
    with no_other_search():
        search = Search([(begin, end)], QUICK)
        search.visit_threads(idents[0] if idents else None)
        search.visit_leftovers()
        found = [_place(_describe(node), node) for _, node in search.found]
        del search
    views = [place for place in found if not place.is_original] or found
    if is_write:
        views = [place for place in views if place.is_writable] or views
    texts = list(dict.fromkeys(place.text for place in views))
    if len(texts) > _MAX_NAMED:
        texts[_MAX_NAMED:] = [f"and {len(texts) - _MAX_NAMED} more"]
    return "; ".join(texts)


def _search(arrays: list[NDArray], thorough: bool) -> list[tuple[int, Place]]:
    """Each place with the number of its array, in the order of likelihood."""
    with no_other_search():
        ranges = [range_of_array(array) for array in arrays]
        return _places_found(Search(ranges, THOROUGH if thorough else QUICK), thorough)


def _places_found(search: Search, thorough: bool) -> list[tuple[int, Place]]:
    search.visit_leftovers()
    search.visit_threads()
    if thorough:
        search.visit_heap()
    found: dict[str, tuple[int, Place]] = {}
    for number, node in search.found:
        text = _describe(node)
        found.setdefault(text, (number, _place(text, node)))
    return list(found.values())


# --- words


def _place(text: str, node: Node) -> Place:
    word = node.label[0]
    name = node.label[1] if node.parent is None and word in ("variable", "global") else ""
    is_leftover = False
    link: Node | None = node
    while link is not None:
        is_leftover |= link.label[0] in ("result", "last") or is_a(link.value, AttributeError)
        is_leftover |= link.label[0] == "variable" and link.label[4]
        link = link.parent
    cls = "Tensor" if word == "graph" else class_name_of(type(node.value))
    return Place(text, cls, _is_writable(node.value), name, is_leftover, _is_original(node.value))


def _is_writable(value: Any) -> bool:
    """What the view that an object stands on holds for, as far as the object shows it."""
    if is_a(value, memoryview):
        return not value.readonly
    while is_a(value, np.ndarray):
        if _array_flags(value).writeable:
            return True
        value = array_base(value)
    # An export through DLPack holds for writing, whatever its consumer does.
    return not (value is None or type(value) is memoryview or type(value).__name__ == "ViewHolder")


def _is_original(value: Any) -> bool:
    while is_a(value, np.ndarray):
        base = array_base(value)
        if base is None:
            return True
        value = base
    return type(value) in (bytes, bytearray)


def _describe(node: Node) -> str:
    """Where the object of a node is."""
    word, *rest = _step(node)
    parent = node.parent
    if word == "variable":
        name, frame, line, is_of_traceback = rest
        code = frame.f_code
        text = f"variable `{name}` of {code.co_name} ({code.co_filename}:{line})"
        if parent is None:
            return text
        if not is_of_traceback:
            return f"{text}, kept by {_owner(parent)}"
        return _describe_in_traceback(text, parent)
    if word == "global":
        return f"variable `{rest[0]}` of module {rest[1]}"
    if word == "result":
        return f"`{rest[0]}`"
    if word == "last":
        return f"sys.{rest[0]}"
    if parent is None:
        return f"a {_noun(node.value)}"
    if word == "graph":
        return f"the autograd graph of {_describe(parent)}"
    if word == "closure":
        return f"variable `{rest[0]}` in the closure of {_owner(parent)}"
    if word == "self":
        return f"the object of {_owner(parent)}"
    if word == "attribute":
        return f"attribute `{rest[0]}` of {_owner(parent)}"
    if word == "item":
        key = rest[0]
        if parent.label == ("result", "Out"):
            return f"Out[{key!r}]"
        if parent.parent is not None and _is_dict_of(parent):
            return f"attribute `{key}` of {_owner(parent.parent)}"
        is_set = is_a(parent.value, set) or is_a(parent.value, frozenset)
        is_named = not is_set and (type(key) is int or (type(key) is str and len(key) <= 40))
        return f"{f'item {key!r}' if is_named else 'an item'} of {_owner(parent)}"
    return f"a part of {_owner(parent)}"


def _describe_in_traceback(text: str, traceback: Node) -> str:
    error = traceback
    while error.parent is not None and is_a(error.parent.value, BaseException):
        error = error.parent
    if error.label[0] == "last":
        return f"sys.{error.label[1]}: {text}, a frame of a traceback"
    if error is traceback:
        of = "a traceback" if error.label[0] == "anywhere" else f"the traceback in {_describe(error)}"
        return f"{text}, a frame of {of}"
    assert traceback.parent is not None
    name = class_name_of(type(traceback.parent.value))
    how = "that is being handled" if error.label[0] == "handled" else f"kept in {_describe(error)}"
    return f"{text}, a frame of the traceback of {name} {how}"


def _step(node: Node) -> Label:
    """The label of a node; where it says only that the object is a part of another, which part it is."""
    if node.label[0] != "part" or node.parent is None:
        return node.label
    whole = node.parent.value
    if issubclass(type(whole), (dict, *ITERABLES)):
        for key, part in items_of(whole, THOROUGH.items):
            if part is node.value:
                is_of_module = node.parent.label[0] == "module"
                return ("global", key, node.parent.label[1]) if is_of_module else ("item", key)
    else:
        for name, part in attributes_of(whole):
            if part is node.value:
                return "attribute", name
    return node.label


def _is_dict_of(node: Node) -> bool:
    """The dictionary holds the attributes of the object whose part it is."""
    return node.parent is not None and node.label[0] == "part" and dict_of(node.parent.value) is node.value


def _owner(node: Node) -> str:
    """An object on which others hang."""
    noun = _noun(node.value)
    word, *rest = _step(node)
    if word == "variable" and node.parent is None:
        name, frame, line, _ = rest
        return f"{noun} `{name}` of {frame.f_code.co_name} ({frame.f_code.co_filename}:{line})"
    if word == "global":
        return f"{noun} `{rest[0]}` of module {rest[1]}"
    if word == "result":
        return f"{noun} `{rest[0]}`"
    if word == "handled":
        return f"the {noun} that is being handled"
    if node.parent is None and word != "last":
        return f"a {noun}"
    return f"the {noun} in {_describe(node)}"


def _noun(value: Any) -> str:
    cls = type(value)
    name: str = class_name_of(cls)
    return name if id(cls) in _PLAIN or builtins.__dict__.get(name) is cls else f"<{name}>"


# --- letting go


def _forget_last_error(search: Search) -> None:
    names = ("last_exc", "last_value", "last_traceback", "last_type")
    if any(search.leads_to_view(sys.__dict__.get(name)) for name in names):
        for name in names:
            sys.__dict__.pop(name, None)


def _forget_results(search: Search) -> None:
    """The results that the prompt of Python and IPython keep by themselves."""
    if search.leads_to_view(builtins.__dict__.get("_")):
        del builtins._  # type: ignore[attr-defined]
    shell = None
    try:
        shell = sys.modules["IPython"].get_ipython()
    except Exception:  # not there, or not that far
        pass
    spaces = [module_dict(sys.modules.get("__main__"))]
    if shell is not None:
        spaces += [shell.user_ns, shell.user_ns_hidden]
    for space in spaces:
        if shell is None and not ("Out" in space and "_oh" in space):
            continue
        for name in [name for name in list(space) if type(name) is str and is_result_name(name)]:
            if search.leads_to_view(space[name]):
                # IPython stops to set `_` where it finds it deleted.
                if name.strip("_"):
                    del space[name]
                else:
                    space[name] = ""
        results = space.get("_oh")
        if type(results) is dict:
            for key in [key for key in list(results) if search.leads_to_view(results[key])]:
                del results[key]
    if shell is None:
        return
    display = shell.displayhook
    for name in ("_", "__", "___"):
        if search.leads_to_view(getattr(display, name, None)):
            setattr(display, name, "")
    last = getattr(shell, "last_execution_result", None)
    if last is not None and (search.leads_to_view(last.result) or search.leads_to_view(last.error_in_exec)):
        shell.last_execution_result = None


def _clear_errors(search: Search) -> None:
    """Clears the variables of functions that have ended and live on in a traceback, where one leads to a
    view; and takes the object out of an AttributeError of a view."""
    suspended = set()
    frames = {}
    for value in gc.get_objects():
        if type(value) is TracebackType:
            frames[id(value.tb_frame)] = value.tb_frame
        elif type(value) in (types.GeneratorType, types.CoroutineType, types.AsyncGeneratorType):
            suspended.add(id(frame_of_generator(value)))
        elif is_a(value, AttributeError) and search.leads_to_view(_object_of(value)):
            _set_object_of(value, None)
    del value
    for frame in frames.values():
        if id(frame) in suspended or search.is_running(frame):
            continue
        if any(search.leads_to_view(variable) for _, variable in variables_of(frame)):
            try:
                frame.clear()
            except RuntimeError:  # it runs
                continue
            if sys.version_info < (3, 13):
                _ = frame.f_locals  # the copy that a reader of the traceback has left there follows
