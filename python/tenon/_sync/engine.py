# SPDX-License-Identifier: Apache-2.0
"""The asynchronous engine: `push` and `Op`, `waitall`, `set_engine`."""

from __future__ import annotations

import atexit
import functools
import gc
import logging
import os
import sys
import threading
import warnings
import zlib
from collections.abc import Callable, Generator, Iterable, Sequence
from types import TracebackType
from typing import Any, Literal

from .. import _core
from .._core import NativeOp, NDArray
from .._errors import LeaseConflict, OpError, describe, text_of
from .._values import INT32_MAX, count, text_for_c
from .endings import settle, wait_for_searches
from .function import CFunction
from .holders import BODY_CODES
from .lease import where_views_hang
from .results import refuse_lost_result
from .tasks import Signal, current_task, number_of

_log = logging.getLogger("tenon")

_EXIT_SECONDS = 1.5
_FORK_SECONDS = 1.0  # how long a fork waits for bodies that run

_RAISE, _WAIT, _IGNORE = 0, 1, 2


_READ_ONLY = (" destination is read-only", "array is read-only")  # so NumPy's texts end


class _Use:
    """An array among the arguments of an op, and what the op does with it."""

    def __init__(self, array: Any, is_write: bool, is_overwrite: bool) -> None:
        if not isinstance(array, NDArray):
            verb = "writes to an NDArray, not to" if is_write else "reads an NDArray, not"
            raise TypeError(f"an op {verb} {type(array).__name__}: make one with tn.array(), which copies")
        self.array = array
        self.is_write = is_write
        self.is_overwrite = is_overwrite

    def __repr__(self) -> str:
        name = "overwrite" if self.is_overwrite else "write" if self.is_write else "read"
        return f"tn.{name}({self.array!r})"

    def __array__(self, *_: Any, **__: Any) -> Any:
        raise TypeError(f"{self!r} wraps an argument of tn.push: pass the array itself here")


def read(array: NDArray) -> Any:
    """Wraps an argument of `push`: the op only reads ``array``, as a Python function does without this.
    `push` refuses it for a parameter that the prototype of a `CFunction` does not declare const."""
    return _Use(array, is_write=False, is_overwrite=False)


def write(array: NDArray) -> Any:
    """Wraps an argument of `push`: the op reads and writes ``array``."""
    return _Use(array, is_write=True, is_overwrite=False)


def overwrite(array: NDArray) -> Any:
    """Wraps an argument of `push`: the op writes every element of ``array`` before it reads any."""
    return _Use(array, is_write=True, is_overwrite=True)


inout, out = write, overwrite  # the names of earlier versions


class Op:
    """Work that was pushed. In asyncio, ``await op`` returns its result.

    Attributes
    ----------
    name : str
    """

    def __init__(self, native: NativeOp, name: str) -> None:
        self._native = native
        self.name = name

    def wait(self, timeout: float | None = None) -> None:
        """Waits until the op is done. Without a timeout, this thread runs the op if it is ready.

        Parameters
        ----------
        timeout : float, optional
            Seconds. None: no limit.

        Raises
        ------
        OpError
            The op failed, or an earlier op failed whose output it reads.
        DeadlockError
            The op waits for a lease of the caller.
        TimeoutError
            The op is not done after ``timeout`` seconds.
        KeyboardInterrupt
            Ctrl-C was pressed. If this thread was running the body of an op, that op has failed.
        """
        self._native.wait(timeout)
        error = self._error()
        if error is not None:
            raise error

    def result(self, timeout: float | None = None) -> Any:
        """Waits, as `wait` does, and returns the result of the op's function."""
        self.wait(timeout)
        return self._native.result()

    def done(self) -> bool:
        """Whether the op has ended, successfully or not. Does not wait."""
        return self._native.done()

    def exception(self, timeout: float | None = None) -> OpError | None:
        """Waits and returns the error of the op; None if it succeeded."""
        self._native.wait(timeout)
        return self._error()

    def _error(self) -> OpError | None:
        failure = self._native.failure()
        return None if failure is None else op_error(failure)

    def __await__(self) -> Generator[Any, None, Any]:
        if not self._native.done():
            task = current_task()
            waiting = self._native.begin_await(number_of(task))
            try:
                done = Signal(waiting.report)
                self._native.on_done(done.set)
                yield from done.wait()
            finally:
                waiting.end()
        return self.result()

    def __repr__(self) -> str:
        return f"<tenon.Op {self.name!r}, {'done' if self.done() else 'pending'}>"


