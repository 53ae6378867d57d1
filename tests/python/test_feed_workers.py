# SPDX-License-Identifier: Apache-2.0
"""Feeds whose generators are written in Python or run in worker processes. Oracle: a batch's numbers follow
from its seed, epoch and index alone; failures come at their place; nothing outlives a feed."""

import contextlib
import faulthandler
import functools
import gc
import multiprocessing
import os
import resource
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import native_library
import numpy as np
import pytest

import tenon as tn
import tenon._data.workers

SCHEMA = tn.schema(data=("f8", (8, 16)), label=("i8", (8,)))
ROWS = 8
EITHER = pytest.mark.parametrize("processes", [False, "fork"], ids=["threads", "processes"])
WAYS = pytest.mark.parametrize("processes", [False, "fork", "spawn", "forkserver"])


def expected(seed, index):
    return np.random.default_rng(seed).random((8, 16)) + index


@tn.worker(SCHEMA)
def random_numbers(batches, offset=0):
    for batch in batches:
        batch.data[...] = np.random.default_rng(batch.seed).random((8, 16)) + batch.index + offset
        batch.label[...] = batch.epoch * 1000 + batch.index


@tn.worker(SCHEMA)
def who(batches):
    for started, batch in enumerate(batches, 1):
        batch.label[:4] = [os.getpid(), threading.get_native_id(), batch.worker, started]


@tn.worker(SCHEMA)
def fails_at(batches, index, how):
    for batch in batches:
        if batch.index == index:
            how()
        batch.label[...] = batch.index


def raise_error():
    raise LookupError("no such picture")


def kill_self():
    os.kill(os.getpid(), signal.SIGKILL)


def exit_7():
    os._exit(7)


def crash():
    faulthandler.disable()
    os.kill(os.getpid(), signal.SIGSEGV)


def sleep_long():
    time.sleep(3600)


def children():
    """The child processes of this one, but for those that serve multiprocessing."""
    found = []
    for task in Path("/proc/self/task").iterdir():
        try:
            pids = (task / "children").read_text().split()
        except OSError:  # the thread has ended
            continue
        for pid in pids:
            try:
                command = Path(f"/proc/{pid}/cmdline").read_bytes()
            except OSError:
                continue
            if b"resource_tracker" not in command and b"forkserver" not in command:
                found.append(int(pid))
    return found


@pytest.fixture(autouse=True)
def nothing_is_left():
    before = set(children())
    yield
    gc.collect()
    deadline = time.monotonic() + 600
    while set(children()) - before and time.monotonic() < deadline:
        time.sleep(0.01)
    assert set(children()) <= before
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("tenon-worker")]


@WAYS
@pytest.mark.parametrize("workers", [1, 3])
def test_batches_are_the_same_however_they_are_made(processes, workers):
    with tn.Feed(random_numbers(), workers=workers, processes=processes, batches=12, seed=5) as feed:
        seen = [[batch.data.numpy().copy() for batch in feed] for _ in range(2)]
    with tn.Feed(random_numbers(), batches=12, seed=5) as feed:
        again = [[batch.data.numpy().copy() for batch in feed] for _ in range(2)]
    assert np.array_equal(seen, again)
    assert not np.array_equal(seen[0], seen[1])
    assert len(seen[0]) == 12


def test_arguments_reach_the_generator():
    with tn.Feed(random_numbers(offset=100), batches=1, seed=1) as feed:
        (first,) = feed
        with tn.Feed(random_numbers(), batches=1, seed=1) as other:
            assert np.allclose(first.data.numpy() - 100, next(iter(other)).data.numpy())


@EITHER
def test_each_worker_runs_one_loop_for_all_epochs(processes):
    with tn.Feed(who(), workers=2, processes=processes, batches=40) as feed:
        rows = [batch.label.numpy()[:4].copy() for _ in range(2) for batch in feed]
    by_worker = {}
    for pid, thread, worker, started in rows:
        by_worker.setdefault(worker, []).append((pid, thread, started))
    for steps in by_worker.values():
        assert len({step[:2] for step in steps}) == 1
        assert [step[2] for step in steps] == list(range(1, len(steps) + 1))
    assert all((pid == os.getpid()) != bool(processes) for pid, *_ in rows)


