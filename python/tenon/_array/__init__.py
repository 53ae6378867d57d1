# SPDX-License-Identifier: Apache-2.0
"""Arrays: how they are made, printed, pickled, and what they are in NumPy, JAX and ctypes."""
