# SPDX-License-Identifier: Apache-2.0
"""`tenon ls` shows feeds and channels of other processes as they are, with rates; looking changes nothing and
survives whatever it finds. Oracle of the rates: what feed and channel count themselves."""

import contextlib
import gc
import io
import json
import os
import pty
import random
import re
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

import native_library
import pytest

import tenon as tn
from tenon import _core
from tenon.__main__ import main
from tenon._tools import terminal as _terminal
from tenon._tools.observers import add_rates, command_text, listing

SCHEMA = tn.schema(data=("f4", (8, 16)), label=("i8", (8,)))
SECONDS = 600  # within which all of this is done
DEPTH = 2  # requests in the mailbox of a worker


def fill(batch):
    time.sleep(0.002)
    batch.label[...] = batch.index


@contextlib.contextmanager
def running(**options):
    with tn.Feed(fill, SCHEMA, slots=6, workers=2, **options) as feed:
        batches = iter(feed)
        next(batches)
        yield feed, batches


class Looks:
    """Documents as `tenon ls --watch --json` prints them, one after the other."""

    before = None

    def look(self):
        seen, now = json.loads(_core.describe_shared()), time.monotonic()
        add_rates(seen, self.before, now)
        self.before = seen, now
        return seen


def lines(frame):
    return _terminal.lines(listing(frame))


def feeds():
    return json.loads(_core.describe_shared())["feeds"]


def own(seen):
    """The open feeds of this process, and its files that only have the name of a feed's."""
    damaged = [feed for feed in seen if feed["damaged"]]
    return [feed for feed in seen if feed["pid"] == os.getpid() and not feed["over"]] + [
        feed for feed in damaged if any(process["pid"] == os.getpid() for process in feed["processes"])
    ]


def take(batches, count):
    for _ in range(count):
        next(batches)


def command(*arguments):
    return [sys.executable, "-m", "tenon", "ls", *arguments]


# --------------------------------------------------------------------------------------------- feeds


@pytest.mark.slow
@pytest.mark.parametrize(("way", "shared"), [("fork", False), ("spawn", False), ("fork", True)])
def test_a_feed_with_worker_processes_is_shown_with_its_rates(way, shared):
    with running(processes=way, shared=shared) as (feed, batches):
        looks = Looks()
        looks.look()
        first = sum(worker.fills for worker in feed.stats().per_worker)
        take(batches, 50)
        frame = looks.look()
        last = sum(worker.fills for worker in feed.stats().per_worker)
        (seen,) = own(frame["feeds"])
        assert (seen["damaged"], seen["alive"], seen["over"]) == (None, True, False)
        assert (seen["slots"], seen["rows"], seen["slot_nbytes"]) == (6, 8, feed.stats().slot_nbytes)
        assert seen["command"] == Path("/proc/self/comm").read_text().rstrip("\n")
        assert {worker.pid for worker in feed.stats().per_worker} <= {p["pid"] for p in seen["processes"]}
        # Between the looks at memory and feed, all that has a slot or a request may be filled.
        filled = seen["fills_per_s"] * frame["seconds"]
        assert 40 <= filled <= last - first + 6 + 2 * DEPTH
        assert seen["rows_per_s"] == pytest.approx(8 * seen["fills_per_s"])
        for worker in seen["workers"]:
            assert 0 <= worker["asked"] - worker["answered"] <= DEPTH
            assert worker["last_fill_ns"] >= 2_000_000
        text = "\n".join(lines(frame))
        assert f"feed of {os.getpid()} " in text and " fills/s" in text
    frame = looks.look()
    (closed,) = [one for one in frame["feeds"] if one["file"] == seen["file"]]
    assert closed["over"]
    assert ", closed: " in "\n".join(lines({**frame, "feeds": [closed]}))
    del feed, batches
    assert not any(one["file"] == closed["file"] for one in feeds())


def test_a_worker_at_work_is_busy_and_one_that_has_nothing_to_do_is_not():
    def fill_slowly(batch):
        time.sleep(1e9 if batch.index == 3 else 0)

    def states(is_reached):
        end = time.monotonic() + SECONDS
        while time.monotonic() < end:
            (seen,) = own(feeds())
            if is_reached(seen["workers"][0]):
                return True
            time.sleep(0.01)
        return seen

    with tn.Feed(fill_slowly, SCHEMA, slots=6, processes="fork") as feed:
        assert states(lambda worker: worker["state"] == "asleep" and worker["index"] is None) is True
        batches = iter(feed)
        wanted = {"state": "busy", "index": 3, "epoch": 0, "answered": 3}
        assert states(lambda worker: wanted.items() <= worker.items()) is True
        del batches


