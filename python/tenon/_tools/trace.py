# SPDX-License-Identifier: Apache-2.0
"""`trace`: a timeline of this process."""

from __future__ import annotations

import atexit
import os

from .. import _core
from .._errors import log
from .._values import count, path_for_c

_running: trace | None = None


class trace:
    """Records ops, leases, fills and slots of feeds, and waits, until `stop` or the end of a ``with`` block.
    Perfetto (ui.perfetto.dev), chrome://tracing and ``tenon plot`` can show the file.

    A process can run one trace at a time. A trace that still runs at the interpreter's exit is written then.
    A forked child has no trace.

    Parameters
    ----------
    path : str or path
        The file, which is created or truncated now and written at the end.
    capacity : int
        The largest number of recorded events: ops, leases, fills, batches in slots, waits. Later events are
        only counted, so start the trace close to the part that you want to examine. Each event takes about
        400 bytes of memory until the end of the trace.

    Attributes
    ----------
    path : str or bytes
    events, lost : int
        The number of recorded events, and of events after the trace was full. Available after `stop`.

    Raises
    ------
    OSError
        The file cannot be written. FileNotFoundError: the folder does not exist.
    ValueError
        A trace is already running; ``capacity`` is not from 1 to 4,194,303.
    """

    def __init__(self, path: str | os.PathLike[str], *, capacity: int = 200_000) -> None:
        global _running
        name = os.fsencode(path_for_c(os.fsdecode(path), "the path of a trace"))
        capacity = count(capacity, "capacity", 1, 4_194_303)
        self.path: str = os.fspath(path)
        self.events: int = 0
        self.lost: int = 0
        _core.begin_trace(name, capacity)
        _running = self

    def stop(self) -> None:
        """Ends the trace and writes the file. Idempotent.

        Raises
        ------
        OSError
            The file could not be written.
        """
        global _running
        if _running is not self:
            return
        _running = None
        self.events, self.lost = _core.end_trace()
        if self.lost:
            log.warning(
                "trace %s: %d events came when it was full, and are not in it: begin it later, or give it "
                "more than capacity=%d",
                self.path,
                self.lost,
                self.events,
            )

    def __enter__(self) -> trace:
        return self

    def __exit__(self, kind: object, error: BaseException | None, frames: object) -> None:
        try:
            self.stop()
        except (OSError, MemoryError) as failure:
            if error is None:
                raise
            log.warning("%s", failure)

    def __repr__(self) -> str:
        state = "running" if _running is self else f"{self.events} events, {self.lost} lost"
        return f"<tenon.trace {os.fsdecode(self.path)!r}: {state}>"


def _forget() -> None:
    global _running
    _running = None


os.register_at_fork(after_in_child=_forget)


@atexit.register
def _stop_at_exit() -> None:
    if _running is None:
        return
    try:
        _running.stop()
    except Exception as error:
        log.warning("%s", error)
