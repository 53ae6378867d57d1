# SPDX-License-Identifier: Apache-2.0
"""The uses of arrays by an op: the wrappers of arguments, and the lists of `push`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from .._core import NDArray, refuse_verbs


class Use:
    """An array among the arguments of an op, and what the op does with it."""

    def __init__(self, array: Any, is_write: bool, is_overwrite: bool) -> None:
        if not isinstance(array, NDArray):
            refuse_verbs(array)
            verb = "writes to an NDArray, not to" if is_write else "reads an NDArray, not"
            raise TypeError(f"an op {verb} {type(array).__name__}: make one with tn.array(), which copies")
        self.array = array
        self.is_write = is_write
        self.is_overwrite = is_overwrite

    def __repr__(self) -> str:
        name = "overwrite" if self.is_overwrite else "write" if self.is_write else "read"
        return f"tn.{name}({self.array!r})"

    def __array__(self, *_: Any, **__: Any) -> Any:
        raise TypeError(f"{self!r} wraps an argument of tn.push: pass the array itself here")


def read(array: NDArray) -> Any:
    """Wraps an argument of `push`: the op only reads ``array``, as a Python function does without this.
    `push` refuses it for a parameter that the prototype of a `CFunction` does not declare const."""
    return Use(array, is_write=False, is_overwrite=False)


def write(array: NDArray) -> Any:
    """Wraps an argument of `push`: the op reads and writes ``array``."""
    return Use(array, is_write=True, is_overwrite=False)


def overwrite(array: NDArray) -> Any:
    """Wraps an argument of `push`: the op writes every element of ``array`` before it reads any."""
    return Use(array, is_write=True, is_overwrite=True)


class Uses:
    """The uses of arrays by an op: (array, is write, is overwrite)."""

    def __init__(
        self, reads: Iterable[NDArray], writes: Iterable[NDArray], overwrites: Iterable[NDArray]
    ) -> None:
        self.rows: list[tuple[NDArray, bool, bool]] = []
        self.modes: dict[int, bool] = {}  # by an array's identity: it is written
        for name, arrays in (("reads", reads), ("writes", writes), ("overwrites", overwrites)):
            if isinstance(arrays, NDArray) or not isinstance(arrays, Iterable):
                raise TypeError(f"{name} is {arrays!r}: it must be a list of NDArrays")
            for array in arrays:
                if isinstance(array, Use):
                    raise TypeError(f"{name} has {array!r}: pass the array itself")
                refuse_verbs(array)
                if not isinstance(array, NDArray):
                    raise TypeError(
                        f"{name} has {array!r}: make an NDArray of it with tn.array(), which copies"
                    )
                self.add(array, name != "reads", name == "overwrites")

    def add(self, array: NDArray, is_write: bool, is_overwrite: bool) -> None:
        if is_write and not array.writable:
            raise BufferError(f"an op cannot write to a read-only array of shape {array.shape}")
        self.rows.append((array, is_write, is_overwrite))
        self.modes[id(array)] = self.modes.get(id(array), False) or is_write

    def knows(self, array: NDArray) -> bool:
        return id(array) in self.modes

    def writes(self, array: NDArray) -> bool:
        return self.modes.get(id(array), False)

    def overwritten(self) -> list[NDArray]:
        """The arrays that the op only overwrites, each once."""
        kept = {id(array) for array, _, is_overwrite in self.rows if not is_overwrite}
        found = {id(array): array for array, _, _ in self.rows if id(array) not in kept}
        return list(found.values())
