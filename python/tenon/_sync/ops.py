# SPDX-License-Identifier: Apache-2.0
"""Ops that were pushed, and their failures."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, TypeVar

from .. import _core
from .._core import NativeOp
from .._errors import OpError, log
from .tasks import Signal, current_task, number_of

_T_co = TypeVar("_T_co", covariant=True)


class Op(NativeOp[_T_co]):
    """Work that was pushed. In asyncio, ``await op`` returns its result.

    Attributes
    ----------
    name : str
    """

    __slots__ = ("__weakref__",)  # many ops may wait

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
        self._wait(timeout)
        error = self._error()
        if error is not None:
            raise error

    def result(self, timeout: float | None = None) -> _T_co:
        """Waits, as `wait` does, and returns the result of the op's function."""
        self.wait(timeout)
        return self._result()

    def exception(self, timeout: float | None = None) -> OpError | None:
        """Waits and returns the error of the op; None if it succeeded."""
        self._wait(timeout)
        return self._error()

    def _error(self) -> OpError | None:
        failure = self._failure()
        return None if failure is None else op_error(failure)

    def __await__(self) -> Generator[Any, None, _T_co]:
        if not self.done():
            task = current_task()
            waiting = self._begin_await(number_of(task))
            try:
                done = Signal(waiting.report)
                self._on_done(done.set)
                yield from done.wait()
            finally:
                waiting.end()
        return self.result()

    def __repr__(self) -> str:
        return f"<tenon.Op {self.name!r}, {'done' if self.done() else 'pending'}>"


def op_error(failure: tuple[str, str, str, int, BaseException | None]) -> OpError:
    """The exception with the reason why values are invalid."""
    message, op, site, code, cause = failure
    where = f" (pushed at {site})" if site else ""
    text = f"op {op!r} failed{where}: {message}"
    if op == "write()":  # a block or lease: its user may not know ops
        text = f"the values are invalid{where.replace('pushed', 'in a lease taken')}: {message}"
    error = OpError(text, code)
    error.op, error.site = op, site or None
    error.__cause__ = cause
    return error


def report_unseen(failure: tuple[str, str, str, int, BaseException | None]) -> None:
    """Logs the failure of an op that no call has raised, and that none can raise any more."""
    if not getattr(failure[4], "_is_raised_here", False):
        log.error("the failure of an op was never retrieved: %s", op_error(failure))


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
