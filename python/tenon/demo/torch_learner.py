# SPDX-License-Identifier: Apache-2.0
"""The demo's model in PyTorch: one hidden layer, Adam."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

import tenon as tn
from tenon.demo.numpy_learner import learning_rate
from tenon.demo.source import CLASSES, SIDE

HIDDEN = 128


class TorchLearner:
    """A classifier that learns one batch per `step`; `batches` is the length of the training. One thread."""

    name = "torch"

    def __init__(self, batches: int, seed: int) -> None:
        torch.manual_seed(seed)
        self._model = torch.nn.Sequential(
            torch.nn.Flatten(),
            torch.nn.Linear(SIDE * SIDE, HIDDEN),
            torch.nn.ReLU(),
            torch.nn.Linear(HIDDEN, CLASSES),
        )
        self._loss = torch.nn.CrossEntropyLoss()
        self._optimizer = torch.optim.Adam(self._model.parameters(), fused=True)
        self._batches = batches
        self._done = 0

    @staticmethod
    def batches(feed: tn.Feed) -> Iterator[Any]:
        """The batches of one epoch as tensors that alias the slots."""
        return iter(feed.torch())

    @staticmethod
    def copy(field: torch.Tensor) -> torch.Tensor:
        return field.clone()

    def step(self, images: torch.Tensor, labels: torch.Tensor) -> None:
        self._optimizer.param_groups[0]["lr"] = learning_rate(self._done / self._batches)
        self._done += 1
        self._optimizer.zero_grad(set_to_none=True)
        self._loss(self._model(images), labels).backward()
        self._optimizer.step()

    def accuracy(self, images: np.ndarray[Any, Any], labels: np.ndarray[Any, Any]) -> float:
        with torch.no_grad():
            answers = self._model(torch.from_numpy(images)).argmax(1)
        return float((answers.numpy() == labels).mean())