def op_error(failure: tuple[str, str, str, int, BaseException | None]) -> OpError:
    """The exception that says why memory holds no value."""
    message, op, site, code, cause = failure
    where = f" (pushed at {site})" if site else ""
    text = f"op {op!r} failed{where}: {message}"
    if op == "write()":  # a block or lease, whose user may not know of ops
        text = f"the memory holds no value{where.replace('pushed', 'in a lease taken')}: {message}"
    error = OpError(text, code)
    error.op, error.site = op, site or None
    error.__cause__ = cause
    return error


def report_unseen(failure: tuple[str, str, str, int, BaseException | None]) -> None:
    """Logs the failure of an op that no call raised, and that none can raise any more."""
    if not getattr(failure[4], "_is_raised_here", False):
        _log.error("the failure of an op was never retrieved: %s", op_error(failure))


def push(
    fn: Callable[..., Any],
    *args: Any,
    reads: Iterable[NDArray] = (),
    writes: Iterable[NDArray] = (),
    overwrites: Iterable[NDArray] = (),
    name: str | None = None,
    on_conflict: Literal["raise", "wait", "copy", "ignore"] = "raise",
    host: Literal["idle"] | None = None,
    **keywords: Any,
) -> Op:
    """Queues a function; a thread of the engine runs it when all of its arrays are available.

    Ops that use the same array run in the order in which they were pushed, unless both only read it.

    Parameters
    ----------
    fn : callable or CFunction
        A Python function gets a NumPy array for each NDArray among ``args``: a view without a copy, read-only
        if the op only reads. The function may not keep these arrays, and may not use other NDArrays. A
        `CFunction` runs without the GIL. It gets addresses; it reads the arrays that its prototype declares
        const, and writes the others.
    *args
        An NDArray is read, as if it was wrapped in `read`, or written if it is wrapped in `write` or
        `overwrite`. Other objects are passed unchanged. An array that is passed unwrapped counts as read,
        also if it is named elsewhere. For a `CFunction`, pointers accept the same objects as in a direct
        call, and numbers are read now.
    **keywords
        Arguments that the function takes by name, as ``push(np.add, a, b, out=out(c))``. For a parameter
        whose name `push` uses itself, push ``lambda x: fn(x, name=...)``.
    reads, writes, overwrites : iterables of NDArray
        Arrays that the function uses in addition to its arguments, or arguments that it writes.
    name : str, optional
        The name in messages.
    on_conflict : {'raise', 'wait', 'copy', 'ignore'}
        The behaviour if views of ordinary code conflict. 'raise': LeaseConflict at once. 'wait': the op waits
        until the views are gone. 'copy': an array that is fully overwritten, and that ordinary code only
        reads, gets new memory. Views and slices that were made before keep the old memory and its values. A
        view in a dead reference cycle that was not collected yet counts as a reader. 'ignore': you promise
        not to use such views before the op is done. With ``TENON_DEBUG=1`` in the environment the op fails if
        the memory was written between its push and its start.
    host : {'idle'}, optional
        Deprecated: the former name of ``on_conflict="ignore"``.

    Returns
    -------
    Op
        Its result is what the function returned. If that is an array that the function got to write, alone or
        in a tuple, the result has the NDArray of the caller: ``push(np.negative, a, out(b)).result() is b``.
        The op fails with TypeError if the function returns an array of the shape of an argument that it was
        to `overwrite`, and its code never uses that parameter: ``push(lambda x, o: x * 2, a, out(b))``. A
        parameter whose name begins with ``_`` need not be used.

    Raises
    ------
    LeaseConflict
        A view of ordinary code conflicts. The message names the line that took it. Nothing was queued.
    MovedError
        The memory of an array was moved out.
    TypeError
        The push only reads an array (`read`, ``reads=``) that a `CFunction` may write to.
    ValueError, TypeError, BufferError
        Invalid arguments.
    """
    if host is not None:
        if host != "idle":
            raise ValueError(f"host is {host!r}: it must be 'idle' or None")
        if on_conflict != "raise":
            raise TypeError(
                f"on_conflict is {on_conflict!r}, and host, its former name, is {host!r}: pass one"
            )
        warnings.warn("push(host='idle') is now push(on_conflict='ignore')", DeprecationWarning, 2)
        on_conflict = "ignore"
    if on_conflict not in ("raise", "wait", "copy", "ignore"):
        raise ValueError(f"on_conflict is {on_conflict!r}: it must be 'raise', 'wait', 'copy' or 'ignore'")
    if not callable(fn):
        raise TypeError(f"fn is {fn!r}: an op runs a function")
    if name is not None:
        text_for_c(name, "name")
    uses = _Uses(reads, writes, overwrites)
    name = name or getattr(fn, "__name__", None) or getattr(fn, "name", None) or type(fn).__name__
    policy = _IGNORE if on_conflict == "ignore" else _WAIT if on_conflict == "wait" else _RAISE
    work = _Work(fn, list(args), keywords, uses, name, policy)
    submit = functools.partial(_submit_or_copy if on_conflict == "copy" else _Work.submit, work)
    # A full collection can take a second: it is the last thing before the error.
    try:
        return submit()
    except LeaseConflict:
        # So that the answer depends neither on searches of other threads nor on when dead cycles are found.
        wait_for_searches()
        gc.collect(1)
    try:
        return submit()
    except LeaseConflict:
        gc.collect()
        settle(is_error_near=True)
    try:
        return submit()
    except LeaseConflict as conflict:
        raise work.explained(conflict) from None


