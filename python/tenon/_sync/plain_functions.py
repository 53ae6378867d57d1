# SPDX-License-Identifier: Apache-2.0
"""Functions whose call does not run their body: those with a ``yield``, and those with ``async``."""

from __future__ import annotations

import functools
import inspect
import types
from typing import Any

_UNRUN = {
    inspect.CO_COROUTINE: "a coroutine function",
    inspect.CO_GENERATOR: "a generator function (it has a yield)",
    inspect.CO_ASYNC_GENERATOR: "a generator function (it has a yield)",
}
_ALL_UNRUN = inspect.CO_COROUTINE | inspect.CO_GENERATOR | inspect.CO_ASYNC_GENERATOR
UNRUN_RESULTS = (types.CoroutineType, types.GeneratorType, types.AsyncGeneratorType)


def refuse_generators(function: Any, name: str, hint: str) -> None:
    """Raises TypeError for a function whose call does not run its body, also one that is bound, partial, or
    the ``__call__`` of an object."""
    # Without the functions of inspect: each push comes here.
    called = function
    if type(called) is not types.FunctionType:
        while isinstance(called, (types.MethodType, functools.partial)):
            called = called.func if isinstance(called, functools.partial) else called.__func__
        if not isinstance(called, types.FunctionType):
            called = type(called).__call__ if callable(called) else None
            if not isinstance(called, types.FunctionType):
                return
    flags = called.__code__.co_flags & _ALL_UNRUN
    if flags:
        raise TypeError(
            f"{name} is {_UNRUN[flags]}: a call would not run its body. Use neither yield nor async; {hint}"
        )


def close_unrun(result: Any) -> str:
    """Ends what a call has returned in place of running a body, and describes it."""
    if type(result) is types.CoroutineType:
        result.close()  # or it warns that it was not awaited
        return "a coroutine"
    return "a generator"
