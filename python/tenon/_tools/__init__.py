# SPDX-License-Identifier: Apache-2.0
"""What looks on: timelines, `tenon ls`, `top` and `plot`, the meter of copies."""
