# SPDX-License-Identifier: Apache-2.0
"""Messages about bodies of ops in Python that fail or keep a view. ``python/src/body.cc`` calls them."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from .._errors import describe, text_of

_READ_ONLY = (" destination is read-only", "array is read-only")  # so NumPy's texts end


def call_body(function: Callable[..., Any], given: tuple[Any, ...], named: dict[str, Any]) -> Any:
    """The frame of this call separates those of a body from those of code that waits (search.py)."""
    return function(*given, **named)


def describe_outlived(where: str) -> str:
    """The message for an op whose body has ended while a view that it took still exists."""
    return f"a view that the op's body took lives on after it{where}: copy what is to be kept"


def end_failed_body(
    error: BaseException,
    views: list[Any],
    function: Callable[..., Any],
    are_read: bytes,
    keywords: tuple[str, ...],
) -> str:
    """The message for a body that failed. The error keeps no memory of the arrays.

    Parameters
    ----------
    views : list of numpy.ndarray
        The arrays that the function was given. The list is emptied, as `describe` does.
    are_read : bytes
        For each argument 1 if it is an array that the function may only read. The last ones are ``keywords``.
    """
    if isinstance(error, KeyboardInterrupt) and threading.get_ident() == threading.main_thread().ident:
        error._is_raised_here = True  # type: ignore[attr-defined]  # the extension raises another one here
    advice = _advice_for(error, are_read, keywords)
    return describe(error, views, function) + advice


def _advice_for(error: BaseException, are_read: bytes, keywords: tuple[str, ...]) -> str:
    """For a function that writes to an array that the push only lets it read."""
    if not isinstance(error, ValueError) or not text_of(error).endswith(_READ_ONLY):
        return ""
    n = len(are_read) - len(keywords)
    labels = [f"argument {i + 1}" for i in range(n)] + [f"`{name}=`" for name in keywords]
    read = [label for label, is_read in zip(labels, are_read) if is_read]
    if not read:
        return ""
    code = "`out=tn.overwrite(out)`" if "`out=`" in read else "`tn.overwrite(a)`"
    return (
        f"\nThe push lets the function only read {', '.join(read)}. If it writes there, wrap that in the "
        f"push: {code}, or `tn.write(...)` if not every element is written"
    )
