# SPDX-License-Identifier: Apache-2.0
"""The learning rate of the demo, the same for every framework."""

import math

PEAK = 0.01
WARM_UP = 0.1


def learning_rate(done: float) -> float:
    """The rate when the share `done` (0 to 1) of the training is done: a linear rise, then half a cosine."""
    if done < WARM_UP:
        return PEAK * (0.05 + 0.95 * done / WARM_UP)
    return PEAK * 0.5 * (1 + math.cos(math.pi * min(1.0, (done - WARM_UP) / (1 - WARM_UP))))