class _Promise:
    """The promise of ``on_conflict="ignore"`` that no code writes to the arrays of an op. In the debug mode,
    checksums are taken when the op is pushed, and compared when its body begins. Arrays that other ops use
    are not checked."""

    def __init__(self, uses: Iterable[tuple[NDArray, bool, bool]]) -> None:
        self._sums = [
            (array.unchecked(), _checksum(array.unchecked()))
            for array, _, _ in uses
            if not any(holder[0] == "op" for holder in _core.holders(array))
        ]

    def check(self) -> None:
        for array, checksum in self._sums:
            if _checksum(array) != checksum:
                raise LeaseConflict(
                    f"the promise of on_conflict='ignore' was broken: the array of shape {array.shape} and "
                    f"dtype {array.dtype} was written between the push and the op"
                )


def _checksum(array: NDArray) -> int:
    return zlib.crc32(array.asnumpy().tobytes())


class _Work:
    """What is to be pushed."""

    def __init__(
        self,
        fn: Callable[..., Any],
        arguments: list[Any],
        keywords: dict[str, Any],
        uses: _Uses,
        name: str,
        policy: int,
    ) -> None:
        self.uses = uses
        self._fn = fn
        self._name = name
        self._policy = policy
        self._native = fn if isinstance(fn, CFunction) else None
        self._keywords = tuple(keywords)  # of the last arguments
        if self._native is not None:
            arguments = self._native._all_arguments(arguments, keywords)
        elif keywords:
            arguments += keywords.values()
        named = {key for key, is_write in uses.modes.items() if is_write}  # in writes= and overwrites=
        for argument in arguments:
            if isinstance(argument, _Use):
                uses.add(argument.array, argument.is_write, argument.is_overwrite)
        if self._native is not None:
            _check_declared(self._native, arguments, uses)
        self._arguments: list[Any] = []
        self._written: list[bool] = []  # of each argument: the body may write to it
        for argument in arguments:
            wrapped = argument if isinstance(argument, _Use) else None
            argument = argument if wrapped is None else wrapped.array
            if (
                isinstance(argument, NDArray)
                and wrapped is None
                and (self._native is None or uses.knows(argument))
            ):
                uses.add(argument, False, False)
            self._arguments.append(argument)
            self._written.append((wrapped is not None and wrapped.is_write) or id(argument) in named)

    def submit(self, renewed: Sequence[tuple[NDArray, NDArray]] = ()) -> Op:
        """renewed: arrays that get the memory of another when the push is accepted."""
        promise = None
        if self._policy == _IGNORE and os.environ.get("TENON_DEBUG", "0") != "0":
            promise = _Promise(self._all_uses())
        pairs = list(renewed)
        if self._native is not None and promise is None:
            new = {id(array): other for array, other in pairs}
            arguments = [new.get(id(argument), argument) for argument in self._arguments]
            rows = [(new.get(id(row[0]), row[0]), row[1], row[2]) for row in self.uses.rows]
            native = _core.push_function(
                self._native._native, arguments, rows, self._name, self._policy, pairs
            )
        else:
            handles = self._handles(pairs)
            rows = [(handles[id(row[0])], row[1], row[2]) for row in self._all_uses()]
            body = self._body(handles, promise)
            native = _core.push(body, rows, self._name, self._policy, pairs)
        return Op(native, self._name)

    def _handles(self, renewed: Sequence[tuple[NDArray, NDArray]]) -> dict[int, NDArray]:
        """The op's own, by the identity of the caller's, which may get other memory before it runs."""
        found = {id(array): other[...] for array, other in renewed}
        for array, *_ in self._all_uses():
            if id(array) not in found:
                may_write = self._native is not None or self.uses.writes(array)
                found[id(array)] = array[...] if may_write else array.readonly()
        return found

    def _body(self, handles: dict[int, NDArray], promise: _Promise | None) -> Callable[[], Any]:
        if self._native is not None:
            body: Callable[[], Any] = functools.partial(
                self._native._native, *[handles.get(id(argument), argument) for argument in self._arguments]
            )
        else:
            arguments = []
            outputs: list[NDArray | None] = []
            for argument, is_written in zip(self._arguments, self._written):
                is_array = isinstance(argument, NDArray)
                outputs.append(argument if is_array and is_written else None)
                if is_array:
                    handle = handles[id(argument)]
                    argument = handle.readonly() if not is_written and handle.writable else handle
                arguments.append(argument)
            overwrites = [id(array) for array, _, is_overwrite in self.uses.rows if is_overwrite]
            body = Body(self._fn, arguments, self._keywords, outputs, overwrites)
        if promise is None:
            return body

        def checked_body() -> Any:
            promise.check()
            return body()

        return checked_body

    def _all_uses(self) -> list[tuple[NDArray, bool, bool]]:
        """With those that follow from the prototype of a native function."""
        if self._native is None:
            return self.uses.rows
        uses = list(self.uses.rows)
        for argument, parameter in zip(self._arguments, self._native._native.parameters):
            is_const = parameter[2]
            if isinstance(argument, NDArray) and (is_const or not self.uses.knows(argument)):
                uses.append((argument, not is_const, False))
        return uses

    def explained(self, conflict: LeaseConflict) -> LeaseConflict:
        """With where the views hang, if that is found."""
        conflict.__traceback__ = None  # whose frames have the arguments
        from .views import explain

        return explain(conflict, self._all_uses(), self._arguments, self._can_renew)

    def _can_renew(self, in_way: list[NDArray]) -> bool:
        """Whether the op could be pushed with ``on_conflict="copy"`` if only these arrays are viewed."""
        try:
            renewed = {id(array) for array, _ in _renewals(self.uses)}
        except Exception:
            return False
        return all(id(array) in renewed for array in in_way)


