# SPDX-License-Identifier: Apache-2.0
"""Feeds whose batches go to other processes: the side that has the feed. `attached` is the other one.

Four objects are shared in addition to the slots, which lie in a memory file of the feed:

* the *batch channel*, under the name of the feed. Its items contain the positions of batches in the slots.
  The feed keeps a batch until the item is free again. Channels detect this also for killed processes.
* the *end channel*, a broadcast of one slot. Its item announces the end of an epoch. It can be sent again
  when every consumer has received it, and there was one.
* the *seek channel*, a queue from consumers to the server, with the states that
  `AttachedFeed.load_state_dict` got. The server reads it before the first batch.
* the *head*, an array under ``<name>.feed``: a description of the feed, and numbers that only the server
  writes.

Each item of the batch channel and of the end channel has the position of the feed after it, so a consumer
knows what it has been delivered.

At the end of an epoch the server sends the item of the end channel and closes its end of the batch channel. A
consumer that waits there, while no item is left, then receives from the end channel. The server opens the
batch channel again when all consumers have done so.
"""

from __future__ import annotations

import itertools
import json
import os
import re
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from .. import _core
from .._array.creation import zeros
from .._array.share import HEAD_MARK, HEAD_SUFFIX
from .._core import NDArray
from .._errors import LeaseConflict, OpError, OwnerDied, TenonError, is_of_user, log
from .._ipc.channel import Channel, Loan
from .._ipc.channel import _open as open_channel
from .._values import count, seconds
from .epochs import Epoch, OwnFeed
from .forms import itself

MODES = ("queue", "broadcast")
WORDS = 8
(
    MARK_AT,
    ROUND_AT,
    IS_CLOSED_AT,
    IS_FILLING_AT,
    NBYTES_AT,
    HAS_BEGUN_AT,  # the first batch is being made; where it began:
    EPOCH_AT,
    PLACE_AT,
) = range(WORDS)
TEXT_NBYTES = 16384  # of a failure
CHANNEL_FIELDS = ["head", "attachment", "state"]  # of the batch channel
HEAD = 9  # numbers of an item of the batch channel before those of its fields

SEEKS = 64  # states that consumers have loaded, and that the server has not read
_LOOK_SECONDS = 0.02

_numbers = itertools.count()


_NAME = re.compile(r"[A-Za-z0-9_.-]{1,95}")


def name_for(shared: bool | str, on_starved: str) -> str | None:
    """The name under which a feed is served; None: it is not."""
    if shared is False:
        return None
    if shared is not True and not isinstance(shared, str):
        raise TypeError(f"shared is {shared!r}: it must be False, True or a name")
    if shared == "":
        raise ValueError("shared is '': the name of a feed has at least one character")
    if shared is not True and not _NAME.fullmatch(shared):
        raise ValueError(
            f"shared is {shared!r}: the name of a feed has 1 to 95 letters, digits and the characters _ - ."
        )
    if on_starved not in ("wait", "raise"):
        raise ValueError(
            f"on_starved is {on_starved!r}, and the feed is shared: it keeps to its slots, as others map them"
        )
    return f"feed-{os.getpid()}-{next(_numbers)}" if shared is True else shared


def check(mode: str, epochs: int | None, consumers: int) -> None:
    """Checks the arguments of `Feed.serve`."""
    if mode not in MODES:
        raise ValueError(f"mode is {mode!r}: it must be one of {', '.join(MODES)}")
    if epochs is not None:
        count(epochs, "epochs")
    count(consumers, "consumers")


def head_name(name: str) -> str:
    return name + HEAD_SUFFIX