@EITHER
def test_any_callable_fills_a_batch(processes):
    def fill(batch):
        batch.label[...] = batch.index
        batch["data"][...] = 2

    with tn.Feed(fill, SCHEMA, workers=2, processes=processes, batches=20) as feed:
        assert [int(batch.label[0]) for batch in feed] == list(range(20))
        assert feed.stats().workers == (2 if processes else 1)


@EITHER
def test_an_exception_comes_at_its_place_with_the_workers_traceback(processes):
    generator = fails_at(3, raise_error)
    with tn.Feed(generator, workers=2, processes=processes, batches=10) as feed:
        batches = iter(feed)
        assert [next(batches).index for _ in range(3)] == [0, 1, 2]
        with pytest.raises(tn.OpError, match="no such picture") as caught:
            next(batches)
        error = caught.value
        assert "batch 3 of epoch 0" in str(error)
        assert 'raise LookupError("no such picture")' in str(error), "the worker's own lines"
        assert (error.kind, error.epoch, error.index, error.op) == ("failed", 0, 3, "fails_at")
        assert (error.pid is not None) == bool(processes)
        assert error.worker in (0, 1)
        with pytest.raises(tn.OpError):
            list(feed)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("how", "words", "number", "code"),
    [(kill_self, "signal 9", 9, None), (crash, "signal 11", 11, None), (exit_7, "exit code 7", None, 7)],
)
@pytest.mark.parametrize("start", ["fork", "spawn"])
def test_the_end_of_a_process_is_told_at_its_place(how, words, number, code, start):
    with tn.Feed(fails_at(2, how), workers=2, processes=start, batches=10) as feed:
        batches = iter(feed)
        assert [next(batches).index for _ in range(2)] == [0, 1]
        with pytest.raises(tn.OpError, match=words) as caught:
            next(batches)
        assert (caught.value.kind, caught.value.exit_signal, caught.value.exit_code) == ("died", number, code)
        assert caught.value.index == 2


@pytest.mark.parametrize("is_native", [False, True])
def test_an_end_that_other_code_has_waited_for_is_not_told_as_an_exit(is_native):
    prototype = "int fail_at(int64_t *label, uint64_t index, uint64_t epoch, uint64_t bad_index, int code)"
    native = tn.c_function(native_library.generators(), prototype, bad_index=2**60, code=7)
    generator = native if is_native else lambda batch: batch.label.fill(0)
    before = signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # so the system itself waits for children
    try:
        with tn.Feed(generator, {"label": ("i8", (1,))}, processes="fork") as feed:
            with pytest.raises(tn.OpError, match=r"ended while .*; how is not known, because") as caught:
                for batch in feed:
                    if batch.index == 2:
                        os.kill(feed._native.worker(0)["pid"], signal.SIGKILL)
            assert (caught.value.kind, caught.value.exit_signal, caught.value.exit_code) == (
                "died",
                None,
                None,
            )
    finally:
        signal.signal(signal.SIGCHLD, before)


@EITHER
def test_failures_are_skipped(processes):
    options = {"workers": 2, "processes": processes, "batches": 6, "on_error": "skip"}
    with tn.Feed(fails_at(2, raise_error), **options) as feed:
        assert [batch.index for batch in feed] == [0, 1, 3, 4, 5]
        assert feed.stats().skipped == 1


def test_a_report_that_is_cut_within_a_character_is_logged(caplog):
    def fill(batch):
        if batch.index < 10:
            raise ValueError("\xe9" * 1000)
        batch.x[...] = 1

    for shift in ("", "e"):  # of two lengths, one is cut there
        schema = tn.schema(x=("float32", (3,)))
        fill.__name__ = fill.__qualname__ = "fill" + shift
        with tn.Feed(fill, schema, batches=11, workers=1, on_error="skip") as feed:
            assert len(list(feed)) == 1
    assert caplog.text.count("has failed at 10 batches") == 2


