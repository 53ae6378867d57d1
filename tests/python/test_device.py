# SPDX-License-Identifier: Apache-2.0
"""Arrays on devices, in programs that open the fake CUDA driver of tests/device. No GPU takes part.

Memory on a fake device faults when the host touches it, copies start late, and a seed draws the order of the
streams: so a missing wait gives wrong values or ends the program. Each program runs in a process of its own,
because a driver is opened once.
"""

import fcntl
import functools
import os
import pathlib
import subprocess
import sys
import tempfile
import textwrap

import pytest
import soak

ROOT = pathlib.Path(__file__).parents[2]
PRELUDE = """
import ctypes, gc, os, sys, threading, time
sys.path.insert(0, {peers!r})
import numpy as np
import tenon as tn
from tenon import _core
import foreign_dlpack as dl

driver = ctypes.CDLL(os.environ.get("TENON_CUDA_DRIVER"), ctypes.RTLD_GLOBAL)

class Stream:
    \"\"\"A consumer's stream: a non-blocking one of the fake driver. tn has made the context.\"\"\"
    def __init__(self):
        context = ctypes.c_void_p()
        assert driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0
        assert driver.cuCtxPushCurrent_v2(context) == 0
        handle = ctypes.c_void_p()
        assert driver.cuStreamCreate(ctypes.byref(handle), 1) == 0
        self.handle = handle.value
    def fill(self, taken, value, n):
        assert driver.cuMemsetD32Async(ctypes.c_ulonglong(taken.data), value, ctypes.c_size_t(n),
                                       ctypes.c_void_p(self.handle)) == 0
    def copy(self, target, source, nbytes):
        assert driver.cuMemcpyAsync(ctypes.c_ulonglong(target), ctypes.c_ulonglong(source),
                                    ctypes.c_size_t(nbytes), ctypes.c_void_p(self.handle)) == 0
    def synchronize(self):
        assert driver.cuStreamSynchronize(ctypes.c_void_p(self.handle)) == 0
"""


