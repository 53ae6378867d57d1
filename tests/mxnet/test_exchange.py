# SPDX-License-Identifier: Apache-2.0
"""Arrays of Tenon and of MXNet on the same memory, in both directions."""

import gc
import subprocess
import sys
import weakref

import numpy as np
import pytest
from mxnet_side import EXAMPLES, address_of, as_mxnet, mx, settle

import tenon as tn

pytestmark = pytest.mark.usefixtures("nothing_stays_behind")

CAPSULES = {
    "to_dlpack_for_read": lambda a: a.to_dlpack_for_read(),
    "to_dlpack_for_write": lambda a: a.to_dlpack_for_write(),
    "function": tn.to_dlpack_for_read,
    "__dlpack__": lambda a: a.__dlpack__(),
}
DTYPES = ("float16", "float32", "float64", "uint8", "int8", "int32", "int64")
TIMES = 5000


@pytest.mark.parametrize("capsule", CAPSULES.values(), ids=CAPSULES)
@pytest.mark.parametrize("start", [0, 1])
def test_mxnet_uses_the_memory_of_tenon(capsule, start):
    a = tn.arange(12, dtype="float32").reshape(3, 4)[start:]
    m = mx.nd.from_dlpack(capsule(a))
    assert (address_of(m), m.shape) == (a.data_ptr, a.shape)
    assert m.asnumpy().tolist() == a.tolist()


@pytest.mark.parametrize("dtype", DTYPES)
def test_an_array_comes_back_with_its_address_and_dtype(dtype):
    a = tn.ones((2, 3), dtype)
    m = as_mxnet(a)
    back = tn.from_dlpack(m.to_dlpack_for_read())
    assert m.dtype == np.dtype(dtype)
    assert (back.data_ptr, back.dtype, back.shape) == (a.data_ptr, a.dtype, a.shape)


def test_tenon_uses_the_memory_of_mxnet():
    m = mx.nd.arange(6).reshape((2, 3))
    a = tn.from_dlpack(m.to_dlpack_for_read())
    assert a.data_ptr == address_of(m)
    m[:] = 7
    m.wait_to_read()
    del m
    gc.collect()
    assert a.tolist() == [[7.0] * 3] * 2


def test_the_owner_gets_its_memory_back_after_the_last_array_of_mxnet():
    x = np.ones(1000, "f4")
    lent = as_mxnet(tn.from_numpy(x))
    part = lent[10:20]
    del lent
    assert not x.flags.writeable
    assert part.sum().asscalar() == 10
    del part
    settle()
    assert x.flags.writeable
    alive = weakref.ref(x)
    capsule = tn.from_numpy(x).to_dlpack_for_read()
    del x, capsule  # never consumed
    assert alive() is None


def test_exchanges_leave_nothing():
    x, m = np.ones((4, 8), "f4"), mx.nd.ones((4, 8))
    blocks = []
    for _ in range(3):  # the first round fills caches
        for _ in range(TIMES):
            lent = as_mxnet(tn.from_numpy(x))
            assert lent.shape == (lent + 1).shape
            taken = tn.from_dlpack(m.to_dlpack_for_read())
            assert taken.data_ptr == address_of(m)
            del lent, taken
        settle()
        blocks.append(sys.getallocatedblocks())
    assert abs(blocks[2] - blocks[1]) < TIMES / 50
    assert x.flags.writeable


PROGRAM = """
import os, sys, weakref
import before_mxnet, mxnet as mx, numpy as np, tenon as tn

def fill(batch):
    batch.data[...] = batch.index

feed = tn.Feed(fill, {"data": ("f4", (64, 64))}, workers=1, batches=100)
batches = iter(feed)
lent = mx.nd.from_dlpack(next(batches).data.to_dlpack_for_read())
taken = tn.from_dlpack(mx.nd.ones((3,)).to_dlpack_for_read())
"""
AT_EXIT = "later = mx.nd.dot(lent, lent) + 1"
IN_A_FORK = """
child = os.fork()
for _ in range(2):  # MXNet starts its engine again in both
    assert (lent + 1).asnumpy()[5, 5] == 1 and taken.tolist() == [1] * 3
if child == 0:
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
assert [batch.index for batch in batches] == list(range(1, 100))
"""


@pytest.mark.parametrize("rest", [AT_EXIT, IN_A_FORK], ids=["exit", "fork"])
def test_a_process_with_both_ends_in_order(rest):
    command = [sys.executable, "-W", "ignore", "-c", PROGRAM + rest]
    done = subprocess.run(command, cwd=EXAMPLES, capture_output=True, text=True, timeout=600)
    assert (done.returncode, done.stderr) == (0, "")
