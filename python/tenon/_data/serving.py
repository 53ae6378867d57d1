# SPDX-License-Identifier: Apache-2.0
"""Feeds whose batches go to other processes: the side that has the feed. `attached` is the other one.

These are shared in addition to the slots, which lie in a memory file of the feed:

* the *batch channel*, under the name of the feed. Its items contain the positions of batches in the slots.
  The feed keeps a batch until the item is free again. Channels detect this also for killed processes.
* the *head*: see `Head`.
* a description of the feed as JSON, with handles of both, in an array under ``<name>.feed``.

A *round* is one epoch that is served. At its end, the server writes into the head how it has ended, and
closes its end of the batch channel. A consumer that finds no item left then reads the head. Each consumer
holds a read lease of the barrier of its round, and takes that of the next round before it releases this one.
So the server begins the next round when it gets a write lease of the barrier of this one.
"""

from __future__ import annotations

import itertools
import json
import logging
import os
import re
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

from .. import _core
from .._array.creation import zeros
from .._core import NDArray
from .._errors import LeaseConflict, OpError, TenonError
from .._ipc.channel import Channel, Loan
from .._ipc.channel import _open as open_channel
from .._sync.lease import Lease
from .._sync.waits import ReportTimer
from .epochs import Epoch
from .forms import itself

if TYPE_CHECKING:
    from .feed import Feed

_log = logging.getLogger("tenon")

MODES = ("queue", "broadcast")
WORDS = 12
(
    ROUND_AT,
    ENDED_AT,  # rounds that have ended, all of whose batches were sent
    IS_CLOSED_AT,
    IS_FILLING_AT,
    HAS_BEGUN_AT,  # the first batch is being made; where it began:
    EPOCH_AT,
    PLACE_AT,
    FAILURE_NBYTES_AT,  # of the last round that has ended; 0: it has not failed
    POSITION_AT,  # at its end: 4 words
) = range(WORDS - 3)
FAILURE_NBYTES = 16384
HEAD = 9  # numbers of an item of the batch channel before those of its fields

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
            f"on_starved is {on_starved!r}: a shared feed cannot copy or add slots, as others map them"
        )
    return f"feed-{os.getpid()}-{next(_numbers)}" if shared is True else shared


def check(mode: str, epochs: int | None, consumers: int) -> None:
    """Checks the arguments of `Feed.serve`."""
    if mode not in MODES:
        raise ValueError(f"mode is {mode!r}: it must be one of {', '.join(MODES)}")
    if epochs is not None and epochs < 0:
        raise ValueError(f"epochs is {epochs}: it must be a count, or None for no end")
    if consumers < 0:
        raise ValueError(f"consumers is {consumers}: it must be a count")


def about_name(name: str) -> str:
    return name + ".feed"


