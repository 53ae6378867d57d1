# SPDX-License-Identifier: Apache-2.0
"""What the batches of a feed consist of."""

from __future__ import annotations

from .._array.fields import FieldsLike, described
from .._core import Batch, Schema
from .._typing import DTypeLike


def schema(**fields: tuple[DTypeLike, int | tuple[int, ...]]) -> Schema:
    """The fields of a batch: ``schema(data=("f4", (64, 3, 32, 32)), label=("i8", (64,)))``.

    Axis 0 counts rows and has the same length in every field.

    Raises
    ------
    ValueError
        No fields, different numbers of rows, a length below 1, a name that is an attribute of `Batch`.
    TypeError
        A dtype that does not exist, or whose elements are not whole bytes.
    """
    for name in fields:
        if name in dir(Batch):
            raise ValueError(f"a field cannot be named {name!r}: batches have an attribute of that name")
    return Schema(fields)


def schema_of(fields: FieldsLike | None) -> Schema:
    """A schema, or what `schema` makes of a dict."""
    if isinstance(fields, Schema):
        return fields
    return schema(**{name: (dtype, shape) for name, dtype, shape in described(fields, "schema")})
