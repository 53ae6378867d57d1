# SPDX-License-Identifier: Apache-2.0
"""Feeds."""

from __future__ import annotations

import contextlib
import ctypes
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from typing import TYPE_CHECKING, Any, Literal, Never

from .. import _answers
from .._array.fields import FieldsLike, checks_fields, checks_values
from .._core import Batch, NativeFeed, Schema
from .._errors import TenonError, log, text_of
from .._sync.function import CFunction
from .._values import INT32_MAX, count, flag, integer, seconds
from . import closing
from .epochs import Epoch
from .forms import Forms, Tensors, itself
from .plugin import Plugin
from .progress import ProgressBar
from .progress import check as _check_progress
from .resuming import check_can_resume, check_state, identity, resume
from .schema import schema_of
from .workers import EachBatch, Inline, PythonGenerator, Rules, Worker, WorkerBatch, Workers, name_of

if TYPE_CHECKING:
    from .attached import AttachedFeed
    from .serving import Server
    from .statistics import FeedStatistics


_CLOSE_SECONDS = 1.0

# In the order of tenon_on_error and tenon_on_starved.
_ON_ERROR = ("raise", "skip", "retry")
_ON_STARVED = ("wait", "copy", "grow", "raise")


class Feed(Forms):
    """Runs a generator in workers and delivers its batches in the order of their index, without a copy.

    Slots are allocated and touched once. A worker fills a free slot, and the consumer gets it as a batch. The
    slot is filled again when the batch, its arrays and every view of them are gone, in any order. A batch
    that is kept is never overwritten.

    One iteration over the feed is one epoch: batches with index 0, 1, 2, ..., or in another order with
    ``shuffle``. A batch is the same for any number of workers if the generator computes it from ``epoch`` and
    ``index``, or from ``seed``. ``seed`` depends only on the feed's seed, the epoch and the index:
    ``s(s(s(seed) ^ epoch) ^ index)``, where ``s`` is one step of SplitMix64. A feed has one active iterator
    at a time: another iteration, in whatever form, ends its epoch, and so does dropping the iterator.

    Parameters
    ----------
    generator : CFunction, Plugin, PythonGenerator or callable
        A function of `c_function` or `plugin` is called by one thread at a time, in order, unless it is
        ``threadsafe``; each worker process has its own copy. For the result of a function that `worker`
        decorates, each worker runs its loop. Any other callable gets one `WorkerBatch` at a time to fill, in
        one worker thread, or in several worker processes. It assigns to the fields of the batch and returns
        None. If it has the methods ``state()`` and ``restore(state)``, `state_dict` saves its state.
    schema : Schema, or dict of str to (dtype, shape), optional
        Made by `tenon.schema`, or the fields that it takes. Default: the schema that the plug-in describes,
        or that of `worker`.
    slots : int, optional
        At least ``workers + 1``, at most 32,767; default ``workers + 4``.
    workers : int
        The number of workers, at most 3,576. A generator that is not thread-safe runs in one thread, and more
        workers are refused by a warning in the log: see ``advice`` of `FeedStatistics`. 0: the
        consumer runs the generator in its own thread when it requests a batch, without ``processes`` and
        ``fill_timeout``, and not for the loops of `worker`. Nothing is filled ahead.
    processes : bool or str
        Use processes as workers. Native functions run in forks of this process, without Python, and take no
        array constants that are not ``const``. Python functions run in processes of `multiprocessing`, with
        the given or the default start method. Before each batch, the global generators of `random`, NumPy and
        PyTorch are seeded there from the seed of the batch; threads leave those of the program alone. The
        slots then lie in memory that the workers map. If this process forks, the child sees that inherited
        slots are filled again, so copy what the child needs.
    batches : int, optional
        The number of batches of an epoch, of all ranks together. It is an error if the loop of a `worker`
        returns earlier. None: an epoch ends where the generator ends it, or not at all.
    seed : int
        The seeds of batches depend on it; taken modulo 2**64.
    timeout : float, optional
        The seconds that ``next`` waits for a batch before it raises TimeoutError. None: no limit while the
        generator runs, with a warning to the logger "tenon" every 5 s; 5 s if the consumer itself holds
        every slot.
    on_error : {"raise", "skip", "retry"}
        The behaviour if a generator fails at a batch, its process ends, or it takes longer than
        ``fill_timeout``. "raise": OpError at the position of the batch, and the epoch ends. "skip": the
        consumer gets the next batch; if 1000 batches in a row fail, as "raise". "retry": the batch is filled
        again up to ``retries`` times, by a new process if workers are processes, and by a new thread if a
        thread took too long.
    retries : int
    fill_timeout : float, optional
        The seconds that a batch may take. Then a process is killed. A thread is abandoned with its slot, and
        the worker continues in a new thread with another slot; at most 8 threads are abandoned at a time. A
        native function that is not thread-safe is not called again before it returns.
    on_starved : {"wait", "copy", "grow", "raise"}
        The behaviour if the consumer holds every slot and requests a batch. "wait": waits for another thread
        to drop one, as ``timeout`` says. "copy": batches that would leave the workers no slot are copied.
        "grow": adds slots while memory is available. "raise": LeaseConflict.
    attachment_nbytes : int
        The capacity for bytes that are passed with a batch.
    state_nbytes : int
        The capacity for the pickled state of a worker, if the generator has a state.
    progress : optional
        A class or function that makes a progress bar, such as ``tqdm.tqdm``. The feed calls it with
        ``total=batches`` in each epoch, ``update(1)`` for each batch when the next one is requested,
        ``set_postfix_str`` with rate and verdict if it exists, and ``close()`` at the end of the epoch. Or an
        existing bar, which is not closed. Exceptions of the bar are logged to the logger "tenon".
    shared : bool or str
        Places the slots in memory that other processes can map, so that `serve` can pass batches to them.
        A str is the name of the feed, which it takes in the first `serve`. True creates a name, which the
        attribute ``name`` returns. Only with ``on_starved`` "wait" and "raise".
    shuffle : bool
        Each epoch has its batches in another order, which depends only on ``seed`` and the epoch. A batch
        keeps its index and seed, and so its content. Needs ``batches``.
    rank, world_size : int
        For training with several processes that have a feed each, with the same arguments otherwise. This
        feed delivers the batches at the places ``rank``, ``rank + world_size``, ``rank + 2 * world_size``,
        ... of the epoch; without ``shuffle`` the places are the indices. The feeds of all ranks together
        deliver each batch of the epoch once. After `load_state_dict` they divide what is left of the epoch
        in the same way. If the number of batches is not a multiple of ``world_size``, the last ranks get one
        batch less.
    check : bool or "values", optional
        Makes it an error of a Python function if it passes on a batch of which a field was not written: the
        fill did not use the array of the field, neither by access nor by assignment. Without the check, the
        first such batch is logged, and ``feed.stats().unwritten`` counts them. "values": also if a part of a
        field was not written, as of a last batch without ``batch.rows``. Fields of `schema` that are "kept"
        are not checked. None: as the environment says, where ``TENON_DEBUG=fields`` and ``TENON_DEBUG=1``
        mean True, and ``TENON_DEBUG=values`` means "values".
    device : str
        Where batches are delivered: "cpu", on the slots, or on a device, for example "cuda:0". Then the feed
        copies filled slots to a ring of device slots, ahead of the consumer, while the consumer works on the
        batch before. `torch` and `databatch` select another device for their epochs. Not with ``shared``.
    device_slots : int
        The number of device slots, at least 2. 3 suffice for a loop that has one batch at a time: one more
        batch is copied while the loop still refers to the batch before.

    Raises
    ------
    TypeError, ValueError
        A parameter of the generator with an unknown name, a field without a parameter, a dtype that does not
        fit; a number out of range; a generator that is a function with ``yield`` or ``async``.
    MemoryError
        The slots do not fit into memory; the message has the numbers.
    """

    def __init__(
        self,
        generator: CFunction | Plugin | PythonGenerator | Callable[[WorkerBatch], Any],
        schema: FieldsLike | None = None,
        slots: int | None = None,
        workers: int = 1,
        processes: bool | str = False,
        batches: int | None = None,
        seed: int = 0,
        timeout: float | None = None,
        *,
        on_error: Literal["raise", "skip", "retry"] = "raise",
        retries: int = 2,
        fill_timeout: float | None = None,
        on_starved: Literal["wait", "copy", "grow", "raise"] = "wait",
        attachment_nbytes: int = 0,
        state_nbytes: int = 65536,
        progress: Any = None,
        shared: bool | str = False,
        shuffle: bool = False,
        rank: int = 0,
        world_size: int = 1,
        check: bool | Literal["values"] | None = None,
        device: str = "cpu",
        device_slots: int = 3,
        **others: Never,
    ) -> None:
        if others:
            _answers.refuse(Feed.__init__, others, _answers.FEED_OPTIONS)
        if isinstance(generator, Worker):
            raise TypeError(
                f"{generator.name} is a function that makes generators: call it, with its arguments"
            )
        if isinstance(generator, ctypes._CFuncPtr):  # type: ignore[attr-defined]
            name = getattr(generator, "__name__", "fill")
            raise TypeError(
                f"a feed's generator is {name!r}, a function of ctypes, which tells no feed its parameters: "
                f'declare it, tn.c_function(library, "int {name}(float *data, int64_t *label, size_t n)")'
            )
        if not isinstance(generator, Plugin) and not callable(generator):
            raise TypeError(
                f"a feed's generator is {type(generator).__name__}: it is made by tn.c_function or "
                "tn.plugin, by what tn.worker decorates, or it is any callable that fills a batch"
                f"{'; tn.DataLoader takes a dataset' if hasattr(generator, '__getitem__') else ''}"
            )
        if schema is None and isinstance(generator, (Plugin, PythonGenerator)):
            schema = generator.schema
            if schema is None:
                raise ValueError(f"plug-in {generator.name!r} does not describe its fields: give a schema")
        schema = schema_of(schema)
        workers = count(workers, "workers", 0, INT32_MAX - 4)
        if workers == 0:
            _check_inline(generator, processes, fill_timeout)
        if slots is not None:
            slots = count(slots, "slots", -INT32_MAX, INT32_MAX)  # too few of them: the native part tells
        if slots == 0:
            raise ValueError(f"0 slots are too few for {workers} workers: at least {workers + 1} are needed")
        if batches is not None:
            batches = count(batches, "batches")
        retries = count(retries, "retries", 1 if on_error == "retry" else 0, INT32_MAX)
        attachment_nbytes = count(attachment_nbytes, "attachment_nbytes")
        state_nbytes = count(state_nbytes, "state_nbytes", 1)
        if timeout is not None:
            timeout = seconds(timeout, "timeout", ", or None")
        seed = integer(seed, "seed")
        shuffle = flag(shuffle, "shuffle")
        if shuffle and batches is None:
            raise ValueError("shuffle is True: an epoch without an end cannot be shuffled, so give batches=")
        world_size = count(world_size, "world_size", 1, INT32_MAX)
        rank = count(rank, "rank", 0, INT32_MAX)
        if rank >= world_size:
            raise ValueError(
                f"rank is {rank}, and world_size is {world_size}: a rank is a number from 0 to world_size - 1"
            )
        if check is None:
            check = "values" if checks_values() else checks_fields()
        elif not isinstance(check, str) or check != "values":
            check = flag(check, "check")
        if not isinstance(processes, str):
            processes = flag(processes, "processes")
        if fill_timeout is not None:
            given, fill_timeout = fill_timeout, seconds(fill_timeout, "fill_timeout", ", or None")
            if fill_timeout == 0:
                raise ValueError(f"fill_timeout is {given}: it must be more than 0 seconds, or None")
        for name, value, known in (
            ("on_error", on_error, _ON_ERROR),
            ("on_starved", on_starved, _ON_STARVED),
        ):
            if value not in known:
                raise ValueError(f"{name} is {value!r}: it must be one of {known}")
        _check_progress(progress)
        device_slots = count(device_slots, "device_slots", 2, INT32_MAX)
        if shared and device != "cpu":
            raise ValueError(
                f"device is {device!r}, and the feed is shared: other processes get its slots. Let them copy "
                "what they need with array.to(device)"
            )
        from .serving import name_for
        from .statistics import Meter

        self.name: str | None = name_for(shared, on_starved)
        self.generator = generator
        self.schema = schema
        self._ranks = (rank, world_size)
        self._batches_of_all = batches
        self.batches: int | None = None if batches is None else self._share(batches)
        self._identity = identity(schema, batches, seed % 2**64, shuffle)
        self.timeout = timeout
        self.progress = progress
        self._server: Server | None = None  # the one that runs
        self._mode: str | None = None  # in which it was served
        self._serving = threading.Lock()
        loop = _loop_of(generator, schema)
        has_state = loop is not None and loop.has_state
        rules = Rules(check, batches, has_state, seeds=bool(processes))
        self._inline: Inline | None = None
        self._workers: Workers | None = None
        if workers == 0 and isinstance(loop, EachBatch):
            source = self._inline = Inline(loop, schema, rules)
            constants: dict[str, Any] = {}
        else:
            source, constants, self._workers = _source_of(generator, loop, schema, processes, rules)
        advice = _advice_for_one_thread(generator, bool(processes))
        asked = workers
        if advice:
            workers = min(workers, 1)  # it may have state of its own, and does not say that it is safe
        try:
            self._native = NativeFeed(
                source=source,
                schema=schema,
                constants=constants,
                workers=workers,
                slots=workers + 4 if slots is None else slots,
                batches=-1 if batches is None else batches,
                seed=seed % 2**64,
                processes=bool(processes),
                round_robin=False,
                on_error=_ON_ERROR.index(on_error),
                retries=retries,
                on_starved=_ON_STARVED.index(on_starved),
                fill_timeout_ns=0 if fill_timeout is None else int(min(fill_timeout * 1e9, 9e18)),
                attachment_nbytes=attachment_nbytes,
                name=_name_of(generator),
                prepares=hasattr(self._workers, "prepare"),
                shared_slots=bool(shared),
                shuffle=shuffle,
                rank=rank,
                world_size=world_size,
                has_state=has_state,
                state_nbytes=state_nbytes,
                shared_name=self.name or "",
            )
        except BaseException:
            if self._workers is not None:
                self._workers.join(_CLOSE_SECONDS)  # those that were started leave
            raise
        if self._inline is not None:
            self._inline.belong_to(self)
        self.device = device
        self._device_slots = device_slots
        self._device_in_use = "cpu"
        try:
            self._use_device(device)
        except BaseException:
            with contextlib.suppress(TimeoutError):
                self.close()
            raise
        self._meter = Meter(self._native, schema, advice)
        if asked > max(workers, 1):
            log.warning("the feed of %r has 1 worker, not %d: %s", _name_of(generator), asked, advice)
        closing.OPEN.add(self)

    def __iter__(self) -> Iterator[Batch]:
        return self._iterate(itself)

    def _iterate(self, convert: Callable[[Batch], Any], device: str | None = None) -> Iterator[Any]:
        epoch = Epoch(self, convert, device)
        if self.progress is None and self._inline is None:
            trust = convert.trust if isinstance(convert, Tensors) else None
            epoch._attach(self._native, convert, log.warning, trust)
        return epoch

    def _iterate_in_tasks(
        self, convert: Callable[[Batch], Any], device: str | None = None
    ) -> AsyncIterator[Any]:
        from .consumers import AsyncEpoch

        return AsyncEpoch(self, convert, device)

    def _begin_epoch(self, device: str | None) -> None:
        self._use_device(self.device if device is None else device)
        if self._server is not None:
            raise TenonError(f"feed {self.name!r} is being served: its batches go to other processes")
        self._native.begin()

    def _progress_bar(self) -> ProgressBar | None:
        """Of the epoch that has begun."""
        if self.progress is None:
            return None
        done = self._native.position()[1]
        total, own = self._batches_of_all, self._share(done)
        return ProgressBar(
            self.progress, self._meter, own, None if total is None else own + self._share(total - done)
        )

    def _use_device(self, device: str) -> None:
        """Later epochs deliver there."""
        if device != self._device_in_use:
            self._device_in_use = "cpu"  # if the call raises
            self._native.use_device(device, self._device_slots)
            self._device_in_use = device

    def __aiter__(self) -> AsyncIterator[Batch]:
        """One epoch for ``async for``: a batch is awaited without blocking the event loop.

        A task that is cancelled while it waits loses no batch: the next ``__anext__`` returns it.
        """
        return self._iterate_in_tasks(itself)

    def stats(self) -> FeedStatistics:
        """Statistics since the feed was made, and since the last call.

        Returns
        -------
        FeedStatistics
            Its attributes describe all members: delivered batches and rates, the ``verdict``, slots by state,
            times of the generator and of waits, and ``recent``, the interval since the last call.
        """
        return self._meter.look()

    def serve(
        self,
        mode: Literal["queue", "broadcast"] = "queue",
        epochs: int | None = 1,
        consumers: int = 1,
        background: bool = False,
    ) -> Server:
        """Passes the batches to processes that attach to the feed's name, without a copy.

        Each process calls ``tn.Feed.attach(name)`` and iterates. A slot is filled again when no process has
        an array, view or tensor of its batch. The end of a process, in whatever way, releases its batches.
        All processes together may hold ``slots - workers`` batches, without workers ``slots - 1``.

        An epoch begins when all consumers have reached the end of the previous one. Without consumers the
        feed waits for one, which gets the rest of the epoch.

        Parameters
        ----------
        mode : {"queue", "broadcast"}
            "queue": each batch goes to one consumer, writable. "broadcast": each batch goes to all consumers,
            read-only. A late consumer gets those that no consumer had received when its first loop began.
        epochs : int, optional
            The number of epochs, after which the consumers' loops end. None: until it is closed.
        consumers : int
            The number of processes that must have begun to iterate before the first epoch begins.
        background : bool
            True: returns at once, and serves in a thread until the epochs are over, or until the returned
            `Server` or the feed is closed. False: returns when the epochs are over; Ctrl-C ends it.

        Raises
        ------
        ValueError
            The feed has no name (``shared=``), the name is taken, or it has 1 slot; the feed is closed; a
            number is out of range; the mode differs from that of an earlier call.
        TenonError
            The feed is already being served, or another thread waits for a batch.
        """
        from .serving import check, serve

        check(mode, epochs, consumers)
        if not self._is_open():
            raise ValueError("the feed is closed")
        return serve(self, mode, epochs, consumers, background)

    def _is_open(self) -> bool:
        return self in closing.OPEN

    @staticmethod
    def attach(name: str, timeout: float | None = None, wait: float = 0.0) -> AttachedFeed:
        """Attaches to the feed that a process of this user serves under a name.

        Parameters
        ----------
        name : str
        timeout : float, optional
            The seconds that ``next`` waits for a batch before it raises TimeoutError. None: no limit, with a
            warning to the logger "tenon" every 5 s.
        wait : float
            The seconds to wait for the name to appear.

        Returns
        -------
        AttachedFeed

        Raises
        ------
        FileNotFoundError
            No visible process serves a feed under the name.
        ValueError
            The name belongs to another object; or this process is already attached to the feed.
        """
        from .attached import AttachedFeed

        return AttachedFeed(name, timeout, wait)

    def state_dict(self) -> dict[str, Any]:
        """The position of the feed: ``epoch``, and ``next``, the number of batches before the next one. It is
        the index of the next batch unless the feed is shuffled; then there is also ``shuffle``, its seed. If
        the generator ends the epoch, the position is in this epoch until the iterator has ended.

        ``seed``, ``batches`` and ``schema``, a checksum of the fields, say which feed it is a state of.

        With ``world_size``, ``next`` counts the batches of all ranks. The state is the same for all ranks
        that have delivered the same number of batches, and can be restored with another ``world_size``.

        For a generator with a state there are also ``states``, by worker, each after the last batch of the
        worker that was delivered or skipped, or that failed or ended the epoch; ``worker``, which fills the
        next batch; and ``ranks``. Later batches do not change them.

        ``indexed`` is False if a delivered batch was filled by a Python function without ``batch.index``
        and ``batch.seed``. Then the position cannot be restored.
        """
        epoch, index, worker, ignored_index, states = self._native.state()
        state: dict[str, Any] = {"epoch": epoch, "next": index} | self._identity
        if self._native.has_state:
            state |= {"worker": worker, "states": states, "ranks": self._ranks}
        elif ignored_index:
            state["indexed"] = False
        return state

    def _share(self, places: int) -> int:
        """How many of so many places are this rank's."""
        rank, world_size = self._ranks
        return len(range(rank, places, world_size))

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restores a position: the next iteration continues the epoch of ``state`` at its next batch.

        The generator must have a state, or must compute each batch from its index or seed. For a Python
        generator without a state, this is seen when it fills: a batch that was filled without
        ``batch.index`` and ``batch.seed`` is an OpError in a feed that was resumed.

        Parameters
        ----------
        state : dict
            From `state_dict` of a feed with the same generator, schema, batches, seed and shuffle; with the
            same ``workers``, ``rank`` and ``world_size`` if the generator has a state. ``seed``, ``batches``
            and ``schema`` may be missing, and are not checked then.

        Raises
        ------
        TypeError
            ``state`` is no dict, or a value in it has a wrong type.
        ValueError
            The state has no ``epoch`` or no ``next``, is behind the last batch, or is that of a feed with
            another order, seed, schema or number of batches; the generator cannot continue there, or its
            states are those of other workers.
        """
        epoch, index = check_state(state, self._identity)
        is_start = epoch == 0 and index == 0
        if self._native.has_state and "states" in state:
            resume(self._native, state, self._ranks)
            return
        if not is_start or self._epoch is not None:
            check_can_resume(self._native, self.generator, state, is_start)
        self._native.seek(epoch, index)

    def end(self) -> None:
        """Ends the current epoch, if any: its iterator stops.

        If an exception leaves a ``for`` loop, the traceback keeps the iterator; in a notebook until the next
        error.
        """
        live = self._live_epoch()
        if live is not None:
            live._end()

    def close(self, timeout: float = _CLOSE_SECONDS) -> None:
        """Stops the workers. Delivered batches stay valid. Idempotent.

        Raises
        ------
        TimeoutError
            The generator did not return within ``timeout`` seconds. Its thread is abandoned, and everything
            that it uses stays allocated.
        """
        timeout = seconds(timeout, "timeout")
        server = self._server
        try:
            if server is not None:
                server.close()
        finally:
            self._native.close(timeout)
            closing.OPEN.discard(self)
        busy = 0 if self._workers is None else self._workers.join(timeout)
        if busy:
            raise TimeoutError(
                f"the feed is closed, but generator {_name_of(self.generator)!r} has not returned in {busy} "
                "of its threads: they are left behind"
            )

    def __enter__(self) -> Feed:
        return self

    def __exit__(self, exception: object, *_: object) -> None:
        try:
            self.close()
        except TimeoutError as error:
            if exception is None:
                raise
            log.warning("%s", error)

    def _name(self) -> str:
        return _name_of(self.generator)

    def _repr_html_(self) -> str:
        """For notebooks: the statistics, and the fields of a batch. It never raises and never waits."""
        from .._array.text import html_of

        try:
            facts = [f"of {self._name()!r}", repr(self._meter.look(is_call=False))[1:-1]]
        except Exception as error:
            facts = [text_of(error)]
        lines = [f"{name}: {dtype} {shape}" for name, dtype, shape in self.schema.fields]
        return html_of("tenon.Feed", facts, "\n".join(lines))

    def __repr__(self) -> str:
        counts = repr(self._meter.look(is_call=False))
        return f"<tenon.Feed of {self._name()!r}: {counts[1:]}"


def _check_inline(generator: Any, processes: bool | str, fill_timeout: float | None) -> None:
    if processes or fill_timeout is not None:
        raise ValueError(
            "workers is 0, so the consumer fills in its own thread: processes= and fill_timeout= need "
            "a worker"
        )
    if isinstance(generator, PythonGenerator):
        raise ValueError(
            f"workers is 0, and the loop of {generator.name!r} needs a thread of its own: give a function "
            "that fills one batch"
        )


_answers.answer(Feed, _answers.FEED)


def _loop_of(generator: Any, schema: Schema) -> PythonGenerator | EachBatch | None:
    """What workers in Python run; None: the generator is native."""
    if isinstance(generator, (CFunction, Plugin)):
        return None
    for name in schema.names:
        if name in dir(WorkerBatch) or name in WorkerBatch.__annotations__:
            raise ValueError(
                f"a field cannot be named {name!r}: the batch that a generator fills has an attribute of "
                "that name"
            )
    return generator if isinstance(generator, PythonGenerator) else EachBatch(generator, schema)


def _source_of(
    generator: Any, loop: Any, schema: Schema, processes: bool | str, rules: Rules
) -> tuple[Any, dict[str, Any], Workers | None]:
    """What NativeFeed takes: a native function and its constants, or what starts Python workers."""
    if isinstance(generator, (CFunction, Plugin)):
        if isinstance(processes, str) and processes != "fork":
            raise ValueError(f"processes is {processes!r}: workers that run native code are forked")
        constants = generator.constants_of_feed() if isinstance(generator, CFunction) else {}
        return generator._native, constants, None
    workers = Workers(schema, loop, processes, rules=rules)
    return workers, {}, workers


def _advice_for_one_thread(generator: Any, processes: bool) -> str:
    """Why one thread alone calls a generator, and what lets several workers call it; "": several do."""
    if processes or isinstance(generator, PythonGenerator):
        return ""
    if isinstance(generator, (CFunction, Plugin)):
        if generator.threadsafe:
            return ""
        way = "threadsafe=True" if isinstance(generator, CFunction) else "TENON_PLUGIN_THREADSAFE"
        return (
            f"it is not thread-safe: {way} says that its calls may overlap, processes=True has copies of it"
        )
    return (
        "it is called by one thread, because it may have a state: tn.worker gives each worker a state of its "
        "own, processes=True has copies of it"
    )


def _name_of(generator: Any) -> str:
    if isinstance(generator, (CFunction, Plugin, PythonGenerator)):
        return generator.name
    return name_of(generator)
