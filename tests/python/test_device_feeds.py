# SPDX-License-Identifier: Apache-2.0
"""Feeds that deliver on a device, in programs that open the fake CUDA driver (see test_device). A stand-in
for a framework takes the batches by DLPack, on streams of its own. Oracle: each element follows from the
epoch and the index of its batch."""

import textwrap

import pytest
import soak
from test_device import run

PRELUDE = """
SCHEMA = tn.schema(data=("i4", (8, 32)), label=("i4", (8,)))

def fill(batch):
    batch.data[...] = 1000 * batch.epoch + batch.index
    batch.label[...] = batch.index

def check(batch):
    assert batch.data.device == batch.label.device == DEVICE, batch.data.device
    assert set(batch.data.to("cpu").numpy().ravel().tolist()) == {1000 * batch.epoch + batch.index}
    assert set(batch.label.tolist()) == {batch.index}

def fail(name, n, error):
    assert driver.fake_cuda_fail(name, ctypes.c_uint64(n), error) == 0

DEVICE = "cuda:0"
"""
EITHER = pytest.mark.parametrize(
    "workers",
    [
        "workers=0",
        "workers=1",
        "workers=2, processes='fork'",
        pytest.param("workers=2, processes='spawn'", marks=pytest.mark.slow),
    ],
)


def run_feeds(program, settings=""):
    return run(PRELUDE + textwrap.dedent(program), settings)


@EITHER
def test_batches_come_in_order_on_the_device(workers):
    run_feeds(
        f"""
        import logging, tempfile
        logging.getLogger("tenon").setLevel("ERROR")    # workers that start slowly are reported
        folder = tempfile.TemporaryDirectory()
        with open(folder.name + "/fills.py", "w") as file:      # what spawned workers import
            file.write(
                "def fill(batch):\\n"
                "    batch.data[...] = 1000 * batch.epoch + batch.index\\n"
                "    batch.label[...] = batch.index\\n"
            )
        sys.path.insert(0, folder.name)
        from fills import fill
        with tn.Feed(fill, SCHEMA, batches=9, device="cuda:0", {workers}) as feed:
            addresses = set()
            for epoch in range(3):
                indices = []
                for batch in feed:
                    check(batch)
                    indices.append(batch.index)
                    addresses.add(batch.data.data_ptr)
                    if epoch == 1 and batch.index == 4:
                        break
                assert indices == list(range(5 if epoch == 1 else 9)), indices
            assert len(addresses) <= 3, addresses
            stats = feed.stats()
            assert (stats.device, stats.device_slots, stats.host_memory) == ("cuda:0", 3, "registered"), stats
        del batch, feed
        gc.collect()
        tn.waitall()
        for name in ("device_nbytes", "registered_nbytes"):
            while _core.device_statistics()["submitted"]:
                time.sleep(0.001)
            assert _core.device_statistics()[name] == 0, name
        """
    )


@pytest.mark.parametrize("seed", soak.times([1, 2, 3, 4], [1, 2]))
def test_a_framework_on_its_own_stream_reads_each_batch(seed):
    run_feeds(
        """
        streams = None
        seen = []
        with tn.Feed(fill, SCHEMA, batches=30, device="cuda:0") as feed:
            for batch in feed:
                streams = streams or [Stream(), Stream()]
                stream = streams[batch.index % 2]
                target = tn.empty(256, "i4", "cuda_host")
                taken = dl.take(batch.data.__dlpack__(stream=stream.handle, max_version=(1, 3)))
                stream.copy(target.data_ptr, taken.data, 1024)      # work that the host does not wait for
                taken.release()
                seen.append((batch.index, target))
                del batch
            for stream in streams:
                stream.synchronize()
            for index, target in seen:
                assert set(target.tolist()) == {index}, index
        """,
        f"seed={seed}",
    )


