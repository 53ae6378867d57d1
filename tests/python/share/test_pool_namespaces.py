# SPDX-License-Identifier: Apache-2.0
"""Messages of tensor pools go into containers: the memory is got at a socket, and what a process holds ends
with it, whichever namespaces it has."""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time

import namespaces
import numpy as np
import pytest
from namespaces import Contained
from other_process import SECONDS, Other

import tenon as tn
from tenon import _core
from tenon._tools import observers

KINDS = [
    ("user",),
    ("user", "pid"),
    ("user", "pid", "mount"),
    ("user", "ipc"),
    ("user", "net"),
    namespaces.ALL,
]
PLACES = [*((kinds, True) for kinds in KINDS), (("user", "mount"), False), (namespaces.ALL, False)]
IDS = ["-".join(kinds) + ("" if proc else "-without /proc") for kinds, proc in PLACES]
in_each_place = pytest.mark.parametrize(("kinds", "proc"), PLACES, ids=IDS)


def await_true(condition):
    end = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.002)


@pytest.fixture
def folder():
    """Its path is short enough for sockets."""
    folder = tempfile.mkdtemp(prefix="tenon-test-")
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
def pool():
    pool = tn.TensorPool("64 MiB", inline=0, idle=0, linger=0)
    yield pool
    pool.revoke("rest")


@pytest.fixture
def path(pool, folder):
    path = f"{folder}/pool"
    with pool.serve(path):
        yield path
    assert not os.path.exists(path)


@in_each_place
def test_messages_go_into_containers_and_back(pool, path, kinds, proc):
    frozen_elsewhere = tn.TensorPool("1 MiB", inline=0, linger=0)
    frozen = frozen_elsewhere.freeze(frozen_elsewhere.put(np.full(3000, 5.0)))
    with Contained(kinds, proc=proc) as worker:
        worker.ask("link = tn.attach_pool(path)", path=path)
        handed_over = pool.dumps({"x": np.arange(5000), "y": frozen})
        worker.ask("m = tn.loads(data); m['x'] += 1", data=handed_over)
        assert worker.ask("(int(m['x'].sum()), float(np.asarray(m['y']).sum()))") == (
            sum(range(5000)) + 5000,
            15000.0,
        )
        many = pool.dumps(np.arange(5000), opens=None, tag="rest")
        for writable in (True, False):
            told = worker.ask("int(tn.loads(data, writable=writable).sum())", data=many, writable=writable)
            assert told == sum(range(5000))
        assert pool.stats()["held"] >= 1
        worker.ask("own = tn.TensorPool('4 MiB', inline=0, linger=0); link.offer(own)")
        answer = worker.ask("own.dumps(np.arange(6000))")
        assert tn.loads(answer).sum() == sum(range(6000))
        with Contained(kinds, proc=proc) as another:
            another.ask("link = tn.attach_pool(path)", path=path)
            answer = worker.ask("own.dumps(np.arange(7000))")
            assert another.ask("int(tn.loads(data).sum())", data=answer) == sum(range(7000))
        worker.ask("del m")
        pool.revoke("rest")
        await_true(lambda: pool.stats()["used"] == 0)


@in_each_place
def test_what_a_killed_receiver_held_is_free(pool, path, kinds, proc):
    for _ in range(3):
        with Contained(kinds, proc=proc) as worker:
            worker.ask("link = tn.attach_pool(path)", path=path)
            worker.ask("held = tn.loads(data)", data=pool.dumps(np.ones(100_000)))
            assert pool.stats()["held"] == 1
            worker.kill()
            await_true(lambda: pool.stats()["used"] == 0)


@pytest.mark.slow
@pytest.mark.parametrize("proc", [True, False])
def test_receivers_that_are_killed_at_any_time_leave_nothing(pool, path, proc):
    for i in range(100):
        with Contained(proc=proc) as worker:
            worker.ask("link = tn.attach_pool(path)", path=path)
            worker.start(
                "held = [tn.loads(m).sum() for m in messages]; held = tn.loads(last)",
                messages=[pool.dumps(np.ones(50_000), timeout=1.0) for _ in range(20)],
                last=pool.dumps(np.ones(50_000), timeout=1.0),
            )
            time.sleep(i / 100 * 0.02)
            worker.kill()
    await_true(lambda: pool.stats()["used"] == 0)


