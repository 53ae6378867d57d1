# SPDX-License-Identifier: Apache-2.0
"""The check of batches for elements that their generator did not write."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from .._array.creation import from_pointer
from .._array.marks import Marks
from .._core import NativeWorker, Schema

if TYPE_CHECKING:
    from .workers import WorkerBatch


class MarkedFields:
    """The marks in the fields of a worker's batches, without those that may keep their elements."""

    def __init__(self, native: NativeWorker, schema: Schema) -> None:
        self._native = native
        self._marks = {
            number: Marks(dtype.name, dtype.itemsize * math.prod(shape))
            for number, (name, dtype, shape) in enumerate(schema.fields)
            if name not in schema.kept
        }

    def put(self) -> None:
        """Before a fill."""
        for number, marks in self._marks.items():
            marks.put(self._memory(number))

    def check(self, batch: WorkerBatch) -> None:
        """After it. Raises ValueError if a mark is left."""
        for number, marks in self._marks.items():
            memory = self._memory(number)
            place = marks.find(memory) if len(memory) else None
            if place is None:
                continue
            rows = self._native.array(number).shape[0]
            raise ValueError(
                f"row {place * rows // len(memory)} of field {batch.keys()[number]!r} of batch "
                f"{batch._index} of epoch {batch.epoch} was not written: the consumer would get old "
                f"elements. Write all elements of its {rows} rows, or set batch.rows if it has fewer"
            )

    def _memory(self, number: int) -> Any:
        """The bytes of a field, in the shape that it has now."""
        array = self._native.array(number)
        return from_pointer(array.data_ptr, (array.nbytes,), "u1", owner=array).numpy()