def test_the_position_is_that_of_the_consumer():
    run_feeds(
        """
        with tn.Feed(fill, SCHEMA, batches=8, device="cuda:0") as feed:
            batches = iter(feed)
            next(batches)
            while feed.stats().slots_ready < 3:     # others are ready, and copied at the next request
                time.sleep(0.001)
            next(batches)
            state = feed.state_dict()
            assert (state["epoch"], state["next"]) == (0, 2), state
            del batches
            gc.collect()
            assert (feed.state_dict()["epoch"], feed.state_dict()["next"]) == (1, 0), feed.state_dict()
        def indexed(batch):
            batch.data[...] = batch.index
            batch.label[...] = batch.index
        with tn.Feed(indexed, SCHEMA, batches=8, device="cuda:0") as feed:
            feed.load_state_dict(state)
            assert [batch.index for batch in feed] == [2, 3, 4, 5, 6, 7]
        """
    )


def test_a_generator_with_a_state_goes_on_after_what_was_delivered():
    run_feeds(
        """
        class Walk:
            def __init__(self):
                self.at = 0
            def __call__(self, batch):
                self.at += 10
                batch.data, batch.label = 0, self.at
            def state(self):
                return self.at
            def restore(self, state):
                self.at = state
        results = []
        for device in ("cpu", "cuda:0"):
            labels = []
            with tn.Feed(Walk(), SCHEMA, batches=8, device=device) as feed:
                for last in (2, 5, 7, 1, 3):
                    for batch in feed:
                        labels.append(batch.label.tolist()[0])
                        if batch.index == last:
                            state = feed.state_dict()
                            break
            with tn.Feed(Walk(), SCHEMA, batches=8, device=device) as feed:
                feed.load_state_dict(state)
                labels += [batch.label.tolist()[0] for batch in feed]
            results.append(labels)
        assert results[0] == results[1], results
        """
    )


def test_failures_of_the_generator_and_of_the_copy_come_at_their_batch():
    run_feeds(
        """
        bad = {3}
        def breaks(batch):
            if batch.index in bad:
                raise ValueError("no such picture")
            fill(batch)
        with tn.Feed(breaks, SCHEMA, batches=8, device="cuda:0") as feed:
            got = []
            try:
                for batch in feed:
                    check(batch)
                    got.append(batch.index)
            except tn.OpError as error:
                assert (error.kind, error.index, got) == ("failed", 3, [0, 1, 2]), error
                assert "no such picture" in str(error), error
            else:
                raise AssertionError
            bad.clear()
            batches = iter(feed)
            check(next(batches))
            stream = Stream()
            while feed.stats().slots_ready < 3 or _core.device_statistics()["submitted"]:
                time.sleep(0.001)
            fail(b"cuMemcpyAsync", 1, 719)      # of a copy to the device
            indices = []
            try:
                for batch in batches:
                    indices.append(batch.index)
                    for array in batch:         # waits until the copies are submitted
                        dl.take(array.__dlpack__(stream=stream.handle, max_version=(1, 3))).release()
                raise AssertionError(indices)
            except tn.OpError as error:
                text = str(error)
                assert "copy to cuda:0" in text and "LAUNCH_FAILED" in text, text
                if getattr(error, "kind", None) is not None:    # of the feed, else at the use of the batch
                    failed = len(indices) + 1
                    assert (error.kind, error.index) == ("not copied", failed), (error.kind, error.index)
                    assert f"cannot deliver batch {failed} of epoch 1" in text, text
                del error
            del batch, batches
            for batch in feed:
                check(batch)
        """
    )


def test_forms_choose_the_device_of_an_epoch():
    run_feeds(
        """
        with tn.Feed(fill, SCHEMA, batches=4, attachment_nbytes=8) as feed:
            for device in ("cpu", "cuda:0", "cuda", "cpu", None):
                wanted = "cpu" if device in (None, "cpu") else "cuda:0"
                for batch in feed.databatch(device):
                    assert [a.device for a in batch.data + batch.label] == [wanted] * 2, device
            for batch in tn.io.FeedIter(feed, "cuda:0"):
                assert batch.data[0].device == "cuda:0" and batch.label[0].tolist()[0] == batch.index
            for data, label in feed.numpy():
                assert data.flags.writeable
        with tn.Feed(fill, SCHEMA, batches=4, device="cuda:0") as feed:
            assert [label[0] for _, label in feed.numpy()] == [0, 1, 2, 3]
            assert [batch.data.device for batch in feed] == ["cuda:0"] * 4
        """
    )


