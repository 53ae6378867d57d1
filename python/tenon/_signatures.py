# SPDX-License-Identifier: Apache-2.0
"""Signatures of classes whose constructors show none to `inspect.signature`."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import inspect


class _Signature:
    """The value of ``__signature__``, made when it is asked for: the import of `inspect` takes as long as
    that of the package. Subclasses have none from it, since their constructors may be other ones."""

    def __init__(self, kind: type, function: Callable[..., Any], is_method: bool) -> None:
        self._kind, self._function, self._is_method = kind, function, is_method

    def __get__(self, owner: Any, kind: type) -> inspect.Signature:
        if owner is not None or kind is not self._kind:
            raise AttributeError("__signature__")
        import inspect

        signature = inspect.signature(self._function)
        parameters = list(signature.parameters.values())
        return signature.replace(parameters=parameters[self._is_method :])


def set_signature(kind: type, function: Callable[..., Any], is_method: bool = False) -> None:
    """Gives a class the signature of a function. is_method: without its first parameter."""
    kind.__signature__ = _Signature(kind, function, is_method)  # type: ignore[attr-defined]


def set_native_signatures(*others: type) -> None:
    """Of the classes that the extension has. others: classes that no program makes, either."""
    from ._core import Batch, NDArray, Schema, dtype
    from ._errors import LeaseEscapedWarning, TenonError
    from ._typing import DTypeLike

    def none() -> None: ...
    def of_schema(fields: dict[str, tuple[Any, ...]]) -> None: ...
    def of_dtype(dtype: DTypeLike) -> None: ...
    def of_error(*args: object) -> None: ...

    for kind in (Batch, NDArray, *others):
        set_signature(kind, none)
    set_signature(Schema, of_schema)
    set_signature(dtype, of_dtype)
    kinds: list[type] = [TenonError, *TenonError.__subclasses__(), LeaseEscapedWarning]
    for kind in kinds:
        if "__init__" not in vars(kind):
            set_signature(kind, of_error)