@pytest.mark.parametrize("options", [{"workers": 0}, {}, {"processes": "fork", "workers": 2}])
def test_skips_without_an_end_are_reported_and_limited(caplog, options):
    def fill(batch):
        if batch.index != 20:
            raise ValueError(f"no picture {batch.index}")
        batch.label[...] = batch.data[...] = 0

    with tn.Feed(fill, SCHEMA, on_error="skip", **options) as feed:
        batches = iter(feed)
        assert next(batches).index == 20
        with pytest.raises(tn.OpError, match=r"1000 batches in a row(.|\n)*no picture 1\d\d\d") as caught:
            next(batches)
        # A worker may be up to 256 numbers (the entries of the table) ahead of one that has not settled its
        # batch.
        assert 1000 <= caught.value.index <= 1020 + 256
        assert feed.stats().skipped >= 1000
    texts = [record.message for record in caplog.records]
    for count, text in zip((10, 100, 1000), texts, strict=True):
        assert f"has failed at {count} batches, which were skipped" in text
        assert "ValueError: no picture" in text


def draws(batch):
    import random

    import torch

    numbers = [random.getrandbits(62), np.random.randint(1 << 62), int(torch.randint(1 << 62, (1,)))]
    batch.label[:3] = numbers
    batch.label[3:] = batch.data[...] = 0


def drawn(**options):
    with tn.Feed(draws, SCHEMA, batches=6, **options) as feed:
        for _ in range(2):
            yield from (tuple(batch.label.tolist()[:3]) for batch in feed)


@pytest.mark.slow
def test_each_batch_of_a_worker_process_draws_from_its_own_seed():
    import torch

    one = list(drawn(processes="fork", seed=3))
    assert all(len(set(column)) == 12 for column in zip(*one, strict=True))
    assert all(len(set(row)) == 3 for row in one)  # nor do the modules draw the same numbers
    assert list(drawn(processes="fork", workers=3, seed=3)) == one
    assert list(drawn(processes="spawn", workers=2, seed=3))[6:] == one[6:]  # they import torch at the first
    assert not set(drawn(processes="fork", seed=4)) & set(one)
    for options in ({}, {"workers": 0}):
        np.random.seed(5)
        torch.manual_seed(5)
        numbers = list(drawn(**options))
        np.random.seed(5)
        torch.manual_seed(5)
        expected = [(np.random.randint(1 << 62), int(torch.randint(1 << 62, (1,)))) for _ in range(12)]
        assert [row[1:] for row in numbers] == expected


@pytest.mark.slow
@pytest.mark.parametrize(("processes", "name"), [("fork", "Workers.reap"), (False, "_run_thread")])
def test_closing_waits_for_workers_that_have_nothing_to_do(monkeypatch, processes, name):
    # As on a busy machine, on which it takes long until they end.
    def late(*arguments):
        result = ends(*arguments)
        time.sleep(1.4)
        return result

    ends = functools.reduce(getattr, name.split("."), tenon._data.workers)
    monkeypatch.setattr(f"tenon._data.workers.{name}", late)
    feed = tn.Feed(random_numbers(), batches=3, processes=processes)
    assert sum(1 for _ in feed) == 3
    feed.close()


def test_worker_processes_refuse_a_constant_of_which_each_would_write_a_copy(tmp_path):
    source = tmp_path / "constant.cc"
    source.write_text('extern "C" int fill(double *c, double *x) { x[0] = c[0]; return 0; }')
    library = native_library.compiled(source)
    options = {"schema": {"x": ("f8", (1,))}, "batches": 3, "workers": 2}

    def feed(const, constant, **processes):
        fill = tn.c_function(library, f"int fill({const}double *c, double *x)", c=constant, threadsafe=True)
        return tn.Feed(fill, **options, **processes)

    ones = tn.asarray(np.ones(3))
    with pytest.raises(ValueError, match="constant 'c' of 'fill' is an array that is not const"):
        feed("", ones, processes=True)
    for const, processes in (("", False), ("const ", False), ("const ", True)):
        with feed(const, ones, processes=processes) as batches:
            assert [float(batch.x[0]) for batch in batches] == [1, 1, 1]
    for const in ("", "const "):  # a shared array needs a lease for each use
        with pytest.raises(tn.LeaseConflict, match="constant 'c' of 'fill' cannot be held"):
            feed(const, tn.zeros((3,), "f8", shared=True), processes=True)


def test_a_batch_is_filled_again_by_a_fresh_process(tmp_path):
    mark = tmp_path / "mark"

    def fill(batch):
        if batch.index == 2 and not mark.exists():
            mark.touch()
            kill_self()
        batch.label[...] = batch.index

    with tn.Feed(fill, SCHEMA, workers=2, processes="fork", batches=6, on_error="retry") as feed:
        assert [int(batch.label[5]) for batch in feed] == list(range(6))
        assert (feed.stats().retried, feed.stats().restarted) == (1, 1)


