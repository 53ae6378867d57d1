# SPDX-License-Identifier: Apache-2.0
"""Fields: the named arrays of batches, items of channels, and layouts of arenas."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, Self

from .. import _core
from .._core import Schema
from .._typing import DTypeLike

FieldLike = tuple[DTypeLike, int | tuple[int, ...]] | tuple[DTypeLike, int | tuple[int, ...], Literal["kept"]]
FieldsLike = Mapping[str, FieldLike] | Schema


def described(fields: Any, what: str, has_kept: bool = False) -> list[tuple[Any, ...]]:
    """(name, dtype, shape) of the fields of a `Schema` or of a mapping of names to (dtype, shape). The
    extension checks dtypes and shapes. has_kept: a field may have "kept" as a third part."""
    if isinstance(fields, Schema):
        return list(fields.fields)
    found = []
    for name, field in named(fields, what, "(dtype, shape)"):
        parts = tuple(field) if isinstance(field, tuple | list) else ()
        if len(parts) != 2 and not (has_kept and parts[2:] == ("kept",)):
            kept = " or (dtype, shape, 'kept')" if has_kept else ""
            raise TypeError(f"field {name!r} of {what} is {field!r}: it must be (dtype, shape){kept}")
        found.append((name, *field))
    return found


def named(mapping: Any, what: str, values: str) -> Iterator[tuple[str, Any]]:
    """The items of a mapping of names."""
    if not isinstance(mapping, Mapping):
        raise TypeError(f"{what} is {mapping!r}: it must be a mapping of names to {values}")
    for name, value in mapping.items():
        if not isinstance(name, str):
            raise TypeError(f"{what} has the name {name!r}: names must be str")
        if "\0" in name or not _is_utf8(name):
            raise ValueError(f"{what} has the name {name!r}, which cannot be written as UTF-8 without NUL")
        yield name, value


def _is_utf8(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def checks_fields() -> bool:
    """Whether the environment makes it an error to pass on fields that were not written."""
    return not {"1", "fields", "values"}.isdisjoint(os.environ.get("TENON_DEBUG", "").split(","))


def checks_values() -> bool:
    """The same for parts of fields."""
    return "values" in os.environ.get("TENON_DEBUG", "").split(",")


def unwritten_text(what: str, variable: str, names: Sequence[str], unwritten: Sequence[str]) -> str:
    """The message for fields that were not written. A field counts as written if its array was used."""
    listed = ", ".join(map(repr, unwritten))
    if len(unwritten) == len(names):
        text = f"no field of {what} was written"
    elif len(unwritten) == 1:
        text = f"field {listed} of {what} was not written"
    else:
        text = f"the fields {listed} of {what} were not written"
    return (
        f"{text}: the consumer would get old elements. Assign to its fields: "
        f"{variable}.{unwritten[0]}[...] = ..."
    )


def write_field(name: str, array: Any, value: Any) -> None:
    """``array[...] = value``, with errors that name the field. The array itself, as in ``o.x += 1``, is not
    copied."""
    if value is array:
        return
    if value is None:  # which NumPy would convert to NaN
        raise TypeError(
            f"field {name!r} cannot be None, the result of a function that works in place: call the function "
            "without an assignment"
        )
    try:
        array[...] = _core.checked_values(value)  # the array may be NumPy's
    except Exception as error:
        if error.args and isinstance(error.args[0], str):
            error.args = (f"field {name!r}: {error.args[0]}", *error.args[1:])
        raise


class Fields:
    """The base class of objects whose fields are arrays: ``o.x`` and ``o["x"]`` are the array of a field,
    ``o.x = value`` and ``o["x"] = value`` write its elements.

    A subclass has `_array`, which returns the same object for a field as long as it can be used. It sets its
    own public attributes by ``__dict__``: what is set by name is a field, a property, or begins with "_". A
    field with the name of an attribute of the subclass can be used as an item only.
    """

    _noun = "the object"
    _names: tuple[str, ...] = ()
    _properties: frozenset[str] = frozenset()  # the fields that `with_fields` has made properties

    @classmethod
    def with_fields(cls, names: tuple[str, ...]) -> type[Self]:
        """A subclass for objects that have these fields. ``o.x`` finds a property, which takes a third of the
        time of `__getattr__`."""
        found = {
            name: cls._property(name, number)
            for number, name in enumerate(names)
            if not cls._is_reserved(name)
        }
        space = {"__module__": cls.__module__, "__qualname__": cls.__qualname__, "__doc__": cls.__doc__}
        return type(
            cls.__name__, (cls,), {**found, **space, "_names": names, "_properties": frozenset(found)}
        )

    @classmethod
    def _property(cls, name: str, number: int) -> Any:
        """A descriptor that gets a field from an object. If it raises AttributeError, `__getattr__` tries."""
        return property(lambda o: o._array(name))

    @classmethod
    def _is_reserved(cls, name: str) -> bool:
        """Whether an object has an attribute of the name that is no field, or may have one."""
        if name.startswith("_") or hasattr(cls, name):
            return True
        return any(name in vars(base).get("__annotations__", ()) for base in cls.__mro__)

    def _array(self, name: str) -> Any:
        """The array of a field. Fails with KeyError."""
        raise NotImplementedError

    def _missing(self, name: object) -> str:
        """The text of the error if there is no field of the name."""
        return f"{self._noun} has no field {name!r}: its fields are {self._names}"

    def _is_own(self, name: str) -> bool:
        """Whether the object has an attribute of the name that is no field."""
        return name in self.__dict__ or (hasattr(type(self), name) and name not in self._properties)

    def __getattr__(self, name: str) -> Any:
        if name in self._names:
            try:
                return type(self)._array(self, name)
            except KeyError:
                pass
        raise AttributeError(type(self)._missing(self, name))

    def __setattr__(self, name: str, value: Any) -> None:
        is_own = type(self)._is_own(self, name)
        if name in self._names:
            if is_own:
                raise AttributeError(f"{self._noun} has an attribute {name!r}: write the field as an item")
            type(self)._write(self, name, value, AttributeError)
        elif name.startswith("_") or hasattr(type(self), name):
            object.__setattr__(self, name, value)
        elif is_own:
            raise AttributeError(f"{name!r} of {self._noun} cannot be set: its fields are {self._names}")
        else:
            raise AttributeError(type(self)._missing(self, name))

    def __delattr__(self, name: str) -> None:
        if name in self._names or name in self.__dict__:
            raise AttributeError(f"{name!r} of {self._noun} cannot be deleted")
        object.__delattr__(self, name)

    def __getitem__(self, name: str) -> Any:
        try:
            return type(self)._array(self, name)
        except KeyError:
            raise KeyError(type(self)._missing(self, name)) from None

    def __setitem__(self, name: str, value: Any) -> None:
        type(self)._write(self, name, value, KeyError)

    def _write(self, name: str, value: Any, error: type[Exception]) -> None:
        try:
            array = type(self)._array(self, name)
        except KeyError:
            raise error(type(self)._missing(self, name)) from None
        write_field(name, array, value)
