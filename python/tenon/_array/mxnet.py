# SPDX-License-Identifier: Apache-2.0
"""What scripts for MXNet ask an array for: its context, and itself in one. Does not import MXNet: where a
program has not, there is no context."""

from __future__ import annotations

import sys
from typing import Any

from .. import _core


def context_of(array: _core.NDArray) -> Any:
    mxnet = sys.modules.get("mxnet")
    if mxnet is None:
        raise AttributeError("NDArray.context is a context of MXNet, which this program has not imported")
    kind, _, number = array.device.partition(":")
    return mxnet.gpu(int(number)) if kind == "cuda" else mxnet.cpu()


def in_context(array: _core.NDArray, context: Any) -> Any:
    mxnet = sys.modules.get("mxnet")
    if mxnet is None:
        raise TypeError(f"as_in_context() takes a context of MXNet, not {context!r}")
    array = array if array.is_contiguous() else array.copy()
    capsule = array.to_dlpack_for_write() if array.writable else array.to_dlpack_for_read()
    return mxnet.nd.from_dlpack(capsule).as_in_context(context)