@pytest.mark.parametrize("children", [1, 8])
@pytest.mark.parametrize("proc", [True, False])
def test_what_a_killed_receiver_held_is_free_though_its_forked_children_live(pool, path, children, proc):
    """Without /proc they get open file descriptions of their own from the server: with that of their parent,
    its locks would be theirs, too."""
    with Contained(("user", "mount"), proc=proc) as worker:
        worker.ask("link = tn.attach_pool(path)", path=path)
        worker.ask("held = tn.loads(data)", data=pool.dumps(np.ones(100_000)))
        pids = worker.ask(
            """if True:
            import signal
            def child():
                global held
                del held
                signal.pause()
                os._exit(0)
            pids = []
            for _ in range(n):
                pid = os.fork()
                if pid == 0:
                    child()
                pids.append(pid)
            names['pids'] = pids
            """,
            n=children,
        )
        pids = worker.ask("pids")
        await_true(lambda: pool.stats()["processes"] == 1 and pool.stats()["held"] == 1)
        worker.kill()
        try:
            await_true(lambda: pool.stats()["used"] == 0)
            assert all(os.path.exists(f"/proc/{pid}") for pid in pids)
        finally:
            for pid in pids:
                os.kill(pid, signal.SIGKILL)


@pytest.mark.parametrize("proc", [True, False])
def test_forked_children_of_a_receiver_receive(pool, path, proc):
    with Contained(proc=proc) as worker:
        worker.ask("link = tn.attach_pool(path)", path=path)
        assert worker.ask("int(tn.loads(data).sum())", data=pool.dumps(np.ones(5000))) == 5000
        told = worker.ask(
            """if True:
            reader, writer = os.pipe()
            if os.fork() == 0:
                os.write(writer, str(int(tn.loads(data).sum())).encode())
                os._exit(0)
            os.wait()
            told = os.read(reader, 10)
            """,
            data=pool.dumps(np.ones(6000)),
        )
        assert told is None and worker.ask("told") == b"6000"
    await_true(lambda: pool.stats()["used"] == 0)


def test_a_stopped_receiver_is_not_dead(pool, path):
    with Contained() as worker:
        worker.ask("link = tn.attach_pool(path)", path=path)
        worker.ask("held = tn.loads(data)", data=pool.dumps(np.ones(100_000)))
        worker.stop()
        for _ in range(20):
            time.sleep(0.02)
            assert pool.stats()["held"] == 1
        worker.go_on()
        assert worker.ask("int(held.sum())") == 100_000


def test_without_a_link_the_message_says_what_to_do(pool):
    with Contained() as worker, pytest.raises(FileNotFoundError, match=r"pool\.serve"):
        worker.ask("tn.loads(data)", data=pool.dumps(np.ones(5000), tag="rest"))
    pool.revoke("rest")


def test_a_process_without_proc_does_not_serve_and_is_told_why(folder):
    with Contained(proc=False) as worker, pytest.raises(OSError, match="/proc"):
        worker.ask("tn.TensorPool('1 MiB').serve(path)", path=f"{folder}/pool")
    assert os.listdir(folder) == []


def memory_of_process_1():
    """The report of the only pool whose creator has the number 1 in its PID namespace."""
    segments = json.loads(_core.describe_shared())["segments"]
    (found,) = [s for s in segments if s["kind"] == "tensor pool" and s["creator"]["pid"] == 1]
    return found


def test_a_stranger_in_the_place_of_a_killed_sender_is_not_taken_for_it(pool, path):
    """Both are process 1 of a PID namespace without /proc, where the start of a process is not known."""
    with Contained(proc=False) as holder:
        with Contained(proc=False) as sender:
            for worker in (holder, sender):
                worker.ask("link = tn.attach_pool(path)", path=path)
            sender.ask("own = tn.TensorPool('16 MiB', inline=0, linger=0, idle=0); link.offer(own)")
            messages = [sender.ask("own.dumps(np.ones(500_000))") for _ in range(4)]
            here = tn.loads(messages[3])  # else this process would not give the memory to the stranger
            holder.ask("first, second = map(tn.loads, messages)", messages=messages[:2])
            core = _core.core_of_message(messages[2])
            assert holder.ask("tn._core.take_over_message(core, 600.0)", core=core)
            sender.kill()
        with Contained(proc=False) as stranger:
            stranger.ask("link = tn.attach_pool(path)", path=path)
            assert stranger.ask("(third := tn.loads(data)).sum()", data=messages[2]) == 500_000
            places = {place["place"]: place for place in memory_of_process_1()["participants"]}
            assert places[0]["state"] == "live", "the stranger has the place of the sender"
            before = memory_of_process_1()["committed_nbytes"]
            holder.ask("del first")
            # A cleaner returns the memory that nobody has, here or in another of the processes.
            await_true(lambda: memory_of_process_1()["committed_nbytes"] <= before - 3_500_000)
            assert holder.ask("float(second.sum())") == 500_000.0 == here.sum()


