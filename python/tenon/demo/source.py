# SPDX-License-Identifier: Apache-2.0
"""The demo's data: the digits in digits.npz, and the C function that draws augmented batches of them."""

from __future__ import annotations

import dataclasses
import os
import shlex
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np

import tenon as tn

PROTOTYPE = (
    "int augment(float *data, int64_t *label, size_t n, const float *images, const int64_t *labels, "
    "size_t count, uint64_t seed)"
)
SIDE = 8
CLASSES = 10
HELD_OUT = 360
ROW_NBYTES = SIDE * SIDE * 4 + 8  # an image and its label


class DemoError(Exception):
    """The demo cannot run here; the message says what is missing and what to do."""


@dataclasses.dataclass(frozen=True)
class Digits:
    """Images are float32 in 0 to 1 of shape (count, 1, 8, 8), labels int64. The two parts share no image."""

    images: np.ndarray[Any, Any]
    labels: np.ndarray[Any, Any]
    held_out_images: np.ndarray[Any, Any]
    held_out_labels: np.ndarray[Any, Any]


def load_digits() -> Digits:
    """The 1,797 digits that scikit-learn has, too. The last HELD_OUT are a stratified sample."""
    with np.load(Path(__file__).with_name("digits.npz")) as file:
        images = (file["pixels"] / 16).astype(np.float32).reshape(-1, 1, SIDE, SIDE)
        labels = file["labels"].astype(np.int64)
    return Digits(images[:-HELD_OUT], labels[:-HELD_OUT], images[-HELD_OUT:], labels[-HELD_OUT:])


def find_compiler() -> list[str]:
    """The C compiler as a command: $CC if it is set, else the first of cc, gcc, clang.

    Raises
    ------
    DemoError
        There is none.
    """
    chosen = shlex.split(os.environ.get("CC", ""))
    if chosen:
        if shutil.which(chosen[0]) is None:
            raise DemoError(f"CC is {shlex.join(chosen)!r}, which is not found; unset CC or correct it")
        return chosen
    for name in ("cc", "gcc", "clang"):
        if shutil.which(name):
            return [name]
    raise DemoError("no C compiler (cc, gcc, clang) is found; install one, such as Debian's gcc, or set CC")


def build_library(folder: Path, compiler: list[str]) -> Path:
    """Compile digits.c into `folder` and return the shared library.

    Raises
    ------
    DemoError
        The compiler fails; its output is in the message.
    """
    source = Path(__file__).with_name("digits.c")
    library = folder / "libdigits.so"
    command = [*compiler, "-std=c99", "-O3", "-fPIC", "-shared", str(source), "-o", str(library), "-lm"]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        raise DemoError(f"{shlex.join(command)} failed:\n{done.stdout}{done.stderr}")
    return library


@dataclasses.dataclass(frozen=True)
class Source:
    """The compiled library and what it draws from."""

    library: Path
    digits: Digits

    def feed(
        self,
        rows: int,
        *,
        workers: int,
        slots: int,
        batches: int | None,
        seed: int,
        processes: bool = False,
    ) -> tn.Feed:
        """A feed of batches of `rows` augmented digits; `batches` of them are an epoch."""
        generator = tn.c_function(
            str(self.library),
            PROTOTYPE,
            threadsafe=True,
            images=self.digits.images,
            labels=self.digits.labels,
            count=len(self.digits.images),
        )
        schema = tn.schema(data=("f4", (rows, 1, SIDE, SIDE)), label=("i8", (rows,)))
        return tn.Feed(
            generator,
            schema,
            slots=slots,
            workers=workers,
            batches=batches,
            seed=seed,
            timeout=60.0,
            processes=processes,
        )
