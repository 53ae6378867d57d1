# SPDX-License-Identifier: Apache-2.0
"""Arrays in NumPy's file formats: npy for one array, npz for several."""

from __future__ import annotations

import os
import zipfile
from typing import Any, BinaryIO, Literal

from .. import _core
from .._core import NDArray
from .._values import text_for_c

File = str | os.PathLike[str] | BinaryIO


def _check_path(file: File) -> None:
    if isinstance(file, (str, os.PathLike)):
        text_for_c(os.fsdecode(file), "the path of a file")


def _as_numpy(array: Any) -> Any:
    view = _core.share(array).numpy()
    if view.dtype.kind == "V" or view.dtype.isbuiltin != 1:
        raise TypeError(f"npy files cannot hold {view.dtype}: save a.view('uint{8 * view.dtype.itemsize}')")
    return view


def save(file: File, data: Any) -> None:
    """Writes an array, or several, to a file that NumPy can read.

    Parameters
    ----------
    file : path or binary file
        A path without an extension gets .npy or .npz, as in NumPy.
    data : array, or dict of str to array, or list of arrays
        One array goes to an npy file. A dict goes to an npz file under its names, a list under '0', '1', ...

    Raises
    ------
    TypeError
        npy files do not support the dtype (bfloat16, fp8).
    """
    import numpy as np

    _check_path(file)
    if isinstance(data, (list, tuple)):
        data = {str(i): array for i, array in enumerate(data)}
    if isinstance(data, dict):
        for name in data:
            if not isinstance(name, str):
                raise TypeError(f"the arrays of an npz file have names that are str, not {name!r}")
            text_for_c(name, "the name of an array in an npz file")
        _save_npz(file, {name: _as_numpy(array) for name, array in data.items()})
    else:
        np.save(file, _as_numpy(data))


def _save_npz(file: File, arrays: dict[str, Any]) -> None:
    """As numpy.savez, whose parameters' names an array cannot have."""
    import numpy as np

    if isinstance(file, (str, os.PathLike)) and not os.fspath(file).endswith(".npz"):
        file = os.fspath(file) + ".npz"
    with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED, allowZip64=True) as archive:
        for name, array in arrays.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                np.lib.format.write_array(member, array, allow_pickle=False)


def load(file: File, mmap_mode: Literal["r", "r+", "c"] | None = None) -> NDArray | dict[str, NDArray]:
    """Reads an npy or npz file.

    Parameters
    ----------
    file : path or binary file
    mmap_mode : {None, 'r', 'r+', 'c'}
        For an npy file: maps the file read-only, for writing, or copy-on-write, instead of reading it.

    Returns
    -------
    NDArray, or dict of str to NDArray
        For an npz file a dict of all arrays.

    Raises
    ------
    TypeError
        The elements of the file are not numbers.
    """
    import numpy as np

    _check_path(file)
    content = np.load(file, mmap_mode=mmap_mode, allow_pickle=False)
    if isinstance(content, np.ndarray):
        return _loaded(content)
    with content:
        return {name: _loaded(content[name]) for name in content.files}


def _loaded(array: Any) -> NDArray:
    """The array read, without another copy where its byte order is the machine's."""
    return _core.from_numpy(array, zero_copy=array.dtype.isnative, mode="writable")
