# SPDX-License-Identifier: Apache-2.0
"""Checks of arguments. Errors name the argument, its value and the valid values."""

from __future__ import annotations

import math
import operator
from typing import Any

INT32_MAX = 2**31 - 1
INT64_MAX = 2**63 - 1


def count(value: Any, name: str, low: int = 0, high: int = INT64_MAX) -> int:
    """Checks an integer from low to high."""
    try:
        number = operator.index(value)
    except TypeError:
        raise TypeError(f"{name} is {value!r}: it must be an integer") from None
    if not low <= number <= high:
        raise ValueError(f"{name} is {number}: it must lie between {low} and {high}")
    return number


def seconds(value: Any, name: str, or_none: str = "") -> float:
    """Checks a number of at least 0. or_none: an addition to the message."""
    try:
        number = float(value)
    except (TypeError, ValueError):
        raise TypeError(f"{name} is {value!r}: it must be seconds{or_none}") from None
    if math.isnan(number) or number < 0:
        raise ValueError(f"{name} is {value}: it must be seconds{or_none}")
    return number


def text_for_c(value: Any, name: str) -> str:
    """Checks a text that C can take without truncation (no zero byte)."""
    if not isinstance(value, str):
        raise TypeError(f"{name} is {value!r}: it must be a str")
    if "\0" in value:
        raise ValueError(f"{name} is {value!r}: it must not contain a zero byte ('\\0')")
    return value