def _check_declared(function: CFunction, arguments: Sequence[Any], uses: _Uses) -> None:
    """Refuses an array that the push only reads, and to which the function may write by its prototype."""
    for i, (argument, parameter) in enumerate(zip(arguments, function._native.parameters)):
        name, is_pointer, is_const, _ = parameter
        is_wrapped = isinstance(argument, _Use)
        array = argument.array if is_wrapped else argument
        if not is_pointer or is_const or not isinstance(array, NDArray):
            continue
        if not argument.is_write if is_wrapped else uses.knows(array) and not uses.writes(array):
            raise TypeError(
                f"the function may write to parameter {repr(name) if name else i + 1} of "
                f"{function.prototype!r}, and the push only reads the array: declare the parameter const if "
                f"the function only reads, else pass `tn.write(a)`"
            )


def _submit_or_copy(work: _Work) -> Op:
    """Pushes work. Where its outputs are viewed, they get new memory; or nothing has happened."""
    try:
        return work.submit()
    except LeaseConflict:
        pass
    return work.submit(_renewals(work.uses))


def _renewals(uses: _Uses) -> list[tuple[NDArray, NDArray]]:
    """Arrays that an op overwrites and that are viewed, each with one on new memory."""
    overwritten = uses.overwritten()
    viewed = [array for array in overwritten if any(row[0] == "view" for row in _core.holders(array))]
    return [(array, _core.renewed(array)) for array in viewed or overwritten]


