# SPDX-License-Identifier: Apache-2.0
"""A forked child may use and drop what its parent made; the parent sees nothing of it."""

import gc
import os
import signal
import threading

import child
import foreign_dlpack as dl
import numpy as np
import pytest

import tenon as tn

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
pytestmark = [pytestmark, pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")]
SECONDS = 600


def in_child(work):
    """work() in a forked child, which ends without Python's own end. Fails unless it returned."""
    pid = os.fork()
    if pid == 0:
        signal.alarm(SECONDS)
        code = 1
        try:
            work()
            code = 0
        finally:
            os._exit(code)
    _, status = os.waitpid(pid, 0)
    assert os.waitstatus_to_exitcode(status) == 0


def test_a_child_reads_writes_and_drops_without_touching_the_parent():
    x = np.arange(8.0)
    a = tn.from_numpy(x)
    b = tn.full(1 << 20, 3.0)
    view, memory, capsule = b.numpy(), memoryview(a), a.__dlpack__()
    arrays = [a, b, view, memory, capsule]

    def work():
        assert arrays[0].tolist() == list(range(8))
        arrays[0][0] = 99
        arrays[1][...] = 7
        assert view[5] == 7
        arrays.clear()
        c = tn.from_numpy(np.zeros(3))
        assert c.numpy().sum() == 0
        tn.from_dlpack(np.from_dlpack(tn.zeros(9)))

    in_child(work)
    assert a.tolist() == list(range(8))
    assert (view == 3).all()
    assert not x.flags.writeable
    del a, memory, capsule
    arrays.clear()
    assert x.flags.writeable


def test_the_flag_of_the_parent_s_numpy_array_is_the_parent_s():
    x = np.zeros(4)
    a = [tn.from_numpy(x)]

    def work():
        a.clear()
        assert x.flags.writeable
        x[0] = 1

    in_child(work)
    assert not x.flags.writeable
    a.clear()
    assert x.flags.writeable and x[0] == 0


def test_a_deleter_runs_once_in_each_process_that_drops():
    tensor = dl.Tensor((4,))
    a = [tn.from_dlpack(tensor)]

    def work():
        a.clear()
        assert tensor.deaths == 1

    in_child(work)
    assert tensor.deaths == 0
    a.clear()
    assert tensor.deaths == 1


def test_children_of_children():
    a = tn.full(100, 1.0)

    def work():
        a[...] = 2.0
        in_child(lambda: a.tolist() == [2.0] * 100 or os._exit(3))

    in_child(work)
    assert a.tolist() == [1.0] * 100


def test_a_child_that_ends_as_python_does():
    child.run(
        """
        import warnings; warnings.simplefilter("ignore", DeprecationWarning)
        x = np.zeros(4); a = tn.from_numpy(x); b = a.numpy(); c = a.__dlpack__(); d = tn.zeros(1 << 20)
        pid = os.fork()
        if pid == 0:
            d[...] = 1
            e = tn.from_numpy(np.ones(3))
            sys.exit(0)
        assert os.waitpid(pid, 0)[1] == 0
        assert d[0].item() == 0
        """
    )


@pytest.mark.slow
def test_forks_while_threads_exchange():
    """A lock that a thread of the parent holds at the fork must not be held in the child for ever."""
    child.run(
        """
        import signal, warnings
        warnings.simplefilter("ignore", DeprecationWarning)
        stop = False
        def work():
            x = np.zeros(4)
            while not stop:
                a = tn.from_numpy(x); b = a.numpy(); c = np.from_dlpack(a[1:]); d = tn.zeros(1 << 16).copy()
        threads = [threading.Thread(target=work) for _ in range(3)]
        for thread in threads: thread.start()
        for _ in range(30):
            pid = os.fork()
            if pid == 0:
                signal.alarm(30)
                a = tn.from_numpy(np.zeros(4)); b = a.numpy(); del a, b
                tn.from_dlpack(np.from_dlpack(tn.zeros(5))); tn.zeros(1 << 20).copy()
                os._exit(0)
            assert os.waitpid(pid, 0)[1] == 0
        stop = True
        for thread in threads: thread.join()
        """
    )


def test_forks_while_threads_of_c_let_go():
    child.native.path()
    child.run(
        """
        import signal, warnings
        warnings.simplefilter("ignore", DeprecationWarning)
        library = native.load()
        for _ in range(30):
            wakers, dones = [], []
            for _ in range(4):
                wake, waker = os.pipe(); done, doner = os.pipe()
                t = dl.take(tn.from_numpy(np.zeros(4)).__dlpack__())
                library.call_when_woken(t._deleter, t.address, wake, doner)
                wakers.append(waker); dones.append(done)
            for waker in wakers: os.write(waker, b"w")
            pid = os.fork()
            if pid == 0:
                signal.alarm(30)
                a = tn.from_numpy(np.zeros(4)); a.numpy(); tn.zeros(3); del a
                os._exit(0)
            assert os.waitpid(pid, 0)[1] == 0
            for done in dones: assert os.read(done, 1) == b"d"
            for fd in wakers + dones: os.close(fd)
        """
    )


def test_multiprocessing_by_fork():
    child.run(
        """
        import multiprocessing, warnings
        warnings.simplefilter("ignore", DeprecationWarning)
        context = multiprocessing.get_context("fork")
        a = tn.full(1000, 2.0)
        def work(queue): queue.put(float(a.numpy().sum())); queue.put(a[:3])
        queue = context.Queue()
        process = context.Process(target=work, args=(queue,))
        process.start()
        assert queue.get() == 2000.0
        assert queue.get().tolist() == [2.0] * 3
        process.join()
        assert process.exitcode == 0
        """
    )


def test_multiprocessing_by_spawn_takes_arrays_by_value(tmp_path):
    script = tmp_path / "program.py"
    script.write_text(
        "import multiprocessing\n"
        "import tenon as tn\n"
        "def work(a):\n"
        "    a[...] = 5\n"
        "    return a\n"
        "if __name__ == '__main__':\n"
        "    a = tn.zeros((2, 3), dtype='int16')\n"
        "    with multiprocessing.get_context('spawn').Pool(1) as pool:\n"
        "        b = pool.apply(work, (a,))\n"
        "    assert a.tolist() == [[0] * 3] * 2 and b.tolist() == [[5] * 3] * 2 and b.dtype == a.dtype\n"
        "    print('done')\n"
    )
    done = child.subprocess.run([child.sys.executable, script], capture_output=True, text=True, timeout=600)
    assert (done.returncode, done.stdout, done.stderr) == (0, "done\n", "")


def test_memory_of_a_view_of_another_thread_is_not_moved_out_in_a_child():
    a = tn.zeros(1 << 20, "u1")
    views, taken, end = [], threading.Event(), threading.Event()

    def hold():
        with a.write() as v:
            views.append(v[10:])
            taken.set()
            end.wait()

    thread = threading.Thread(target=hold)
    thread.start()
    taken.wait()

    def work():
        a[...] = 1  # the lease and its view are in nobody's way
        with pytest.raises(tn.LeaseConflict, match="from before the fork"):
            a.move_to_numpy()
        views.clear()
        gc.collect()

    in_child(work)
    end.set()
    thread.join()
