# SPDX-License-Identifier: Apache-2.0
"""The asynchronous engine: `push` and `Op`, `waitall`, `set_engine`."""

from __future__ import annotations

import asyncio
import atexit
import gc
import logging
from collections.abc import Callable, Generator, Iterable
from types import TracebackType
from typing import Any, Literal

from . import _core
from ._core import NativeOp, NDArray
from ._errors import LeaseConflict, OpError
from .function import CFunction

_log = logging.getLogger("tenon")

_EXIT_SECONDS = 1.5

_ON_CONFLICT = {"raise": 0, "wait": 1}
_IGNORE = 2


class _Use:
    """An array among the arguments of an op that the op writes."""

    def __init__(self, array: NDArray, is_overwrite: bool) -> None:
        if not isinstance(array, NDArray):
            raise TypeError(f"an op writes to an NDArray, not to {type(array).__name__}")
        self.array = array
        self.is_overwrite = is_overwrite


def out(array: NDArray) -> Any:
    """Says in the arguments of `push` that the op writes every element of ``array`` and reads none."""
    return _Use(array, is_overwrite=True)


def inout(array: NDArray) -> Any:
    """Says in the arguments of `push` that the op reads and writes ``array``."""
    return _Use(array, is_overwrite=False)


class Op:
    """Work that was pushed. Awaitable: ``await op`` gives its result.

    Attributes
    ----------
    name : str
    """

    def __init__(self, native: NativeOp, name: str) -> None:
        self._native = native
        self.name = name

    def wait(self, timeout: float | None = None) -> None:
        """Waits until the op is done, and runs it in this thread if it is ready.

        Parameters
        ----------
        timeout : float, optional
            Seconds; None waits as long as it takes.

        Raises
        ------
        OpError
            The op failed, or one before it whose output it reads.
        DeadlockError
            The op waits behind a lease of the caller's own.
        TimeoutError
            The time has passed.
        """
        self._native.wait(timeout)
        error = self._error()
        if error is not None:
            raise error

    def result(self, timeout: float | None = None) -> Any:
        """What the op's function returned, after `wait`."""
        self.wait(timeout)
        return self._native.results()[0]

    def done(self) -> bool:
        """It has ended, with success or without. Does not wait."""
        return self._native.done()

    def exception(self, timeout: float | None = None) -> OpError | None:
        """Why the op failed, after waiting; None when it succeeded."""
        self._native.wait(timeout)
        return self._error()

    def _error(self) -> OpError | None:
        failure = self._native.failure()
        return None if failure is None else op_error(failure)

    def __await__(self) -> Generator[Any, None, Any]:
        loop = asyncio.get_running_loop()
        done = loop.create_future()

        def tell() -> None:
            if not done.done():
                done.set_result(None)

        self._native.on_done(lambda: loop.call_soon_threadsafe(tell))
        yield from done
        return self.result()

    def __repr__(self) -> str:
        return f"<tenon.Op {self.name!r}, {'done' if self.done() else 'pending'}>"


def op_error(failure: tuple[str, str, str, int, BaseException | None]) -> OpError:
    """The exception that says why memory holds no value."""
    message, op, site, code, cause = failure
    where = f" (pushed at {site})" if site else ""
    error = OpError(f"op {op!r} failed{where}: {message}", code)
    error.op, error.site = op, site or None
    error.__cause__ = cause
    return error


def push(
    fn: Callable[..., Any],
    *args: Any,
    reads: Iterable[NDArray] = (),
    writes: Iterable[NDArray] = (),
    overwrites: Iterable[NDArray] = (),
    name: str | None = None,
    on_conflict: Literal["raise", "wait"] = "raise",
    host: Literal["idle"] | None = None,
) -> Op:
    """Runs a function on a thread of the engine when all that it needs is free.

    Ops that share an array run in the order in which they were pushed, unless both only read it.

    Parameters
    ----------
    fn : callable or CFunction
        A Python function gets a NumPy array for each NDArray among ``args``, read-only where the op reads. It
        may not keep them, and may not touch other NDArrays. A `CFunction` gets the arrays; it reads those
        whose parameter is const and writes the others.
    *args
        NDArrays that are read, or written when wrapped in `out` or `inout`; everything else is passed on.
    reads, writes, overwrites : iterables of NDArray
        What the function uses besides its arguments; or arguments that it writes.
    name : str, optional
        For messages.
    on_conflict : {'raise', 'wait'}
        What happens when views of ordinary code conflict: LeaseConflict at once, or the op waits until they
        are gone.
    host : {'idle'}, optional
        The caller's promise that nobody uses such views before the op is done.

    Raises
    ------
    LeaseConflict
        A view of ordinary code conflicts; the message says where it was taken. Nothing has been queued.
    ValueError, TypeError, BufferError
        Arguments that cannot work.
    """
    if on_conflict not in _ON_CONFLICT:
        raise ValueError(f"on_conflict is {on_conflict!r}: it must be 'raise' or 'wait'")
    if host not in (None, "idle"):
        raise ValueError(f"host is {host!r}: it must be 'idle' or None")
    if not callable(fn):
        raise TypeError(f"an op runs a function, not {type(fn).__name__}")
    uses = _Uses()
    for array in reads:
        uses.add(array, False, False)
    for array in writes:
        uses.add(array, True, False)
    for array in overwrites:
        uses.add(array, True, True)
    arrays: list[Any] = []
    for i, argument in enumerate(args):
        if isinstance(argument, _Use):
            uses.add(argument.array, True, argument.is_overwrite)
            arrays.append(argument.array)
            continue
        if isinstance(argument, NDArray) and not uses.knows(argument):
            is_write = isinstance(fn, CFunction) and _is_written(fn, i)
            uses.add(argument, is_write, False)
        arrays.append(argument)
    name = name or getattr(fn, "__name__", None) or getattr(fn, "name", None) or type(fn).__name__
    body = _native_body(fn, arrays) if isinstance(fn, CFunction) else _python_body(fn, arrays, uses)
    code = _IGNORE if host == "idle" else _ON_CONFLICT[on_conflict]
    try:
        return Op(_core.push(body, uses.rows, name, code), name)
    except LeaseConflict:
        gc.collect()  # so that the answer does not depend on when dead cycles are found
    return Op(_core.push(body, uses.rows, name, code), name)


