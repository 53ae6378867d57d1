#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What other libraries make of an NDArray, and Tenon of their arrays: each call is run, and addresses are
compared. test_calls.py compares the results with the table in docs/howto/frameworks.md.

    calls.py --update    writes the table anew; rows of libraries that are not installed stay as they are
"""

import contextlib
import dataclasses
import importlib.util
import pathlib
import sys

import numpy as np

import tenon as tn

PAGE = pathlib.Path(__file__).parents[3] / "docs/howto/frameworks.md"
BEGIN, END = "<!-- by tests/python/frameworks/calls.py -->\n", "<!-- end -->\n"
HEAD = "| library | call | memory |\n|---|---|---|\n"


@dataclasses.dataclass(frozen=True)
class Call:
    """A call as a user types it, with an array `a` of Tenon or an object `x` of the library."""

    text: str
    source: str = "a = tn.arange(16, dtype='float32')"  # what comes before it, besides the library's imports
    address: str = "address(result)"  # where the library has the elements
    instead: str = ""  # what to write, if the call is an error of the library or of Tenon


@dataclasses.dataclass(frozen=True)
class Library:
    module: str
    imports: str
    calls: tuple[Call, ...]
    is_light: bool = False  # in requirements/test.txt


IMAGE = "a = tn.full((16, 32, 3), 7, 'uint8')"
MATRIX = "a = tn.ones((4, 3))"

LIBRARIES = {
    "NumPy": Library(
        "numpy",
        "import numpy as np",
        (
            Call("np.asarray(a)"),
            Call("np.array(a)"),
            Call("np.copyto(x, a)", "a = tn.ones(4); x = tn.zeros(4)", "address(x)"),
            Call("np.from_dlpack(a)"),
            Call(
                "np.ctypeslib.ndpointer('f4').from_param(a)",
                address="result.data",
                instead="np.ctypeslib.ndpointer('f4').from_param(np.asarray(a))",
            ),
            Call("tn.asarray(x)", "x = np.arange(3.0)"),
            Call("tn.from_numpy(x)", "x = np.arange(3.0)"),
        ),
        True,
    ),
    "PyTorch": Library(
        "torch",
        "import torch; from torch.utils.data import default_collate",
        (
            Call("torch.from_dlpack(a)"),
            Call("torch.as_tensor(a)"),
            Call("torch.tensor(a)"),
            Call("torch.from_numpy(a)", instead="torch.from_numpy(np.asarray(a))"),
            Call("torch.stack([a, a])", instead="torch.stack([a.torch(), a.torch()])"),
            Call("default_collate([a, a])"),
            Call("a + x", "a = tn.ones(4); x = torch.ones(4)"),
            Call("x < a", "a = tn.ones(4); x = torch.ones(4)"),
            Call("tn.from_dlpack(x)", "x = torch.arange(3.0)"),
            Call("tn.asarray(x)", "x = torch.arange(3.0)"),
        ),
        True,
    ),
    "JAX": Library(
        "jax",
        "import jax, jax.numpy as jnp",
        (
            Call("jnp.asarray(a)"),
            Call("jnp.array(a)"),
            Call("jax.device_put(a)"),
            Call("jax.jit(jnp.sum)(a)", address="address(jax.tree.leaves(a)[0])"),
            Call("tn.from_dlpack(x)", "x = jnp.arange(16.0)"),
        ),
        True,
    ),
    "PyArrow": Library(
        "pyarrow",
        "import pyarrow as pa",
        (
            Call("pa.array(a)"),
            Call("pa.table({'x': a})", address="address(result['x'].chunk(0))"),
            Call("pa.Tensor.from_dlpack(a)", MATRIX, "address(result.to_numpy())"),
            Call("pa.py_buffer(a)", address="result.address"),
            Call("tn.from_dlpack(x)", "x = pa.array([1.0, 2.0])"),
        ),
        True,
    ),
    "pandas": Library(
        "pandas",
        "import pandas as pd",
        (
            Call("pd.Series(a)", address="address(result.to_numpy())"),
            Call("pd.DataFrame(a)", MATRIX, "address(result.to_numpy())"),
            Call("pd.DataFrame(a, copy=False)", MATRIX, "address(result.to_numpy())"),
            Call("tn.asarray(x)", "x = pd.Series([1.0, 2.0])", "address(result), address(x.to_numpy())"),
        ),
    ),
    "Polars": Library(
        "polars",
        "import polars as pl",
        (
            Call("pl.Series('x', a)", address="address(result.to_numpy(allow_copy=False))"),
            Call("pl.DataFrame({'x': a})", address="address(result['x'].to_numpy(allow_copy=False))"),
            Call("tn.asarray(x)", "x = pl.Series([1.0, 2.0])", "address(result), address(x.to_numpy())"),
        ),
    ),
    "Dask": Library(
        "dask",
        "import dask.array",
        (Call("dask.array.from_array(a)", address="address(result.compute())"),),
        True,
    ),
    "Zarr": Library(
        "zarr",
        "import zarr",
        (
            Call("zarr.array(a)", address="address(result[...])"),
            Call("x[...] = a", "a = tn.ones(4); x = zarr.zeros(4, dtype='f4')", "address(x[...])"),
        ),
    ),
    "Pillow": Library(
        "PIL",
        "import PIL.Image",
        (
            Call(
                "PIL.Image.fromarray(a)",
                "a = tn.full((16, 32), 7, 'uint8')",
                "address(np.asarray(result))",
                "PIL.Image.fromarray(np.asarray(a))",
            ),
            Call("tn.asarray(x)", "x = PIL.Image.new('L', (4, 4))", "address(result), None"),
        ),
        True,
    ),
    "PyAV": Library(
        "av",
        "import av",
        (
            Call("av.VideoFrame.from_ndarray(a)", IMAGE, "result.planes[0].buffer_ptr"),
            Call("av.VideoFrame.from_numpy_buffer(a)", IMAGE, "result.planes[0].buffer_ptr"),
        ),
    ),
    "OpenCV": Library(
        "cv2",
        "import cv2",
        (Call("cv2.flip(a, 0, a)", IMAGE, instead="cv2.flip(v := np.asarray(a), 0, v)"),),
    ),
    "Numba": Library(
        "numba",
        "import numba; f = lambda x: x.ctypes.data",
        (Call("numba.njit(f)(a)", address="result"),),
    ),
}


def address(array):
    """Of element 0, in each library's words."""
    if isinstance(array, np.ndarray):
        return array.ctypes.data
    if hasattr(array, "buffers"):
        return array.buffers()[1].address
    if hasattr(array, "unsafe_buffer_pointer"):
        return array.unsafe_buffer_pointer()
    return array.data_ptr() if callable(array.data_ptr) else array.data_ptr


