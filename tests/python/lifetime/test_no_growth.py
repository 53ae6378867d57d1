# SPDX-License-Identifier: Apache-2.0
"""A million exchanges of every kind leave memory and file descriptors as they were.

With TENON_SOAK=1 each kind runs 1,000,000 times, else 30,000 times; those that go through ctypes run a tenth
of it. The oracles are exact counters, so that a leak of a few bytes in each round is seen long before it
shows in the size of the process: CPython's blocks, malloc's bytes, storages, views, descriptors.
"""

import array
import ctypes
import gc
import mmap
import pickle
import sys
import time

import foreign_dlpack as dl
import live
import numpy as np
import pytest
import soak

import tenon as tn

N = soak.times(1_000_000, 30_000)

x = np.zeros(16)
frozen = np.zeros(16)
frozen.flags.writeable = False
strided = np.zeros((8, 8))[::2, ::-1]
swapped = np.zeros(4, ">f4")
raw = bytearray(64)
area = mmap.mmap(-1, 4096)
numbers = array.array("d", [0.0] * 8)
pointer = (ctypes.c_double * 8)()
address = ctypes.addressof(pointer)
a = tn.zeros((4, 4))
bfloat = tn.zeros(8, dtype="bfloat16")
scalar = tn.array(2.5)
read_only = a.readonly()
pickled = pickle.dumps(a, protocol=5)


def refused(function, *arguments, **keywords):
    def call():
        try:
            function(*arguments, **keywords)
        except (TypeError, ValueError, BufferError, IndexError, OverflowError):
            return
        raise AssertionError("not refused")

    return call


