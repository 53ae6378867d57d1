# SPDX-License-Identifier: Apache-2.0
"""PyTorch's tensors in messages. This module is imported only where PyTorch is, or where a message has
tensors."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from .._errors import log
from .elements import strides_in_order


def is_plain(tensor: torch.Tensor) -> bool:
    """Whether the tensor is its elements, dtype and strides, of class Tensor or Parameter. Raises for tensors
    that cannot be sent."""
    if tensor.device.type not in ("cpu", "meta"):
        raise TypeError(
            f"a tensor of shape {tuple(tensor.shape)} is on {tensor.device}, and messages go through the "
            "memory of the host: send tensor.cpu()"
        )
    if tensor.requires_grad and not tensor.is_leaf:
        raise RuntimeError(
            f"a tensor of shape {tuple(tensor.shape)} requires grad and is no leaf: a graph does not reach "
            "another process: send tensor.detach()"
        )
    if type(tensor) not in (torch.Tensor, torch.nn.Parameter) or tensor.__dict__:
        return False
    unusual = _what_is_unusual(tensor)
    if unusual:
        _log_once(unusual)
    return not unusual


def _what_is_unusual(tensor: torch.Tensor) -> str:
    if tensor.device.type != "cpu":
        return "on 'meta'"
    if tensor.layout is not torch.strided or tensor.is_nested:
        return "sparse, or of another layout"
    if tensor.is_quantized:
        return "quantized"
    if tensor.is_conj() or tensor.is_neg():
        return "lazily conjugated or negated"
    return ""


@functools.cache
def _log_once(what: str) -> None:
    log.warning("a tensor of a message is %s: such tensors are pickled, and not sent through the pool", what)


def reduction_of(tensor: torch.Tensor) -> Any:
    """The reduction of a tensor that is not plain: that of its class, but the elements go into the pool where
    the class leaves them to torch.Tensor."""
    kind = type(tensor)
    names = ("__reduce__", "__reduce_ex__", "__torch_dispatch__")  # the last one: it wraps other tensors
    if any(getattr(kind, name) is not getattr(torch.Tensor, name) for name in names):
        return NotImplemented
    if _what_is_unusual(tensor):
        return NotImplemented
    elements = tensor.detach().as_subclass(torch.Tensor)
    elements.requires_grad_(tensor.requires_grad)
    state = torch._utils._get_obj_state(tensor)
    return torch._tensor._rebuild_from_type_v2, (_same, kind, (elements,), state)


def _same(tensor: torch.Tensor) -> torch.Tensor:
    return tensor


# ----------------------------------------------------------------------------------- storages


class StorageSource:
    """The tensors of one message that share a storage, and what of it is sent: the span that they use, or
    without gaps the elements of a single one."""

    def __init__(self) -> None:
        self.tensors: list[torch.Tensor] = []
        self.places: list[tuple[tuple[int, ...], int]] = []  # strides, and the offset in bytes
        self.nbytes = 0
        self.write: Callable[[Any], None]

    def lay_out(self) -> None:
        """Sets the members but the first one."""
        spans = [_span(tensor) for tensor in self.tensors]
        begin = min((low for low, high in spans if low < high), default=0)
        end = max((high for low, high in spans if low < high), default=0)
        first = self.tensors[0]
        if len(self.tensors) == 1 and (end - begin) > first.numel() * first.element_size():
            strides = strides_in_order(tuple(first.shape), first.stride())
            self.nbytes = first.numel() * first.element_size()
            self.write = functools.partial(_write_elements, first.detach(), strides)
            self.places = [(strides, 0)]
            return
        begin -= begin % max(
            tensor.element_size() for tensor in self.tensors
        )  # their offsets are in elements
        self.nbytes = end - begin
        self.write = functools.partial(_write_span, first, begin, end)
        self.places = [
            (tuple(tensor.stride()), low - begin if low < high else 0)
            for tensor, (low, high) in zip(self.tensors, spans, strict=True)
        ]


def _span(tensor: torch.Tensor) -> tuple[int, int]:
    """The bytes of the storage that the tensor uses."""
    if tensor.numel() == 0:
        return 0, 0
    first = int(tensor.storage_offset())
    last = first + sum((n - 1) * int(stride) for n, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return first * tensor.element_size(), (last + 1) * tensor.element_size()


# Written by NumPy, in this thread: PyTorch would divide small copies among threads that it has to wake.


def _check_storage(tensor: torch.Tensor, end: int) -> None:
    """Other code may have resized the storage since the size of the message was known."""
    if tensor.untyped_storage().nbytes() < end:
        raise ValueError("the storage of a tensor became smaller while the tensor was sent")


def _write_span(tensor: torch.Tensor, begin: int, end: int, view: list[Any]) -> None:
    _check_storage(tensor, end)
    source = torch.empty(0, dtype=torch.uint8, device="cpu")  # whatever torch.set_default_device() says
    source.set_(tensor.untyped_storage(), begin, (end - begin,), (1,))
    view[0][...] = source.numpy()


_BITS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64, 16: torch.complex128}


def _write_elements(tensor: torch.Tensor, strides: tuple[int, ...], view: list[Any]) -> None:
    itemsize = tensor.element_size()
    _check_storage(tensor, _span(tensor)[1])
    source = tensor.view(_BITS[itemsize]).numpy()
    steps = tuple(stride * itemsize for stride in strides)
    type(view[0])(source.shape, source.dtype, view[0], 0, steps)[...] = source


def storage_on(memory: Any) -> torch.UntypedStorage:
    """A storage on the memory of a NumPy array of bytes; a copy if that is read-only."""
    return torch.from_numpy(memory if memory.flags.writeable else memory.copy()).untyped_storage()


def tensor_on(
    storage: torch.UntypedStorage,
    dtype_name: str,
    shape: tuple[int, ...],
    strides: tuple[int, ...],
    offset: int,
    requires_grad: bool,
    is_parameter: bool,
) -> torch.Tensor:
    dtype = getattr(torch, dtype_name)
    tensor = torch.empty(0, dtype=dtype, device="cpu")
    tensor.set_(storage, offset // tensor.element_size(), shape, strides)
    if is_parameter:
        return torch.nn.Parameter(tensor, requires_grad)
    return tensor.requires_grad_() if requires_grad else tensor
