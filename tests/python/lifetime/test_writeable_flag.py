# SPDX-License-Identifier: Apache-2.0
"""While memory is lent for writing, NumPy's flag is down; when the last user has gone, it is up again."""

import asyncio
import contextlib
import ctypes
import gc
import itertools
import sys
import threading
import time
import weakref

import foreign_dlpack as dl
import live
import native
import numpy as np
import pytest

import tenon as tn


@pytest.fixture
def x():
    return np.zeros(8)


@contextlib.contextmanager
def lent(x):
    assert x.flags.writeable
    yield
    live.now()
    assert x.flags.writeable


def test_it_is_down_while_lent_and_numpy_cannot_write(x):
    a = tn.from_numpy(x)
    assert not x.flags.writeable
    with pytest.raises(ValueError, match="read-only"):
        x[0] = 1
    a[0] = 1
    assert x[0] == 1
    y = x[2:]
    assert not y.flags.writeable
    del a
    assert x.flags.writeable
    assert not y.flags.writeable, "a view made while x was read-only was never writable"


def test_views_made_before_stay_writable_and_are_seen(x):
    y = x[2:]
    a = tn.from_numpy(x)
    y[0] = 4
    assert a[2].item() == 4
    del a
    assert y.flags.writeable


@pytest.mark.parametrize(
    "user",
    [
        lambda a: a,
        lambda a: a[1:],
        lambda a: a.numpy(),
        lambda a: memoryview(a),
        lambda a: a.__dlpack__(),
        lambda a: a.__dlpack__(max_version=(1, 0)),
        lambda a: np.from_dlpack(a)[1:],
        lambda a: a.readonly(),
        lambda a: tn.from_dlpack(a.readonly()),
        lambda a: iter(a),
        lambda a: dl.take(a.__dlpack__()),
    ],
    ids=[
        "array",
        "view",
        "numpy",
        "memoryview",
        "capsule",
        "versioned",
        "from_dlpack",
        "readonly",
        "read-only import",
        "iter",
        "taken",
    ],
)
def test_it_comes_back_with_the_last_user_of_any_kind(x, user):
    last = user(tn.from_numpy(x))
    gc.collect()
    assert not x.flags.writeable
    if isinstance(last, dl.Taken):
        last.release()
    del last
    live.now()
    assert x.flags.writeable


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
def test_lends_of_an_array_and_its_views_end_in_any_order(x, order):
    """Each array object has a flag of its own."""
    y, z = x[2:], x[:4]
    sources = [x, y, z]
    arrays = [tn.from_numpy(source) for source in sources]
    assert not any(source.flags.writeable for source in sources)
    for i in order:
        arrays[i] = None
        live.now()
        assert [source.flags.writeable for source in sources] == [array is None for array in arrays]


def test_the_flag_is_untouched_where_nothing_is_lent_for_writing(x):
    for keep in (tn.from_dlpack, tn.asarray, lambda y: tn.from_numpy(y, mode="writable"), tn.array):
        a = keep(x)
        assert x.flags.writeable
        del a
        assert x.flags.writeable
    tn.from_numpy(x, zero_copy=False)
    assert x.flags.writeable
    a = tn.from_buffer(x, "f8")
    assert x.flags.writeable
    del a


def test_mixed_modes(x):
    a = tn.from_numpy(x, mode="writable")
    assert x.flags.writeable
    b = tn.from_numpy(x)
    assert not x.flags.writeable
    del a
    assert not x.flags.writeable
    del b
    live.now()
    assert x.flags.writeable


# ------------------------------------------------------------------------------------ ways to let go


def test_after_an_exception(x):
    def work():
        a = tn.from_numpy(x)
        b = a.numpy()
        raise KeyError(b.shape)

    with lent(x):
        try:
            work()
        except KeyError:
            assert not x.flags.writeable, "the traceback still holds the frame"


def test_after_an_exception_in_a_nested_call(x):
    def inner(a):
        with memoryview(a) as m:
            m[99]

    with lent(x), pytest.raises(IndexError):
        inner(tn.from_numpy(x))


def test_after_a_generator_was_closed_dropped_or_thrown_into(x):
    def work():
        a = tn.from_numpy(x)
        try:
            yield a[0]
        finally:
            a[0] = 1
        yield

    for end in (
        lambda generator: generator.close(),
        lambda generator: None,
        _throw,
    ):
        with lent(x):
            generator = work()
            next(generator)
            assert not x.flags.writeable
            end(generator)
            del generator


def _throw(generator):
    with contextlib.suppress(KeyError):
        generator.throw(KeyError())


def test_after_a_cancelled_task(x):
    async def work():
        a = tn.from_numpy(x)
        await asyncio.sleep(3600)
        a[0] = 1

    async def main():
        task = asyncio.create_task(work())
        await asyncio.sleep(0)
        assert not x.flags.writeable
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task

    with lent(x):
        asyncio.run(main())


