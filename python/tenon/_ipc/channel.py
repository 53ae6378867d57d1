# SPDX-License-Identifier: Apache-2.0
"""Channels: slots of shared memory that pass from producers to consumers."""

from __future__ import annotations

import contextlib
import gc
import os
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from types import FrameType
from typing import TYPE_CHECKING, Any, Literal, Never, NoReturn

from .. import _answers, _core
from .._array.fields import Fields, FieldsLike, checks_fields, described, unwritten_text
from .._array.share import Shared, settings
from .._core import ChannelCalls, NativeItem, NDArray, loan_field, received_field
from .._errors import LeaseConflict, LeaseEscaped, is_of_handler, is_of_user
from .._signatures import set_signature
from .._sync.endings import end_views, release_retained
from .._sync.lease import where_views_are_kept
from .._values import count, flag, seconds
from . import membership
from .elements import nbytes_from, whole_pages
from .objects import ObjectItem, ObjectLoan, Reader, Writer, axes_of, nbytes_with_parts

if TYPE_CHECKING:
    import asyncio

_MODES = ("queue", "broadcast", "latest")
_WHEN_FULL = ("wait", "drop_oldest", "raise", "keep")
_ON_DEATH = ("raise", "wait")
_RECEIVES = ("every", "latest")
_POLL_SECONDS = 0.005


def _one_of(value: Any, name: str, choices: tuple[str, ...]) -> int:
    if value not in choices:
        raise ValueError(f"{name} is {value!r}: it must be one of {', '.join(choices)}")
    return choices.index(value)


