# SPDX-License-Identifier: Apache-2.0
"""The feeds that are open, and their end with the interpreter."""

from __future__ import annotations

import atexit
import weakref
from typing import Any

from .._errors import log

is_python_ending = False
OPEN: weakref.WeakSet[Any] = weakref.WeakSet()  # and iterators of loaders


@atexit.register
def close_all() -> None:
    global is_python_ending
    is_python_ending = True
    for feed in list(OPEN):
        try:
            feed.close()
        except Exception as error:  # the others are to be closed, too
            log.warning("%s", error)