def test_what_cannot_be_is_an_error_with_a_way_out():
    run_feeds(
        """
        def expect(kind, text, call):
            try:
                call()
            except kind as error:
                assert text in str(error), error
            else:
                raise AssertionError(text)
        one_slot = lambda: tn.Feed(fill, SCHEMA, device="cuda:0", device_slots=1)
        expect(ValueError, "device_slots is 1", one_slot)
        expect(ValueError, "use 'cpu' or 'cuda:N'", lambda: tn.Feed(fill, SCHEMA, device="cuda_host"))
        expect(ValueError, "'cuda:5' does not exist", lambda: tn.Feed(fill, SCHEMA, device="cuda:5"))
        expect(ValueError, "feed is shared", lambda: tn.Feed(fill, SCHEMA, device="cuda:0", shared=True))
        with tn.Feed(fill, SCHEMA, batches=4) as feed:
            for framework, form in (("torch", feed.torch), ("jax", feed.jax)):
                try:
                    __import__(framework)
                except ImportError:
                    continue
                expect(ValueError, f'feed.{framework}("cpu")', lambda: form("cuda:0"))
        kept = []
        with tn.Feed(fill, SCHEMA, batches=4, device="cuda:0", device_slots=2, timeout=0.05) as feed:
            batches = iter(feed)
            kept += [next(batches), next(batches)]
            expect(TimeoutError, "all 2 device slots on cuda:0", lambda: next(batches))
            kept.clear()
            assert next(batches).index == 2
        with tn.Feed(fill, SCHEMA, batches=6, device="cuda:0", device_slots=2, on_starved="copy") as feed:
            for batch in list(feed):
                check(batch)
        """
    )


def test_a_consumer_that_holds_all_slots_of_the_host_gets_an_error_on_the_device():
    run_feeds(
        """
        with tn.Feed(fill, SCHEMA, batches=8, slots=2, timeout=0.05) as feed:
            batches = iter(feed)
            kept = [next(batches), next(batches)]
            on_device = iter(feed.databatch("cuda:0"))
            try:
                next(on_device)
            except TimeoutError as error:
                assert "slots" in str(error) and "batches" in str(error), error
            else:
                raise AssertionError
            assert [batch.label.tolist()[0] for batch in kept] == [0, 1]
            kept.clear()
            del batches
            indices = [batch.index for batch in feed.databatch("cuda:0")]
            assert indices == list(range(8)), indices
            assert feed.stats().host_memory == "staged", feed.stats().host_memory
        """
    )


def test_slots_that_the_driver_does_not_pin_are_staged():
    run_feeds(
        """
        tn.zeros(1, device="cuda")
        for name, wanted in ((b"cuMemHostRegister_v2", "staged"), (b"cuMemHostAlloc", "pageable")):
            fail(name, 0, 801)
            with tn.Feed(fill, SCHEMA, batches=9, device="cuda:0", workers=2, processes="fork") as feed:
                for batch in feed:
                    check(batch)
                assert feed.stats().host_memory == wanted, feed.stats().host_memory
        """
    )


def test_asyncio_gets_batches_on_the_device():
    run_feeds(
        """
        import asyncio
        async def main():
            with tn.Feed(fill, SCHEMA, batches=12, device="cuda:0") as feed:
                indices = []
                async for batch in feed:
                    check(batch)
                    indices.append(batch.index)
                assert indices == list(range(12)), indices
        asyncio.run(main())
        """
    )


def test_threads_that_end_epochs_and_ask_for_positions():
    run_feeds(
        """
        with tn.Feed(fill, SCHEMA, batches=50, device="cuda:0") as feed:
            is_over = threading.Event()
            def look():
                while not is_over.is_set():
                    feed.state_dict(), feed.stats(), repr(feed)
            thread = threading.Thread(target=look)
            thread.start()
            for epoch in range(6):
                for batch in feed:
                    check(batch)
                    if batch.index == 7 * epoch:
                        break
            is_over.set()
            thread.join()
        """
    )


