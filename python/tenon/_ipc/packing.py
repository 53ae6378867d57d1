# SPDX-License-Identifier: Apache-2.0
"""What a message has besides plain objects: arrays of any library, and one pickle of the other objects.

A message has *memories*: the arrays that its core lists, and the memory of small arrays, which travels with
the bytes. Each array is a *spec*: a plain tuple that says its kind and the place of its elements. The pickle
of the rest refers to arrays by their numbers.
"""

from __future__ import annotations

import functools
import io
import math
import pickle
import sys
from collections.abc import Callable
from typing import Any

from .. import _core
from .._array.pickle import bytes_of, has_padding, rebuild_array, rebuild_padded_array
from .._core import NDArray
from .._errors import log
from .elements import aligned, dtype_of, dtype_spec, is_narrow, strides_in_order, whole_pages

_SHARED_NBYTES = 1 << 20  # copied arrays of fewer bytes share a block; larger ones have one of their own

Write = Callable[[Any], None]  # writes the elements to a NumPy array of bytes


class _Source:
    """Elements to be copied into the message."""

    __slots__ = ("nbytes", "write")

    def __init__(self, nbytes: int, write: Write) -> None:
        self.nbytes = nbytes
        self.write = write


# ------------------------------------------------------------------------------------------ writing


class Packer:
    """Collects the arrays of one message."""

    def __init__(self, is_lent: Callable[[NDArray], object]) -> None:
        self._is_lent = is_lent  # the array goes as it is
        self.lent: list[NDArray] = []
        self._specs: list[tuple[Any, ...]] = []
        self._sources: list[Any] = []  # _Source or StorageSource
        self._numbers: dict[int, int] = {}
        self._kept: list[object] = []  # so that no other object gets the identity
        self._storages: dict[int, tuple[int, Any]] = {}
        self._tensors: list[tuple[int, Any, int]] = []  # number of the spec, source, number in it
        self._buffers: list[int] = []

    def number_of(self, value: Any) -> int | None:
        """The number of an array of the message; None: it is no array, or one that is pickled."""
        known = self._numbers.get(id(value))
        if known is not None:
            return known
        spec = self._spec_of(value)
        if spec is None:
            return None
        number = len(self._specs)
        self._specs.append(spec)
        self._numbers[id(value)] = number
        self._kept.append(value)
        return number

    def add_buffer(self, buffer: pickle.PickleBuffer) -> bool:
        """For the pickler: False takes the buffer out of the pickle."""
        try:
            view = buffer.raw()
        except BufferError:  # it is not contiguous
            return True
        if view.nbytes < 1024:
            return True
        import numpy as np

        self._buffers.append(len(self._specs))
        self._specs.append(("b", self._copied(np.frombuffer(view, np.uint8))))
        self._kept.append(buffer)
        return False

    def pickled(self, rest: list[Any]) -> bytes:
        file = io.BytesIO()
        _Pickler(self, file).dump(rest)
        return file.getvalue()

    def reduction_of(self, value: Any) -> Any:
        """For objects that are no arrays by number_of()."""
        np = sys.modules.get("numpy")
        if np is not None and isinstance(value, np.ndarray):
            kind = type(value)
            is_default = kind is not np.ndarray and _has_default_reduction(kind)
            if is_default and dtype_spec(value.dtype) is not None:
                return _as_class, (value.view(np.ndarray), kind)
            return NotImplemented
        torch = sys.modules.get("torch")
        if torch is not None and isinstance(value, torch.Tensor):
            from . import tensors

            return tensors.reduction_of(value)
        return NotImplemented

    def _spec_of(self, value: Any) -> tuple[Any, ...] | None:
        if type(value) is NDArray:
            return self._spec_of_ndarray(value)
        np = sys.modules.get("numpy")
        if np is not None:
            if type(value) is np.ndarray:
                return self._spec_of_numpy(value)
            if isinstance(value, np.generic):
                is_plain = type(value) is value.dtype.type and value.itemsize != 0
                dtype = dtype_spec(value.dtype) if is_plain else None
                return None if dtype is None else ("s", dtype, value.tobytes())
        torch = sys.modules.get("torch")
        if torch is not None and isinstance(value, getattr(torch, "Tensor", ())):
            return self._spec_of_tensor(value)
        arrow = sys.modules.get("pyarrow")
        if arrow is not None and isinstance(value, getattr(arrow, "Buffer", ())):
            buffer: Any = value
            return ("p", self._copied_bytes(buffer)) if buffer.is_cpu else None
        jax = sys.modules.get("jax")
        if jax is not None and isinstance(value, getattr(jax, "Array", ())):
            return self._spec_of_jax(value)
        return None

    def _copied(self, array: Any) -> int:
        """The number of the source that is a NumPy array, in C order."""
        return self._add(_Source(array.nbytes, functools.partial(_write_numpy, array, None)))

    def _copied_bytes(self, buffer: Any) -> int:
        import numpy as np

        return self._copied(np.frombuffer(buffer, np.uint8)) if buffer.size else self._add(_NOTHING)

    def _add(self, source: Any) -> int:
        self._sources.append(source)
        return len(self._sources) - 1

    def _spec_of_numpy(self, array: Any) -> tuple[Any, ...] | None:
        dtype = dtype_spec(array.dtype)
        if dtype is None:
            if array.dtype.hasobject:
                _log_once("a NumPy array of Python objects")
            return None
        strides = None
        if not array.flags.c_contiguous:
            strides = strides_in_order(array.shape, array.strides, array.itemsize)
        source = _Source(array.nbytes, functools.partial(_write_numpy, array, strides))
        return "n", self._add(source), dtype, array.shape, strides

    def _spec_of_ndarray(self, array: NDArray) -> tuple[Any, ...] | None:
        if self._is_lent(array):
            self.lent.append(array)
            return "a", len(self.lent) - 1
        if array.shared:
            return None  # its pickle is a handle on its memory
        if array.device.startswith("cuda:"):
            raise TypeError(
                f"an array of shape {array.shape} is on {array.device}, and messages go through the "
                "memory of the host: send array.to('cpu')"
            )
        axes = None
        if not array.is_contiguous():
            axes = tuple(sorted(range(array.ndim), key=lambda axis: -abs(array.strides[axis])))
            array = array.transpose(axes)
            if not array.is_contiguous():
                array, axes = array.transpose(_inverse(axes)).copy(), None
        content = bytes_of(array)
        source = self._add(_Source(content.nbytes, functools.partial(_write_ndarray, content)))
        return "m", source, array.dtype.name, array.shape, axes, has_padding(array)

    def _spec_of_tensor(self, tensor: Any) -> tuple[Any, ...] | None:
        from . import tensors

        if not tensors.is_plain(tensor):
            return None
        key = tensor.untyped_storage()._cdata
        if key not in self._storages:
            source = tensors.StorageSource()
            self._storages[key] = self._add(source), source
        number, source = self._storages[key]
        source.tensors.append(tensor)
        self._tensors.append((len(self._specs), source, len(source.tensors) - 1))
        is_parameter = type(tensor).__name__ == "Parameter"
        return "t", number, str(tensor.dtype)[6:], tuple(tensor.shape), tensor.requires_grad, is_parameter

    def _spec_of_jax(self, array: Any) -> tuple[Any, ...] | None:
        import numpy as np

        devices = list(array.devices())
        if len(devices) != 1 or not isinstance(array.dtype, np.dtype):
            return None
        if devices[0].platform != "cpu":
            raise TypeError(
                f"an array of JAX of shape {array.shape} is on {devices[0]}, and messages go through the "
                "memory of the host: send jax.device_put(array, jax.devices('cpu')[0])"
            )
        if array.weak_type or is_narrow(array.dtype):
            return None
        dtype = dtype_spec(array.dtype)
        return None if dtype is None else ("j", self._copied(np.asarray(array)), dtype, array.shape)

    def lay_out(self, inline: float) -> tuple[list[tuple[int, int, int]], int, list[int]]:
        """Where each source goes: (memory, offset, nbytes), where memory -1 is that of small arrays, and the
        lent arrays are the first ones; the size of that memory; the sizes of the blocks to take from the
        pool, in whole pages. inline: the size from which on an array goes to the pool."""
        places, small, blocks, together = [], 0, [], 0
        for number, source, at in self._tensors:
            if at == 0:
                source.lay_out()
            self._specs[number] += source.places[at]
        self._tensors = []
        first = len(self.lent)
        is_shared_used = any(inline <= source.nbytes < _SHARED_NBYTES for source in self._sources)
        if is_shared_used:
            blocks.append(0)
        for source in self._sources:
            nbytes = aligned(source.nbytes)
            if source.nbytes < inline:
                places.append((-1, small, source.nbytes))
                small += nbytes
            elif source.nbytes < _SHARED_NBYTES:
                places.append((first, together, source.nbytes))
                together += nbytes
            else:
                places.append((first + len(blocks), 0, source.nbytes))
                blocks.append(whole_pages(nbytes))
        if is_shared_used:
            blocks[0] = whole_pages(together)
        return places, small, blocks

    def write(self, places: list[tuple[int, int, int]], memories: Callable[[int], Any]) -> None:
        """memories(number): a NumPy array of bytes."""
        view: list[Any] = []
        for source, (memory, offset, nbytes) in zip(self._sources, places, strict=True):
            if nbytes:
                view.append(memories(memory)[offset : offset + nbytes])
                try:
                    source.write(view)
                finally:
                    view.clear()

    def about(self, leaves: list[int], places: list[tuple[int, int, int]]) -> bytes:
        """What a reader needs for the arrays. leaves: of the plain objects: the number of an array, or ~n for
        object n of the pickle."""
        return _core.encode_plain((leaves, self._specs, places, self._buffers))[0]


