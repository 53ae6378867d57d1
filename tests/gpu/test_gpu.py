# SPDX-License-Identifier: Apache-2.0
"""Device memory on a real GPU; `make test-gpu` runs it, on a machine with a driver of CUDA. Without a device
the run fails. PyTorch, CuPy and JAX take part where their builds for CUDA are installed.

Kernels that are delayed on purpose make a missing wait visible as wrong values."""

import gc
import multiprocessing
import subprocess
import sys
import time
import traceback
from types import SimpleNamespace

import numpy as np
import pytest

import tenon as tn
from tenon import _core

N = 1 << 20
SCHEMA = tn.schema(data=("f4", (64, 1000)), label=("i8", (64,)))


def fill(batch):
    batch.data[...] = batch.index
    batch.label[...] = batch.epoch


@pytest.fixture(autouse=True, scope="session")
def has_device():
    assert _core.device_count() > 0, "there is no CUDA device"


@pytest.fixture(autouse=True)
def the_device_gets_its_memory_back():
    """Also when a test fails, so that the next one begins with none."""
    yield
    if hasattr(sys, "last_traceback"):  # of a failed test, whose variables it keeps
        traceback.clear_frames(sys.last_traceback)
    gc.collect()
    tn.waitall()
    deadline = time.monotonic() + 60
    while any(_core.device_statistics()[name] for name in ("device_nbytes", "pinned_nbytes", "submitted")):
        assert time.monotonic() < deadline, _core.device_statistics()
        time.sleep(0.01)
        gc.collect()


@pytest.fixture(scope="module")
def torch():
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip(f"PyTorch {torch.__version__} sees no CUDA device")
    return torch


@pytest.fixture
def delayed(torch):
    """A stream that is busy for about a tenth of a second."""
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(200_000_000)
    yield stream
    stream.synchronize()


@pytest.mark.parametrize("dtype", ["u1", "i2", "f4", "c16"])
@pytest.mark.parametrize(
    "index", [np.s_[:], np.s_[1:], np.s_[::2], np.s_[:, 3:7], np.s_[::3, 1::2], np.s_[-1]]
)
def test_copies_keep_every_element(dtype, index):
    x = np.random.default_rng(1).integers(0, 100, (33, 40)).astype(dtype)
    for device in ("cuda:0", "cuda_host"):
        there = tn.array(x, device=device)
        assert np.array_equal(there[index].to("cpu").numpy(), x[index])
        there[index] = tn.array(x[index] + 1)
        expected = x.copy()
        expected[index] += 1
        assert np.array_equal(there.to("cpu").numpy(), expected)
        assert np.array_equal(there.copy().T.to("cpu").numpy(), expected.T)


@pytest.mark.parametrize("source", ["cpu", "cuda_host"])
def test_pushed_copies_run_in_order(source):
    host = [tn.full(N, i, "i4", source) for i in range(3)]
    there, other, back = tn.empty(N, "i4", "cuda"), tn.empty(N, "i4", "cuda"), tn.empty(N, "i4", "cuda_host")
    for k in range(60):
        tn.push(tn.copy, host[k % 3], tn.overwrite(there))
        tn.push(tn.copy, there, tn.overwrite(other))
        op = tn.push(tn.copy, other, tn.overwrite(back))
        if k % 7 == 0:
            op.wait()
            assert (back.numpy() == k % 3).all()


@pytest.mark.parametrize("options", [{}, {"workers": 2, "processes": "fork"}, {"slots": 2}])
def test_a_feed_delivers_on_the_device(options):
    with tn.Feed(fill, SCHEMA, batches=100, device="cuda:0", device_slots=4, **options) as feed:
        for epoch in range(2):
            kept = []
            for batch in feed:
                kept.append(batch)
                if len(kept) == 3:
                    oldest = kept.pop(0)
                    assert (oldest.data.to("cpu").numpy() == oldest.index).all()
                    assert (oldest.label.to("cpu").numpy() == epoch).all()
                    del oldest
            assert kept[-1].index == 99
            del kept, batch
        assert feed.stats().host_memory in ("registered", "staged"), feed.stats().host_memory


def test_spawned_processes_share_an_array():
    a = tn.zeros((4, N), "i4", "cuda:0", shared=True)
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        pool.starmap(tn.NDArray.__setitem__, [(a[i], ..., i) for i in range(4)])
        assert [pool.apply(float, (a[i, N - 1],)) for i in range(4)] == [0, 1, 2, 3]
    assert (a.to("cpu").numpy() == np.arange(4)[:, None]).all()


