# SPDX-License-Identifier: Apache-2.0
"""The common part of feeds of this process and of other processes: batches in several forms."""

from __future__ import annotations

import weakref
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from .._core import Schema, torch_tensors

if TYPE_CHECKING:
    from .epochs import Iteration


class Forms:
    """Batches of a feed as NumPy, torch and JAX arrays, as DataBatches, and as inputs of ONNX Runtime."""

    schema: Schema
    batches: int | None
    _epoch: weakref.ref[Iteration] | None = None  # None: no iteration has begun

    def __iter__(self) -> Iterator[Any]:
        return self._iterate(itself)

    def _live_epoch(self) -> Iteration | None:
        epoch = None if self._epoch is None else self._epoch()
        return None if epoch is None or epoch._feed is None else epoch

    def _iterate(self, convert: Callable[[Any], Any]) -> Iterator[Any]:
        """One epoch."""
        raise NotImplementedError

    def _iterate_in_tasks(self, convert: Callable[[Any], Any]) -> AsyncIterator[Any]:
        raise TypeError(f"a {type(self).__name__} is not for async loops: iterate it in a thread")

    def numpy(self) -> Batches:
        """Epochs of tuples of NumPy arrays, one for each field. They lie on the slot; nothing is copied."""
        return Batches(self, _tuple_of(lambda array: array.numpy()))

    def torch(self, device: Any = None, trust: bool = False) -> Batches:
        """Epochs of tuples of torch tensors, one for each field. They lie on the slot.

        Parameters
        ----------
        device : optional
            None or "cpu": tensors on the slot. Another device of PyTorch: copies on that device.
        trust : bool
            For batches that several processes read: you promise not to write to the tensors, because PyTorch
            has no read-only tensors. A write ends the process. Without the promise, the tensors are copies.
            It has no effect on other batches, which are writable.
        """
        if device is None or str(device) == "cpu":
            return Batches(self, lambda batch: torch_tensors(batch.arrays, trust))
        return Batches(self, _tuple_of(lambda array: array.torch(True).to(device)))

    def jax(self) -> Batches:
        """Epochs of tuples of JAX arrays, one for each field. They lie on the slot. JAX never writes.

        Raises
        ------
        ValueError
            A field has 64-bit elements, which JAX supports only with ``jax_enable_x64``.
        """
        from .._array.jax import check_width

        for name, dtype, _ in self.schema.fields:
            check_width(dtype, f"field {name!r}")
        return Batches(self, _tuple_of(lambda array: array.jax()))

    def onnxruntime(
        self, session: Any, outputs: Sequence[str] | None = None, fields: Sequence[str] = ()
    ) -> Batches:
        """Epochs of the outputs of an ONNX Runtime session. The session reads the slots directly.

        Each input of the model takes the field with its name. Other fields are not passed to it. A batch is
        held until the run is over.

        Parameters
        ----------
        session : onnxruntime.InferenceSession
        outputs : sequence of str, optional
            Names of the requested outputs, in this order. None: all outputs, in the order of the model.
        fields : sequence of str
            Fields that follow the outputs: ``fields=["label"]``. Their arrays lie on the slot.

        Returns
        -------
        Batches
            Tuples of NumPy arrays. Outputs lie in memory that ONNX Runtime allocates for each batch.

        Raises
        ------
        ValueError
            An input has no field, or its dtype or shape differs from the field; an output is not a tensor of
            numbers; a name does not exist.
        """
        from .consumers import session_runner

        return Batches(self, session_runner(self.schema, session, outputs, fields))

    def databatch(self) -> Batches:
        """Epochs of `tenon.io.DataBatch`: fields named ``label`` or ending in ``_label`` are its labels."""
        from .batches import databatch

        return Batches(self, databatch)

    def __len__(self) -> int:
        if self.batches is None:
            raise TypeError("this feed has no length: give batches=")
        return self.batches


class Batches:
    """Epochs of a feed in another form: each iteration over it is one epoch."""

    def __init__(self, feed: Forms, convert: Callable[[Any], Any]) -> None:
        self._feed = feed
        self._convert = convert

    def __iter__(self) -> Iterator[Any]:
        return self._feed._iterate(self._convert)

    def __aiter__(self) -> AsyncIterator[Any]:
        return self._feed._iterate_in_tasks(self._convert)

    def __len__(self) -> int:
        return len(self._feed)


def itself(batch: Any) -> Any:
    return batch


def _tuple_of(convert: Callable[[Any], Any]) -> Callable[[Any], tuple[Any, ...]]:
    return lambda batch: tuple([convert(array) for array in batch.arrays])
