# SPDX-License-Identifier: Apache-2.0
"""The check of batches for elements that their generator did not write."""

from __future__ import annotations

import math
from typing import Any

from .._array.creation import from_pointer
from .._array.marks import Marks
from .._core import NativeWorker, Schema


class MarkedFields:
    """The marks in the fields of a worker's batches, without those that may keep their elements."""

    def __init__(self, native: NativeWorker, schema: Schema) -> None:
        self._native = native
        self._marks = {
            (number, name): Marks(dtype.name, dtype.itemsize * math.prod(shape))
            for number, (name, dtype, shape) in enumerate(schema.fields)
            if name not in schema.kept
        }

    def put(self) -> None:
        """Before a fill."""
        for (number, _), marks in self._marks.items():
            marks.put(self._memory(number))

    def check(self) -> None:
        """After it. Raises ValueError if a mark is left."""
        for (number, name), marks in self._marks.items():
            memory = self._memory(number)
            place = marks.find(memory) if len(memory) else None
            if place is None:
                continue
            rows = self._native.array(number).shape[0]
            raise ValueError(
                f"row {place * rows // len(memory)} of field {name!r} of batch {self._native.index} of epoch "
                f"{self._native.epoch} was not written: the consumer would get old elements. Write all "
                f"elements of its {rows} rows, or set batch.rows if it has fewer"
            )

    def _memory(self, number: int) -> Any:
        """The bytes of a field, in the shape that it has now."""
        array = self._native.array(number)
        return from_pointer(array.data_ptr, (array.nbytes,), "u1", owner=array).numpy()