@functools.cache
def fake_driver():
    """The path of the fake driver: that of the C++ tests, or one that is built here, once for all."""
    built = ROOT / "build/dev/tests/device/libtenon_fake_cuda.so"
    if built.exists():
        return built
    sources = sorted((ROOT / "tests/device").glob("*.cc"))
    sources = [path for path in sources if not path.stem.endswith("_test")]
    library = pathlib.Path(tempfile.gettempdir()) / f"tenon-fake-cuda-{os.getuid()}" / "libtenon_fake_cuda.so"
    library.parent.mkdir(mode=0o700, exist_ok=True)
    with (library.parent / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        newest = max(path.stat().st_mtime for path in (ROOT / "tests/device").iterdir())
        if not library.exists() or library.stat().st_mtime < newest:
            compiler = os.environ.get("CXX", "c++")
            options = ["-std=c++20", "-O1", "-shared", "-fPIC", "-pthread", f"-I{ROOT / 'src'}"]
            subprocess.run([compiler, *options, *sources, "-o", library], check=True)
    return library


def run(program, settings="", driver=None, expect=0):
    """What the program printed."""
    code = PRELUDE.format(peers=str(ROOT / "tests/python/peers")) + textwrap.dedent(program)
    path = str(fake_driver()) if driver is None else driver
    environment = {**os.environ, "TENON_CUDA_DRIVER": path, "TENON_FAKE_CUDA": f"delay_us=300,{settings}"}
    done = subprocess.run(
        [sys.executable, "-W", "ignore::DeprecationWarning", "-c", code],  # of a fork beside threads
        capture_output=True,
        text=True,
        timeout=600,
        env=environment,
        check=False,
    )
    assert done.returncode == expect, f"exit {done.returncode}\n{done.stdout}\n{done.stderr}"
    assert done.stderr == ""
    return done.stdout.split("\n")[:-1]


@pytest.mark.parametrize("seed", soak.times(range(1, 4), [1]))
def test_arrays_go_to_devices_and_come_back(seed):
    run(
        """
        x = np.arange(12, dtype="f4").reshape(3, 4)
        for device in ("cuda", "cuda:1", "cuda_host"):
            a = tn.array(x, device=device)
            assert a.device == ("cuda:0" if device == "cuda" else device), a.device
            assert a.to(a.device) is a
            assert a.to("cpu").tolist() == x.tolist()
            assert a.T.to("cpu").tolist() == x.T.tolist()
            assert a[1].to("cpu").tolist() == x[1].tolist()
            assert a[:, 1:3].to("cpu").tolist() == x[:, 1:3].tolist()
            assert tn.zeros((2, 2), "i8", device).to("cpu").tolist() == [[0, 0], [0, 0]]
            assert tn.full(3, 7, "u1", device).to("cpu").tolist() == [7, 7, 7]
            assert tn.ones_like(a).device == ("cpu" if device == "cuda_host" else a.device)
            assert device == "cuda_host" or a.copy().device == a.device
            assert a.tolist() == x.tolist() and a.item(1, 2) == 6.0 and a.tobytes() == x.tobytes()
            a[1:] = -1
            a[0, :2] = np.array([5, 6], "f4")
            assert a.to("cpu").tolist() == [[5, 6, 2, 3]] + [[-1] * 4] * 2
        first, second = tn.array(x, device="cuda:0"), tn.zeros((3, 4), device="cuda:1")
        second[...] = first
        assert second.to("cpu").tolist() == x.tolist()
        del a, first, second
        assert _core.device_statistics()["device_nbytes"] == 0, _core.device_statistics()
        """,
        f"devices=2,seed={seed}",
    )


def test_the_text_of_an_array_on_a_device_names_the_device_and_reads_nothing():
    [text] = run("print(repr(tn.zeros((2, 3), device='cuda')))")
    assert text == "<tenon.NDArray of shape (2, 3), dtype=float32, device='cuda:0'>"


def test_what_the_host_cannot_do_is_an_error_with_a_way_out():
    run(
        """
        a = tn.zeros(4, device="cuda")
        for use in (lambda: np.asarray(a), lambda: memoryview(a), lambda: a + 1, lambda: a.numpy()):
            try:
                use()
            except (BufferError, ValueError) as error:
                assert "cuda:0" in str(error) and "to('cpu')" in str(error).replace('"', "'"), error
            else:
                raise AssertionError(use)
        try:
            a.astype("i4")
        except TypeError as error:
            assert "cuda:0" in str(error), error
        else:
            raise AssertionError
        for make, kind, text in [
            (lambda: tn.zeros(4, device="cuda:7"), ValueError, "cuda:7"),
            (lambda: tn.zeros(4, device="gpu"), ValueError, "gpu"),
            (lambda: tn.zeros(4, device=0), TypeError, "device"),
            (lambda: tn.zeros(4, device="cuda_host", shared=True), ValueError, "cannot be on cuda_host"),
            (lambda: tn.zeros(1 << 40, "u1", device="cuda"), MemoryError, "cuda:0"),
            (lambda: tn.push(np.negative, a, out=tn.overwrite(a)), TypeError, "tn.copy"),
        ]:
            try:
                make()
            except kind as error:
                assert text in str(error), error
            else:
                raise AssertionError(text)
        """
    )


def test_without_a_driver_the_error_says_what_was_looked_for():
    code = """
    import tenon as tn
    try:
        tn.zeros(3, device="cuda")
    except FileNotFoundError as error:
        print(error)
    assert tn.zeros(3).device == "cpu"
    def fill(batch):
        batch.data = batch.index
    schema = tn.schema(data=("f4", (2,)))
    try:
        tn.Feed(fill, schema, device="cuda:0")
    except FileNotFoundError as error:
        print(error)
    with tn.Feed(fill, schema, batches=2) as feed:
        assert len(list(feed)) == 2
    """
    environment = {**os.environ, "TENON_CUDA_DRIVER": "/nowhere/libcuda.so.1"}
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        capture_output=True,
        text=True,
        env=environment,
        check=True,
    )
    lines = done.stdout.splitlines()
    assert len(lines) == 2, lines
    for line in lines:
        assert "/nowhere/libcuda.so.1" in line and "TENON_CUDA_DRIVER" in line


