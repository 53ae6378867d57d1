# SPDX-License-Identifier: Apache-2.0
"""The engine that runs ops: its selection, its limits, and ops at a fork and at the exit."""

from __future__ import annotations

import atexit
import functools
import os
import sys
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Any

from .. import _core
from .._array import passing
from .._errors import log
from .._values import INT32_MAX, count, text_for_c

_EXIT_SECONDS = 1.5
_FORK_SECONDS = 1.0  # how long a fork waits for bodies that run


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


def _check_debug() -> None:
    """Logs what is unknown in TENON_DEBUG, and would have no effect."""
    wanted = os.environ.get("TENON_DEBUG", "")
    for topic in wanted.split(","):
        if topic not in ("", "0", "1", "leases", "fields", "values"):
            log.warning(
                "TENON_DEBUG is %r: %r is unknown, and selects no checks of leases or fields. It must be 0, "
                "1, or 'leases', 'fields' and 'values' with commas between them",
                wanted,
                topic,
            )


_check_debug()

# A fork during a body would leave half-written memory in the child.
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
        log.warning("ops are left behind at exit: %s", error)


_AT_PROCESS_END: list[Callable[[], None]] = []


def call_at_process_end(function: Callable[[], None]) -> None:
    """Calls the function at the end of each process of multiprocessing, after its ops and its threads, except
    daemon threads."""
    _AT_PROCESS_END.append(function)


def _finish() -> None:
    """At the end of a process of multiprocessing, where threads may still push ops."""
    try:
        _core.wait_all(_EXIT_SECONDS)
    except Exception as error:
        log.warning("ops are left behind at the end of a process: %s", error)
    _core.report_failures()


def _complete_main_thread() -> None:
    """A process that was forked in a thread which Python had not started, such as one of a feed, has a main
    thread without the lock that CPython 3.11 and 3.12 want at its end. Later versions give it one."""
    main: Any = threading.main_thread()
    if getattr(main, "_tstate_lock", main) is None:
        main.__class__ = threading._MainThread  # type: ignore[attr-defined]
        main._daemonic = False
        main._set_tstate_lock()


def _end_process() -> None:
    """After the threads that feed queues."""
    _complete_main_thread()
    threading._shutdown()  # type: ignore[attr-defined]  # as multiprocessing does after this
    for function in _AT_PROCESS_END:
        function()
    passing.pass_on()


_is_registered = False  # with multiprocessing
_has_task_failed = False


def has_task_failed() -> bool:
    """An exception has ended the task of this process of multiprocessing. It is still handled meanwhile, if
    the process runs CPython 3.13 or earlier."""
    return _has_task_failed or isinstance(sys.exc_info()[1], Exception)


def _watch_task(process: Any) -> None:
    run = process.run

    def watched() -> None:
        try:
            run()
        except Exception:
            global _has_task_failed
            _has_task_failed = True
            raise

    process.run = watched


def _finish_with_multiprocessing() -> None:
    """Forked processes of multiprocessing end without atexit. They run finalizers, after they have cleared
    those of the parent."""
    global _is_registered
    util = sys.modules.get("multiprocessing.util")
    if util is None or _is_registered:
        return
    _is_registered = True

    def register(_: Any = None) -> None:
        util.Finalize(None, _finish, exitpriority=0)
        util.Finalize(None, _end_process, exitpriority=-100)
        _watch_task(process.current_process())

    process = sys.modules["multiprocessing.process"]
    util.register_after_fork(_finish_with_multiprocessing, register)
    if getattr(
        process.current_process(), "_inheriting", False
    ):  # spawned: it does not run register_after_fork
        bootstrap = process.BaseProcess._bootstrap

        def begin(self: Any, *arguments: Any, **options: Any) -> Any:
            _watch_task(self)
            return bootstrap(self, *arguments, **options)

        process.BaseProcess._bootstrap = begin
        register()
    elif process.parent_process() is not None:
        register()  # this process has begun, and its task imports the package


os.register_at_fork(before=_finish_with_multiprocessing)
_finish_with_multiprocessing()
