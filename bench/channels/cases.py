# SPDX-License-Identifier: Apache-2.0
"""What goes from a producer to a consumer in another process, and how its time is taken."""

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Case:
    title: str
    legend: str
    nbytes: int  # of the array of an item; 0: a small object
    is_stream: bool = False


ONE_WAY = (
    "One way: from before the producer asks for memory or hands its array over, until the consumer has read "
    "an element of the item. The consumer sleeps meanwhile; an exchange begins 100 us after it has said that "
    "it waits. *In place*: the producer writes to the memory that it was given, and this writing is not part "
    "of the time. *Copied*: the array was there before."
)
STREAM = (
    "The producer sends items without a pause, at most 8 ahead of the consumer, which reads one element of "
    "each. Each time is that of a stream, divided by the number of its items. Each item is written as a "
    "whole, in place or as a copy."
)
FRAME_NBYTES, SMALL_NBYTES, DICT_NBYTES = 1080 * 1920 * 3, 64 << 10, 16 << 10
FRAME, SMALL, FRAMES, SMALLS, NUMBER, DICT = "frame", "64 KB", "frames", "64 KB stream", "number", "dict"
CASES = {
    FRAME: Case("A frame of 1080p in RGB (6.2 MB)", ONE_WAY, FRAME_NBYTES),
    SMALL: Case("An array of 64 KB", ONE_WAY, SMALL_NBYTES),
    FRAMES: Case("A stream of frames of 1080p (6.2 MB)", STREAM, FRAME_NBYTES, True),
    SMALLS: Case("A stream of arrays of 64 KB", STREAM, SMALL_NBYTES, True),
    NUMBER: Case("An int", ONE_WAY.split(" *In")[0], 0),
    DICT: Case("A dict with an array of 16 KB", ONE_WAY.split(" *In")[0], DICT_NBYTES),
}
DEPTH = 8  # items that exist at a time, where a contender has such a number


def source(case):
    """The array of an item, or None."""
    return np.ones(CASES[case].nbytes, "u1") if CASES[case].nbytes else None
