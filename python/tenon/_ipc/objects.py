# SPDX-License-Identifier: Apache-2.0
"""Objects in the slots of a channel: how they are written, and read.

The bytes of an item are a head, the memories of its arrays, and the parts of a message: what the memories
are, the tree of plain objects, what its arrays are, one pickle of the rest, and the small arrays
(packing.py). The parts are copied out before they are read. The arrays stay where they are.
"""

from __future__ import annotations

import math
import operator
import struct
from types import TracebackType
from typing import Any

from .. import _core
from .._core import NativeItem, NDArray
from .._typing import DTypeLike
from .elements import aligned, whole_pages

_HEAD = struct.Struct("=8sQ5Q")  # the mark, where the parts begin, and the size of each
_MARK = b"TNOBJ001"
_HEAD_NBYTES = 64
_ABOUT_NBYTES = 4096  # that the parts usually need, if the arrays were made in the slot
_PAGED_NBYTES = 1 << 20  # arrays from this size on begin with a page

Memory = tuple[int, int, str | None, tuple[int, ...] | None]  # offset, bytes, dtype and shape of a typed one


def place_of(end: int, nbytes: int) -> int:
    """Where a memory of so many bytes begins, after what ends there."""
    return whole_pages(end) if nbytes >= _PAGED_NBYTES else aligned(end)


def axes_of(shape: Any) -> tuple[int, ...]:
    try:
        return (operator.index(shape),)
    except TypeError:
        return tuple(operator.index(axis) for axis in shape)


def nbytes_with_parts(nbytes: int, largest: int, begin: int = 0) -> int:
    """Of an item with arrays of so many bytes, after what lies before them. Not more than the largest item,
    if the arrays fit into that."""
    return max(begin + nbytes, min(begin + nbytes + _ABOUT_NBYTES, largest))


def _bytes_in(array: NDArray) -> memoryview:
    return memoryview(array.numpy())  # type: ignore[arg-type]


class Writer:
    """An object that is to be written to a slot.

    Parameters
    ----------
    value : object
    inline_nbytes : int
        Smaller arrays are copied out by the reader, so that they do not keep the slot.
    lent : dict of int to Memory
        The arrays that lie in the slot already, by their identity.
    end : int
        Where these arrays end.
    """

    nbytes: int  # of the item

    def __init__(
        self, value: Any, inline_nbytes: int, lent: dict[int, Memory] | None = None, end: int = _HEAD_NBYTES
    ) -> None:
        self._draft: Any = None
        self._places: list[tuple[int, int, int]] = []
        self._small = 0
        self._blocks: list[tuple[int, int]] = []
        tree, leaves = _core.encode_plain(value, inline_nbytes)
        memories: list[Memory] = []
        about, pickled = b"", b""
        if leaves:
            from .packing import Draft

            known = lent or {}
            draft = self._draft = Draft(value, lambda array: id(array) in known)
            self._places, self._small, blocks = draft.packer.lay_out(inline_nbytes)
            draft.describe(self._places)
            tree, about, pickled = draft.tree, draft.about, draft.pickled
            memories = [known[id(array)] for array in draft.packer.lent]
            for nbytes in blocks:
                begin = place_of(end, nbytes)
                end = begin + nbytes
                self._blocks.append((begin, nbytes))
                memories.append((begin, nbytes, None, None))
        core = _core.encode_plain(memories)[0] if memories else b""
        self._parts = (core, tree, about, pickled)
        self._parts_at = aligned(end)
        self.nbytes = self._parts_at + sum(map(len, self._parts)) + self._small

    def write(self, bytes_of_slot: NDArray) -> None:
        """Writes the item to an array of its bytes, of which no view is left."""
        small = b""
        with _bytes_in(bytes_of_slot) as view:  # see Draft.write()
            if self._draft is not None:
                import numpy as np

                ends = [(begin, begin + nbytes) for begin, nbytes in self._blocks]
                blocks = [np.frombuffer(view[begin:end], np.uint8) for begin, end in ends]
                self._draft.write(self._places, self._small, blocks)
                small = self._draft.small
            parts = (*self._parts, small)
            _HEAD.pack_into(view, 0, _MARK, self._parts_at, *map(len, parts))
            at = self._parts_at
            for part in parts:
                view[at : at + len(part)] = part
                at += len(part)


def _damaged(why: str) -> ValueError:
    return ValueError(f"the item of the channel is no object: {why}")