@pytest.mark.parametrize("seed", soak.times(range(1, 7), [1, 2, 3]))
def test_pushed_copies_run_in_order_by_events(seed):
    run(
        """
        n = 1 << 14
        host = [tn.full(n, i, "i4", "cuda_host") for i in range(3)]
        there = [tn.empty(n, "i4", f"cuda:{i % 2}") for i in range(4)]
        back = tn.empty(n, "i4", "cuda_host")
        for k in range(20):
            tn.push(tn.copy, host[k % 3], tn.overwrite(there[0]))
            for i in range(3):
                tn.push(tn.copy, there[i], tn.overwrite(there[i + 1]))
            op = tn.push(tn.copy, there[3], tn.overwrite(back))
            if k % 5 == 4:
                op.wait()
                values = set(back.numpy().tolist())
                assert values == {k % 3}, (k, values)
        tn.waitall()
        del op, there
        gc.collect()
        end = time.monotonic() + 60
        while _core.device_statistics()["submitted"] != 0:  # falls after waitall() has seen the last op
            assert time.monotonic() < end
            time.sleep(0.001)
        """,
        f"devices=2,seed={seed}",
    )


@pytest.mark.parametrize("seed", soak.times(range(1, 7), [1, 2, 3]))
def test_a_consumer_on_a_stream_and_tenon_take_turns(seed):
    run(
        """
        n = 1 << 14
        a = tn.zeros(n, "i4", "cuda")
        stream = Stream()
        for k in range(1, 8):
            tn.push(tn.copy, tn.full(n, -k, "i4"), tn.overwrite(a))
            taken = dl.take(a.__dlpack__(stream=stream.handle, max_version=(1, 3)))
            assert taken.device == (2, 0)
            there = tn.empty(n, "i4", "cuda_host")
            stream.copy(there.data_ptr, taken.data, n * 4)       # sees the pushed copy
            stream.fill(taken, k, n)
            taken.release()                                      # before the fill has run
            assert set(a.to("cpu").tolist()) == {k}
            stream.synchronize()
            assert set(there.tolist()) == {-k}, (k, set(there.tolist()))
        """,
        f"seed={seed}",
    )


def test_a_tensor_that_lives_is_a_view():
    run(
        """
        a = tn.zeros(8, "i4", "cuda")
        stream = Stream()
        taken = dl.take(a.__dlpack__(stream=stream.handle, max_version=(1, 3)))
        try:
            tn.push(tn.copy, tn.ones(8, "i4"), tn.overwrite(a))
        except tn.LeaseConflict as error:
            assert "taken at" in str(error)
        else:
            raise AssertionError
        op = tn.push(tn.copy, tn.ones(8, "i4"), tn.overwrite(a), on_conflict="wait")
        stream.fill(taken, 5, 8)
        taken.release()
        op.wait()
        assert a.to("cpu").tolist() == [1] * 8
        """
    )


def test_pytorch_gets_a_copy_of_a_readonly_array_unless_the_caller_promises():
    run("""
        from types import ModuleType, SimpleNamespace
        got = []
        torch = sys.modules["torch"] = ModuleType("torch")
        torch.Tensor, torch.from_dlpack = object, got.append
        torch.cuda = SimpleNamespace(current_stream=lambda device: SimpleNamespace(cuda_stream=0))
        asked = {"__name__": "torch.utils.dlpack"}
        exec("def ask(x, **options): return x.__dlpack__(max_version=(1, 0), stream=1, **options)", asked)

        a = tn.zeros(4, device="cuda:0")
        fixed = a.readonly()
        copy, shared = fixed.torch(), fixed.torch(trust=True)
        copy, shared = got[0], dl.take(got[1])
        assert copy.writable and copy.data_ptr != a.data_ptr
        assert shared.data == a.data_ptr and shared.flags == 1
        copied = dl.take(asked["ask"](fixed))
        assert copied.data not in (a.data_ptr, None) and copied.flags == 2
        try:
            asked["ask"](fixed, copy=False)
        except BufferError as error:
            assert "trust=True" in str(error)
        shared.release()
        copied.release()
    """)


