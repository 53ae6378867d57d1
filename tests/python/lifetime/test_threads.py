# SPDX-License-Identifier: Apache-2.0
"""Many threads import, export and drop the same arrays.

Oracles: every deleter runs exactly once; every flag is up again at the end; nothing is alive that was not at
the beginning; elements written by one thread, in a row that is its own, are those that it reads. The seed is
printed; a watchdog (pytest's timeout) ends a hang. Each thread runs 10,000 rounds, with TENON_SOAK=1 200,000.
"""

import contextlib
import ctypes
import gc
import random
import sys
import threading

import foreign_dlpack as dl
import live
import native
import numpy as np
import pytest
import soak

import tenon as tn

N_THREADS = 6
ROUNDS = soak.times(200_000, 10_000)


@pytest.fixture(autouse=True)
def many_switches():
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(interval)


def run(work, n=N_THREADS):
    """work(i) on n threads that start together. The first error is raised."""
    start = threading.Barrier(n)
    errors = []

    def guarded(i):
        start.wait()
        try:
            work(i)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=guarded, args=(i,)) for i in range(n)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


def uses(a, row, random_number):
    """One use of a, which leaves row `row` of it with the number."""
    kind = random_number % 9
    target = (
        lambda: a[row],
        lambda: a.numpy()[row],
        lambda: np.asarray(a[row]),
        lambda: np.from_dlpack(a)[row],
        lambda: tn.from_dlpack(a)[row],
        lambda: tn.from_dlpack(a.__dlpack__(max_version=(1, 0)))[row],
        lambda: tn.from_numpy(a.numpy())[row],
        lambda: np.asarray(memoryview(a))[row],
        lambda: tn.from_dlpack(np.from_dlpack(a[row])),
    )[kind]()
    target[...] = random_number
    assert (np.asarray(a)[row] == random_number).all()


@pytest.mark.slow
def test_one_array_used_by_all():
    a = tn.zeros((N_THREADS, 64), dtype="int64")
    seed = random.randrange(1 << 30)
    print("seed", seed)

    def work(i):
        numbers = random.Random(seed + i)
        for _ in range(ROUNDS):
            uses(a, i, numbers.randrange(1 << 20))

    run(work)


def test_one_numpy_array_lent_by_all():
    x = np.zeros((N_THREADS, 8), dtype="int64")
    seed = random.randrange(1 << 30)
    print("seed", seed)

    def work(i):
        numbers = random.Random(seed + i)
        for _ in range(ROUNDS):
            mode = numbers.choice(("readonly", "readonly", "writable"))
            a = tn.from_numpy(x if numbers.random() < 0.5 else x[i:], mode=mode)
            del a

    run(work)
    live.now()
    assert x.flags.writeable


@pytest.mark.slow
def test_arrays_handed_from_thread_to_thread():
    """Whoever drops an array is rarely the one who made it."""
    import queue

    n = N_THREADS
    queues = [queue.SimpleQueue() for _ in range(n)]
    tensors, sources = [], []
    lock = threading.Lock()

    def work(i):
        numbers = random.Random(i)
        for _ in range(ROUNDS):
            if numbers.random() < 0.5:
                tensor = dl.Tensor((4,))
                item = tn.from_dlpack(tensor)
                with lock:
                    tensors.append(tensor)
            else:
                x = np.zeros(4)
                item = tn.from_numpy(x)
                with lock:
                    sources.append(x)
            item = numbers.choice((lambda b: b, lambda b: b.numpy(), memoryview, lambda b: b.__dlpack__()))(
                item
            )
            queues[numbers.randrange(n)].put(item)
            del item
            if numbers.random() < 0.9:
                try:
                    queues[i].get_nowait()
                except queue.Empty:
                    continue

    run(work)
    for q in queues:
        while not q.empty():
            q.get()
    live.counts()
    assert {tensor.deaths for tensor in tensors} <= {1}
    assert all(x.flags.writeable for x in sources)


@pytest.mark.slow
def test_many_tensors_over_one_buffer():
    """Imports of overlapping memory by all threads at once: regions are joined and left all the time."""
    buffer = dl.aligned_bytes(1024)
    deaths = []

    def work(i):
        numbers = random.Random(i)
        kept = []
        for _ in range(ROUNDS // 2):
            begin = 32 * numbers.randrange(24)
            n = numbers.randrange(0, 40)
            tensor = dl.Tensor((n,), buffer=buffer, byte_offset=begin)
            kept.append(tn.from_dlpack(tensor))
            deaths.append(tensor)
            if len(kept) > numbers.randrange(8):
                kept.pop(numbers.randrange(len(kept)))
        kept.clear()

    run(work)
    live.counts()
    assert {tensor.deaths for tensor in deaths} == {1}


@pytest.mark.slow
def test_threads_of_c_let_go_while_threads_of_python_import():
    library = native.load()
    x = np.zeros((64, 8))
    stop = threading.Event()
    failures = []

    def importing():
        while not stop.is_set():
            a = tn.from_numpy(x)
            b = tn.from_numpy(x[3:], mode="writable")
            del a, b

    importer = threading.Thread(target=importing)
    importer.start()
    try:
        for _ in range(ROUNDS // 10):
            taken = [dl.take(tn.from_numpy(row).__dlpack__(max_version=(1, 0))) for row in x[:16]]
            n = len(taken)
            if library.call_at_once(
                n,
                (ctypes.c_void_p * n)(*(t._deleter for t in taken)),
                (ctypes.c_void_p * n)(*(t.address for t in taken)),
            ):
                failures.append("no threads")
    finally:
        stop.set()
        importer.join()
    live.now()
    assert failures == []
    assert x.flags.writeable


def test_copies_without_the_gil_while_others_drop_the_source():
    """A copy gives the GIL away: its source and destination must live until it is done."""

    def work(i):
        for _ in range(ROUNDS // 25):
            a = tn.full(1 << 17, float(i))
            b = a.copy()
            shared[i] = b
            c = shared[(i + 1) % N_THREADS]
            if c is not None:
                d = c.astype("float64")
                assert d[0].item() == d[-1].item()
            b[...] = a
            del a, b

    shared = [None] * N_THREADS
    run(work)
    shared.clear()


def test_the_garbage_collector_at_every_allocation():
    """gc.set_threshold(1): finalisers run in the middle of everything."""
    thresholds = gc.get_threshold()
    x = np.zeros(8)

    class Node:
        pass

    def exchange():
        node = Node()
        node.itself = node
        node.array = tn.from_numpy(x)
        node.view = node.array.numpy()
        node.capsule = node.array.__dlpack__(max_version=(1, 0))
        node.memory = memoryview(node.array)
        back = tn.from_dlpack(np.from_dlpack(node.array))
        node.tensor = tn.from_dlpack(dl.Tensor())
        back.tolist(), repr(back), back.T, back[None], back + 1
        np.asarray(back), back.copy(), back.astype("int8"), list(back)
        with contextlib.suppress(TypeError):
            tn.from_numpy(x.astype(">f8"))

    gc.set_threshold(1)
    try:
        for _ in range(soak.times(20_000, 300)):
            exchange()
    finally:
        gc.set_threshold(*thresholds)
    live.counts()
    assert x.flags.writeable