@pytest.mark.slow
@EITHER
def test_a_batch_that_takes_too_long(processes):
    feed = tn.Feed(fails_at(1, sleep_long), workers=2, processes=processes, batches=6, fill_timeout=3)
    batches = iter(feed)
    next(batches)
    with pytest.raises(tn.OpError, match=r"took longer than 3\.0 s for batch 1") as caught:
        next(batches)
    assert caught.value.kind == "hung"
    if processes:
        feed.close()
    else:  # its thread sleeps on: so this test does not wait for it
        for thread in threading.enumerate():
            if thread.name.startswith("tenon-worker"):
                thread.name = "left behind"
        with pytest.raises(TimeoutError):
            feed.close(0.01)


def test_views_of_a_batch_end_with_it():
    kept = []

    def fill(batch):
        data = batch.data
        data[...] = 1
        kept.append(data[1:])

    with tn.Feed(fill, SCHEMA, batches=2) as feed, pytest.raises(tn.OpError, match="LeaseEscaped") as told:
        list(feed)
    assert "item 0 of list `kept`" in str(told.value)
    kept.clear()


def test_an_array_of_a_batch_is_no_view_of_it_afterwards():
    kept = []

    def fill(batch):
        data = batch.data
        data[...] = 1
        kept.append(data)

    with tn.Feed(fill, SCHEMA, batches=2) as feed:
        assert [batch.data.asnumpy().min() for batch in feed] == [1, 1]
    assert [data.size for data in kept] == [0, 0]
    with pytest.raises(TypeError, match="ended with its block"):
        kept[0].sum()
    kept.clear()


def test_the_loops_own_names_are_no_views_that_live_on():
    @tn.worker(SCHEMA)
    def generator(batches):
        for batch in batches:
            data, label = batch.data, batch.label
            data[...] = batch.index
            part = label[2:]
            part[...] = 7

    with tn.Feed(generator(), batches=5) as feed:
        assert [float(batch.data[3, 3]) for batch in feed] == [0, 1, 2, 3, 4]


@EITHER
def test_fewer_rows_and_smaller_fields(processes):
    def fill(batch):
        if batch.index == 1:
            batch.rows = 3
            batch.label[...] = 9
            return
        image = batch.resize("data", (ROWS, 5))
        assert image.shape == (ROWS, 5)
        assert image.flags.c_contiguous
        image[...] = np.arange(40).reshape(8, 5)

    with tn.Feed(fill, SCHEMA, processes=processes, batches=2) as feed:
        batches = iter(feed)
        first = next(batches)
        assert first.data.shape == (8, 5)
        assert np.array_equal(first.data.numpy(), np.arange(40).reshape(8, 5))
        second = next(batches)
        assert second.data.shape == (3, 16)
        assert second.label.tolist() == [9, 9, 9]
        assert (first.rows, second.rows) == (ROWS, 3)


def test_a_shape_that_does_not_fit_is_refused():
    words = r"ValueError: field 'data' cannot have the shape \(8, 17\)"
    feed = tn.Feed(lambda batch: batch.resize("data", (8, 17)), SCHEMA, batches=1)
    with feed, pytest.raises(tn.OpError, match=words):
        list(feed)


@EITHER
def test_bytes_travel_with_a_batch(processes):
    def fill(batch):
        batch.attachment = b"picture %d" % batch.index

    with tn.Feed(fill, SCHEMA, processes=processes, batches=3, attachment_nbytes=20) as feed:
        assert [batch.attachment for batch in feed] == [b"picture 0", b"picture 1", b"picture 2"]


@EITHER
@pytest.mark.parametrize("policy", ["copy", "grow"])
def test_a_consumer_may_keep_every_batch(processes, policy):
    with tn.Feed(random_numbers(), processes=processes, batches=30, seed=2, on_starved=policy) as feed:
        kept = list(feed)
        assert len(kept) == 30
        assert len({float(batch.data[0, 0]) for batch in kept}) == 30
        assert (feed.stats().copied > 0) == (policy == "copy")
        assert (feed.stats().slots > 5) == (policy == "grow")