FAST = {
    "zeros": lambda: tn.zeros(100),
    "empty of a page": lambda: tn.empty(1024),
    "full": lambda: tn.full((3, 3), 1.5),
    "from a list": lambda: tn.array([1.0, 2.0]),
    "from_numpy": lambda: tn.from_numpy(x),
    "from_numpy writable": lambda: tn.from_numpy(x, mode="writable"),
    "from_numpy move": lambda: tn.from_numpy(np.zeros(4), mode="move"),
    "from_numpy copied": lambda: tn.from_numpy(x, zero_copy=False),
    "from_numpy twice": lambda: (tn.from_numpy(x), tn.from_numpy(x)),
    "from_numpy views": lambda: (tn.from_numpy(x[:8]), tn.from_numpy(x[4:]), tn.from_numpy(x)),
    "from_numpy read-only": lambda: tn.from_numpy(frozen),
    "from_numpy strided": lambda: tn.from_numpy(strided),
    "from_numpy fresh": lambda: tn.from_numpy(np.empty(100)),
    "asarray": lambda: tn.asarray(x),
    "from_dlpack of numpy": lambda: tn.from_dlpack(x),
    "from_dlpack copied": lambda: tn.from_dlpack(x, copy=True),
    "from_dlpack of an array": lambda: tn.from_dlpack(a),
    "from_dlpack of a capsule": lambda: tn.from_dlpack(a.__dlpack__()),
    "from_dlpack of a versioned capsule": lambda: tn.from_dlpack(a.__dlpack__(max_version=(1, 0))),
    "from_buffer": lambda: tn.from_buffer(raw, "u1"),
    "from_buffer of a mapping": lambda: tn.from_buffer(area, "f4", (4, 4), offset=64),
    "from_buffer of array.array": lambda: tn.from_buffer(numbers, "f8"),
    "from_pointer": lambda: tn.from_pointer(address, (8,), "f8", owner=pointer),
    "from_pointer with a deleter": lambda: tn.from_pointer(address, (8,), "f8", deleter=hash),
    "capsule": lambda: a.__dlpack__(),
    "versioned capsule": lambda: a.__dlpack__(max_version=(1, 3)),
    "copied capsule": lambda: a.__dlpack__(max_version=(1, 3), copy=True),
    "capsules of mxnet": lambda: (a.to_dlpack_for_read(), a.to_dlpack_for_write()),
    "np.from_dlpack": lambda: np.from_dlpack(a),
    "np.asarray": lambda: np.asarray(a),
    "np.asarray of bfloat16": lambda: np.asarray(bfloat),
    "numpy()": lambda: a.numpy(),
    "numpy() and back": lambda: tn.from_numpy(a.numpy()),
    "asnumpy": lambda: a.asnumpy(),
    "__array__": lambda: a.__array__("f8"),
    "memoryview": lambda: memoryview(a),
    "memoryview of a memoryview": lambda: memoryview(memoryview(a))[1:],
    "bytes": lambda: bytes(a),
    "bytearray": lambda: bytearray(a),
    "ctypes": lambda: a.ctypes.data,
    "slice": lambda: a[1:, ::2],
    "item": lambda: a[1, 2].item(),
    "new axis": lambda: a[None, ..., None],
    "transpose": lambda: a.T,
    "reshape": lambda: a.reshape(2, 8),
    "reshape that copies": lambda: a.T.reshape(-1, copy=True),
    "view of another dtype": lambda: a.view("int16"),
    "readonly": lambda: a.readonly().readonly(),
    "copy": lambda: a.copy(),
    "astype": lambda: a.astype("int8"),
    "assignment": lambda: a.__setitem__((slice(None), 1), 3.0),
    "assignment of an array": lambda: a.__setitem__(..., strided[:, :4]),
    "copyto": lambda: a.copyto(a),
    "iteration": lambda: list(a),
    "tolist": lambda: a.tolist(),
    "repr": lambda: repr(scalar),
    "float": lambda: float(scalar),
    "operator": lambda: a + 1,
    "operator in place": lambda: a.__iadd__(1),
    "comparison": lambda: a == a,
    "attributes": lambda: (a.shape, a.strides, a.dtype, a.device, a.nbytes, a.data_ptr, a.version),
    "dtype by name": lambda: tn.dtype("float32"),
    "pickle": lambda: pickle.loads(pickled),
    "pickled": lambda: pickle.dumps(a, protocol=4),
    "refused: byte order": refused(tn.from_numpy, swapped),
    "refused: dtype": refused(tn.zeros, 3, dtype="float7"),
    "refused: shape": refused(tn.zeros, (2**40, 2**40)),
    "refused: mode": refused(tn.from_numpy, x, mode="x"),
    "refused: move": refused(tn.from_numpy, x, mode="move"),
    "refused: legacy": refused(read_only.__dlpack__),
    "refused: stream": refused(a.__dlpack__, stream=1),
    "refused: buffer": refused(tn.from_buffer, raw, "f8", (99,)),
    "refused: pointer": refused(tn.from_pointer, address, (-1,), "f8", owner=pointer, deleter=hash),
    "refused: no producer": refused(tn.from_dlpack, 3),
    "refused: index": refused(a.__getitem__, (0, 9)),
    "refused: assignment": refused(a.__setitem__, ..., "text"),
    "refused: reshape": refused(a.reshape, 3, 3),
    "refused: read-only": refused(read_only.__setitem__, 0, 1),
}
SLOW = {
    "foreign tensor": lambda: tn.from_dlpack(dl.Tensor()),
    "legacy foreign tensor": lambda: tn.from_dlpack(dl.Tensor(legacy=True)),
    "taken and released without the GIL": lambda: dl.take(a.__dlpack__()).release(),
    "refused: foreign tensor": refused(lambda: tn.from_dlpack(dl.Tensor(shape=(-1,)))),
    "refused: consumed capsule": lambda: _consumed_twice(),
}


def _consumed_twice():
    capsule = a.__dlpack__()
    tn.from_dlpack(capsule)
    refused(tn.from_dlpack, capsule)()


class _Mallinfo2(ctypes.Structure):
    _fields_ = tuple(
        (name, ctypes.c_size_t)
        for name in (
            "arena",
            "ordblks",
            "smblks",
            "hblks",
            "hblkhd",
            "usmblks",
            "fsmblks",
            "uordblks",
            "fordblks",
            "keepcost",
        )
    )


