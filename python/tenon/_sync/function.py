# SPDX-License-Identifier: Apache-2.0
"""Native functions: `c_function`."""

from __future__ import annotations

import ctypes
import os
from math import prod
from typing import Any

from .. import _answers
from .._core import Function, Use
from .._errors import OpError
from .._values import text_for_c


class CFunction:
    """A function of a shared library with its C prototype, made by `tenon.c_function`.

    A call runs the function in this thread without the GIL: ``fill(x, y, 64)``. The arguments are the
    parameters without a constant, by position or by name. A pointer accepts an NDArray, a NumPy array, or an
    object with the buffer protocol or ``__dlpack__``, or one of MXNet (of which the call asks for reading if
    the parameter is const, and for writing otherwise). It must be C-contiguous and have the dtype of the
    prototype; 8-bit integers of either sign accept bytes. The memory is shared, not copied. None is NULL. A
    result of type ``int`` is a status: a value other than 0 raises `OpError` with this code, and 0 returns
    None. Declare ``int32_t`` to get the number. Other results are returned.

    Attributes
    ----------
    name, prototype : str
    threadsafe : bool
        Whether several threads may call the function at the same time.
    constants : dict
        The constants that were given to `c_function`, by the names of their parameters. "rows" and "size" are
        lengths of the first array. The other arrays are not compared with it.
    """

    def __init__(
        self, native: Function, threadsafe: bool, constants: dict[str, Any], library: Any = None
    ) -> None:
        self._native = native
        self._library = library  # a ctypes library stays loaded for as long as its object
        self._names = tuple(parameter[0] for parameter in native.parameters)
        self.threadsafe = threadsafe
        self.constants = constants
        self._lengths: dict[str, str] = {}
        for name, value in constants.items():
            place = self._place(name)
            is_length = isinstance(value, str) and value in ("rows", "size")
            if is_length and _is_integer(native.parameters[place]):
                self._lengths[name] = value
            else:
                native.check(place, value)

    def _place(self, name: str) -> int:
        if name and name in self._names:
            return self._names.index(name)
        names = ", ".join(name for name in self._names if name)
        raise ValueError(
            f"{name!r} is no parameter of {self.prototype!r}: its parameters are {names or 'unnamed'}"
        )

    @property
    def name(self) -> str:
        return self._native.name

    @property
    def __name__(self) -> str:
        return self._native.name

    @property
    def prototype(self) -> str:
        return self._native.prototype

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        if self.constants or named:
            arguments = self._filled(arguments, named)
        try:
            return self._native(*arguments)
        except OpError as error:
            error.op = self.name
            raise

    def _filled(self, arguments: tuple[Any, ...], named: dict[str, Any]) -> tuple[Any, ...]:
        """All arguments in order. Positional arguments take the parameters that are not named."""
        for name in named:
            self._place(name)
        given = {**self.constants, **named}
        free = [name for name in self._names if name not in given]
        if len(arguments) != len(free):
            raise TypeError(
                f"'{self.name}' takes {len(free)} arguments besides {', '.join(given)}, "
                f"not {len(arguments)}: {self.prototype}"
            )
        rest = iter(arguments)
        values = [given[name] if name in given else next(rest) for name in self._names]
        for name, what in self._lengths.items():
            if name not in named:
                values[self._names.index(name)] = self._length(what, name, values)
        return tuple(values)

    def _length(self, what: str, name: str, values: list[Any]) -> int:
        """The length of the first array among the arguments."""
        for (_, is_pointer, _, dtype), value in zip(self._native.parameters, values, strict=True):
            if is_pointer and dtype is not None and value is not None:
                shape = _shape_of(value)
                if what == "size":
                    return prod(shape)
                return shape[0] if shape else 1
        raise TypeError(
            f"parameter {name!r} of {self.name!r} is the {what} of the first array, but the call has none"
        )

    def constants_of_feed(self) -> dict[str, Any]:
        """The constants for a feed, which binds n to the rows of a batch itself."""
        for name, what in self._lengths.items():
            if (name, what) != ("n", "rows"):
                raise ValueError(
                    f"parameter {name!r} of {self.name!r} is {what!r}: a feed has a length only for a "
                    "parameter with the name n, the rows of the batch"
                )
        return {name: value for name, value in self.constants.items() if name not in self._lengths}

    def __repr__(self) -> str:
        constants = "".join(f", {name}=..." for name in self.constants)
        return f"<tenon.c_function {self.prototype!r}{', threadsafe' if self.threadsafe else ''}{constants}>"


