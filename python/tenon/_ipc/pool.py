# SPDX-License-Identifier: Apache-2.0
"""A pool of tensors for messages between processes, whatever carries the messages."""

from __future__ import annotations

import atexit
import contextlib
import gc
import os
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Iterator
from types import EllipsisType
from typing import Any, Literal, Never

from .. import _answers, _core
from .._array import passing
from .._core import MessageLimits, NativePool, NDArray
from .._core import loads as loads
from .._errors import LeaseConflict, LeaseEscaped, log
from .._sync.endings import release_retained
from .._sync.engine import call_at_process_end
from .._sync.lease import where_views_are_kept
from .._typing import DTypeLike
from .._values import seconds
from .elements import nbytes_from
from .served_pool import PoolServer, close_servers

WhenFull = Literal["wait", "raise", "inline"]
_INLINE_NBYTES = 16 << 10


class TensorPool(NativePool):
    """Memory for the arrays of messages between processes of one host. The messages are bytes, which the
    program sends as it likes: over ZeroMQ, gRPC, a queue or a pipe. The arrays stay where they are::

        pool = tn.TensorPool("8 GiB")
        x = pool.empty((n, d), "bf16")                  # filled in place
        socket.send(pool.dumps({"pixels": x, "ids": ids, "meta": meta}, tag=request))

        message = tn.loads(socket.recv())               # in another process: no copy

    The memory of a message is free when it has been opened as often as ``opens`` says, or its deadline has
    passed, or its receivers have ended, or it was revoked; and the last array of those who opened it is gone.
    If a process is killed, what it held is free within a second.

    A pool belongs to the process that made it. A forked child that uses it gets a pool of its own with the
    same options. Dropping the object revokes no message.

    Parameters
    ----------
    budget : int or str
        Bytes, or a text such as ``"8 GiB"`` or ``"512 MB"``. Memory is taken when it is used.
    inline : int or str
        Arrays of fewer bytes travel in the message.
    idle : int or str
        How much free memory stays ready for the next messages. What is more is returned to the system after a
        second. A pinned pool keeps all of it.
    timeout : float, optional
        The deadline of messages that are sent without one, in seconds. None: no deadline.
    when_full : {'wait', 'raise', 'inline'}
        What `dumps` does if the pool has no room: it waits; raises MemoryError, which names the holders; or
        puts the arrays into the bytes. `empty` and `put` wait or raise.
    linger : float
        How many seconds a process waits at its normal exit for messages that no process has opened. A child
        of `multiprocessing` passes them to its parent first.
    pinned : bool
        The memory is pinned for copies between it and GPUs, in pieces when they are first used, here and in
        each process that uses a GPU when it opens a message. Then ``tensor.is_pinned()`` is true, and
        ``tensor.to("cuda", non_blocking=True)`` returns at once: the memory is used again after the work that
        the process had submitted when its last view went. See `graph_capture`.

    Raises
    ------
    ValueError, TypeError
        An invalid option.
    OSError
        There is no free file descriptor, or the driver refuses to pin memory.
    FileNotFoundError
        ``pinned=True``, and there is no CUDA driver.
    """

    def __init__(
        self,
        budget: int | str,
        *,
        inline: int | str = _INLINE_NBYTES,
        idle: int | str = "256 MiB",
        timeout: float | None = None,
        when_full: WhenFull = "wait",
        linger: float = 5.0,
        pinned: bool = False,
        **others: Never,
    ) -> None:
        global _most_linger
        if others:
            _answers.refuse(TensorPool.__init__, others, _answers.POOL_OPTIONS)
        options = (
            nbytes_from(budget, "budget"),
            nbytes_from(idle, "idle"),
            None if timeout is None else seconds(timeout, "timeout", ", or None"),
            nbytes_from(inline, "inline"),
            pinned,
        )
        with _answers.memory_advice("a smaller budget="):
            super().__init__(*options)
        self.when_full: WhenFull = _core.checked_policy(when_full)
        self._room = threading.RLock()  # of the message that waits for its blocks; a handler may send, too
        _most_linger = max(_most_linger or 0.0, seconds(linger, "linger"))
        _pools.add(self)

    def empty(
        self, shape: Any, dtype: DTypeLike = "float32", *, when_full: WhenFull | None = None
    ) -> NDArray:
        """A new array in the pool with undefined elements, in C order, aligned to 64 bytes. The `dumps` that
        sends it ends it. Raises MemoryError, which names the holders, if the pool has no room and does not
        wait for it."""
        waits = self._policy(when_full) == "wait"
        try:
            return self._empty(shape, dtype, None if waits else 0.0)
        except MemoryError as error:
            _note_refusal(self, error)
            raise

    def put(self, data: Any, *, when_full: WhenFull | None = None) -> NDArray:
        """A copy of an array of any library in the pool."""
        source = _shared(data)
        array = self.empty(source.shape, source.dtype, when_full=when_full)
        array[...] = source
        return array

    async def aput(self, data: Any, *, when_full: WhenFull | None = None) -> NDArray:
        """`put` for asyncio: a wait for room does not block the event loop."""
        source = _shared(data)
        policy = self._policy(when_full)
        array: NDArray = await self._later(lambda: self._empty(source.shape, source.dtype, 0.0), policy)
        array[...] = source
        return array

    def freeze(self, array: NDArray) -> NDArray:
        """A read-only array on the memory of an array of the pool, which ends. It may be sent repeatedly, and
        stays readable here."""
        if type(array) is not NDArray:
            raise TypeError(f"freeze() needs an array of the pool, and not a {type(array).__name__}")
        frozen: NDArray = self._without_views([array], lambda: self._freeze(array))
        return frozen

    async def adumps(
        self,
        value: Any,
        *,
        opens: int | None = 1,
        tag: str | int | None = None,
        timeout: float | EllipsisType | None = ...,
        receivers: int | Iterable[int] | None = None,
        when_full: WhenFull | None = None,
    ) -> bytes:
        """`dumps` for asyncio: a wait for room does not block the event loop."""
        limits = MessageLimits(opens, tag, timeout, receivers)
        policy = self._policy(when_full)
        message = self._dumps_plain(value, limits)
        if message is None:
            draft = _Draft(self, value)
            await self._later(lambda: draft.take_room(0.0, policy), policy)
            message = await self._later(lambda: draft.sent(limits), policy)
        return message

    async def _later(self, take: Callable[[], Any], policy: WhenFull) -> Any:
        import asyncio

        pauses = _pauses()
        while True:
            try:
                return take()
            except MemoryError as error:
                if policy != "wait" or not _may_pass(error):
                    _note_refusal(self, error)
                    raise
            await asyncio.sleep(next(pauses))

    def handle(
        self,
        array: Any,
        *,
        opens: int | None = 1,
        tag: str | int | None = None,
        timeout: float | EllipsisType | None = ...,
        receivers: int | Iterable[int] | None = None,
        when_full: WhenFull | None = None,
    ) -> bytes:
        """The message of one array, for serializers that the program has: bytes that `open` accepts.
        Parameters and errors are those of `dumps`."""
        from .packing import Packer

        if type(array) is NDArray and array.shared:
            raise TypeError("the array lies in shared memory and not in a pool: send array.copy()")
        if Packer(lambda _: True).number_of(array) is None:
            raise TypeError(f"a handle is of an array, and not of a {type(array).__name__}")
        return self.dumps(
            array, opens=opens, tag=tag, timeout=timeout, receivers=receivers, when_full=when_full
        )

    def revoke(self, tag: str | int | None = None, *, message: bytes | None = None) -> int:
        """Ends messages of this process that processes may still open: those with a tag, or one message.
        Processes that have opened them keep their arrays. Returns how many there were."""
        if (tag is None) == (message is None):
            raise TypeError("revoke() needs a tag or a message")
        return self._revoke(tag) if message is None else int(_core.revoke_message(bytes(memoryview(message))))

    def serve(
        self, path: str | os.PathLike[str], *, backlog: int = 64, group: str | int | None = None
    ) -> PoolServer:
        """Lets processes open messages of this pool that share neither the PID namespace nor ``/proc`` nor
        the user namespace with this one, as in other containers: they call `attach_pool` with the path.

        Parameters
        ----------
        path : str or os.PathLike
            Of a new Unix socket, in a directory that both see. Only processes of this user are answered, and
            those of the group. The socket of a process that has ended is replaced.
        backlog : int
            How many processes may wait for an answer.
        group : str or int, optional
            The name or the number of a group of this process. Processes in it are answered, too, whatever
            their user. They must be trusted as processes of this user: each of them can make this process
            crash, or run code as its user. A pool has one group at most.

        Raises
        ------
        OSError
            Another process serves at the path. It is not a socket. There is no ``/proc`` here: let this
            process attach to one that serves, and use `PoolLink.offer`.
        ValueError
            The path is longer than 107 bytes, or in no file system. There is no such group, this process is
            not in it, or the pool was served to another one.
        TimeoutError
            Another process makes a socket in the directory, and is stopped.
        """
        return PoolServer(self, path, backlog, group)

    def __repr__(self) -> str:
        now = self.stats()
        return f"<tenon.TensorPool: {now['used']} of {now['budget']} bytes used, {now['messages']} messages>"

    def __reduce__(self) -> Any:
        raise TypeError("a TensorPool belongs to its process: send messages of it (pool.dumps)")

    def _policy(self, when_full: WhenFull | None) -> WhenFull:
        policy: WhenFull = self.when_full if when_full is None else _core.checked_policy(when_full)
        return policy

    def _without_views(self, arrays: list[NDArray], call: Any) -> Any:
        """The result of a call that moves arrays of the pool, which fails while views of them exist."""
        try:
            return call()
        except LeaseConflict:
            gc.collect()  # views in reference cycles that nothing uses
            release_retained(is_error_near=True)
        try:
            return call()
        except LeaseConflict as error:
            where = where_views_are_kept(arrays)
            text = f"a view of an array of the pool still exists{where}, so the array stays: {error}"
            raise LeaseEscaped(text) from None


