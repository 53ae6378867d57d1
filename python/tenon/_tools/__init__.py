# SPDX-License-Identifier: Apache-2.0
"""Tools that observe: timelines, `tenon ls` and `plot`."""
