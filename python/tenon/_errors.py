# SPDX-License-Identifier: Apache-2.0
"""The exceptions of Tenon, and its log. In other cases it raises the built-in exceptions: ValueError,
TypeError, BufferError, IndexError, MemoryError, TimeoutError."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import logging


class TenonError(Exception):
    """Base class of the exceptions that Tenon defines."""


class OpError(TenonError):
    """User code failed: an op, a native function or a generator.

    Attributes
    ----------
    code : int
        The result of the function; 0 if it failed in another way.
    op : str or None
        The name of the function or op.
    site : str or None
        The line that pushed the op.
    kind : str or None
        For a feed: ``"failed"``, ``"died"`` (the worker process ended) or ``"hung"`` (it took longer than
        ``fill_timeout``).
    epoch, index : int or None
        For a feed: the batch.
    worker, pid : int or None
        For a feed: the worker, and its process if it is a process.
    exit_signal, exit_code : int or None
        For a feed: the signal or the exit code of the process. Both are None if the process did not end, or
        if other code of the program has waited for it.
    """

    op: str | None = None
    site: str | None = None
    kind: str | None = None
    epoch: int | None = None
    index: int | None = None
    worker: int | None = None
    pid: int | None = None
    exit_signal: int | None = None
    exit_code: int | None = None

    def __init__(self, message: str = "", code: int = 0) -> None:
        super().__init__(message, code)
        self.code = code

    def __str__(self) -> str:
        return str(self.args[0])


class LeaseConflict(TenonError):
    """A holder of the memory excludes the requested access. The message names the holder and the line of the
    program that took it."""


class LeaseEscaped(TenonError):
    """A view outlived the lease or the op's body under which it was taken."""


class LeaseEscapedWarning(UserWarning):
    """A block begins to write memory that a view of an earlier block of the same thread still shows."""


class DeadlockError(TenonError):
    """The wait would never end, because what it waits for waits for a lease of the caller."""


class MovedError(TenonError):
    """The memory was moved out of the array."""


class OwnerDied(TenonError):
    """A process died while it held shared memory for writing. The bytes may be half written.

    Attributes
    ----------
    pid : int
        The process that died.
    """

    def __init__(self, message: str = "", pid: int = 0) -> None:
        super().__init__(message, pid)
        self.pid = pid

    def __str__(self) -> str:
        return str(self.args[0])


_GONE = ("", "opened", "expired", "revoked", "sender gone", "receivers gone", "ended")


class MessageGone(TenonError):
    """A message of a `TensorPool` can be opened no more.

    Attributes
    ----------
    reason : str
        'opened' (as often as it may be), 'expired' (its deadline), 'revoked', 'sender gone', 'receivers
        gone', or 'ended': it has ended so long ago that the reason is not known any more.
    """

    def __init__(self, message: str = "", reason: str | int = "ended") -> None:
        if isinstance(reason, int):
            reason = _GONE[reason] if 0 < reason < len(_GONE) else "ended"
        super().__init__(message, reason)
        self.reason = reason

    def __str__(self) -> str:
        return str(self.args[0])


_kind: type[Exception]
for _kind in (*TenonError.__subclasses__(), TenonError, LeaseEscapedWarning):
    _kind.__module__ = "tenon"  # tracebacks, pickles and the documentation show the public name


class _Log:
    """The logger of Tenon. Its first message imports `logging`, which takes a fifth of the time of the import
    of the package."""

    def debug(self, text: str, *values: object, exc_info: bool = False) -> None:
        _logger().debug(text, *values, exc_info=exc_info, stacklevel=2)

    def warning(self, text: str, *values: object) -> None:
        _logger().warning(text, *values, stacklevel=2)

    def error(self, text: str, *values: object) -> None:
        _logger().error(text, *values, stacklevel=2)


def _logger() -> logging.Logger:
    import logging

    return logging.getLogger("tenon")


log = _Log()


def copied(error: BaseException) -> BaseException:
    """A copy of an error, to be raised another time. It does not get the frames of the original."""
    copy = type(error)(*error.args)
    copy.__dict__.update(error.__dict__)
    copy.__cause__ = error.__cause__
    return copy


