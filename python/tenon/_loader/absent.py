# SPDX-License-Identifier: Apache-2.0
"""What `tenon.DataLoader` is where PyTorch cannot be used."""

import types
from typing import Any


class DataLoader:
    """Cannot be made, as subclasses of it cannot."""

    reason = ""  # why PyTorch cannot be used

    __class_getitem__: Any = classmethod(types.GenericAlias)

    def __new__(cls, *_: Any, **__: Any) -> Any:
        raise ImportError(
            f"tenon.DataLoader is made from PyTorch, which cannot be used ({cls.reason}): "
            "pip install torch, or use tenon.Feed, which does not need it"
        )
