# SPDX-License-Identifier: Apache-2.0
"""Batches of a `DataLoader` in a slot: tensors and arrays, one after the other, and the rest of the batch as
a pickle that refers to them. What does not fit is in shared arrays."""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from .. import _core
from .._array.creation import empty

ALIGNMENT = 64


def commit_nothing(nbytes: int) -> None:
    """For memory that is committed already."""


class Writer(pickle.Pickler):
    """Packs one batch. Threads: one.

    Parameters
    ----------
    memory : numpy.ndarray
        The slot's bytes, writable.
    commit : callable
        ``commit(n)`` takes memory for the first n bytes. Raises MemoryError.
    """

    def __init__(self, memory: Any, commit: Callable[[int], None]) -> None:
        self._stream = io.BytesIO()
        super().__init__(self._stream, protocol=5)
        self._memory = memory
        self._commit = commit
        # By id: the key, and the object, whose id is not to be used again. __getstate__ may make one.
        self._keys: dict[int, tuple[tuple[Any, ...], Any]] = {}
        self._stacked: dict[int, Any] = {}  # by id: what lies in the slot already, its key and its form
        self.used = 0

    def persistent_id(self, obj: Any) -> Any:
        if type(obj) is torch.Tensor and _is_plain(obj):
            store: Any = self._store_tensor
        elif type(obj) is np.ndarray and obj.dtype.kind in "biufc" and obj.dtype.isnative:
            store = self._store_array
        else:
            return None
        if id(obj) not in self._keys:
            _, key, form = self._stacked.get(id(obj), (None, None, None))
            is_there = form is not None and form == _form_of(obj)
            self._keys[id(obj)] = key if is_there else store(obj), obj
        return self._keys[id(obj)][0]

    def stack(self, tensors: Any) -> Any:
        """The tensors one below the other, written straight to where the consumer reads them."""
        shape = (len(tensors), *tensors[0].shape)
        dtype = tensors[0].dtype
        place, memory = self._take(len(tensors) * tensors[0].numel() * tensors[0].element_size())
        result = _empty(0, dtype)  # no view of another tensor, which would keep the memory
        result.set_(torch.from_numpy(memory).untyped_storage(), 0, shape)
        torch.stack(tensors, 0, out=result)
        self._stacked[id(result)] = result, ("tensor", place, str(dtype)[6:], shape, None), _form_of(result)
        return result

    def let_go(self) -> None:
        """Copies stacked tensors that the user's code keeps, since the slot is passed on."""
        self._keys.clear()
        self.clear_memo()  # of the lists and dicts that have them
        while self._stacked:
            holder = [self._stacked.popitem()[1][0]]
            if _core.references(holder) > 0:
                holder[0].data = holder[0].detach().clone()

    def pack(self, data: Any) -> bytes:
        """Writes the batch. Returns what `Reader` needs to find it."""
        self.dump(data)
        return self.put(self._stream.getbuffer())

    def put(self, data: Any) -> bytes:
        """Writes bytes. Returns what `bytes_of` needs to find them."""
        place, memory = self._take(len(data))
        memory[...] = np.frombuffer(data, np.uint8)
        return pickle.dumps((place, len(data)))

    def _store_tensor(self, tensor: Any) -> tuple[Any, ...]:
        place, memory = self._take(tensor.numel() * tensor.element_size())
        flat = torch.from_numpy(memory).view(tensor.dtype)
        shape, stride = tuple(tensor.shape), tuple(tensor.stride())
        if tensor.is_contiguous() or not _is_dense(shape, stride):
            flat.view(shape).copy_(tensor)
            return "tensor", place, str(tensor.dtype)[6:], shape, None
        flat.as_strided(shape, stride).copy_(tensor)
        return "tensor", place, str(tensor.dtype)[6:], shape, stride

    def _store_array(self, array: Any) -> tuple[Any, ...]:
        place, memory = self._take(array.nbytes)
        is_fortran = array.flags.f_contiguous and not array.flags.c_contiguous
        shape = array.shape[::-1] if is_fortran else array.shape
        memory.view(array.dtype).reshape(shape)[...] = array.T if is_fortran else array
        return "array", place, array.dtype.str, shape, is_fortran

    def _take(self, nbytes: int) -> tuple[int | bytes, Any]:
        """Takes room for bytes. Returns its place, for the consumer, and the room."""
        if nbytes == 0:
            return 0, self._memory[:0]
        start = -(-self.used // ALIGNMENT) * ALIGNMENT
        end = start + nbytes
        if end <= len(self._memory):
            self._commit(end)
            self.used = end
            return start, self._memory[start:end]
        array = empty(nbytes, "uint8", shared=True)  # lives until the consumer has opened its pickle
        return pickle.dumps(array), array.unchecked().numpy()


class Reader(pickle.Unpickler):
    """Reads a batch. Its tensors and arrays lie in the slot, are writable, and are no views of each other."""

    def __init__(self, memory: _core.NDArray, attachment: bytes) -> None:
        self._memory = memory
        self._found: dict[Any, Any] = {}
        super().__init__(io.BytesIO(bytes_of(memory, attachment)))

    def persistent_load(self, key: Any) -> Any:
        kind, place, dtype, shape, layout = key
        if place in self._found and 0 not in shape:
            return self._found[place]
        result = self._tensor(*key[1:]) if kind == "tensor" else self._array(place, dtype, shape, layout)
        if 0 not in shape:
            self._found[place] = result
        return result

    def _tensor(self, place: Any, name: str, shape: Any, stride: Any) -> Any:
        dtype = getattr(torch, name)
        count = int(np.prod(shape, dtype=np.int64))
        if count == 0:
            return _empty(shape, dtype)
        flat = self._bytes_at(place, count * dtype.itemsize).torch().untyped_storage()
        tensor = _empty(0, dtype)
        return tensor.set_(flat, 0, shape, stride) if stride else tensor.set_(flat, 0, shape)

    def _array(self, place: Any, dtype: str, shape: Any, is_fortran: bool | None) -> Any:
        kind = np.dtype(dtype)
        nbytes = int(np.prod(shape, dtype=np.int64)) * kind.itemsize
        array = np.frombuffer(self._bytes_at(place, nbytes).numpy(), kind).reshape(shape)
        return array.T if is_fortran else array

    def _bytes_at(self, place: Any, nbytes: int) -> _core.NDArray:
        return _bytes_at(self._memory, place, nbytes)


def bytes_of(memory: _core.NDArray, attachment: bytes) -> bytes:
    """A copy of the bytes that `Writer.put` has written."""
    return bytes(_bytes_at(memory, *pickle.loads(attachment)).numpy())


def _bytes_at(memory: _core.NDArray, place: Any, nbytes: int) -> _core.NDArray:
    if isinstance(place, int):
        return memory[place : place + nbytes]
    array: _core.NDArray = pickle.loads(place)
    return array.unchecked()  # it is the consumer's alone


def _empty(shape: Any, dtype: Any) -> Any:
    """On the CPU, also if the program has set another default device."""
    return torch.empty(shape, dtype=dtype, device="cpu")


def _form_of(tensor: Any) -> tuple[Any, ...]:
    """Where the elements lie, and how."""
    return tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride()


def _is_plain(tensor: Any) -> bool:
    """Nothing but numbers in host memory."""
    return (
        tensor.layout is torch.strided
        and tensor.device.type == "cpu"
        and not tensor.requires_grad
        and not tensor.is_quantized
        and not tensor.is_nested
        and not tensor.is_conj()
        and not tensor.is_neg()
    )


def _is_dense(shape: Any, stride: Any) -> bool:
    expected = 1
    for step, length in sorted(zip(stride, shape, strict=True)):
        if length != 1 and step != expected:
            return False
        expected *= length
    return True


def stacks(tensors: Any) -> bool:
    """Whether they are plain, with one dtype and shape. PyTorch stacks others, or raises its error."""
    first = tensors[0]
    return all(
        type(one) is torch.Tensor and _is_plain(one) and one.dtype is first.dtype and one.shape == first.shape
        for one in tensors
    )
