# SPDX-License-Identifier: Apache-2.0
"""Python functions that fill batches: `worker`, and the loop that each worker runs."""

from __future__ import annotations

import functools
import inspect
import pickle
import signal
import sys
import threading
import time
import types
import weakref
from collections.abc import Callable, Iterator
from types import FrameType
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from .. import _core
from .._array.fields import Fields, FieldsLike, unwritten_text
from .._core import NativeWorker, Schema
from .._errors import LeaseEscaped, is_of_handler, traceback_text
from .._sync.endings import end_views
from .._sync.lease import where_views_are_kept
from .._sync.plain_functions import refuse_generators
from .._values import flag
from .schema import schema_of
from .seeds import import_generators, seed_for_batch
from .unwritten import MarkedFields

if TYPE_CHECKING:
    import multiprocessing.context

_LOOK_SECONDS = 0.01
_LEAVE_SECONDS = 10.0  # that a thread may take to leave where it waits
_END_SECONDS = 1.0
_START_METHODS = ("fork", "spawn", "forkserver")
HOW_TO_RESUME = (
    "Compute each batch from batch.index or batch.seed, or give the generator a state: the methods state() "
    "and restore(state) of a callable, tn.worker(schema, has_state=True) of a loop"
)
KEPT_HINT = (
    ". If the generator is to leave elements of an earlier batch there, say so in the schema: "
    '(dtype, shape, "kept"). This is logged once; feed.stats().unwritten counts such batches'
)
_LOOP_HINT = "loop over the batches that it gets, and assign to their fields: batch.x[...] = ..."


def _pickle() -> types.ModuleType:
    """Imported at its first use: the import of the package takes less time without it."""
    import pickle

    return pickle


class WorkerBatch(Fields):
    """A free slot that a worker fills: its fields as writable NumPy arrays, by attribute or item.

    ``batch.x = value`` writes the elements of field x, as ``batch.x[...] = value`` does. The arrays are empty
    after the batch is passed on. Copy what you need to keep.

    Attributes
    ----------
    index, epoch, seed : int
        Of the batch. ``seed`` depends only on the feed's seed, epoch and index.
    epoch_seed : int
        Depends only on the feed's seed and the epoch: equal for all batches of an epoch.
    worker : int
        The number of this worker, counted from 0.
    rows : int
        The rows of the schema. Set it, or call `resize`, to pass on fewer rows.
    """

    _noun = "the batch"
    _native: NativeWorker | None  # None: the batch was passed on
    _rows: int
    _kept: tuple[str, ...]
    _roots: dict[str, Any]  # the arrays of which the views are views
    _views: dict[str, Any]
    _ends_epoch: bool
    _index: int
    _seed: int
    _is_index_used: bool
    epoch: int
    epoch_seed: int
    worker: int

    def __init__(self, native: NativeWorker, schema: Schema) -> None:
        self.__dict__.update(
            _native=native,
            _names=schema.names,
            _kept=schema.kept,
            _index=native.index,
            _seed=native.seed,
            _is_index_used=False,
            epoch=native.epoch,
            epoch_seed=native.epoch_seed,
            worker=native.worker,
            _rows=schema.rows,
            _roots={},
            _views={},
            _ends_epoch=False,
        )

    def _slot(self) -> NativeWorker:
        if self._native is None:
            raise ValueError(f"batch {self._index} was passed on: it has no fields any more")
        return self._native

    # Their use is noted. A batch that was filled without them depends on the batches before it.
    @property
    def index(self) -> int:
        self._is_index_used = True
        return self._index

    @property
    def seed(self) -> int:
        self._is_index_used = True
        return self._seed

    @property
    def rows(self) -> int:
        return self._rows

    @rows.setter
    def rows(self, rows: int) -> None:
        self._slot().set_rows(rows)
        self._rows = rows

    @property
    def attachment(self) -> bytes:
        """Bytes that are passed with the batch. ``attachment_nbytes`` of the feed limits their size."""
        return self._slot().attachment()

    @attachment.setter
    def attachment(self, data: bytes) -> None:
        self._slot().attach(data)

    def _array(self, name: str) -> Any:
        if name not in self._views:
            if name not in self._names:
                raise KeyError(name)
            self._roots[name] = self._slot().array(self._names.index(name)).numpy()
            self._views[name] = self._roots[name][...]
        return self._views[name]

    def keys(self) -> tuple[str, ...]:
        return self._names

    def __iter__(self) -> Iterator[Any]:
        return (self[name] for name in self._names)

    def resize(self, name: str, shape: tuple[int, ...]) -> Any:
        """Reduces the shape of a field in this batch. Returns a C-contiguous array on the same memory.

        Parameters
        ----------
        name : str
        shape : tuple of int
            At most the shape of the schema in each axis. Axis 0 counts rows, and must finally be equal in all
            fields.
        """
        if name not in self._names:
            raise KeyError(self._missing(name))
        self._slot().set_shape(self._names.index(name), shape)
        self._let_go(name, sys._getframe(1))
        return self[name]

    def end(self) -> None:
        """Ends the epoch before this batch, for streams of unknown length. This batch, and those that come
        after it in the order of the epoch, are not delivered."""
        self._slot()
        self.__dict__["_ends_epoch"] = True

    def _let_go(self, name: str, frame: FrameType | None) -> None:
        if name in self._views and not end_views([self._views.pop(name), self._roots.pop(name)], frame):
            where = where_views_are_kept([self._slot().array(self._names.index(name))])
            raise LeaseEscaped(
                f"views of field {name!r} live on after the batch was filled{where}; drop them, or copy what "
                "is to be kept"
            )

    def _let_go_of_all(self, frame: FrameType | None) -> None:
        for name in list(self._views):
            self._let_go(name, frame)

    def _unwritten(self) -> list[str]:
        """The fields whose array was not requested. A batch without rows has no elements to be written."""
        if not self._rows:
            return []
        return [name for name in self._names if name not in self._views and name not in self._kept]

    def _end(self) -> None:
        self._native = None

    def __repr__(self) -> str:
        return f"<tenon.WorkerBatch {self._index} of epoch {self.epoch}: {', '.join(self._names)}>"


