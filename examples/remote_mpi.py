# SPDX-License-Identifier: Apache-2.0
"""Rank 1 generates, rank 0 trains. Messages leave from one array and land in another one, which is the memory
of the tensors that the loop trains on.

    mpirun -n 2 python remote_mpi.py
"""

from collections.abc import Callable, Iterator

import numpy as np
import torch
from mpi4py import MPI
from remote_loop import BATCHES, COLUMNS, ROWS, generate, train

import tenon as tn

comm = MPI.COMM_WORLD
Fill = Callable[[np.ndarray, np.ndarray, int], None]


def receive(data: np.ndarray, label: np.ndarray, index: int) -> None:
    """A generator like any other one: it fills the arrays of a batch, from another machine."""
    comm.Recv(data, source=1, tag=index)
    comm.Recv(label, source=1, tag=index)


def batches(fill: Fill) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    data, label = tn.empty((ROWS, COLUMNS)), tn.empty(ROWS, "int64")
    x, y = data.torch(), label.torch()  # made once, on the memory that is filled again and again
    for index in range(BATCHES):
        with data.write(overwrite=True) as rows, label.write(overwrite=True) as classes:
            fill(rows, classes, index)
        yield x, y


def send() -> None:
    data, label = tn.empty((ROWS, COLUMNS)), tn.empty(ROWS, "int64")
    for index in range(BATCHES):
        with data.write(overwrite=True) as rows, label.write(overwrite=True) as classes:
            generate(rows, classes, index)
        comm.Send(data, dest=0, tag=index)
        comm.Send(label, dest=0, tag=index)


if comm.rank == 0:
    train(batches(receive))
elif comm.rank == 1:
    send()
