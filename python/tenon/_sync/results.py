# SPDX-License-Identifier: Apache-2.0
"""Bodies of ops that return their result instead of writing it: ``push(lambda x, o: x * 2, a, out(b))``.

A function may return an array besides writing its outputs. So it is an error only if the code of the function
never uses the parameter, and it returns an array of that shape."""

from __future__ import annotations

import dis
import functools
import re
import types
from collections.abc import Callable, Sequence
from typing import Any

# Names by which a function may use a parameter that its code does not name.
_LOOKS_AT_VARIABLES = {"locals", "vars", "dir", "eval", "exec", "_getframe", "currentframe", "stack"}


def refuse_lost_result(
    function: Callable[..., Any],
    given: Sequence[Any],
    keywords: Sequence[str],
    are_overwritten: Sequence[int],
    result: Any,
) -> None:
    """Raises TypeError if the function has returned an array instead of writing it.

    Parameters
    ----------
    given, are_overwritten
        The arguments, and 1 for each that the function was to write whole. The last ones are ``keywords``.
    """
    results = result if type(result) in (tuple, list) else (result,)
    # An argument that is returned lives on, which is an error of its own.
    new = [value for value in results if all(value is not array for array in given)]
    for i, (array, is_overwritten) in enumerate(zip(given, are_overwritten)):
        if not is_overwritten or array.size == 0:
            continue
        position = i - (len(given) - len(keywords))
        name = keywords[position] if position >= 0 else _parameter(function, i)
        if name is None or name.startswith("_") or name not in _unused(function):
            continue
        if any(_shape(value) == array.shape for value in new):
            raise TypeError(
                f"{getattr(function, '__qualname__', function)} returned an array of shape {array.shape} and "
                f"did not write to its parameter {name!r}, all of which the op writes: {name}[...] = ... (if "
                f"it is not to be written, name it _{name})"
            )


def _shape(value: Any) -> tuple[int, ...] | None:
    """The shape of an array of any library; None for other objects."""
    if not hasattr(type(value), "__array__"):
        return None
    try:
        return tuple(value.shape)
    except Exception:
        return None


def _function_of(function: Callable[..., Any]) -> tuple[types.FunctionType | None, int]:
    """The Python function, and the number of its parameters that are bound."""
    if isinstance(function, types.MethodType) and isinstance(function.__func__, types.FunctionType):
        return function.__func__, 1
    return (function, 0) if isinstance(function, types.FunctionType) else (None, 0)


def _parameter(function: Callable[..., Any], i: int) -> str | None:
    python_function, bound = _function_of(function)
    if python_function is None or i + bound >= python_function.__code__.co_argcount:
        return None
    return python_function.__code__.co_varnames[i + bound]


def _unused(function: Callable[..., Any]) -> frozenset[str]:
    python_function, _ = _function_of(function)
    return frozenset() if python_function is None else _unused_parameters(python_function.__code__)


@functools.lru_cache(maxsize=256)
def _unused_parameters(code: types.CodeType) -> frozenset[str]:
    """Parameters whose argument the code never uses: it does not name them, or assigns to them first in every
    run."""
    if not _LOOKS_AT_VARIABLES.isdisjoint(code.co_names):
        return frozenset()
    parameters = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    used = set(code.co_cellvars)
    assigned: set[str] = set()
    is_straight = not code.co_exceptiontable  # every run executes the instructions up to here
    for instruction in dis.get_instructions(code):
        if "_FAST" in instruction.opname:
            names = instruction.argval if isinstance(instruction.argval, tuple) else (instruction.argval,)
            for name, verb in zip(names, re.findall("LOAD|STORE|DELETE", instruction.opname)):
                if verb != "STORE":
                    used |= {name} - assigned
                elif is_straight:
                    assigned.add(name)
        is_straight &= instruction.opcode not in dis.hasjrel and instruction.opcode not in dis.hasjabs
    return frozenset(parameters) - used
