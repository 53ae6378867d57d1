# SPDX-License-Identifier: Apache-2.0
"""Functions that are recorded once and replayed as one op: `record`, `push_many`."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal

from .. import _core
from .._core import NDArray
from .._errors import LeaseConflict
from .._values import text_for_c
from .ops import Op
from .pushes import Work, check_policy, submitted
from .uses import Uses

if TYPE_CHECKING:
    from .views import Found


class Recording:
    """Functions that were recorded by `record`, to be replayed together as one op, any number of times.

    A function runs after each earlier one that uses some of its bytes, unless both only read them.
    Functions that need not wait for each other may run at the same time. This order is computed once, when
    the functions are recorded. For other ops, leases and views, a replay is one op: it claims what its
    functions use together, until all of them have ended. Replays of one recording run one after another.

    The first failure of a function fails the op. Functions that have not begun are skipped, and all memory
    that the functions write holds no value, as after the failure of any op.
    """

    def __init__(self) -> None:
        self._native = _core.NativeRecording()
        self._works: list[Work] = []
        self._bodies: list[Callable[[], Any]] = []  # in Python; here, so that the garbage collector sees them
        self._state = "new"  # then "open" in the block, and "closed"; "failed" if an exception left the block

    def __enter__(self) -> Recording:
        if self._state != "new":
            raise RuntimeError("a recording has one block: call tn.record() for another one")
        self._state = "open"
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self._state = "closed" if kind is None else "failed"

    def push(
        self,
        fn: Callable[..., object],
        *args: Any,
        reads: Iterable[NDArray] = (),
        writes: Iterable[NDArray] = (),
        overwrites: Iterable[NDArray] = (),
        name: str | None = None,
        **keywords: Any,
    ) -> None:
        """Records a function, which each replay calls once. It does not run now.

        Parameters
        ----------
        fn, *args, reads, writes, overwrites, name, **keywords
            As for `tenon.push`. Objects that are not arrays are kept and passed in each replay. Each replay
            uses the memory that an array has now, also if ``push(on_conflict="copy")`` gives the array other
            memory later. If the memory is moved out (``move_to_numpy``), the replay raises MovedError. A
            function must declare all arrays that it uses: only those are ordered with the other functions.

        Raises
        ------
        RuntimeError
            The block of the recording has ended.
        ValueError, TypeError, BufferError
            Invalid arguments, or arrays on a device, whose copies cannot be recorded.
        """
        if self._state != "open":
            raise RuntimeError("functions are recorded inside of the block `with tn.record() as loop:`")
        if "on_conflict" in keywords:
            raise TypeError(
                f"on_conflict is {keywords['on_conflict']!r}: it belongs to the whole replay. Pass it "
                "there: loop.replay(on_conflict=...)"
            )
        work = Work(fn, list(args), keywords, Uses(reads, writes, overwrites), name, 0)
        work.record(self._native, self._bodies)
        self._works.append(work)

    def replay(
        self, *, name: str = "replay", on_conflict: Literal["raise", "wait", "ignore"] = "raise"
    ) -> Op[None]:
        """Pushes an op that calls all functions.

        Parameters
        ----------
        name : str
            The name of the op in messages. A failure has the name of its function.
        on_conflict : {'raise', 'wait', 'ignore'}
            The behaviour if views of ordinary code conflict, as for `tenon.push`. With 'ignore',
            ``TENON_DEBUG=1`` does not compare checksums.

        Returns
        -------
        Op
            Its result is None.

        Raises
        ------
        RuntimeError
            The block of the recording has not ended, or an exception left it.
        LeaseConflict, MovedError
            As `tenon.push`. Nothing was queued.
        """
        if self._state != "closed":
            reason = {
                "new": "has no block: record functions in `with tn.record() as loop:`",
                "open": "has not ended: leave its block first",
                "failed": "is incomplete: an exception left its block",
            }[self._state]
            raise RuntimeError(f"the recording {reason}")
        text_for_c(name, "name")
        policy = check_policy(on_conflict, ("raise", "wait", "ignore"))
        return submitted(_Replay.submit, _Replay(self, name, policy))

    def __len__(self) -> int:
        """How many functions it calls."""
        return len(self._works)

    def __repr__(self) -> str:
        return f"<tenon.Recording of {len(self)} functions>"


class _Replay:
    """The work of one replay."""

    def __init__(self, recording: Recording, name: str, policy: int) -> None:
        self._recording = recording
        self._name = name
        self._policy = policy

    def submit(self) -> Op[None]:
        recording = self._recording
        return Op(recording._native.replay(recording._bodies, self._name, self._policy), self._name)

    def _uses(self) -> list[tuple[NDArray, bool, bool]]:
        return [use for work in self._recording._works for use in work.all_uses()]

    def live_places(self, conflict: LeaseConflict) -> Found | None:
        """As `find_live`."""
        from .views import find_live

        return find_live(conflict, self._uses())

    def explained(self, conflict: LeaseConflict, found: Found | None = None) -> LeaseConflict:
        """The conflict with what refers to the views, if that is found."""
        from .views import explain

        return explain(conflict, self._uses(), [], lambda _: False, found)


def record() -> Recording:
    """Begins a recording of functions that are replayed together as one op.

    For loops that repeat the same work on the same arrays: a replay costs one push, and for each function
    little more than its call.

    Only `Recording.push` records. `tenon.push` in the block pushes an op at once. Return values of the
    functions are dropped: use ``out=``. A lambda sees the values that variables of a loop have at the replay.
    A name that is assigned anew leaves the old array in the recording.

    Returns
    -------
    Recording
        To be used in a ``with`` block, which ends the recording:

        >>> import numpy as np
        >>> import tenon as tn
        >>> a, b = tn.zeros(3), tn.zeros(3)
        >>> with tn.record() as loop:
        ...     loop.push(np.add, a, 1, out=tn.write(a))
        ...     loop.push(np.multiply, a, 2, out=tn.overwrite(b))
        >>> for _ in range(10):
        ...     op = loop.replay()
        >>> op.wait()
        >>> a.tolist(), b.tolist()
        ([10.0, 10.0, 10.0], [20.0, 20.0, 20.0])
    """
    return Recording()


def push_many(
    calls: Iterable[tuple[Any, ...]],
    *,
    name: str = "push_many",
    on_conflict: Literal["raise", "wait", "ignore"] = "raise",
) -> Op[None]:
    """Pushes several calls as one op.

    Parameters
    ----------
    calls : iterable of tuples
        Of each call the function and its arguments, as for `push`: ``(fill, tn.overwrite(a))``. A call runs
        after each earlier one that uses some of its bytes, unless both only read them; others may run at
        the same time.
    name : str
        The name of the op in messages. A failure has the name of its function.
    on_conflict : {'raise', 'wait', 'ignore'}
        As for `Recording.replay`.

    Returns
    -------
    Op
        It is done when all calls have ended, and fails as a whole: see `Recording`. Its result is None.

    Raises
    ------
    LeaseConflict, MovedError
        As `push`. Nothing was queued.
    ValueError, TypeError, BufferError
        Invalid arguments.
    """
    with record() as recording:
        for call in calls:
            if not isinstance(call, tuple) or not call:
                raise TypeError(f"calls has {call!r}: it must be a tuple of a function and its arguments")
            recording.push(*call)
    return recording.replay(name=name, on_conflict=on_conflict)
