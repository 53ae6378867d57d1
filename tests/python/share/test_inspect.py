# SPDX-License-Identifier: Apache-2.0
"""`tenon ls` shows what other processes have, hold and wait for. It changes nothing, waits for no process,
and survives any contents of the files."""

import fcntl
import json
import os
import pickle
import random
import subprocess
import sys
import threading
import time

import numpy as np
import pytest
from other_process import Other, files_open, maps

import tenon as tn
from tenon import _core
from tenon.__main__ import main
from tenon._tools import observers as _observers
from tenon._tools import terminal as _terminal

ADD_SEALS, SEALS = 1033, 1 | 2 | 4  # F_SEAL_SEAL | F_SEAL_SHRINK | F_SEAL_GROW


def listed(document):
    document = {"feeds": [], **document}
    _observers.add_rates(document, None, 0)
    return "\n".join(_terminal.lines(_observers.listing(document)))


def command(*arguments):
    done = subprocess.run([sys.executable, "-m", "tenon", *arguments], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def seen():
    return json.loads(_core.describe_shared())["segments"]


@pytest.fixture
def label(request):
    """A name that no other test has."""
    return f"tenon.{os.getpid()}.{request.node.name}"[:90]


def segment(name):
    """The report of the segment of this name; None: it does not exist."""
    return next((s for s in seen() if s["name"] == name), None)


def file_named(name):
    return next(s for s in seen() if s["file"] == name)


def own_pool():
    return next(s for s in seen() if s["kind"] == "pool" and s["creator"]["pid"] == os.getpid())


def participants(found):
    return {p["pid"]: p for p in found["participants"]}


def wait_until(is_so, seconds=600):
    end = time.monotonic() + seconds
    while not is_so():
        assert time.monotonic() < end
        time.sleep(0.01)


class Planted:
    """A memory file with these bytes, as any process can create it."""

    def __init__(self, name, content=b"", nbytes=None, sealed=True):
        self.name = name
        self.fd = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        os.ftruncate(self.fd, len(content) if nbytes is None else nbytes)
        os.pwrite(self.fd, content, 0)
        if sealed:
            fcntl.fcntl(self.fd, ADD_SEALS, SEALS)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        os.close(self.fd)


def file_of(name):
    """(The bytes of the memory file of this process' segment of this name before its data, its size.)"""
    for fd in os.listdir("/proc/self/fd"):
        try:
            if f":{name} " in os.readlink(f"/proc/self/fd/{fd}") + " ":
                with open(f"/proc/self/fd/{fd}", "rb") as file:
                    return bytearray(file.read(4 << 20)), os.stat(file.fileno()).st_size
        except FileNotFoundError:
            pass
    raise AssertionError(name)


def test_a_named_array_is_shown_with_its_size_and_who_has_it(other, label):
    a = tn.zeros((480, 640), "float32", shared=label)
    other.ask("a = tn.attach(name)", name=label)
    found = segment(label)
    assert (found["kind"], found["damaged"], len(found["id"])) == ("array", None, 32)
    assert found["file"] == f"tenon:{found['id']}:{label}"
    assert a.nbytes <= found["committed_nbytes"] < found["nbytes"]
    assert found["creator"] | {"command": ""} == {
        "pid": os.getpid(), "command": "", "alive": True, "stopped": False
    }  # fmt: skip
    assert {p["pid"] for p in found["processes"]} == {os.getpid(), other.pid}
    assert {pid: p["state"] for pid, p in participants(found).items()} == {
        os.getpid(): "live",
        other.pid: "live",
    }
    (array,) = found["arrays"]
    assert (array["dtype"], array["shape"], array["nbytes"]) == ("float32", [480, 640], a.nbytes)
    assert sorted(array["users"]) == sorted([os.getpid(), other.pid])
    assert found["leases"] == []


def test_memory_is_gone_from_the_list_with_its_last_process(other, label):
    other.ask("a = tn.zeros(3, shared=name)", name=label)
    assert segment(label)["creator"]["pid"] == other.pid
    other.kill()
    assert segment(label) is None


def test_the_maker_may_have_ended(other, label):
    other.ask("a = tn.zeros(3, shared=name)", name=label)
    a = tn.attach(label)
    other.kill()
    found = segment(label)
    assert (found["creator"]["pid"], found["creator"]["alive"]) == (other.pid, False)
    assert found["creator"]["command"].startswith("python")  # its place remembers it
    del a


def test_who_holds_and_who_waits(other, another, label):
    a = tn.zeros((4, 100), "uint8", shared=label)
    other.ask("a = tn.attach(name); lease = a[1].lease('w')", name=label)
    another.ask("a = tn.attach(name)", name=label)
    another.start("lease = a.lease('r')")
    wait_until(lambda: len(segment(label)["leases"]) == 2)
    held, awaited = sorted(segment(label)["leases"], key=lambda lease: lease["ticket"])
    assert (held["pid"], held["mode"], held["state"]) == (other.pid, "write", "granted")
    assert (held["begin"], held["end"]) == (100, 200)
    assert (awaited["pid"], awaited["mode"], awaited["state"]) == (another.pid, "read", "waiting")
    assert (awaited["begin"], awaited["end"]) == (0, 400)
    coarse = 10e6  # the clock of ages steps by as much as this
    assert 0 < awaited["age_ns"] < held["age_ns"] + coarse < 60e9
    other.ask("lease.release()")
    another.answer()
    assert [(lease["pid"], lease["state"]) for lease in segment(label)["leases"]] == [
        (another.pid, "granted")
    ]
    del a


def test_a_killed_holder_is_shown_as_dead_until_somebody_comes(lone_collector, other, label):
    a = tn.zeros(10, "uint8", shared=label)
    other.ask("import pickle; a = tn.attach(name); sent = pickle.dumps(a); lease = a.lease('w')", name=label)
    other.kill()
    for _ in range(3):  # looking does not tidy up
        found = segment(label)
        dead = participants(found)[other.pid]
        assert (dead["state"], dead["alive"]) == ("dead", False)
        assert dead["command"].startswith("python")
        assert [lease["pid"] for lease in found["leases"]] == [other.pid]
        assert [sent["pid"] for sent in found["arrays"][0]["handles"]] == [other.pid]
        assert other.pid not in {p["pid"] for p in found["processes"]}
    assert "dead, not yet cleaned up" in command("ls")
    with pytest.raises(tn.OwnerDied):
        a.tolist()
    found = segment(label)
    assert set(participants(found)) == {os.getpid()}
    assert (found["leases"], found["arrays"][0]["handles"]) == ([], [])
    death = {"pid": other.pid, "begin": 0, "end": 10, "several": False}
    assert found["arrays"][0]["deaths"] == [death]
    a[...] = 0
    assert segment(label)["arrays"][0]["deaths"] == []


def test_a_death_of_which_nobody_was_told_is_shown(other, another, label):
    a = tn.zeros(10, "uint8", shared=label)
    other.ask("a = tn.attach(name); lease = a[2:5].lease('w')", name=label)
    other.kill()
    another.ask("a = tn.attach(name)", name=label)  # finds it dead
    assert segment(label)["arrays"][0]["deaths"] == [
        {"pid": other.pid, "begin": 2, "end": 5, "several": False}
    ]
    assert f"process {other.pid} died while it was writing bytes 2..5" in command("ls")
    del a


def test_a_stopped_holder_is_named_and_not_waited_for(other, label):
    a = tn.zeros(10, "uint8", shared=label)
    other.ask("a = tn.attach(name); lease = a.lease('w')", name=label)
    other.stop()
    found = segment(label)
    stopped = participants(found)[other.pid]
    assert (stopped["state"], stopped["alive"], stopped["stopped"]) == ("live", True, True)
    assert [p["stopped"] for p in found["processes"] if p["pid"] == other.pid] == [True]
    assert found["leases"][0]["pid"] == other.pid
    assert "live, stopped" in command("ls")
    other.go_on()
    other.ask("lease.release()")
    assert not participants(segment(label))[other.pid]["stopped"]
    del a


def test_a_forked_child_is_a_participant_of_its_own(lone_collector, label):
    a = tn.zeros(10, "uint8", shared=label)
    go_on, end = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(end)
        os.read(go_on, 1)
        os._exit(0)
    try:
        wait_until(lambda: participants(segment(label)).get(child, {}).get("state") == "live")
        assert {p["pid"] for p in segment(label)["processes"]} == {os.getpid(), child}
    finally:
        os.close(end)
        os.waitpid(child, 0)
        os.close(go_on)
    assert participants(segment(label))[child]["state"] == "dead"
    del a


def test_arrays_without_names_lie_in_a_pool_with_their_handles():
    a, b = tn.zeros(100, "uint8", shared=True), tn.zeros(200, "uint8", shared=True)
    handle = pickle.dumps(b)
    arrays = {array["nbytes"]: array for array in own_pool()["arrays"]}
    assert (arrays[100]["dtype"], arrays[100]["shape"]) == (None, None)
    assert arrays[100]["handles"] == []
    assert [(sent["pid"], sent["count"]) for sent in arrays[200]["handles"]] == [(os.getpid(), 1)]
    again = pickle.loads(handle)
    assert [array["handles"] for array in own_pool()["arrays"] if array["nbytes"] == 200] == [[]]
    del a, b, again


def test_many_handles_are_counted(label):
    a = tn.zeros(300, "uint8", shared=label)
    for _ in range(30):
        pickle.dumps(a)
    (array,) = segment(label)["arrays"]
    assert [(sent["pid"], sent["count"], sent["lost"]) for sent in array["handles"]] == [
        (os.getpid(), 30, False)
    ]
    tn.revoke_handles(a)


def test_handles_of_a_killed_process_are_shown_as_lost(lone_collector, other, label):
    a = tn.zeros(10, "uint8", shared=label)
    other.ask("import pickle; a = tn.attach(name); sent = pickle.dumps(a)", name=label)
    assert [sent["lost"] for sent in segment(label)["arrays"][0]["handles"]] == [False]
    other.kill()
    assert [sent["lost"] for sent in segment(label)["arrays"][0]["handles"]] == [True]
    assert f"1 handle lost: the sender, process {other.pid}, has ended" in command("ls")
    del a


def test_messages_of_a_killed_process_are_shown_as_lost(lone_collector, other, another):
    other.ask("pool = tn.TensorPool('1 MiB'); unopened = pool.dumps(np.ones(50000))")
    data = other.ask("pool.dumps(np.ones(50000))")
    another.ask("kept = tn.loads(data)", data=data)  # so the pool stays
    another.stop()  # it would tidy up

    def messages():
        return [one for found in seen() for one in found["messages"] if one["pid"] == other.pid]

    assert [one["lost"] for one in messages()] == [False]
    other.kill()
    assert [one["lost"] for one in messages()] == [True]
    assert f"{other.pid} (lost)" in command("ls")
    another.go_on()
    wait_until(lambda: messages() == [])


def test_messages_are_shown_with_their_tags_and_what_became_of_them():
    pool = tn.TensorPool("1 MB", inline=0, linger=0)
    tag = f"request {os.getpid()} which is long"
    twice, any_number = pool.dumps(np.zeros(1000), tag=tag, opens=2), pool.dumps(np.zeros(2000), opens=None)
    assert tn.loads(pool.dumps(np.zeros(3000))).size == 3000
    frozen = pool.freeze(pool.put(np.zeros(200_000, "u1")))
    with pytest.raises(MemoryError):
        pool.dumps([np.zeros(900_000, "u1")], when_full="raise")

    def shown():
        own = [s for s in seen() if s["kind"] == "tensor pool" and s["creator"]["pid"] == os.getpid()]
        (found,) = [s for s in own if s["totals"]["sent_nbytes"] == 49152]
        return found, {message["nbytes"]: message for message in found["messages"]}

    found, messages = shown()
    assert {name: found["totals"][name] for name in ("sent", "opened", "refused")} == {
        "sent": 3, "opened": 1, "refused": 1
    }  # fmt: skip
    assert (messages[8192]["tag"], messages[8192]["opened"]) == (tag[:23], False)
    assert (messages[16384]["tag"], messages[16384]["opened"]) == (None, False)
    assert "test_inspect.py:" in messages[8192]["site"] and "request" not in messages[8192]["site"]
    for message in (twice, any_number):
        assert tn.loads(message).sum() == 0
    messages = shown()[1]
    assert [(messages[n]["opened"], messages[n]["opens_left"]) for n in (8192, 16384)] == [
        (True, 1),
        (True, None),
    ]
    text = command("ls")
    assert "messages: sent 3 (" in text and "refused 1; 0 unopened (0 B), 0 held by other processes" in text
    assert command("ls", "--messages", tag).count("test_inspect.py:") == 1
    assert command("ls", "--messages").count("test_inspect.py:") >= 2
    assert command("ls", "--messages", "another") == "no message has the tag another\n"
    assert pool.revoke(tag) == 1 and pool.revoke(message=any_number) == 1
    assert shown()[0]["totals"]["revoked"] == 2
    del frozen


@pytest.mark.parametrize("tag", ["a line\nand\x85one\tmore", "x" * 22 + "\u00e9 and more", "x" * 30])
def test_messages_are_found_by_tags_of_any_characters(tag):
    pool = tn.TensorPool("1 MB", inline=0, linger=0)
    message = pool.dumps(np.zeros(500), tag=tag)
    assert command("ls", "--messages", tag).count("test_inspect.py:") == 1
    pool.revoke(message=message)


def test_a_channel_is_shown_with_its_slots_and_ends(other, label):
    channel = tn.Channel({"x": ("f4", (3,)), "k": ("i8", ())}, slots=4, name=label)
    other.ask("ch = tn.Channel.attach(name)", name=label)
    for _ in range(3):
        with channel.loan():
            pass
    other.ask("item = ch.recv()")
    loan = channel.loan()
    found = segment(label)
    assert found["kind"] == "channel"
    shown = found["channel"]
    assert (shown["damaged"], shown["mode"], shown["when_full"]) == (None, "queue", "wait")
    assert shown["fields"] == ["x", "k"]
    assert (shown["sent"], shown["received"], shown["dropped"], shown["deaths"]) == (3, 1, 0, 0)
    assert [(s["state"], s["sequence"], s["holders"]) for s in shown["slots"]] == [
        ("held", 0, [other.pid]), ("ready", 2, []), ("ready", 3, []), ("held", 0, [os.getpid()])
    ]  # fmt: skip
    assert shown["producers"] == [os.getpid()]
    assert shown["consumers"] == [{"pid": other.pid, "cursor": 1, "receives": "every"}]
    loan.drop()
    other.kill()
    shown = segment(label)["channel"]
    assert [s["state"] for s in shown["slots"]] == ["free", "ready", "ready", "free"]
    assert shown["consumers"] == []  # it does not live
    text = command("ls")
    assert "queue, when full wait; sent 3, received 1" in text and "fields x, k" in text


def test_a_channel_of_objects_is_shown_with_its_bytes_and_refusals(other, label):
    channel = tn.Channel(nbytes="4 MiB", slots=6, mode="broadcast", when_full="keep", name=label)
    other.ask("ch = tn.Channel.attach(name, receives='latest')", name=label)
    sizes = [1 << 20, 100_000, 3 << 20]
    for size in sizes[:2]:
        channel.send(np.zeros(size, "u1"))
    other.ask("item = ch.recv()")
    with pytest.raises(TimeoutError):
        channel.send(np.zeros(sizes[2], "u1"), timeout=0)
    shown, stats = segment(label)["channel"], channel.stats()
    assert (shown["objects"], shown["fields"]) == (True, [])
    assert shown["consumers"] == [{"pid": other.pid, "cursor": None, "receives": "latest"}]
    room = shown["room"]
    assert room == {
        "refused": 1, "nbytes": 4 << 20, "used_nbytes": stats["used"], "committed_nbytes": stats["committed"],
        "largest_sent_nbytes": stats["largest_sent"],
    }  # fmt: skip
    slots = [slot for slot in shown["slots"] if slot["state"] != "free"]
    assert [(slot["sequence"], slot["holders"]) for slot in slots] == [(1, []), (2, [other.pid])]
    for slot, size in zip(slots, sizes, strict=False):
        assert size < slot["nbytes"] < size + (64 << 10)
    assert sum(slot["nbytes"] for slot in slots) == room["used_nbytes"] <= room["committed_nbytes"]
    text = command("ls")
    assert "; objects" in text and f"consumers: {other.pid} (newest only)" in text
    assert "room: 2 of 6 slots, 1.1 MiB of 4.0 MiB in use; " in text and "; refused 1" in text
    assert f"{slots[0]['nbytes'] / (1 << 20):.1f} MiB" in text


def test_names_select_what_is_listed(label):
    kept = [tn.zeros(2, shared=label), tn.zeros(2, shared=f"{label}-b")]
    first, second = segment(label)["id"], segment(f"{label}-b")["id"]
    for patterns, found in [
        ((label,), {first}),
        ((f"{label}*",), {first, second}),
        ((f"{label}-?", first[:12]), {first, second}),
        ((label[:-1],), set()),
    ]:
        document = json.loads(command("ls", "--json", *patterns))
        assert {s["id"] for s in document["segments"]} == found and document["feeds"] == []
        text = command("ls", *patterns)
        assert {one for one in (first, second) if one in text} == found
        assert found or text == f"no shared memory has the name {label[:-1]}\n"
    del kept


def test_a_channel_without_a_name_is_that_of_its_maker():
    channel = tn.Channel({"x": ("f4", (2,))}, slots=5)
    with channel.loan() as item:
        item.x = 1
    mine = [s for s in seen() if s["kind"] == "channel" and s["creator"]["pid"] == os.getpid()]
    text = listed({"segments": [s for s in mine if not s["name"]]})
    assert f"(no name, of {os.getpid()} " in text and "room: 1 of 5 slots" in text
    channel.recv()
    channel.close()


def test_an_arena_is_shown_with_the_layout_that_it_holds(label):
    layouts = {"features": {"A": ("f4", (10,))}, "counts": {"D": ("i4", (10,))}}
    arena = tn.Arena(layouts, shared=label)
    found = segment(label)
    assert found["kind"] == "arena"
    assert found["arrays"][0]["arena"] == {
        "damaged": None, "layouts": ["features", "counts"], "active": None, "generation": 0
    }  # fmt: skip
    with arena.use("counts"):
        pass
    shown = segment(label)["arrays"][0]["arena"]
    assert (shown["active"], shown["generation"]) == ("counts", 1)
    assert "an arena of features, counts; it holds counts, changed 1 time" in command("ls")
    pooled = tn.Arena(layouts, shared=True)
    assert ["features", "counts"] in [a["arena"]["layouts"] for a in own_pool()["arrays"] if a["arena"]]
    del pooled


KEYS = {
    "segment": "id name kind damaged file nbytes committed_nbytes created_ns creator processes participants "
    "arrays leases channel messages totals",
    "process": "pid command alive stopped",
    "participant": "place state pid command alive stopped age_ns",
    "array": "block begin nbytes dtype shape version users places handles more_handles deaths arena",
    "handle": "pid place count lost",
    "death": "pid begin end several",
    "lease": "block pid place mode state begin end ticket age_ns task",
    "arena": "damaged layouts active generation",
    "channel": "damaged mode when_full fields sent received dropped deaths objects room slots producers "
    "consumers sent_per_s received_per_s dropped_per_s",
    "room": "refused nbytes used_nbytes committed_nbytes largest_sent_nbytes",
    "slot": "state sequence nbytes holders",
    "message": "record nbytes opens_left age_ns left_ns pid lost site tag opened handed_over",
    "totals": "sent sent_nbytes opened expired revoked receivers_gone inline inline_nbytes refused waits "
    "waited_ns",
    "consumer": "pid cursor receives",
    "feed": "file damaged pid command alive over nbytes rows slots slot_nbytes workers processes "
    "fills_per_s rows_per_s",
    "worker": "worker state epoch index asked answered last_fill_ns fills_per_s",
}


def test_the_names_of_the_document_s_members_stay(other, label):
    """They are those of docs/inspect.md. None may be removed or changed."""
    a = tn.zeros(10, "uint8", shared=label)
    channel = tn.Channel({"x": ("f4", (3,))}, slots=3, name=label + ".channel")
    arena = tn.Arena({"f": {"A": ("f4", (10,))}}, shared=label + ".arena")
    feed = tn.Feed(str, tn.schema(x=("f4", (2,))), processes="fork")
    with channel.loan():
        pass
    item = channel.recv()
    pool = tn.TensorPool("1 MB", inline=0)
    message = pool.dumps(np.zeros(1000), tag="kept")
    other.ask("a = tn.attach(name); lease = a.lease('w')", name=label)
    other.kill()
    with pytest.raises(FileNotFoundError):
        tn.attach(label + ".none")
    again = tn.attach(label)
    pickle.dumps(a)
    lease = a.lease("w", on_owner_died="ignore")
    document = json.loads(command("ls", "--json"))
    assert set(document) == {"format", "segments", "feeds", "seconds"} and document["format"] == 1
    met = set()

    def check(kind, value):
        met.add(kind)
        assert set(value) == set(KEYS[kind].split()), kind

    for found in document["segments"]:
        check("segment", found)
        if found["creator"]:
            check("process", found["creator"])
        for kind in ("process", "participant", "array", "lease", "message"):
            for value in found[{"process": "processes"}.get(kind, kind + "s")]:
                check(kind, value)
        for array in found["arrays"]:
            for kind in ("handle", "death"):
                for value in array[kind + "s"]:
                    check(kind, value)
            if array["arena"]:
                check("arena", array["arena"])
        if found["totals"]:
            check("totals", found["totals"])
        if found["channel"]:
            check("channel", found["channel"])
            check("room", found["channel"]["room"])
            for kind in ("slot", "consumer"):
                for value in found["channel"][kind + "s"]:
                    check(kind, value)
    for found in document["feeds"]:
        check("feed", found)
        for kind, values in (("worker", found["workers"]), ("process", found["processes"])):
            for value in values:
                check(kind, value)
    assert met >= set(KEYS) - {"death"}
    assert "test_inspect.py:" in command("ls"), "the line that has sent the message"
    pool.revoke("kept")
    feed.close()
    del again, lease, item, arena, message


def test_looking_joins_nothing_and_leaves_nothing_here(label):
    a = tn.zeros(10, "uint8", shared=label)
    segment(label)
    before, files, mapped = segment(label), files_open(), maps()
    for _ in range(20):
        segment(label)
    after = segment(label)
    for found in (before, after):
        for place in found["participants"]:
            place.pop("age_ns")
    assert after == before
    # Not at once: a thread may be closing what an earlier test had. It opens the file of a name to remove it.
    wait_until(lambda: files_open() <= files and maps() <= mapped)
    del a


def test_looking_from_another_process_is_seen_by_nobody(label):
    """It is no participant, and has the file open only for a moment."""
    a = tn.zeros(10, "uint8", shared=label)
    json.loads(command("ls", "--json"))
    found = segment(label)
    assert len(found["participants"]) == 1 and len(found["processes"]) == 1
    del a


def test_files_that_are_none_of_ours_are_shown_as_damaged(label):
    a = tn.zeros(10, "uint8", shared=label)
    content, nbytes = file_of(label)
    broken = bytearray(content)
    broken[200] ^= 1
    later = bytearray(content)
    later[16] = 9  # the layout's major version
    cases = {
        "tenon:unsealed": (Planted("tenon:unsealed", content, nbytes, sealed=False), "not sealed"),
        "tenon:empty": (Planted("tenon:empty"), "0 bytes"),
        "tenon:zeros": (Planted("tenon:zeros", nbytes=1 << 20), "does not begin"),
        "tenon:text": (Planted("tenon:text", b"TENONSEG" * 30000), "byte order"),
        "tenon:sum": (Planted("tenon:sum", broken, nbytes), "sum"),
        "tenon:size": (Planted("tenon:size", content, nbytes * 2), "size"),
        "tenon:version": (Planted("tenon:version", later, nbytes), "version"),
    }
    shown = {s["file"]: s for s in seen()}
    text = command("ls")
    for name, (planted, what) in cases.items():
        assert what in shown[name]["damaged"], shown[name]
        assert (shown[name]["kind"], shown[name]["arrays"]) == ("unknown", [])
        assert [p["pid"] for p in shown[name]["processes"]] == [os.getpid()]
        assert name in text and f"damaged: {shown[name]['damaged']}" in text
        planted.__exit__()
    del a


@pytest.mark.skipif(os.geteuid() == 0, reason="root opens every file")
def test_a_file_that_cannot_be_opened_is_shown():
    with Planted("tenon:closed", nbytes=100) as planted:
        os.fchmod(planted.fd, 0)
        assert file_named("tenon:closed")["damaged"] == "it cannot be opened"


def test_names_of_files_and_processes_are_plain_text_whatever_they_hold():
    with Planted(b"tenon:\xff\x1b[31m\n\"'\\\xe2\x82\xac".decode(errors="surrogateescape"), nbytes=10):
        document = json.loads(command("ls", "--json"))
        (name,) = [s["file"] for s in document["segments"] if "[31m" in s["file"]]
        assert name.startswith("tenon:\ufffd\x1b[31m") and name.endswith("\u20ac")
        text = command("ls")
        assert "\x1b" not in text and "[31m" in text


@pytest.mark.slow
def test_any_bytes_behind_a_good_header_are_survived(label):
    """Oracle: the answer is JSON, and can be shown as text."""
    channel = tn.Channel({"x": ("f4", (3,)), "k": ("i8", ())}, slots=4, name=label)
    arena = tn.Arena({"f": {"A": ("f4", (10,))}}, shared=label + ".arena")
    with channel.loan():
        pass
    seed = random.randrange(1 << 32)
    print("seed", seed)
    source = random.Random(seed)
    for name in (label, label + ".arena"):
        content, nbytes = file_of(name)
        used = [at for at in range(4032, len(content)) if content[at]]  # from where the header ends
        for _ in range(40):
            damaged = bytearray(content)
            for _ in range(source.choice([1, 30, 300])):
                at = source.choice(used) if source.random() < 0.8 else source.randrange(4032, len(content))
                damaged[at] = source.randrange(256)
            with Planted("tenon:any", damaged, nbytes):
                shown = file_named("tenon:any")
                assert shown["damaged"] is None
                assert listed({"segments": [shown]})
    del arena


@pytest.mark.slow
def test_segments_that_come_and_go_while_it_looks(other, label):
    other.start(
        "end = time.monotonic() + 3\n"
        "n = 0\n"
        "while time.monotonic() < end:\n"
        "    a = tn.zeros(5, 'u1', shared=f'{name}.{n % 3}'); l = a.lease('w')\n"
        "    if n % 8 == 0: time.sleep(0.05)\n"  # others are gone before they can be opened
        "    del l, a; n += 1",
        name=label,
    )
    looks, found = 0, set()
    while other.is_busy(0.001):
        for s in seen():
            if (s["name"] or "").startswith(label):
                found.add(s["name"])
        looks += 1
    other.answer()
    assert looks > 1 and found


def test_several_threads_look_at_once(label):
    a = tn.zeros(5, "u1", shared=label)
    names = []
    threads = [threading.Thread(target=lambda: names.append(segment(label)["name"])) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert names == [label] * 8
    del a


def test_the_columns_of_the_text_are_aligned(other, label):
    a = tn.zeros((4, 3), "int32", shared=label)
    other.ask("a = tn.attach(name); lease = a.lease('r')", name=label)
    text = listed({"segments": [segment(label)]})
    lines = text.splitlines()
    assert lines[0].startswith(f"{label}  array  ")
    at = next(i for i, line in enumerate(lines) if line.startswith("  PLACE"))
    for column in ("PID", "COMMAND", "STATE", "SINCE"):
        where = lines[at].index(column)
        assert all(line[where - 1] == " " and line[where] != " " for line in lines[at + 1 : at + 3])
    assert "  0      48     int32  (4,3)" in text
    assert f"  block 0  {other.pid}  read  0..48" in text
    del a


def test_without_any_memory_it_says_so(monkeypatch, capsys):
    assert listed({"format": 1, "segments": []}) == "no process of this user shares memory"
    monkeypatch.setattr(_core, "describe_shared", lambda: '{"format": 1, "segments": [], "feeds": []}')
    assert main(["ls"]) == 0
    assert capsys.readouterr().out == "no process of this user shares memory\n"


@pytest.mark.parametrize(
    ("nbytes", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.0 KiB"),
        (3 << 20, "3.0 MiB"),
        (5 << 30, "5.0 GiB"),
        (2 << 40, "2.0 TiB"),
    ],
)
def test_sizes_as_text(nbytes, text):
    assert _observers.nbytes_text(nbytes) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.25, "0.25 s"), (12, "12 s"), (180, "3 min"), (7300, "2 h"), (200000, "2 d")],
)
def test_ages_as_text(seconds, text):
    assert _observers.age_text(seconds) == text


