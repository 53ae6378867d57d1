# SPDX-License-Identifier: Apache-2.0
"""Seeds of the global generators of random numbers in worker processes."""

from __future__ import annotations

import random
import sys
from collections.abc import Sequence
from typing import Any


def seed_generators(seed: int, numpy_seed: int | Sequence[int]) -> None:
    """Seeds those of `random`, NumPy and PyTorch (of the host), as far as they are imported."""
    random.seed(seed)
    if "numpy" in sys.modules:
        import numpy.random

        numpy.random.seed(numpy_seed)
    torch: Any = sys.modules.get("torch")
    if hasattr(torch, "default_generator"):  # else it is being imported
        torch.default_generator.manual_seed(seed)


def import_generators() -> None:
    """In a process that forks workers: each of them would import NumPy's generators for its first batch."""
    if "numpy" in sys.modules:
        import numpy.random  # noqa: F401


def seed_for_batch(seed: int) -> None:
    """Seeds them so that the numbers of a batch depend on nothing but its seed."""
    # PyTorch takes the lower half, with which NumPy would give the same numbers. A sequence takes 7 us more.
    seed_generators(seed, seed >> 32)
