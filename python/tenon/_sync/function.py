# SPDX-License-Identifier: Apache-2.0
"""Native functions: `c_function`."""

from __future__ import annotations

import ctypes
import os
from typing import Any

from .._core import Function
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
        The constants that were given to `c_function`, by the names of their parameters.
    """

    def __init__(
        self, native: Function, threadsafe: bool, constants: dict[str, Any], library: Any = None
    ) -> None:
        self._native = native
        self._library = library  # a ctypes library stays loaded for as long as its object
        self._names = tuple(parameter[0] for parameter in native.parameters)
        self.threadsafe = threadsafe
        self.constants = constants
        for name, value in constants.items():
            native.check(self._place(name), value)

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
        return tuple(given[name] if name in given else next(rest) for name in self._names)

    def __repr__(self) -> str:
        constants = "".join(f", {name}=..." for name in self.constants)
        return f"<tenon.c_function {self.prototype!r}{', threadsafe' if self.threadsafe else ''}{constants}>"


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
        numbers (``const``: the function only reads), integers and floating-point numbers.
    threadsafe : bool
        False: one thread at a time calls the function, and a feed calls it in the order of the index.
    **constants
        Values of parameters by name, equal for all calls: arrays for pointers (kept alive), numbers. A `Feed`
        with worker processes takes arrays only for ``const`` parameters.

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
