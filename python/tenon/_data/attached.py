# SPDX-License-Identifier: Apache-2.0
"""Feeds of other processes: the consumer's side of what `serving` describes."""

from __future__ import annotations

import os
import time
import weakref
from collections.abc import Callable, Iterator
from typing import Any

from .. import _answers
from .._array.fields import Fields
from .._core import Batch, NativeAttached, NDArray, Schema
from .._errors import OpError, TenonError, is_of_user, log
from .._values import seconds, text_for_c
from .epochs import Iteration, add_failure
from .forms import Forms
from .resuming import check_state
from .serving import facts_in, state_of

_LOOK_SECONDS = 0.02

# By process and feed. All loops of a process are those of one consumer.
_attached: weakref.WeakValueDictionary[tuple[int, str], AttachedFeed] = weakref.WeakValueDictionary()


class AttachedFeed(Forms):
    """A feed that a process serves, as a rule another one. Made by `Feed.attach`.

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
        self._native: NativeAttached | None = None  # for __del__, when the next lines raise
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
        self._native = native = _attach(name, wait)
        self.schema: Schema = native.schema
        facts = native.describe()
        self.mode: str = facts["mode"]
        self.pid: int = facts["pid"]
        noted = facts_in(native.note())
        self.batches: int | None = noted["batches"]
        self._identity: dict[str, Any] = noted["order"]
        self._ranks: tuple[int, int] = noted["ranks"]
        self._op: str = noted["op"]
        self._wanted: dict[str, Any] | None = None  # was loaded, and no batch has come since
        self._found: tuple[Any, ...] | None = None  # the last position, once this is closed
        self._has_begun = False
        self._next: Batch | None = None  # its conversion was interrupted
        _attached[self._key] = self

    def _opened(self) -> NativeAttached:
        native = self._native
        if native is None:
            raise ValueError(f"feed {self.name!r} was closed here")
        return native

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
        if self._wanted is not None:
            return dict(self._wanted)
        way_out = "take state_dict() of the feed in the process that serves it"
        native = self._native
        found = self._found if native is None else native.state()
        is_gap = found is not None and found[5]
        is_one_of_many = native is not None and native.describe()["consumers"] > 1
        if self.mode == "queue" and (is_gap or is_one_of_many):
            raise ValueError(
                f"several consumers share the batches of feed {self.name!r}: what one of them got is no "
                f"position of the epoch; {way_out}"
            )
        if found is None:
            raise ValueError(f"feed {self.name!r} has delivered no batch here yet; {way_out}")
        return state_of(found, self._identity, self._ranks)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restores a position, before the first iteration: the feed, which must not have begun an epoch,
        begins there when the consumers that it waits for have begun to iterate. Each consumer that loads a
        state must load the same one.

        If the feed began elsewhere, the first ``next`` raises TenonError.

        Raises
        ------
        TypeError
            ``state`` is no dict.
        ValueError
            The feed has begun an epoch, or this consumer has iterated, or was closed; ``state`` has no
            ``epoch`` or ``next``, or is of a feed that delivers other batches.
        """
        native = self._opened()
        epoch, place = check_state(state, self._identity)
        if self._has_begun or native.describe()["is_serving"]:
            raise ValueError(
                f"feed {self.name!r} has begun an epoch, so it cannot continue elsewhere: load the state in "
                "a new consumer before the feed sends its first batch (serve(consumers=) says how many "
                "consumers it waits for), or in the feed that is served"
            )
        self._tell(native, epoch, place, state)
        self._wanted = dict(state)

    def _tell(self, native: NativeAttached, epoch: int, place: int, state: dict[str, Any]) -> None:
        states, ranks = list(state.get("states", [])), state.get("ranks", self._ranks)
        native.resume(
            epoch, place, state.get("worker", 0), state.get("indexed") is False, states, ranks[0], ranks[1]
        )

    def _check_wanted(self) -> None:
        """Whether the epoch has begun where it was wanted, when its first batch or its end has come."""
        wanted, self._wanted = self._wanted, None
        if wanted is None:
            return
        facts = self._opened().describe()
        began = facts["first_epoch"], facts["first_place"]
        is_first = facts["is_first"] and facts["first_number"] != 0
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
        native, self._native = self._native, None
        if native is None:
            return
        self._found = native.state()
        if _attached.get(self._key) is self:
            del _attached[self._key]
        live = self._live_epoch()
        if live is not None:
            live._end()
        self._next = None
        native.close()

    def __enter__(self) -> AttachedFeed:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<tenon.AttachedFeed {self.name!r} of process {self.pid}, {self.mode}>"


_answers.answer(AttachedFeed, _answers.ATTACHED_FEED)


class _Epoch(Iteration):
    """The one live iterator of an attached feed."""

    _way_to_end = ""
    _way_to_several = ", and a process attaches to it once"

    def __init__(self, feed: AttachedFeed, convert: Callable[[Any], Any]) -> None:
        super().__init__()
        self._replace(feed)
        feed._opened().begin()
        feed._has_begun = True
        self._begin(feed, convert)

    def _step(self, *_: object) -> Any:
        feed = self._feed
        if feed is None:
            self._stop()
        batch = None
        try:
            self._is_in_next = True
            batch, feed._next = feed._next, None
            if batch is None:
                native = feed._opened()
                try:
                    batch = native.next(feed.timeout, log.warning)
                except OpError as error:
                    if not is_of_user(error):
                        feed._check_wanted()
                        add_failure(error, feed._op, native.failure())
                    raise
            if batch is not None:
                feed._check_wanted()
                return self._convert(batch)
            self._end()
            feed._check_wanted()
        except BaseException as error:
            # The next call goes on after Ctrl-C, after a TimeoutError (the caller may release batches), and
            # after an exception of a signal handler in the wait.
            is_over = isinstance(error, Exception) and not isinstance(error, TimeoutError)
            if is_over and (batch is not None or not is_of_user(error)):
                self._end()
            elif batch is not None:
                feed._next = batch
            batch = None  # the traceback has this frame
            raise
        finally:
            self._is_in_next = False
        raise StopIteration


class AttachedBatch(Fields):
    """A copy of a batch on a device, with the attributes of a `Batch`."""

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


def _on_device(batch: Batch, device: str) -> AttachedBatch:
    arrays = tuple(array.to(device) for array in batch.arrays)
    return AttachedBatch(batch.keys(), arrays, batch.epoch, batch.index, batch.attachment)


def _attach(name: str, wait: float) -> NativeAttached:
    end = time.monotonic() + wait
    while True:
        try:
            return NativeAttached(name)
        except FileNotFoundError:
            if time.monotonic() >= end:
                raise FileNotFoundError(
                    f"no feed is served under the name {name!r} by a process of this user that is seen here"
                ) from None
        time.sleep(_LOOK_SECONDS)