class _Batches:
    """The iterable of a worker's loop: each step passes one batch on and returns the next."""

    def __init__(self, native: NativeWorker, schema: Schema, rules: Rules) -> None:
        self._native = native
        self._schema = schema
        self._rules = rules
        self._batch: WorkerBatch | None = None
        self._is_over = False
        self._keeper: _Keeper | None = None  # None: the loop has not called keep_state
        self._first_state: bytes | None = None  # before the first batch
        self._last_state: bytes | None = None  # a loop that is called again continues from it
        self._is_new = False  # the loop was called again, and its state is not restored yet
        self._marks = MarkedFields(native, schema) if rules.check == "values" else None

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(self._no_field(name))

    def __setattr__(self, name: str, value: Any) -> None:
        if not name.startswith("_"):
            raise AttributeError(self._no_field(name))
        super().__setattr__(name, value)

    @staticmethod
    def _no_field(name: str) -> str:
        return (
            f"this is the iterable of all batches and has no field {name!r}: write "
            "`for batch in batches:` and use the fields of `batch`"
        )

    def __iter__(self) -> _Batches:
        return self

    def __next__(self) -> WorkerBatch:
        self.pass_on(sys._getframe(1))
        if not self._native.next():
            self._is_over = True
            raise StopIteration
        return self.open()

    def open(self) -> WorkerBatch:
        self._batch = WorkerBatch(self._native, self._schema)
        if self._rules.has_state:
            self._bring_state()
        if self._rules.seeds:
            seed_for_batch(self._batch._seed)
        if self._marks is not None:
            self._marks.put()
        return self._batch

    def keep_state(self, state: Callable[[], Any], restore: Callable[[Any], Any]) -> None:
        """Says how the state of the loop is saved and restored. A loop of ``tn.worker(..., has_state=True)``
        calls it once before its first step.

        Parameters
        ----------
        state : callable
            Returns the state after the last batch, as an object that can be pickled. It is called after each
            batch, and once before the first one.
        restore : callable
            ``restore(value)`` brings the loop back to the state that ``value`` describes.
        """
        if not self._rules.has_state:
            raise TypeError("this loop keeps a state: decorate it with tn.worker(schema, has_state=True)")
        self._keep(_Keeper(state, restore, begins_again=True))

    def _keep(self, keeper: _Keeper) -> None:
        self._keeper = keeper
        self._is_new = keeper.begins_again and self._last_state is not None

    def _bring_state(self) -> None:
        """Restores the state from which the open batch is filled."""
        keeper = self._keeper
        if keeper is None:
            raise TypeError(
                "the loop has has_state=True, and no state: call batches.keep_state(state, restore) before "
                "the loop over `batches`"
            )
        if self._first_state is None:
            self._first_state = _pickle().dumps(keeper.state())
        wanted = self._native.restored()
        if wanted is None and self._is_new:
            wanted = self._last_state
        self._is_new = False
        if wanted is not None:
            keeper.restore(_pickle().loads(wanted or self._first_state))

    def _save_state(self) -> None:
        assert self._keeper is not None
        self._last_state = _pickle().dumps(self._keeper.state())
        self._native.set_state(self._last_state)

    def begin_loop(self) -> None:
        self._keeper = None

    def _note_index(self, batch: WorkerBatch) -> None:
        if batch._is_index_used or self._rules.has_state:
            return
        if self._native.is_resumed:
            raise ValueError(
                f"batch {batch._index} of epoch {batch.epoch} was filled without batch.index and "
                f"batch.seed, and the feed was resumed by load_state_dict. {HOW_TO_RESUME}"
            )
        self._native.ignore_index()

    def pass_on(self, frame: FrameType | None) -> None:
        """Passes the open batch on. ``frame`` runs the loop; views that only its variables name are ended."""
        batch = self._batch
        if batch is None:
            return
        code, text = 0, ""
        if batch._ends_epoch:
            code = _core.END_OF_EPOCH
        elif unwritten := batch._unwritten():
            what = f"batch {batch._index} of epoch {batch.epoch}"
            text = unwritten_text(what, "batch", batch.keys(), unwritten)
            if self._rules.check:
                raise ValueError(text)
            text += KEPT_HINT
            code = _core.UNWRITTEN
        elif self._marks is not None:
            self._marks.check()
        batch._let_go_of_all(frame)
        if code != _core.END_OF_EPOCH:
            self._note_index(batch)
        if self._rules.has_state:
            self._save_state()
        batch._end()
        self._batch = None
        self._native.answer(code, text)

    def fail(self, code: int, text: str) -> None:
        batch, self._batch = self._batch, None
        if batch is not None:
            try:
                batch._let_go_of_all(None)
            except LeaseEscaped as error:
                code, text = -1, f"{text}\nand {error}" if text else str(error)
            batch._end()
        if self._rules.has_state:
            text = self._save_state_at_end(code, text)
        self._native.answer(code, text)

    def _save_state_at_end(self, code: int, text: str) -> str:
        """After a failure, or after the end of a loop, which begins again in the next epoch."""
        keeper = self._keeper
        if keeper is None:
            return text
        if code == _core.END_OF_EPOCH and keeper.begins_again and self._first_state is not None:
            self._last_state = None
            self._native.set_state(self._first_state)
            return text
        try:
            self._save_state()
        except Exception as error:  # the feed then restores the last one that it has
            error.__traceback__ = None
            return f"{text}\nand its state cannot be saved: {error!r}"
        return text

    def has_ended(self) -> bool:
        return self._is_over

    def has_open(self) -> bool:
        return self._batch is not None

    def ends_epoch(self) -> bool:
        return self._batch is not None and self._batch._ends_epoch


