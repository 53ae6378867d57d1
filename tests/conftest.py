# SPDX-License-Identifier: Apache-2.0
"""For every test: what the collected modules have imported is set aside for the garbage collector.

Many tests ask it whether anything stayed behind; it would walk through PyTorch and JAX each time.
"""

import gc


def pytest_collection_finish():
    gc.collect()
    gc.freeze()
