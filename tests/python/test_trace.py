# SPDX-License-Identifier: Apache-2.0
"""`tn.trace`: what stands in the file, and that it is what has happened."""

import collections
import itertools
import json
import logging
import os
import subprocess
import sys
import threading
import time
import warnings
from pathlib import Path

import pytest
from other_thread import Other, is_awaited, until

import tenon as tn

HERE = Path(__file__).name
CATEGORIES = {"op", "wait", "lease", "lease waits", "fill", "blocked", "starved", "filling", "ready", "held"}


class Trace:
    """A file that was read: checked to be in form."""

    def __init__(self, path):
        self.document = json.loads(Path(path).read_text())
        self.events = self.document["traceEvents"]
        self.names = {
            (event["name"], event["pid"], event["tid"]): event["args"]["name"]
            for event in self.events
            if event["ph"] == "M" and "name" in event["args"]
        }
        open_ends = collections.Counter()
        for event in self.events:
            assert event["ph"] in "XMbe"
            if event["ph"] == "M":
                continue
            assert event["ts"] >= 0
            assert ("thread_name", event["pid"], event["tid"]) in self.names
            assert ("process_name", event["pid"], 0) in self.names
            if event["ph"] == "X":
                assert event["dur"] >= 0
                assert event["cat"] in CATEGORIES
            else:
                open_ends[event["cat"], event["id"]] += 1 if event["ph"] == "b" else -1
        assert not any(open_ends.values())
        self.check_nesting()

    def check_nesting(self):
        """Of a lane no slice ends inside of another one that it began before."""
        for lane, events in self.by_lane().items():
            around = []
            for event in sorted(events, key=lambda event: (event["ts"], -event["dur"])):
                begin, end = event["ts"], event["ts"] + event["dur"]
                while around and around[-1] <= begin + 0.0015:  # times are written to a nanosecond
                    around.pop()
                assert not around or end <= around[-1] + 0.0015, (lane, event)
                around.append(end)

    def slices(self, category, name=None):
        return [
            event
            for event in self.events
            if event["ph"] == "X" and event["cat"] == category and name in (None, event["name"])
        ]

    def by_lane(self, *categories):
        lanes = collections.defaultdict(list)
        for event in self.events:
            if event["ph"] == "X" and (not categories or event["cat"] in categories):
                lanes[event["pid"], event["tid"]].append(event)
        return lanes

    def lane_name(self, event):
        return self.names["thread_name", event["pid"], event["tid"]]


def overlapping(events):
    """Pairs of events that share time."""
    events = sorted(events, key=lambda event: event["ts"])
    return [
        (a, b)
        for a, b in itertools.pairwise(events)
        if a["ts"] + a["dur"] > b["ts"] + 0.0015 and b["dur"] > 0
    ]


@pytest.fixture
def path(tmp_path):
    return tmp_path / "run.json"


def line_here(offset=0):
    return f"{HERE}:{sys._getframe(1).f_lineno + offset}"


def test_an_op_has_its_name_arrays_site_and_times(path):
    a, b = tn.zeros((3, 4), "float32"), tn.zeros(5, "int64")
    gate = threading.Event()
    with tn.trace(path):
        first = tn.push(lambda x: gate.wait(600), tn.write(a), name="first")
        second = tn.push(tn.copy, a[0, :1], tn.overwrite(b[:1]), name="second")
        site = line_here(-1)
        assert not second.done()
        gate.set()
        tn.waitall()
    assert first.done()
    trace = Trace(path)
    (before,), (after,) = trace.slices("op", "first"), trace.slices("op", "second")
    assert before["ts"] + before["dur"] <= after["ts"] + 0.0015
    facts = after["args"]
    assert facts["site"].endswith(site)
    assert set(facts["arrays"].split("; ")) == {
        "reads shape (1,) and dtype float32",
        "writes shape (1,) and dtype int64",
    }
    assert facts["outcome"] == "done"
    assert facts["pushed_us"] < before["ts"] + before["dur"] <= facts["ready_us"] <= after["ts"]
    assert facts["waited_for_arrays_us"] == pytest.approx(facts["ready_us"] - facts["pushed_us"], abs=0.01)
    assert "thread" in trace.lane_name(after)
    waiting = [
        event for event in trace.events if event.get("cat") == "op waits" and event["name"] == "second"
    ]
    assert [event["ph"] for event in waiting] == ["b", "e"]
    assert waiting[1]["ts"] == pytest.approx(after["ts"])


