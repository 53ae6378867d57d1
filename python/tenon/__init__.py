# SPDX-License-Identifier: Apache-2.0
"""Arrays whose memory C libraries, NumPy, PyTorch, JAX and other processes share without copies."""

import sys as _sys

if "t" in _sys.abiflags:  # of the builds without a GIL, from CPython 3.13 on
    raise ImportError("tenon is not made for free-threaded Python yet: use an interpreter with the GIL")

from . import _trace as _trace  # first: at the exit it ends after ops and feeds
from . import io
from ._core import (
    Batch,
    NDArray,
    Schema,
    attach,
    bfloat16,
    complex64,
    complex128,
    dtype,
    float4_e2m1fn,
    float6_e2m3fn,
    float6_e3m2fn,
    float8_e3m4,
    float8_e4m3,
    float8_e4m3b11fnuz,
    float8_e4m3fn,
    float8_e4m3fnuz,
    float8_e5m2,
    float8_e5m2fnuz,
    float8_e8m0fnu,
    float16,
    float32,
    float64,
    from_buffer,
    from_dlpack,
    from_numpy,
    int8,
    int16,
    int32,
    int64,
    revoke_handles,
    set_lock_timeout,
    uint8,
    uint16,
    uint32,
    uint64,
)
from ._core import __version__ as __version__
from ._core import (
    bool as bool,
)
from ._creation import (
    array,
    asarray,
    empty,
    empty_like,
    from_pointer,
    full,
    full_like,
    ones,
    ones_like,
    zeros,
    zeros_like,
)
from ._errors import (
    DeadlockError,
    LeaseConflict,
    LeaseEscaped,
    MovedError,
    OpError,
    OwnerDied,
    TenonError,
)
from ._files import load, save
from ._loader import DataLoader
from ._planner import Plan, Tensor
from ._plugin import Plugin, plugin
from ._trace import trace
from ._typing import DTypeLike
from ._workers import WorkerBatch, worker
from .arena import Arena
from .channel import Channel
from .engine import Op, cast, copy, fill, inout, out, push, set_engine, set_engine_limits, waitall
from .feed import Feed, schema
from .function import CFunction, c_function
from .lease import Holder, Lease
from .share import Handle, Shared

# Without `bool`, so that `from tenon import *` hides no builtin.
__all__ = [
    "Arena",
    "Batch",
    "CFunction",
    "Channel",
    "DTypeLike",
    "DataLoader",
    "DeadlockError",
    "Feed",
    "Handle",
    "Holder",
    "Lease",
    "LeaseConflict",
    "LeaseEscaped",
    "MovedError",
    "NDArray",
    "Op",
    "OpError",
    "OwnerDied",
    "Plan",
    "Plugin",
    "Schema",
    "Shared",
    "TenonError",
    "Tensor",
    "WorkerBatch",
    "array",
    "asarray",
    "attach",
    "bfloat16",
    "c_function",
    "cast",
    "complex64",
    "complex128",
    "copy",
    "dtype",
    "empty",
    "empty_like",
    "fill",
    "float4_e2m1fn",
    "float6_e2m3fn",
    "float6_e3m2fn",
    "float8_e3m4",
    "float8_e4m3",
    "float8_e4m3b11fnuz",
    "float8_e4m3fn",
    "float8_e4m3fnuz",
    "float8_e5m2",
    "float8_e5m2fnuz",
    "float8_e8m0fnu",
    "float16",
    "float32",
    "float64",
    "from_buffer",
    "from_dlpack",
    "from_numpy",
    "from_pointer",
    "full",
    "full_like",
    "inout",
    "int8",
    "int16",
    "int32",
    "int64",
    "io",
    "load",
    "ones",
    "ones_like",
    "out",
    "plugin",
    "push",
    "revoke_handles",
    "save",
    "schema",
    "set_engine",
    "set_engine_limits",
    "set_lock_timeout",
    "trace",
    "uint8",
    "uint16",
    "uint32",
    "uint64",
    "waitall",
    "worker",
    "zeros",
    "zeros_like",
]