class Channel(ChannelCalls, membership.Member):
    """Passes arrays, or with ``nbytes=`` any objects, from producer processes to consumer processes.

    With a schema, items are filled and read in place, without a copy. With ``nbytes=``, `send` copies the
    arrays of an object once, into the slot of the item, and `recv` returns an object whose large arrays lie
    there.

    A process becomes a producer with its first `loan`, and a consumer with its first `recv`. It may be both.
    When a process ends, in whatever way, its items are lost, and its slots become free. At the normal end of
    a Python process its channels are closed. Any other end of a producer is a death (`OwnerDied`).

    Parameters
    ----------
    schema : mapping of str to (dtype, shape), or Schema
        The fields of each item. Exclusive with ``nbytes``.
    slots : int
        The number of items that exist at a time, over all processes; 1 to 4095. Default: 8, with ``nbytes``
        256. With ``mode="latest"`` at least 3; a producer never waits if there are two slots more than
        readers.
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
    nbytes : int or str
        The channel passes any objects. Bytes of all items together, or a text such as ``"64 MiB"``. The
        memory is taken when items are written, and stays with their slots.
    largest : int or str, optional
        Bytes of the largest item; default: ``nbytes``; with ``mode="latest"`` a third, and at most half, as
        the newest item stays while the next one is written. ``slots`` times ``largest`` are addresses of each
        process, but no memory.
    exist_ok : bool
        Open the channel of this name if there is one, in one step with the look for it. ValueError if it has
        another schema, or another value of an argument that was given.
    on_death : {'raise', 'wait'}
        For this object as a consumer. 'raise': `recv` raises OwnerDied once for each death of a producer.
        'wait': it waits for a producer that comes back. EOFError is raised only if the last producer that has
        left has closed the channel.
    receives : {'every', 'latest'}, optional
        For this object as a consumer of a broadcast. 'every': each item, and producers wait for it. 'latest':
        the newest item if it is newer than the last one; no producer waits for it. Default: by ``mode``.
    inline : int or str
        With ``nbytes``: an object without an array of at least so many bytes is copied out by `recv`, so that
        it does not keep its slot.

    Raises
    ------
    ValueError
        Invalid names, shapes or numbers; the name is taken.
    TypeError
        An invalid dtype.
    MemoryError, OSError
        As `empty`. The slots get their memory when they are first lent, so `loan` raises them, too.
    """

    def __new__(cls, *_: Any, nbytes: int | str | None = None, **__: Any) -> Channel:
        return object.__new__(_ObjectChannel if nbytes is not None and cls is Channel else cls)

    def __init__(
        self,
        schema: FieldsLike | None = None,
        slots: int | None = None,
        name: str | Shared | None = None,
        mode: Literal["queue", "broadcast", "latest"] | None = None,
        when_full: Literal["wait", "drop_oldest", "raise", "keep"] | None = None,
        *,
        nbytes: int | str | None = None,
        largest: int | str | None = None,
        exist_ok: bool = False,
        on_death: Literal["raise", "wait"] = "raise",
        receives: Literal["every", "latest"] | None = None,
        inline: int | str = "16 KiB",
        **others: Never,
    ) -> None:
        if others:
            _answers.refuse(Channel.__init__, others, _answers.CHANNEL_OPTIONS)
        if (schema is None) == (nbytes is None):
            both = "None" if schema is None else "given"
            raise TypeError(
                f"schema and nbytes are {both}: a channel has a schema, or nbytes= for any objects"
            )
        if isinstance(schema, str):
            raise TypeError(f"schema is {schema!r}: it must be a mapping; use name={schema!r} for a name")
        if isinstance(schema, int):
            raise TypeError(f"schema is {schema!r}: it must be a mapping; use slots={schema!r} for a number")
        if nbytes is not None and not isinstance(self, _ObjectChannel):
            raise TypeError(f"{type(self).__name__} is a subclass of Channel: it needs a schema")
        numbers: tuple[int, int, int] = (
            count(slots if slots is not None else 8 if nbytes is None else 256, "slots", 1, 4095),
            _one_of(mode or "queue", "mode", _MODES),
            _one_of(when_full or "wait", "when_full", _WHEN_FULL),
        )
        options: Any = settings(True if name is None else name)
        exist_ok = flag(exist_ok, "exist_ok")
        if exist_ok and not options[0]:
            raise ValueError("exist_ok=True looks for the channel of a name: give it one")
        given: dict[str, Any] = {"slots": slots, "mode": mode, "when_full": when_full}
        if nbytes is None:
            if largest is not None:
                raise TypeError("largest= is an option of channels with nbytes=")
            fields = described(schema, "schema")
            with _answers.memory_advice("a smaller slots="):
                native = _core.NativeChannel.create(fields, *numbers, exist_ok, *options)
            given["schema"] = [(field, _core.dtype(kind), shape) for field, kind, shape in fields]
        else:
            given["nbytes"] = nbytes_from(nbytes, "nbytes")
            given["largest"] = None if largest is None else nbytes_from(largest, "largest")
            sizes = given["nbytes"], given["largest"] or 0
            with _answers.memory_advice("a smaller largest= or slots=, whose product are addresses"):
                native = _core.NativeChannel.create_bytes(*sizes, *numbers, exist_ok, *options)
        if exist_ok:
            _check_same(native, given, options[0])
        wishes = _wishes(on_death, receives, inline)
        if on_death == "wait" or receives is not None:
            native = _opened(native.memory(), *wishes[:2])
        self._open(native, *wishes)

    @classmethod
    def attach(
        cls,
        name: str,
        *,
        wait: float = 0.0,
        on_death: Literal["raise", "wait"] = "raise",
        receives: Literal["every", "latest"] | None = None,
        inline: int | str = "16 KiB",
    ) -> Channel:
        """Opens the channel that a process of this user shares under a name. wait: the seconds to wait for
        the name to appear. Errors are those of `tenon.attach`; ValueError if the name belongs to another
        object."""
        limit = time.monotonic() + seconds(wait, "wait")
        wishes = _wishes(on_death, receives, inline)
        while True:
            try:
                memory = _core.attach(name)
                break
            except FileNotFoundError:
                if time.monotonic() >= limit:
                    raise
            time.sleep(_POLL_SECONDS)
        return _open(memory, True, *wishes)

    def _open(
        self, native: _core.NativeChannel, on_death: str, receives: str | None, inline_nbytes: int
    ) -> None:
        self._open_items(native, inline_nbytes)  # fails if it is open
        self._native = native
        # The tasks of each event loop that wait for a descriptor.
        self._waiting: dict[tuple[asyncio.AbstractEventLoop, int], list[asyncio.Future[None]]] = {}
        options = native.options()
        self.slots: int = options[0]
        self.mode: str = _MODES[options[1]]
        self.when_full: str = _WHEN_FULL[options[2]]
        self.nbytes: int
        self.largest: int
        self.nbytes, self.largest = native.nbytes()
        self.on_death: str = on_death
        self.receives: str = receives or ("latest" if self.mode == "latest" else "every")
        self._wishes = on_death, receives, inline_nbytes
        self._inline_nbytes = inline_nbytes
        membership.add(self)

    def _open_items(self, native: _core.NativeChannel, inline_nbytes: int) -> None:
        self._field_names = names = tuple(field for field, _, _ in native.fields())
        numbers = {field: number for number, field in enumerate(names)}
        loan_class, received_class = Loan.with_fields(names), Received.with_fields(names)
        loan_class._numbers = received_class._numbers = numbers
        loan_class._check = checks_fields()
        self._open_calls(native, loan_class, received_class, loan_class._check)

    @property
    def schema(self) -> dict[str, tuple[_core.dtype, tuple[int, ...]]]:
        """Dtype and shape of each field."""
        return {field: (dtype, shape) for field, dtype, shape in self._native.fields()}

    def send(self, value: Any, timeout: float | None = None, **others: Never) -> None:
        """Sends a copy of an object: its arrays are copied once, into the slot of the item. With a schema: a
        mapping of all fields, or a received item that has them.

        Raises
        ------
        TimeoutError, LeaseConflict, MemoryError
            As `loan`.
        ValueError
            The object is larger than ``largest``; a field is missing, or has another shape.
        TypeError, AttributeError, pickle.PicklingError
            The object cannot be pickled, or has an array on a GPU. It takes no slot.
        """
        if others:
            self._refuse(Channel.send, others)
        self._send_fields(self._fields(value), timeout)

    async def asend(self, value: Any) -> None:
        """`send` for asyncio. It waits without a thread."""
        fields = self._fields(value)
        await self._taken(lambda timeout: self._send_fields(fields, timeout), "w")

    def _fields(self, value: Any) -> dict[str, Any]:
        """Of an item that is to be sent, checked before a slot is taken. value: a mapping, or an item."""
        names = self._field_names
        if isinstance(value, Fields):
            fields = {name: value[name] for name in value._names}
        else:
            try:
                fields = dict(value)
            except (TypeError, ValueError):
                raise TypeError(
                    f"an item of this channel is a mapping of its fields, such as {{{names[0]!r}: ...}}, and "
                    f"not a {type(value).__name__}: tn.Channel(nbytes=...) passes any objects"
                ) from None
        if missing := [name for name in names if name not in fields]:
            raise ValueError(f"field {missing[0]!r} is missing: an item has {', '.join(names)}")
        if len(fields) != len(names):
            (other, *_) = set(fields) - set(names)
            raise ValueError(f"{other!r} is no field: an item has {', '.join(names)}")
        return fields

    def _send_fields(self, fields: dict[str, Any], timeout: float | None) -> None:
        with self.loan(timeout) as item:
            for name, value in fields.items():
                field = item[name]
                try:
                    field[...] = value
                except ValueError as error:
                    _answers.explain_shape(name, field.shape, value, error)
                    raise

    def _refuse(self, function: Callable[..., Any], options: Mapping[str, Any]) -> NoReturn:
        if not options.keys().isdisjoint(self.schema):
            names = ", ".join(f"{name!r}: ..." for name in self.schema)
            raise TypeError(f"the fields of an item are a mapping: use ch.{function.__name__}({{{names}}})")
        _answers.refuse(function, options, _answers.SEND_OPTIONS)

    # The names of queue.Queue.

    @property
    def maxsize(self) -> int:
        """The number of slots."""
        return self.slots

    def put(self, value: Any, block: bool = True, timeout: float | None = None, **others: Never) -> None:
        """`send`; raises `queue.Full` where that raises TimeoutError, or LeaseConflict with
        ``when_full="raise"``."""
        import queue

        if others:
            self._refuse(Channel.put, others)
        send = self._sender(value)
        try:
            send(timeout if block else 0.0)
        except TimeoutError as error:
            if _is_for_caller(error):
                raise
            raise queue.Full from None
        except LeaseConflict:
            if self.when_full != "raise":
                raise
            raise queue.Full from None

    def get(self, block: bool = True, timeout: float | None = None, **others: Never) -> Any:
        """`recv`; raises `queue.Empty` where that raises TimeoutError, and EOFError at the end of the
        channel."""
        import queue

        if others:
            self._refuse(Channel.get, others)
        try:
            return self.recv(timeout if block else 0.0)
        except TimeoutError as error:
            if _is_for_caller(error):
                raise
            raise queue.Empty from None

    def put_nowait(self, value: Any) -> None:
        """``put(value, block=False)``."""
        self.put(value, False)

    def get_nowait(self) -> Any:
        """``get(block=False)``."""
        return self.get(False)

    def qsize(self) -> int:
        """How many items are ready to be received: in a broadcast, those that some consumer has not received,
        and in mode "latest" 1 from the first one on. Other processes may change that at any time."""
        return self.stats()["ready"]

    def empty(self) -> bool:
        """Whether `qsize` is 0."""
        return self.qsize() == 0

    def full(self) -> bool:
        """Whether each slot is in use or has an item. With ``nbytes=``, `put` also waits for room
        for the bytes of its object, which this does not show."""
        now = self.stats()
        # In a broadcast, an item may be both.
        busy = (now["ready"], now["in_use"])
        return (sum(busy) if self.mode == "queue" else max(busy)) >= self.slots

    def _sender(self, value: Any) -> Callable[[float | None], None]:
        fields = self._fields(value)
        return lambda timeout: self._send_fields(fields, timeout)

    def __iter__(self) -> Iterator[Any]:
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

        polls = _core.WILL_RETRY if mode == "w" and self.when_full != "raise" else 0.0
        await asyncio.sleep(0)  # other tasks run, and can cancel this one, even if each item is ready
        while True:
            try:
                return take(timeout=polls)
            except TimeoutError as error:
                if _is_for_caller(error):
                    raise
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

    def __aiter__(self) -> AsyncIterator[Any]:
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
        free), 'deaths' of producers, and calls 'refused', which failed because there was no room. Current
        numbers: slots 'ready' to be received, slots 'in_use', processes that are 'producers' and
        'consumers'. Bytes: 'nbytes' of all items together, at most; 'used' by items that are ready or held;
        'committed', the memory of the slots; 'largest_sent', of the largest item that was sent."""
        return self._native.statistics()

    def __reduce__(self) -> tuple[Any, ...]:
        return _received, (self._native.memory(), *self._wishes)

    def __deepcopy__(self, memo: object) -> Channel:
        # As a copy and a pickle: the memory is shared.
        return _open(self._native.memory(), True, *self._wishes)

    def __repr__(self) -> str:
        now = self.stats()
        return (
            f"<tenon.Channel of {self.slots} slots, mode={self.mode!r}: {now['ready']} ready, "
            f"{now['in_use']} in use, {now['producers']} producers, {now['consumers']} consumers>"
        )


class _ObjectChannel(Channel):
    """A channel of any objects."""

    __qualname__ = "Channel"

    def _open_items(self, native: _core.NativeChannel, inline_nbytes: int) -> None:
        facts = {"_inline_nbytes": inline_nbytes, "_usual_nbytes": 0}
        self._loan_class: Any = type("ObjectLoan", (ObjectLoan,), facts)
        self._open_calls(native, self._loan_class, ObjectItem, False)

    @property
    def schema(self) -> dict[str, tuple[_core.dtype, tuple[int, ...]]]:
        """It has none."""
        return {}

    def loan(self, timeout: float | None = None, nbytes: int | str | None = None) -> Any:
        """Loans a slot for arrays that are filled in place::

            with ch.loan() as item:
                x = item.empty((1080, 1920, 3), "u1")
                grab_into(x.numpy())
                item.send({"x": x, "k": k})

        If the block ends without `send`, the slot is free again. nbytes: of the arrays, so that `loan` waits
        for their memory; else the first `empty` does. Errors are those of the loans of other channels."""
        item = self._usual_loan() if nbytes is None else None
        if item is None:
            size = 0 if nbytes is None else nbytes_from(nbytes, "nbytes")
            item = self._loan_bytes(nbytes_with_parts(size, self.largest, whole_pages(1)), timeout)
        item._begin(self, timeout)
        return item

    async def aloan(self, nbytes: int | str | None = None) -> Any:
        """`loan` for asyncio: ``with await ch.aloan() as item``. A cancelled task takes no slot."""
        return await self._taken(lambda timeout: self.loan(timeout, nbytes), "w")

    def _usual_loan(self) -> Any:
        """A slot whose memory is warm for another item like the last one, or None."""
        try:
            return self._loan_bytes(self._loan_class._usual_nbytes, _core.WILL_RETRY)
        except (TimeoutError, LeaseConflict, MemoryError) as error:
            if _is_for_caller(error):
                raise
            return None

    def send(self, value: Any, timeout: float | None = None, **others: Never) -> None:
        if others:
            self._refuse(_ObjectChannel.send, others)
        self._send_written(Writer(value, self._inline_nbytes), timeout)

    async def asend(self, value: Any) -> None:
        writer = Writer(value, self._inline_nbytes)
        await self._taken(lambda timeout: self._send_written(writer, timeout), "w")

    def _sender(self, value: Any) -> Callable[[float | None], None]:
        writer = Writer(value, self._inline_nbytes)
        return lambda timeout: self._send_written(writer, timeout)

    def _send_written(self, writer: Writer, timeout: float | None) -> None:
        item = self._loan_bytes(writer.nbytes, timeout)
        try:
            writer.write(item._bytes())
            item._send_item()
        finally:
            item._release()

    def recv(self, timeout: float | None = None, *, copy: bool = False) -> Any:
        """Receives the next object. Its arrays of ``inline`` bytes or more lie in the slot of the item, which
        becomes free with the last of them and their views: in a queue writable, else read-only (tensors of
        PyTorch are copies there). copy: they are writable copies, and the slot is free at once. Errors are
        those of other channels, and what the classes of the object raise: then the object is lost."""
        item = ChannelCalls.recv(self, timeout)
        content: NDArray | None = None
        try:
            content = item._bytes()
            reader = Reader(content)
            if reader.is_complete:
                content = None
            # The item ends with this frame. A call of it here could raise what the handler of a signal does.
            return reader.read(content, copy, self.mode == "queue" or reader.is_complete)
        except Exception as error:
            content = None
            if is_of_handler(error):
                item._put_back(error)
            _clear_own_frames(error)  # which have the arrays of the object
            with contextlib.suppress(AttributeError, TypeError):
                error._is_of_object = True  # type: ignore[attr-defined]
            item._release()
            raise
        except BaseException as error:  # nobody has seen the object
            content = None
            item._put_back(error)
            raise

    async def arecv(self, *, copy: bool = False) -> Any:
        """`recv` for asyncio. It waits without a thread. A cancelled task receives no object."""
        return await self._taken(lambda timeout: self.recv(timeout, copy=copy), "r")


_ObjectChannel.__name__ = "Channel"
set_signature(Channel, Channel.__init__, is_method=True)  # that of __new__ shows nothing
_answers.answer(Channel, _answers.CHANNEL)
_answers.answer(_ObjectChannel, {"an item has any size: use ch.send(item)": "resize rows attachment"})


def _is_for_caller(error: BaseException) -> bool:
    """Whether an error says something else than that there is nothing: the handler of a signal has raised it,
    or the class of an object that was read. A subclass that calls the method of this one is no such code."""
    return is_of_user(error) and (is_of_handler(error) or hasattr(error, "_is_of_object"))


def _clear_own_frames(error: BaseException) -> None:
    """Those of the package: who keeps the error keeps the variables of the others."""
    trace = error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_globals.get("__name__", "").startswith("tenon."):
            with contextlib.suppress(RuntimeError):  # it is executed
                trace.tb_frame.clear()
        trace = trace.tb_next


def _check_same(native: _core.NativeChannel, given: dict[str, Any], name: str) -> None:
    """That a channel which may have existed before is as the arguments that were given say."""
    slots, mode, when_full = native.options()
    nbytes, largest = native.nbytes()
    found = {
        "slots": slots,
        "mode": _MODES[mode],
        "when_full": _WHEN_FULL[when_full],
        "nbytes": nbytes,
        "largest": largest,
        "schema": None if nbytes else [(field, kind, tuple(shape)) for field, kind, shape in native.fields()],
    }
    for argument, value in given.items():
        if value is None:
            continue
        other = found[argument]
        if argument == "schema" and other is not None:
            value = [(field, kind, axes_of(shape)) for field, kind, shape in value]
        is_size = argument in ("nbytes", "largest")
        if value != other and not (is_size and other and 0 <= other - value < _PAGE):
            raise ValueError(
                f"the channel named {name!r} exists with {argument}={other!r}, and not {value!r}"
            )


_PAGE = os.sysconf("SC_PAGE_SIZE")  # sizes are in whole pages


def _wishes(on_death: str, receives: str | None, inline: int | str) -> tuple[str, str | None, int]:
    """Of an object as a consumer, checked."""
    _one_of(on_death, "on_death", _ON_DEATH)
    if receives is not None:
        _one_of(receives, "receives", _RECEIVES)
    return on_death, receives, nbytes_from(inline, "inline")


def _opened(memory: NDArray, on_death: str, receives: str | None) -> _core.NativeChannel:
    native = _core.NativeChannel.open(memory, on_death == "wait", receives == "latest")
    mode = _MODES[native.options()[1]]
    if mode == "latest" and receives == "every":
        raise ValueError("receives is 'every', and a channel of mode 'latest' keeps the newest item only")
    return native


def _open(
    memory: NDArray,
    is_member: bool = False,
    on_death: str = "raise",
    receives: str | None = None,
    inline_nbytes: int = 16 << 10,
) -> Channel:
    """is_member: consumers are told of the death of this process also before its first loan."""
    native = _opened(memory, on_death, receives)
    channel: Channel = object.__new__(_ObjectChannel if native.nbytes()[0] else Channel)
    channel._is_member = is_member
    channel._open(native, on_death, receives, inline_nbytes)
    return channel


def _received(memory: NDArray, *wishes: Any) -> Channel:
    from .._array.pickle import opened_or_lost

    channel: Channel = opened_or_lost(Channel, lambda memory: _open(memory, True, *wishes), memory)
    return channel


class _Items:
    """The items of a channel until its end. An exception, such as that of Ctrl-C or a task that is cancelled,
    ends a wait but not the iteration, as it would that of a generator."""

    def __init__(self, channel: Channel) -> None:
        self._channel: Channel | None = channel

    def __iter__(self) -> _Items:
        return self

    def __next__(self) -> Any:
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

    async def __anext__(self) -> Any:
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
        return super()._missing(name) + _answers.about_length(name)

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
