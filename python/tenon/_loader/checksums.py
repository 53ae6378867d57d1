# SPDX-License-Identifier: Apache-2.0
"""Checksums of the parts of a state. They show, before it is used, that a state was changed or mixed up.

They do not depend on what checkpoints change: tuples that become lists, the order of keys, the device of a
tensor, the versions of Python and NumPy. Of an object that is no plain value, only the type counts.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

_KEY = "checksums"
_DEPTH = 64  # of nested objects. Deeper ones may contain themselves


def with_checksums(state: dict[str, Any]) -> dict[str, Any]:
    """They are one text, which no checkpoint stores in parts."""
    sums = " ".join(f"{key}={_checksum(value)}" for key, value in state.items())
    return {**state, _KEY: f"{sums} {_checksum(sums)}"}


def faults_of(state: dict[str, Any]) -> list[str]:
    """The parts that are missing or changed. Other parts than those of `with_checksums` are ignored."""
    sums, _, of_sums = str(state[_KEY]).rpartition(" ")
    if of_sums != _checksum(sums):
        return [f"its {_KEY} are changed"]
    then = dict(one.split("=") for one in sums.split(" "))
    missing = [f"it has no {key}" for key in then if key not in state]
    return missing or [f"its {key} is changed" for key in then if _checksum(state[key]) != then[key]]


def _checksum(value: Any) -> str:
    found = 0
    for piece in _pieces(value, 0):
        found = zlib.crc32(piece, found)
    return f"{found:08x}"


def _pieces(value: Any, depth: int) -> Iterator[Any]:
    kind = type(value)
    if kind in (bool, int, float, type(None)):
        yield f"{value!r} ".encode()
    elif kind is str:
        yield b"%d:" % len(value)
        yield value.encode("utf-8", "surrogatepass")
    elif kind is bytes:
        yield b"%d;" % len(value)
        yield value
    elif isinstance(value, np.ndarray | np.generic | torch.Tensor):
        yield _bytes_of(value)
    elif depth < _DEPTH and isinstance(value, dict):
        yield b"{"
        for key in sorted(value, key=repr):
            yield from _pieces(key, depth + 1)
            yield from _pieces(value[key], depth + 1)
        yield b"}"
    elif isinstance(value, list | tuple) and set(map(type, value)) == {int}:
        yield b"i%d:" % len(value)
        yield _bytes_of_ints(value)
    elif depth < _DEPTH and isinstance(value, list | tuple):
        yield b"["
        for one in value:
            yield from _pieces(one, depth + 1)
        yield b"]"
    else:
        yield kind.__qualname__.encode()


def _bytes_of_ints(value: Any) -> bytes:
    try:
        return struct.pack(f"<{len(value)}q", *value)
    except struct.error:  # larger ones
        return repr(list(value)).encode()


def _bytes_of(value: Any) -> bytes:
    """Also where the numbers lie on a device. Others, as those of a sparse tensor, do not count."""
    try:
        if isinstance(value, torch.Tensor):
            head = f"{value.dtype} {tuple(value.shape)} "
            elements = value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
        else:
            head = f"{value.dtype.str} {value.shape} "
            elements = np.ascontiguousarray(value).view(np.uint8)
        return head.encode() + elements.tobytes()
    except Exception:
        return type(value).__qualname__.encode()
