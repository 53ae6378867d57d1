# SPDX-License-Identifier: Apache-2.0
"""How messages describe elements: their place, their order and their dtype."""

from __future__ import annotations

from typing import Any

from .._values import count

ALIGNMENT = 64
_PAGE = 4096


_UNITS = {"B": 1}
_UNITS |= {f"{letter}B": 1000**power for power, letter in enumerate("KMGT", 1)}
_UNITS |= {f"{letter}iB": 1024**power for power, letter in enumerate("KMGT", 1)}


def nbytes_from(value: int | str, name: str) -> int:
    """Bytes from an integer, or from a text such as "8 GiB" or "512 MB"."""
    if not isinstance(value, str):
        return count(value, name)
    digits = value.rstrip("BKMGTi ")
    unit = value[len(digits) :].strip() or "B"
    try:
        number = float(digits)
        nbytes = int(number * _UNITS[unit])
    except (KeyError, ValueError, OverflowError):
        raise ValueError(
            f"{name} is {value!r}: it must be a number of bytes, or a text such as '8 GiB' or '512 MB'"
        ) from None
    return count(nbytes, name)


def aligned(nbytes: int) -> int:
    return -(-nbytes // ALIGNMENT) * ALIGNMENT


def whole_pages(nbytes: int) -> int:
    """What a block of a pool takes."""
    return -(-nbytes // _PAGE) * _PAGE


def strides_in_order(shape: tuple[int, ...], strides: tuple[int, ...], itemsize: int = 1) -> tuple[int, ...]:
    """The strides of the shape without gaps, in the same order of axes."""
    result, step = [0] * len(shape), itemsize
    for axis in sorted(range(len(shape)), key=lambda axis: (abs(strides[axis]), -axis)):
        result[axis] = step
        step *= max(shape[axis], 1)
    return tuple(result)


def _has_more(dtype: Any) -> bool:
    """Whether it has what no description says: metadata, or aligned fields."""
    if dtype.metadata is not None or dtype.isalignedstruct:
        return True
    if dtype.subdtype is not None:
        return _has_more(dtype.base)
    return dtype.names is not None and any(_has_more(field[0]) for field in dtype.fields.values())


def dtype_spec(dtype: Any) -> Any:
    """A dtype of NumPy as a plain object; None: it has none."""
    import numpy as np

    if _has_more(dtype):
        return None
    kind = dtype.type
    if kind.__module__ == "ml_dtypes":
        return ("ml_dtypes", kind.__name__)
    if dtype.hasobject:
        return None
    if dtype.kind in "biufcmMSU":
        return dtype.str if kind.__module__ == "numpy" else None
    if kind is not np.void and kind is not np.record:
        return None
    try:
        described = np.lib.format.dtype_to_descr(dtype)
        spec = ("record", described) if kind is np.record else described
        return spec if dtype_of(spec) == dtype else None
    except (TypeError, ValueError):  # fields that overlap
        return None


def is_narrow(dtype: Any) -> bool:
    """Whether the elements have fewer than 8 bits, as int4 of ml_dtypes: NumPy has one in each byte."""
    if dtype.type.__module__ != "ml_dtypes":
        return False
    bits = dtype.name.lstrip("abcdefghijklmnopqrstuvwxyz").partition("_")[0]
    return int(bits) < 8


def dtype_of(spec: Any) -> Any:
    """The dtype that dtype_spec() has described. Raises ValueError for a dtype of objects: bytes would be
    their addresses."""
    dtype = _dtype_of(spec)
    if dtype.hasobject:
        raise ValueError(f"the message has an array of dtype {dtype}, whose elements cannot be sent so")
    return dtype


def _dtype_of(spec: Any) -> Any:
    import numpy as np

    if type(spec) is str:
        return np.dtype(spec)
    if type(spec) is tuple and spec[0] == "ml_dtypes":
        import ml_dtypes

        return np.dtype(getattr(ml_dtypes, spec[1]))
    if type(spec) is tuple and spec[0] == "record":
        return np.dtype((np.record, np.lib.format.descr_to_dtype(spec[1])))
    return np.lib.format.descr_to_dtype(spec)
