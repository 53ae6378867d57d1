# SPDX-License-Identifier: Apache-2.0
"""The common part of feeds of this process and of other processes: batches in several forms."""

from __future__ import annotations

import weakref
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from .._core import Schema, torch_tensors
from .._values import flag

if TYPE_CHECKING:
    from .epochs import Iteration


class Forms:
    """Batches of a feed as NumPy, torch and JAX arrays, as DataBatches, and as inputs of ONNX Runtime."""

    schema: Schema
    batches: int | None
    device = "cpu"  # where batches are delivered, unless a form says otherwise
    _epoch: weakref.ref[Iteration] | None = None  # None: no iteration has begun

    def __iter__(self) -> Iterator[Any]:
        return self._iterate(itself)

    def _live_epoch(self) -> Iteration | None:
        epoch = None if self._epoch is None else self._epoch()
        return None if epoch is None or epoch._feed is None else epoch

    def _iterate(self, convert: Callable[[Any], Any], device: str | None = None) -> Iterator[Any]:
        """One epoch, on the feed's device or another one."""
        raise NotImplementedError

    def _iterate_in_tasks(
        self, convert: Callable[[Any], Any], device: str | None = None
    ) -> AsyncIterator[Any]:
        raise TypeError(f"a {type(self).__name__} is not for async loops: iterate it in a thread")

    def numpy(self) -> Batches:
        """Epochs of tuples of NumPy arrays, one for each field. They lie on the slot; nothing is copied."""
        return Batches(self, _tuple_of(lambda array: array.numpy()), "cpu")

    def torch(self, device: Any = None, trust: bool = False) -> Batches:
        """Epochs of tuples of torch tensors, one for each field. They lie on the slot or the device slot.

        Parameters
        ----------
        device : optional
            None: where the feed delivers. "cpu": tensors on the slot. "cuda" or "cuda:1": tensors on device
            slots, to which the feed copies ahead; those of an attached feed are copied when they are
            requested. Other devices of PyTorch: copies on that device.
        trust : bool
            For batches that several processes read: you promise not to write to the tensors, because PyTorch
            has no read-only tensors. A write ends the process. Without the promise, the tensors are copies.
            It has no effect on other batches, which are writable.

        Raises
        ------
        ValueError
            The device is of CUDA, and this PyTorch cannot use it.
        """
        flag(trust, "trust")
        where = _device_of_torch(self.device if device is None else device)
        if where is not None:
            return Batches(self, Tensors(trust), where)
        return Batches(self, _tuple_of(lambda array: array.torch(True).to(device)), "cpu")

    def jax(self, device: Any = None) -> Batches:
        """Epochs of tuples of JAX arrays, one for each field. They lie on the slot or the device slot. JAX
        never writes.

        Parameters
        ----------
        device : str or jax.Device, optional
            None: where the feed delivers. "cpu", "cuda:0", or a device of JAX of these kinds.

        Raises
        ------
        ValueError
            A field has 64-bit elements, which JAX supports only with ``jax_enable_x64``; JAX does not have
            the device.
        """
        from .._array.jax import check_width, device_name

        for name, dtype, _ in self.schema.fields:
            check_width(dtype, f"field {name!r}")
        where = device_name(self.device if device is None else device)
        return Batches(self, _tuple_of(lambda array: array.jax()), where)

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

        return Batches(self, session_runner(self.schema, session, outputs, fields), "cpu")

    def databatch(self, device: str | None = None) -> Batches:
        """Epochs of `tenon.io.DataBatch`: fields named ``label`` or ending in ``_label`` are its labels.

        device: "cpu" or for example "cuda:0"; None: where the feed delivers.
        """
        from .batches import databatch

        return Batches(self, databatch, device)

    def __len__(self) -> int:
        if self.batches is None:
            raise TypeError("this feed has no length: give batches=")
        return self.batches


class Batches:
    """Epochs of a feed in another form: each iteration over it is one epoch."""

    def __init__(self, feed: Forms, convert: Callable[[Any], Any], device: str | None) -> None:
        self._feed = feed
        self._convert = convert
        self._device = device

    def __iter__(self) -> Iterator[Any]:
        return self._feed._iterate(self._convert, self._device)

    def __aiter__(self) -> AsyncIterator[Any]:
        return self._feed._iterate_in_tasks(self._convert, self._device)

    def __len__(self) -> int:
        return len(self._feed)


class Tensors:
    """Makes torch tensors of the fields of a batch."""

    def __init__(self, trust: bool) -> None:
        self.trust = trust

    def __call__(self, batch: Any) -> tuple[Any, ...]:
        return torch_tensors(batch.arrays, self.trust)


def itself(batch: Any) -> Any:
    return batch


def _device_of_torch(device: Any) -> str | None:
    """Tenon's name of a device of PyTorch; None: Tenon does not know it."""
    if device is None or str(device) == "cpu":
        return "cpu"
    import torch

    wanted = torch.device(device)
    if wanted.type != "cuda" or torch.version.hip is not None:
        return "cpu" if wanted.type == "cpu" else None
    if not torch.cuda.is_available():
        raise ValueError(
            f"device is {str(device)!r}: PyTorch {torch.__version__} cannot use CUDA devices "
            "(torch.cuda.is_available() is False). Install a build of PyTorch for CUDA and its driver, or "
            'use feed.torch("cpu")'
        )
    return f"cuda:{torch.cuda.current_device() if wanted.index is None else wanted.index}"


def _tuple_of(convert: Callable[[Any], Any]) -> Callable[[Any], tuple[Any, ...]]:
    return lambda batch: tuple([convert(array) for array in batch.arrays])