def test_a_consumer_that_keeps_all_may_be_told():
    with tn.Feed(random_numbers(), batches=30, on_starved="raise") as feed:
        batches = iter(feed)
        kept = [next(batches) for _ in range(5)]
        with pytest.raises(tn.LeaseConflict, match="all 5 slots hold delivered batches"):
            next(batches)
        del kept[0]
        assert next(batches).index == 5, "nothing is lost by the error"


@pytest.mark.slow
def test_batches_in_dead_cycles_are_not_held():
    with tn.Feed(random_numbers(), batches=30, on_starved="raise") as feed:
        for batch in feed:
            cycle = [batch]
            cycle.append(cycle)
            del cycle, batch


@pytest.mark.slow
def test_the_exit_of_a_forked_child_leaves_the_workers_alone(tmp_path):
    program = tmp_path / "program.py"
    program.write_text(
        textwrap.dedent(
            """
            import os, sys, warnings, tenon as tn
            warnings.simplefilter("ignore", DeprecationWarning)  # of fork() beside threads: this is its test
            def fill(batch):
                batch.label[...] = batch.index
            with tn.Feed(fill, tn.schema(label=("i8", (4,))), workers=2, processes=True, batches=200) as feed:
                for batch in feed:
                    if batch.index == 10:
                        child = os.fork()
                        if child == 0:
                            sys.exit(0)
                        assert os.waitpid(child, 0)[1] == 0
                print(batch.index)
            """
        )
    )
    done = subprocess.run([sys.executable, program], capture_output=True, text=True, timeout=600)
    assert (done.returncode, done.stdout, done.stderr) == (0, "199\n", "")


def test_batches_of_processes_reach_torch_without_a_copy():
    torch = pytest.importorskip("torch")
    with tn.Feed(random_numbers(), workers=2, processes=True, batches=10, seed=5) as feed:
        for index, (data, _) in enumerate(feed.torch()):
            stats = feed.stats()
            assert 0 <= data.data_ptr() - stats.memory < stats.slots * stats.slot_nbytes
            assert torch.equal(data.floor(), torch.full((8, 16), float(index), dtype=torch.float64))


def test_what_cannot_be_a_generator_is_refused():
    with pytest.raises(TypeError, match="call it, with its arguments"):
        tn.Feed(random_numbers, SCHEMA)
    with pytest.raises(TypeError, match="int"):
        tn.Feed(3, SCHEMA)
    with pytest.raises(ValueError, match="'threads'"):
        tn.Feed(random_numbers(), processes="threads")
    with pytest.raises(ValueError, match="on_error is 'ignore'"):
        tn.Feed(random_numbers(), on_error="ignore")


@pytest.mark.parametrize("start", ["spawn", "forkserver"])
def test_a_generator_that_cannot_be_pickled_is_told_how_it_reaches_its_processes(start):
    way = rf"'{start}': .*lambda.* a function of a module, .* or processes='fork'"
    with pytest.raises(tn.OpError, match=f"cannot be started.*{way}"):
        tn.Feed(lambda batch: None, SCHEMA, processes=start)


@pytest.mark.slow
def test_a_feed_of_processes_ends_with_the_program(tmp_path):
    program = tmp_path / "program.py"
    program.write_text(
        textwrap.dedent(
            """
            import os, sys, tenon as tn
            def fill(batch):
                batch.data[...] = batch.index
            if __name__ == "__main__":
                feed = tn.Feed(fill, tn.schema(data=("f4", (4,))), workers=2, processes=sys.argv[1])
                batches = iter(feed)
                print(float(next(batches).data[0]), float(next(batches).data[0]))
                if sys.argv[2] == "raise":
                    raise SystemExit(3)
            """
        )
    )
    for start in ("fork", "spawn"):
        for end, code in (("return", 0), ("raise", 3)):
            done = subprocess.run(
                [sys.executable, program, start, end], capture_output=True, text=True, timeout=600
            )
            assert (done.returncode, done.stdout, done.stderr) == (code, "0.0 1.0\n", "")


