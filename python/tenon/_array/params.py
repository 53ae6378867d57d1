# SPDX-License-Identifier: Apache-2.0
"""MXNet's file format for parameters (.params): a list of arrays, with or without names.

All numbers are little-endian::

    uint64 0x112, uint64 0
    uint64 number of arrays, the arrays
    uint64 number of names (0: none), and for each name: uint64 length, UTF-8

An array, with the layout of its memory in C order::

    uint32 0xF993FAC9, int32 0 (dense)       0xF993FACA: () is a shape and 0 a length, else () is no array
    int32 ndim, ndim times int64, int32 device type, int32 device number, int32 dtype, the elements

Files of older versions have 0xF993FAC8 without the 0, or begin with ndim and lengths of 32 bits.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable
from typing import Any

from .. import _core
from .._core import NDArray

MAGIC = struct.pack("<Q", 0x112)

_V1, _V2, _V3 = 0xF993FAC8, 0xF993FAC9, 0xF993FACA
_CPU = 1
_DTYPES = "float32 float64 float16 uint8 int32 int8 int64 bool int16 uint16 uint32 uint64 bfloat16".split()
_MAX_NDIM = 32

Make = Callable[[tuple[int, ...], str], NDArray]


def write(file: Any, arrays: list[NDArray], names: list[str]) -> None:
    codes = [_code_of(array) for array in arrays]
    file.write(MAGIC + struct.pack("<QQ", 0, len(arrays)))
    for array, code in zip(arrays, codes, strict=True):
        magic = _V2 if array.ndim > 0 and array.size > 0 else _V3
        layout = f"<Iii{array.ndim}qiii"
        file.write(struct.pack(layout, magic, 0, array.ndim, *array.shape, _CPU, 0, code))
        file.write(array.tobytes())
    file.write(struct.pack("<Q", len(names)))
    for name in names:
        text = name.encode()
        file.write(struct.pack("<Q", len(text)) + text)


def read(file: Any, make: Make) -> list[NDArray] | dict[str, NDArray]:
    """make: creates each array. Raises ValueError for a file that is damaged."""
    if _bytes(file, 8) != MAGIC:
        raise ValueError("the file is no .params file of MXNet: it does not begin with 0x112")
    _, n = _numbers(file, "QQ")
    arrays = [_read_array(file, make) for _ in range(n)]
    (n_names,) = _numbers(file, "Q")
    names = [_read_name(file, number) for number in range(n_names)]
    if not names:
        return arrays
    if len(names) != len(arrays) or len(set(names)) != len(names):
        raise ValueError(f"the file is damaged: it has {len(arrays)} arrays and the names {names}")
    return dict(zip(names, arrays, strict=True))


def _read_name(file: Any, number: int) -> str:
    (length,) = _numbers(file, "Q")
    text = _bytes(file, length)
    try:
        return text.decode()
    except UnicodeDecodeError as error:
        raise ValueError(
            f"the name of array {number} is not UTF-8 (byte {file.tell() - length + error.start} of the "
            f"file): {text[:80]!r}. The file is damaged, or was written under names in another encoding: "
            "save it again, where it was written, under names in UTF-8"
        ) from None


def _code_of(array: NDArray) -> int:
    if array.dtype.name not in _DTYPES:
        raise TypeError(f".params files cannot hold {array.dtype}: they hold {', '.join(_DTYPES)}")
    return _DTYPES.index(array.dtype.name)


def _bytes(file: Any, n: int) -> bytes:
    try:
        data: bytes = file.read(n)
    except (MemoryError, OverflowError) as error:
        raise ValueError(f"the file is damaged, or too large for the memory: {n} bytes expected") from error
    if len(data) != n:
        raise ValueError(f"the file is damaged or cut off: {n} bytes expected, {len(data)} found")
    return data


def _numbers(file: Any, layout: str) -> tuple[int, ...]:
    return struct.unpack(f"<{layout}", _bytes(file, struct.calcsize(f"<{layout}")))


def _read_array(file: Any, make: Make) -> NDArray:
    (magic,) = _numbers(file, "I")
    entry = "q"
    if magic in (_V2, _V3):
        (storage,) = _numbers(file, "i")
        if storage not in (0, -1):
            raise ValueError(
                f"the file has a sparse array (storage type {storage}): only dense ones are read"
            )
    if magic in (_V1, _V2, _V3):
        (ndim,) = _numbers(file, "i")
    else:
        ndim, entry = magic, "I"
    if not 0 <= ndim <= _MAX_NDIM or (ndim == 0 and magic != _V3):
        raise ValueError(f"the file is damaged, or has an array without a value: it has {ndim} axes")
    shape = _numbers(file, f"{ndim}{entry}")
    _, _, code = _numbers(file, "iii")
    if not 0 <= code < len(_DTYPES) or any(length < 0 for length in shape):
        raise ValueError(f"the file is damaged: an array has the shape {shape} and the dtype number {code}")
    # Before there is memory for it: a damaged file may have a shape of any size.
    elements = _bytes(file, math.prod(shape) * _core.dtype(_DTYPES[code]).itemsize)
    array = make(shape, _DTYPES[code])
    if elements:
        array.reshape(-1).view("uint8")[...] = _core.from_buffer(elements, "uint8")
    return array