class Draft:
    """An object that is to be sent: its tree, its arrays, and one pickle of the rest. The parts of a message
    that are no memory of arrays are `tree`, `about`, `pickled` and `small`."""

    def __init__(self, value: Any, is_lent: Callable[[NDArray], object]) -> None:
        self.packer = Packer(is_lent)
        self.tree, leaves = _core.encode_plain(value)
        rest: list[Any] = []
        self._leaves: list[int] = []  # as Packer.about() takes them
        for leaf in leaves:
            number = self.packer.number_of(leaf)
            if number is None:
                rest.append(leaf)
                number = -len(rest)
            self._leaves.append(number)
        self.pickled = self.packer.pickled(rest) if rest else b""
        self.about = self.small = b""

    def describe(self, places: list[tuple[int, int, int]]) -> None:
        """Makes `about`. places: of Packer.lay_out()."""
        self.about = self.packer.about(self._leaves, places)

    def write(self, places: list[tuple[int, int, int]], small: int, blocks: list[Any]) -> None:
        """Writes the elements, and makes `small`, of so many bytes. blocks: NumPy arrays of bytes; empty
        afterwards. A profiler may keep the frame of a function that has returned, so no variable of one has a
        view: they are in lists, which are cleared."""
        if not places:
            return
        import numpy as np

        memory = np.zeros(small, np.uint8)
        views = dict(enumerate(blocks, len(self.packer.lent)))
        views[-1] = memory
        try:
            self.packer.write(places, views.__getitem__)
        finally:
            views.clear()
            blocks.clear()
        self.small = memory.tobytes()