def is_of_user(error: BaseException) -> bool:
    """Whether other code than that of the package has raised a caught error, such as the handler of a signal
    that came in a call. Then it is for the caller, whatever its class is."""
    trace = error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_globals.get("__name__", "").partition(".")[0] != "tenon":
            return True
        trace = trace.tb_next
    return False


def is_of_handler(error: BaseException) -> bool:
    """Whether the handler of a signal has raised it."""
    import signal

    codes = set()
    for number in signal.valid_signals():
        handler = signal.getsignal(number)
        codes.add(getattr(handler, "__code__", None) or getattr(type(handler).__call__, "__code__", None))
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code not in codes:
        trace = trace.tb_next
    return trace is not None


def text_of(error: BaseException) -> str:
    """The type and text of any exception, also of one whose text cannot be made. It can be encoded as
    UTF-8."""
    try:
        text = type(error).__name__
        if reason := str(error):
            text += f": {reason}"
    except BaseException as reason:
        text = f"{type(error).__name__}, whose text cannot be made ({type(reason).__name__})"
    return _printable(text)


def traceback_text(error: BaseException) -> str:
    """The traceback and text of any exception. It can be encoded as UTF-8, also if a name of a file in it has
    surrogates, which `os.fsdecode` makes."""
    try:
        import traceback

        return _printable("".join(traceback.format_exception(error)).rstrip())
    except BaseException:
        return text_of(error)


def describe(error: BaseException, views: list[Any], function: object = None) -> str:
    """The text of an error that the body of an op raised, with its traceback. The error drops its frames.

    Parameters
    ----------
    error : BaseException
    views : list of numpy.ndarray
        The arrays of the body. The list is emptied, and they become arrays without elements. Those that only
        the error refers to release the memory, as do arrays over them.
    function : object
        The body.
    """
    text = traceback_text(error)
    links = _linked(error)
    for link in links:
        link.__traceback__ = None
    if views:
        _end_views(links, views, function)
    return text


def _printable(text: str) -> str:
    return text.encode("utf-8", "backslashreplace").decode("utf-8").replace("\0", "\\x00")


def _linked(error: BaseException) -> list[BaseException]:
    """The error, its causes and contexts, and the members of groups: each once."""
    found: dict[int, BaseException] = {}
    rest: list[BaseException | None] = [error]
    while rest:
        link = rest.pop()
        if link is None or id(link) in found:
            continue
        found[id(link)] = link
        rest += [link.__cause__, link.__context__]
        if isinstance(link, BaseExceptionGroup):
            rest += link.exceptions
    return list(found.values())


def _end_views(links: list[BaseException], views: list[Any], function: object) -> None:
    from . import _core

    numbers = set(map(id, views))
    held: dict[int, list[Any]] = {}  # arrays over the views, each in a list
    parts: dict[int, Any] = {}  # tuples and dictionaries, each once: several errors may have the same
    for link in links:
        if isinstance(link, AttributeError) and _stands_on(link.obj, numbers):
            link.obj = None
        for part in (_args_of(link), _dict_of(link)):
            parts[id(part)] = part
    for part in parts.values():
        values = list(part.values() if type(part) is dict else part)
        while values:
            holder = [values.pop()]
            if _stands_on(holder[0], numbers):
                held.setdefault(id(holder[0]), holder)
    holder = []
    containers = list(parts.values())
    for key in numbers:
        held.pop(key, None)
    while held:
        holder = held.popitem()[1]
        _core.empty_view(holder[0], False, function)  # first: another thread may look at it before the count
        _core.empty_if_alone(holder, containers, function)
        holder = []
    while views:
        _core.empty_view(views[-1], False, function)
        _core.empty_if_alone(views, containers, function)
        views.pop()


# Also if the class of an error overrides them.
_args_of = BaseException.__dict__["args"].__get__
_dict_of = BaseException.__dict__["__dict__"].__get__


def _stands_on(value: Any, numbers: set[int]) -> bool:
    """Whether it is one of the arrays whose identities are given, or an array over one."""
    import numpy as np

    while isinstance(value, np.ndarray):
        if id(value) in numbers:
            return True
        value = value.base
    return False
