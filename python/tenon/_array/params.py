# SPDX-License-Identifier: Apache-2.0
"""MXNet's file format for parameters (.params): a list of arrays, with or without names.

All numbers are little-endian::

    uint64 0x112, uint64 0
    uint64 number of arrays, the arrays
    uint64 number of names (0: none), and for each name: uint64 length, UTF-8

An array, with the layout of its memory in C order::

    uint32 0xF993FAC9, int32 0 (dense)       0xF993FACA: () is a shape and 0 a length, else () is no array
    int32 ndim, ndim times int64, int32 device type, int32 device number, int32 dtype, the elements

MXNet reads either the one or the other, as ``np_shape`` says, so all arrays of a file have one form.
Files of older versions have 0xF993FAC8 without the 0, or begin with ndim and lengths of 32 bits.
"""

from __future__ import annotations

import io
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
_PART = 1 << 18  # bytes that are copied, or read, at a time

Make = Callable[[tuple[int, ...], str], NDArray]


def write(file: Any, arrays: list[NDArray], names: list[str]) -> None:
    codes = [_code_of(array) for array in arrays]
    magic = _V2 if all(array.ndim > 0 and array.size > 0 for array in arrays) else _V3
    file.write(MAGIC + struct.pack("<QQ", 0, len(arrays)))
    for array, code in zip(arrays, codes, strict=True):
        layout = f"<Iii{array.ndim}qiii"
        file.write(struct.pack(layout, magic, 0, array.ndim, *array.shape, _CPU, 0, code))
        _write_elements(file, array.readonly())
    file.write(struct.pack("<Q", len(names)))
    for name in names:
        text = name.encode()
        file.write(struct.pack("<Q", len(text)) + text)


def _write_elements(file: Any, array: NDArray) -> None:
    """In C order. What does not lie in it, or is on a device, is copied in parts."""
    if array.nbytes <= _PART:
        file.write(array.tobytes())
    elif array.is_contiguous() and array.device == "cpu":
        file.write(array.reshape(-1).view("uint8"))
    else:
        step = max(1, _PART * len(array) // array.nbytes)
        for i in range(0, len(array), step):
            _write_elements(file, array[i : i + step] if step > 1 else array[i])


def read(file: Any, make: Make) -> list[NDArray] | dict[str, NDArray]:
    """make: creates each array. Raises ValueError for a file that is damaged."""
    source = _Source(file)
    if source.read(8) != MAGIC:
        raise ValueError("the file is no .params file of MXNet: it does not begin with 0x112")
    _, n = source.numbers("QQ")
    arrays = [_read_array(source, make) for _ in range(n)]
    (n_names,) = source.numbers("Q")
    names = [_read_name(source, number) for number in range(n_names)]
    if not names:
        return arrays
    if len(names) != len(arrays) or len(set(names)) != len(names):
        raise ValueError(f"the file is damaged: it has {len(arrays)} arrays and the names {names}")
    return dict(zip(names, arrays, strict=True))


class _Source:
    """A file, from its position on. Knows how much is left: a damaged file may have a length of any size."""

    def __init__(self, file: Any) -> None:
        self._file = file
        begin = file.tell()
        file.seek(0, io.SEEK_END)
        self._end: int = file.tell()
        self._left: int = self._end - begin
        file.seek(begin)

    @property
    def position(self) -> int:
        return self._end - self._left

    def take(self, n: int) -> None:
        if n > self._left:
            raise _cut_off(n, self._left)
        self._left -= n

    def read(self, n: int) -> bytes:
        self.take(n)
        data: bytes = self._file.read(n)
        if len(data) != n:
            raise _cut_off(n, len(data))
        return data

    def numbers(self, layout: str) -> tuple[int, ...]:
        return struct.unpack(f"<{layout}", self.read(struct.calcsize(f"<{layout}")))

    def read_into(self, elements: Any) -> None:
        """Fills a NumPy array of bytes, which were taken before."""
        readinto = getattr(self._file, "readinto", self._read_into)
        begin = 0
        while begin < len(elements):
            n = readinto(elements[begin : begin + _PART])
            if not n:
                raise _cut_off(len(elements), begin)
            begin += n

    def _read_into(self, elements: Any) -> int:
        data: bytes = self._file.read(len(elements))
        memoryview(elements)[: len(data)] = data
        return len(data)


def _cut_off(expected: int, found: int) -> ValueError:
    return ValueError(f"the file is damaged or cut off: {expected} bytes expected, {found} found")


def _read_name(source: _Source, number: int) -> str:
    (length,) = source.numbers("Q")
    text = source.read(length)
    try:
        return text.decode()
    except UnicodeDecodeError as error:
        raise ValueError(
            f"the name of array {number} is not UTF-8 (byte {source.position - length + error.start} of the "
            f"file): {text[:80]!r}. The file is damaged, or was written under names in another encoding: "
            "save it again, where it was written, under names in UTF-8"
        ) from None


def _code_of(array: NDArray) -> int:
    if array.dtype.name not in _DTYPES:
        raise TypeError(f".params files cannot hold {array.dtype}: they hold {', '.join(_DTYPES)}")
    return _DTYPES.index(array.dtype.name)


def _read_array(source: _Source, make: Make) -> NDArray:
    (magic,) = source.numbers("I")
    entry = "q"
    if magic in (_V2, _V3):
        (storage,) = source.numbers("i")
        if storage not in (0, -1):
            raise ValueError(
                f"the file has a sparse array (storage type {storage}): only dense ones are read"
            )
    if magic in (_V1, _V2, _V3):
        (ndim,) = source.numbers("i")
    else:
        ndim, entry = magic, "I"
    if not 0 <= ndim <= _MAX_NDIM or (ndim == 0 and magic != _V3):
        raise ValueError(f"the file is damaged, or has an array without a value: it has {ndim} axes")
    shape = source.numbers(f"{ndim}{entry}")
    _, _, code = source.numbers("iii")
    if not 0 <= code < len(_DTYPES) or any(length < 0 for length in shape):
        raise ValueError(f"the file is damaged: an array has the shape {shape} and the dtype number {code}")
    source.take(math.prod(shape) * _core.dtype(_DTYPES[code]).itemsize)
    array = make(shape, _DTYPES[code])
    with array.reshape(-1).view("uint8").write(overwrite=True) as elements:
        source.read_into(elements)
    return array