_NOTHING = _Source(0, lambda _: None)


def _array(number: int) -> Any:
    """Stands in pickles for an array of their message."""
    raise pickle.UnpicklingError(f"array {number} of a message can be read by tenon.loads only")


class _Pickler(pickle.Pickler):
    def __init__(self, packer: Packer, file: io.BytesIO) -> None:
        super().__init__(file, protocol=5, buffer_callback=packer.add_buffer)
        self._packer = packer

    def reducer_override(self, value: Any) -> Any:
        number = self._packer.number_of(value)
        return self._packer.reduction_of(value) if number is None else (_array, (number,))


@functools.cache
def _log_once(what: str) -> None:
    log.warning("a message has %s: such arrays are pickled, and not sent through the pool", what)


def _has_default_reduction(kind: type[Any]) -> bool:
    import numpy as np

    names = ("__reduce__", "__reduce_ex__", "__setstate__")
    return all(getattr(kind, name) is getattr(np.ndarray, name) for name in names)


def _as_class(array: Any, kind: type[Any]) -> Any:
    return array.view(kind)


def _inverse(axes: tuple[int, ...]) -> list[int]:
    return sorted(range(len(axes)), key=axes.__getitem__)


# view: of the bytes to write to, as the one element of a list; see Draft.write().


def _write_numpy(array: Any, strides: tuple[int, ...] | None, view: list[Any]) -> None:
    import numpy as np

    # No np.copyto(): it calls a function of Python, which has a variable with the view.
    np.ndarray(array.shape, array.dtype, view[0], 0, strides)[...] = array


def _write_ndarray(content: NDArray, view: list[Any]) -> None:
    _core.share(view[0])[...] = content


# ------------------------------------------------------------------------------------------ reading