def test_generators_on_threads_are_in_no_memory_file():
    with running(processes=False) as (_, batches):
        take(batches, 3)
        assert own(feeds()) == []
    generator = tn.c_function(
        native_library.generators(),
        "int fill(float *data, int64_t *label, size_t n, uint64_t index, uint64_t epoch)",
    )
    with tn.Feed(generator, SCHEMA) as feed:
        assert len(list(zip(range(3), feed))) == 3
        assert own(feeds()) == []


# ------------------------------------------------------------------------------------- damaged memory


@contextlib.contextmanager
def memory_file(content, name="tenon-feed"):
    fd = os.memfd_create(name)
    try:
        os.write(fd, content)
        yield fd
    finally:
        os.close(fd)


def content_of_a_feed():
    with running(processes="fork") as (_, batches):
        take(batches, 3)
        (seen,) = own(feeds())
        for name in os.listdir("/proc/self/fd"):
            path = f"/proc/self/fd/{name}"
            with contextlib.suppress(OSError):
                if os.stat(path).st_ino == seen["file"] and "tenon-feed" in os.readlink(path):
                    return Path(path).read_bytes()
    raise AssertionError("the feed has no file")


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (bytes(200), "it is being made"),
        (b"noise" * 40, "it is not the memory of a feed"),
        (b"", "bytes 0 to 8 cannot be read"),
    ],
    ids=["zeros", "noise", "empty"],
)
def test_damaged_memory_is_shown_as_such(content, says):
    with memory_file(content):
        (seen,) = own(feeds())
        assert says in seen["damaged"]
        assert (seen["pid"], seen["workers"]) == (None, [])
        assert f"damaged: {seen['damaged']}" in "\n".join(lines(Looks().look()))


@pytest.mark.parametrize("nbytes", [8, 100, 8192])
def test_a_file_that_is_cut_is_damaged(nbytes):
    with memory_file(content_of_a_feed()[:nbytes]):
        (seen,) = own(feeds())
        assert "cannot be read" in seen["damaged"] or "do not fit" in seen["damaged"]


@pytest.mark.slow
def test_memory_full_of_noise_is_survived():
    content = content_of_a_feed()
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    looks = Looks()
    undamaged = 0
    for _ in range(200):
        noise = bytearray(content)
        for _ in range(chance.choice((1, 10, 1000))):
            noise[chance.randrange(8, len(noise))] = chance.randrange(256)
        with memory_file(noise) as fd:
            frame = looks.look()
            (seen,) = (feed for feed in frame["feeds"] if feed["file"] == os.fstat(fd).st_ino)
            json.dumps(frame, allow_nan=False)
            assert list(lines(frame))
            undamaged += not seen["damaged"]
    assert undamaged > 0, "noise in the mailboxes was read"


def test_looking_maps_and_opens_nothing():
    def look():
        return Path("/proc/self/maps").read_text().count("tenon-feed"), set(os.listdir("/proc/self/fd"))

    gc.collect()  # what other tests left may close its descriptors
    with other_feed() as child:
        maps, files = look()
        assert any(feed["pid"] == child.pid for feed in feeds())
        maps_after, files_after = look()
        assert maps_after == maps
        assert files_after <= files


def test_other_files_of_the_name_are_no_feeds():
    with memory_file(b"", "tenon-feedx"), memory_file(b"", "other-tenon-feed"):
        (seen,) = own(feeds())
        assert "cannot be read" in seen["damaged"]  # of the first one, which is empty


FEED_THAT_STAYS = """
import sys, time, tenon as tn

def fill(batch):
    batch.label[...] = 1

feed = tn.Feed(fill, tn.schema(label=("i8", (8,))), processes="fork")
batches = iter(feed)
next(batches)
print("ready", flush=True)
time.sleep(1000)
"""


@contextlib.contextmanager
def other_feed():
    child = subprocess.Popen([sys.executable, "-c", FEED_THAT_STAYS], stdout=subprocess.PIPE)
    try:
        assert child.stdout.readline() == b"ready\n"
        yield child
    finally:
        child.kill()
        child.wait()
        child.stdout.close()


