# SPDX-License-Identifier: Apache-2.0
"""Channels: slots of shared memory that pass from producers to consumers."""

from __future__ import annotations

import gc
import sys
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from types import FrameType
from typing import TYPE_CHECKING, Any, Literal

from .. import _core
from .._array.fields import Fields, FieldsLike, checks_fields, described, unwritten_text
from .._array.share import Shared, settings
from .._core import ChannelCalls, NativeItem, NDArray, loan_field, received_field
from .._errors import LeaseEscaped, is_of_user
from .._sync.endings import end_views, release_retained
from .._sync.lease import where_views_are_kept
from .._values import count
from . import membership

if TYPE_CHECKING:
    import asyncio

_MODES = ("queue", "broadcast", "latest")
_WHEN_FULL = ("wait", "drop_oldest", "raise", "keep")


class Channel(ChannelCalls, membership.Member):
    """Passes arrays from producer processes to consumer processes without a copy.

    A process becomes a producer with its first `loan`, and a consumer with its first `recv`. It may be both.
    When a process ends, in whatever way, its items are lost, and its slots become free. At the normal end of
    a Python process its channels are closed. Any other end of a producer is a death (`OwnerDied`).

    Parameters
    ----------
    schema : mapping of str to (dtype, shape), or Schema
    slots : int
        The number of items that exist at a time, over all processes; 1 to 4095. With ``mode="latest"`` at
        least 3; a producer never waits if there are two slots more than readers.
    name : str or Shared, optional
        The name for `attach` in other processes. None: other processes get the channel by its pickle.
    mode : {'queue', 'broadcast', 'latest'}
        'queue': each item goes to one consumer, writable. 'broadcast': each item goes to all consumers,
        read-only. 'latest': `recv` returns the newest item, read-only. Each `Channel` object that receives is
        a consumer; its threads share what it receives.
    when_full : {'wait', 'drop_oldest', 'raise', 'keep'}
        The behaviour of `loan` without a free slot. 'wait': waits; a broadcast without consumers drops the
        oldest item. 'drop_oldest': takes the slot of the oldest item that no process holds; in a broadcast,
        consumers that have not received it miss it.
        'raise': LeaseConflict; a broadcast as for 'wait'. 'keep': waits, also for the first consumer of a
        broadcast.

    Raises
    ------
    ValueError
        Invalid names, shapes or numbers; the name is taken.
    TypeError
        An invalid dtype.
    MemoryError, OSError
        As `empty`.
    """

    def __init__(
        self,
        schema: FieldsLike,
        slots: int = 8,
        name: str | Shared | None = None,
        mode: Literal["queue", "broadcast", "latest"] = "queue",
        when_full: Literal["wait", "drop_oldest", "raise", "keep"] = "wait",
    ) -> None:
        if mode not in _MODES:
            raise ValueError(f"mode is {mode!r}: it must be one of {', '.join(_MODES)}")
        if when_full not in _WHEN_FULL:
            raise ValueError(f"when_full is {when_full!r}: it must be one of {', '.join(_WHEN_FULL)}")
        slots = count(slots, "slots", 1, 4095)
        fields = described(schema, "schema")
        options = settings(True if name is None else name)
        assert options is not None
        self._open(
            _core.NativeChannel.create(
                fields, slots, _MODES.index(mode), _WHEN_FULL.index(when_full), *options
            )
        )

    @classmethod
    def attach(cls, name: str) -> Channel:
        """Opens the channel that a process of this user shares under a name. Errors are those of
        `tenon.attach`; ValueError if the name belongs to another object."""
        memory = _core.attach(name)
        return _open(memory, True)

    def _open(self, native: _core.NativeChannel) -> None:
        names = tuple(field for field, _, _ in native.fields())
        numbers = {field: number for number, field in enumerate(names)}
        loan_class, received_class = Loan.with_fields(names), Received.with_fields(names)
        loan_class._numbers = received_class._numbers = numbers
        loan_class._check = checks_fields()
        self._open_calls(native, loan_class, received_class, loan_class._check)  # fails if it is open
        self._native = native
        # The tasks of each event loop that wait for a descriptor.
        self._waiting: dict[tuple[asyncio.AbstractEventLoop, int], list[asyncio.Future[None]]] = {}
        options = native.options()
        self.slots: int = options[0]
        self.mode: str = _MODES[options[1]]
        self.when_full: str = _WHEN_FULL[options[2]]
        membership.add(self)

    @property
    def schema(self) -> dict[str, tuple[_core.dtype, tuple[int, ...]]]:
        """Dtype and shape of each field."""
        return {field: (dtype, shape) for field, dtype, shape in self._native.fields()}

    def __iter__(self) -> Iterator[Received]:
        """Iterates over the items until all producers have closed the channel."""
        return _Items(self)

    async def arecv(self) -> Received:
        """`recv` for asyncio. It waits without a thread. A cancelled task receives no item."""
        item: Received = await self._taken(self.recv, "r")
        return item

    async def aloan(self) -> Loan:
        """`loan` for asyncio: ``with await ch.aloan() as item``. A cancelled task takes no slot."""
        item: Loan = await self._taken(self.loan, "w")
        return item

    async def _taken(self, take: Callable[..., Any], mode: Literal["r", "w"]) -> Any:
        import asyncio

        await asyncio.sleep(0)  # other tasks run, and can cancel this one, even if each item is ready
        while True:
            try:
                return take(timeout=0)
            except TimeoutError:
                pass
            await self._news(mode)

    def fileno(self, mode: Literal["r", "w"] = "r") -> int:
        """A file descriptor for `select`, `selectors` and event loops. It is readable while `recv`, or with
        ``"w"`` `loan`, may have something to do, or after the channel was closed in this process. It stays
        readable until that call, with ``timeout=0``, finds nothing to do. So call it until then after each
        wait.

        The descriptor belongs to the channel and to this process. Do not read from it or close it. A forked
        child must call this method again. One thread serves up to 120 descriptors of a process.

        Raises
        ------
        OSError
            There is no free file descriptor.
        """
        if mode not in ("r", "w"):
            raise ValueError(f"mode is {mode!r}: it must be 'r' or 'w'")
        return self._native.fileno(mode == "w")

    async def _news(self, mode: Literal["r", "w"]) -> None:
        """Waits until the descriptor is readable."""
        import asyncio

        loop, fd = asyncio.get_running_loop(), self.fileno(mode)
        future = loop.create_future()
        waiting = self._waiting.setdefault((loop, fd), [])
        waiting.append(future)
        if len(waiting) == 1:
            loop.add_reader(fd, self._tell, loop, fd)
        try:
            await future
        finally:
            if self._waiting.get((loop, fd)) is waiting:  # cancelled before the descriptor was readable
                waiting.remove(future)
                if not waiting:
                    loop.remove_reader(fd)
                    del self._waiting[loop, fd]

    def _tell(self, loop: asyncio.AbstractEventLoop, fd: int) -> None:
        loop.remove_reader(fd)
        for future in self._waiting.pop((loop, fd)):
            if not future.done():
                future.set_result(None)

    def __aiter__(self) -> AsyncIterator[Received]:
        return _Items(self)

    def close(self) -> None:
        """Closes the channel for this process. Other consumers get the items that were sent, and then
        EOFError when all producers have closed. Items that this process has stay valid. Idempotent."""
        self._native.close()

    def __enter__(self) -> Channel:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def stats(self) -> dict[str, int]:
        """Counts since the channel was made: items 'sent', 'received' and 'dropped' (because no slot was
        free), and 'deaths' of producers. Current numbers: slots 'ready' to be received, slots 'in_use',
        processes that are 'producers' and 'consumers'."""
        return self._native.statistics()

    def __reduce__(self) -> tuple[Any, ...]:
        return _received, (self._native.memory(),)

    def __deepcopy__(self, memo: object) -> Channel:
        return _open(self._native.memory(), True)  # as a copy and a pickle: the memory is shared

    def __repr__(self) -> str:
        now = self.stats()
        return (
            f"<tenon.Channel of {self.slots} slots, mode={self.mode!r}: {now['ready']} ready, "
            f"{now['in_use']} in use, {now['producers']} producers, {now['consumers']} consumers>"
        )


