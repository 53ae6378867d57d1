# SPDX-License-Identifier: Apache-2.0
"""Feeds of other processes: the consumer's side of what `serving` describes."""

from __future__ import annotations

import gc
import json
import math
import mmap
import os
import sys
import time
import weakref
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from .. import _core
from .._array.creation import from_pointer
from .._array.fields import Fields
from .._array.share import HEAD_MARK
from .._core import NativeLentMapping, NDArray, Schema
from .._errors import OwnerDied, TenonError, is_of_user, log
from .._ipc.channel import Channel, Received
from .._ipc.channel import _open as open_channel
from .._values import seconds, text_for_c
from .epochs import Iteration
from .forms import Forms
from .resuming import check_state
from .serving import (
    CHANNEL_FIELDS,
    EPOCH_AT,
    HAS_BEGUN_AT,
    HEAD,
    IS_CLOSED_AT,
    IS_FILLING_AT,
    MARK_AT,
    NBYTES_AT,
    PLACE_AT,
    ROUND_AT,
    WORDS,
    bytes_of,
    failure_of,
    head_name,
    position_of,
    words_of,
)

_ALIGNMENT = 64  # of a field in a slot
_LOOK_SECONDS = 0.02
_SLICE_SECONDS = 1.0  # between two looks whether the server died when its end of the batch channel was closed
_MAKING_SECONDS = 2.0  # that a head may take to be made

# By process and feed. A channel counts a process as one consumer, so a second one would get no part of it.
_attached: weakref.WeakValueDictionary[tuple[int, str], AttachedFeed] = weakref.WeakValueDictionary()


