# SPDX-License-Identifier: Apache-2.0
"""Consumers of feeds: ONNX Runtime sessions, and asyncio."""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
from collections.abc import Callable, Sequence
from typing import Any

from .._core import Batch, Schema, from_dlpack
from .._errors import log
from .epochs import Epoch, OwnFeed

_END_SECONDS = 1.0

# Element types by ONNX Runtime's names for them: ours, and the number in ONNX's TensorProto.DataType.
_ELEMENTS = {
    "tensor(float)": ("float32", 1),
    "tensor(uint8)": ("uint8", 2),
    "tensor(int8)": ("int8", 3),
    "tensor(uint16)": ("uint16", 4),
    "tensor(int16)": ("int16", 5),
    "tensor(int32)": ("int32", 6),
    "tensor(int64)": ("int64", 7),
    "tensor(bool)": ("bool", 9),
    "tensor(float16)": ("float16", 10),
    "tensor(double)": ("float64", 11),
    "tensor(uint32)": ("uint32", 12),
    "tensor(uint64)": ("uint64", 13),
    "tensor(complex64)": ("complex64", 14),
    "tensor(complex128)": ("complex128", 15),
    "tensor(bfloat16)": ("bfloat16", 16),
    "tensor(float8e4m3fn)": ("float8_e4m3fn", 17),
    "tensor(float8e4m3fnuz)": ("float8_e4m3fnuz", 18),
    "tensor(float8e5m2)": ("float8_e5m2", 19),
    "tensor(float8e5m2fnuz)": ("float8_e5m2fnuz", 20),
}


def session_runner(
    schema: Schema, session: Any, outputs: Sequence[str] | None, fields: Sequence[str]
) -> Callable[[Batch], tuple[Any, ...]]:
    """A function that runs a session on a batch, for `Feed.onnxruntime`. Checks inputs and outputs now."""
    described = {name: (str(dtype), tuple(shape)) for name, dtype, shape in schema.fields}
    inputs = []
    for wanted in session.get_inputs():
        name = wanted.name
        if name not in described:
            raise ValueError(
                f"the model's input {name!r} is no field of the feed, which has {list(described)}"
            )
        inputs.append((name, _check_input(name, wanted.type, wanted.shape, *described[name])))
    results = [(name, _check_output(name, kind)) for name, kind in _chosen_outputs(session, outputs)]
    for name in fields:
        if name not in described:
            raise ValueError(f"fields has {name!r}, and the feed's fields are {list(described)}")

    def run(batch: Batch) -> tuple[Any, ...]:
        # A new one for each batch: a bound output would get the memory of the last run.
        binding = session.io_binding()
        for name, element in inputs:
            array = batch[name]
            binding.bind_input(name, "cpu", 0, element, list(array.shape), array.data_ptr)
        for name, _ in results:
            binding.bind_output(name, "cpu")
        session.run_with_iobinding(binding)  # the caller's reference to the batch keeps the slot meanwhile
        values = zip(binding.get_outputs(), results, strict=True)
        made = [_output(value, dtype) for value, (_, dtype) in values]
        return (*made, *(batch[name].numpy() for name in fields))

    return run


def _check_input(name: str, kind: str, axes: Sequence[Any], dtype: str, shape: tuple[int, ...]) -> int:
    """The number of the input's element type."""
    if kind not in _ELEMENTS:
        raise ValueError(f"the model's input {name!r} is a {kind}, which a feed cannot give")
    wanted, element = _ELEMENTS[kind]
    if dtype != wanted:
        raise ValueError(f"field {name!r} is {dtype}, and the model's input is {wanted}")
    if not axes:  # of no axes, or of axes that the model does not tell: its run will say
        return element
    fits = len(axes) == len(shape) and all(
        length == given for length, given in zip(axes, shape, strict=True) if isinstance(length, int)
    )
    if not fits:
        raise ValueError(f"field {name!r} has the shape {shape}, and the model's input {list(axes)}")
    return element


def _check_output(name: str, kind: str) -> str:
    if kind not in _ELEMENTS:
        raise ValueError(f"the model's output {name!r} is a {kind}: name tensors of numbers in outputs=")
    return _ELEMENTS[kind][0]


