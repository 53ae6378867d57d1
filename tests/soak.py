# SPDX-License-Identifier: Apache-2.0
"""How often: the full counts with TENON_SOAK=1, stated smaller ones otherwise."""

import os

IS_SOAK = os.environ.get("TENON_SOAK") == "1"


def times(full, otherwise):
    return full if IS_SOAK else otherwise
