# SPDX-License-Identifier: Apache-2.0
"""Fields: the named arrays of batches, items of channels, and layouts of arenas."""

from __future__ import annotations

from typing import Any


def write_field(name: str, array: Any, value: Any) -> None:
    """``array[...] = value``. Errors name the field. ``o.x += 1`` assigns the array itself, without a copy."""
    if value is array:
        return
    try:
        array[...] = value
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

    def _array(self, name: str) -> Any:
        """The array of a field. Fails with KeyError."""
        raise NotImplementedError

    def _missing(self, name: object) -> str:
        """The text of the error if there is no field of the name."""
        return f"{self._noun} has no field {name!r}: its fields are {self._names}"

    def __getattr__(self, name: str) -> Any:
        if name in self._names:
            try:
                return self._array(name)
            except KeyError:
                pass
        raise AttributeError(self._missing(name))

    def __setattr__(self, name: str, value: Any) -> None:
        is_own = name in self.__dict__ or hasattr(type(self), name)
        if name in self._names:
            if is_own:
                raise AttributeError(f"{self._noun} has an attribute {name!r}: write the field as an item")
            self._write(name, value, AttributeError)
        elif name.startswith("_") or hasattr(type(self), name):
            object.__setattr__(self, name, value)
        elif is_own:
            raise AttributeError(f"{name!r} of {self._noun} cannot be set: its fields are {self._names}")
        else:
            raise AttributeError(self._missing(name))

    def __delattr__(self, name: str) -> None:
        if name in self._names or name in self.__dict__:
            raise AttributeError(f"{name!r} of {self._noun} cannot be deleted")
        object.__delattr__(self, name)

    def __getitem__(self, name: str) -> Any:
        try:
            return self._array(name)
        except KeyError:
            raise KeyError(self._missing(name)) from None

    def __setitem__(self, name: str, value: Any) -> None:
        self._write(name, value, KeyError)

    def _write(self, name: str, value: Any, error: type[Exception]) -> None:
        try:
            array = self._array(name)
        except KeyError:
            raise error(self._missing(name)) from None
        write_field(name, array, value)