class _Uses:
    """What an op does to which array: (array, is write, is overwrite)."""

    def __init__(
        self, reads: Iterable[NDArray], writes: Iterable[NDArray], overwrites: Iterable[NDArray]
    ) -> None:
        self.rows: list[tuple[NDArray, bool, bool]] = []
        self.modes: dict[int, bool] = {}  # by an array's identity: it is written
        for name, arrays in (("reads", reads), ("writes", writes), ("overwrites", overwrites)):
            if isinstance(arrays, NDArray) or not isinstance(arrays, Iterable):
                raise TypeError(f"{name} is {arrays!r}: it must be a list of NDArrays")
            for array in arrays:
                if isinstance(array, _Use):
                    raise TypeError(f"{name} has {array!r}: pass the array itself")
                if not isinstance(array, NDArray):
                    raise TypeError(
                        f"{name} has {array!r}: make an NDArray of it with tn.array(), which copies"
                    )
                self.add(array, name != "reads", name == "overwrites")

    def add(self, array: NDArray, is_write: bool, is_overwrite: bool) -> None:
        if is_write and not array.writable:
            raise BufferError(f"an op cannot write to a read-only array of shape {array.shape}")
        self.rows.append((array, is_write, is_overwrite))
        self.modes[id(array)] = self.modes.get(id(array), False) or is_write

    def knows(self, array: NDArray) -> bool:
        return id(array) in self.modes

    def writes(self, array: NDArray) -> bool:
        return self.modes.get(id(array), False)

    def overwritten(self) -> list[NDArray]:
        """The arrays of which the op reads nothing, each once."""
        kept = {id(array) for array, _, is_overwrite in self.rows if not is_overwrite}
        found = {id(array): array for array, _, _ in self.rows if id(array) not in kept}
        return list(found.values())