class _Keeper(NamedTuple):
    """How the state of a loop is saved and restored."""

    state: Callable[[], Any]
    restore: Callable[[Any], Any]
    begins_again: bool  # a further call of the loop begins in the first state


class Rules(NamedTuple):
    """The rules for the loop of a worker."""

    check: bool | Literal["values"] = False  # a batch is an error if a field, or an element, was not written
    batches: int | None = None  # of an epoch. None: the loop decides where an epoch ends
    has_state: bool = False
    seeds: bool = False  # before each batch, the global generators of random numbers are seeded

    def result_of(self, error: BaseException) -> tuple[int, str]:
        """Code and text of a fill that raised. StopIteration ends the epoch, unless its end is given."""
        is_stop = isinstance(error, StopIteration)
        if is_stop and self.batches is None:
            return _core.END_OF_EPOCH, ""
        return -1, traceback_text(error) + (_STOP_HINT if is_stop else "")

    def early_end_text(self, index: int) -> str:
        return (
            f"the loop returned before it passed on batch {index}, and an epoch has {self.batches} batches. "
            "The next step of the loop passes a batch on, so loop over all of `batches`, without `break` or "
            "`return`. If the loop decides where an epoch ends, call batch.end()"
        )


_NO_RULES = Rules()
_STOP_HINT = "\nThe feed has batches=, so the generator ends an epoch earlier by batch.end()."