def test_ops_on_one_array_do_not_overlap_and_those_on_others_are_all_there(path):
    arrays = [tn.zeros(10, "float32") for _ in range(3)]
    with tn.trace(path) as t:
        for i in range(300):
            tn.push(tn.fill, tn.write(arrays[i % 3]), i, name=f"on {i % 3}")
        tn.waitall()
    trace = Trace(path)
    for i in range(3):
        ops = trace.slices("op", f"on {i}")
        assert len(ops) == 100
        assert not overlapping(ops)
    assert t.lost == 0 and t.events >= 300


def test_an_op_that_fails_is_marked_and_so_is_what_it_spoils(path):
    a, b = tn.zeros(3, "float32"), tn.zeros(3, "float32")

    def bad(x):
        raise KeyError("no such thing")

    with tn.trace(path):
        tn.push(bad, tn.write(a))
        tn.push(tn.copy, a, tn.overwrite(b), name="after it")
        with pytest.raises(ExceptionGroup):
            tn.waitall()
    trace = Trace(path)
    (failed,), (skipped,) = trace.slices("op", "bad"), trace.slices("op", "after it")
    assert failed["args"]["outcome"] == "failed"
    assert failed["args"]["error"] == "KeyError: 'no such thing'"
    assert skipped["args"]["outcome"] == "skipped"
    assert skipped["dur"] == 0


def test_a_push_that_is_refused_leaves_nothing(path):
    a = tn.zeros(3, "float32")
    view = a.numpy()
    with tn.trace(path) as t, pytest.raises(tn.LeaseConflict):
        tn.push(tn.fill, tn.overwrite(a), 1)
    assert t.events == 0
    assert not Trace(path).slices("op")
    del view


def test_a_lease_has_its_wait_its_time_and_the_line_that_took_it(path):
    a = tn.zeros((2, 3), "float32")
    gate = threading.Event()
    with tn.trace(path):
        tn.push(lambda x: gate.wait(600), tn.write(a), name="before")
        Other(lambda: (until(lambda: is_awaited(a, "lease"), "no lease waits"), gate.set()))
        with a.write() as v:
            site = line_here(-1)
            v[...] = 1
            time.sleep(0.002)
        with a.read(), a.read():
            pass
    trace = Trace(path)
    (op,), (wait,), (held,) = (
        trace.slices("op", "before"),
        trace.slices("lease waits", "waits to write"),
        trace.slices("lease", "write"),
    )
    assert trace.lane_name(held) == "array of shape (2, 3) and dtype float32"
    assert held["args"]["site"].endswith(site)
    assert held["dur"] >= 2000
    assert op["ts"] + op["dur"] <= held["ts"] + 0.0015
    assert wait["ts"] + wait["dur"] == pytest.approx(held["ts"], abs=0.01)
    (asleep,) = trace.slices("wait", "wait for a lease")
    assert trace.lane_name(asleep) == "main thread"
    assert wait["ts"] - 1 <= asleep["ts"] and asleep["dur"] <= wait["dur"]
    reads = trace.slices("lease", "read")
    assert len({event["tid"] for event in reads}) == 2  # side by side
    assert {trace.lane_name(event) for event in reads} == {
        "array of shape (2, 3) and dtype float32",
        "array of shape (2, 3) and dtype float32 (2)",
    }


def test_a_block_that_fails_is_marked(path):
    a = tn.zeros(3, "float32")
    with tn.trace(path), pytest.raises(ZeroDivisionError), a.write():
        raise ZeroDivisionError("in the block")
    (held,) = Trace(path).slices("lease", "write")
    assert held["args"]["outcome"] == "failed"
    assert "ZeroDivisionError" in held["args"]["error"]


def test_waits_of_threads_say_for_what(path):
    a = tn.zeros(3, "float32")

    def wait_and_open(i, wait, seconds):
        gate = threading.Event()
        tn.push(lambda x: gate.wait(600), tn.write(a), name=f"op {i}").done()
        op = tn.push(tn.fill, tn.write(a), 0, name=f"behind {i}")
        threading.Timer(seconds, gate.set).start()
        wait(op)

    for seconds in (0.02, 1, 20):  # a loaded machine comes to the wait when it is over
        with tn.trace(path):
            wait_and_open(0, lambda op: op.wait(), seconds)
            wait_and_open(1, lambda op: a.wait_to_read(), seconds)
            wait_and_open(2, lambda op: tn.waitall(), seconds)
        names = [event["name"] for event in Trace(path).slices("wait")]
        if len(names) == 3:
            break
    assert names == ["wait for op 'behind 0'", "wait_to_read", "wait for all ops"]
    assert not Trace(path).slices("lease")


