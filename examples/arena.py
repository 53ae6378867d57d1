# SPDX-License-Identifier: Apache-2.0
"""One buffer that holds float arrays A, B, C at one time and int arrays D, E at another, under a lock between
processes: this one computes the features, another one counts them, and the buffer is as large as the larger
set alone."""

import multiprocessing
from multiprocessing.synchronize import Event

import numpy as np

import tenon as tn

N = 100_000
LAYOUTS = {
    "features": {"A": ("f4", (N,)), "B": ("f4", (N,)), "C": ("f4", (N,))},
    "counts": {"D": ("i4", (N,)), "E": ("i4", (N,))},
}


def count(arena: tn.Arena, written: Event) -> None:
    """In another process: takes the features, and leaves counts in their place."""
    written.wait()  # a read before raises LeaseConflict: the arena holds nothing yet
    with arena.use("features", "r") as f:
        rounded = np.rint(f.A + f.B).astype("i4")
        large = np.flatnonzero(f.C > 0.5).size
    with arena.use("counts") as f:  # from here on there are no features any more
        f.D[:] = rounded
        f.E[:] = large


def main() -> None:
    arena = tn.Arena(LAYOUTS, shared=True)
    print(f"{arena.nbytes} bytes instead of {arena.total_nbytes}")
    context = multiprocessing.get_context("spawn")
    written = context.Event()
    worker = context.Process(target=count, args=(arena, written))
    worker.start()
    with arena.use("features") as f:
        f.A[:] = 1.25
        f.B[:] = np.arange(N)
        f.C[:] = np.linspace(0, 1, N)
    written.set()
    worker.join()
    with arena.use("counts", "r") as f:
        print("counts:", f.D[:3], f.E[0])
    try:
        with arena.use("features", "r") as f:
            print("never reached:", f.A)
    except tn.LeaseConflict as error:
        print(error)


if __name__ == "__main__":
    main()