def memory(library, call):
    """The last cell of the row: what the call does, found by running it."""
    names = {"tn": tn, "np": np, "address": address}
    exec(LIBRARIES[library].imports, names)
    exec(call.source, names)
    if call.instead:
        own = [names["cv2"].error] if library == "OpenCV" else []
        with contextlib.suppress(TypeError, AttributeError, *own):
            eval(call.text, names)
            raise AssertionError(f"{call.text} works: the table says that it does not")
    text = call.instead or call.text
    if " = " in text:
        exec(text, names)
    else:
        names["result"] = eval(text, names)
    found = eval(call.address, names)
    there, here = found if isinstance(found, tuple) else (found, address(names["a" if "a" in names else "x"]))
    outcome = "the same" if there == here else "a copy"
    return f"{outcome}, with `{call.instead}`" if call.instead else outcome


def rows(library):
    return [f"| {library} | `{call.text}` | {memory(library, call)} |" for call in LIBRARIES[library].calls]


def is_installed(library):
    return importlib.util.find_spec(LIBRARIES[library].module) is not None


def table_in(page):
    """The rows of the page, by library."""
    found = {}
    for row in page.split(BEGIN)[1].split(END)[0].removeprefix(HEAD).splitlines():
        found.setdefault(row.split(" | ")[0].removeprefix("| "), []).append(row)
    return found


def update():
    page = PAGE.read_text()
    present = table_in(page)
    lines = [
        row
        for library in LIBRARIES
        for row in (rows(library) if is_installed(library) else present.get(library, []))
    ]
    table = HEAD + "".join(f"{line}\n" for line in lines)
    PAGE.write_text(page.split(BEGIN)[0] + BEGIN + table + END + page.split(END)[1])


if __name__ == "__main__":
    if sys.argv[1:] != ["--update"]:
        sys.exit(__doc__)
    update()
