# SPDX-License-Identifier: Apache-2.0
"""Results of bodies of ops: of a function that was not run, or that returns what it should write:
``push(lambda x, o: x * 2, a, overwrite(b))``."""

from __future__ import annotations

import sys
import types
from collections.abc import Callable, Sequence
from typing import Any

from .. import _core
from .plain_functions import UNRUN_RESULTS, close_unrun


def check_result(
    function: Callable[..., Any],
    given: Sequence[Any],
    keywords: Sequence[str],
    are_overwritten: bytes,
    result: Any,
) -> None:
    """Raises TypeError if the body of a function has not run, or if a Python function has returned a new
    array of the shape of an output.

    An array in the memory of an argument is no new one. A scalar of NumPy is an array without axes.

    Parameters
    ----------
    given, are_overwritten
        The arguments, and 1 for each that the function was to write whole. The last ones are ``keywords``.
    """
    if type(result) in UNRUN_RESULTS:
        name = getattr(function, "__qualname__", function)
        raise TypeError(
            f"{name} returned {close_unrun(result)}, whose body has not run. Push a function that does its "
            "work before it returns"
        )
    if not any(are_overwritten):
        return
    results = result if type(result) in (tuple, list) else (result,)
    # An argument that is returned lives on, which is an error of its own.
    new = [value for value in results if all(value is not array for array in given)]
    for i, (array, is_overwritten) in enumerate(zip(given, are_overwritten)):
        if not is_overwritten or array.size == 0:
            continue
        name = _parameter(function, i, i - (len(given) - len(keywords)), keywords)
        if name is None or name.startswith("_"):
            continue
        if any(_shape(one) == array.shape and not _lies_in(one, given) for one in new):
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


def _addresses(array: Any) -> tuple[int, int]:
    """Where its bytes begin and end; of an array of another library the first byte. (0, 0): not known."""
    np = sys.modules.get("numpy")
    try:
        if isinstance(array, _core.NDArray) or (np is not None and isinstance(array, np.ndarray)):
            return _core.addresses(array)
        address = array.data_ptr if hasattr(array, "data_ptr") else array.__array_interface__["data"][0]
        first = int(address() if callable(address) else address)
    except Exception:  # of a library without addresses
        return 0, 0
    return first, first + 1


def _lies_in(value: Any, arrays: Sequence[Any]) -> bool:
    """Whether it has memory of one of them."""
    begin, end = _addresses(value)
    return any(begin < last and first < end for first, last in map(_addresses, arrays))


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