def check_feed(trace, batches, workers, slots):
    fills = trace.slices("fill")
    assert sorted(event["args"]["batch"] for event in fills) == list(range(batches))
    assert {event["args"]["epoch"] for event in fills} == {0}
    assert {trace.lane_name(event) for event in fills} <= {f"worker {i}" for i in range(workers)}
    for lane in trace.by_lane("fill", "blocked").values():
        assert not overlapping(lane)
    lanes = trace.by_lane("filling", "ready", "held")
    assert len(lanes) <= slots
    for lane in lanes.values():
        assert not overlapping(lane)
    by_batch = {event["args"]["batch"]: event for event in fills}
    for event in trace.slices("filling"):
        fill = by_batch[event["args"]["batch"]]
        assert trace.lane_name(event) == f"slot {fill['args']['slot']}"
        assert event["ts"] <= fill["ts"] + 0.0015
        assert fill["ts"] + fill["dur"] <= event["ts"] + event["dur"] + 0.0015
    assert len(trace.slices("held")) == batches
    for held in trace.slices("held"):
        same_slot = [f for f in fills if f"slot {f['args']['slot']}" == trace.lane_name(held)]
        assert not overlapping([held, *same_slot])
    for starved in trace.slices("starved"):
        assert trace.lane_name(starved) == "consumer"
        assert starved["args"]["batch"] <= batches  # the last call waits for the epoch's end
    assert not overlapping(trace.slices("starved"))
    return by_batch


def slow_fill(batch):
    time.sleep(0.001)
    batch.data[...] = batch.index


SCHEMA = {"data": ("f4", (16, 3))}


def test_a_feed_with_threads(path):
    with tn.trace(path), tn.Feed(slow_fill, tn.schema(**SCHEMA), slots=4, batches=30) as feed:
        for i, batch in enumerate(feed):
            assert batch.data[0, 0] == i
            if i % 10 == 0:
                until(lambda: feed.stats().slots_free + feed.stats().slots_filling == 0, "it goes on")
                time.sleep(0.03)  # so that the worker is blocked
    trace = Trace(path)
    by_batch = check_feed(trace, 30, 1, 4)
    assert all(event["dur"] >= 1000 for event in by_batch.values())
    assert trace.slices("starved") and trace.slices("blocked")
    (process,) = {name for (what, pid, _), name in trace.names.items() if what == "process_name" and pid > 2}
    assert process.startswith("feed ") and process.endswith("of 'slow_fill'")


def test_a_feed_with_worker_processes(path):
    with warnings.catch_warnings(), tn.trace(path):
        warnings.simplefilter("ignore", DeprecationWarning)  # fork beside threads
        with tn.Feed(slow_fill, tn.schema(**SCHEMA), workers=2, batches=30, processes=True) as feed:
            assert [batch.index for batch in feed] == list(range(30))
    trace = Trace(path)
    by_batch = check_feed(trace, 30, 2, 6)
    pids = {event["args"]["pid"] for event in by_batch.values()}
    assert pids and os.getpid() not in pids
    assert all(event["dur"] >= 1000 for event in by_batch.values())


def test_a_fill_that_fails_is_marked(path):
    def fill(batch):
        if batch.index == 3:
            raise ValueError("batch 3 is broken")

    with tn.trace(path), tn.Feed(fill, tn.schema(**SCHEMA), batches=10, on_error="skip") as feed:
        assert sum(1 for _ in feed) == 9
    (failed,) = [e for e in Trace(path).slices("fill") if e["args"]["outcome"] == "failed"]
    assert failed["args"]["batch"] == 3
    assert "batch 3 is broken" in failed["args"]["error"]


def test_what_is_unfinished_lasts_to_the_end(path):
    a = tn.zeros(3, "float32")
    gate = threading.Event()
    began = threading.Event()

    def body(x):
        began.set()
        gate.wait(600)

    with tn.trace(path):
        tn.push(body, tn.write(a))
        tn.push(tn.fill, tn.write(a), 0, name="behind")
        began.wait(600)
    gate.set()
    tn.waitall()
    trace = Trace(path)
    (op,) = trace.slices("op")
    assert op["name"] == "body" and op["args"]["outcome"] == "unfinished"
    (waits,) = [e for e in trace.events if e["ph"] == "b" and e["name"] == "behind"]
    assert waits["args"]["outcome"] == "unfinished"


def test_a_full_trace_keeps_the_first_and_counts_the_others(path, caplog):
    a = tn.zeros(3, "float32")
    with caplog.at_level(logging.WARNING, "tenon"), tn.trace(path, capacity=10) as t:
        for i in range(50):
            tn.push(tn.fill, tn.write(a), i, name=f"op {i}").wait()
    assert t.events == 10 and t.lost >= 40
    trace = Trace(path)
    assert trace.document["otherData"]["lost"] == t.lost
    assert trace.slices("op")[0]["name"] == "op 0"
    assert "begin it later" in caplog.text


