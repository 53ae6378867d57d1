# SPDX-License-Identifier: Apache-2.0
"""The demo's model in NumPy, for machines without PyTorch: the same kind of layers, loss and Adam, by hand.

The hidden layer is wider: else a step, which has none of PyTorch's overhead, would take less time than one
thread needs to draw a batch.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np

import tenon as tn
from tenon.demo.source import CLASSES, SIDE

HIDDEN = 384
BETA1, BETA2, EPSILON = 0.9, 0.999, 1e-8

PEAK, WARM_UP = 0.01, 0.1

Floats = np.ndarray[Any, np.dtype[np.float32]]


def learning_rate(done: float) -> float:
    """The rate when the share `done` (0 to 1) of the training is done: a linear rise, then half a cosine."""
    if done < WARM_UP:
        return PEAK * (0.05 + 0.95 * done / WARM_UP)
    return PEAK * 0.5 * (1 + math.cos(math.pi * min(1.0, (done - WARM_UP) / (1 - WARM_UP))))


class NumpyLearner:
    """A classifier that learns one batch per `step`; `batches` is the length of the training. One thread."""

    name = "numpy"

    def __init__(self, batches: int, seed: int) -> None:
        random = np.random.default_rng(seed)
        inputs = SIDE * SIDE
        self._parameters: list[Floats] = [
            random.normal(0, (2 / inputs) ** 0.5, (inputs, HIDDEN)).astype(np.float32),
            np.zeros(HIDDEN, np.float32),
            random.normal(0, (1 / HIDDEN) ** 0.5, (HIDDEN, CLASSES)).astype(np.float32),
            np.zeros(CLASSES, np.float32),
        ]
        self._means = [np.zeros_like(p) for p in self._parameters]
        self._squares = [np.zeros_like(p) for p in self._parameters]
        self._batches = batches
        self._done = 0

    @staticmethod
    def batches(feed: tn.Feed) -> Iterator[Any]:
        """The batches of one epoch as arrays that alias the slots."""
        return iter(feed.numpy())

    @staticmethod
    def copy(field: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        return field.copy()

    def _forward(self, images: Floats) -> tuple[Floats, Floats, Floats]:
        w1, b1, w2, b2 = self._parameters
        pixels = images.reshape(len(images), -1)
        hidden = np.maximum(pixels @ w1 + b1, 0)
        return pixels, hidden, hidden @ w2 + b2

    def step(self, images: Floats, labels: np.ndarray[Any, Any]) -> None:
        pixels, hidden, scores = self._forward(images)
        slope = np.exp(scores - scores.max(1, keepdims=True))
        slope /= slope.sum(1, keepdims=True)
        slope[np.arange(len(labels)), labels] -= 1
        slope /= len(labels)
        hidden_slope = (slope @ self._parameters[2].T) * (hidden > 0)
        self._adam([pixels.T @ hidden_slope, hidden_slope.sum(0), hidden.T @ slope, slope.sum(0)])

    def _adam(self, slopes: list[Floats]) -> None:
        rate = learning_rate(self._done / self._batches)
        self._done += 1
        rate *= (1 - BETA2**self._done) ** 0.5 / (1 - BETA1**self._done)
        for p, mean, square, slope in zip(self._parameters, self._means, self._squares, slopes, strict=True):
            mean += (1 - BETA1) * (slope - mean)
            square += (1 - BETA2) * (slope * slope - square)
            p -= rate * mean / (np.sqrt(square) + EPSILON)

    def accuracy(self, images: Floats, labels: np.ndarray[Any, Any]) -> float:
        return float((self._forward(images)[2].argmax(1) == labels).mean())
