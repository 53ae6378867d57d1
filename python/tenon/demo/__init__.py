# SPDX-License-Identifier: Apache-2.0
"""The demo: a small C library writes batches of handwritten digits, and a model trains on them in place.

`run` builds ``digits.c``, feeds a small classifier from it until it knows digits that it has never seen, and
then measures in the same run what the feed costs: host copies, page faults, and the speed of the training
loop beside the same loop on data in memory and on PyTorch's DataLoader. ``tenon demo`` prints it as a table.

`source` builds and describes the C library; `torch_learner` and `numpy_learner` are the model; `torch_loader`
is the DataLoader; `speed` and `hand_over` measure; `report` prints.
"""

from tenon.demo.run import run
from tenon.demo.source import DemoError

__all__ = ["DemoError", "run"]