def test_spawned_processes_share_an_array_on_a_device():
    run(
        """
        import multiprocessing
        a = tn.zeros((4, 300), "i4", "cuda:0", shared=True)
        assert a.shared and a.device == "cuda:0" and "device='cuda:0'" in repr(a), repr(a)
        with multiprocessing.get_context("spawn").Pool(2) as pool:
            pool.starmap(tn.NDArray.__setitem__, [(a[i], ..., i) for i in range(4)])
            assert [pool.apply(float, (a[i, 299],)) for i in range(4)] == [0, 1, 2, 3]
        assert a.tolist() == [[i] * 300 for i in range(4)]
        assert not a.copy().shared and a.copy().device == "cuda:0"
        try:
            a.__dlpack__(stream=1)
        except tn.LeaseConflict as error:
            assert "a view needs a lease" in str(error), error
        else:
            raise AssertionError
        """
    )


def test_a_process_waits_for_the_work_that_another_one_left_on_a_stream():
    run(
        """
        import pickle, subprocess
        n = 1 << 14
        a = tn.zeros(n, "i4", "cuda", shared=True)
        stream = Stream()
        code = ("import pickle, sys, tenon as tn; a = pickle.load(sys.stdin.buffer); print(flush=True); "
                "[print(sorted(set(a.tolist())), flush=True) for line in sys.stdin.buffer]")
        line = os.linesep.encode()
        reader = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        reader.stdin.write(pickle.dumps(a))
        reader.stdin.flush()
        reader.stdout.readline()
        for k in range(1, 6):
            with a.write() as v:
                taken = dl.take(v.__dlpack__(stream=stream.handle, max_version=(1, 3)))
                stream.fill(taken, k, n)
                taken.release()                                 # before the fill has run
            reader.stdin.write(line)
            reader.stdin.flush()
            assert reader.stdout.readline().split() == [b"[%d]" % k]
        reader.stdin.close()
        assert reader.wait() == 0
        """,
        "delay_us=3000",
    )


def test_memory_on_a_device_ends_with_its_creator():
    run(
        """
        import subprocess
        name = f"test_device-{os.getpid()}"
        code = ("import sys, tenon as tn; a = tn.full(3, 7, 'i4', 'cuda:0', shared=sys.argv[1]); "
                "print(flush=True); sys.stdin.read()")
        creator = subprocess.Popen([sys.executable, "-c", code, name],
                                   stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        creator.stdout.readline()
        b = tn.attach(name)
        assert b.tolist() == [7, 7, 7] and b.device == "cuda:0"
        creator.kill()
        creator.wait()
        creator.stdin.close(), creator.stdout.close()
        for use in (b.tolist, lambda: b.write().__enter__(), lambda: tn.NDArray.__setitem__(b, ..., 1)):
            try:
                use()
            except tn.OwnerDied as error:
                assert error.pid == creator.pid and "was allocated by process" in str(error), error
            else:
                raise AssertionError
        try:
            tn.attach(name)
        except FileNotFoundError:
            pass
        else:
            raise AssertionError
        again = tn.zeros(2, "i4", "cuda:0", shared=name)         # the name is free
        assert tn.attach(name).tolist() == [0, 0]
        for options in (tn.Shared(huge_pages=True), tn.Shared(populate=True), tn.Shared(numa_node=0)):
            try:
                tn.zeros(3, "i4", "cuda:0", shared=options)
            except ValueError as error:
                assert "cannot have them" in str(error), error
            else:
                raise AssertionError
        """
    )