_answers.answer(TensorPool, _answers.POOL)


def _shared(data: Any) -> NDArray:
    if isinstance(data, dict):
        raise TypeError("put() takes one array: use message = pool.dumps({...}) for a dict of arrays")
    source: NDArray = _core.share(data)
    return source


def _pauses() -> Iterator[float]:
    """Seconds between attempts."""
    pause = 0.0005
    while True:
        yield pause
        pause = min(2 * pause, 0.01)


def _note_refusal(pool: TensorPool, error: MemoryError) -> None:
    """A call of the program fails with this error."""
    if _may_pass(error):
        pool._note(1, 0, 0)


def _may_pass(error: MemoryError) -> bool:
    """Whether a later attempt may succeed: the pool is full of blocks or messages."""
    return "the tensor pool" in str(error) and not isinstance(error, _NeverFits)


class _NeverFits(MemoryError):
    """No wait would help."""


class _Draft:
    """A message on its way."""

    def __init__(self, pool: TensorPool, value: Any) -> None:
        self._pool = pool
        from .packing import Draft  # which needs pickle

        self._draft = Draft(value, pool._owns)
        self._arrays: list[NDArray] = []
        self._inlined = 0  # bytes for which there was no room

    def take_room(self, wait: float | None, policy: WhenFull) -> None:
        packer = self._draft.packer
        places, small, blocks = packer.lay_out(self._pool.inline)
        try:
            lent = [array.nbytes for array in packer.lent if self._pool._owns(array) == 1]
            needed = sum(blocks) + max(lent, default=0)  # at least: several may be of the same memory
            if blocks and needed > self._pool.budget and needed > (budget := self._pool.stats()["budget"]):
                raise _NeverFits(
                    f"the arrays of the message take {needed} bytes, the pool has {budget}: give it a larger "
                    "budget="
                )
            # Two messages that wait for each other's blocks would wait forever. Others need no turn.
            with self._pool._room if wait is None and blocks else contextlib.nullcontext():
                taken = [self._pool._empty(nbytes, "uint8", wait) for nbytes in blocks]
        except MemoryError:
            if policy != "inline":
                raise
            self._inlined = sum(nbytes for memory, _, nbytes in places if memory >= 0)
            places, small, _ = packer.lay_out(float("inf"))
            taken = []
        self._draft.describe(places)
        self._draft.write(places, small, [array.numpy() for array in taken])
        self._arrays = packer.lent + taken

    def sent(self, limits: MessageLimits) -> bytes:
        arrays, draft = self._arrays, self._draft
        parts = draft.tree, draft.about, draft.pickled, draft.small
        message: bytes = self._pool._without_views(
            arrays, lambda: self._pool._dumps_parts(arrays, *parts, limits)
        )
        if self._inlined:
            self._pool._note(0, 1, self._inlined)
        return message


