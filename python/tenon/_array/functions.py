# SPDX-License-Identifier: Apache-2.0
"""NumPy's functions on NDArrays (NEP 18): each is one call that gets access to all of its arrays at once."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

import numpy as np

from .. import _core
from .._core import NDArray

# Functions that write to their first argument.
_WRITERS = {"copyto", "put", "place", "putmask", "fill_diagonal", "put_along_axis"}
# Functions that read attributes and no element.
_OF_ATTRIBUTES = {"shape", "ndim", "size"}
_MAX_DEPTH = 8
_NAMES_OF_FIRST = {"a", "x", "arr", "dst", "ar"}


@functools.lru_cache(maxsize=512)
def _parameters(function: Callable[..., Any]) -> tuple[str, ...]:
    """Names of the parameters that can be given by position."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return {"dot": ("a", "b", "out")}.get(function.__name__, ())
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return tuple(parameter.name for parameter in parameters if parameter.kind in kinds)


def _arrays(value: Any, found: list[NDArray], depth: int = 0) -> None:
    if isinstance(value, NDArray):
        if all(value is not other for other in found):
            found.append(value)
    elif depth < _MAX_DEPTH and type(value) in (list, tuple):
        for item in value:
            _arrays(item, found, depth + 1)
    elif depth < _MAX_DEPTH and type(value) is dict:
        _arrays(list(value.values()), found, depth)


def _replaced(value: Any, view: Callable[[NDArray], Any], depth: int = 0) -> Any:
    if isinstance(value, NDArray):
        return view(value)
    if depth < _MAX_DEPTH and type(value) in (list, tuple):
        return type(value)(_replaced(item, view, depth + 1) for item in value)
    if depth < _MAX_DEPTH and type(value) is dict:
        return {key: _replaced(item, view, depth) for key, item in value.items()}
    return value


def _written(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[NDArray]:
    given = dict(zip(_parameters(function), args, strict=False)) | kwargs
    written: list[NDArray] = []
    _arrays(given.get("out"), written)
    first = args[0] if args else next((given[name] for name in _NAMES_OF_FIRST if name in given), None)
    is_in_place = (function.__name__ == "nan_to_num" and given.get("copy") is False) or given.get(
        "overwrite_input"
    )
    if function.__name__ in _WRITERS or is_in_place:
        _arrays(first, written)
    return written


def _with_arrays(result: Any, originals: list[tuple[Any, NDArray]]) -> Any:
    """The result, with the written NDArrays in place of their views."""
    if isinstance(result, tuple):
        return tuple(_with_arrays(item, originals) for item in result)
    return next((array for view, array in originals if view is result), result)


def call(
    function: Callable[..., Any], types: tuple[type, ...], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """``NDArray.__array_function__``."""
    if not all(issubclass(kind, (NDArray, np.ndarray)) for kind in types):
        return NotImplemented
    if function.__name__ in _OF_ATTRIBUTES and args and isinstance(args[0], NDArray):
        return function._implementation(*args, **kwargs)  # type: ignore[attr-defined]
    arrays: list[NDArray] = []
    _arrays((args, kwargs), arrays)
    written = _written(function, args, kwargs)
    turn = _core.ArrayCall(function.__name__, arrays, written)
    try:
        result = function(*_replaced(args, turn.view), **_replaced(kwargs, turn.view))
        if written:
            return _with_arrays(result, [(turn.view(array), array) for array in written])
        if not turn.has_lent_views():
            return result
    finally:
        turn.end()
    # The result is a view of the memory that outlives the call: it is made from views that ordinary code
    # takes.
    del result
    return function(*_replaced(args, NDArray.numpy), **_replaced(kwargs, NDArray.numpy))
