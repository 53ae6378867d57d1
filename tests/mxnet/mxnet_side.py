# SPDX-License-Identifier: Apache-2.0
"""MXNet, and what the tests ask of it. Modules that import this are skipped where there is no MXNet."""

import contextlib
import ctypes
import gc
import threading
from pathlib import Path

import before_mxnet  # noqa: F401
import pytest

import tenon as tn

try:
    import mxnet as mx  # after before_mxnet
    import mxnet.io  # not a folder of that name
except (ImportError, OSError) as error:  # OSError: the system has no libgomp or libquadmath
    pytest.skip(f"no MXNet: {error}", allow_module_level=True)

EXAMPLES = Path(__file__).parents[2] / "examples"
WATCHDOG_SECONDS = 600
NAME = b"gate"


def as_mxnet(array):
    return mx.nd.from_dlpack(array.to_dlpack_for_read())


def address_of(array):
    """The address of element 0 of an MXNet array."""
    pointer = ctypes.c_void_p()
    mx.base.check_call(mx.base._LIB.MXNDArrayGetData(array.handle, ctypes.byref(pointer)))
    return pointer.value


def settle():
    """Waits for MXNet's ops, and returns what is alive in Tenon."""
    mx.nd.waitall()
    gc.collect()
    return tn._core.statistics()


class Context(ctypes.Structure):
    _fields_ = (("device_type", ctypes.c_int), ("device_id", ctypes.c_int32))


@contextlib.contextmanager
def closed_gate():
    """(zero, open): an array of one zero, ready after `open` has been called, which the end of the block
    does. Ops of MXNet that read it, and those behind them, wait for that."""
    opened = threading.Event()
    zero = mx.nd.zeros((1, 1))

    @ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p)
    def body(_context, _parameter):
        assert opened.wait(WATCHDOG_SECONDS)

    mx.base.check_call(
        mx.base._LIB.MXEnginePushSyncND(
            *(body, None, None, ctypes.byref(Context(1, 0))),
            *(None, 0, ctypes.byref(zero.handle), 1),
            *(None, 0, NAME),
        )
    )
    try:
        yield zero, opened.set
    finally:
        opened.set()
        mx.nd.waitall()
