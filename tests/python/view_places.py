# SPDX-License-Identifier: Apache-2.0
"""What tests of the search for views share."""

import sys

import tenon as tn
from tenon._sync.views import places


def texts(array, thorough=False):
    return [place.text for place in places(array, thorough)]


def fill(array):
    tn.push(tn.fill, tn.overwrite(array), 1).wait()


def here(offset=0):
    """The line that calls it, as texts of places have it."""
    frame = sys._getframe(1)
    return f"{frame.f_code.co_name} ({frame.f_code.co_filename}:{frame.f_lineno + offset})"


class Trainer:
    def __init__(self, batch):
        self.batch = batch

    def step(self):
        pass
