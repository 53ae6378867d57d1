# SPDX-License-Identifier: Apache-2.0
"""Checks of arguments. Errors name the argument, its value and the valid values.

``python/src/values.h`` has the checks of the extension.
"""

from __future__ import annotations

import math
import operator
from typing import Any

INT32_MAX = 2**31 - 1
INT64_MAX = 2**63 - 1
_MOST_SECONDS = 2.0**31  # no wait lasts as long, and functions of Python refuse 300 times as many


def _is_bool(value: Any) -> bool:
    kind = type(value)
    return kind is bool or (kind.__module__ == "numpy" and kind.__name__ in ("bool", "bool_"))


def integer(value: Any, name: str) -> int:
    """Checks an integer. A bool is a TypeError."""
    try:
        if not _is_bool(value):
            return operator.index(value)
    except TypeError:
        pass
    raise TypeError(f"{name} is {value!r}: it must be an integer")


def count(value: Any, name: str, low: int = 0, high: int = INT64_MAX) -> int:
    """Checks an integer from low to high. A bool is a TypeError."""
    number = integer(value, name)
    if not low <= number <= high:
        raise ValueError(f"{name} is {number}: it must lie between {low} and {high}")
    return number


def flag(value: Any, name: str) -> bool:
    """Checks a bool of Python or NumPy."""
    if not _is_bool(value):
        raise TypeError(f"{name} is {value!r}: it must be True or False")
    return bool(value)


def seconds(value: Any, name: str, or_none: str = "") -> float:
    """Checks a number of at least 0, not a string or a bool; a very large one is made smaller. or_none: an
    addition to the message."""
    if _is_bool(value) or isinstance(value, (str, bytes, bytearray)):
        raise TypeError(f"{name} is {value!r}: it must be seconds{or_none}")
    try:
        number = float(value)
    except (TypeError, ValueError):
        raise TypeError(f"{name} is {value!r}: it must be seconds{or_none}") from None
    except OverflowError:
        number = math.inf if value > 0 else -math.inf
    if number < 0:
        raise ValueError(f"{name} is {value}: it must not be negative")
    if math.isnan(number):
        raise ValueError(f"{name} is {value}: it must be seconds{or_none}")
    return min(number, _MOST_SECONDS)


def path_for_c(value: Any, name: str) -> str:
    """Checks a path that C can take without truncation (no zero byte)."""
    if not isinstance(value, str):
        raise TypeError(f"{name} is {value!r}: it must be a str")
    if "\0" in value:
        raise ValueError(f"{name} is {value!r}: it must not contain a zero byte ('\\0')")
    return value


def text_for_c(value: Any, name: str) -> str:
    """The same for a text, which C gets as UTF-8."""
    text = path_for_c(value, name)
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ValueError(f"{name} is {value!r}: it cannot be written as UTF-8") from None
    return text