class Server:
    """One call of `Feed.serve`. The end of ``with feed.serve(background=True) as server: ...`` closes it.

    Attributes
    ----------
    name, mode : str
    epochs : int
        The number of finished epochs.
    batches : int
        The number of batches that were sent.
    """

    def __init__(self, served: ServedFeed, epochs: int | None, consumers: int) -> None:
        self.name: str = served.name
        self.mode: str = served.mode
        self.epochs: int = 0
        self.batches: int = 0
        self._served = served
        self._wanted = epochs
        self._consumers = consumers
        self._is_closing = False  # a threading.Event keeps its lock for ever if Ctrl-C comes as it is taken
        self._sending = threading.RLock()  # nothing is sent after close()
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None
        self._epoch: Epoch | None = None
        self._batch_channel: Channel | None = None
        self._end_channel: Channel | None = None

    def wait(self, timeout: float | None = None) -> None:
        """Waits until the epochs are over.

        Raises
        ------
        TimeoutError
            The epochs are not over after ``timeout`` seconds.
        """
        if timeout is not None:
            timeout = seconds(timeout, "timeout", ", or None")
        if self._thread is not None:
            self._thread.join(timeout)
            if self._thread.is_alive():
                raise TimeoutError(f"feed {self.name!r} has been served for {timeout} s, and is not over")
        error, self._error = self._error, None
        if error is not None:
            raise error

    def close(self) -> None:
        """Ends the loops of the consumers after the batches that were already sent. Batches that consumers
        have stay valid. Idempotent."""
        if self.is_running:
            with self._sending:
                self._is_closing = True
                self._served.words[IS_CLOSED_AT] = 1  # first: the channels tell waiting consumers to look
                for channel in (self._batch_channel, self._end_channel):
                    if channel is not None:
                        channel.close()
            epoch = self._epoch
            if epoch is not None:
                epoch._end()
        if self._thread is not None and self._thread is not threading.current_thread():
            self.wait()

    @property
    def is_running(self) -> bool:
        """False in a forked child: its end does not concern the consumers."""
        return self._served.server is self and not self._served.is_inherited

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        state = "running" if self.is_running else "over"
        return f"<tenon.Server of {self.name!r}, {self.mode}, {state}: {self.batches} batches>"

    # ------------------------------------------------------------------------- in the serving thread

    def _start_thread(self) -> None:
        self._thread = threading.Thread(target=self._run_thread, name="tenon serve", daemon=True)
        self._thread.start()

    def _run_thread(self) -> None:
        try:
            self._run()
        except BaseException as error:
            self._error = error
            log.error("feed %r is served no more: %s", self.name, error)

    def _run(self) -> None:
        try:
            self._end_channel = self._served.open_end_channel()
            self._served.withdraw()
            notice = self._end_channel.loan()
            self._batch_channel = self._served.open_batch_channel()
            if not self._has_consumers():
                return
            self._served.seek()
            while self._wanted is None or self.epochs < self._wanted:
                failure = self._hand_out()
                if self._is_closing:  # after each opening: close() has closed those that it saw
                    return
                next_notice = self._end_epoch(notice, failure)
                if next_notice is None:
                    return
                notice = next_notice
                self.epochs += 1
                self._batch_channel = self._served.open_batch_channel()
        except ValueError:
            if not self._is_closing:  # a channel that was closed here
                raise
        finally:
            if self.is_running:
                self._end()

    def _end(self) -> None:
        self._is_closing = True
        self._served.words[IS_CLOSED_AT] = 1
        if self._epoch is not None:
            self._epoch._end()
        for channel in (self._batch_channel, self._end_channel):
            if channel is not None:
                channel.close()
        self._served.end_seeking()
        self._served.server = None
        self._served.reclaim()
        self._epoch = self._batch_channel = self._end_channel = None  # they would keep the name

    def _is_to_end(self) -> bool:
        return self._is_closing  # another thread sets it

    def _has_consumers(self) -> bool:
        """Waits for the consumers that are to have attached before the first batch. False: the server is to
        end."""
        timer = _core.ReportTimer()
        while (n := self._served.consumers()) < self._consumers:
            time.sleep(_LOOK_SECONDS)
            if self._is_closing:
                return False
            if timer.is_due():
                log.warning(
                    "feed %r has waited for %s for %d consumers before its first batch: %d have attached",
                    self.name,
                    timer.text(),
                    self._consumers,
                    n,
                )
        return not self._is_closing

    def _hand_out(self) -> OpError | None:
        """One epoch. The failure by which it has ended, if any."""
        served, channel = self._served, self._batch_channel
        assert channel is not None
        batches = self._epoch = Epoch(served.feed, itself)
        batches._next = partial(served.take, channel, batches._next)
        while not self._is_closing:
            try:
                batch = next(batches)
            except StopIteration:
                return None
            except OpError as error:
                error.__traceback__ = None
                return error
            loan = channel.loan()
            served.note_free(loan)
            with self._sending:
                if self._is_to_end():
                    loan.drop()
                    return None
                served.send(loan, batch, self.batches)
                self.batches += 1
            del batch, loan
        return None

    def _end_epoch(self, notice: Loan, failure: OpError | None) -> Loan | None:
        """Announces the end, and waits until all consumers have received it, and there was one. A consumer
        receives the batches of the epoch before. If all have left after the last batch, it does not wait.

        The loan for the next time; None: the server is to end.
        """
        served = self._served
        assert self._batch_channel is not None and self._end_channel is not None
        if failure is not None:
            log.warning("feed %r goes on with its next epoch: %s", self.name, failure)
        told = served.words[ROUND_AT]
        served.words[ROUND_AT] = told + 1  # first: a consumer that attaches now is not in this epoch
        notice.head[0] = told
        data = b"" if failure is None else describe(failure)
        notice.head[1] = len(data)
        notice.text[: len(data)] = memoryview(data)
        notice.head[2:] = served.put_position(notice.state)
        notice.send()
        self._batch_channel.close()
        timer = _core.ReportTimer()
        while not self._is_closing:
            try:
                return self._end_channel.loan(timeout=_LOOK_SECONDS)
            except TimeoutError as error:  # a consumer has not received the notice, or there is none
                if is_of_user(error):
                    raise
            served.open_batch_channel().close()  # from here on, killed consumers do not count
            if served.consumers() == 0 and served.unread() == 0:
                served.withdraw()
            elif timer.is_due():
                log.warning(
                    "feed %r has waited for %s for its %d consumers to end the epoch: %d batches are left",
                    self.name,
                    timer.text(),
                    served.consumers(),
                    served.unread(),
                )
        return None


