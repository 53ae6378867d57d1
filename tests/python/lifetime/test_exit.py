# SPDX-License-Identifier: Apache-2.0
"""A process ends with code 0, in silence and soon, whatever is alive and whoever lets go of it afterwards."""

import subprocess
import sys

import child
import programs
import pytest
import soak


@pytest.mark.slow
@pytest.mark.parametrize("kind", programs.ALIVE)
def test_a_process_ends_with_things_alive(kind):
    child.run(programs.ALIVE[kind])


def test_a_process_ends_with_everything_alive_at_once_and_memory_checked():
    """One process holds it all; CPython's debug allocator looks at every block that is freed."""
    parts = []
    for i, code in enumerate(programs.ALIVE.values()):
        lines = "\n    ".join(code.strip().splitlines())
        parts.append(f"def part{i}():\n    {lines}\n    return dict(locals())\nkept{i} = part{i}()")
    child.run("\n".join(parts), PYTHONMALLOC="debug")


@pytest.mark.slow
@pytest.mark.parametrize("kind", programs.ENDINGS)
def test_a_process_ends_whatever_goes_on(kind):
    child.run(programs.ENDINGS[kind])


@pytest.mark.slow
@pytest.mark.parametrize("kind", programs.DAEMONS)
def test_a_process_ends_under_daemon_threads(kind):
    """CPython stops them wherever they are, as soon as they want the GIL."""
    for _ in range(soak.times(30, 2)):
        child.run(programs.with_daemons(programs.DAEMONS[kind]))


@pytest.mark.slow
@pytest.mark.parametrize("kind", programs.NATIVE)
def test_a_process_ends_when_c_lets_go_at_the_end(kind):
    child.native.path()
    child.run(programs.NATIVE[kind])


def test_a_process_ends_while_a_closed_feed_drops_its_generator():
    """A thread of the feed drops it, and wants the GIL when Python has begun to end.

    It comes so late on one core, in 6 of 10 processes, if nothing has imported NumPy before.
    """
    program = """
import os
os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
import tenon as tn
def fill(batch):
    batch.data = batch.index
with tn.Feed(fill, tn.schema(data=("f4", (2,))), batches=2) as feed:
    assert len(list(feed)) == 2
"""
    for _ in range(soak.times(30, 8)):
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
        assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("kind", ["feed", "loader"])
def test_a_forked_worker_ends_in_silence_where_threading_knows_the_thread_that_forked_it(kind):
    """Programs such as ipykernel ask in each thread that forks for its Thread, and so make a dummy one."""
    if kind == "loader":
        pytest.importorskip("torch")
    program = f"""
import os, threading
os.register_at_fork(before=threading.current_thread)
import tenon as tn
from tenon._sync import engine
codes = os.pipe()
engine.call_at_process_end(lambda: os.write(codes[1], b"e"))
def fill(batch):
    batch.x = batch.index
if {kind == "feed"}:
    with tn.Feed(fill, {{"x": ("f4", (2,))}}, batches=4, workers=2, processes="fork") as feed:
        assert len(list(feed)) == 4
else:
    import torch
    data = torch.utils.data.TensorDataset(torch.arange(40.0))
    loader = tn.DataLoader(data, batch_size=10, num_workers=2, multiprocessing_context="fork")
    assert len(list(loader)) == 4
os.close(codes[1])
assert os.read(codes[0], 10) == b"ee"  # what is to be done at the end of a process was done
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("code", [0, 3])
def test_sys_exit_keeps_its_code(code):
    child.run(
        f"a = tn.from_numpy(np.zeros(4)); b = a.numpy(); last_line(); sys.exit({code})",
        expect=code,
        ends_by_itself=False,
    )


def test_os_exit_ends_at_once():
    child.run(
        "a = tn.from_numpy(np.zeros(4)); b = memoryview(a); last_line(); os._exit(7)",
        expect=7,
        ends_by_itself=False,
    )


def test_exit_from_a_thread_and_from_a_deleter():
    child.run(
        """
        def stop(pointer):
            last_line()
            os._exit(5)
        raw = (ctypes.c_double * 4)()
        a = tn.from_pointer(ctypes.addressof(raw), (4,), "f8", owner=raw, deleter=stop)
        b = a[1:]
        threading.Thread(target=lambda: globals().pop("b")).start()
        time.sleep(0.05)
        del a
        time.sleep(60)
        """,
        expect=5,
        ends_by_itself=False,
    )


def test_deleters_in_python_run_or_not_at_the_end_but_never_twice():
    lines = child.run(
        """
        raw = (ctypes.c_double * 4)()
        def deleter(pointer, write=os.write):
            write(1, b"deleted\\n")
        kept = tn.from_pointer(ctypes.addressof(raw), (4,), "f8", owner=raw, deleter=deleter)
        view = kept.numpy()
        """
    )
    assert lines.count("deleted") <= 1


def test_a_signal_during_an_exchange_ends_as_a_signal_does():
    child.run(
        """
        import signal
        x = np.zeros(4)
        def stop(*_): raise SystemExit(9)
        signal.signal(signal.SIGALRM, stop)
        signal.setitimer(signal.ITIMER_REAL, 0.2)
        last_line()
        while True: tn.from_numpy(x).numpy(); memoryview(tn.zeros(3)); np.from_dlpack(tn.zeros(2))
        """,
        expect=9,
        ends_by_itself=False,
    )


def test_the_end_is_silent_while_a_graph_of_torch_keeps_the_memory_of_an_ended_block():
    pytest.importorskip("torch")
    child.run(
        """
        import torch
        a = tn.zeros(3)
        with a.write() as v:
            t = torch.from_numpy(v)
            y = (t * torch.ones(3, requires_grad=True)).sum()
        """
    )


def test_importing_tenon_imports_no_framework_and_ends():
    names = ("torch", "jax", "onnxruntime", "pyarrow", "ml_dtypes")
    (loaded,) = child.run(f"print([name for name in {names} if name in sys.modules])")
    assert loaded == "[]"


def test_the_package_without_numpy_loaded():
    """What needs no NumPy works before it is imported, and the end is as quiet."""
    code = """
import sys, time
import tenon as tn
a = tn.zeros(4); b = a[1:]; m = memoryview(a); c = tn.from_buffer(bytearray(8), "u1"); d = a.__dlpack__()
a[0] = 1; a.tolist(); a.copy()
assert "numpy" not in sys.modules
"""
    done = child.subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=600)
    assert (done.returncode, done.stderr) == (0, "")