def test_a_trace_shows_the_work_of_each_stream_in_its_order():
    run(
        """
        import json, pathlib, tempfile
        folder = tempfile.TemporaryDirectory()
        path = pathlib.Path(folder.name, "run.json")
        n = 1 << 14
        host, there, back = tn.ones(n, "i4", "cuda_host"), tn.empty(n, "i4", "cuda"), tn.empty(n, "i4")
        with tn.trace(path):
            for _ in range(4):
                tn.push(tn.copy, host, tn.overwrite(there), name="up")
                tn.push(tn.copy, there, tn.overwrite(back), name="down")
            tn.waitall()
        events = json.loads(path.read_text())["traceEvents"]
        names = {(e["pid"], e["tid"]): e["args"]["name"] for e in events if e["name"] == "thread_name"}
        lanes = {}
        for e in events:
            if e.get("cat") == "device":
                assert e["args"]["op"] > 0, e
                lane = lanes.setdefault(names[e["pid"], e["tid"]], [])
                lane.append((e["ts"], e["ts"] + e["dur"], e["name"]))
        assert sorted(lanes) == ["cuda:0, device to host", "cuda:0, host to device"], lanes
        for lane, slices in lanes.items():
            slices.sort()
            assert {name for _, _, name in slices} == {"up" if lane.endswith("device") else "down"}, slices
            assert len(slices) == 4 and all(a[1] <= b[0] + 0.002 for a, b in zip(slices, slices[1:])), slices
            assert all(begin < end for begin, end, _ in slices), slices
        [bodies] = [{e["name"] for e in events if e.get("cat") == "op"}]
        assert bodies == {"up", "down"} and not any(e.get("cat") == "op completes" for e in events)
        """
    )


@pytest.mark.parametrize("stream", ["0", "-2", "1.5"])
def test_streams_that_the_protocol_does_not_know_are_refused(stream):
    run(
        f"""
        a = tn.zeros(8, device="cuda")
        try:
            a.__dlpack__(stream={stream})
        except (ValueError, TypeError) as error:
            assert "stream" in str(error), error
        else:
            raise AssertionError
        """
    )


def test_memory_of_the_host_is_pinned_where_it_lies_and_stays_shared():
    run(
        """
        def registered():
            return _core.device_statistics()["registered_nbytes"]
        def expect_unpinned():                            # a moment after work that was submitted before
            while registered() != 0:
                time.sleep(0.001)
        on_device = tn.zeros(3000, "i4", "cuda")
        for a in (tn.full(3000, 5, "i4"), tn.zeros(3000, "i4", shared=True)):
            address = a.data_ptr
            with tn.pinned(a, a[10:20]):                  # its memory is pinned once
                assert registered() >= 12000 and a.data_ptr == address
                driver.fake_cuda_reset_counts()
                op = tn.push(tn.copy, a, tn.overwrite(on_device))
            expect_unpinned()
            assert driver.fake_cuda_count(b"pageable") == 0 and driver.fake_cuda_count(b"copies.h2d") > 0
            op.wait()                                     # the op is done a moment after its memory is free
            assert on_device.tolist() == a.tolist()
        a = tn.zeros(8)
        try:
            with tn.pinned(a):
                raise KeyError("mine")
        except KeyError:
            expect_unpinned()
        for wrong in (on_device, tn.zeros(0)):
            try:
                with tn.pinned(a, wrong):
                    raise AssertionError(wrong)
            except ValueError as error:
                assert "cannot be pinned" in str(error)
                expect_unpinned()
        assert driver.fake_cuda_fail(b"cuMemHostRegister_v2", ctypes.c_uint64(0), 801) == 0
        try:
            with tn.pinned(a):
                raise AssertionError
        except OSError as error:
            assert "801" in str(error) or "NOT_SUPPORTED" in str(error), error
        """
    )