def run(
    native: NativeWorker,
    schema: Schema,
    function: Callable[..., Any],
    setup: Callable[[], Any] | None = None,
    rules: Rules = _NO_RULES,
) -> None:
    """Runs a worker until its feed is closed.

    ``function`` gets the batches. It is called again after an exception, which the consumer gets at the
    position of the batch, and after it has returned or raised StopIteration. These drop the open batch, and
    end the epoch before it; they are errors if the feed knows the number of batches.
    """
    batches = _Batches(native, schema, rules)
    while not batches.has_ended():
        code, text = _core.END_OF_EPOCH, ""
        try:
            if setup is not None:
                setup()
                setup = None
            batches.begin_loop()
            function(batches)
            if batches.has_ended():
                return
            if rules.batches is not None and not batches.ends_epoch():
                code = -1
        except BaseException as error:
            if isinstance(error, (SystemExit, GeneratorExit)) and batches.has_ended():
                return
            code, text = rules.result_of(error)
            error.__traceback__ = None
            del error
        if not batches.has_open() and not native.next():
            return
        batches.fail(code, text or ("" if code == _core.END_OF_EPOCH else rules.early_end_text(native.index)))


class Inline:
    """The fills of a callable in the thread of the consumer, for a feed without workers."""

    def __init__(self, loop: EachBatch, schema: Schema, rules: Rules) -> None:
        self._loop = loop
        self._schema = schema
        self._rules = rules
        self._batches: _Batches | None = None
        self._interrupt: BaseException | None = None
        self._feed: weakref.ref[Any] | None = None

    def belong_to(self, feed: Any) -> None:
        self._feed = weakref.ref(feed)

    def interrupt(self, error: BaseException) -> None:
        """KeyboardInterrupt, other exceptions that are no Exception, and those of signal handlers are raised
        in the consumer, or in the server. The epoch ends, so that the batch is neither skipped nor filled
        again. If the feed is served, the serving ends instead: consumers get what is ready before the batch.
        """
        if isinstance(error, Exception) and not is_of_handler(error):
            return
        self._interrupt = error
        feed = None if self._feed is None else self._feed()
        if feed is not None:
            feed._native.end() if feed._server is None else feed._native.serve_end()

    def fill(self, native: NativeWorker) -> None:
        batches = self._batches
        if batches is None:
            self._batches = batches = _Batches(native, self._schema, self._rules)
            self._loop.keep_state_of(batches)
        batch = None
        try:
            batch = batches.open()
            self._loop.fill(batch)
            batches.pass_on(sys._getframe())
        except BaseException as error:
            self.interrupt(error)
            del batch
            batches.fail(*self._rules.result_of(error))

    def take_interrupt(self) -> BaseException | None:
        error, self._interrupt = self._interrupt, None
        return error


def _run_thread(
    native: NativeWorker, schema: Schema, function: Callable[..., Any], setup: Any, rules: Rules
) -> None:
    """A thread cannot be replaced. So an error that ends its loop is reported for each requested batch."""
    try:
        run(native, schema, function, setup, rules)
    except BaseException as error:
        text = traceback_text(error)
        error.__traceback__ = None
        del error
        while native.next():
            native.answer(-1, text)


def _run_process(link: str, schema: Schema, function: Callable[..., Any], setup: Any, rules: Rules) -> None:
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a Ctrl-C is for the feed's process, which ends this one
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    run(NativeWorker(link, schema), schema, function, setup, rules)


