# SPDX-License-Identifier: Apache-2.0
"""The channels that are open in this process, and what other processes learn of its end.

From its first use of a channel on, the process is a member of all of them: if it dies, consumers are told,
also where it was about to send for the first time. At its normal end it leaves them, as if it closed them.
An exception that ends the program is a death.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
import weakref

from .. import _core
from .._sync.engine import call_at_process_end, has_task_failed


class Member:
    """A channel that is open."""

    _native: _core.NativeChannel
    _is_member = True
    _is_member_in_children = True  # that are forked


_open: weakref.WeakSet[Member] = weakref.WeakSet()
_has_used = False
_has_failed = False  # an exception has ended the program
_inherited: object = None  # the exception that the parent has shown


def add(channel: Member) -> None:
    _open.add(channel)
    if _has_used:
        _join(channel)


def _join(channel: Member) -> None:
    if channel._is_member:
        # A process is stopped, or too many have the memory.
        with contextlib.suppress(TimeoutError, OSError):
            channel._native.join()


def _begin_use() -> None:
    global _has_used
    _has_used = True
    for channel in list(_open):
        _join(channel)


def _begin_process() -> None:
    global _has_used, _inherited
    _has_used = False
    for channel in list(_open):
        if not channel._is_member_in_children:
            _open.discard(channel)
    _inherited = getattr(sys, "last_value", None)
    _core.call_before_use_of_channels(_begin_use)


def _end(error: object = None) -> None:
    global _has_failed
    _has_failed = _has_failed or isinstance(error, Exception) or has_task_failed()
    for channel in list(_open):
        if _has_failed:
            channel._native.keep()  # else the interpreter would close it
        else:
            channel._native.close()


@atexit.register
def _end_at_exit() -> None:
    error = getattr(sys, "last_value", None)
    is_shown = error is _inherited or hasattr(sys, "ps1")  # it has not ended the program
    _end(None if is_shown else error)


call_at_process_end(_end)
os.register_at_fork(after_in_child=_begin_process)
_begin_process()