def test_managed_memory_is_ordered_with_the_streams_of_producer_and_consumer():
    run(
        """
        tn.zeros(8, "i4", "cuda")                        # makes the context
        own, streams = Stream(), []
        memory = ctypes.c_uint64()
        assert driver.fake_cuda_alloc_managed(ctypes.byref(memory), ctypes.c_size_t(1 << 16)) == 0

        class Producer(dl.Tensor):
            def __dlpack__(self, *, stream=None, **others):
                streams.append(stream)
                own.synchronize()
                return self.capsule()

        class At:
            data = memory.value
        own.fill(At, 9, 1 << 14)
        a = tn.from_dlpack(Producer((1 << 14,), dtype=(dl.INT, 32, 1), data=memory.value, device=(13, 0)))
        assert streams[0] not in (None, 0, -1)
        assert a.device == "cuda_managed" and a.__dlpack_device__() == (13, 0) and set(a.tolist()) == {9}
        taken = dl.take(a.__dlpack__(stream=own.handle))
        own.fill(taken, 4, 1 << 14)
        taken.release()
        assert set(a.tolist()) == {4}                    # waits for the fill
        a.__dlpack__()                                   # for the host
        for stream in (0, -2, "x"):
            try:
                a.__dlpack__(stream=stream)
            except (TypeError, ValueError) as error:
                assert "stream" in str(error), error
            else:
                raise AssertionError(stream)
        """
    )


def test_a_tensor_on_a_device_is_imported_in_order_of_its_stream():
    run(
        """
        a = tn.zeros(8, "i4", "cuda")                    # makes the context
        stream = Stream()
        memory = ctypes.c_ulonglong()
        assert driver.cuMemAlloc_v2(ctypes.byref(memory), ctypes.c_size_t(1 << 16)) == 0

        class Producer(dl.Tensor):
            def __dlpack__(self, *, stream=None, **others):
                streams.append(stream)
                event = ctypes.c_void_p()
                assert driver.cuEventCreate(ctypes.byref(event), 2) == 0
                assert driver.cuEventRecord(event, ctypes.c_void_p(own.handle)) == 0
                assert driver.cuStreamWaitEvent(ctypes.c_void_p(stream), event, 0) == 0
                return self.capsule()

        streams, own = [], stream
        def make():
            return Producer((1 << 14,), dtype=(dl.INT, 32, 1), data=memory.value, device=(2, 0))
        producer, other = make(), make()
        class At:
            data = memory.value
        own.fill(At, 9, 1 << 14)
        b = tn.from_dlpack(producer)
        assert b.device == "cuda:0" and streams[0] not in (None, 0, -1)
        assert set(b.to("cpu").tolist()) == {9}
        on_host = tn.from_dlpack(other, device="cpu")
        assert on_host.device == "cpu" and set(on_host.tolist()) == {9}
        del b
        gc.collect()
        assert (producer.deaths, other.deaths) == (1, 1)
        """
    )


def test_arrays_of_mxnet_on_a_device_are_read_and_written_there():
    run(
        """
        class Verbs:
            def __init__(self, lent):
                self.lent, self.asked = lent, ""
            def to_dlpack_for_read(self):
                self.asked += "r"
                return self.lent.to_dlpack_for_read()
            def to_dlpack_for_write(self):
                self.asked += "w"
                return self.lent.to_dlpack_for_write()
        x = Verbs(tn.array(np.arange(4.0), device="cuda"))
        a = tn.asarray(x)
        assert (a.device, a.data_ptr, a.writable) == ("cuda:0", x.lent.data_ptr, False)
        for host in (tn.from_dlpack(x, device="cpu"), tn.array(x, device="cpu"), a.to("cpu")):
            assert (host.device, host.tolist()) == ("cpu", [0, 1, 2, 3])
        tn.full(4, 7.0, "f8", "cuda").copyto(x)
        assert a.to("cpu").tolist() == [7] * 4
        assert tn.from_dlpack(x, writable=True).data_ptr == a.data_ptr
        assert x.asked == "rrrww"
        """
    )


