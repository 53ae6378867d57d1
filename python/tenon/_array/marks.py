# SPDX-License-Identifier: Apache-2.0
"""Marks: values that show where memory was not written. For checks, not for the normal case."""

from __future__ import annotations

from typing import Any

# Bit patterns that no computation gives, and the bytes of each: NaNs with a payload, and a bool that is
# neither false nor true. One of them that is left is certain.
_CERTAIN = {
    "bool": (1, 0xA5),
    "float16": (2, 0x7EA5),
    "bfloat16": (2, 0x7FE5),
    "float32": (4, 0x7FE5A5A5),
    "float64": (8, 0x7FFDA5A5A5A5A5A5),
    "complex64": (4, 0x7FE5A5A5),
    "complex128": (8, 0x7FFDA5A5A5A5A5A5),
}
_SAFETY_BITS = 24  # other data look unwritten by accident at most once in 2**24 times


class Marks:
    """The marks of a field: elements of a dtype, in so many bytes. Elements of other dtypes than those above
    have random marks, of which only some bytes in a row are certain."""

    def __init__(self, dtype: str, nbytes: int) -> None:
        import numpy as np

        self._size, self._value = _CERTAIN.get(dtype, (0, 0))
        self._row = (_SAFETY_BITS + nbytes.bit_length() + 7) // 8
        if not self._size:
            self._marks = np.frombuffer(np.random.Generator(np.random.PCG64(nbytes)).bytes(nbytes), "u1")

    def put(self, memory: Any) -> None:
        """memory: an aligned array of bytes."""
        if self._size:
            memory.view(f"u{self._size}")[...] = self._value
        else:
            memory[...] = self._marks

    def find(self, memory: Any) -> int | None:
        """The offset of the first mark that is left in these bytes from the beginning."""
        import numpy as np

        if self._size:
            elements = memory.view(f"u{self._size}") == self._value
            place = int(elements.argmax())
            return place * self._size if elements[place] else None
        places = np.flatnonzero(memory == self._marks[: len(memory)])
        last = self._row - 1  # of a row, from its first byte
        if len(places) <= last:
            return None
        rows = np.flatnonzero(places[last:] - places[: len(places) - last] == last)
        return int(places[rows[0]]) if len(rows) else None
