# SPDX-License-Identifier: Apache-2.0
"""Pinned pools, in programs that open the fake CUDA driver. No GPU takes part. See test_device.py."""

import pytest
from test_device import run

WITHOUT_CONTEXT_EVENTS = "missing=cuCtxRecordEvent"


@pytest.mark.parametrize("settings", ["", WITHOUT_CONTEXT_EVENTS])
def test_a_receiver_pins_messages_and_holds_them_for_its_copies(settings):
    run(
        """
        n = 2 << 20
        to_child, to_parent = os.pipe(), os.pipe()
        child = os.fork()                                 # before CUDA has started
        if child == 0:
            first, second = os.read(to_child[0], 1 << 16).split(b"|next|")
            early = tn.loads(first)
            assert driver.fake_cuda_count(b"cuInit") == 0 # a process that uses no GPU does not start CUDA
            target = tn.zeros(n, "u1", "cuda")
            x = tn.loads(second)
            assert _core.device_statistics()["registered_nbytes"] == n
            stream = Stream()
            handle = ctypes.c_void_p(stream.handle)
            assert driver.fake_cuda_hold(handle) == 0
            stream.copy(target.data_ptr, x.data_ptr, n)
            del x
            os.write(to_parent[1], b"submitted")
            os.read(to_child[0], 1)
            assert driver.fake_cuda_resume(handle) == 0
            stream.synchronize()
            os._exit(0 if set(target.tobytes()) == {7} else 1)
        pools = tn.TensorPool(n, pinned=True), tn.TensorPool(n, pinned=True)
        messages = []
        for pool in pools:
            x = pool.empty(n, "u1")
            x[...] = 7
            messages.append(pool.dumps(x))
        os.write(to_child[1], b"|next|".join(messages))
        assert os.read(to_parent[0], 100) == b"submitted"
        for _ in range(20):
            try:
                pools[1].empty(n, "u1", when_full="raise")
                raise AssertionError("the memory was used again before the copy")
            except MemoryError as error:
                assert f"by process {child}" in str(error), error
            time.sleep(0.001)
        os.write(to_child[1], b"x")
        pools[1].empty(n, "u1")[...] = 9                  # waits for the room
        assert os.waitpid(child, 0)[1] == 0
        """,
        settings,
    )


@pytest.mark.parametrize("settings", ["strict_end=1", WITHOUT_CONTEXT_EVENTS])
def test_a_process_ends_while_its_copies_run(settings):
    run(
        """
        target, pool = tn.zeros(4096, "u1", "cuda"), tn.TensorPool(1 << 20, pinned=True)
        x = pool.empty(4096, "u1")
        stream = Stream()
        assert driver.fake_cuda_hold(ctypes.c_void_p(stream.handle)) == 0
        stream.copy(target.data_ptr, x.data_ptr, 4096)
        del x
        """,
        settings,
    )


def test_blocks_of_graph_captures_are_counted_also_when_they_raise():
    run(
        """
        n = 2 << 20
        pool = tn.TensorPool(n, pinned=True)
        x = pool.empty(n, "u1")
        try:
            with tn.graph_capture(), tn.graph_capture():
                del x
                try:
                    pool.empty(n, "u1", when_full="raise")
                    raise AssertionError
                except MemoryError as error:
                    assert "the capture of a graph" in str(error), error
                raise KeyError
        except KeyError:
            pass
        pool.empty(n, "u1")                               # waits for the room
        """
    )


def test_a_pinned_pool_needs_a_driver():
    run(
        """
        try:
            tn.TensorPool(1 << 20, pinned=True)
            raise AssertionError
        except FileNotFoundError as error:
            assert "libm.so.6" in str(error), error
        """,
        driver="libm.so.6",
    )
