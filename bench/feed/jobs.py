# SPDX-License-Identifier: Apache-2.0
"""What is to be fed: the fields of a batch, the C function that fills them, and what must be in them.

All contenders of a job call the same function. Those that have no other way call it through ctypes.
"""

import ctypes
import functools
import io
import os
import threading
from collections.abc import Mapping
from types import MappingProxyType

import numpy as np
import torch

import tenon as tn


class Job:
    """Can be pickled to processes; one that has been has its data there.

    Batch k has the rows from k * rows on, for whatever number of rows it is asked.
    """

    symbol: str
    fields: Mapping  # name -> (dtype, shape)
    types: tuple  # of the arguments that follow the pointers

    def __init__(self, library):
        self.library = str(library)
        self.function = None

    @property
    def rows(self):
        return next(iter(self.fields.values()))[1][0]

    @property
    def nbytes(self):
        return sum(np.dtype(dtype).itemsize * int(np.prod(shape)) for dtype, shape in self.fields.values())

    def arguments(self, rows, index):
        raise NotImplementedError

    def prototype(self):
        raise NotImplementedError

    def constants(self):
        return {}

    def fill(self, pointers, rows, index):
        if self.function is None:
            self.function = getattr(ctypes.CDLL(self.library), self.symbol)
            self.function.argtypes = [ctypes.c_void_p] * len(self.fields) + list(self.types)
        code = self.function(*pointers, *self.arguments(rows, index))
        if code != 0:
            raise RuntimeError(f"{self.symbol} returned {code} at batch {index}")

    def __getstate__(self):
        return {**self.__dict__, "function": None}

    def new_arrays(self, rows=None):
        n = rows or self.rows
        return [np.empty((n, *shape[1:]), dtype) for dtype, shape in self.fields.values()]

    def new_tensors(self, rows=None):
        n = rows or self.rows
        return [
            torch.empty((n, *shape[1:]), dtype=getattr(torch, np.dtype(dtype).name))
            for dtype, shape in self.fields.values()
        ]

    def writer(self, fields):
        """fields: NumPy arrays, or tensors. Returns a function that writes the batch of an index there."""
        pointers = [
            field.data_ptr() if isinstance(field, torch.Tensor) else field.ctypes.data for field in fields
        ]
        return functools.partial(self.fill, pointers, len(fields[0]))

    def arrays(self, index, rows=None):
        """A batch in fresh NumPy arrays."""
        arrays = self.new_arrays(rows)
        self.writer(arrays)(index)
        return arrays

    def tensors(self, index, rows=None):
        """A batch in fresh tensors."""
        tensors = self.new_tensors(rows)
        self.writer(tensors)(index)
        return tensors

    def schema(self):
        return tn.schema(**self.fields)

    def feed(self, workers, processes=False):
        generator = tn.c_function(self.library, self.prototype(), threadsafe=True, **self.constants())
        return tn.Feed(generator, self.schema(), workers=workers, processes=processes)

    def expected(self, index):
        """The batch, made in another way than by the function where there is one."""
        return self.arrays(index)


class Fill(Job):
    """Batches of float32 that cost nothing but their memory."""

    def __init__(self, library, n_fields, shape):
        super().__init__(library)
        self.symbol = "fill" if n_fields == 1 else "fill_many"
        self.shape = shape
        self.per_row = int(np.prod(shape[1:]))
        self.fields = {f"a{k:02}": ("f4", shape) for k in range(n_fields)}

    types = (ctypes.c_size_t, ctypes.c_uint64, ctypes.c_size_t)

    def arguments(self, rows, index):
        return rows, index, self.per_row

    def prototype(self):
        # A prototype has 32 parameters at most: fill_many knows its rows.
        pointers = ", ".join(f"float *{name}" for name in self.fields)
        last = ", size_t per_row" if self.symbol == "fill" else ""
        return f"int {self.symbol}({pointers}, size_t n, uint64_t index{last})"

    def constants(self):
        return {"per_row": self.per_row} if self.symbol == "fill" else {}

    def expected(self, index):
        numbers = (index * self.rows + np.arange(self.rows)) % 1024
        row = numbers.astype("f4").reshape(-1, *[1] * (len(self.shape) - 1))
        return [np.broadcast_to(row, self.shape)] * len(self.fields)