def test_a_forked_child_can_end_beside_a_feed_on_a_device():
    run_feeds(
        """
        with tn.Feed(fill, SCHEMA, batches=8, device="cuda:0") as feed:
            batches = iter(feed)
            batch = next(batches)
            child = os.fork()
            if child == 0:
                try:
                    next(batches)
                except ValueError as error:
                    code = 0 if "fork" in str(error) else 1
                else:
                    code = 2
                try:
                    feed.state_dict()       # how far the parent has copied ahead is not known here
                except ValueError as error:
                    code = code if "fork" in str(error) else 3
                else:
                    code = 4
                feed.stats(), feed.end(), feed.close()
                del batch, batches
                feed._native = feed._meter = None
                gc.collect()        # ends the native feed
                os._exit(code)
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
            check(batch)
            for batch in batches:
                check(batch)
        """
    )


def test_batches_outlive_the_feed_and_the_program_ends_with_work_under_way():
    run_feeds(
        """
        feed = tn.Feed(fill, SCHEMA, batches=8, device="cuda:0", device_slots=4)
        batches = iter(feed)
        kept = [next(batches), next(batches)]
        feed.close()
        try:
            next(batches)
        except ValueError:
            pass
        else:
            raise AssertionError
        for batch in kept:
            check(batch)
        other = tn.Feed(fill, SCHEMA, batches=8, device="cuda:0")
        batch = next(iter(other))
        """
    )


def test_an_op_that_has_nothing_to_do_with_the_feed_does_not_keep_it_from_copying():
    run_feeds(
        """
        gate = threading.Event()
        op = tn.push(gate.wait)
        with tn.Feed(fill, SCHEMA, batches=6, device="cuda:0", device_slots=2, on_starved="copy") as feed:
            kept = list(feed)
            assert feed.stats().copied == 4, feed.stats().copied
        gate.set()
        op.wait()
        for batch in kept:
            check(batch)
        """
    )


def test_an_exception_in_the_loop_and_an_interrupted_wait_leave_a_feed_that_works():
    run_feeds(
        """
        import signal
        class Alarm(Exception):
            pass
        def ring(*_):
            raise Alarm
        signal.signal(signal.SIGALRM, ring)
        with tn.Feed(fill, SCHEMA, batches=6, device="cuda:0", device_slots=2) as feed:
            try:
                for batch in feed:
                    raise RuntimeError("in the step")
            except RuntimeError as error:
                kept = error                # its traceback has the iterator
            batch = None
            feed.end()
            batches = iter(feed)
            held = [next(batches), next(batches)]
            signal.setitimer(signal.ITIMER_REAL, 0.3)
            try:
                next(batches)               # no device slot is free
            except Alarm:
                pass
            else:
                raise AssertionError
            for batch in held:
                check(batch)
            held.clear()
            for batch in feed:
                check(batch)
            assert batch.index == 5
        """
    )


def test_after_the_loss_of_the_device_a_feed_delivers_on_the_host():
    run_feeds(
        """
        import logging
        logging.getLogger("tenon").setLevel("CRITICAL")     # it reports the copies that nobody waited for
        with tn.Feed(fill, SCHEMA, batches=20, device="cuda:0") as feed:
            batches = iter(feed)
            check(next(batches))
            driver.fake_cuda_fail_copy(ctypes.c_uint64(1), 700)
            try:
                for batch in batches:
                    check(batch)
            except (tn.OpError, OSError) as error:
                assert "CUDA_ERROR_ILLEGAL_ADDRESS" in str(error), error
            else:
                raise AssertionError
            batch = batches = None
            assert [label[0] for _, label in feed.numpy()] == list(range(20))
            try:
                next(iter(feed))
            except (tn.OpError, OSError) as error:
                assert "CUDA_ERROR_ILLEGAL_ADDRESS" in str(error), error
            else:
                raise AssertionError
        try:
            tn.waitall()
        except ExceptionGroup:
            pass
        """
    )


def test_a_generator_may_keep_its_arrays():
    run_feeds(
        """
        kept = []
        def keeps(batch):
            view = np.asarray(batch.data)
            view[...] = 1000 * batch.epoch + batch.index
            kept.append((batch.data, view))
            batch.label[...] = batch.index
        for workers in (0, 1):
            with tn.Feed(keeps, SCHEMA, batches=9, workers=workers, device="cuda:0") as feed:
                for batch in feed:
                    check(batch)
                assert batch.index == 8
        """
    )
