# SPDX-License-Identifier: Apache-2.0
"""The demo: a small C library writes batches of handwritten digits, and a model trains on them in place.

`run` builds ``digits.c`` and feeds a small classifier from it until it knows digits that it has never seen.
It then counts what the feed costs: host copies and page faults. ``tenon demo`` prints both as a table.

`source` builds and describes the C library; `torch_learner` and `numpy_learner` are the model; `hand_over`
counts; `report` prints.
"""

from tenon.demo.run import run
from tenon.demo.source import DemoError

__all__ = ["DemoError", "run"]