def collected(label):
    document = json.loads(command("gc", "--json"))
    assert document["format"] == 1
    return next(s for s in document["segments"] if s["name"] == label)


def test_gc_gives_back_what_the_dead_held_and_keeps_what_the_living_have(
    lone_collector, other, another, label
):
    a = tn.zeros(10, "uint8", shared=label)
    other.ask("import pickle; a = tn.attach(name); lease = a[:5].lease('w')", name=label)
    other.ask("sent = [pickle.dumps(a) for _ in range(3)]")
    another.ask("a = tn.attach(name); lease = a[5:].lease('r')", name=label)
    other.kill()
    done = collected(label)
    assert set(done) == set(
        "id name kind damaged file committed_nbytes processes participants leases handles failure".split()
    )
    assert [(p["pid"], p["state"]) for p in done["participants"]] == [(other.pid, "dead")]
    assert (done["leases"], done["handles"], done["failure"]) == (1, 3, None)
    assert {p["pid"] for p in done["processes"]} == {os.getpid(), another.pid}
    found = segment(label)
    assert set(participants(found)) == {os.getpid(), another.pid}
    assert [lease["pid"] for lease in found["leases"]] == [another.pid]
    assert found["arrays"][0]["handles"] == []
    with pytest.raises(tn.OwnerDied) as told:  # as ever
        a[:5].tolist()
    assert told.value.pid == other.pid
    done = collected(label)
    assert (done["participants"], done["leases"], done["handles"]) == ([], 0, 0)