def test_stop_is_idempotent_and_one_trace_runs_at_a_time(path, tmp_path):
    t = tn.trace(path)
    with pytest.raises(ValueError, match="runs already"):
        tn.trace(tmp_path / "other.json")
    assert not (tmp_path / "other.json").exists()
    assert "running" in repr(t)
    t.stop()
    t.stop()
    assert Trace(path).document["otherData"]["pid"] == os.getpid()
    with tn.trace(str(path)) as again:
        t.stop()  # the first one's
        assert "running" in repr(again)


def test_what_cannot_work_says_so_at_the_call(tmp_path):
    with pytest.raises(FileNotFoundError, match="no/such"):
        tn.trace(tmp_path / "no/such/run.json")
    with pytest.raises(OSError, match="cannot write"):
        tn.trace(tmp_path)
    with pytest.raises(ValueError, match="zero byte"):
        tn.trace("a\0b")
    for capacity in (0, -1, 2**22, 2**64):
        with pytest.raises(ValueError, match=f"capacity is {capacity}: it must lie between"):
            tn.trace(tmp_path / "run.json", capacity=capacity)
    assert not (tmp_path / "run.json").exists()
    with pytest.raises(OSError, match="No space"), tn.trace("/dev/full"):
        pass
    with pytest.raises(KeyError), tn.trace("/dev/full"):
        raise KeyError("in the block")  # is not replaced
    with tn.trace(tmp_path / "run.json"):
        pass


def run_python(code, *arguments):
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code, *map(str, arguments)], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return done


def test_a_trace_for_which_there_is_no_memory_leaves_the_file_as_it_was(path):
    Path(path).write_text("an earlier trace")
    run_python(
        "import resource, sys, tenon as tn\n"
        "used = int(open('/proc/self/statm').read().split()[0]) * resource.getpagesize()\n"
        "resource.setrlimit(resource.RLIMIT_AS, (used + 2**27, -1))\n"
        "try:\n"
        "    tn.trace(sys.argv[1], capacity=4_000_000)\n"
        "except MemoryError:\n"
        "    sys.exit()\n"
        "sys.exit('there was memory')\n",
        path,
    )
    assert Path(path).read_text() == "an earlier trace"


def test_a_trace_that_runs_at_the_exit_is_written(path):
    run_python(
        "import sys, tenon as tn\n"
        "t = tn.trace(sys.argv[1])\n"
        "a = tn.zeros(3, 'float32')\n"
        "tn.push(tn.fill, tn.overwrite(a), 1, name='last').wait()\n",
        path,
    )
    (op,) = Trace(path).slices("op")
    assert op["name"] == "last" and op["args"]["outcome"] == "done"


def test_a_forked_child_has_no_trace(path):
    run_python(
        "import os, sys, tenon as tn\n"
        "a = tn.zeros(3, 'float32')\n"
        "with tn.trace(sys.argv[1]) as t:\n"
        "    tn.push(tn.fill, tn.overwrite(a), 1, name='in the parent').wait()\n"
        "    if (child := os.fork()) == 0:\n"
        "        tn.push(tn.fill, tn.overwrite(a), 2, name='in the child').wait()\n"
        "        t.stop()\n"
        "        with tn.trace(sys.argv[1] + '.child'):\n"
        "            tn.push(tn.fill, tn.overwrite(a), 2, name='its own').wait()\n"
        "        os._exit(0)\n"
        "    assert os.waitpid(child, 0)[1] == 0\n"
        "assert t.events >= 1\n",
        path,
    )
    assert [event["name"] for event in Trace(path).slices("op")] == ["in the parent"]
    assert [event["name"] for event in Trace(f"{path}.child").slices("op")] == ["its own"]


@pytest.mark.slow
def test_threads_may_work_while_traces_begin_and_end(path):
    a = [tn.zeros(3, "float32") for _ in range(2)]
    is_over = threading.Event()

    def work(array):
        while not is_over.is_set():
            tn.push(tn.fill, tn.overwrite(array), 1).wait()
            with array.read():
                pass

    threads = [threading.Thread(target=work, args=(array,)) for array in a]
    for thread in threads:
        thread.start()
    total = 0
    for _ in range(20):
        with tn.trace(path) as t:
            time.sleep(0.005)
        Trace(path)
        total += t.events
    is_over.set()
    for thread in threads:
        thread.join()
    assert total > 0
