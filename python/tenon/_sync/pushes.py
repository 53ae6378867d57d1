# SPDX-License-Identifier: Apache-2.0
"""Pushes of ops: `push`."""

from __future__ import annotations

import contextlib
import gc
import os
import zlib
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from .. import _core
from .._core import NDArray, Work
from .._errors import LeaseConflict
from .endings import release_retained, wait_for_searches
from .ops import Op
from .plain_functions import refuse_generators

if TYPE_CHECKING:
    from .views import Found

_T = TypeVar("_T")

_RAISE, _WAIT, _IGNORE = 0, 1, 2  # TENON_CONFLICT_*
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
    return _core.push(fn, args, keywords, reads, writes, overwrites, name, on_conflict)


# --- what the extension calls


def policy_of(on_conflict: object) -> int:
    if on_conflict not in _POLICIES:
        *others, last = map(repr, _POLICIES)
        raise ValueError(f"on_conflict is {on_conflict!r}: it must be {', '.join(others)} or {last}")
    return _POLICIES[on_conflict]


def refuse_unrun(fn: Callable[..., Any], name: str) -> None:
    refuse_generators(fn, name, "push a function that does its work before it returns")


def promise_of(uses: list[tuple[NDArray, bool, bool]]) -> Callable[[], None] | None:
    """A call for the beginning of the body, in the debug mode: ``on_conflict="ignore"`` promises that no code
    writes to the arrays."""
    return None if os.environ.get("TENON_DEBUG", "0") == "0" else _Promise(uses).check


def push_again(work: Work, on_conflict: str) -> Op[Any]:
    """After a first conflict. If a view conflicts, those that are dead are looked for first."""
    renews = on_conflict == "copy" and not work.is_copy_on_device()
    with contextlib.suppress(LeaseConflict):
        if renews:
            return work.submit(_renewals(work))
    # So that the result depends neither on searches of other threads nor on the time when dead cycles are
    # found. A full collection can take a second: it comes last, and only if it may end the conflict.
    wait_for_searches()
    gc.collect(1)
    try:
        return _submitted(work, renews)
    except LeaseConflict as conflict:
        conflict.__traceback__ = None  # its frames refer to the arguments
        live = _live_places(conflict, work)
        if live is not None:
            raise _explained(work, conflict, live) from None
        gc.collect()
        release_retained(is_error_near=True)
    try:
        return _submitted(work, renews)
    except LeaseConflict as conflict:
        conflict.__traceback__ = None
        raise _explained(work, conflict) from None


def _submitted(work: Work, renews: bool) -> Op[Any]:
    """Pushes work. If it renews, outputs that are viewed get new memory. If it fails, nothing has changed."""
    try:
        return work.submit([])
    except LeaseConflict:
        if not renews:
            raise
    return work.submit(_renewals(work))


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


def _live_places(conflict: LeaseConflict, work: Work) -> Found | None:
    from .views import find_live

    return find_live(conflict, work.uses(True))


def _explained(work: Work, conflict: LeaseConflict, found: Found | None = None) -> LeaseConflict:
    """The conflict with what refers to the views, if that is found."""
    from .views import explain

    def can_renew(in_way: list[NDArray]) -> bool:
        """Whether the op could be pushed with ``on_conflict="copy"`` if only these arrays are viewed."""
        try:
            renewed = {id(array) for array, _ in _renewals(work)}
        except Exception:
            return False
        return all(id(array) in renewed for array in in_way)

    return explain(conflict, work.uses(True), work.arguments(), can_renew, found, work.function)


def _renewals(work: Work) -> list[tuple[NDArray, NDArray]]:
    """Arrays that an op only overwrites and that are viewed, each with an array on new memory."""
    rows = work.uses(False)
    kept = {id(array) for array, _, is_overwrite in rows if not is_overwrite}
    overwritten = list({id(array): array for array, *_ in rows if id(array) not in kept}.values())
    viewed = [array for array in overwritten if any(row[0] == "view" for row in _core.holders(array))]
    return [(array, _core.renewed(array)) for array in viewed or overwritten]