class Reader:
    """The bytes of an item, of which the parts are copied out.

    Attributes
    ----------
    is_complete : bool
        It has no array that lies in the slot.
    """

    def __init__(self, content: NDArray) -> None:
        nbytes = content.nbytes
        with _bytes_in(content) as view:
            if nbytes < _HEAD_NBYTES:
                raise _damaged(f"it has {nbytes} bytes")
            mark, at, *sizes = _HEAD.unpack_from(view)
            if mark != _MARK or at < _HEAD_NBYTES or at + sum(sizes) > nbytes:
                raise _damaged("its head is another one")
            parts = []
            for size in sizes:
                parts.append(bytes(view[at : at + size]))
                at += size
        core, *self._parts = parts
        self._memories: list[Memory] = _core.decode_plain(core, []) if core else []
        self.is_complete = not self._memories

    def read(self, content: NDArray | None, is_copy: bool, is_writable: bool) -> Any:
        """The object. content: the bytes of the item, unless it is complete."""
        tree, about, pickled, small = self._parts
        if not about:
            return _core.decode_plain(tree, [])
        from .packing import loads_parts

        memories = []
        for place in self._memories:  # no closure, as in loads_parts()
            memory = self._memory(content, *place)
            memories.append(memory.copy() if is_copy else memory)
            del memory
        del content
        is_writable = is_writable or is_copy
        return loads_parts(tree, about, pickled, small, memories, is_writable or not memories)

    @staticmethod
    def _memory(
        content: NDArray | None, begin: int, nbytes: int, dtype: str | None, shape: tuple[int, ...] | None
    ) -> NDArray:
        assert content is not None
        if not 0 <= begin <= begin + nbytes <= content.nbytes:
            raise _damaged("an array lies outside of it")
        memory = content[begin : begin + nbytes]
        return memory if dtype is None or shape is None else memory.view(dtype).reshape(shape)


class ObjectLoan(NativeItem):
    """A slot of a channel of objects, for arrays that are filled in place; see `Channel.loan`."""

    # Of the channel, whose loans are a class.
    _inline_nbytes: int
    _usual_nbytes: int  # of the last item that was filled in place

    def _begin(self, channel: Any, timeout: float | None) -> None:
        self._channel, self._timeout = channel, timeout
        self._lent: dict[int, Memory] = {}
        self._arrays: list[NDArray] = []  # so that no other object gets the identity
        self._nbytes_used = _HEAD_NBYTES
        self._is_over = False

    def empty(self, shape: Any, dtype: DTypeLike = "float32") -> NDArray:
        """A new array in the slot with undefined elements, in C order, aligned to 64 bytes. It ends when the
        item is sent or dropped. The first one waits for room as `Channel.loan`, for the time that was given
        there. Later ones do not wait, as this loan holds memory: they raise MemoryError."""
        self._check()
        kind = _core.dtype(dtype)
        axes = axes_of(shape)
        if any(axis < 0 for axis in axes):
            raise ValueError(f"the shape is {axes}: no axis can be negative")
        nbytes, rest = divmod(math.prod(axes) * kind.bits * kind.lanes, 8)
        if rest:
            raise ValueError(f"{math.prod(axes)} elements of {kind.name} are no whole bytes: make some more")
        begin = place_of(self._nbytes_used, nbytes)
        if begin + nbytes > self._channel.largest:
            raise ValueError(
                f"the largest item of the channel has {self._channel.largest} bytes, and no room for an "
                f"array of {nbytes} bytes after {begin} others"
            )
        self._take_room(nbytes_with_parts(nbytes, self._channel.largest, begin))
        self._nbytes_used = begin + nbytes
        array: NDArray = self._bytes()[begin : begin + nbytes].view(kind).reshape(axes)
        self._arrays.append(array)
        self._lent[id(array)] = (begin, nbytes, kind.name, axes)
        return array

    def _take_room(self, nbytes: int) -> None:
        try:
            self._set_nbytes(nbytes)
        except MemoryError:
            if self._arrays or self._timeout == 0:
                raise
            # Nothing is held during the wait, so that the item for which it waits can be received and sent.
            self._release()
            self._is_over = True
            self._take_over(self._channel._loan_bytes(nbytes, self._timeout))
            self._is_over = False

    def send(self, value: Any) -> None:
        """Sends an object. Arrays that `empty` has made are sent as they are; others are copied."""
        self._check()
        writer = Writer(value, self._inline_nbytes, self._lent, self._nbytes_used)
        nbytes = writer.nbytes
        self._take_room(nbytes)
        try:
            writer.write(self._bytes())
            del writer
            self._is_over = True
            self._send_item()
            type(self)._usual_nbytes = nbytes_with_parts(nbytes, self._channel.largest)
        finally:
            self.drop()

    def drop(self) -> None:
        """Frees the slot without sending it. Idempotent."""
        self._is_over = True
        self._lent, self._arrays = {}, []
        self._drop_loan()

    def _check(self) -> None:
        if self._is_over:
            raise ValueError("the item was sent or dropped")

    def __enter__(self) -> ObjectLoan:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.drop()

    def __repr__(self) -> str:
        text = "that was sent or dropped" if self._is_over else f"with {len(self._arrays)} arrays"
        return f"<tenon.ObjectLoan {text}>"


class ObjectItem(NativeItem):
    """A received item of a channel of objects, before it is read."""


__all__ = ["ObjectItem", "ObjectLoan", "Reader", "Writer"]
