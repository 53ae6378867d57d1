# SPDX-License-Identifier: Apache-2.0
"""What lies in Python objects: variables of frames, items, attributes. Reading it here runs no code of the
objects' classes, and leaves no reference behind.

Nothing here calls isinstance, which asks an object for its ``__class__``.
"""

from __future__ import annotations

import collections
import ctypes
import inspect
import itertools
import sys
import threading
import types
from types import FrameType
from typing import Any

# Of a type, whatever its metaclass has put in front of it.
mro_of = type.__dict__["__mro__"].__get__
class_dict_of = type.__dict__["__dict__"].__get__
class_name_of = type.__dict__["__name__"].__get__
class_flags_of = type.__dict__["__flags__"].__get__
_module_dict: Any = vars(types.ModuleType)["__dict__"].__get__
HAS_REFERENTS = 1 << 14  # Py_TPFLAGS_HAVE_GC
IS_HEAP_TYPE = 1 << 9  # Py_TPFLAGS_HEAPTYPE: made by a class statement, as a rule

ITERABLES: tuple[Any, ...] = (list, tuple, collections.deque, set, frozenset)


def module_dict(module: Any) -> dict[str, Any]:
    """The variables of a module, or none of what stands in the place of one."""
    return _module_dict(module) if is_a(module, types.ModuleType) else {}


def is_a(value: Any, cls: type) -> bool:
    """As isinstance, of what an object is and not of what it says."""
    return issubclass(type(value), cls)


def variables_of(frame: FrameType) -> list[tuple[str, Any]]:
    """The variables of a function that runs or has run. Leaves no reference to them in the frame, where
    f_locals would before Python 3.13: it is a copy that the frame keeps. Empty for the code of a module."""
    code = frame.f_code
    if not code.co_flags & inspect.CO_OPTIMIZED:
        variables: Any = frame.f_locals
        if variables is frame.f_globals or type(variables) is not dict:
            return []
        return list(variables.items())
    if sys.version_info >= (3, 13):
        return list(frame.f_locals.items())
    if sys.version_info >= (3, 12):
        found = []
        for name in (*code.co_varnames, *code.co_cellvars, *code.co_freevars):
            try:
                found.append((name, _frame_get_var(frame, name)))
            except NameError:  # it has no value now
                continue
        return found
    return _variables_by_copy(frame)


if sys.version_info >= (3, 12):
    _frame_get_var = ctypes.pythonapi.PyFrame_GetVar
    _frame_get_var.argtypes = [ctypes.py_object, ctypes.py_object]
    _frame_get_var.restype = ctypes.py_object


def _variables_by_copy(frame: FrameType) -> list[tuple[str, Any]]:
    # A debugger writes the copy back into the variables: it must find there what it has put there.
    if frame.f_trace is not None or sys.gettrace() or sys.getprofile() or threading.getprofile():
        return []
    variables = frame.f_locals
    found = list(variables.items())
    if sys.getrefcount(variables) <= 3:  # the frame's, the variable here, the argument: nobody uses it
        variables.clear()
    return found


def frame_of_generator(generator: Any) -> FrameType | None:
    """Of one that can go on; None after its end."""
    for name in ("gi_frame", "cr_frame", "ag_frame"):
        if hasattr(generator, name):
            frame: FrameType | None = getattr(generator, name)
            return frame
    return None


def items_of(value: Any, limit: int) -> list[tuple[Any, Any]]:
    """The first (key, item) of a dictionary, and (index, item) of a list, tuple, deque or set."""
    cls = type(value)
    if cls is list or cls is tuple:
        items: Any = enumerate(value)
    elif issubclass(cls, dict):
        items = dict.items(value)
    else:
        base = next(cls for cls in ITERABLES if is_a(value, cls))
        items = enumerate(base.__iter__(value))
    try:
        return list(itertools.islice(items, limit))
    except RuntimeError:  # another thread has changed it
        return []


def attributes_of(value: Any) -> list[tuple[str, Any]]:
    """The attributes that lie in an object: of its dictionary and its slots."""
    found = list(dict_of(value).items())
    for cls in mro_of(type(value)):
        for name, slot in class_dict_of(cls).items():
            if type(slot) is types.MemberDescriptorType:
                try:
                    found.append((name, slot.__get__(value)))
                except AttributeError:  # it has no value
                    continue
    return found


def dict_of(value: Any) -> dict[str, Any]:
    for cls in mro_of(type(value)):
        getter = class_dict_of(cls).get("__dict__")
        if type(getter) is types.GetSetDescriptorType:
            found = getter.__get__(value)
            return found if type(found) is dict else {}
    return {}