def _open(memory: NDArray, is_member: bool = False) -> Channel:
    """is_member: consumers are told of the death of this process also before its first loan."""
    channel = object.__new__(Channel)
    channel._is_member = is_member
    channel._open(_core.NativeChannel.open(memory))
    return channel


def _received(memory: NDArray) -> Channel:
    from .._array.pickle import opened_or_lost

    channel: Channel = opened_or_lost(Channel, lambda memory: _open(memory, True), memory)
    return channel


class _Items:
    """The items of a channel until its end. An exception, such as that of Ctrl-C or a task that is cancelled,
    ends a wait but not the iteration, as it would that of a generator."""

    def __init__(self, channel: Channel) -> None:
        self._channel: Channel | None = channel

    def __iter__(self) -> _Items:
        return self

    def __next__(self) -> Received:
        if self._channel is not None:
            try:
                return self._channel.recv()  # no variable: it would hold the item beside that of the caller
            except EOFError as error:
                if is_of_user(error):
                    raise
                self._channel = None
        raise StopIteration

    def __aiter__(self) -> _Items:
        return self

    async def __anext__(self) -> Received:
        if self._channel is not None:
            try:
                return await self._channel.arecv()
            except EOFError as error:
                if is_of_user(error):
                    raise
                self._channel = None
        raise StopAsyncIteration


