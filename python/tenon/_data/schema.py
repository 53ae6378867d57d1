# SPDX-License-Identifier: Apache-2.0
"""What the batches of a feed consist of."""

from __future__ import annotations

from typing import Any

from .._array.fields import FieldsLike, described
from .._core import Batch, Schema


def schema(fields: FieldsLike | None = None, /, **named: tuple[Any, ...]) -> Schema:
    """The fields of a batch: ``schema(data=("f4", (64, 3, 32, 32)), label=("i8", (64,)))``, or the same as a
    mapping.

    Axis 0 counts rows and has the same length in every field.

    A field with a third part, ``mask=("u1", (64,), "kept")``, may keep elements of an earlier batch: a
    generator need not write it. Other uses of a schema ignore this part.

    Raises
    ------
    ValueError
        No fields, different numbers of rows, a length below 1, a name that is an attribute of `Batch`.
    TypeError
        A dtype that does not exist, or whose elements are not whole bytes; a part that is not "kept".
    """
    if isinstance(fields, Schema) and not named:
        return fields
    if fields is not None:
        given = described(fields, "schema", has_kept=True)
        named = {**{name: tuple(field) for name, *field in given}, **named}
    for name in named:
        if name in dir(Batch):
            raise ValueError(f"a field cannot be named {name!r}: batches have an attribute of that name")
    return Schema(named)


def schema_of(fields: FieldsLike | None) -> Schema:
    """A schema, or what `schema` makes of a dict."""
    if isinstance(fields, Schema):
        return fields
    if fields is None:
        raise TypeError("schema is None: it must be a mapping of names to (dtype, shape), or a Schema")
    return schema(fields)
