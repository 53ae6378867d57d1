# SPDX-License-Identifier: Apache-2.0
"""The exceptions of Tenon's own. Elsewhere it raises what Python users expect: ValueError, TypeError,
BufferError, IndexError, MemoryError, TimeoutError."""

import traceback


class TenonError(Exception):
    """Base class of the exceptions that only Tenon has."""


class OpError(TenonError):
    """Code of the user failed: a native function, a generator.

    Attributes
    ----------
    code : int
        What the function returned; 0 when it failed in another way.
    op : str or None
        The name of the function or op.
    site : str or None
        Where the op was pushed.
    """

    op: str | None = None
    site: str | None = None

    def __init__(self, message: str = "", code: int = 0) -> None:
        super().__init__(message, code)
        self.code = code

    def __str__(self) -> str:
        return str(self.args[0])


class LeaseConflict(TenonError):
    """Somebody holds the memory in a way that excludes what was asked for. The message says who, and since
    where."""


class LeaseEscaped(TenonError):
    """A view outlived the lease, or the op's body, under which it was taken."""


class DeadlockError(TenonError):
    """The wait would never end: what it waits for waits for a lease of the caller's own."""


class MovedError(TenonError):
    """The memory has been moved out of the array."""


def copied(error: BaseException) -> BaseException:
    """The same error, to be raised another time: without the frames that this one will lead to."""
    copy = type(error)(*error.args)
    copy.__dict__.update(error.__dict__)
    copy.__cause__ = error.__cause__
    return copy


def describe(error: BaseException) -> str:
    """The text of what the body of an op raised, with its traceback; the error lets go of its frames."""
    text = "".join(traceback.format_exception(error)).rstrip()
    link: BaseException | None = error
    while link is not None:
        link.__traceback__ = None
        link = link.__context__
    return text