class Body:
    """The body of an op in Python, to be called once. The arrays that it gives to the function are its own
    until the function has ended, and have no elements from then on."""

    __slots__ = ("_fn", "_given", "_handles", "_keywords", "_outputs", "_overwrites", "escapes")

    def __init__(
        self,
        fn: Callable[..., Any],
        handles: list[Any],
        keywords: tuple[str, ...],
        outputs: list[NDArray | None],
        overwrites: list[int],
    ) -> None:
        """``keywords``: the names of the last arguments. ``outputs``: for each argument the array of the
        caller if the function writes to it, else None. ``overwrites``: the identities of those of which it
        writes every element."""
        self._fn = fn
        self._handles = handles
        self._keywords = keywords
        self._outputs = outputs
        self._overwrites = overwrites
        self._given: list[Any] = []
        self.escapes = ""  # where an array hangs that somebody has kept

    def __call__(self) -> Any:
        self._given = _core.body_arguments(self._handles, self._fn)
        if self._keywords:
            n = len(self._given) - len(self._keywords)
            result = self._fn(*self._given[:n], **dict(zip(self._keywords, self._given[n:])))
        else:
            result = self._fn(*self._given)
        if result is not None:
            if self._overwrites:
                are_overwritten = [id(output) in self._overwrites for output in self._outputs]
                refuse_lost_result(self._fn, self._given, self._keywords, are_overwritten, result)
            result = tuple(map(self._own, result)) if type(result) is tuple else self._own(result)
        views = self.take_views()
        while views:
            view = views.pop()
            if sys.getrefcount(view) > 2:  # the variable here, and the argument: somebody has kept it
                self.escapes = self.escapes or where_views_hang(self.arrays())  # while it shows the memory
                _core.empty_view(view, False, self._fn)
            del view
        return result

    def _own(self, value: Any) -> Any:
        """The array of the caller in the place of one that the function got to write."""
        for given, output in zip(self._given, self._outputs):
            if value is given and output is not None:
                return output
        return value

    @property
    def function(self) -> Callable[..., Any]:
        return self._fn

    def arrays(self) -> list[NDArray]:
        return [handle for handle in self._handles if isinstance(handle, NDArray)]

    def advice_for(self, error: BaseException) -> str:
        """For a function that writes to an array which the push lets it read only."""
        if not isinstance(error, ValueError) or not text_of(error).endswith(_READ_ONLY):
            return ""
        n = len(self._handles) - len(self._keywords)
        labels = [f"argument {i + 1}" for i in range(n)] + [f"`{name}=`" for name in self._keywords]
        read = [
            label
            for label, handle, output in zip(labels, self._handles, self._outputs)
            if isinstance(handle, NDArray) and output is None
        ]
        if not read:
            return ""
        code = "`out=tn.out(out)`" if "`out=`" in read else "`tn.out(a)`"
        return (
            f"\nThe push lets the function only read {', '.join(read)}. If it writes there, wrap that in the "
            f"push: {code}, or `tn.write(...)` if not every element is written"
        )

    def take_views(self) -> list[Any]:
        """The arrays that the function was given. The body forgets them."""
        given, self._given = self._given, []
        return [argument for argument, handle in zip(given, self._handles) if isinstance(handle, NDArray)]


BODY_CODES.add(id(Body.__call__.__code__))


def describe_escape(body: Callable[..., Any]) -> str:
    """Of an op whose body has ended, and a view that it took has not."""
    where = ""
    if isinstance(body, Body):
        where = body.escapes or where_views_hang(body.arrays())
    return f"a view that the op's body took lives on after it{where}: copy what is to be kept"


def end_failed_body(body: Callable[[], Any], error: BaseException) -> str:
    """What a failed body says. Neither it nor the error keeps memory of the arrays."""
    if isinstance(error, KeyboardInterrupt) and threading.get_ident() == threading.main_thread().ident:
        error._is_raised_here = True  # type: ignore[attr-defined]  # the extension raises another one here
    if not isinstance(body, Body):
        return describe(error, [])
    advice = body.advice_for(error)
    return describe(error, body.take_views(), body.function) + advice


def copy(source: Any, destination: Any) -> None:
    """``destination[...] = source``: called, or pushed as ``push(copy, a, out(b))``."""
    destination[...] = source


def cast(source: Any, destination: Any) -> None:
    """`copy`, with the conversion to the destination's dtype that NumPy calls 'unsafe'."""
    import numpy as np

    def array(data: Any) -> Any:  # one call of NumPy's is to have both of them
        return data if isinstance(data, NDArray) else np.asarray(data)

    if isinstance(destination, list | tuple | int | float | complex):
        kind = type(destination).__name__
        raise TypeError(f"destination is {kind}: cast() writes to an array or a buffer")
    np.copyto(array(destination), array(source), casting="unsafe")