class _FeedChannel(Channel):
    """A forked child of the server does not serve the feed: its death is not the server's."""

    _is_member_in_children = False


class ServedFeed:
    """What a feed shares with its consumers, from its first `Feed.serve` until it is closed."""

    def __init__(self, feed: OwnFeed, mode: str) -> None:
        if feed.name is None:
            raise ValueError('the feed has no name to be served under: make it with shared="name"')
        self.feed = feed
        self.name: str = feed.name
        self.mode = mode
        self._pid = os.getpid()
        self.server: Server | None = None
        fd, at, self._memory, self._nbytes = feed._native.place()
        if fd < 0:
            raise OSError(
                "the feed cannot be served: other code of this process has closed the file descriptor of its "
                "slots, as os.closerange() and daemons do"
            )
        self._at = at
        counts = feed._native.statistics()
        tokens = counts["slots"] - max(counts["workers"], 1)  # 0: the server fills, and needs a slot as well
        if tokens < 1:
            raise ValueError(
                "the feed has 1 slot, and serving needs 2: one to fill while a consumer has the other"
            )
        axes = [len(shape) for _, _, shape in feed.schema.fields]
        room = max(1, feed._attachment_nbytes)
        states = feed._states_nbytes()
        lengths = HEAD + len(axes) + sum(axes), room, states
        fields = {
            name: (dtype, (n,))
            for name, dtype, n in zip(CHANNEL_FIELDS, ("i8", "u1", "u1"), lengths, strict=True)
        }
        # These openings have no role: the channels are opened for each use, and then closed.
        self._batch_channel = _FeedChannel(
            fields, tokens, self.name, "queue" if mode == "queue" else "broadcast", when_full="keep"
        )
        self._end_channel = _FeedChannel(
            {"head": ("i8", (6,)), "text": ("u1", (TEXT_NBYTES,)), "state": ("u1", (states,))},
            1,
            mode="broadcast",
            when_full="keep",
        )
        self._seek_channel = _FeedChannel({"nbytes": ("i8", ()), "state": ("u1", (states,))}, SEEKS)
        file = os.fstat(fd)
        about = json.dumps(
            {
                "fields": [(name, dtype.name, shape) for name, dtype, shape in feed.schema.fields],
                "batches": feed.batches,
                "mode": mode,
                "order": feed._identity,
                "pid": self._pid,
                "fd": fd,
                "file": (file.st_dev, file.st_ino),
                "at": at,
                "nbytes": self._nbytes,
                "batch_channel": _core.send_array(self._batch_channel._native.memory()).hex(),
                "end_channel": _core.send_array(self._end_channel._native.memory()).hex(),
                "seek_channel": _core.send_array(self._seek_channel._native.memory()).hex(),
            }
        ).encode()
        self._head = zeros(WORDS * 8 + len(about), "u1", shared=head_name(self.name))
        with self._head.write() as head:
            head[WORDS * 8 :] = memoryview(about)
            words = head[: WORDS * 8].view("i8")
            words[NBYTES_AT] = len(about)
            words[MARK_AT] = HEAD_MARK
            del words, head
        # Only the server writes them. Consumers read them when they have received from a channel.
        self.words: Any = words_of(self._head)
        self._held: dict[int, Any] = {}  # the batch of each item that is under way, by the item's address
        self._mutex = threading.Lock()

    def serve(self, mode: str, epochs: int | None, consumers: int, background: bool) -> Server:
        if mode != self.mode:
            raise ValueError(f"mode is {mode!r}, and feed {self.name!r} was served as a {self.mode} before")
        server = Server(self, epochs, consumers)
        with self._mutex:
            if self.server is not None:
                raise TenonError(f"feed {self.name!r} is being served already")
            self.server = server
        self.words[ROUND_AT] += 1  # batches of an epoch that was not announced as over may be left
        self.words[IS_CLOSED_AT] = 0
        if background:
            server._start_thread()
        else:
            server._run()
        return server

    def close(self) -> None:
        """Ends serving. The name becomes free when no consumer is attached any more."""
        server = self.server
        try:
            if server is not None:
                server.close()
        finally:
            self._held.clear()
            del self._batch_channel, self._end_channel, self._seek_channel, self._head, self.words

    @property
    def is_inherited(self) -> bool:
        """This process is a forked child of the one that serves."""
        return os.getpid() != self._pid

    def open_batch_channel(self) -> Channel:
        """A new opening, which has the role of a producer."""
        channel = open_channel(self._batch_channel._native.memory())
        try:
            loan = channel.loan(timeout=0)
        except TimeoutError:
            return channel
        self.note_free(loan)
        loan.drop()
        return channel

    def open_end_channel(self) -> Channel:
        return open_channel(self._end_channel._native.memory())

    def consumers(self) -> int:
        return self._batch_channel.stats()["consumers"]

    def unread(self) -> int:
        return self._batch_channel.stats()["ready"]

    def note_free(self, loan: Loan) -> None:
        """Notes that no consumer has the batch of this slot of the channel any more."""
        self._held.pop(loan.head.ctypes.data, None)

    def reclaim(self, opened: Channel | None = None) -> None:
        """Releases all batches that no consumer has any more."""
        if not self._held:
            return
        channel = self.open_batch_channel() if opened is None else opened
        free = []
        try:
            while self._held:
                free.append(channel.loan(timeout=0))
                self.note_free(free[-1])
        except TimeoutError:
            pass
        for loan in free:
            loan.drop()
        if opened is None:
            channel.close()

    def take(
        self, channel: Channel, take: Callable[..., Any], _: float | None, warn: Callable[[str], object]
    ) -> Any:
        """As ``take``, the function by which an epoch takes its next batch. Before it waits, it releases the
        batches that no consumer has any more: the generator may lack slots."""
        try:
            return take(0.0, warn)
        except (TimeoutError, LeaseConflict) as error:  # consumers may have released slots
            if is_of_user(error):
                raise
        self.words[IS_FILLING_AT] = 1
        try:
            while True:
                self.reclaim(channel)
                try:
                    return take(None, warn)
                except TimeoutError as error:  # batches that this process keeps have all slots
                    if is_of_user(error):
                        raise
        finally:
            self.words[IS_FILLING_AT] = 0

    def withdraw(self) -> None:
        """Takes back the batches, and the notice of an end, that no consumer has received."""
        for channel in (self._batch_channel, self._end_channel):
            if channel.stats()["ready"] == 0:
                continue
            opened = open_channel(channel._native.memory())
            try:
                while True:
                    opened.recv(timeout=0)
            except (TimeoutError, EOFError):
                opened.close()

    def seek(self) -> None:
        """Restores the state that consumers have loaded."""
        states = self._read_states()
        for state in states:
            if state != states[0]:
                raise ValueError(
                    f"the consumers of feed {self.name!r} have loaded different states, {states[0]} and "
                    f"{state}: load the same one in each of them, or one in the feed that is served"
                )
        if states:
            self.feed.load_state_dict(states[0])
        position = self.feed.state_dict()
        self.words[EPOCH_AT], self.words[PLACE_AT] = position["epoch"], position["next"]
        self.words[HAS_BEGUN_AT] = 1

    def end_seeking(self) -> None:
        self._read_states()  # which came too late
        self.words[HAS_BEGUN_AT] = 0

    def _read_states(self) -> list[dict[str, Any]]:
        channel = open_channel(self._seek_channel._native.memory())
        states = []
        try:
            while True:
                try:
                    item = channel.recv(timeout=0)
                except OwnerDied:  # of a consumer
                    continue
                states.append(position_of(item.state.numpy()[: int(item.nbytes)].tobytes()))
                item.release()
                del item
        except (TimeoutError, EOFError):
            return states
        finally:
            channel.close()

    def put_position(self, field: Any) -> tuple[int, int, int, int]:
        """The position of the feed, as numbers; with the states of a generator, in the field."""
        position = self.feed.state_dict()
        data = bytes_of(position) if "states" in position else b""
        room = field  # also if there is none: the field counts as written
        if data:
            room[: len(data)] = memoryview(data)
        return position["epoch"], position["next"], position.get("indexed", True), len(data)

    def send(self, loan: Loan, batch: Any, sequence: int) -> None:
        data = batch.attachment
        numbers = [int(self.words[ROUND_AT]), batch.epoch, batch.index, len(data), sequence]
        numbers += self.put_position(loan.state)
        for array in batch.arrays:
            offset = array.data_ptr - self._memory
            if not 0 <= offset < self._nbytes:
                raise RuntimeError(f"batch {batch.index} of feed {self.name!r} lies outside of its slots")
            numbers += (self._at + offset, *array.shape)
        loan.head[...] = numbers
        attachment = loan.attachment  # also if there is none: the field counts as written
        if data:
            attachment[: len(data)] = memoryview(data)
        del attachment
        key = loan.head.ctypes.data
        self._held[key] = batch
        loan.send()