class Workers:
    """Starts the workers of a Python function for a feed, and detects their ends.

    Parameters
    ----------
    schema : Schema
    function : callable
        The loop, which gets the batches.
    processes : bool or str
        False: threads. True: processes with the default start method; or the name of a start method.
    prepare : callable, optional
        ``prepare(epoch, index)`` returns the bytes from which a batch is filled, or None at the end of the
        epoch.
    """

    def __init__(
        self,
        schema: Schema,
        function: Callable[..., Any],
        processes: bool | str | multiprocessing.context.BaseContext,
        prepare: Callable[[int, int], bytes | None] | None = None,
        setup: Callable[[int], Any] | None = None,
        rules: Rules = _NO_RULES,
    ) -> None:
        self._schema = schema
        self._rules = rules
        self._function = function
        self._setup = setup
        self._context: Any = None
        if prepare is not None:
            self.prepare = prepare
        if processes:
            import multiprocessing.context

            if isinstance(processes, str) and processes not in _START_METHODS:
                raise ValueError(f"processes is {processes!r}: True, False or one of {_START_METHODS}")
            if isinstance(processes, multiprocessing.context.BaseContext):
                self._context = processes
            else:
                self._context = multiprocessing.get_context(processes if isinstance(processes, str) else None)
            _close_feeds_before_processes_end()
        self._processes: dict[int, Any] = {}
        # Weak: the end of the native part tells the consumer that the thread has ended.
        self._threads: list[tuple[threading.Thread, weakref.ref[NativeWorker]]] = []

    def start(self, worker: int, link: str) -> int:
        setup = None if self._setup is None else functools.partial(self._setup, worker)
        if self._context is None:
            # Here, so that a thread that cannot join is an error of who starts it.
            native = NativeWorker(link, self._schema)
            thread = threading.Thread(
                target=_run_thread,
                args=(native, self._schema, self._function, setup, self._rules),
                name=f"tenon-worker-{worker}",
                daemon=True,
            )
            try:
                thread.start()
            except BaseException:  # whose traceback may be kept, and would keep the worker
                del native, thread
                raise
            self._threads = [one for one in self._threads if one[0].is_alive()]
            self._threads.append((thread, weakref.ref(native)))
            return 0
        if self._context.get_start_method() == "fork":
            import_generators()
        process = self._context.Process(
            target=_run_process,
            args=(link, self._schema, self._function, setup, self._rules),
            name=f"tenon-worker-{worker}",
            daemon=True,
        )
        # The thread of the feed that calls this blocks all signals. Children would inherit that, and a fork
        # server would not get SIGCHLD.
        blocked = signal.pthread_sigmask(signal.SIG_SETMASK, [])
        try:
            process.start()
        except (pickle.PicklingError, AttributeError, TypeError) as error:  # which one depends on the version
            method = self._context.get_start_method()
            if method == "fork":
                raise
            raise pickle.PicklingError(
                f"the generator cannot be sent to a worker process, which is started with {method!r}: "
                f"{error}. Pass a function of a module, with arguments that can be pickled, or "
                "processes='fork'"
            ) from error
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
        assert process.pid is not None
        import multiprocessing.process

        # At exit, a forked child would end the processes that multiprocessing lists there. The feed ends its
        # workers itself.
        multiprocessing.process._children.discard(process)  # type: ignore[attr-defined]
        self._processes[process.pid] = process
        return int(process.pid)

    def reap(self, worker: int, pid: int) -> int:
        process = self._processes.pop(pid)
        process.join()
        code: int | None = process.exitcode  # not closed: a program may join a worker of a DataLoader
        if code is None:  # other code has waited for it
            return -1
        return -code if code < 0 else (code & 0xFF) << 8

    def join(self, timeout: float) -> int:
        """Waits for threads. Returns the number of those that are busy, and are abandoned. A thread that
        runs no code of the generator may have longer: the machine is busy."""
        deadline = time.monotonic() + timeout
        others = [one for one in self._threads if one[0] is not threading.current_thread()]
        for thread, ref in others:
            thread.join(max(deadline - time.monotonic(), 0))
            native = ref()
            while native is not None and native.is_waiting and thread.is_alive():
                if time.monotonic() > deadline + _LEAVE_SECONDS:
                    break
                thread.join(_LOOK_SECONDS)
            if native is not None and native.is_over:  # it runs what the generator does at its end
                thread.join(_END_SECONDS)
            native = None
        return sum(thread.is_alive() for thread, _ in others)


_has_registered = False


def _close_feeds_before_processes_end() -> None:
    # At exit, multiprocessing ends its children. Feeds are closed before that, or they would start new ones.
    global _has_registered
    if _has_registered:
        return
    import atexit
    import multiprocessing.util  # noqa: F401  (which registers its own end first)

    from .closing import close_all

    atexit.register(close_all)
    _has_registered = True


class PythonGenerator:
    """A Python function with its arguments: the result of calling a function that `worker` decorates."""

    def __init__(
        self,
        function: Callable[..., Any],
        schema: Schema | None,
        arguments: tuple[Any, ...],
        named: dict[str, Any],
        has_state: bool = False,
    ) -> None:
        self.name: str = name_of(function)
        self.schema = schema
        self.has_state = has_state
        self._function = function
        self._arguments = arguments
        self._named = named

    def __call__(self, batches: Any) -> None:
        refuse_result(self._function(batches, *self._arguments, **self._named), self.name, _LOOP_HINT)

    def __repr__(self) -> str:
        return f"<generator {self.name!r}>"