class AttachedFeed(Forms):
    """A feed that another process serves, made by `Feed.attach`.

    One iteration is one epoch, as for a `Feed`: batches in the order of their index, on the feed's slots. The
    batches of a broadcast are read-only. A slot is filled again when no array, view or tensor of its batch
    exists. A loop that ends early leaves the rest of the epoch to the other consumers and to the next loop.

    All consumers count the same epochs. So a consumer that has iterated makes the others wait at the end of
    the next epoch until it iterates again. `close` a consumer that is no longer used.

    Attributes
    ----------
    name, mode : str
    schema : Schema
    batches : int or None
        The number of batches of an epoch.
    timeout : float or None
        The seconds that ``next`` waits for a batch.
    pid : int
        The process that has the feed.
    """

    def __init__(self, name: str, timeout: float | None, wait: float) -> None:
        self._link: _Link | None = None  # for __del__, when the next lines raise
        text_for_c(name, "name")
        if timeout is not None:
            timeout = seconds(timeout, "timeout", ", or None")
        wait = seconds(wait, "wait")
        self._key = os.getpid(), name
        if self._key in _attached:
            raise ValueError(
                f"this process is attached to feed {name!r} already: use that, or close it first"
            )
        self.name = name
        self.timeout = timeout
        head, about = _find(name, wait)
        self.schema: Schema = Schema(
            {field: (dtype, tuple(shape)) for field, dtype, shape in about["fields"]}
        )
        self.batches: int | None = about["batches"]
        self.mode: str = about["mode"]
        self.pid: int = about["pid"]
        channels = ("batch_channel", "end_channel", "seek_channel")
        self._link = _Link(
            words_of(head),
            _Slots(name, about, is_writable=self.mode == "queue"),
            *(open_channel(_core.open_array(bytes.fromhex(about[channel]))) for channel in channels),
        )
        self._position = _Position(about["order"])
        self._round: int | None = None  # the epoch that comes next here; None: it has not begun to iterate
        self._notice: Received | None = None
        self._is_over = False
        self._is_late = False  # the loop began after the end
        self._has_batch = False  # the loop has got one
        self._next_item: Received | None = None  # of a later epoch than that of the loop; for the next loop
        self._died: OwnerDied | None = None
        _attached[self._key] = self

    def _opened(self) -> _Link:
        link = self._link
        if link is None:
            raise ValueError(f"feed {self.name!r} was closed here")
        return link

    def _iterate(self, convert: Callable[[Any], Any], device: str | None = None) -> Iterator[Any]:
        if device is None or device == "cpu":
            return _Epoch(self, convert)
        return _Epoch(self, lambda batch: convert(_on_device(batch, device)))

    def state_dict(self) -> dict[str, Any]:
        """The position behind the last batch that was delivered to this process, as `Feed.state_dict` of the
        serving feed returns it. Load it in the feed that is served next, there or here.

        Raises
        ------
        ValueError
            The position is not known: no batch was delivered to this process yet, or several consumers share
            the batches of a queue. ``state_dict()`` of the serving feed has its position.
        """
        position = self._position
        if position.wanted is not None:
            return dict(position.wanted)
        way_out = "take state_dict() of the feed in the process that serves it"
        link = self._link
        is_one_of_many = link is not None and link.batch_channel.stats()["consumers"] > 1
        if self.mode == "queue" and (position.has_gap or is_one_of_many):
            raise ValueError(
                f"several consumers share the batches of feed {self.name!r}: what one of them got is no "
                f"position of the epoch; {way_out}"
            )
        if position.state is None:
            raise ValueError(f"feed {self.name!r} has delivered no batch here yet; {way_out}")
        return dict(position.state)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restores a position, before the first iteration: the feed, which must not have begun to send,
        begins there when the consumers that it waits for have begun to iterate. Each consumer that loads a
        state must load the same one.

        If the feed began elsewhere, the first ``next`` raises TenonError.

        Raises
        ------
        TypeError
            ``state`` is no dict.
        ValueError
            The feed has begun to send, or this consumer has iterated, or was closed; ``state`` has no
            ``epoch`` or ``next``, or is of a feed that delivers other batches.
        """
        words = self._opened().words
        check_state(state, self._position.identity)
        if self._round is not None or (words[HAS_BEGUN_AT] and not words[IS_CLOSED_AT]):
            raise ValueError(
                f"feed {self.name!r} has begun an epoch, so it cannot continue elsewhere: load the state in "
                "a new consumer before the feed sends its first batch (serve(consumers=) says how many "
                "consumers it waits for), or in the feed that is served"
            )
        self._position.wanted = dict(state)

    def _send(self, wanted: dict[str, Any], link: _Link) -> None:
        data = bytes_of(wanted)
        with link.seek_channel.loan(timeout=self.timeout) as item:
            if len(data) > item.state.nbytes:
                raise ValueError(
                    f"the state has {len(data)} bytes, and feed {self.name!r} has none or smaller ones"
                )
            item.nbytes[...] = len(data)
            item.state[: len(data)] = memoryview(data)

    def _check_wanted(self, is_first: bool) -> None:
        """Whether the epoch has begun where it was wanted."""
        wanted, self._position.wanted = self._position.wanted, None
        if wanted is None:
            return
        words = self._opened().words
        began = int(words[EPOCH_AT]), int(words[PLACE_AT])
        if not is_first or began != (wanted["epoch"], wanted["next"]):
            raise TenonError(
                f"feed {self.name!r} has not continued at batch {wanted['next']} of epoch "
                f"{wanted['epoch']}, which this consumer has loaded: it began at batch {began[1]} of epoch "
                f"{began[0]}, or another consumer of its queue got that batch. Load the state in the feed "
                "that is served"
            )

    def close(self) -> None:
        """Detaches from the feed. Other consumers get the batches that this one did not receive. Batches that
        it has received stay valid, and keep the name of the feed. Idempotent."""
        link, self._link = self._link, None
        if link is None:
            return
        if _attached.get(self._key) is self:
            del _attached[self._key]
        live = self._live_epoch()
        if live is not None:
            live._end()
        self._notice = self._next_item = None
        for channel in (link.batch_channel, link.end_channel, link.seek_channel):
            channel.close()

    def __enter__(self) -> AttachedFeed:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<tenon.AttachedFeed {self.name!r} of process {self.pid}, {self.mode}>"

    def _join(self) -> None:
        """Begins a loop. Takes the role of a consumer in the channels at the first one."""
        link = self._opened()
        if self._died is not None:
            raise OwnerDied(str(self._died), self._died.pid)
        # The first loop may begin after the end: it gets what is left.
        self._is_late = bool(link.words[IS_CLOSED_AT])
        has_nothing = self._is_late and self._round is None and link.batch_channel.stats()["ready"] == 0
        if has_nothing or (self._is_late and self._is_over):
            raise self._served_no_more()
        self._is_over = self._has_batch = False
        if self._round is None:
            if self._position.wanted is not None:
                self._send(self._position.wanted, link)  # before the server sees this consumer
            # In this order: the channel keeps later notices for this process, so none is missed. A notice may
            # be of an epoch that ends now, and items of that epoch may be left. They are received first: if
            # this consumer leaves, the next one gets the rest of them, and the notice.
            _become_consumer(link.end_channel)
            self._round = int(link.words[ROUND_AT])
            _become_consumer(link.batch_channel)

    def _look_for_end(self, link: _Link) -> None:
        if self._notice is not None:
            return
        try:
            notice = link.end_channel.recv(timeout=0)
        except (TimeoutError, EOFError):
            return
        except OwnerDied as error:
            raise self._owner_died(error.pid) from None
        self._notice = notice

    def _has_ended(self) -> bool:
        """Whether the epoch has ended. Requires that no item is left that was sent before the notice. The
        notice may be of an epoch that ended before this consumer came."""
        if self._notice is not None and self._notice.head.numpy()[0] < self._round:
            self._notice = None
        return self._notice is not None

    def _receive(self) -> Received | None:
        """The next item of the batch channel; None: the epoch is over, or the feed is not served any more."""
        item, self._next_item = self._next_item, None
        if item is not None:
            return item
        link, timer = self._opened(), _core.ReportTimer()
        batches, words = link.batch_channel, link.words
        end = None if self.timeout is None else time.monotonic() + self.timeout
        collected = 0  # the oldest generation that was: the young ones first, they take little time
        while True:
            now = time.monotonic()
            left = _SLICE_SECONDS if end is None else min(_SLICE_SECONDS, max(0.0, end - now))
            is_told, is_closed = self._notice is not None, bool(words[IS_CLOSED_AT])
            try:
                return batches.recv(timeout=left)
            except TimeoutError as error:
                if is_of_user(error):
                    raise
                if is_told and self._has_ended():
                    return None
                if is_closed:
                    self._note_over()
                    return None
                if collected < 2 and batches.stats()["in_use"] == batches.slots:
                    is_late = end is not None and time.monotonic() >= end
                    collected = 2 if collected or is_late else 1
                    gc.collect(collected)  # batches in dead cycles are not what the consumer wants to keep
            except OwnerDied as error:
                if is_of_user(error):
                    raise
                raise self._owner_died(error.pid) from None
            except EOFError as error:
                if is_of_user(error):
                    raise
                if self._link is None:
                    raise ValueError(f"feed {self.name!r} was closed here") from None
                self._look_for_end(link)
                if self._has_ended():
                    return None
                if words[IS_CLOSED_AT]:
                    self._note_over()
                    return None
                continue
            self._look_for_end(link)
            if end is not None and time.monotonic() >= end:
                raise TimeoutError(self._waiting_text(link, timer.seconds()))
            if timer.is_due():
                log.warning("%s", self._waiting_text(link, timer.seconds()))

    def _served_no_more(self) -> ValueError:
        return ValueError(f"feed {self.name!r} is not served any more by process {self.pid}")

    def _note_over(self) -> None:
        self._is_over = True
        if self._is_late and not self._has_batch:
            raise self._served_no_more()

    def _waiting_text(self, link: _Link, seconds: float) -> str:
        slots, used = link.batch_channel.slots, link.batch_channel.stats()["in_use"]
        text = f"no batch of feed {self.name!r} (process {self.pid}) for {seconds:.1f} s: "
        if link.words[IS_FILLING_AT]:
            return text + "it waits for its generator"
        if used < slots:
            return text + "it waits for other consumers, or has not begun to serve"
        return text + (
            f"all {slots} batches that may be out are in the hands of its consumers. Let go of those that "
            "are done with, and keep copies of fields (.copy()); or make the feed with more slots, if no "
            "more are kept than now"
        )

    def _owner_died(self, pid: int) -> OwnerDied:
        self._died = OwnerDied(
            f"process {pid or self.pid}, which served feed {self.name!r}, has died; "
            "the batches that this process has stay valid",
            pid or self.pid,
        )
        return self._died

    def _end_round(self) -> None:
        """Ends the epoch of the notice. Raises its failure."""
        notice, self._notice = self._notice, None
        if notice is None:
            return
        told, nbytes, *numbers = notice.head.numpy().tolist()
        self._position.note(numbers, notice.state)
        self._position.has_gap = False
        text = _part(notice.text, nbytes)
        self._round = told + 1
        notice.release()
        del notice
        self._check_wanted(True)
        if text:
            raise failure_of(text)

    def _is_of_later(self, item: Received) -> bool:
        """Whether the item is of a later epoch than the loop, which has ended without a notice: the server
        was closed, and the feed is served anew. The next loop gets the item."""
        if not self._has_batch or int(item.head.numpy()[0]) <= (self._round or 0):
            return False
        self._next_item = item
        return True

    def _batch_of(self, item: Received) -> AttachedBatch:
        numbers = item.head.numpy().tolist()
        self._has_batch = True
        self._round, epoch, index, attached, sequence = numbers[:5]
        self._check_wanted(sequence == 0)
        attachment = _part(item.attachment, attached) if attached else b""
        slots = self._opened().slots
        owner = (item, slots)
        arrays, k = [], HEAD
        for _, dtype, shape in self.schema.fields:
            place, lengths = numbers[k], numbers[k + 1 : k + 1 + len(shape)]
            k += 1 + len(shape)
            arrays.append(slots.array(place, lengths, dtype, owner))
        return AttachedBatch(self.schema.names, tuple(arrays), epoch, index, attachment)

    def _note(self, item: Received) -> None:
        """Notes that its batch is delivered."""
        numbers = item.head.numpy().tolist()
        self._position.note_batch(numbers[4], numbers[5:HEAD], item.state)


class _Epoch(Iteration):
    """The one live iterator of an attached feed."""

    _way_to_end = ""
    _way_to_several = ", and a process attaches to it once"

    def __init__(self, feed: AttachedFeed, convert: Callable[[Any], Any]) -> None:
        super().__init__()
        self._replace(feed)
        feed._join()
        self._begin(feed, convert)

    def _step(self, *_: object) -> Any:
        feed = self._feed
        if feed is None:
            self._stop()
        item = None
        try:
            self._is_in_next = True
            item = feed._receive()
            if item is not None and not feed._is_of_later(item):
                converted = self._convert(feed._batch_of(item))
                feed._note(item)
                return converted
            self._end()
            feed._end_round()
            feed._check_wanted(False)
        except BaseException as error:
            # The next call goes on after Ctrl-C, after a TimeoutError (the caller may release batches), and
            # after an exception of a signal handler in the wait.
            is_over = isinstance(error, Exception) and not isinstance(error, TimeoutError)
            if is_over and (item is not None or not is_of_user(error)):
                self._end()
            elif item is not None:
                feed._next_item = item
            item = None  # the traceback has this frame
            raise
        finally:
            self._is_in_next = False
        raise StopIteration


class AttachedBatch(Fields):
    """A batch of a feed that another process serves, with the attributes of a `Batch`."""

    _noun = "the batch"
    arrays: tuple[NDArray, ...]
    epoch: int
    index: int
    attachment: bytes

    def __init__(
        self, names: tuple[str, ...], arrays: tuple[NDArray, ...], epoch: int, index: int, attachment: bytes
    ) -> None:
        self.__dict__.update(_names=names, arrays=arrays, epoch=epoch, index=index, attachment=attachment)

    @property
    def rows(self) -> int:
        return self.arrays[0].shape[0]

    def keys(self) -> tuple[str, ...]:
        return self._names

    def _array(self, name: str | int) -> NDArray:
        if not isinstance(name, str):
            return self.arrays[name]
        if name not in self._names:
            raise KeyError(name)
        return self.arrays[self._names.index(name)]

    def __len__(self) -> int:
        return len(self.arrays)

    def __iter__(self) -> Iterator[NDArray]:
        return iter(self.arrays)

    def __contains__(self, key: object) -> bool:
        return key in self._names

    def __repr__(self) -> str:
        return f"<tenon.AttachedBatch {self.index} of epoch {self.epoch}: {', '.join(self._names)}>"


def _on_device(batch: AttachedBatch, device: str) -> AttachedBatch:
    arrays = tuple(array.to(device) for array in batch.arrays)
    return AttachedBatch(batch.keys(), arrays, batch.epoch, batch.index, batch.attachment)


# A mapping that keeps a descriptor closes that number at its end, also if it is another file's by then.
_WITHOUT_FILE: Any = {"trackfd": False} if sys.version_info >= (3, 13) else {}


class _Slots:
    """The slots of a feed of another process, mapped. Lives as long as an array on them."""

    def __init__(self, name: str, about: dict[str, Any], is_writable: bool) -> None:
        import numpy as np

        pid, self._at = about["pid"], about["at"]
        self._pid: int = pid
        path, fd = f"/proc/{pid}/fd/{about['fd']}", -1

        def is_same(file: os.stat_result) -> bool:
            return bool([file.st_dev, file.st_ino] == about["file"])

        try:
            if is_same(os.stat(path)):  # another file is not opened: that may block, or act on a device
                mode = os.O_RDWR if is_writable else os.O_RDONLY
                fd = os.open(path, mode | os.O_CLOEXEC)
        except OSError as error:
            raise FileNotFoundError(
                f"the memory of feed {name!r} cannot be opened ({error.strerror}): process {pid}, which "
                "serves it, has ended, or is not seen from here"
            ) from None
        if fd < 0:
            raise FileNotFoundError(
                f"process {pid}, which served feed {name!r}, has ended, or has closed the file of its memory"
            )
        try:
            if not is_same(os.fstat(fd)):
                raise FileNotFoundError(f"process {pid}, which served feed {name!r}, has ended")
            if not 0 < about["nbytes"] <= os.fstat(fd).st_size - self._at:
                raise ValueError(f"feed {name!r} has slots that do not lie in the memory of process {pid}")
            access = mmap.PROT_READ | (mmap.PROT_WRITE if is_writable else 0)
            self._nbytes: int = about["nbytes"]
            mapping = mmap.mmap(
                fd, self._nbytes, flags=mmap.MAP_SHARED, prot=access, offset=self._at, **_WITHOUT_FILE
            )
            self._address: int = np.frombuffer(mapping, "u1").ctypes.data
            self._lent = NativeLentMapping(mapping, fd, self._at, self._address, self._nbytes)
        finally:
            os.close(fd)
        self._is_readonly = not is_writable

    def array(self, place: int, shape: list[int], dtype: Any, owner: Any) -> NDArray:
        """ValueError if it does not lie in the slots: another process has written the numbers."""
        offset = place - self._at
        nbytes = (math.prod(shape) * dtype.bits * dtype.lanes + 7) // 8
        if min(shape, default=0) < 0 or not 0 <= offset <= self._nbytes - nbytes or offset % _ALIGNMENT:
            raise ValueError(
                f"process {self._pid} has sent an array of shape {tuple(shape)} and dtype {dtype} at byte "
                f"{offset} of its feed's {self._nbytes} bytes: it does not lie there"
            )
        return from_pointer(self._address + offset, shape, dtype, owner=owner, readonly=self._is_readonly)


class _Position:
    """The position behind the last batch that was delivered here, and the one that was loaded."""

    def __init__(self, identity: dict[str, Any]) -> None:
        self.identity = identity
        self.state: dict[str, Any] | None = None  # none was delivered
        self.has_gap = False  # others have got batches between those that were delivered here
        self.wanted: dict[str, Any] | None = None  # was loaded, and no batch has come since
        self._sequence = -1  # of the last batch

    def note(self, numbers: list[int], states: Any) -> None:
        """numbers, states: of an item, as `ServedFeed.put_position` returns and writes them."""
        epoch, place, is_indexed, nbytes = numbers
        if nbytes:
            self.state = position_of(_part(states, nbytes))
            return
        self.state = {"epoch": epoch, "next": place} | self.identity
        if not is_indexed:
            self.state["indexed"] = False

    def note_batch(self, sequence: int, numbers: list[int], states: Any) -> None:
        self.has_gap = self.has_gap or (self.state is not None and sequence != self._sequence + 1)
        self._sequence = sequence
        self.note(numbers, states)


class _Link(NamedTuple):
    """What the feed shares with this process, until it is closed here. The name of the feed stays taken while
    a process has it."""

    words: Any  # of the head
    slots: _Slots
    batch_channel: Channel
    end_channel: Channel
    seek_channel: Channel


def _part(field: NDArray, nbytes: int) -> bytes:
    """The first bytes of a field of an item. ValueError if it has fewer: another process has written the
    number."""
    if not 0 <= nbytes <= field.nbytes:
        raise ValueError(f"an item of a feed is damaged: it counts {nbytes} bytes of {field.nbytes}")
    return bytes(field.numpy()[:nbytes])


def _become_consumer(channel: Channel) -> None:
    try:
        channel._native.wait(0)
    except TimeoutError:
        pass


def _find(name: str, wait: float) -> tuple[NDArray, dict[str, Any]]:
    """The head of a feed, and the description in it."""
    began = time.monotonic()
    while True:
        left = began + wait - time.monotonic()
        try:
            head = _core.attach(head_name(name))
        except FileNotFoundError:
            found = None if left > 0 else _fields_under(name)
            # The server makes the batch channel before the head.
            is_half_there = found == CHANNEL_FIELDS and left > -_MAKING_SECONDS
            if left > 0 or is_half_there:
                time.sleep(_LOOK_SECONDS)
                continue
            if found is None or found == CHANNEL_FIELDS:
                raise FileNotFoundError(
                    f"no feed is served under the name {name!r} by a process of this user that is seen here"
                ) from None
            raise ValueError(f"{name!r} is the name of something that is shared, but of no feed") from None
        about = _read_head(head)
        if about is not None:
            return head, about
        if left < -_MAKING_SECONDS:
            raise ValueError(f"{head_name(name)!r} is shared, but is not the head of a feed")
        time.sleep(_LOOK_SECONDS)


def _fields_under(name: str) -> list[str] | None:
    """The fields of the channel with this name; []: something else has it; None: nothing has."""
    try:
        memory = _core.attach(name)
    except FileNotFoundError:
        return None
    try:
        return [field for field, _, _ in _core.NativeChannel.open(memory).fields()]
    except ValueError:
        return []


def _read_head(head: NDArray) -> dict[str, Any] | None:
    """None: it is not complete."""
    if head.ndim != 1 or head.itemsize != 1 or head.nbytes < WORDS * 8:
        return None
    with head.read() as content:
        data = content.tobytes()
    words = memoryview(data)[: WORDS * 8].cast("q")
    if words[MARK_AT] != HEAD_MARK:
        return None
    found: dict[str, Any] = json.loads(data[WORDS * 8 : WORDS * 8 + words[NBYTES_AT]])
    return found