def fill(destination: Any, value: Any) -> None:
    """``destination[...] = value``: called, or pushed as ``push(fill, out(a), 0)``."""
    destination[...] = value


def waitall(timeout: float | None = None) -> None:
    """Waits until all ops are done.

    Raises
    ------
    ExceptionGroup
        Contains one OpError for each op that failed by itself since the last call.
    DeadlockError, TimeoutError
        As `Op.wait`.
    """
    _core.wait_all(timeout)
    errors = []
    while (failure := _core.take_failure()) is not None:
        errors.append(op_error(failure))
    if errors:
        raise ExceptionGroup("ops have failed", errors)


wait_all = waitall  # as in C and C++; waitall is MXNet's name


class set_engine:
    """Selects the engine that runs ops, permanently or for a ``with`` block. Waits for all ops first.

    Parameters
    ----------
    name : str
        'pool' (a thread pool; the default), 'inline' (the thread that pushes), 'seeded:N' (the thread that
        waits, in an order that depends only on N).
    workers : int, optional
        The number of threads. None: one for each processor.
    """

    _workers = 0  # of the last one

    def __init__(self, name: str, workers: int | None = None) -> None:
        text_for_c(name, "name")
        threads = 0 if workers is None else count(workers, "workers", 0, INT32_MAX)
        self._before, self._workers_before = _core.engine_name(), set_engine._workers
        self._set(name, threads)

    @staticmethod
    def _set(name: str, workers: int) -> None:
        _core.set_engine(name, workers)
        set_engine._workers = workers

    def __enter__(self) -> None:
        return None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._set(self._before, self._workers_before)


def set_engine_limits(*, ops: int | None = None, nbytes: int | None = None) -> None:
    """Limits the unfinished ops. At a limit, a push waits until their number has fallen to half of the limit.

    Parameters
    ----------
    ops : int, optional
        The number of unfinished ops; default 10,000. 0: no limit. None: does not change.
    nbytes : int, optional
        The bytes of memory that these ops use; default: half of the machine's memory. Each array is counted
        once, and memory of less than 64 KiB is not counted. 0: no limit. None: does not change.
    """
    keep = 2**64 - 1
    _core.set_engine_limits(
        *(keep if limit is None else count(limit, what) for what, limit in (("ops", ops), ("nbytes", nbytes)))
    )


# A fork in the middle of a body would leave the child with memory that is half written.
os.register_at_fork(
    before=functools.partial(_core.before_fork, _FORK_SECONDS),
    after_in_parent=_core.after_fork_in_parent,
    after_in_child=_core.after_fork_in_child,
)


atexit.register(_core.end_reports)  # after the next one


@atexit.register
def _shut_down(shut_down: Callable[[float], None] = _core.shut_down_engine) -> None:
    try:
        shut_down(_EXIT_SECONDS)
    except Exception as error:
        _log.warning("ops are left behind at exit: %s", error)


def _finish() -> None:
    """At the end of a process of multiprocessing, where threads may still push ops."""
    try:
        _core.wait_all(_EXIT_SECONDS)
    except Exception as error:
        _log.warning("ops are left behind at the end of a process: %s", error)
    _core.report_failures()


_is_registered = False  # with multiprocessing


def _finish_with_multiprocessing() -> None:
    """Its processes that were forked end without atexit, but with finalizers, which they clear first."""
    global _is_registered
    util = sys.modules.get("multiprocessing.util")
    if util is None or _is_registered:
        return
    _is_registered = True

    def register(_: Any = None) -> None:
        util.Finalize(None, _finish, exitpriority=0)

    util.register_after_fork(_finish_with_multiprocessing, register)
    if sys.modules["multiprocessing.process"].parent_process() is not None:
        register()  # this process has begun, and its task imports the package


os.register_at_fork(before=_finish_with_multiprocessing)
_finish_with_multiprocessing()
