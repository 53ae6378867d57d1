# SPDX-License-Identifier: Apache-2.0
"""Memory for several processes: arenas and their plans, channels."""