def dumps_parts(pool: TensorPool, value: Any, limits: MessageLimits, when_full: WhenFull | None) -> bytes:
    """`TensorPool.dumps` for objects that are not plain, or if the pool has too many messages."""
    policy = when_full or pool.when_full
    draft = _Draft(pool, value)
    pauses = _pauses()
    is_laid_out = False
    while True:
        try:
            if not is_laid_out:
                draft.take_room(None if policy == "wait" else 0.0, policy)
                is_laid_out = True
            return draft.sent(limits)
        except MemoryError as error:
            if policy != "wait" or not _may_pass(error):
                _note_refusal(pool, error)
                raise
        time.sleep(next(pauses))


_pools: weakref.WeakSet[TensorPool] = weakref.WeakSet()
_most_linger: float | None = None  # of the pools of this process; None: there are none, or it has ended


def open(handle: Any, *, writable: bool = True) -> Any:
    """The array of a `TensorPool.handle`. Parameters and errors are those of `loads`."""
    if isinstance(handle, str):
        raise TypeError(
            f"tn.open() takes the bytes of pool.handle(array), and not {handle!r}: use tn.attach(name) for "
            "shared memory with a name, and tn.load(file) for a file"
        )
    return loads(handle, writable=writable, arrays_only=True)


# ----------------------------------------------------------------------------- the end of a process


def _end() -> None:
    """Once: a spawned process calls it twice."""
    global _most_linger
    limit, _most_linger = _most_linger, None
    if limit is None:
        return
    passing.pass_on()
    left = _core.linger_pools(0.0)
    if left and limit:
        log.warning("%d messages of tensor pools are not opened: waiting up to %g s at the exit", left, limit)
        end = time.monotonic() + limit
        while left and time.monotonic() < end:
            time.sleep(0.01)
            left = _core.linger_pools(0.0)
    if left:
        log.warning("%d messages of tensor pools are lost: no process has opened them", left)
    close_servers()


def _begin_child() -> None:
    for pool in list(_pools):
        pool._begin_child()
        pool._room = threading.RLock()


call_at_process_end(_end)
atexit.register(_end)
os.register_at_fork(after_in_child=_begin_child)
