# SPDX-License-Identifier: Apache-2.0
"""The cases, and the contenders of each."""

from dataclasses import dataclass, field

import numpy as np

from .contenders import (
    ARENA,
    NAMED,
    PICKLE_PIPE,
    PICKLE_ZEROMQ,
    POOL_PIPE,
    POOL_PLACE,
    POOL_READ,
    POOL_ZEROMQ,
    TORCH,
)

LARGE = (ARENA, TORCH, NAMED, PICKLE_PIPE, POOL_PIPE, POOL_READ, POOL_PLACE)
SMALL = (PICKLE_PIPE, PICKLE_ZEROMQ, POOL_PIPE, POOL_ZEROMQ)


@dataclass(frozen=True)
class Case:
    title: str
    arrays: int
    nbytes: int  # of each array
    contenders: tuple
    readers: int = 1
    look: str = "sum"  # of all elements, or of the first ones
    goals: dict = field(default_factory=dict)  # (Tenon's row, the peer's) -> the largest ratio

    def message(self):
        arrays = [np.full(self.nbytes // 4, i + 1, "f4") for i in range(self.arrays)]
        return {"request": 17, "model": "vision-large", "scale": [0.5, 0.25, 0.125], "arrays": arrays}

    def expected(self):
        n = self.nbytes // 4 if self.look == "sum" else 1
        return float(n * sum(range(1, self.arrays + 1)))


def look(case, message):
    """What a receiver does with a message: returns the sum of the elements that it looks at."""
    arrays = [np.asarray(array) for array in message["arrays"]]
    if case.look == "sum":
        return float(sum(float(array.sum()) for array in arrays))
    return float(sum(float(array[0]) for array in arrays))


OF_THE_ARENA = {(POOL_PIPE, ARENA): 1.15, (POOL_PLACE, ARENA): 0.5}
CASES = {
    "two": Case(
        "23 MB of float32 to two readers, and their answers",
        1,
        23_000_000,
        LARGE,
        readers=2,
        look="first",
        goals={(POOL_PIPE, ARENA): 1.15, (POOL_PIPE, TORCH): 0.1},
    ),
    "64 KB": Case("32 x 64 KB, sent and read", 32, 64_000, LARGE, goals=OF_THE_ARENA),
    "2 MB": Case("4 x 2 MB, sent and read", 4, 2_000_000, LARGE, goals=OF_THE_ARENA),
    "64 MB": Case("1 x 64 MB, sent and read", 1, 64_000_000, LARGE, goals=OF_THE_ARENA),
    "none": Case(
        "a message without arrays",
        0,
        0,
        SMALL,
        goals={(POOL_PIPE, PICKLE_PIPE): 1.2, (POOL_ZEROMQ, PICKLE_ZEROMQ): 1.2},
    ),
    "4 KB": Case(
        "a message with one array of 4 KB",
        1,
        4_000,
        SMALL,
        goals={(POOL_PIPE, PICKLE_PIPE): 1.2, (POOL_ZEROMQ, PICKLE_ZEROMQ): 1.2},
    ),
}
