# SPDX-License-Identifier: Apache-2.0
"""What the examples of MPI, Ray and Dask share: batches, and a loop that trains wherever they come from."""

from collections.abc import Iterable

import numpy as np
import torch

import tenon as tn

ROWS, COLUMNS, BATCHES = 64, 4, 100


def generate(data: np.ndarray, label: np.ndarray, index: int) -> None:
    """Writes a batch: rows that rise are of class 1, those that fall of class 0."""
    label[...] = (index + np.arange(ROWS)) % 2
    rising = np.arange(COLUMNS)
    data[...] = np.where(label[:, None] == 1, rising, rising[::-1])


def make_batch(index: int) -> tuple[tn.NDArray, tn.NDArray]:
    data, label = tn.empty((ROWS, COLUMNS)), tn.empty(ROWS, "int64")
    with data.write(overwrite=True) as rows, label.write(overwrite=True) as classes:
        generate(rows, classes, index)
    return data, label


def train(batches: Iterable[tuple[torch.Tensor, torch.Tensor]]) -> None:
    torch.manual_seed(0)
    model = torch.nn.Linear(COLUMNS, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for x, y in batches:
        output = model(x)
        loss = torch.nn.functional.cross_entropy(output, y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    accuracy = (output.argmax(1) == y).float().mean().item()
    print(f"loss {loss.item():.4f}, accuracy {accuracy:.2f}", flush=True)
