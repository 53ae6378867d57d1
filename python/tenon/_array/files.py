# SPDX-License-Identifier: Apache-2.0
"""Arrays in NumPy's file formats (npy for one array, npz for several), and in that of MXNet (.params)."""

from __future__ import annotations

import contextlib
import errno
import io
import os
import stat
import struct
import sys
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, BinaryIO, Literal

from .. import _core
from .._core import NDArray
from .._values import flag, path_for_c, text_for_c
from . import params
from .creation import empty
from .replacing import replaced

File = str | os.PathLike[str] | BinaryIO
_MMAP_MODES = (None, "r", "r+", "c")
_NPY = b"\x93NUMPY"
_NPZ = (b"PK\x03\x04", b"PK\x05\x06")  # the second: an empty one
_PART_NBYTES = 1 << 20
_MOST_NAME_BYTES = 65_535 - len(".npy")  # of an array in an npz file


def _check_path(file: File) -> None:
    if isinstance(file, (str, os.PathLike)):
        path_for_c(os.fsdecode(file), "the path of a file")


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
        nbytes = len(text_for_c(name, "the name of an array in a file").encode())
        if nbytes > _MOST_NAME_BYTES and not _is_params(file):
            raise ValueError(
                f"the name '{name[:20]}...' has {nbytes} bytes: names in npz files have at most "
                f"{_MOST_NAME_BYTES}"
            )
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

    All arrays are read in one call, so they are consistent with each other. A file at a path is replaced as a
    whole: a new file in the same folder is written and synced to the disk, and takes its name. If the save
    fails, or the process ends, the old file is as it was. An array that maps the old file (`load` with
    ``mmap_mode``) keeps the old content, and later writes to it do not reach the new file. The new file has
    the mode, owner and group of the old one. Links are followed. Other names of the file (hard links) keep
    the old content. What is no regular file, such as a FIFO, is written in place, and so is an open file.

    Parameters
    ----------
    file : path or binary file
        A path that ends in .params is written in MXNet's format. To any other path that does not end in .npy
        or .npz that ending is appended, as in NumPy: 'net.pt' becomes 'net.pt.npz'.
    data : array, or dict of str to array, or list of arrays
        One array goes to an npy file. A dict goes to an npz file under its names, a list under '0', '1', ...
        A .params file has lists with and without names; one array is a list without names. MXNet 1.9 cannot
        read int16, uint16, uint32 and uint64, and reads a file with an array of the shape (), or without
        elements, only under ``mx.util.np_shape(True)``.

    Raises
    ------
    TypeError
        The file does not support the dtype (npy: bfloat16, fp8; .params: complex numbers, fp8). The arguments
        are in the wrong order, or a value of the dict is no array, for example another dict.
    ValueError
        An empty dict for a .params file: the format cannot tell it from an empty list. A name of more than
        65,531 bytes for an npz file.
    PermissionError
        The file may not be written, its folder takes no new file, or the owner cannot be kept.
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
    with _written(file, "" if is_params else ".npz" if isinstance(data, dict) else ".npy") as opened:
        turn = _core.ArrayCall("save", arrays, [])
        try:
            if is_params:
                params.write(opened, arrays, names)
            elif isinstance(data, dict):
                views = [_checked(turn.view(array)) for array in arrays]
                _write_npz(opened, dict(zip(names, views, strict=True)))
            else:
                _write_npy(opened, _checked(turn.view(arrays[0])))
        finally:
            turn.end()


def _written(file: File, ending: str) -> contextlib.AbstractContextManager[BinaryIO]:
    if not isinstance(file, (str, os.PathLike)):
        return contextlib.nullcontext(_whole(file))
    path = os.fsdecode(file)
    return replaced(path if path.endswith(ending) else path + ending)


def _whole(file: Any) -> Any:
    return _Whole(file) if isinstance(file, io.RawIOBase) else file