def malloc_nbytes():
    """In use, by glibc's count; 0 where there is no such count."""
    try:
        count = ctypes.CDLL(None).mallinfo2
    except AttributeError:
        return 0
    count.restype = _Mallinfo2
    information = count()
    return information.uordblks + information.hblkhd


def blocks_and_bytes():
    gc.collect()
    tn.zeros(0)
    return sys.getallocatedblocks(), malloc_nbytes()


def growth(call, n):
    """Blocks and bytes that n calls leave behind. Others allocate, too: a leak shows three times in a row."""
    for _ in range(300):
        call()
    least = None
    for _ in range(3):
        blocks, nbytes = blocks_and_bytes()
        for _ in range(n):
            call()
        more_blocks, more_nbytes = blocks_and_bytes()
        seen = (more_blocks - blocks, more_nbytes - nbytes)
        least = seen if least is None else (min(least[0], seen[0]), min(least[1], seen[1]))
        if least[0] < 50 and least[1] < 4096:
            break
    return least


@pytest.mark.slow
@pytest.mark.parametrize("kind", [*FAST, *SLOW])
def test_exchanges_leave_nothing_behind(kind):
    call, n = (FAST[kind], N) if kind in FAST else (SLOW[kind], N // 10)
    before, descriptors = live.now(), live.n_file_descriptors()
    blocks, nbytes = growth(call, n)
    assert blocks < n // 20, f"{blocks} blocks of CPython after {n} rounds"
    assert nbytes < max(n // 2, 4096), f"{nbytes} bytes of malloc after {n} rounds"
    assert live.counts() == before
    if live.n_file_descriptors() > descriptors:  # a thread of another library may have opened one meanwhile
        descriptors = live.n_file_descriptors()
        growth(call, n)
        assert live.n_file_descriptors() <= descriptors  # less: others that earlier tests left have closed
    assert x.flags.writeable


def test_the_process_does_not_grow():
    """All kinds in turn: what the exact counters cannot see, such as mappings, shows in the size."""
    calls = [*FAST.values(), *SLOW.values()]

    def everything(rounds):
        for _ in range(rounds):
            for call in calls:
                call()
        gc.collect()
        return live.rss()

    everything(50)
    before = everything(50)
    n = soak.times(5_000, 300)
    after = everything(n)
    assert after - before < (4 << 20) + n * 1_000, (
        f"{after - before} bytes after {n} rounds of {len(calls)} kinds"
    )


def test_large_arrays_come_and_go():
    before = live.rss()
    for i in range(soak.times(5_000, 200)):
        b = tn.full((1 << 20) + i, 1.0)
        c = b.numpy()
        del b, c
    assert live.rss() - before < 64 << 20


@pytest.mark.slow
def test_threads_come_and_go():
    import threading

    def work():
        b = tn.from_numpy(np.zeros(4))
        b.numpy()
        memoryview(b)

    def once():
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()

    threads = live.n_threads()
    blocks, nbytes = growth(once, soak.times(30_000, 900))
    assert blocks < 50
    assert nbytes < 1 << 16
    # The kernel lists a thread for a moment after join() has returned.
    deadline = time.monotonic() + 60
    while live.n_threads() > threads and time.monotonic() < deadline:
        time.sleep(0.01)
    assert live.n_threads() <= threads


@pytest.mark.parametrize("way", ["in", "out", "torch()", "round trip"])
def test_exchanges_with_torch_leave_nothing_behind(way):
    torch = pytest.importorskip("torch")
    t = torch.zeros(16)
    calls = {
        "in": lambda: tn.from_dlpack(t),
        "out": lambda: torch.from_dlpack(a),
        "torch()": lambda: a.torch(),
        "round trip": lambda: tn.from_dlpack(a.torch()),
    }
    n = N // 2
    before = live.now()
    blocks, nbytes = growth(calls[way], n)
    assert blocks < n // 20
    assert nbytes < max(n // 2, 4096)
    assert live.counts() == before