class Loan(Fields, NativeItem):
    """A slot to fill, with its fields as NumPy arrays; see `Channel.loan`. ``item.x = value`` writes the
    elements of field x."""

    _noun = "the item"
    _numbers: Mapping[str, int]  # of the channel
    _check: bool  # of the channel: an item with a field that was not used is not sent

    @classmethod
    def _property(cls, name: str, number: int) -> Any:
        return loan_field(name, number)

    def _array(self, name: str) -> Any:
        return self._view(self._numbers[name])

    def _end(self, frame: FrameType) -> bool:
        is_free = True
        for views in self._take_views():
            is_free &= end_views(views, frame)
        return is_free

    def _missing(self, name: object) -> str:
        if self._has_ended():
            return f"the item has no field {name!r} any more: it was sent or dropped"
        return super()._missing(name)

    def send(self) -> None:
        """Sends the item. The end of a ``with`` block does this automatically."""
        frame = sys._getframe(1)
        if self._check or not self._send_if_lone(frame):
            self._send(frame)

    def drop(self) -> None:
        """Frees the slot without sending it. Idempotent."""
        self._end(sys._getframe(1))
        self._release()

    def _send(self, frame: FrameType) -> None:
        viewed = self._viewed()
        if self._check and not self._has_ended() and len(viewed) < len(self._names):
            unwritten = [name for name, number in self._numbers.items() if number not in viewed]
            self._end(frame)
            self._release()
            raise ValueError(
                unwritten_text("the item", "item", self._names, unwritten) + ". The item was dropped"
            )
        where = ""
        if not self._end(frame):
            del frame
            gc.collect()  # views in reference cycles that nothing uses
            release_retained(is_error_near=True)
            where = where_views_are_kept([self._field_array(number) for number in viewed])
        try:
            self._send_item()
        except LeaseEscaped as error:
            if where:
                text = str(error).replace("still exists", f"still exists ({where.lstrip(',; ')})", 1)
                error.args = (text, *error.args[1:])
            raise

    def __enter__(self) -> Loan:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        frame = sys._getframe(1)
        if error is None and not self._check and self._send_if_lone(frame):
            return
        if error is not None:
            self._end(frame)
            self._release()
        elif not self._has_ended():
            self._send(frame)

    def __repr__(self) -> str:
        text = "an item that was sent or dropped" if self._has_ended() else ", ".join(self._names)
        return f"<tenon.Loan of {text}>"


class Received(Fields, NativeItem):
    """A received item, with its fields as arrays; see `Channel.recv`. ``item.x = value`` writes the elements
    of field x if the item is writable.

    Attributes
    ----------
    sequence : int
        The number of the item among all sent items, counted from 1.
    """

    _noun = "the item"
    _numbers: Mapping[str, int]

    @property
    def sequence(self) -> int:
        return self._sequence()

    @classmethod
    def _property(cls, name: str, number: int) -> Any:
        return received_field(name, number)

    def _array(self, name: str) -> NDArray:
        return self._kept_array(self._numbers[name])

    def release(self) -> None:
        """Releases the item now. Its arrays and views keep the slot as long as they exist."""
        self._release()

    def __enter__(self) -> Received:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def __repr__(self) -> str:
        return f"<tenon.Received {self.sequence} with {', '.join(self._names)}>"


__all__ = ["Channel", "Loan", "Received"]
