# SPDX-License-Identifier: Apache-2.0
"""Arrays whose memory C libraries, NumPy, PyTorch, JAX and other processes share without copies.

a = tn.zeros((4, 3)); a = tn.array(x)       new memory; a copy of existing data
a = tn.from_numpy(x); np.asarray(a)         the memory of x; a view. Also from_dlpack, a.torch(), a.jax()
with a.write() as v: ...                    access that excludes others; a.read(), a.snapshot(), a.copy()
tn.push(f, a, tn.write(b)).wait()           work that runs when its arrays are free
tn.zeros(n, shared="name"), tn.attach("name")   memory of several processes; its pickle is a handle
tn.Channel, tn.TensorPool, tn.Arena         items between processes; messages; one buffer, several layouts
f = tn.c_function("./libx.so", "int f(float *x, size_t n)", n="rows"); f(x)    a function in C
for batch in tn.Feed(f, {"x": ("f4", (64, 3))}, workers=2): ...    batches that workers fill
tenon ls, tenon doctor                      (in a shell) what is shared; what this machine allows
help(tn.Feed), and so on, has the parameters and the errors of each; __all__ has the names
"""

import sys as _sys
from importlib import import_module as _import_module

if "t" in _sys.abiflags:  # of the builds without a GIL, from CPython 3.13 on
    raise ImportError("tenon is not made for free-threaded Python yet: use an interpreter with the GIL")

# The exit of the interpreter ends these in reverse order: feeds, ops, timelines.
from ._tools.trace import trace

# isort: split
from . import io

# isort: split
from ._sync.engine import set_engine, set_engine_limits

# isort: split
from . import _callbacks as _callbacks
from ._answers import about_package as _about_package
from ._array.borrowers import Borrower, borrowers
from ._array.creation import (
    arange,
    array,
    asarray,
    concatenate,
    empty,
    empty_like,
    from_buffer,
    from_pointer,
    full,
    full_like,
    graph_capture,
    ones,
    ones_like,
    pinned,
    zeros,
    zeros_like,
)
from ._array.exchange import to_dlpack_for_read, to_dlpack_for_write
from ._array.files import load, save
from ._array.frozen import frozen
from ._array.registrations import register as _register
from ._array.share import Handle, Shared, attach, revoke_handles, set_lock_timeout
from ._core import (
    Batch,
    NDArray,
    Schema,
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
    from_dlpack,
    from_numpy,
    int8,
    int16,
    int32,
    int64,
    overwrite,
    read,
    uint8,
    uint16,
    uint32,
    uint64,
    write,
)
from ._core import __version__ as __version__
from ._core import (
    bool as bool,
)
from ._data.feed import Feed
from ._data.plugin import Plugin, plugin
from ._data.schema import schema
from ._data.workers import WorkerBatch, worker
from ._errors import (
    DeadlockError,
    LeaseConflict,
    LeaseEscaped,
    LeaseEscapedWarning,
    MessageGone,
    MovedError,
    OpError,
    OwnerDied,
    TenonError,
)
from ._ipc.arena import Arena
from ._ipc.channel import Channel
from ._ipc.pool import TensorPool, loads
from ._ipc.pool import open as open
from ._ipc.served_pool import PoolLink, PoolServer, attach_pool
from ._signatures import set_native_signatures as _set_native_signatures
from ._sync.copies import cast, copy, fill
from ._sync.function import CFunction, c_function
from ._sync.holders import Holder
from ._sync.lease import Lease
from ._sync.ops import Op, wait_all, waitall
from ._sync.pushes import push
from ._typing import DTypeLike

# What the exit of the interpreter, a fork and the extension call is registered by these modules. Where
# imports are lazy (`-X lazy_imports=all`), they are imported here, in the order of above.
for _name in ("._tools.trace", ".io", "._sync.engine", "._callbacks"):
    _import_module(_name, __name__)
_register()
_set_native_signatures(Op)


def __getattr__(name: str) -> object:
    if name != "DataLoader":
        advice = _about_package(name, __all__)
        text = f"module {__name__!r} has no attribute {name!r}"
        if advice is None:
            raise AttributeError(text)
        raise AttributeError(f"{text}: {advice}", name=name)
    # A subclass of PyTorch's class: its first use imports PyTorch.
    found: object
    try:
        from ._loader import loader

        found = loader.DataLoader
    except ImportError as error:
        from ._loader import absent

        absent.DataLoader.reason = str(error)
        found = absent.DataLoader
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), "DataLoader"})


# Without `bool` and `open`: `from tenon import *` should hide no builtin.
__all__ = [
    "Arena",
    "Batch",
    "Borrower",
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
    "LeaseEscapedWarning",
    "MessageGone",
    "MovedError",
    "NDArray",
    "Op",
    "OpError",
    "OwnerDied",
    "Plugin",
    "PoolLink",
    "PoolServer",
    "Schema",
    "Shared",
    "TenonError",
    "TensorPool",
    "WorkerBatch",
    "arange",
    "array",
    "asarray",
    "attach",
    "attach_pool",
    "bfloat16",
    "borrowers",
    "c_function",
    "cast",
    "complex64",
    "complex128",
    "concatenate",
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
    "frozen",
    "full",
    "full_like",
    "graph_capture",
    "int8",
    "int16",
    "int32",
    "int64",
    "io",
    "load",
    "loads",
    "ones",
    "ones_like",
    "overwrite",
    "pinned",
    "plugin",
    "push",
    "read",
    "revoke_handles",
    "save",
    "schema",
    "set_engine",
    "set_engine_limits",
    "set_lock_timeout",
    "to_dlpack_for_read",
    "to_dlpack_for_write",
    "trace",
    "uint8",
    "uint16",
    "uint32",
    "uint64",
    "wait_all",
    "waitall",
    "worker",
    "write",
    "zeros",
    "zeros_like",
]
