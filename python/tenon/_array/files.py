# SPDX-License-Identifier: Apache-2.0
"""Arrays in NumPy's file formats (npy for one array, npz for several), and in that of MXNet (.params)."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import Any, BinaryIO, Literal

from .. import _core
from .._core import NDArray
from .._values import flag, text_for_c
from . import params
from .creation import empty

File = str | os.PathLike[str] | BinaryIO
_MMAP_MODES = (None, "r", "r+", "c")
_BEGINNINGS = (b"\x93NUMPY", b"PK\x03\x04", b"PK\x05\x06")  # of npy files, of npz files, of empty npz files


def _check_path(file: File) -> None:
    if isinstance(file, (str, os.PathLike)):
        text_for_c(os.fsdecode(file), "the path of a file")


def _checked(view: Any) -> Any:
    if view.dtype.kind == "V" or view.dtype.isbuiltin != 1:
        raise TypeError(f"npy files cannot hold {view.dtype}: save a.view('uint{8 * view.dtype.itemsize}')")
    return view


def _is_file(object: Any, method: str) -> bool:
    """Whether it is a path, or a file with the method. Arrays have read and write, too."""
    is_open = hasattr(object, method) and not isinstance(object, NDArray)
    return is_open or isinstance(object, (str, os.PathLike))


def _not_a_file(file: Any) -> str:
    return f"file is {type(file).__name__}: it must be a path or a binary file"


def _check_arguments(file: Any, data: Any) -> None:
    """Checks of `save` whose errors say more than those of NumPy."""
    if not _is_file(file, "write"):
        is_swapped = _is_file(data, "write")
        hint = ". The arguments are in the wrong order: save(file, data)" if is_swapped else ""
        raise TypeError(_not_a_file(file) + hint)
    _check_path(file)
    if isinstance(data, (str, os.PathLike)):
        raise TypeError(f"data is {data!r}: it must be an array, a dict of arrays or a list of arrays")
    if not isinstance(data, dict):
        return
    for name, array in data.items():
        if not isinstance(name, str):
            raise TypeError(f"the arrays of a file have names that are str, not {name!r}")
        text_for_c(name, "the name of an array in a file")
        if isinstance(array, dict):
            inner = next(iter(array), "x")
            raise TypeError(
                f"{name!r} is a dict: the arrays of a file have one level of names. Join the names: "
                f"{{'{name}.{inner}': ...}}"
            )
        if array is None or isinstance(array, str):
            raise TypeError(f"{name!r} is {array!r}: it must be an array")


def _is_params(file: File) -> bool:
    return isinstance(file, (str, os.PathLike)) and os.fsdecode(file).endswith(".params")


def save(file: File, data: Any) -> None:
    """Writes an array, or several, to a file that NumPy or MXNet can read.

    All arrays are read in one call, so they are consistent with each other.

    Parameters
    ----------
    file : path or binary file
        A path that ends in .params is written in MXNet's format. To any other path that does not end in .npy
        or .npz that ending is appended, as in NumPy: 'net.pt' becomes 'net.pt.npz'.
    data : array, or dict of str to array, or list of arrays
        One array goes to an npy file. A dict goes to an npz file under its names, a list under '0', '1', ...
        A .params file has lists with and without names; one array is a list without names.

    Raises
    ------
    TypeError
        The file does not support the dtype (npy: bfloat16, fp8; .params: complex numbers, fp8). The arguments
        are in the wrong order, or a value of the dict is no array, for example another dict.
    ValueError
        An empty dict for a .params file: the format cannot tell it from an empty list.
    """
    _check_arguments(file, data)
    is_params = _is_params(file)
    if is_params and isinstance(data, dict) and not data:
        raise ValueError(
            "a .params file cannot hold an empty dict: it would be loaded as an empty list. Save to .npz"
        )
    if isinstance(data, (list, tuple)) and not is_params:
        data = {str(i): array for i, array in enumerate(data)}
    names = list(data) if isinstance(data, dict) else []
    several = list(data.values()) if names else data if isinstance(data, (dict, list, tuple)) else [data]
    arrays = [_core.share(array) for array in several]
    turn = _core.ArrayCall("save", arrays, [])
    try:
        if is_params:
            params.write(file, arrays, names)
        elif isinstance(data, dict):
            _save_npz(file, {name: _checked(turn.view(a)) for name, a in zip(names, arrays, strict=True)})
        else:
            import numpy as np

            np.save(file, _checked(turn.view(arrays[0])))
    finally:
        turn.end()


def _save_npz(file: File, arrays: dict[str, Any]) -> None:
    """As numpy.savez, whose parameters' names an array cannot have."""
    import numpy as np

    if isinstance(file, (str, os.PathLike)) and not os.fspath(file).endswith(".npz"):
        file = os.fspath(file) + ".npz"
    import zipfile

    with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED, allowZip64=True) as archive:
        for name, array in arrays.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                np.lib.format.write_array(member, array, allow_pickle=False)