def test_another_process_waits_for_a_delayed_kernel(torch, delayed):
    a = tn.zeros(N, "i4", "cuda:0", shared=True)
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        for k in range(1, 5):
            with torch.cuda.stream(delayed), a.write() as v:
                torch.cuda._sleep(20_000_000)
                tensor = torch.from_dlpack(v)
                tensor.fill_(k)
                del tensor
            assert pool.apply(float, (a[N - 1],)) == k


def test_a_shared_array_is_pinned_where_it_lies():
    a, there = tn.full(N, 5, "i4"), tn.empty(N, "i4", "cuda:0")
    for host in (a, tn.zeros(N, "i4", shared=True)):
        with tn.pinned(host):
            assert _core.device_statistics()["registered_nbytes"] >= 4 * N
            tn.push(tn.copy, host, tn.overwrite(there))
        assert there.tolist() == host.tolist()


def test_the_memory_of_a_pinned_pool_is_used_again_after_the_copies_of_pytorch(torch, delayed):
    pool = tn.TensorPool(4 * N, pinned=True)
    for k in range(5):
        tensor = torch.from_dlpack(pool.empty(N, "i4"))  # waits until the copy before has ended
        assert tensor.is_pinned()
        tensor.fill_(k)
        with torch.cuda.stream(delayed):
            torch.cuda._sleep(20_000_000)
            there = tensor.to("cuda", non_blocking=True)
        del tensor
        if k % 2:
            x = pool.empty(N, "i4")
            x[...] = -1
            del x
        delayed.synchronize()
        assert (there == k).all()


def test_an_announced_capture_stays_valid(torch):
    pool, graph = tn.TensorPool(4 * N, pinned=True), torch.cuda.CUDAGraph()
    x, y = pool.empty(N, "i4"), torch.zeros(N, device="cuda")
    with tn.graph_capture(), torch.cuda.graph(graph):
        del x
        y += 1
        time.sleep(0.05)
    graph.replay()
    assert pool.empty(N, "i4") is not None  # waits for the room
    assert y.tolist() == [1] * N


def test_memory_that_does_not_fit_is_an_error():
    with pytest.raises(MemoryError, match="cuda:0"):
        tn.zeros(1 << 44, "u1", device="cuda")
    assert tn.zeros(4, device="cuda").tolist() == [0] * 4


def test_torch_shares_the_memory(torch):
    a = tn.array(np.arange(6, dtype="f4"), device="cuda")
    t = torch.from_dlpack(a)
    assert t.device == torch.device("cuda:0") and t.data_ptr() == a.data_ptr
    t += 1
    del t
    assert a.tolist() == [1, 2, 3, 4, 5, 6]
    own = torch.arange(6, device="cuda")
    b = tn.from_dlpack(own)
    assert b.device == "cuda:0" and b.data_ptr == own.data_ptr() and b.tolist() == [0, 1, 2, 3, 4, 5]


def test_a_delayed_kernel_of_torch_comes_before_later_uses(torch, delayed):
    a = tn.zeros(N, "i4", "cuda")
    with torch.cuda.stream(delayed):
        t = torch.from_dlpack(a)
        t.fill_(7)
        del t  # long before the fill has run
    assert (a.to("cpu").numpy() == 7).all()


def test_a_kernel_of_torch_comes_after_a_pushed_copy(torch):
    a = tn.zeros(N, "i4", "cuda")
    host = tn.full(N, 5, "i4", "cuda_host")
    for _ in range(20):
        a[...] = 0
        tn.push(tn.copy, host, tn.overwrite(a))
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            t = torch.from_dlpack(a)
            total = t.sum(dtype=torch.int64)
            del t
        stream.synchronize()
        assert total.item() == 5 * N


def test_memory_of_torch_is_used_after_its_kernels(torch, delayed):
    with torch.cuda.stream(delayed):
        own = torch.zeros(N, dtype=torch.int32, device="cuda")
        torch.cuda._sleep(200_000_000)
        own.fill_(3)
        a = tn.from_dlpack(own)
    assert (a.to("cpu").numpy() == 3).all()


def test_a_delayed_step_keeps_its_batch(torch, delayed):
    sums = []
    with tn.Feed(fill, SCHEMA, batches=60) as feed, torch.cuda.stream(delayed):
        for data, _ in feed.torch(device="cuda"):
            torch.cuda._sleep(5_000_000)
            sums.append(data.double().mean())
            del data
    delayed.synchronize()
    assert [round(float(value)) for value in sums] == list(range(60))