_answers.answer(CFunction, _answers.FUNCTION_NAMES)
_answers.answer(CFunction, _answers.FUNCTION, _answers.Unsettable)


def _is_integer(parameter: tuple[str, bool, bool, Any]) -> bool:
    _, is_pointer, _, dtype = parameter
    return not is_pointer and dtype.name.lstrip("u").startswith("int")


def _shape_of(value: Any) -> tuple[int, ...]:
    if isinstance(value, Use):
        value = value.array
    shape: Any = getattr(value, "shape", None)
    return tuple(memoryview(value).shape or () if shape is None else shape)


def c_function(
    library: str | os.PathLike[str] | ctypes.CDLL | None,
    prototype: str,
    *,
    threadsafe: bool = False,
    **constants: Any,
) -> CFunction:
    """Loads a function of a shared library.

    Parameters
    ----------
    library : path, ctypes.CDLL or None
        The library, which is never unloaded. None: a function that is already in the process.
    prototype : str
        A C prototype: ``"int fill(float *data, int64_t *label, size_t n)"``. Parameters are pointers to
        numbers (``const``: the function only reads), integers and floating-point numbers. A pointer to
        another type (``sim_t *``) is a handle, which takes an address: an int, a ``ctypes.c_void_p`` or
        another pointer of ctypes. ``void *`` takes both.
    threadsafe : bool
        False: calls of this object run one at a time, and a feed makes them in the order of the index. Other
        functions of the library do not wait for them.
    **constants
        Values of parameters by name, equal for all calls: arrays for pointers (kept alive), numbers,
        addresses. A `Feed` with worker processes takes arrays only for ``const`` parameters. ``n="rows"`` and
        ``n="size"`` bind an integer to the length of axis 0, or to the number of elements, of the first array
        of the call; a feed binds ``n`` to the rows of a batch.

    Warnings
    --------
    The function gets addresses. Nothing checks how many elements it accesses. ``n="rows"`` and ``n="size"``
    take the length of the first array, and no other array is compared with it: if another one is shorter, the
    function reads or writes beyond it.

    Returns
    -------
    CFunction
        It can be called, and it is a generator for `Feed`. A feed binds parameters by name to the fields of
        the schema, to constants, and then to ``n`` (rows), ``index``, ``epoch``, ``seed`` and ``worker``.

    Raises
    ------
    FileNotFoundError
        The library or the symbol does not exist.
    ValueError
        The prototype is invalid, or a constant has no parameter.
    TypeError, BufferError, OverflowError
        A constant does not fit its parameter.
    """
    text_for_c(prototype, "prototype")
    if "(" not in prototype:
        raise ValueError(
            f"prototype is {prototype!r}: it must be the declaration in C, for example "
            f'tn.c_function(library, "double {prototype.strip() or "cos"}(double x)")'
        )
    if isinstance(library, ctypes.PyDLL):
        raise TypeError(
            "functions of a ctypes.PyDLL need the interpreter's lock, without which a c_function is called: "
            "load the library as ctypes.CDLL"
        )
    if not isinstance(library, ctypes.CDLL):
        path = None if library is None else text_for_c(os.fsdecode(library), "library")
        return CFunction(Function(path, prototype, threadsafe), threadsafe, constants)
    # Parsed with a dummy address, to get the name.
    name = Function.at(1, prototype, threadsafe).name
    try:
        address = ctypes.cast(getattr(library, name), ctypes.c_void_p).value
    except AttributeError as error:
        raise FileNotFoundError(f"library {library._name!r} has no function {name!r} ({error})") from None
    return CFunction(Function.at(address or 0, prototype, threadsafe), threadsafe, constants, library)