def test_the_cuda_array_interface_of_others_is_imported_in_order_of_its_stream():
    run(
        """
        from types import SimpleNamespace
        import ml_dtypes
        a = tn.zeros(8, "i4", "cuda")                    # makes the context
        own, n = Stream(), 1 << 14
        memory = ctypes.c_ulonglong()
        assert driver.cuMemAlloc_v2(ctypes.byref(memory), ctypes.c_size_t(n * 4)) == 0
        class Producer:
            def __init__(self, **parts):
                self.__cuda_array_interface__ = {
                    "shape": (n,), "typestr": "<i4", "data": (memory.value, False), "version": 3, **parts
                }
        class At:
            data = memory.value
        own.handle, handle = 1, own.handle              # the legacy stream, that of a dict without one
        own.fill(At, 3, n)
        assert set(tn.from_dlpack(Producer()).to("cpu").tolist()) == {3}
        own.handle = handle
        own.fill(At, 9, n)
        producer = Producer(stream=own.handle)
        b = tn.from_dlpack(producer)
        assert b.device == "cuda:0" and b.shape == (n,) and b.dtype == tn.int32 and b.data_ptr == memory.value
        assert set(b.to("cpu").tolist()) == {9}
        held = sys.getrefcount(producer)
        own.fill(At, 7, n)
        c = tn.from_dlpack(Producer(stream=own.handle, shape=(n // 4, 2), strides=(16, 4)))   # known memory
        assert set(np.ravel(c.to("cpu").tolist())) == {7} and c.strides == (16, 4), c.strides
        assert tn.from_dlpack(producer, device="cpu").device == "cpu"
        assert not tn.from_dlpack(Producer(data=(memory.value, True))).writable
        assert tn.from_dlpack(Producer(stream=None)).writable
        assert tn.from_dlpack(Producer(shape=(0, 3), data=(0, False), stream=own.handle)).shape == (0, 3)
        assert tn.from_dlpack(Producer(shape=(1, 4), strides=(6, 4))).shape == (1, 4)
        fp4 = tn.from_dlpack(Producer(typestr=np.dtype(ml_dtypes.float4_e2m1fn), strides=(1,)))
        assert fp4.to("cpu").numpy().view("u1").tolist()[:5] == [7, 0, 0, 0, 7]
        t = tn.from_dlpack(SimpleNamespace(__cuda_array_interface__=a.__cuda_array_interface__))
        assert t.data_ptr == a.data_ptr and t.device == a.device
        b[...] = 5
        assert set(c.to("cpu")[0].tolist()) == {5}
        del t
        c = tn.from_dlpack(SimpleNamespace(__cuda_array_interface__=a.__cuda_array_interface__))
        del a
        assert c.tolist() == [0] * 8            # the array keeps the memory of a
        del b, fp4
        gc.collect()
        assert sys.getrefcount(producer) == held - 1, "the array keeps its producer, and releases it"
        host = np.zeros(4, "i4")
        for parts, kind, text in [
            (dict(mask=host), BufferError, "mask"),
            (dict(stream=0), ValueError, "stream is 0"),
            (dict(stream=-1), ValueError, "is -1"),
            (dict(data=memory.value), TypeError, "'data'"),
            (dict(typestr="<U4"), TypeError, "U4"),
            (dict(shape=None), TypeError, "'shape'"),
            (dict(strides=(6,)), BufferError, "multiple of the itemsize"),
            (dict(strides=(4, 4)), TypeError, "2 strides for 1 axes"),
            (dict(data=(host.ctypes.data, False)), BufferError, "memory of the host"),
        ]:
            try:
                tn.from_dlpack(Producer(**parts))
            except kind as error:
                assert text in str(error), error
            else:
                raise AssertionError(parts)
        class Freed:
            @property
            def __cuda_array_interface__(self):
                raise RuntimeError("the memory was freed")
        for source, kind, text in [
            (SimpleNamespace(__cuda_array_interface__=3), TypeError, "not a dict"),
            (Freed(), RuntimeError, "was freed"),
            (object(), TypeError, "neither __dlpack__ nor __cuda_array_interface__"),
        ]:
            for device in (None, "cpu"):
                try:
                    tn.from_dlpack(source, device=device)
                except kind as error:
                    assert text in str(error), error
                else:
                    raise AssertionError(text)
        """
    )


