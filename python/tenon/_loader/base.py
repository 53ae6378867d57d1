# SPDX-License-Identifier: Apache-2.0
"""The base classes of a `DataLoader`: those of PyTorch if it is installed, else those of `plain`. The import
of this module imports PyTorch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .._core import NDArray
from .collate import in_hand, numpy_collate

torch: Any
try:
    import torch
    import torch.utils.data._utils.worker
except ImportError:
    torch = None

default_collate: Any = numpy_collate if torch is None else torch.utils.data.default_collate

if TYPE_CHECKING:
    from torch.utils.data import DataLoader as BaseLoader

    from .plain import BaseIterator, BatchSampler, Kind, SingleProcessIterator
elif torch is None:
    from .plain import BaseIterator, BatchSampler, Kind, SingleProcessIterator
    from .plain import DataLoader as BaseLoader
else:
    from torch.utils.data import BatchSampler
    from torch.utils.data.dataloader import DataLoader as BaseLoader
    from torch.utils.data.dataloader import _BaseDataLoaderIter as BaseIterator
    from torch.utils.data.dataloader import _DatasetKind as Kind
    from torch.utils.data.dataloader import _SingleProcessDataLoaderIter as SingleProcessIterator

__all__ = [
    "BaseIterator",
    "BaseLoader",
    "BatchSampler",
    "Kind",
    "SingleProcessIterator",
    "default_collate",
    "torch",
]


def _collate_arrays(arrays: Any, *, collate_fn_map: Any = None) -> Any:
    tensors = [in_hand(one).torch() if isinstance(one, NDArray) else torch.as_tensor(one) for one in arrays]
    return torch.utils.data._utils.collate.collate(tensors, collate_fn_map=collate_fn_map)


if torch is not None:
    torch.utils.data._utils.collate.default_collate_fn_map[NDArray] = _collate_arrays