def test_a_server_that_ends_and_comes_back(folder):
    path = f"{folder}/pool"
    program = "pool = tn.TensorPool('4 MiB', inline=0, linger=0); server = pool.serve(path)"
    with Contained() as worker:
        with Other() as sender:
            sender.ask(program, path=path)
            worker.ask("link = tn.attach_pool(path)", path=path)
            unopened = sender.ask("pool.dumps(np.ones(5000))")
            held = sender.ask("pool.dumps(np.ones(6000))")
            worker.ask("held = tn.loads(data)", data=held)
            sender.kill()
        with pytest.raises(tn.MessageGone, match="has ended"):
            worker.ask("tn.loads(data)", data=unopened)
        assert worker.ask("int(held.sum())") == 6000
        with pytest.raises(FileNotFoundError, match="ended"):
            worker.ask("tn.attach_pool(path)", path=path)
        with Other() as sender:
            sender.ask(program, path=path)  # it replaces the socket
            worker.ask("link = tn.attach_pool(path)", path=path)
            assert (
                worker.ask("int(tn.loads(data).sum())", data=sender.ask("pool.dumps(np.ones(7000))")) == 7000
            )


def test_a_worker_outlives_its_servers(folder):
    """As docs/containers.md shows it: with one link, and with messages of a server that has ended."""
    path = f"{folder}/pool"
    with Contained() as worker:
        worker.start("link = tn.attach_pool(path, wait=600)", path=path)
        unopened = None
        for i in range(3):
            with Other() as sender:
                sender.ask(
                    "pool = tn.TensorPool('4 MiB', inline=0, linger=0); server = pool.serve(path)", path=path
                )
                if i == 0:
                    worker.answer()
                else:
                    with pytest.raises(tn.MessageGone, match="has ended"):
                        worker.ask("tn.loads(data)", data=unopened)
                data = sender.ask("pool.dumps(np.ones(6000))")
                assert worker.ask("int(tn.loads(data).sum())", data=data) == 6000
                unopened = sender.ask("pool.dumps(np.ones(5000))")
                sender.kill()
            # It holds nothing of the pool, which is closed there.
            await_true(lambda: not worker.ask(HAS_MEMORY))
            with pytest.raises(tn.MessageGone, match="has ended"):
                worker.ask("tn.loads(data)", data=unopened)


HAS_MEMORY = """any(
    os.path.lexists(f"/proc/self/fd/{fd}") and "tenon:" in os.readlink(f"/proc/self/fd/{fd}")
    for fd in os.listdir("/proc/self/fd")
)"""


def test_a_stopped_server_does_not_keep_the_memory_of_another_one(pool, path, folder):
    others = [tn.TensorPool("1 MiB", inline=0, linger=0) for _ in range(3)]
    with Other() as stopped, Contained() as worker:
        stopped.ask("server = tn.TensorPool('1 MiB', linger=0).serve(path)", path=f"{folder}/stopped")
        worker.ask("links = [tn.attach_pool(path) for path in paths]", paths=[f"{folder}/stopped", path])
        stopped.stop()
        message = pool.dumps([other.freeze(other.put(np.ones(5000))) for other in others])
        assert worker.ask("[int(x.sum()) for x in tn.loads(data)]", data=message) == [5000] * 3
        stopped.go_on()


@pytest.mark.parametrize("proc", [True, False])
def test_only_the_sender_of_a_message_revokes_it(pool, path, proc):
    with Contained(proc=proc) as worker:
        worker.ask("own = tn.TensorPool('1 MiB', inline=0, linger=0)")
        for _ in range(2):  # before and after it has the memory
            message = pool.dumps(np.ones(5000), tag="rest")
            with pytest.raises(ValueError, match="not this process"):
                worker.ask("own.revoke(message=data)", data=message)
            assert pool.stats()["messages"] == 1
            pool.revoke("rest")
            worker.ask("link = tn.attach_pool(path)", path=path)
        worker.ask("own.revoke(message=data)", data=message)  # it has ended
        worker.ask("own.revoke(message=own.dumps(np.ones(5000)))")