def test_device_tensors_and_the_host_of_dlpack():
    run(
        """
        a = tn.array(np.arange(4.0), device="cuda")
        taken = dl.take(a.__dlpack__(dl_device=(1, 0), max_version=(1, 3)))
        assert taken.device == (1, 0) and taken.flags & dl.IS_COPIED
        assert taken.at(3, kind=ctypes.c_double).value == 3.0
        taken.release()
        assert a.__dlpack_device__() == (2, 0)
        for options in ({"dl_device": (1, 0), "copy": False}, {"dl_device": (2, 5)}):
            try:
                a.__dlpack__(max_version=(1, 3), **options)
            except BufferError as error:
                assert "cuda:0" in str(error), error
            else:
                raise AssertionError(options)
        pinned = tn.zeros(4, device="cuda_host")
        assert np.asarray(pinned).tolist() == [0] * 4 and pinned.__dlpack_device__() == (3, 0)
        interface = a.__cuda_array_interface__
        assert interface["data"] == (a.data_ptr, False) and interface["shape"] == (4,), interface
        assert interface["typestr"] == "<f8" and interface["version"] == 3 and interface["stream"] > 2
        assert not hasattr(pinned, "__cuda_array_interface__")
        """
    )


def test_leases_of_device_arrays_order_threads():
    run(
        """
        a = tn.zeros(64, "i4", "cuda")
        with a.write() as v:
            assert v.device == "cuda:0" and v.writable
            op = tn.push(tn.copy, tn.ones(64, "i4"), tn.overwrite(a))
            assert not op.done()
            v[...] = 3
            assert set(v.to("cpu").tolist()) == {3}
        op.wait()
        with a.read() as v:
            assert not v.writable and set(v.to("cpu").tolist()) == {1}
        """
    )


def test_a_copy_that_fails_leaves_no_value_until_it_is_overwritten():
    run(
        """
        a, b = tn.zeros(8, "i4", "cuda"), tn.zeros(8, "i4", "cuda")
        assert driver.fake_cuda_fail(b"cuMemcpyAsync", ctypes.c_uint64(1), 2) == 0
        op = tn.push(tn.copy, tn.ones(8, "i4"), tn.overwrite(a))
        later = tn.push(tn.copy, a, tn.overwrite(b))
        for failed in (op, later):
            assert "OUT_OF_MEMORY" in str(failed.exception()).upper(), failed.exception()
        try:
            a.to("cpu")
        except tn.OpError:
            pass
        else:
            raise AssertionError
        a[...] = 4
        assert set(a.to("cpu").tolist()) == {4}
        try:
            tn.waitall()
        except ExceptionGroup:
            pass
        b.clear_error()
        """
    )


def test_a_forked_child_cannot_use_devices_and_can_end():
    run(
        """
        a = tn.zeros(8, "i4", "cuda")
        op = tn.push(tn.copy, tn.ones(8, "i4"), tn.overwrite(a))
        child = os.fork()
        if child == 0:
            try:
                tn.zeros(8, device="cuda")
            except OSError as error:
                code = 0 if "fork" in str(error) else 1
            else:
                code = 2
            del a
            os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        op.wait()
        assert set(a.to("cpu").tolist()) == {1}
        """
    )


def test_a_program_ends_with_work_on_a_device():
    run(
        """
        arrays = [tn.zeros(1 << 12, "i4", "cuda") for _ in range(20)]
        for source, target in zip(arrays, arrays[1:]):
            tn.push(tn.copy, source, tn.overwrite(target))
        print("end")
        """
    )