class Head:
    """What a served feed shares with its consumers in addition to its batches: arrays without names.

    Only the server writes ``words``, and failure and state at the end of a round, without a lease. Consumers
    write the states that they have loaded, under a lease. There are two barriers, for rounds with an even and
    with an odd number.
    """

    def __init__(self, arrays: dict[str, NDArray]) -> None:
        self._arrays = arrays
        self.words = arrays["words"].unchecked().numpy()
        self._failure = arrays["failure"].unchecked().numpy()
        self._state = arrays["state"].unchecked().numpy()
        self._wanted = arrays["wanted"]

    @classmethod
    def create(cls, state_nbytes: int) -> Head:
        sizes = {"failure": FAILURE_NBYTES, "state": state_nbytes, "barriers": 2}
        sizes["wanted"] = 8 + 2 * (state_nbytes + 1)  # for a length and two lines
        arrays = {name: zeros(size, "u1", shared=True) for name, size in sizes.items()}
        return cls({"words": zeros(WORDS, "i8", shared=True), **arrays})

    @classmethod
    def open(cls, handles: dict[str, str]) -> Head:
        return cls({name: _core.open_array(bytes.fromhex(handle)) for name, handle in handles.items()})

    def handles(self) -> dict[str, str]:
        return {name: _core.send_array(array).hex() for name, array in self._arrays.items()}

    def enter(self, number: int, mode: Literal["r", "w"], timeout: float | None = None) -> Lease:
        """A lease of the barrier of a round, which any thread may release."""
        at = number % 2
        return Lease(self._arrays["barriers"][at : at + 1], mode, timeout, "ignore").detach()

    def put_end(self, failure: OpError | None, position: dict[str, Any]) -> None:
        """Ends the round. The consumers see it before the batch channel is closed."""
        data = b"" if failure is None else describe(failure)
        self._failure[: len(data)] = memoryview(data)
        self.words[FAILURE_NBYTES_AT] = len(data)
        self.words[POSITION_AT:] = put_position(position, self._state)
        self.words[ENDED_AT] = self.words[ROUND_AT] + 1

    def failure(self) -> OpError | None:
        data = self._failure[: int(self.words[FAILURE_NBYTES_AT])].tobytes()
        return failure_of(data) if data else None

    def end_position(self, order: dict[str, int]) -> dict[str, Any]:
        numbers = self.words[POSITION_AT:].tolist()
        return position_of(numbers, self._state, order)

    def add_wanted(self, state: dict[str, Any], timeout: float | None) -> None:
        """Notes a state that a consumer has loaded, unless another one has loaded it, too. Of different ones,
        two are kept. Fails with ValueError: it is too large."""
        data = bytes_of(state)
        if len(data) > len(self._state):
            raise ValueError(
                f"the state has {len(data)} bytes, and the feed has room for {len(self._state)}: it has no "
                "states, or smaller ones"
            )
        with self._wanted.write(timeout=timeout, on_owner_died="ignore") as content:
            found = _read_lines(content)
            if data not in found and len(found) < 2:
                _write_lines(content, [*found, data])

    def take_wanted(self) -> list[dict[str, Any]]:
        """The states that were noted since the last call."""
        with self._wanted.write(on_owner_died="ignore") as content:
            found = _read_lines(content)
            _write_lines(content, [])
        return [state_of(data) for data in found]


def _read_lines(content: Any) -> list[bytes]:
    found: bytes = content[8 : 8 + int(content[:8].view("i8")[0])].tobytes()
    return found.splitlines()


def _write_lines(content: Any, lines: list[bytes]) -> None:
    """A process that dies meanwhile leaves no lines."""
    data = b"\n".join(lines)
    content[:8] = 0
    content[8 : 8 + len(data)] = memoryview(data)
    content[:8].view("i8")[0] = len(data)


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
        self.name = served.name
        self.mode = served.mode
        self.epochs = 0
        self.batches = 0
        self._served = served
        self._wanted = epochs
        self._consumers = consumers
        self._is_closing = False  # a threading.Event keeps its lock for ever if Ctrl-C comes as it is taken
        self._sending = threading.RLock()  # nothing is sent after close()
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None
        self._epoch: Epoch | None = None
        self._batch_channel: Channel | None = None

    def wait(self, timeout: float | None = None) -> None:
        """Waits until the epochs are over.

        Raises
        ------
        TimeoutError
            The epochs are not over after ``timeout`` seconds.
        """
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
                self._stop()
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
            _log.error("feed %r is not served any more: %s", self.name, error)

    def _run(self) -> None:
        served = self._served
        try:
            served.withdraw()
            self._batch_channel = served.open_batch_channel()
            if not self._has_consumers(self._consumers, "its first batch"):
                return
            served.seek()
            while self._wanted is None or self.epochs < self._wanted:
                failure = self._hand_out()
                if self._is_closing or not self._end_round(failure):
                    return
                self.epochs += 1
                self._batch_channel = served.open_batch_channel()
        except ValueError:
            if not self._is_closing:  # a channel that was closed here
                raise
        finally:
            if self.is_running:
                self._stop()
                served.end_seeking()
                served.server = None
                served.reclaim()

    def _stop(self) -> None:
        self._is_closing = True
        self._served.head.words[IS_CLOSED_AT] = 1  # before the close, after which consumers look at it
        if self._batch_channel is not None:
            self._batch_channel.close()
        if self._epoch is not None:
            self._epoch._end()

    def _poll(self, is_met: Callable[[], bool], what: Callable[[], str]) -> bool:
        """Waits for a condition. False: the server is to end."""
        timer = ReportTimer()
        while not is_met():
            time.sleep(_LOOK_SECONDS)
            if self._is_closing:
                return False
            if timer.is_due():
                _log.warning("feed %r has waited for %d s for %s", self.name, timer.seconds(), what())
        return not self._is_closing

    def _is_to_end(self) -> bool:
        return self._is_closing  # another thread sets it

    def _has_consumers(self, count: int, before: str) -> bool:
        served = self._served
        return self._poll(
            lambda: served.consumers() >= count,
            lambda: f"{count} consumers before {before}: {served.consumers()} have attached",
        )

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
            # In a broadcast without consumers, a loan would take what the next one is to get.
            if self.mode == "broadcast" and not self._has_consumers(1, "the next batch"):
                return None
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

    def _end_round(self, failure: OpError | None) -> bool:
        """Announces the end, and waits until all consumers have seen it and, of a queue, have received
        everything. False: the server is to end."""
        served = self._served
        assert self._batch_channel is not None
        if failure is not None:
            _log.warning("feed %r goes on with its next epoch: %s", self.name, failure)
        served.head.put_end(failure, served.feed.state_dict())
        self._batch_channel.close()
        if not self._poll(
            # In this order: a consumer that receives one of the last batches has entered before.
            lambda: (self.mode == "broadcast" or served.unread() == 0) and served.have_left(),
            lambda: (
                f"its {served.consumers()} consumers to end the epoch: {served.unread()} batches are left"
            ),
        ):
            return False
        served.head.words[ROUND_AT] += 1
        return True


