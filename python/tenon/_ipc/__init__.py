# SPDX-License-Identifier: Apache-2.0
"""Memory for several processes: arenas, channels."""