@pytest.mark.slow
@pytest.mark.parametrize("start", ["fork", "spawn"])
def test_workers_end_with_a_program_that_is_killed(tmp_path, start):
    program = tmp_path / "program.py"
    program.write_text(
        textwrap.dedent(
            """
            import os, sys, time, tenon as tn
            def fill(batch):
                batch.data[...] = os.getpid()
                if batch.index > 3:
                    time.sleep(3600)
            if __name__ == "__main__":
                feed = tn.Feed(fill, tn.schema(data=("i8", (4,))), workers=2, processes=sys.argv[1])
                batches = iter(feed)
                print(*{int(next(batches).data[0]) for _ in range(4)}, flush=True)
                time.sleep(3600)
            """
        )
    )
    process = subprocess.Popen([sys.executable, program, start], stdout=subprocess.PIPE, text=True)
    pids = [int(pid) for pid in process.stdout.readline().split()]
    process.kill()
    process.wait()
    process.stdout.close()
    deadline = time.monotonic() + 600
    while any(Path(f"/proc/{pid}").exists() for pid in pids) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert pids
    assert not [pid for pid in pids if Path(f"/proc/{pid}").exists()]


def test_the_default_start_method_is_multiprocessings():
    with tn.Feed(who(), processes=True, batches=1) as feed:
        list(feed)
        kind = type(next(iter(feed._workers._processes.values())))
    assert kind is multiprocessing.get_context().Process


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_workers_that_are_killed_at_random_lose_no_batch(seed):
    def fill(batch):
        batch.data[...] = batch.index
        batch.label[...] = batch.epoch

    rng = np.random.default_rng(seed)
    for _ in range(4):
        workers = int(rng.integers(1, 4))
        options = {"workers": workers, "processes": True, "batches": 60, "on_error": "retry", "retries": 50}
        with tn.Feed(fill, SCHEMA, **options) as feed:
            seen = []
            for batch in feed:
                assert (batch.data.numpy() == batch.index).all()
                seen.append(batch.index)
                pid = feed._native.worker(int(rng.integers(workers)))["pid"]
                if pid and rng.random() < 0.2:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
            assert seen == list(range(60))


@pytest.mark.slow
def test_nothing_grows_with_feeds_of_processes():
    def held():
        gc.collect()
        maps = Path("/proc/self/maps").read_text()
        return len(os.listdir("/proc/self/fd")), maps.count("tenon-feed"), threading.active_count()

    def once():
        with tn.Feed(random_numbers(), workers=2, processes=True, batches=5) as feed:
            for _ in feed:
                pass

    def has_no_more(now):
        return all(n <= most for n, most in zip(now, before))

    once()
    before = held()
    for _ in range(10):
        once()
    deadline = time.monotonic() + 600
    while not has_no_more(held()) and time.monotonic() < deadline:
        time.sleep(0.05)  # a descriptor tells whether a forked child has come, and is closed later
    assert has_no_more(held()), (before, held())


@pytest.mark.parametrize("processes", ["False", "True"])
def test_ctrl_c_ends_a_wait_for_a_worker(tmp_path, processes):
    program = tmp_path / "program.py"
    program.write_text(
        textwrap.dedent(
            """
            import os, sys, time, tenon as tn
            def fill(batch):
                batch.data[...] = os.getpid()
                if batch.index:
                    time.sleep(3600)
            feed = tn.Feed(fill, tn.schema(data=("i8", (4,))), processes=sys.argv[1] == "True" and "fork")
            try:
                for batch in feed:
                    print(int(batch.data[0]), flush=True)
            except KeyboardInterrupt:
                print("interrupted", flush=True)
                os._exit(0 if sys.argv[1] == "False" else feed.close() or 0)
            """
        )
    )
    process = subprocess.Popen([sys.executable, program, processes], stdout=subprocess.PIPE, text=True)
    pid = int(process.stdout.readline())
    time.sleep(0.2)
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate(timeout=600)
    assert (process.returncode, out) == (0, "interrupted\n")
    assert not Path(f"/proc/{pid}").exists()


def test_a_child_that_is_forked_beside_a_feed_ends_well():
    with tn.Feed(random_numbers(), workers=2, processes=True, batches=None) as feed:
        batches = iter(feed)
        next(batches)
        child = os.fork()
        if child == 0:
            code = 1
            try:
                next(batches)
            except ValueError as error:
                code = 0 if "belongs to the parent process" in str(error) else 2
            feed.close()
            os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert next(batches).index == 1


