# SPDX-License-Identifier: Apache-2.0
"""The contents of Python objects: variables of frames, items, attributes. These functions run no code of the
objects' classes, and leave no reference behind.

They do not call isinstance, which reads ``__class__`` of an object.
"""

from __future__ import annotations

import collections
import inspect
import itertools
import types
from types import FrameType
from typing import Any

from .. import _core

# Attributes of a type, also if its metaclass overrides them.
mro_of = type.__dict__["__mro__"].__get__
class_dict_of = type.__dict__["__dict__"].__get__
class_name_of = type.__dict__["__name__"].__get__
class_flags_of = type.__dict__["__flags__"].__get__
_module_dict: Any = vars(types.ModuleType)["__dict__"].__get__
HAS_REFERENTS = 1 << 14  # Py_TPFLAGS_HAVE_GC

CONTAINERS: tuple[Any, ...] = (dict, list, tuple, collections.deque, set, frozenset)
GENERATORS = (types.GeneratorType, types.CoroutineType, types.AsyncGeneratorType)


def module_dict(module: Any) -> dict[str, Any]:
    """The variables of a module; none for another object in sys.modules."""
    return _module_dict(module) if is_a(module, types.ModuleType) else {}


def is_a(value: Any, cls: Any) -> bool:
    """As isinstance, for the type of an object and not for its ``__class__``."""
    return issubclass(type(value), cls)


def variables_of(frame: FrameType) -> list[tuple[str, Any]]:
    """The variables of a function that runs or has run, or of a class body; none of the code of a module."""
    if frame.f_code.co_flags & inspect.CO_OPTIMIZED:
        return _core.variables_of(frame)
    variables: Any = frame.f_locals
    is_class = variables is not frame.f_globals and type(variables) is dict
    return list(variables.items()) if is_class else []


def frame_of_generator(generator: Any) -> Any:
    """The frame of a generator that has not ended; else None."""
    names = ("gi_frame", "cr_frame", "ag_frame")
    return next(getattr(generator, name) for name in names if hasattr(generator, name))


def items_of(value: Any, most: int) -> list[tuple[Any, Any]]:
    """(key, item) of a dictionary, and (index, item) of another one of `CONTAINERS`. ``most``: how many, of
    those that the garbage collector visits first."""
    base = next(cls for cls in CONTAINERS if is_a(value, cls))
    try:
        if base is dict:
            return list(itertools.islice(dict.items(value), most))
        if base is list or base is tuple:
            begin = max(base.__len__(value) - most, 0)
            return list(enumerate(base.__getitem__(value, slice(begin, None)), begin))
        return list(enumerate(itertools.islice(base.__iter__(value), most)))
    except RuntimeError:  # another thread has changed it
        return []


def attributes_of(value: Any) -> list[tuple[str, Any]]:
    """The attributes of an object that are in its dictionary or its slots."""
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