def test_a_capture_of_a_graph_is_not_broken(torch):
    a = tn.zeros(N, "f4", "cuda")
    t = torch.from_dlpack(a)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        t += 1
        other = tn.zeros(16, device="cuda")  # calls of ours meanwhile
        other[...] = tn.ones(16)
    for _ in range(3):
        graph.replay()
    torch.cuda.synchronize()
    del t, graph
    assert (a.to("cpu").numpy() == 3).all()


def test_a_tensor_trains(torch):
    model = torch.nn.Linear(1000, 4).cuda()
    optimizer = torch.optim.SGD(model.parameters(), 1e-6)
    with tn.Feed(fill, SCHEMA, batches=20) as feed:
        for data, label in feed.torch(device="cuda"):
            loss = torch.nn.functional.cross_entropy(model(data), label)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            del data, label
    assert torch.isfinite(loss).item()


def test_cupy_shares_the_memory_both_ways():
    cupy = pytest.importorskip("cupy")
    a = tn.array(np.arange(6, dtype="f4"), device="cuda")
    for taken in (cupy.from_dlpack(a), cupy.asarray(a)):  # DLPack, and the CUDA array interface
        assert taken.data.ptr == a.data_ptr
        taken += 1
        cupy.cuda.get_current_stream().synchronize()
        del taken
    assert a.tolist() == [2, 3, 4, 5, 6, 7]

    own = cupy.arange(6)
    stream = cupy.cuda.Stream(non_blocking=True)
    with stream:
        for _ in range(100):  # busy for a while
            cupy.arange(1 << 24).sum()
        own *= 2
        own //= 2
    interface = {**own.__cuda_array_interface__, "stream": stream.ptr, "version": 3}
    for source in (own, SimpleNamespace(__cuda_array_interface__=interface)):
        b = tn.from_dlpack(source)
        assert b.data_ptr == own.data.ptr and b.tolist() == [0, 1, 2, 3, 4, 5]


def test_managed_memory_keeps_its_device_type():
    cupy = pytest.importorskip("cupy")
    own = cupy.ndarray(N, "i4", cupy.cuda.malloc_managed(4 * N))
    own[...] = 3
    a = tn.from_dlpack(own)
    assert a.device == "cuda_managed" and a.data_ptr == own.data.ptr
    assert a.__dlpack_device__() == own.__dlpack_device__() == (13, 0)
    assert (a.to("cpu").numpy() == 3).all() and (a.to("cuda:0").to("cpu").numpy() == 3).all()
    a[...] = tn.full(N, 4, "i4")
    assert int(own.min()) == int(own.max()) == 4
    back = cupy.from_dlpack(a)
    assert back.data.ptr == own.data.ptr


def test_jax_shares_the_memory_both_ways():
    jax = pytest.importorskip("jax")
    if jax.default_backend() != "gpu":
        pytest.skip("JAX has no GPU here")
    a = tn.array(np.arange(6, dtype="f4"), device="cuda")
    taken = jax.dlpack.from_dlpack(a)
    assert taken.unsafe_buffer_pointer() == a.data_ptr and float(taken.sum()) == 15
    b = tn.from_dlpack(jax.numpy.arange(6) * 2)
    assert b.device == "cuda:0" and b.tolist() == [0, 2, 4, 6, 8, 10]
    with tn.Feed(fill, tn.schema(data=("f4", (64, 1000)), label=("i4", (64,))), batches=10) as feed:
        ranges = [(float(data.min()), float(data.max())) for data, _ in feed.jax(device="cuda:0")]
    assert ranges == [(index, index) for index in range(10)]


EXIT = """
import ctypes, sys, time
import tenon as tn

kind, n, pause = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
device = tn.zeros((1 << 22,), "f4", device="cuda:0")
host = tn.zeros((1 << 22,), "f4", device="cuda_host") if kind == "pinned" else tn.zeros((1 << 22,), "f4")
shared = tn.zeros((1 << 20,), "f4", device="cuda:0", shared=True)  # also ends with the process
for _ in range(n):
    tn.push(tn.copy, host, tn.overwrite(device))
    tn.push(tn.copy, device, tn.overwrite(host))
time.sleep(pause)
ctypes.CDLL(None).exit(7)  # as the end of main() in C: Python does not wait for the copies
"""


@pytest.mark.parametrize("kind", ["host", "pinned"])
@pytest.mark.parametrize(("n", "pause"), [(1, 0.0), (10, 0.02), (100, 0.0), (100, 0.002)])
def test_a_program_may_exit_while_copies_are_queued(kind, n, pause):
    command = (sys.executable, "-c", EXIT, kind, str(n), str(pause))
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stderr) == (7, "")