class _Full:
    """All file descriptors but `left` are taken."""

    def __init__(self, left):
        self.left = left

    def __enter__(self):
        self.limits = resource.getrlimit(resource.RLIMIT_NOFILE)
        self.taken = []
        top = max(int(fd) for fd in os.listdir("/proc/self/fd"))
        while not self.taken or self.taken[-1] < top:  # the holes between those that are open
            self.taken.append(os.dup(2))
        resource.setrlimit(resource.RLIMIT_NOFILE, (self.taken[-1] + 1 + self.left, self.limits[1]))

    def __exit__(self, *_):
        resource.setrlimit(resource.RLIMIT_NOFILE, self.limits)
        for fd in self.taken:
            os.close(fd)


@pytest.mark.parametrize("left", range(8))
def test_a_feed_that_lacks_descriptors_fails_at_once_or_works(left):
    feed = None
    with _Full(left):
        try:
            feed = tn.Feed(random_numbers(), workers=2, batches=3, timeout=600)
        except (OSError, tn.OpError) as error:
            assert "Too many open files" in str(error) or "descriptor" in str(error), error
    if feed is not None:
        with feed:
            assert [batch.index for batch in feed] == [0, 1, 2]


@pytest.mark.parametrize("workers", [1, 3])
def test_a_feed_starts_one_thread_for_each_python_worker_and_opens_no_file(workers):
    """In a process that has no other threads, which could end meanwhile."""
    program = f"""
        import os, time, tenon as tn

        def held():
            return len(os.listdir("/proc/self/task")), len(os.listdir("/proc/self/fd"))

        @tn.worker(tn.schema(data=("i8", (4,))))
        def fill(batches):
            for batch in batches:
                batch.data[...] = batch.index

        def run(n):
            with tn.Feed(fill(), workers={workers}, batches=n, fill_timeout=600) as feed:
                before = held()
                assert [batch.index for batch in feed] == list(range(n))
                return before, held()

        run(3)
        # The kernel ends threads a little later.
        threads, files = min(held() for _ in range(50) if not time.sleep(0.01))
        print([(now[0] - threads, now[1] - files) for now in run(50)])
    """
    command = [sys.executable, "-c", textwrap.dedent(program)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert done.stdout == f"{[(workers, 0)] * 2}\n", done.stdout + done.stderr


def test_a_python_thread_takes_no_batches_from_the_feed_that_it_fills():
    def fill(batch):
        batch.data[...] = 1
        batch.label[...] = 1
        feed._native.next(0.0, print)

    with tn.Feed(fill, SCHEMA, batches=2, timeout=600) as feed:
        batches = iter(feed)
        with pytest.raises(tn.OpError, match="cannot take batches from the feed that it fills"):
            next(batches)


def test_a_thread_that_cannot_be_started_is_an_error_of_the_feed(monkeypatch):
    started = []
    start = threading.Thread.start

    def start_one(thread):
        if not thread.name.startswith("tenon-worker"):
            return start(thread)
        if started:
            raise RuntimeError("can't start new thread")
        started.append(thread)
        return start(thread)

    monkeypatch.setattr(threading.Thread, "start", start_one)
    with pytest.raises(tn.OpError, match=r"worker 1 cannot be started.*can't start new thread"):
        tn.Feed(random_numbers(), workers=2)
    started[0].join(600)
    assert not started[0].is_alive()


def test_a_thread_whose_loop_is_ended_tells_the_consumer_why_at_each_batch(monkeypatch):
    def broken(*_):
        raise MemoryError("no room for the loop")

    with monkeypatch.context() as patch:
        patch.setattr(tenon._data.workers, "_Batches", broken)
        feed = tn.Feed(random_numbers(), workers=1, timeout=600)
        with pytest.raises(tn.OpError, match="no room for the loop"):
            next(iter(feed))
    with pytest.raises(tn.OpError, match="no room for the loop"):
        next(iter(feed))
    feed.close()


def test_a_thread_that_has_ended_is_told_to_the_consumer_at_once(monkeypatch):
    have_started = threading.Event()
    with monkeypatch.context() as patch:
        patch.setattr(tenon._data.workers, "run", lambda *_: have_started.wait(600))
        feed = tn.Feed(random_numbers(), workers=2, timeout=600)
        have_started.set()
        for _ in range(2):
            with pytest.raises(tn.OpError, match=r"the thread of worker . has ended"):
                next(iter(feed))
    feed.close()