def bytes_of(state: dict[str, Any]) -> bytes:
    """A state of a feed, for `position_of` in another process."""
    states = state.get("states")
    if states is None:
        return json.dumps(state).encode()
    return json.dumps(state | {"states": [one and one.hex() for one in states]}).encode()


def position_of(data: bytes) -> dict[str, Any]:
    state: dict[str, Any] = json.loads(data)
    if "states" in state:
        state["states"] = [one and bytes.fromhex(one) for one in state["states"]]
        state["ranks"] = tuple(state["ranks"])
    return state


def words_of(head: NDArray) -> Any:
    """The numbers at its beginning."""
    return head.unchecked().numpy()[: WORDS * 8].view("i8")


_ATTRIBUTES = ("op", "kind", "epoch", "index", "worker", "pid", "exit_signal", "exit_code")


def describe(error: OpError) -> bytes:
    """A failure, for `failure_of` in another process."""
    facts = {name: getattr(error, name) for name in _ATTRIBUTES}
    text = str(error)
    while True:
        data = json.dumps({"text": text, "code": error.code, **facts}).encode()
        if len(data) <= TEXT_NBYTES:
            return data
        text = text[: len(text) // 2] + " [...]"


def failure_of(data: bytes) -> OpError:
    facts = json.loads(data)
    error = OpError(facts.pop("text"), facts.pop("code"))
    error.__dict__.update(facts)
    return error