class _Whole:
    """A raw file, such as that of a socket or one without a buffer. Its own calls may read or write less than
    they are asked to."""

    def __init__(self, file: io.RawIOBase) -> None:
        self._file = file

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def write(self, data: Any) -> int:
        rest = memoryview(data).cast("B")
        while rest:
            rest = rest[self._ready(self._file.write(rest)) :]
        return memoryview(data).nbytes

    def read(self, nbytes: int = -1) -> bytes:
        data = bytearray()
        while nbytes < 0 or len(data) < nbytes:
            part = self._ready(self._file.read(_PART_NBYTES if nbytes < 0 else nbytes - len(data)))
            if not part:
                break
            data += part
        return bytes(data)

    @staticmethod
    def _ready(answer: Any) -> Any:
        if answer is None:
            raise BlockingIOError(errno.EAGAIN, "the file does not block, and is not ready: make it blocking")
        return answer


def _can_seek(file: Any) -> bool:
    return not hasattr(file, "seekable") or file.seekable()


def _write_npy(file: Any, array: Any) -> None:
    import numpy as np

    if not _can_seek(file):  # NumPy asks a file of the system for its position
        file = SimpleNamespace(write=file.write)
    np.lib.format.write_array(file, array, allow_pickle=False)


def _write_npz(file: BinaryIO, arrays: dict[str, Any]) -> None:
    """As numpy.savez, whose parameters' names an array cannot have."""
    import zipfile

    import numpy as np

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
        An open file may be a pipe: it is read to its end.
    mmap_mode : {None, 'r', 'r+', 'c'}
        Maps an npy file read-only, for writing, or copy-on-write, instead of reading it. Its elements are in
        the byte order of the machine, and aligned, as those of each file that `save` has written.
    shared : bool
        The arrays are in memory that other processes can map, as those of ``tn.empty(..., shared=True)``.

    Returns
    -------
    NDArray, or dict of str to NDArray, or list of NDArray
        For an npz file a dict of all arrays, by the names of the files in it without .npy. For a .params
        file a dict, or a list if the arrays have no names.

    Raises
    ------
    TypeError
        The elements of the file are not numbers.
    ValueError
        The file is damaged, encrypted, of another format, or holds Python objects, or a name of a .params
        file is not UTF-8. `mmap_mode` is unknown, or is given with `shared`, for a file that is no npy file
        or whose elements cannot be used where they lie, or for an open file.
    """
    if not _is_file(file, "read"):
        raise TypeError(_not_a_file(file))
    _check_path(file)
    if mmap_mode not in _MMAP_MODES:  # 'w+' of NumPy empties the file
        raise ValueError(f"mmap_mode is {mmap_mode!r}: it must be None, 'r', 'r+' or 'c'")
    if flag(shared, "shared") and mmap_mode is not None:
        raise ValueError(f"mmap_mode is {mmap_mode!r}: a mapped file cannot be in shared memory")
    if isinstance(file, (str, os.PathLike)):
        with open(file, "rb") as opened:
            return _load(file, opened, mmap_mode, shared)
    return _load(file, _whole(file), mmap_mode, shared)


def _load(
    file: File, opened: BinaryIO, mmap_mode: Literal["r", "r+", "c"] | None, shared: bool
) -> NDArray | dict[str, NDArray] | list[NDArray]:
    import numpy as np

    can_seek = _can_seek(opened)
    begin = opened.tell() if can_seek else 0
    first: bytes | str = opened.read(len(params.MAGIC))
    if isinstance(first, str):
        raise TypeError(_not_a_file(file))
    is_npy = first.startswith(_NPY)
    if not is_npy and not first.startswith(_NPZ) and first != params.MAGIC:
        found = f"it begins with {first!r}" if first else "it is empty"
        raise _error_of(file, f"the file is no npy, npz or .params file: {found}")
    if mmap_mode is not None:
        _check_mappable(file, opened, mmap_mode, is_npy)
        return _core.share(_mapped(file, mmap_mode))
    if can_seek:
        opened.seek(begin)
    else:
        opened = io.BytesIO(first + opened.read())
    if first == params.MAGIC:
        return _load_params(file, opened, shared)
    if not is_npy:
        return _load_npz(file, opened, shared)
    with _errors_of(file):
        array = np.load(opened, allow_pickle=False)
    return _loaded(array, shared)


def _check_mappable(file: File, opened: BinaryIO, mmap_mode: str, is_npy: bool) -> None:
    if not isinstance(file, (str, os.PathLike)):
        raise ValueError(f"mmap_mode is {mmap_mode!r}: only a file that is given by its path can be mapped")
    if not is_npy or not stat.S_ISREG(os.fstat(opened.fileno()).st_mode):
        raise ValueError(f"mmap_mode is {mmap_mode!r}: only npy files can be mapped")


def _mapped(file: Any, mmap_mode: Literal["r", "r+", "c"]) -> Any:
    import numpy as np

    with _errors_of(file):
        mapped = np.load(file, "r" if mmap_mode == "r+" else mmap_mode, allow_pickle=False)
    if not (mapped.dtype.isnative and mapped.flags.aligned):
        fault = "are unaligned" if mapped.dtype.isnative else "have the other byte order"
        raise _error_of(file, f"the file cannot be mapped: its elements {fault}. Load it without mmap_mode")
    # Only now for writing: NumPy makes a file that is too short longer, with zeros.
    return np.load(file, mmap_mode, allow_pickle=False) if mmap_mode == "r+" else mapped


def _load_npz(file: File, opened: BinaryIO, shared: bool) -> dict[str, NDArray]:
    import zipfile

    arrays: dict[str, NDArray] = {}
    with _errors_of(file):
        archive = zipfile.ZipFile(opened)
    with archive:
        for info in archive.infolist():
            name = info.filename.removesuffix(".npy")
            if name in arrays:
                raise _error_of(file, f"the file is damaged: it has two arrays of the name {name!r}")
            with _errors_of(file):
                array = _read_member(archive, info)
            if array is None:
                raise _error_of(file, f"the file is no npz file: {info.filename!r} in it is no array")
            arrays[name] = _loaded(array, shared)
    return arrays


def _read_member(archive: Any, info: Any) -> Any:
    """None: it is no array."""
    import numpy as np

    with archive.open(info) as member:
        if member.peek(len(_NPY))[: len(_NPY)] != _NPY:
            return None
        array = np.lib.format.read_array(member, allow_pickle=False)
        if member.read(1):  # zipfile compares the checksum at the end
            raise ValueError(f"{info.filename!r} in it has bytes behind the array")
    return array


@contextlib.contextmanager
def _errors_of(file: Any) -> Iterator[None]:
    """Makes one error of those that NumPy raises for what a file holds."""
    try:
        yield
    except Exception as error:
        import tokenize
        import zipfile
        import zlib

        lzma_error = getattr(sys.modules.get("lzma"), "LZMAError", EOFError)
        of_files = (EOFError, zipfile.BadZipFile, zlib.error, lzma_error)
        of_headers = (SyntaxError, TypeError, LookupError, struct.error, tokenize.TokenError)
        kinds = (ValueError, RuntimeError, MemoryError, OverflowError, *of_files, *of_headers)
        # Of bz2, and of a seek to a negative place.
        is_of_content = type(error) is OSError and error.errno in (None, errno.EINVAL)
        if not isinstance(error, kinds) and not is_of_content:
            raise
        text = str(error)
        if "max_header_size" in text:  # NumPy's advice is for its own functions
            reason = "the description of an array is too long: it is damaged, or of a structured dtype"
            raise _error_of(file, reason) from None
        if "allow_pickle" in text or "Python objects" in text:
            raise _error_of(file, "the file holds Python objects, and an array has numbers") from None
        if isinstance(error, RuntimeError) and not isinstance(error, RecursionError):
            raise _error_of(file, f"an array of the file cannot be read: {text}") from error
        if isinstance(error, MemoryError):
            text = f"or too large for the memory: {text}"
        raise _error_of(file, f"the file is damaged or cut off: {text}") from error


def _error_of(file: Any, text: str) -> ValueError:
    name = file if isinstance(file, (str, os.PathLike)) else getattr(file, "name", None)
    return ValueError(text if name is None else f"{name}: {text}")


def _load_params(file: File, opened: BinaryIO, shared: bool) -> list[NDArray] | dict[str, NDArray]:
    try:
        return params.read(opened, lambda shape, dtype: empty(shape, dtype, shared=shared))
    except ValueError as error:
        raise _error_of(file, str(error)) from None


def _loaded(array: Any, shared: bool) -> NDArray:
    """The array read, without another copy where its byte order is the machine's."""
    if not shared:
        return _core.share(array)
    result = empty(array.shape, array.dtype.newbyteorder("="), shared=True)
    result[...] = array
    return result