class ServedFeed:
    """What a feed shares with its consumers, from its first `Feed.serve` until it is closed."""

    def __init__(self, feed: Feed, mode: str) -> None:
        if feed.name is None:
            raise ValueError('the feed has no name to be served under: make it with shared="name"')
        self.feed = feed
        self.name: str = feed.name
        self.mode = mode
        self._pid = os.getpid()
        self.server: Server | None = None
        fd, at, self._memory, self._nbytes = feed._native.place()
        self._at = at
        counts = feed._native.statistics()
        tokens = counts["slots"] - max(counts["workers"], 1)  # 0: the server fills, and needs a slot as well
        if tokens < 1:
            raise ValueError(
                "the feed has 1 slot, and serving needs 2: one to fill while a consumer has the other"
            )
        axes = [len(shape) for _, _, shape in feed.schema.fields]
        states = feed._states_nbytes()
        fields = {
            "head": ("i8", (HEAD + len(axes) + sum(axes),)),
            "attachment": ("u1", (max(1, feed._attachment_nbytes),)),
            "state": ("u1", (states,)),
        }
        # Has no role: it is opened for each use, and then closed.
        self._batch_channel = Channel(fields, tokens, self.name, "queue" if mode == "queue" else "broadcast")
        file = os.fstat(fd)
        self.head = Head.create(states)
        about = {
            "fields": [(name, dtype.name, shape) for name, dtype, shape in feed.schema.fields],
            "batches": feed.batches,
            "mode": mode,
            "order": feed._order_state(),
            "pid": self._pid,
            "fd": fd,
            "file": (file.st_dev, file.st_ino),
            "at": at,
            "nbytes": self._nbytes,
            "batch_channel": _core.send_array(self._batch_channel._native.memory()).hex(),
            "head": self.head.handles(),
        }
        described = json.dumps(about).encode()
        self._about = zeros(len(described), "u1", shared=about_name(self.name))
        with self._about.write() as content:
            content[...] = memoryview(described)
            del content
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
        words = self.head.words
        words[ROUND_AT] = words[ENDED_AT]  # the server before may have ended after the end of a round
        words[IS_CLOSED_AT] = 0
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
            del self._batch_channel, self._about, self.head

    @property
    def is_inherited(self) -> bool:
        """This process is a forked child of the one that serves."""
        return os.getpid() != self._pid

    def open_batch_channel(self) -> Channel:
        """A new opening, which has the role of a producer. Not in a broadcast without consumers: there a loan
        takes what the next one is to get."""
        channel = open_channel(self._batch_channel._native.memory())
        try:
            loan = channel.loan(timeout=0)
        except TimeoutError:
            return channel
        self.note_free(loan)
        loan.drop()
        return channel

    def consumers(self) -> int:
        return self._batch_channel.stats()["consumers"]

    def unread(self) -> int:
        return self._batch_channel.stats()["ready"]

    def have_left(self) -> bool:
        """Whether all consumers have left the round; waits for a moment."""
        try:
            self.head.enter(int(self.head.words[ROUND_AT]), "w", _LOOK_SECONDS).release()
        except TimeoutError:
            return False
        return True

    def note_free(self, loan: Loan) -> None:
        """Notes that no consumer has the batch of this slot of the channel any more."""
        self._held.pop(loan.head.ctypes.data, None)

    def reclaim(self, opened: Channel | None = None) -> None:
        """Releases all batches that no consumer has any more. A broadcast without consumers keeps them for
        the next one."""
        if not self._held or (self.server and self.mode == "broadcast" and self.consumers() == 0):
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
        except (TimeoutError, LeaseConflict):  # consumers may have released batches
            pass
        self.head.words[IS_FILLING_AT] = 1
        try:
            while True:
                self.reclaim(channel)
                try:
                    return take(None, warn)
                except TimeoutError:  # batches that this process keeps have all slots
                    continue
        finally:
            self.head.words[IS_FILLING_AT] = 0

    def withdraw(self) -> None:
        """Takes back what was sent and not received."""
        if self.mode == "queue" and self.unread() > 0:
            channel = open_channel(self._batch_channel._native.memory())
            try:
                while True:
                    channel.recv(timeout=0)
            except (TimeoutError, EOFError):
                channel.close()

    def seek(self) -> None:
        """Continues where the consumers have said."""
        states = self.head.take_wanted()
        for state in states:
            if state != states[0]:
                raise ValueError(
                    f"the consumers of feed {self.name!r} have loaded different states, {states[0]} and "
                    f"{state}: load the same one in each of them, or one in the feed that is served"
                )
        if states:
            self.feed.load_state_dict(states[0])
        position = self.feed.state_dict()
        self.head.words[EPOCH_AT], self.head.words[PLACE_AT] = position["epoch"], position["next"]
        self.head.words[HAS_BEGUN_AT] = 1

    def end_seeking(self) -> None:
        self.head.take_wanted()  # which came too late
        self.head.words[HAS_BEGUN_AT] = 0

    def send(self, loan: Loan, batch: Any, sequence: int) -> None:
        data = batch.attachment
        numbers = [int(self.head.words[ROUND_AT]), batch.epoch, batch.index, len(data), sequence]
        numbers += put_position(self.feed.state_dict(), loan.state)
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


