# SPDX-License-Identifier: Apache-2.0
"""Pushes of ops: `push`."""

from __future__ import annotations

import functools
import gc
import os
import zlib
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from .. import _core
from .._core import NDArray
from .._errors import LeaseConflict
from .._values import text_for_c
from .bodies import Body
from .copies import copy as copy_elements
from .endings import settle, wait_for_searches
from .function import CFunction
from .ops import Op
from .plain_functions import refuse_generators
from .uses import Use, Uses

if TYPE_CHECKING:
    from .views import Found

_T = TypeVar("_T")

_RAISE, _WAIT, _IGNORE = 0, 1, 2
_POLICIES = {"raise": _RAISE, "wait": _WAIT, "copy": _RAISE, "ignore": _IGNORE}


def push(
    fn: Callable[..., _T],
    *args: Any,
    reads: Iterable[NDArray] = (),
    writes: Iterable[NDArray] = (),
    overwrites: Iterable[NDArray] = (),
    name: str | None = None,
    on_conflict: Literal["raise", "wait", "copy", "ignore"] = "raise",
    **keywords: Any,
) -> Op[_T]:
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
        `overwrite`. An array that is passed unwrapped counts as read, also if it is named elsewhere.
        Arrays of MXNet are refused. Other objects are passed unchanged. For a `CFunction`, pointers accept
        the same objects as in a direct call, and numbers are read now.
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

    Returns
    -------
    Op
        Its result is what the function returned. If that is an array that the function got to write, alone or
        in a tuple, the result has the NDArray of the caller:
        ``push(np.negative, a, overwrite(b)).result() is b``.
        The op fails with TypeError if the function returns a generator or a coroutine, or if a function in
        Python returns a new array of the shape of an argument that it was to `overwrite`:
        ``push(lambda x, o: x * 2, a, overwrite(b))``. A parameter whose name begins with ``_`` is exempt.

    Raises
    ------
    LeaseConflict
        A view of ordinary code conflicts. The message names the line that took it. Nothing was queued.
    MovedError
        The memory of an array was moved out.
    TypeError
        An argument is an array of MXNet, whose engine would not wait for the op.
        The push only reads an array (`read`, ``reads=``) that a `CFunction` may write to. The function is a
        generator or coroutine function, whose call would not run its body.
    ValueError, TypeError, BufferError
        Invalid arguments.
    """
    if on_conflict not in _POLICIES:
        *others, last = map(repr, _POLICIES)
        raise ValueError(f"on_conflict is {on_conflict!r}: it must be {', '.join(others)} or {last}")
    work = Work(fn, list(args), keywords, Uses(reads, writes, overwrites), name, _POLICIES[on_conflict])
    return _submitted(_submit_or_copy if on_conflict == "copy" else Work.submit, work)


def _submitted(submit: Callable[[Work], Op[Any]], work: Work) -> Op[Any]:
    """Submits work. If a view conflicts, those that are dead are looked for first."""
    # A full collection can take a second. So it comes last, and only if it may end the conflict.
    try:
        return submit(work)
    except LeaseConflict:
        # So that the result depends neither on searches of other threads nor on the time when dead cycles are
        # found.
        wait_for_searches()
        gc.collect(1)
    try:
        return submit(work)
    except LeaseConflict as conflict:
        conflict.__traceback__ = None  # its frames refer to the arguments
        live = work.live_places(conflict)
        if live is not None:
            raise work.explained(conflict, live) from None
        gc.collect()
        settle(is_error_near=True)
    try:
        return submit(work)
    except LeaseConflict as conflict:
        conflict.__traceback__ = None
        raise work.explained(conflict) from None


class _Promise:
    """The promise of ``on_conflict="ignore"`` that no code writes to the arrays of an op. In the debug mode,
    checksums are taken when the op is pushed, and compared when its body begins. Arrays that other ops use
    are not checked."""

    def __init__(self, uses: Iterable[tuple[NDArray, bool, bool]]) -> None:
        self._sums = [
            (array.unchecked(), _checksum(array.unchecked()))
            for array, _, _ in uses
            if not array.device.startswith("cuda:")
            and not any(holder[0] == "op" for holder in _core.holders(array))
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


class Work:
    """The work of one push."""

    def __init__(
        self,
        fn: Callable[..., Any],
        arguments: list[Any],
        keywords: dict[str, Any],
        uses: Uses,
        name: str | None,
        policy: int,
    ) -> None:
        if not callable(fn):
            raise TypeError(f"fn is {fn!r}: an op runs a function")
        if name is not None:
            text_for_c(name, "name")
        self.uses = uses
        self._fn = fn
        self._name = name or getattr(fn, "__name__", None) or getattr(fn, "name", None) or type(fn).__name__
        self._policy = policy
        refuse_generators(fn, self._name, "push a function that does its work before it returns")
        self._native = fn if isinstance(fn, CFunction) else None
        self._keywords = tuple(keywords)  # of the last arguments
        if self._native is not None:
            arguments = self._native._all_arguments(arguments, keywords)
        elif keywords:
            arguments += keywords.values()
        named = {key for key, is_write in uses.modes.items() if is_write}  # given to writes= or overwrites=
        for argument in arguments:
            if isinstance(argument, Use):
                uses.add(argument.array, argument.is_write, argument.is_overwrite)
        if self._native is not None:
            _check_declared(self._native, arguments, uses)
        self._arguments: list[Any] = []
        self._written: list[bool] = []  # of each argument: the body may write to it
        for argument in arguments:
            is_wrapped = isinstance(argument, Use)
            array = argument.array if is_wrapped else argument
            is_bare = isinstance(array, NDArray) and not is_wrapped
            if not is_bare and not is_wrapped:
                _core.refuse_verbs(array)
            if is_bare and (self._native is None or uses.knows(array)):
                uses.add(array, False, False)
            self._arguments.append(array)
            self._written.append((is_wrapped and argument.is_write) or id(array) in named)

    def submit(self, renewed: Sequence[tuple[NDArray, NDArray]] = ()) -> Op[Any]:
        """renewed: pairs of arrays. The first gets the memory of the second when the push is accepted."""
        promise = None
        if self._policy == _IGNORE and os.environ.get("TENON_DEBUG", "0") != "0":
            promise = _Promise(self.all_uses())
        pairs = list(renewed)
        if self.is_copy_on_device():
            source, destination = self._arguments
            return Op(_core.push_copy(source, destination, self._name, self._policy), self._name)
        if self._native is not None and promise is None:
            new = {id(array): other for array, other in pairs}
            arguments = [new.get(id(argument), argument) for argument in self._arguments]
            rows = [(new.get(id(row[0]), row[0]), row[1], row[2]) for row in self.uses.rows]
            native = _core.push_function(
                self._native._native, arguments, rows, self._name, self._policy, pairs
            )
        else:
            handles = self._handles(pairs)
            rows = [(handles[id(row[0])], row[1], row[2]) for row in self.all_uses()]
            body = self._body(handles, promise)
            native = _core.push(body, rows, self._name, self._policy, pairs)
        return Op(native, self._name)

    def is_copy_on_device(self) -> bool:
        """A copy in which a device takes part is submitted to a stream, and no thread waits for it."""
        if self._fn is not copy_elements or len(self.uses.rows) != 2 or self._written != [False, True]:
            return False
        return any(
            isinstance(argument, NDArray) and argument.device.startswith("cuda:")
            for argument in self._arguments
        ) and all(isinstance(argument, NDArray) for argument in self._arguments)

    def _handles(self, renewed: Sequence[tuple[NDArray, NDArray]]) -> dict[int, NDArray]:
        """Arrays of the op by the identity of the caller's arrays, which may get other memory before the op
        runs."""
        found = {id(array): other[...] for array, other in renewed}
        for array, *_ in self.all_uses():
            if id(array) not in found:
                found[id(array)] = array[...]
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
                arguments.append(handles[id(argument)] if is_array else argument)
            written = tuple(outputs) if any(output is not None for output in outputs) else ()
            overwritten = {id(array) for array, _, is_overwrite in self.uses.rows if is_overwrite}
            are_overwritten = bytes(id(output) in overwritten for output in written) if overwritten else b""
            body = Body(self._fn, tuple(arguments), self._keywords, written, are_overwritten)
        if promise is None:
            return body

        def checked_body() -> Any:
            promise.check()
            return body()

        return checked_body

    def all_uses(self) -> list[tuple[NDArray, bool, bool]]:
        """All uses, with those that follow from the prototype of a native function."""
        if self._native is None:
            return self.uses.rows
        uses = list(self.uses.rows)
        for argument, parameter in zip(self._arguments, self._native._native.parameters):
            is_const = parameter[2]
            if isinstance(argument, NDArray) and (is_const or not self.uses.knows(argument)):
                uses.append((argument, not is_const, False))
        return uses

    def live_places(self, conflict: LeaseConflict) -> Found | None:
        """As `find_live`."""
        from .views import find_live

        return find_live(conflict, self.all_uses())

    def explained(self, conflict: LeaseConflict, found: Found | None = None) -> LeaseConflict:
        """The conflict with what refers to the views, if that is found."""
        from .views import explain

        return explain(conflict, self.all_uses(), self._arguments, self._can_renew, found)

    def _can_renew(self, in_way: list[NDArray]) -> bool:
        """Whether the op could be pushed with ``on_conflict="copy"`` if only these arrays are viewed."""
        try:
            renewed = {id(array) for array, _ in _renewals(self.uses)}
        except Exception:
            return False
        return all(id(array) in renewed for array in in_way)


def _check_declared(function: CFunction, arguments: Sequence[Any], uses: Uses) -> None:
    """Refuses an array that the push only reads, and to which the function may write by its prototype."""
    for i, (argument, parameter) in enumerate(zip(arguments, function._native.parameters)):
        name, is_pointer, is_const, _ = parameter
        is_wrapped = isinstance(argument, Use)
        array = argument.array if is_wrapped else argument
        if not is_pointer or is_const or not isinstance(array, NDArray):
            continue
        if not argument.is_write if is_wrapped else uses.knows(array) and not uses.writes(array):
            raise TypeError(
                f"the function may write to parameter {repr(name) if name else i + 1} of "
                f"{function.prototype!r}, and the push only reads the array: declare the parameter const if "
                f"the function only reads, else pass `tn.write(a)`"
            )


def _submit_or_copy(work: Work) -> Op[Any]:
    """Pushes work. Outputs that are viewed get new memory. If it fails, nothing has changed."""
    try:
        return work.submit()
    except LeaseConflict:
        if work.is_copy_on_device():  # whose memory is not exchanged for other memory
            raise
    return work.submit(_renewals(work.uses))


def _renewals(uses: Uses) -> list[tuple[NDArray, NDArray]]:
    """Arrays that an op overwrites and that are viewed, each with an array on new memory."""
    overwritten = uses.overwritten()
    viewed = [array for array in overwritten if any(row[0] == "view" for row in _core.holders(array))]
    return [(array, _core.renewed(array)) for array in viewed or overwritten]