class Unpacker:
    """Makes the arrays of one message.

    Parameters
    ----------
    memories : list of NDArray
        Those of the core.
    small : NDArray or None
        The memory of small arrays.
    """

    def __init__(self, about: Any, memories: list[NDArray], small: NDArray | None, writable: bool) -> None:
        self.leaves, self._specs, self._places, self._buffers = about
        if any(offset < 0 or nbytes < 0 for _, offset, nbytes in self._places):
            raise ValueError("the message has an array outside of its memory")
        self._memories = memories
        self._small = small
        self._writable = writable
        self._views: dict[int, Any] = {}
        self._storages: dict[int, Any] = {}
        self._arrays: dict[int, Any] = {}

    def array(self, number: int) -> Any:
        if number not in self._arrays:
            kind, *about = self._specs[number]
            self._arrays[number] = _MAKE[kind](self, *about)
        return self._arrays[number]

    def unpickled(self, data: Any) -> list[Any]:
        reader = _Unpickler(io.BytesIO(data), buffers=map(self.array, self._buffers))
        reader.message = self
        rest: list[Any] = reader.load()
        return rest

    def _memory(self, source: int) -> Any:
        """The bytes as a NumPy array."""
        memory, offset, nbytes = self._places[source]
        return self._view(memory)[offset : offset + nbytes]

    def _view(self, memory: int) -> Any:
        if memory not in self._views:
            array = self._ndarray(memory)
            view = array.numpy()
            if not self._writable:
                view.flags.writeable = False
            self._views[memory] = view
        return self._views[memory]

    def _ndarray(self, memory: int) -> NDArray:
        if memory >= 0:
            return self._memories[memory]
        if self._small is None:  # all of them are empty
            self._small = _core.create(0, "uint8", zeroed=False)
        return self._small

    def _lent(self, number: int) -> NDArray:
        return self._memories[number]

    def _numpy(self, source: int, dtype: Any, shape: tuple[int, ...], strides: Any) -> Any:
        import numpy as np

        memory, offset, _ = self._places[source]
        return np.ndarray(shape, dtype_of(dtype), self._view(memory), offset, strides)

    def _scalar(self, dtype: Any, data: bytes) -> Any:
        import numpy as np

        return np.frombuffer(data, dtype_of(dtype))[0]

    def _tenon(self, source: int, dtype: str, shape: tuple[int, ...], axes: Any, is_padded: bool) -> NDArray:
        memory, offset, nbytes = self._places[source]
        if is_padded:
            array = rebuild_padded_array(self._memory(source), dtype, shape)
        elif nbytes * 8 != math.prod(shape) * _core.dtype(dtype).bits * _core.dtype(dtype).lanes:
            array = rebuild_array(self._memory(source), dtype, shape)
        else:
            whole = self._ndarray(memory) if self._writable else self._ndarray(memory).readonly()
            array = whole[offset : offset + nbytes].view(dtype).reshape(shape)
        return array if axes is None else array.transpose(_inverse(axes))

    def _tensor(
        self,
        source: int,
        dtype: str,
        shape: tuple[int, ...],
        requires_grad: bool,
        is_parameter: bool,
        strides: tuple[int, ...],
        offset: int,
    ) -> Any:
        from . import tensors

        if source not in self._storages:
            self._storages[source] = tensors.storage_on(self._memory(source))
        return tensors.tensor_on(
            self._storages[source], dtype, shape, strides, offset, requires_grad, is_parameter
        )

    def _jax(self, source: int, dtype: Any, shape: tuple[int, ...]) -> Any:
        from .._array.jax import as_jax

        return as_jax(_core.share(self._numpy(source, dtype, shape, None)))

    def _arrow(self, source: int) -> Any:
        import pyarrow  # type: ignore[import-untyped]

        return pyarrow.py_buffer(self._memory(source))


_MAKE: dict[str, Callable[..., Any]] = {
    "a": Unpacker._lent,
    "b": Unpacker._memory,
    "j": Unpacker._jax,
    "m": Unpacker._tenon,
    "n": Unpacker._numpy,
    "p": Unpacker._arrow,
    "s": Unpacker._scalar,
    "t": Unpacker._tensor,
}


class _Unpickler(pickle.Unpickler):
    message: Unpacker

    def find_class(self, module: str, name: str) -> Any:
        if name == "_array" and module == __name__:
            return self.message.array
        return super().find_class(module, name)


def loads_parts(
    tree: bytes, about: bytes, pickled: bytes, small: bytes, memories: list[NDArray], writable: bool
) -> Any:
    """`loads` for messages with objects that are not plain."""
    # No closures here: after an exception, a frame of CPython 3.11 that was cleared keeps their variables.
    unpacker = Unpacker(_core.decode_plain(about, []), memories, _memory_of(small), writable)
    rest = unpacker.unpickled(pickled) if pickled else []
    leaves = []
    for number in unpacker.leaves:
        leaves.append(unpacker.array(number) if number >= 0 else rest[~number])
    return _core.decode_plain(tree, leaves)


def _memory_of(small: bytes) -> NDArray | None:
    if not small:
        return None
    import numpy as np

    memory = _core.create(len(small), "uint8", zeroed=False)
    memory.numpy()[...] = np.frombuffer(small, np.uint8)
    return memory