class _Uses:
    """What an op does to which array: (array, is write, is overwrite)."""

    def __init__(self) -> None:
        self.rows: list[tuple[NDArray, bool, bool]] = []
        self._modes: dict[int, bool] = {}

    def add(self, array: NDArray, is_write: bool, is_overwrite: bool) -> None:
        if not isinstance(array, NDArray):
            raise TypeError(f"an op uses NDArrays, not {type(array).__name__}: make one with tn.from_numpy")
        if is_write and not array.writable:
            raise BufferError(f"an op cannot write to a read-only array of shape {array.shape}")
        self.rows.append((array, is_write, is_overwrite))
        self._modes[id(array)] = self._modes.get(id(array), False) or is_write

    def knows(self, array: NDArray) -> bool:
        return id(array) in self._modes

    def writes(self, array: NDArray) -> bool:
        return self._modes.get(id(array), False)


def _python_body(fn: Callable[..., Any], arguments: list[Any], uses: _Uses) -> Callable[[], Any]:
    arguments = [
        argument.readonly() if isinstance(argument, NDArray) and not uses.writes(argument) else argument
        for argument in arguments
    ]

    def body() -> Any:
        return fn(*[a.numpy() if isinstance(a, NDArray) else a for a in arguments])

    return body


def _is_written(fn: CFunction, i: int) -> bool:
    parameters = fn._native.parameters
    return i < len(parameters) and parameters[i][1] and not parameters[i][2]


def _native_body(fn: CFunction, arguments: list[Any]) -> Callable[[], Any]:
    return lambda: fn(*arguments)


def copy(source: Any, destination: Any) -> None:
    """``destination[...] = source``: called, or pushed as ``push(copy, a, out(b))``."""
    destination[...] = source


def cast(source: Any, destination: Any) -> None:
    """`copy`, with the conversion to the destination's dtype that NumPy calls 'unsafe'."""
    import numpy as np

    np.copyto(np.asarray(destination), np.asarray(source), casting="unsafe")


def fill(destination: Any, value: Any) -> None:
    """``destination[...] = value``: called, or pushed as ``push(fill, out(a), 0)``."""
    destination[...] = value


def waitall(timeout: float | None = None) -> None:
    """Waits until no op is unfinished.

    Raises
    ------
    ExceptionGroup
        Of OpErrors, one for each op that failed by itself since the last call.
    DeadlockError, TimeoutError
        As `Op.wait`.
    """
    _core.wait_all(timeout)
    errors = []
    while (failure := _core.take_failure()) is not None:
        errors.append(op_error(failure))
    if errors:
        raise ExceptionGroup("ops have failed", errors)


class set_engine:
    """Chooses where ops run, from now on or for a ``with`` block. Waits for all ops first.

    Parameters
    ----------
    name : str
        'pool' (threads of Tenon's own; the default), 'tbb' (oneTBB, where it was found when Tenon was built),
        'inline' (in the thread that pushes), 'seeded:N' (in the thread that waits, in an order that follows
        from N).
    workers : int, optional
        Threads; None: one for each processor.
    """

    def __init__(self, name: str, workers: int | None = None) -> None:
        self._before = _core.engine_name()
        _core.set_engine(name, 0 if workers is None else workers)

    def __enter__(self) -> None:
        return None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _core.set_engine(self._before, 0)


@atexit.register
def _shut_down(shut_down: Callable[[float], None] = _core.shut_down_engine) -> None:
    try:
        shut_down(_EXIT_SECONDS)
    except Exception as error:
        _log.warning("ops are left behind at exit: %s", error)