class Worker:
    """A function that `worker` decorates. Call it with the further arguments of the function."""

    def __init__(self, function: Callable[..., Any], schema: Schema, has_state: bool) -> None:
        functools.update_wrapper(self, function)
        self.name: str = function.__qualname__
        refuse_generators(function, self.name, _LOOP_HINT)
        self._function = function
        self.schema = schema
        self.has_state = has_state

    def __call__(self, *arguments: Any, **named: Any) -> PythonGenerator:
        return PythonGenerator(_Undecorated(self), self.schema, arguments, named, self.has_state)


class _Undecorated:
    """The function that a `Worker` wraps. It is pickled by its name, which is that of the `Worker`."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self.__qualname__ = worker._function.__qualname__

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        return self._worker._function(*arguments, **named)

    def __reduce__(self) -> Any:
        return _find, (self._worker.__module__, self._worker.name)


def _find(module: str, name: str) -> _Undecorated:
    import importlib

    found: Any = importlib.import_module(module)
    for part in name.split("."):
        found = getattr(found, part)
    if not isinstance(found, Worker):
        raise TypeError(f"{module}.{name} is not decorated by tn.worker any more")
    return _Undecorated(found)


def worker(schema: FieldsLike, *, has_state: bool = False) -> Callable[[Callable[..., Any]], Worker]:
    """Decorates a Python function that fills batches in a loop, as a generator for feeds.

    The function gets the batches to fill, followed by the arguments of the call::

        @tn.worker(tn.schema(data=("f4", (64, 784)), label=("i8", (64,))))
        def images(batches, folder):
            files = open_all(folder)          # once in each worker
            for batch in batches:             # each step passes a batch on
                files.read(batch.index, out=batch.data)

        if __name__ == "__main__": feed = tn.Feed(images("train/"), workers=2, processes=True)

    Each worker runs the function once for all epochs, in its own thread or process. Any free worker gets the
    next batch. A batch that is computed from ``batch.index`` and ``batch.epoch``, or from ``batch.seed``, is
    the same for any number of workers. An exception is raised in the consumer at the position of the batch,
    and the function is called again for the next batch.

    `WorkerBatch.end` ends the epoch before the open batch. So does a return, or a StopIteration that leaves
    the function, unless the feed has ``batches``: then it is an error at the position of the batch.

    Parameters
    ----------
    schema : Schema, or dict of str to (dtype, shape)
    has_state : bool
        The loop has a state, which `Feed.state_dict` saves: it calls ``batches.keep_state(state, restore)``
        before its first step. ``state()`` returns the state after the last batch, ``restore(value)`` brings
        the loop back to it::

            @tn.worker(tn.schema(data=("f4", (64, 784))), has_state=True)
            def records(batches, path):
                file = open(path, "rb")
                batches.keep_state(file.tell, file.seek)
                for batch in batches:
                    file.readinto(batch.data)

    Returns
    -------
    callable
        It returns a generator for `Feed`. Its arguments and the name of the function are pickled for worker
        processes. So with start methods other than fork, the function must be defined at the top level of
        a module.
    """
    made = schema_of(schema)
    has_state = flag(has_state, "has_state")
    return lambda function: Worker(function, made, has_state)


class EachBatch:
    """The loop of a function that fills one batch at a time."""

    def __init__(self, function: Callable[[WorkerBatch], Any], schema: Schema) -> None:
        self._function = function
        self._name = name_of(function)
        self._hint = f"assign to the fields of the batch that it gets: batch.{schema.names[0]}[...] = ..."
        refuse_generators(function, self._name, self._hint)

    @property
    def has_state(self) -> bool:
        return all(callable(getattr(self._function, name, None)) for name in ("state", "restore"))

    def keep_state_of(self, batches: _Batches) -> None:
        if self.has_state:
            function: Any = self._function
            batches._keep(_Keeper(function.state, function.restore, begins_again=False))

    def __call__(self, batches: Any) -> None:
        self.keep_state_of(batches)
        for batch in batches:
            self.fill(batch)
            del batch

    def fill(self, batch: WorkerBatch) -> None:
        refuse_result(self._function(batch), self._name, self._hint)


def name_of(function: Any) -> str:
    return str(getattr(function, "__qualname__", type(function).__name__))


def refuse_result(result: Any, name: str, hint: str) -> None:
    """Raises TypeError for a result other than None, which would be lost."""
    if result is None:
        return
    if inspect.iscoroutine(result):
        result.close()  # or it warns that it was not awaited
    raise TypeError(f"{name} returned {type(result).__name__}, which is not used. Return None; {hint}")