def put_position(position: dict[str, Any], room: Any) -> tuple[int, int, int, int]:
    """A position of a feed as numbers for `position_of`; with the states of a generator, its bytes in
    ``room``."""
    data = bytes_of(position) if "states" in position else b""
    room[: len(data)] = memoryview(data)
    return position["epoch"], position["next"], position.get("indexed", True), len(data)


def position_of(numbers: list[int], room: Any, order: dict[str, int]) -> dict[str, Any]:
    epoch, place, is_indexed, nbytes = numbers
    if nbytes:
        return state_of(room[:nbytes].tobytes())
    return {"epoch": epoch, "next": place} | order | ({} if is_indexed else {"indexed": False})


def bytes_of(state: dict[str, Any]) -> bytes:
    """A state of a feed, for `state_of` in another process."""
    states = state.get("states")
    if states is None:
        return json.dumps(state).encode()
    return json.dumps(state | {"states": [one and one.hex() for one in states]}).encode()


def state_of(data: bytes) -> dict[str, Any]:
    state: dict[str, Any] = json.loads(data)
    if "states" in state:
        state["states"] = [one and bytes.fromhex(one) for one in state["states"]]
        state["ranks"] = tuple(state["ranks"])
    return state


_ATTRIBUTES = ("op", "kind", "epoch", "index", "worker", "pid", "exit_signal", "exit_code")


def describe(error: OpError) -> bytes:
    """A failure, for `failure_of` in another process."""
    facts = {name: getattr(error, name) for name in _ATTRIBUTES}
    text = str(error)
    while True:
        data = json.dumps({"text": text, "code": error.code, **facts}).encode()
        if len(data) <= FAILURE_NBYTES:
            return data
        text = text[: len(text) // 2] + " [...]"


def failure_of(data: bytes) -> OpError:
    facts = json.loads(data)
    error = OpError(facts.pop("text"), facts.pop("code"))
    error.__dict__.update(facts)
    return error