def test_processes_with_one_number_are_told_apart(pool, path):
    """Both are process 1 of their PID namespaces."""
    with Contained() as one, Contained() as other:
        for worker, n in ((one, 1), (other, 2)):
            worker.ask("link = tn.attach_pool(path)", path=path)
            messages = [pool.dumps(np.ones(1 << 17)) for _ in range(n)]
            worker.ask("held = [tn.loads(message) for message in messages]", messages=messages)
        segments = json.loads(_core.describe_shared())["segments"]
        own = [s for s in segments if s["totals"] and s["creator"]["pid"] == os.getpid()]
        (found,) = [s for s in own if s["totals"]["sent"] == 3]
        held = observers._holdings(found)
        of_workers = [
            held[p["place"]][0] for p in found["participants"] if p["place"] in held and p["place"] != 0
        ]
        assert sorted(of_workers) == [1, 2]


def test_ls_shows_the_pool_of_a_socket(pool, path):
    pool.dumps(np.ones(5000), tag="rest")
    with Contained() as worker:
        words = "[sys.executable, '-m', 'tenon', 'ls', '--json', *at]"
        run = f"__import__('subprocess').run({words}, capture_output=True, text=True)"
        for at in ([], ["--at", path]):
            done = worker.ask(f"(lambda done: (done.returncode, done.stdout, done.stderr))({run})", at=at)
            assert done[0] == 0, done
            tags = [m["tag"] for s in json.loads(done[1])["segments"] for m in s["messages"]]
            assert tags == (["rest"] if at else [])
        done = worker.ask(
            f"(lambda done: (done.returncode, done.stderr))({run})", at=["--at", f"{path}.none"]
        )
        assert done[0] == 1 and done[1].startswith("tenon ls: no process listens"), done


def test_a_process_of_another_time_namespace_is_refused(path):
    """Deadlines of messages would mean another time there."""
    words = ["unshare", "--user", "--map-root-user", "--time", "--monotonic", "1000000", "--fork"]
    program = "import sys, tenon as tn; tn.attach_pool(sys.argv[1])"
    try:
        tried = subprocess.run([*words, "true"], capture_output=True, text=True, timeout=SECONDS)
    except FileNotFoundError:
        pytest.skip("there is no program `unshare`")
    if tried.returncode != 0:
        pytest.skip(f"no time namespace can be made here: {tried.stderr.strip()}")
    done = subprocess.run(
        [*words, sys.executable, "-c", program, path], capture_output=True, text=True, timeout=SECONDS
    )
    assert done.returncode == 1 and "time namespace" in done.stderr, done.stderr


NOT_ROOT = """
import os, signal, subprocess, sys, time
import numpy as np, tenon as tn
assert os.geteuid() == 1234
pool = tn.TensorPool("16 MiB", inline=0, idle=0, linger=0)
program = '''if True:
    import sys, tenon as tn
    link = tn.attach_pool(sys.argv[1])
    held = tn.loads(bytes.fromhex(sys.argv[2]))
    print(int(held.sum()), flush=True)
    sys.stdin.read()
'''
with pool.serve(sys.argv[1]) as server:
    for _ in range(5):
        message = pool.dumps(np.ones(100_000)).hex()
        command = [*sys.argv[2:], sys.executable, "-c", program, server.path, message]
        worker = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        print(worker.stdout.readline().decode().strip(), pool.stats()["held"])
        worker.kill()
        worker.wait()
        while pool.stats()["used"]:
            time.sleep(0.002)
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to become another user")
@pytest.mark.parametrize("proc", [True, False])
def test_a_user_without_rights_serves_its_own_containers(folder, proc):
    namespaces.skip_unless_possible(proc=proc)
    os.chmod(folder, 0o777)
    user = ["setpriv", "--reuid", "1234", "--regid", "1234", "--clear-groups"]
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}

    def run(*words):
        return subprocess.run(
            [*user, *words], env=environment, cwd="/", capture_output=True, text=True, timeout=SECONDS
        )

    pythons = [sys.executable, shutil.which(f"python3.{sys.version_info[1]}", path="/usr/bin")]
    for python in filter(None, pythons):  # one that other users may read
        try:
            if run(*namespaces.command(proc=proc), python, "-c", "import numpy, tenon").returncode == 0:
                break
        except FileNotFoundError:
            pytest.skip("there is no program `setpriv`")
    else:
        pytest.skip("another user cannot import this package")
    done = run(python, "-c", NOT_ROOT, f"{folder}/pool", *namespaces.command(proc=proc))
    assert done.returncode == 0 and done.stdout.split() == ["100000", "1"] * 5, done.stdout + done.stderr