def test_a_stopped_process_is_shown_and_not_waited_for():
    with other_feed() as child:
        child.send_signal(signal.SIGSTOP)
        seen = next(feed for feed in feeds() if feed["pid"] == child.pid)
        assert seen["alive"] and seen["workers"][0]["answered"] >= 1


def test_a_feed_whose_process_has_been_killed_vanishes():
    with other_feed() as child:
        looks = Looks()
        assert any(feed["pid"] == child.pid for feed in looks.look()["feeds"])
        child.kill()
        child.wait()
        end = time.monotonic() + SECONDS  # its worker is killed by the kernel
        frame = looks.look()
        while any(feed["pid"] == child.pid and feed["alive"] for feed in frame["feeds"]):
            assert time.monotonic() < end, frame
            frame = looks.look()
        assert list(lines(frame))


# ----------------------------------------------------------------------------------- shared memory


def test_the_slots_of_a_feed_with_a_name_are_counted():
    name = f"tenon.slots.{os.getpid()}"
    with tn.Feed(lambda batch: batch.x.fill(1), {"x": ("f4", (4,))}, slots=6, shared=name) as feed:
        kept = next(iter(feed))
        text = "\n".join(lines(Looks().look()))
        segment = text[text.index(f"{name}  channel") :]
        assert re.search(r"\n  room: [1-6] of 6 slots in use\n", segment)
        assert f"made by: {os.getpid()} " in segment
        del kept


def test_a_channel_is_shown_with_its_rates():
    name = f"tenon.rates.{os.getpid()}"
    channel = tn.Channel(SCHEMA, slots=4, name=name)
    looks = Looks()
    (seen,) = [segment for segment in looks.look()["segments"] if segment["name"] == name]
    assert (seen["channel"]["sent"], seen["channel"]["sent_per_s"]) == (0, None)
    for i in range(9):
        with channel.loan() as item:
            item.label[...] = i
        if i < 7:
            with channel.recv() as item:
                assert item.label[0] == i
    frame = looks.look()
    (seen,) = [segment for segment in frame["segments"] if segment["name"] == name]
    assert (seen["channel"]["sent"], seen["channel"]["received"]) == (9, 7)
    assert seen["channel"]["sent_per_s"] * frame["seconds"] == pytest.approx(9)
    with channel.recv():
        later = looks.look()
    (seen,) = [segment for segment in later["segments"] if segment["name"] == name]
    assert seen["channel"]["received_per_s"] * later["seconds"] == pytest.approx(1)
    assert seen["channel"]["sent_per_s"] == 0
    assert [slot["state"] for slot in seen["channel"]["slots"]].count("held") == 1
    text = "\n".join(lines(later))
    assert f"{name}  channel" in text and "received 8 (" in text


# ------------------------------------------------------------------------------------- the command


def test_watching_prints_objects_with_rates():
    with running(processes="fork") as (_, batches):
        child = subprocess.Popen(command("--watch", "0.3", "--json"), stdout=subprocess.PIPE)
        first = json.loads(child.stdout.readline())
        end = time.monotonic() + SECONDS
        while True:  # a busy machine may let no batch be filled between two looks
            take(batches, 20)
            frame = json.loads(child.stdout.readline())
            (seen,) = own(frame["feeds"])
            if seen["fills_per_s"]:
                break
            assert time.monotonic() < end, frame
        child.kill()
        child.communicate()
    assert frame["format"] == 1 and frame["seconds"] >= 0.3
    (seen,) = own(first["feeds"])
    assert (first["seconds"], seen["fills_per_s"]) == (None, None)


def test_a_feed_as_text(capsys):
    with running(processes="fork"):
        assert main(["ls"]) == 0
    out = capsys.readouterr().out
    assert f"feed of {os.getpid()} " in out and "\x1b" not in out and "WORKER  STATE" in out


@pytest.mark.parametrize("interval", ["0", "-1", "nan", "inf", "x"])
def test_intervals_that_cannot_be_are_status_2(interval):
    with pytest.raises(SystemExit) as error:
        main(["ls", f"--watch={interval}"])
    assert error.value.code == 2


