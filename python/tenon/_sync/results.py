# SPDX-License-Identifier: Apache-2.0
"""Bodies of ops that return what they should write: ``push(lambda x, o: x * 2, a, overwrite(b))``."""

from __future__ import annotations

import types
from collections.abc import Callable, Sequence
from typing import Any


def refuse_lost_result(
    function: Callable[..., Any],
    given: Sequence[Any],
    keywords: Sequence[str],
    are_overwritten: Sequence[int],
    result: Any,
) -> None:
    """Raises TypeError if a Python function has returned a new array of the shape of an output.

    Parameters
    ----------
    given, are_overwritten
        The arguments, and 1 for each that the function was to write whole. The last ones are ``keywords``.
    """
    results = result if type(result) in (tuple, list) else (result,)
    # An argument that is returned lives on, which is an error of its own.
    new = [value for value in results if all(value is not array for array in given)]
    outputs = [array for array, is_overwritten in zip(given, are_overwritten) if is_overwritten]
    for i, (array, is_overwritten) in enumerate(zip(given, are_overwritten)):
        if not is_overwritten or array.size == 0:
            continue
        name = _parameter(function, i, i - (len(given) - len(keywords)), keywords)
        if name is None or name.startswith("_"):
            continue
        if any(_shape(one) == array.shape and not _lies_in(one, outputs) for one in new):
            raise TypeError(
                f"{getattr(function, '__qualname__', function)} returned a new array of shape {array.shape}, "
                f"the shape of its parameter {name!r}, all of which the op writes: write it, "
                f"{name}[...] = ..., and do not return it (if {name} is not to be written, or another array "
                f"is to be returned, name it _{name})"
            )


def _shape(value: Any) -> tuple[int, ...] | None:
    """The shape of an array of any library; None for other objects."""
    if not hasattr(type(value), "__array__"):
        return None
    try:
        return tuple(value.shape)
    except Exception:
        return None


def _address(array: Any) -> int | None:
    """Of the first element; None: not known."""
    try:
        address = array.data_ptr if hasattr(array, "data_ptr") else array.__array_interface__["data"][0]
        return int(address() if callable(address) else address)
    except Exception:  # of a library without addresses
        return None


def _lies_in(value: Any, outputs: Sequence[Any]) -> bool:
    """Whether its first element is in the memory of one of them."""
    start = _address(value)
    if start is None:
        return False
    starts = [(_address(array), array.nbytes) for array in outputs]
    return any(first is not None and first <= start < first + nbytes for first, nbytes in starts)


def _parameter(function: Callable[..., Any], i: int, keyword: int, keywords: Sequence[str]) -> str | None:
    """The name of the parameter that has taken argument i; None: it has none, or none that is known."""
    is_bound = isinstance(function, types.MethodType)
    plain = getattr(function, "__func__", None) if is_bound else function
    if not isinstance(plain, types.FunctionType):
        return None
    if keyword >= 0:
        return keywords[keyword]
    i += is_bound
    return plain.__code__.co_varnames[i] if i < plain.__code__.co_argcount else None
