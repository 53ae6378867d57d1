# SPDX-License-Identifier: Apache-2.0
"""Copies, casts and fills of Tenon, NumPy and PyTorch, with bench/ on the path:

    python -m kernels.measure REPEATS

Prints one line of JSON: milliseconds by case and contender, and the number of threads of PyTorch.

Tenon and NumPy use one thread; PyTorch is measured with one, and with as many as it takes by default. Every
contender reads and writes the same memory. They take turns, and the fastest turn counts: on a shared machine
the minimum is the run that was disturbed least.
"""

import json
import sys
import time

import ml_dtypes
import numpy as np
import torch

import tenon as tn

MIB = 1 << 20
# A turn lasts at least this long; short work is repeated.
TURN_SECONDS = 2e-3
ALL_THREADS = torch.get_num_threads()


class Case:
    """dst[...] = src, for tenon, NumPy and PyTorch."""

    def __init__(self, name, src, shape, dtype):
        self.name = name
        self.dst = tn.empty(shape, dtype)
        self.numpy_dst = np.asarray(self.dst)
        self.torch_dst = torch.from_dlpack(self.dst)
        self.src = src

    def contenders(self):
        src, dst = tn.from_numpy(self.src, mode="writable"), self.dst
        torch_src, torch_dst = as_torch(self.src), self.torch_dst
        return {
            "tenon": lambda: src.copyto(dst),
            "numpy": lambda: np.copyto(self.numpy_dst, self.src, casting="unsafe"),
            "torch": lambda: torch_dst.copy_(torch_src),
        }

    def turns(self):
        """The contenders, with PyTorch on one thread and on all."""
        of_one = self.contenders()
        return {name: (body, 1) for name, body in of_one.items()} | {
            "torch_all": (of_one["torch"], ALL_THREADS)
        }


class Fill(Case):
    def contenders(self):
        dst, numpy_dst, torch_dst = self.dst, self.numpy_dst, self.torch_dst

        def fill():
            dst[...] = 1.5

        return {"tenon": fill, "numpy": lambda: numpy_dst.fill(1.5), "torch": lambda: torch_dst.fill_(1.5)}


def as_torch(array):
    if array.dtype == ml_dtypes.bfloat16:
        return torch.from_numpy(array.view(np.uint16)).view(torch.bfloat16)
    return torch.from_numpy(array)


def numbers(shape, dtype):
    """Positive numbers below 100, so that every cast is defined everywhere."""
    return (np.random.default_rng(1).random(shape, dtype="f4") * 100).astype(dtype)


def cases():
    n = 16 * MIB
    yield Case("copy f4, 64 MiB", numbers(n, "f4"), (n,), "float32")
    for side in (512, 2048):
        for dtype in ("u1", "f4", "f8"):
            matrix = numbers((side, side), dtype)
            yield Case(f"transpose {dtype}, {side} x {side}", matrix.T, matrix.shape, dtype)
    images = numbers((64, 224, 224, 3), "u1").transpose(0, 3, 1, 2)
    yield Case("NHWC u1 -> NCHW f4, 64 images", images, images.shape, "float32")
    for source, target in (
        ("f4", "float16"),
        ("f2", "float32"),
        ("f4", "bfloat16"),
        ("f8", "float32"),
        ("i8", "float32"),
        ("u1", "float32"),
        ("f4", "uint8"),
    ):
        yield Case(f"cast {np.dtype(source)} -> {target}, 16 Mi", numbers(n, source), (n,), target)
    yield Case("slice f4 [::2], 64 MiB", numbers(n, "f4")[::2], (n // 2,), "float32")
    yield Fill("fill f4, 64 MiB", None, (n,), "float32")
    yield Case("broadcast row f4, 4096 x 4096", one_row(4096), (4096, 4096), "float32")


def one_row(n):
    # Writable for torch's sake: a view made by np.broadcast_to is not.
    return np.lib.stride_tricks.as_strided(numbers(n, "f4"), (n, n), (0, 4))


def timed(body, times):
    start = time.perf_counter()
    for _ in range(times):
        body()
    return (time.perf_counter() - start) / times


def measure(case, repeats):
    """Seconds of the fastest turn, by contender."""
    turns = case.turns()
    times = {}
    for name, (body, threads) in turns.items():
        torch.set_num_threads(threads)
        body()
        times[name] = max(1, int(TURN_SECONDS / timed(body, 1)))
    best = dict.fromkeys(turns, float("inf"))
    for _ in range(repeats):
        for name, (body, threads) in turns.items():
            torch.set_num_threads(threads)
            body()  # other threads of PyTorch begin to poll
            best[name] = min(best[name], timed(body, times[name]))
    return best


def main(repeats):
    found = {}
    for case in cases():
        found[case.name] = {name: 1e3 * seconds for name, seconds in measure(case, repeats).items()}
    print(json.dumps({"milliseconds": found, "threads": ALL_THREADS}))


if __name__ == "__main__":
    main(int(sys.argv[1]))