@pytest.mark.parametrize("has_rich", [True, False], ids=["rich", "plain"])
def test_each_look_replaces_the_one_before_on_a_terminal(tmp_path, has_rich):
    paths = [os.environ.get("PYTHONPATH")]
    if has_rich:
        pytest.importorskip("rich")
    else:
        (tmp_path / "rich.py").write_text("raise ImportError('No module named rich')")
        paths.insert(0, str(tmp_path))
    path = os.pathsep.join(filter(None, paths))
    main_end, terminal = pty.openpty()
    a = tn.zeros(4, shared=f"tenon.watch.{os.getpid()}.{has_rich}")
    child = subprocess.Popen(
        [sys.executable, "-c", "import fcntl, os, sys, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0); "
         "os.execv(sys.executable, [sys.executable, '-m', 'tenon', 'ls', '--watch', '0.05'])"],
        stdin=terminal, stdout=terminal, stderr=terminal, start_new_session=True,
        env={**os.environ, "PYTHONPATH": path, "TERM": "xterm", "COLUMNS": "120", "LINES": "40"},
    )  # fmt: skip
    try:
        out, end = b"", time.monotonic() + SECONDS
        while out.count(f"tenon.watch.{os.getpid()}.{has_rich}".encode()) < 3:
            assert time.monotonic() < end and child.poll() is None, out
            if select.select([main_end], [], [], 1)[0]:
                out += os.read(main_end, 65536)
        assert out.startswith(b"\x1b[H\x1b[2J") and out.count(b"\x1b[H\x1b[2J") >= 3
        os.write(main_end, b"\x03")
        while child.poll() is None:
            assert time.monotonic() < end
            if select.select([main_end], [], [], 0.05)[0]:
                out += os.read(main_end, 65536)
        while select.select([main_end], [], [], 0)[0]:
            out += os.read(main_end, 65536)
        assert (child.returncode, b"Traceback" in out) == (0, False), out
    finally:
        child.kill()
        child.wait()
        os.close(main_end)
        os.close(terminal)
        del a


def test_rich_shows_the_words_of_the_plain_text():
    console = pytest.importorskip("rich.console").Console(width=100, file=io.StringIO(), force_terminal=False)
    shown = [
        "feed [red]of[/red] 17 :smile: 'python'",
        _terminal.Table(("PID", "COMMAND"), [(17, "[bold]a"), (4711, "b")]),
        _terminal.Table(("NEVER", "SHOWN"), []),
        "  after",
    ]
    console.print(_terminal.renderable(shown))
    assert console.file.getvalue().split() == " ".join(_terminal.lines(shown)).split()
    console.file.seek(0)
    console.file.truncate()
    console.print(_terminal.renderable(["x" * 150]))
    assert console.file.getvalue().count("x") == 150


def test_columns_of_plain_tables_are_aligned():
    table = _terminal.Table(("PID", "COMMAND", "X"), [(17, "python", 1), (4711, "a", 22)])
    assert list(_terminal.lines(["first", table])) == [
        "first",
        "  PID   COMMAND  X",
        "  17    python   1",
        "  4711  a        22",
    ]


def test_looks_into_a_pipe_end_with_its_reader():
    child = subprocess.Popen(command("--watch=0.02"), stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert child.stdout.readline() == b"\n"
    child.stdout.close()
    errors = child.stderr.read()
    assert (child.wait(SECONDS), errors) == (0, b"")
    child.stderr.close()


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["{script}"], "sleeps.py"),
        (["-u", "-W", "ignore", "{script}", "-m"], "sleeps.py"),
        (["-Xutf8", "-m", "sleeps"], "-m sleeps"),
        (["-usm", "sleeps"], "-m sleeps"),
        (["-c", "import sleeps"], " -c"),
    ],
)
def test_a_process_is_named_by_its_script(tmp_path, arguments, text):
    script = tmp_path / "sleeps.py"
    script.write_text("print('ready', flush=True)\nimport sys\nsys.stdin.read()\n")
    line = [sys.executable, *(argument.format(script=script) for argument in arguments)]
    ends = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    child = subprocess.Popen(line, cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(tmp_path)}, **ends)
    with child:
        assert child.stdout.readline() == b"ready\n"
        comm = Path(f"/proc/{child.pid}/comm").read_text().strip()
        assert command_text({"pid": child.pid, "command": comm}).endswith(text)
        assert command_text({"pid": child.pid, "command": "other"}) == "other"
    assert command_text({"pid": child.pid, "command": comm}) == comm, "it has ended"