def test_after_the_garbage_collector_found_a_cycle(x):
    class Node:
        pass

    gc.disable()
    try:
        with lent(x):
            node = Node()
            node.itself = node
            node.array = tn.from_numpy(x)
            node.view = node.array.numpy()
            node.memory = memoryview(node.array)
            del node
            assert not x.flags.writeable
            gc.collect()
            assert x.flags.writeable
    finally:
        gc.enable()


def test_after_a_finaliser_resurrected_the_array_for_a_while(x):
    saved = []

    class Keeper:
        def __del__(self):
            saved.append(self.array)

    with lent(x):
        keeper = Keeper()
        keeper.array = tn.from_numpy(x)
        del keeper
        gc.collect()
        assert not x.flags.writeable
        saved[0][0] = 1
        saved.clear()


def test_after_a_drop_in_another_thread(x):
    with lent(x):
        arrays = [tn.from_numpy(x)]
        thread = threading.Thread(target=arrays.clear)
        thread.start()
        thread.join()
        assert x.flags.writeable


def test_after_the_end_of_a_thread_with_thread_local_arrays(x):
    with lent(x):
        local = threading.local()

        def work():
            local.array = tn.from_numpy(x)

        thread = threading.Thread(target=work)
        thread.start()
        thread.join()


def export(x):
    """The address of an export that is the only user of x's memory, and its deleter."""
    taken = dl.take(tn.from_numpy(x).__dlpack__())
    return taken.address, taken._deleter


@pytest.mark.parametrize("keep_gil", [False, True], ids=["GIL free", "GIL held by the waiter"])
def test_after_a_drop_by_a_thread_of_c_that_never_heard_of_python(x, keep_gil):
    """The deleter takes no GIL: it returns even while the thread that holds the GIL waits for it."""
    address, deleter = export(x)
    assert not x.flags.writeable
    assert native.load(keep_gil=keep_gil).call_on_thread(deleter, address) == 0
    tn.zeros(0)
    assert x.flags.writeable


def wait_for_the_interpreter(is_done):
    """Runs Python, but nothing of Tenon. CPython before 3.13 sees a call that another thread left for it when
    its main thread takes the GIL again: after any sleep, input or output, lock, or switch of threads."""
    for _ in range(100_000):
        if is_done():
            return True
        if sys.version_info < (3, 13):
            time.sleep(0)
    return False


def test_the_flag_comes_back_without_a_call_into_tenon_again_and_again():
    arrays = [np.zeros(8) for _ in range(100)]
    library = native.load(keep_gil=True)
    for x in arrays:
        address, deleter = export(x)
        library.call_on_thread(deleter, address)
    assert wait_for_the_interpreter(lambda: all(x.flags.writeable for x in arrays))


def test_a_full_queue_of_pending_calls_loses_nothing():
    """CPython keeps 32 pending calls: a release that finds no room must not be forgotten."""
    x = np.zeros(8)
    address, deleter = export(x)

    calls = []

    @ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)
    def pending(_):
        calls.append(1)
        return 0

    add = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)(
        ("Py_AddPendingCall", ctypes.pythonapi)
    )
    address_of_pending = ctypes.cast(pending, ctypes.c_void_p)
    library = native.load(keep_gil=True)

    def fill_and_release():  # in one expression: nothing is run in between
        return [add(address_of_pending, None) for _ in range(400)], library.call_on_thread(deleter, address)

    fill_and_release()
    wait_for_the_interpreter(lambda: len(calls) >= 32)
    assert calls
    tn.zeros(0)
    assert x.flags.writeable


def test_many_threads_of_c_let_go_at_the_same_moment():
    n = 16
    library = native.load(keep_gil=True)
    for _ in range(20):
        arrays = [np.zeros(8) for _ in range(n)]
        pairs = [export(x) for x in arrays]
        addresses = (ctypes.c_void_p * n)(*(address for address, _ in pairs))
        deleters = (ctypes.c_void_p * n)(*(deleter for _, deleter in pairs))
        library.call_at_once(n, deleters, addresses)
        tn.zeros(0)
        assert all(x.flags.writeable for x in arrays)


def test_many_threads_of_c_let_go_of_one_array():
    n = 16
    library = native.load(keep_gil=True)
    for _ in range(20):
        x = np.zeros(8)
        a = tn.from_numpy(x)
        taken = [dl.take(a.__dlpack__()) for _ in range(n)]
        del a
        assert not x.flags.writeable
        addresses = (ctypes.c_void_p * n)(*(t.address for t in taken))
        deleters = (ctypes.c_void_p * n)(*(t._deleter for t in taken))
        library.call_at_once(n, deleters, addresses)
        tn.zeros(0)
        assert x.flags.writeable


def test_a_weak_reference_callback_sees_the_memory_alive():
    x = np.arange(8.0)
    seen = []
    a = tn.from_numpy(x)
    reference = weakref.ref(a, lambda _: seen.append(x.tolist()))
    del a
    assert seen == [np.arange(8.0).tolist()]
    assert reference() is None
    assert x.flags.writeable
