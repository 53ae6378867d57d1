# SPDX-License-Identifier: Apache-2.0
"""Bodies of ops in Python: their calls, and the messages about bodies that fail or keep a view."""

from __future__ import annotations

import dataclasses
import itertools
import threading
from collections.abc import Callable, Sequence
from typing import Any

from .. import _core
from .._core import NDArray
from .._errors import describe, text_of
from .lease import where_views_are_kept
from .plain_functions import UNRUN_RESULTS, close_unrun
from .results import refuse_lost_result

_READ_ONLY = (" destination is read-only", "array is read-only")  # so NumPy's texts end


@dataclasses.dataclass(slots=True, eq=False, repr=False)
class Body:
    """The body of an op in Python. The arrays that it gives to the function belong to it until the function
    has ended, and have no elements from then on."""

    function: Callable[..., Any]
    handles: tuple[Any, ...]  # its arguments, with handles of arrays
    keywords: tuple[str, ...]  # the names of the last arguments
    # For each argument the array of the caller if the function writes to it; empty: it writes to none.
    outputs: tuple[NDArray | None, ...]
    are_overwritten: bytes  # 1 for each of which the function writes every element; empty: for none
    escapes: str = ""  # what refers to an array that outlives the function
    _given: Sequence[Any] = ()

    def __call__(self) -> Any:
        self.escapes = ""
        self._given = _core.body_arguments(self.handles, self.outputs, self.function)
        if self.keywords:
            n = len(self._given) - len(self.keywords)
            result = self.function(*self._given[:n], **dict(zip(self.keywords, self._given[n:])))
        else:
            result = self.function(*self._given)
        if result is not None:
            if type(result) in UNRUN_RESULTS:
                name = getattr(self.function, "__qualname__", self.function)
                raise TypeError(
                    f"{name} returned {close_unrun(result)}, whose body has not run. Push a function that "
                    "does its work before it returns"
                )
            if any(self.are_overwritten):
                refuse_lost_result(self.function, self._given, self.keywords, self.are_overwritten, result)
            result = tuple(map(self._own, result)) if type(result) is tuple else self._own(result)
        views = self.take_views()
        while views:
            if _core.references(views) > 0:  # it is kept
                self.escapes = self.escapes or where_views_are_kept(
                    self.arrays()
                )  # while it shows the memory
                _core.empty_view(views[-1], False, self.function)
            views.pop()
        return result

    def _own(self, value: Any) -> Any:
        """The array of the caller, if the value is an array that the function got to write; else the
        value."""
        for given, output in zip(self._given, self.outputs):
            if value is given and output is not None:
                return output
        return value

    def arrays(self) -> list[NDArray]:
        return [handle for handle in self.handles if isinstance(handle, NDArray)]

    def advice_for(self, error: BaseException) -> str:
        """For a function that writes to an array that the push only lets it read."""
        if not isinstance(error, ValueError) or not text_of(error).endswith(_READ_ONLY):
            return ""
        n = len(self.handles) - len(self.keywords)
        labels = [f"argument {i + 1}" for i in range(n)] + [f"`{name}=`" for name in self.keywords]
        read = [
            label
            for label, handle, output in zip(labels, self.handles, self.outputs or itertools.repeat(None))
            if isinstance(handle, NDArray) and output is None
        ]
        if not read:
            return ""
        code = "`out=tn.overwrite(out)`" if "`out=`" in read else "`tn.overwrite(a)`"
        return (
            f"\nThe push lets the function only read {', '.join(read)}. If it writes there, wrap that in the "
            f"push: {code}, or `tn.write(...)` if not every element is written"
        )

    def take_views(self) -> list[Any]:
        """The arrays that the function was given. The body forgets them."""
        given, self._given = self._given, ()
        return [argument for argument, handle in zip(given, self.handles) if isinstance(handle, NDArray)]


def describe_escape(body: Callable[..., Any]) -> str:
    """The message for an op whose body has ended while a view that it took still exists."""
    where = ""
    if isinstance(body, Body):
        where = body.escapes or where_views_are_kept(body.arrays())
    return f"a view that the op's body took lives on after it{where}: copy what is to be kept"


def end_failed_body(body: Callable[[], Any], error: BaseException) -> str:
    """The message for a body that failed. Neither the body nor the error keeps memory of the arrays."""
    if isinstance(error, KeyboardInterrupt) and threading.get_ident() == threading.main_thread().ident:
        error._is_raised_here = True  # type: ignore[attr-defined]  # the extension raises another one here
    if not isinstance(body, Body):
        return describe(error, [])
    advice = body.advice_for(error)
    return describe(error, body.take_views(), body.function) + advice