def _chosen_outputs(session: Any, names: Sequence[str] | None) -> list[tuple[str, str]]:
    kinds = {output.name: output.type for output in session.get_outputs()}
    if names is not None and not names:
        raise ValueError(f"outputs is empty: choose some of {list(kinds)}")
    for name in names or ():
        if name not in kinds:
            raise ValueError(f"outputs has {name!r}, and the model's outputs are {list(kinds)}")
    return [(name, kinds[name]) for name in (kinds if names is None else names)]


def _output(value: Any, dtype: str) -> Any:
    """The memory of an OrtValue as a NumPy array."""
    array = from_dlpack(value)
    return (array.view("bool") if dtype == "bool" else array).numpy()  # they travel as uint8


class AsyncEpoch(Epoch):
    """One epoch for asyncio. A thread waits for a batch that is not ready, one thread for each wait.

    The thread does not refer to the epoch. A batch that it gets stays with the epoch until a task takes it,
    so a cancelled task loses no batch.
    """

    _waiter: _Waiter | None = None  # for __del__, when __init__ raises

    def __init__(self, feed: OwnFeed, convert: Callable[[Batch], Any], device: str | None = None) -> None:
        super().__init__(feed, convert, device)
        self._waiter = _Waiter(self._next)
        self._next = self._waiter.take

    def __aiter__(self) -> AsyncEpoch:
        return self

    async def __anext__(self) -> Any:
        await asyncio.sleep(0)  # other tasks run, and can cancel this one, even if each batch is ready
        waiter = self._waiter
        while waiter is not None and self._feed is not None:
            try:
                return next(self)
            except StopIteration:
                break
            except NothingYet:
                await waiter.wait(self._feed.timeout)
        try:
            self._stop()
        except StopIteration:
            raise StopAsyncIteration from None

    async def aclose(self) -> None:
        """Ends the epoch."""
        self._end()

    def _end(self) -> None:
        super()._end()  # wakes the thread
        if self._waiter is not None:
            self._waiter.drop()


class NothingYet(TimeoutError):
    """The feed has no batch at this moment."""


class _Waiter:
    """The feed's ``next`` without waiting, and a thread that waits. Used by one event loop at a time."""

    def __init__(self, take: Callable[..., Any]) -> None:
        self._take = take
        self._pending: concurrent.futures.Future[Any] | None = None

    def take(self, timeout: float | None, warn: Callable[[str], object]) -> Batch | None:
        """As NativeFeed.next, but raises NothingYet instead of waiting."""
        if self._pending is None:
            try:
                return self._take(0.0, warn)  # type: ignore[no-any-return]
            except TimeoutError:
                raise NothingYet from None
        if not self._pending.done():
            raise NothingYet
        pending, self._pending = self._pending, None
        return pending.result()  # type: ignore[no-any-return]

    async def wait(self, timeout: float | None) -> None:
        """Waits until take() has a result. Starts a thread unless one is waiting."""
        loop = asyncio.get_running_loop()
        arrived = loop.create_future()

        def wake() -> None:
            if not arrived.done():
                arrived.set_result(None)

        def tell(_: object) -> None:
            try:
                loop.call_soon_threadsafe(wake)
            except RuntimeError:  # the loop is closed
                pass

        if self._pending is None:
            self._pending = concurrent.futures.Future()
            arguments = (self._pending, self._take, timeout)
            threading.Thread(target=_await_next, args=arguments, name="tenon await", daemon=True).start()
        self._pending.add_done_callback(tell)
        await arrived

    def drop(self) -> None:
        """Waits for the end of the thread, which was woken. Its batch is dropped."""
        pending, self._pending = self._pending, None
        if pending is not None:
            concurrent.futures.wait([pending], _END_SECONDS)


def _await_next(
    pending: concurrent.futures.Future[Any], take: Callable[..., Any], timeout: float | None
) -> None:
    try:
        batch = take(timeout, log.warning)
    except BaseException as error:
        pending.set_exception(error)
    else:
        pending.set_result(batch)