def picture(number, side):
    """Smooth colours, edges and grain, as in a photograph."""
    y, x = (np.mgrid[:side, :side] / side).astype("f4")
    numbers = np.random.default_rng(number)
    image = np.full((side, side, 3), 127, "f4")
    for _ in range(4):
        u, v, tint = numbers.uniform(-70, 70), numbers.uniform(-70, 70), numbers.uniform(5, 30, 3)
        image += np.sin(u * x + v * y)[..., None] * tint.astype("f4")
    for _ in range(8):
        height, width = numbers.integers(side // 16, side // 2, 2)
        top, left = numbers.integers(0, side - height), numbers.integers(0, side - width)
        image[top : top + height, left : left + width] += numbers.uniform(-60, 60, 3).astype("f4")
    image += 6 * numbers.standard_normal(image.shape, "f4")
    return image.clip(0, 255).astype("u1")


class Jpegs(Job):
    """Pictures in memory, decoded by libjpeg-turbo; or by Pillow, for those who have only that."""

    symbol = "fill"
    SIDE, COUNT, ROWS = 256, 64, 32
    types = (
        ctypes.c_size_t,
        ctypes.c_uint64,
        ctypes.c_void_p,
        ctypes.c_void_p,
        ctypes.c_uint64,
        ctypes.c_int,
        ctypes.c_int,
    )

    def __init__(self, library):
        from PIL import Image

        super().__init__(library)
        self.fields = {
            "image": ("u1", (self.ROWS, self.SIDE, self.SIDE, 3)),
            "number": ("i8", (self.ROWS,)),
        }
        files = []
        for number in range(self.COUNT):
            file = io.BytesIO()
            Image.fromarray(picture(number, self.SIDE)).save(file, "JPEG", quality=90)
            files.append(file.getvalue())
        self.data = np.frombuffer(b"".join(files), "u1")
        self.offsets = np.cumsum([0, *map(len, files)], dtype="i8")

    def arguments(self, rows, index):
        data, offsets = self.data.ctypes.data, self.offsets.ctypes.data
        return rows, index, data, offsets, self.COUNT, self.SIDE, self.SIDE

    def prototype(self):
        return (
            "int fill(uint8_t *image, int64_t *number, size_t n, uint64_t index, const uint8_t *jpegs, "
            "const int64_t *offsets, uint64_t count, int height, int width)"
        )

    def constants(self):
        return {
            "jpegs": self.data,
            "offsets": self.offsets,
            "count": self.COUNT,
            "height": self.SIDE,
            "width": self.SIDE,
        }

    def by_pillow(self, number):
        from PIL import Image

        jpeg = self.data[self.offsets[number] : self.offsets[number + 1]]
        return np.asarray(Image.open(io.BytesIO(jpeg.data)))

    def pillows(self, index, rows=None):
        """A batch in fresh NumPy arrays, decoded by Pillow."""
        n = rows or self.rows
        numbers = (index * n + np.arange(n)) % self.COUNT
        return [np.stack([self.by_pillow(number) for number in numbers]), numbers]

    def expected(self, index):
        """The two round alike, but for a step perhaps."""
        by_turbo, by_pillow = self.arrays(index), self.pillows(index)
        if np.abs(by_turbo[0].astype("i2") - by_pillow[0]).max() > 1:
            raise AssertionError("libjpeg-turbo and Pillow see different pictures")
        return by_turbo


def split_mix(x):
    """The step of SplitMix64 from which the seeds of a feed follow (docs/feed.md)."""
    x = (x + 0x9E3779B97F4A7C15) % 2**64
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB % 2**64
    return x ^ (x >> 31)


class AugmentedDigits(Job):
    """The demonstration's batches. Those of the feed follow from its seeds, those of others are numbered."""

    symbol = "augment"
    ROWS = 64
    types = (ctypes.c_size_t, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_uint64)

    def __init__(self, library):
        from tenon.demo.source import load_digits

        super().__init__(library)
        self.digits = load_digits()
        self.fields = {"data": ("f4", (self.ROWS, 1, 8, 8)), "label": ("i8", (self.ROWS,))}

    def arguments(self, rows, index):
        images, labels = self.digits.images, self.digits.labels
        return rows, images.ctypes.data, labels.ctypes.data, len(labels), index

    def prototype(self):
        from tenon.demo.source import PROTOTYPE

        return PROTOTYPE

    def constants(self):
        return {
            "images": self.digits.images,
            "labels": self.digits.labels,
            "count": len(self.digits.labels),
        }

    def expected_of_feed(self, index):
        return self.arrays(split_mix(split_mix(split_mix(0)) ^ index))  # seed 0, epoch 0

    def expected_stacked(self, index):
        rows = [self.arrays(i, 1) for i in range(index * self.rows, (index + 1) * self.rows)]
        return [np.concatenate(field) for field in zip(*rows, strict=True)]


class PythonJob(Job):
    """Batches that Python code makes: write(arrays, index)."""

    def __init__(self):
        super().__init__(library="")

    def write(self, arrays, index):
        raise NotImplementedError

    def writer(self, fields):
        arrays = [field.numpy() if isinstance(field, torch.Tensor) else field for field in fields]
        return functools.partial(self.write, arrays)


class RowGroups(PythonJob):
    """The row groups of a Parquet file, one for each batch, decoded by PyArrow."""

    ROWS, COLUMNS, COUNT = 4096, 32, 64
    fields = MappingProxyType({"x": ("f4", (ROWS, COLUMNS)), "label": ("i8", (ROWS,))})

    def __init__(self, path):
        import pyarrow
        import pyarrow.parquet

        super().__init__()
        self.path, self.files = str(path), threading.local()
        if not path.exists():
            batches = [self.expected(index) for index in range(self.COUNT)]
            x, label = (np.concatenate(field) for field in zip(*batches, strict=True))
            x = pyarrow.FixedSizeListArray.from_arrays(x.ravel(), self.COLUMNS)
            table = pyarrow.table({"x": x, "label": label})
            pyarrow.parquet.write_table(table, path, row_group_size=self.ROWS)

    def __getstate__(self):
        return {**super().__getstate__(), "files": None}

    def __setstate__(self, state):
        self.__dict__.update(state)
        self.files = threading.local()

    def write(self, arrays, index):
        import pyarrow.compute
        import pyarrow.parquet

        if getattr(self.files, "process", None) != os.getpid():  # a file is not safe for threads
            self.files.process, self.files.file = os.getpid(), pyarrow.parquet.ParquetFile(self.path)
        table = self.files.file.read_row_group(index % self.COUNT, use_threads=False)
        x, label = arrays
        np.copyto(x, pyarrow.compute.list_flatten(table["x"]).to_numpy().reshape(x.shape))
        np.copyto(label, table["label"].to_numpy())

    def expected(self, index):
        numbers = np.random.default_rng(index % self.COUNT)
        return [
            numbers.standard_normal((self.ROWS, self.COLUMNS), "f4"),
            numbers.integers(1000, size=self.ROWS),
        ]


class PackedSequences(PythonJob):
    """Token sequences of different lengths, packed into rows: each into the first row that has room for it.

    Field ``part`` numbers the sequences of a row from 1, and ``position`` the tokens of a sequence from 0.
    """

    ROWS, LENGTH = 16, 2048
    fields = dict.fromkeys(("tokens", "part", "position"), ("i4", (ROWS, LENGTH)))

    def __init__(self):
        super().__init__()
        numbers = np.random.default_rng(0)
        self.lengths = numbers.integers(16, 1024, size=4096)
        self.starts = np.cumsum(self.lengths) - self.lengths
        self.tokens = numbers.integers(50_000, size=self.lengths.sum(), dtype="i4")
        rows, free = [], []
        for number, length in enumerate(self.lengths):
            recent = range(max(0, len(rows) - 50), len(rows))
            row = next((row for row in recent if length <= free[row]), len(rows))
            if row == len(rows):
                rows.append([])
                free.append(self.LENGTH)
            rows[row].append(number)
            free[row] -= length
        self.plan = rows

    def write(self, arrays, index):
        tokens, part, position = arrays
        for row in range(len(tokens)):
            begin = 0
            for k, number in enumerate(self.plan[(index * self.ROWS + row) % len(self.plan)], 1):
                start, length = self.starts[number], self.lengths[number]
                end = begin + length
                tokens[row, begin:end] = self.tokens[start : start + length]
                part[row, begin:end] = k
                position[row, begin:end] = np.arange(length)
                begin = end
            for field in arrays:
                field[row, begin:] = 0

    def expected(self, index):
        """Each sequence is found again by the number of its part."""
        batch = [np.zeros(shape, dtype) for dtype, shape in self.fields.values()]
        for row in range(self.ROWS):
            numbers = self.plan[(index * self.ROWS + row) % len(self.plan)]
            pieces = [self.tokens[self.starts[n] :][: self.lengths[n]] for n in numbers]
            parts = [np.full(len(piece), k) for k, piece in enumerate(pieces, 1)]
            positions = [np.arange(len(piece)) for piece in pieces]
            for field, whole in zip(batch, (pieces, parts, positions), strict=True):
                joined = np.concatenate(whole)
                field[row, : len(joined)] = joined
        return batch
