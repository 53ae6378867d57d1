# SPDX-License-Identifier: Apache-2.0
"""The copy meter counts every write of a payload once, however it is made, and nothing else."""

import mmap
import os
import subprocess
import sys
import threading

import numpy as np
import pytest

from tenon.demo import _copy_meter as copy_meter
from tenon.demo._copy_meter import CopyMeter, payloads_written, why_unavailable

PAYLOAD = 64 << 20  # bytes: the pages that a full test session writes beside it must stay far below 1 %

needs_kernel = pytest.mark.skipif(why_unavailable() is not None, reason=str(why_unavailable()))


def payloads(work, control=lambda: None):
    """The interpreter's own pages are a few hundredths of a payload; a control cancels them."""
    return payloads_written(work, PAYLOAD, control=control, rounds=3)


@pytest.fixture
def x():
    return np.ones(PAYLOAD, np.uint8)


@pytest.mark.slow
@needs_kernel
def test_filling_in_place_is_one_payload(x):
    assert payloads(lambda: x.fill(3)) == pytest.approx(1, abs=0.02)


@pytest.mark.slow
@needs_kernel
@pytest.mark.parametrize(
    "copy",
    [np.array, np.ndarray.tobytes, np.ndarray.copy, lambda x: x + 1, lambda x: np.stack([x])],
    ids=["np.array", "tobytes", "copy", "arithmetic", "np.stack"],
)
def test_a_copy_is_one_more_payload(x, copy):
    def fill_and_copy():
        x.fill(4)
        return copy(x)

    assert payloads(fill_and_copy) == pytest.approx(2, abs=0.02)


@pytest.mark.slow
@needs_kernel
def test_a_copy_by_torch_is_one_payload(x):
    torch = pytest.importorskip("torch")
    tensor = torch.from_numpy(x)
    for copy in (torch.clone, lambda t: torch.stack([t])):
        assert payloads(lambda copy=copy: copy(tensor)) == pytest.approx(1, abs=0.02)


@needs_kernel
def test_views_and_reads_write_nothing(x):
    assert payloads(lambda: x.view(np.float32)[1:].reshape(-1, 1)) == pytest.approx(0, abs=0.02)
    assert payloads(lambda: int(x.sum(dtype=np.uint8))) == pytest.approx(0, abs=0.02)


@needs_kernel
def test_reading_fresh_memory_writes_nothing():
    def read_fresh():
        memory = mmap.mmap(-1, PAYLOAD, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        return memory, memory.find(b"x")

    assert payloads(read_fresh) == pytest.approx(0, abs=0.02)


@pytest.mark.slow
@needs_kernel
@pytest.mark.parametrize("flags", [mmap.MAP_PRIVATE, mmap.MAP_SHARED], ids=["private", "shared"])
@pytest.mark.parametrize("when", ["before", "during"])
def test_private_and_shared_mappings_count_whenever_they_were_made(flags, when):
    def make():
        return mmap.mmap(-1, PAYLOAD, flags=flags | mmap.MAP_ANONYMOUS)

    old = make()

    def write():
        memory = old if when == "before" else make()
        np.frombuffer(memory, np.uint8)[:] = 7
        return memory

    assert payloads(write) == pytest.approx(1, abs=0.02)


@pytest.mark.slow
@needs_kernel
def test_writes_of_other_threads_count(x):
    def write(array=x):
        thread = threading.Thread(target=array.fill, args=(9,))
        thread.start()
        thread.join()

    assert payloads(write, control=lambda: write(x[:1])) == pytest.approx(1, abs=0.02)


@needs_kernel
def test_writes_of_the_kernel_count(x):
    descriptor = os.open("/dev/zero", os.O_RDONLY)
    try:
        assert payloads(lambda: os.readv(descriptor, [x])) == pytest.approx(1, abs=0.02)
    finally:
        os.close(descriptor)


@needs_kernel
def test_writes_before_start_are_forgotten(x):
    with CopyMeter() as meter:
        x.fill(1)
        meter.start()
        assert meter.stop() < 0.2 * PAYLOAD
        x.fill(2)
        assert meter.stop() > PAYLOAD


@needs_kernel
def test_a_page_written_twice_counts_once(x):
    with CopyMeter() as meter:
        meter.start()
        x.fill(1)
        x.fill(2)
        assert meter.stop() == pytest.approx(PAYLOAD, rel=0.2)


@pytest.mark.slow
@needs_kernel
@pytest.mark.parametrize("capacity", [1 << 16, 100], ids=["one answer", "many answers"])
def test_scattered_pages_count_once_each(monkeypatch, capacity):
    """More stretches of memory than the kernel looks at in one go."""
    monkeypatch.setattr(copy_meter, "_MAX_REGIONS", capacity)
    memory = np.frombuffer(mmap.mmap(-1, 2 * PAYLOAD), np.uint8).reshape(-1, 2, mmap.PAGESIZE)
    memory[:] = 1

    def write_every_other_page():
        memory[:, 0] = 2

    assert payloads(write_every_other_page) == pytest.approx(1, abs=0.1)


@needs_kernel
def test_one_meter_at_a_time_and_the_next_one_works_after_close(x):
    with CopyMeter() as meter:
        with pytest.raises(OSError, match="another copy meter"):
            CopyMeter()
        meter.start()
        x.fill(1)
        assert meter.stop() >= PAYLOAD
    meter.close()
    x.fill(5)
    assert payloads(lambda: x.fill(6)) == pytest.approx(1, abs=0.02)


@pytest.mark.slow
@needs_kernel
def test_the_result_of_the_work_lives_until_it_is_counted_and_not_longer(x):
    alive = []

    class Result:
        def __init__(self):
            assert not alive
            alive.append(1)
            self.copy = x.copy()

        def __del__(self):
            alive.pop()

    assert payloads(Result) == pytest.approx(1, abs=0.02)
    assert not alive


@needs_kernel
def test_an_error_in_the_work_closes_the_meter():
    with pytest.raises(ZeroDivisionError):
        payloads(lambda: 1 // 0)
    CopyMeter().close()


def test_where_the_kernel_refuses_the_reason_is_told():
    """With no file descriptor left, userfaultfd is refused."""
    code = (
        "import resource, os, tenon.demo._copy_meter as m\n"
        "m.why_unavailable()\n"
        "used = os.open('/', os.O_RDONLY); os.close(used)\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (used, used))\n"
        "print(m.why_unavailable())\n"
        "try: m.payloads_written(bytes, 1)\n"
        "except OSError as e: print('OSError')\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    reason, error = done.stdout.splitlines()
    assert "userfaultfd" in reason or "page-write accounting" in reason
    assert error == "OSError"
