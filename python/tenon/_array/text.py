# SPDX-License-Identifier: Apache-2.0
"""The text of an array: short for every size. It never raises and never waits."""

from __future__ import annotations

import html
from math import prod

from .. import _core
from .._errors import OpError, OwnerDied, text_of

_SHOWN_WHOLE = 1000  # elements up to which an array is printed whole
_WAYS_OUT = "a[...] = x overwrites it, a.clear_error() takes the elements as they are"
_EDGE = 3  # rows shown at each end of an axis of a larger one


def _summary(array: _core.NDArray, state: str = "") -> str:
    return f"<tenon.NDArray of shape {array.shape}, dtype={array.dtype}{state and ', ' + state}>"


def _obstacle(array: _core.NDArray) -> str:
    """The reason why the elements cannot be read at once."""
    for kind, mode, is_granted, thread, _, name, _ in _core.holders(array):
        if mode == "w" and kind == "op":
            return f"pending: op {name!r}"
        if mode == "w" and kind == "lease":
            return f"leased for writing by thread {thread}"
        if mode == "w" and kind == "process" and is_granted:
            return f"leased for writing by process {thread}"
    return "in use"


def _elements(array: _core.NDArray, prefix: str) -> str | None:
    """The elements as NumPy prints them; None if even the ends of all axes are too many elements."""
    import numpy as np

    whole = array.size <= _SHOWN_WHOLE
    shown = array.size if whole else prod(min(n, 2 * _EDGE + 1) for n in array.shape)
    if shown > _SHOWN_WHOLE:
        return None
    try:
        values = array.numpy()
    except TypeError:  # NumPy has no such dtype: as float32, which holds all values
        if not whole:
            return None
        values = array.astype("float32").numpy()
    return np.array2string(values, separator=", ", prefix=prefix, threshold=_SHOWN_WHOLE, edgeitems=_EDGE)


def array_repr(array: _core.NDArray) -> str:
    """``tenon.array([[1., 2.], [3., 4.]], dtype=float32)``. It never waits. If the array cannot be
    read at once, the text states the reason. It also states that the array has the memory of a NumPy array
    to which nothing else refers."""
    prefix = "tenon.array("
    moved_at = _core.moved_at(array)
    if moved_at:  # "": it never had memory, or native code has moved it
        return _summary(array, f"moved to NumPy at {moved_at}")
    if array.device != "cpu" and not array.device.endswith("host"):
        return _summary(array, f"device={array.device!r}")
    if array.size == 0:
        return f"{prefix}[], shape={array.shape}, dtype={array.dtype})"
    try:
        lease = _core.NativeLease(array, False)
        lease.acquire(timeout=0)
    except OpError as error:
        return _summary(array, f"failed: op {error.op!r}: {_WAYS_OUT}")
    except OwnerDied as error:
        return _summary(array, f"process {error.pid} died while it wrote it: {_WAYS_OUT}")
    except Exception as error:
        return _summary(array, _obstacle(array) if moved_at is None else text_of(error))
    try:
        text = _elements(array, prefix)
    except Exception:
        text = None
    finally:
        lease.release()
    lent_at = _core.lone_borrow(array)
    where = f" at {lent_at}" if lent_at else ""  # "": the line is not known
    borrow = "" if lent_at is None else f"borrowed{where} from an array that nothing else refers to"
    if text is None:
        return _summary(array, borrow)
    return f"{prefix}{text}, dtype={array.dtype}{borrow and ', ' + borrow})"


def array_html(array: _core.NDArray) -> str:
    """For notebooks: a line of facts, and the text of `array_repr` below it."""
    facts = [f"shape {array.shape}", str(array.dtype), f"{array.nbytes:,} bytes", array.device]
    facts += ["shared"] if array.shared else []
    facts += [] if array.writable else ["read-only"]
    return html_of("tenon.NDArray", facts, array_repr(array))


def html_of(title: str, facts: list[str], text: str) -> str:
    """Facts and a text as HTML, escaped."""
    line = ", ".join(html.escape(fact) for fact in facts)
    return f"<div><b>{html.escape(title)}</b> {line}<pre>{html.escape(text)}</pre></div>"


def array_format(array: _core.NDArray, spec: str) -> str:
    """``format(a, spec)``: formats the element of a zero-dimensional array; else only without a spec."""
    if array.ndim == 0 and spec:
        return format(array.item(), spec)
    if spec:
        raise TypeError(
            f"format spec {spec!r} needs a number: an array of {array.ndim} axes has none, take a.item(...)"
        )
    return str(array)