def test_gc_wakes_who_waited_for_the_dead(lone_collector, other, another, label):
    a = tn.zeros(10, "uint8", shared=label)
    other.ask("a = tn.attach(name); lease = a.lease('w')", name=label)
    another.ask("a = tn.attach(name)", name=label)
    another.start("lease = a.lease('r', on_owner_died='ignore')")
    wait_until(lambda: len(segment(label)["leases"]) == 2)
    other.kill()
    command("gc")
    another.answer()
    del a


def test_gc_does_not_touch_a_stopped_process(lone_collector, other, label):
    a = tn.zeros(10, "uint8", shared=label)
    other.ask("a = tn.attach(name); lease = a.lease('w')", name=label)
    other.stop()
    assert collected(label)["participants"] == []
    assert [lease["pid"] for lease in segment(label)["leases"]] == [other.pid]
    other.go_on()
    other.ask("lease.release()")
    del a


def test_gc_says_why_and_what(lone_collector, label):
    a = tn.zeros(10, "uint8", shared=label)
    for _ in range(100):  # other tests collect, and have what is to be collected, too
        with Other() as other:
            other.ask("a = tn.attach(name); lease = a.lease('w', on_owner_died='ignore')", name=label)
            before = command("gc")
            other.kill()
            text = command("gc")
        if "nothing to collect" in before and f"collected: the place of {other.pid} " in text:
            break
    assert f"{label}  array" in before and "nothing to collect" in before
    assert "the system frees its" in before and f"{os.getpid()} " in before
    assert f"collected: the place of {other.pid} " in text
    assert "collected: 1 lease and 0 handles of these processes" in text
    assert _observers.summary({"segments": []}).endswith("nothing to collect")
    del a


def test_gc_leaves_damaged_files_alone(lone_collector):
    with Planted("tenon:text", b"TENONSEG" * 30000) as planted:
        before = os.pread(planted.fd, 1 << 20, 0)
        assert "damaged: this is no shared memory" in command("gc")
        assert os.pread(planted.fd, 1 << 20, 0) == before


def test_gc_in_a_process_that_has_the_memory_itself(lone_collector, other, label):
    a = tn.zeros(10, "uint8", shared=label)
    lease = a.lease("r")
    other.ask("a = tn.attach(name)", name=label)
    other.kill()
    done = next(s for s in json.loads(_core.collect_shared())["segments"] if s["name"] == label)
    assert [p["pid"] for p in done["participants"]] == [other.pid]
    assert set(participants(segment(label))) == {os.getpid()}
    assert len(segment(label)["leases"]) == 1
    del lease
