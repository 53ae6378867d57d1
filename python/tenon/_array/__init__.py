# SPDX-License-Identifier: Apache-2.0
"""Arrays: how they are made, printed, pickled, and what they are in NumPy, JAX and ctypes."""

import warnings

# numpy.random.shuffle swaps rows by ``x[i], x[j] = x[j], x[i]``. If rows are views, some of them are lost.
# NumPy only warns.
warnings.filterwarnings("error", message="you are shuffling a 'NDArray' object", category=UserWarning)