def load(
    file: File, mmap_mode: Literal["r", "r+", "c"] | None = None, shared: bool = False
) -> NDArray | dict[str, NDArray] | list[NDArray]:
    """Reads a npy or npz file, or a .params file of MXNet, which is recognised by its first bytes.

    Parameters
    ----------
    file : path or binary file
    mmap_mode : {None, 'r', 'r+', 'c'}
        For an npy file: maps the file read-only, for writing, or copy-on-write, instead of reading it.
    shared : bool
        The arrays are in memory that other processes can map, as those of ``tn.empty(..., shared=True)``.

    Returns
    -------
    NDArray, or dict of str to NDArray, or list of NDArray
        For an npz file a dict of all arrays. For a .params file a dict, or a list if the arrays have no
        names.

    Raises
    ------
    TypeError
        The elements of the file are not numbers.
    ValueError
        The file is damaged, of another format, or holds Python objects, or a name of a .params file is not
        UTF-8. `mmap_mode` is unknown, or is given with `shared`, a .params file or an open file.
    """
    import numpy as np

    if not _is_file(file, "read"):
        raise TypeError(_not_a_file(file))
    _check_path(file)
    if mmap_mode not in _MMAP_MODES:  # 'w+' of NumPy empties the file
        raise ValueError(f"mmap_mode is {mmap_mode!r}: it must be None, 'r', 'r+' or 'c'")
    if flag(shared, "shared") and mmap_mode is not None:
        raise ValueError(f"mmap_mode is {mmap_mode!r}: a mapped file cannot be in shared memory")
    if isinstance(file, (str, os.PathLike)):
        with open(file, "rb") as opened:
            first = opened.peek(8)[:8]
            if first == params.MAGIC:
                return _load_params(opened, mmap_mode, shared)
    else:
        first = _first_bytes(file)
        if first == params.MAGIC:
            return _load_params(file, mmap_mode, shared)
    if not first.startswith(_BEGINNINGS):
        found = f"it begins with {first!r}" if first else "it is empty"
        raise _error_of(file, f"the file is no npy, npz or .params file: {found}")
    if mmap_mode is not None and not isinstance(file, (str, os.PathLike)):
        raise ValueError(f"mmap_mode is {mmap_mode!r}: only a file that is given by its path can be mapped")
    with _errors_of(file):
        content = np.load(file, mmap_mode=mmap_mode, allow_pickle=False)
    if isinstance(content, np.ndarray):
        return _loaded(content, shared)
    arrays = {}
    with content:
        for name in content.files:
            with _errors_of(file):
                member = content[name]
            if isinstance(member, bytes):
                raise _error_of(file, f"the file is no npz file: {name!r} in it is no array")
            arrays[name] = _loaded(member, shared)
    return arrays


def _first_bytes(file: BinaryIO) -> bytes:
    begin = file.tell()  # np.load goes back, too
    first: bytes | str = file.read(len(params.MAGIC))
    file.seek(begin)
    if isinstance(first, str):
        raise TypeError(_not_a_file(file))
    return first


@contextlib.contextmanager
def _errors_of(file: Any) -> Iterator[None]:
    """Makes one error of those that NumPy raises for what a file holds."""
    try:
        yield
    except Exception as error:
        import tokenize
        import zipfile
        import zlib

        kinds = (ValueError, EOFError, NotImplementedError, zipfile.BadZipFile, zlib.error)
        if not isinstance(error, (*kinds, tokenize.TokenError)):
            raise
        text = str(error)
        if "allow_pickle" in text or "Python objects" in text:  # NumPy's advice is for its own functions
            raise _error_of(file, "the file holds Python objects, and an array has numbers") from None
        raise _error_of(file, f"the file is damaged or cut off: {text}") from error


def _error_of(file: Any, text: str) -> ValueError:
    name = file if isinstance(file, (str, os.PathLike)) else getattr(file, "name", None)
    return ValueError(text if name is None else f"{name}: {text}")


def _load_params(file: Any, mmap_mode: str | None, shared: bool) -> list[NDArray] | dict[str, NDArray]:
    if mmap_mode is not None:
        raise ValueError(f"mmap_mode is {mmap_mode!r}: only npy files can be mapped")
    try:
        return params.read(file, lambda shape, dtype: empty(shape, dtype, shared=shared))
    except ValueError as error:
        raise _error_of(file, str(error)) from None


def _loaded(array: Any, shared: bool) -> NDArray:
    """The array read, without another copy where its byte order is the machine's."""
    if not shared:
        return _core.share(array)
    result = empty(array.shape, array.dtype.newbyteorder("="), shared=True)
    result[...] = array
    return result
