# SPDX-License-Identifier: Apache-2.0
"""The socket at which a tensor pool is served: its file, who is answered, and what processes at the other end
may do."""

import contextlib
import fcntl
import multiprocessing
import os
import pickle
import shutil
import signal
import socket
import stat
import struct
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from other_process import SECONDS, Other, files_open

import tenon as tn

fork = multiprocessing.get_context("fork")
GET, OFFER = 1, 2
is_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root: another user")


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
def path(folder):
    return f"{folder}/pool"


@pytest.fixture
def pool():
    return tn.TensorPool("4 MiB", inline=0, idle=0, linger=0)


def works(pool, path):
    """Another process attaches to the pool and receives."""
    with Other() as other:
        other.ask("link = tn.attach_pool(path)", path=path)
        return other.ask("int(tn.loads(data).sum())", data=pool.dumps(np.ones(1000))) == 1000


# ------------------------------------------------------------------------------------------ its file


def test_the_socket_is_this_user_s_alone_and_goes_with_the_server(pool, path):
    server = pool.serve(path)
    status = os.stat(path)
    assert stat.S_ISSOCK(status.st_mode) and stat.S_IMODE(status.st_mode) == 0o600
    assert server.path == path and path in repr(server)
    assert works(pool, path)
    server.close()
    server.close()
    assert os.listdir(os.path.dirname(path)) == []
    server = pool.serve(path)
    del server
    assert os.listdir(os.path.dirname(path)) == []


def test_a_process_that_ends_normally_removes_its_socket(path):
    program = (
        "import sys, tenon as tn; pool = tn.TensorPool('1 MiB'); s = pool.serve(sys.argv[1]); print(s.path)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, path], capture_output=True, text=True, timeout=SECONDS
    )
    assert done.returncode == 0 and done.stdout == f"{path}\n", done.stderr
    assert not os.path.exists(path)


def test_the_socket_of_a_killed_process_is_replaced(pool, path):
    with Other() as other:
        other.ask("server = tn.TensorPool('1 MiB', linger=0).serve(path)", path=path)
        other.kill()
    assert os.path.exists(path)
    with pytest.raises(FileNotFoundError, match="has ended"):
        tn.attach_pool(path)
    with pool.serve(path):
        assert works(pool, path)


def test_what_was_left_before_it_listened_is_swept(pool, path):
    folder = os.path.dirname(path)
    os.mkdir(f"{folder}/.tenon-socket.17", 0o700)
    left = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    left.bind(f"{folder}/.tenon-socket.17/socket")
    left.close()
    os.mkdir(f"{folder}/.tenon-socket.18", 0o700)
    open(f"{folder}/.tenon-socket.file", "w").close()
    with pool.serve(path):
        assert sorted(os.listdir(folder)) == [".tenon-socket.file", "pool"]


@pytest.mark.parametrize("kind", [socket.SOCK_SEQPACKET, socket.SOCK_STREAM])
def test_the_socket_of_a_living_process_is_not_replaced(pool, path, kind):
    with socket.socket(socket.AF_UNIX, kind) as other:
        other.bind(path)
        other.listen(1)
        before = os.stat(path).st_ino
        with pytest.raises(OSError, match="listens"):
            pool.serve(path)
        assert os.stat(path).st_ino == before
        waiting = []
        with contextlib.suppress(BlockingIOError):  # until its backlog is full
            while True:
                waiting.append(socket.socket(socket.AF_UNIX, kind))
                waiting[-1].setblocking(False)
                waiting[-1].connect(path)
        with pytest.raises(OSError, match="listens"):
            pool.serve(path)
        for link in waiting:
            link.close()


def test_a_served_pool_lives_as_long_as_its_server(path):
    server = tn.TensorPool("1 MiB", linger=0).serve(path)
    tn.attach_pool(path).close()
    server.close()


def test_what_is_no_socket_is_not_replaced(pool, path):
    with open(path, "w") as file:
        file.write("kept")
    with pytest.raises(OSError, match="not a socket"):
        pool.serve(path)
    assert Path(path).read_text() == "kept"
    os.unlink(path)
    os.symlink("/nowhere", path)
    with pytest.raises(OSError, match="not a socket"):
        pool.serve(path)


def test_a_server_removes_only_its_own_socket(pool, path):
    server = pool.serve(path)
    os.unlink(path)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as other:
        other.bind(path)
        server.close()
        assert os.path.exists(path)


@pytest.mark.parametrize("path", ["", "@abstract", "\0abstract", "/tmp/a\0b", "/tmp/", "/tmp/" + "x" * 103])
def test_paths_that_no_socket_can_have(pool, path):
    for call in (pool.serve, tn.attach_pool):
        with pytest.raises(ValueError, match="path"):
            call(path)


@pytest.mark.parametrize("name", [b"pool", b"p\xff", "p\udcff"])
def test_paths_may_be_bytes_of_any_kind(pool, folder, name):
    path = os.path.join(folder if isinstance(name, str) else folder.encode(), name)
    with pool.serve(path) as server:
        assert os.path.exists(path) and os.fsencode(server.path) == os.fsencode(path)
        tn.attach_pool(path).close()


def test_a_link_stays_at_its_socket_when_the_process_changes_its_directory(pool, path):
    own = "own = tn.TensorPool('1 MiB', inline=0, linger=0)"
    with pool.serve(path), Other() as other:
        other.ask(
            f"os.chdir(folder); link = tn.attach_pool('pool'); os.chdir('/'); {own}",
            folder=os.path.dirname(path),
        )
        other.ask("link.offer(own)")


def test_who_attaches_may_wait_for_a_server(pool, path):
    with Other() as other:
        other.start("tn.attach_pool(path, wait=600).close()", path=path)
        assert other.is_busy()
        with pool.serve(path):
            other.answer()


def test_a_folder_that_does_not_exist(pool, path):
    with pytest.raises(OSError, match="directory"):
        pool.serve(f"{path}/none/pool")
    with pytest.raises(FileNotFoundError, match="no process listens"):
        tn.attach_pool(f"{path}/none/pool")


@pytest.mark.slow
def test_of_two_processes_that_serve_at_once_one_is_refused(path):
    with Other() as first, Other() as second:
        for other in (first, second):
            other.ask("pool = tn.TensorPool('1 MiB', linger=0); server = None")
        for _ in range(50):
            for other in (first, second):
                other.start(
                    """if True:
                    try:
                        server = pool.serve(path)
                        told = True
                    except OSError as error:
                        told = str(error)
                    """,
                    path=path,
                )
            for other in (first, second):
                other.answer()
            told = [other.ask("told") for other in (first, second)]
            assert told.count(True) == 1 and "listens" in str(told), told
            winner = (first, second)[told.index(True)]
            link = tn.attach_pool(path)
            assert tn.loads(winner.ask("pool.dumps(np.ones(10000))")).sum() == 10000
            link.close()
            winner.ask("server.close()")
            assert os.listdir(os.path.dirname(path)) == []


# ------------------------------------------------------------------------------------------ forks and stops


def test_a_forked_child_of_a_server_does_not_keep_its_socket(path):
    with Other() as other:
        other.ask("pool = tn.TensorPool('1 MiB', linger=0); server = pool.serve(path)", path=path)
        pid = other.ask("(lambda pid: pid or __import__('signal').pause())(os.fork())")
        other.kill()
        with pytest.raises(FileNotFoundError, match="has ended"):
            tn.attach_pool(path)
        os.kill(pid, signal.SIGKILL)


def test_a_forked_child_neither_removes_nor_closes_the_socket(pool, path):
    server = pool.serve(path)
    child = fork.Process(target=server.close)
    child.start()
    child.join(SECONDS)
    assert child.exitcode == 0 and os.path.exists(path)
    assert works(pool, path)
    server.close()


def test_a_forked_child_serves_a_pool_of_its_own(pool, path):
    with pool.serve(path):
        reader, writer = os.pipe()
        pid = os.fork()
        if pid == 0:
            with pool.serve(f"{path}.child"):
                os.write(writer, pool.dumps(np.ones(1000)))
                signal.pause()
        message = os.read(reader, 65536)
        with Other() as other:
            other.ask("link = tn.attach_pool(path)", path=f"{path}.child")
            assert other.ask("int(tn.loads(data).sum())", data=message) == 1000
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        os.close(reader)
        os.close(writer)


def test_a_process_of_multiprocessing_removes_its_socket_at_its_end(path):
    def run():
        global kept
        kept = tn.TensorPool("1 MiB", linger=0).serve(path)
        assert os.path.exists(path)

    child = fork.Process(target=run)
    child.start()
    child.join(SECONDS)
    assert child.exitcode == 0 and not os.path.exists(path)


def test_a_process_that_has_closed_all_descriptors_serves_again(path):
    """As daemons do. What the program opens then is not taken for what the library had."""
    program = """if True:
        import os, sys, tenon as tn
        first = tn.TensorPool("1 MiB", linger=0).serve(sys.argv[1])
        tn.attach_pool(sys.argv[1]).close()
        os.closerange(3, 1000)
        strangers = [os.eventfd(0, os.EFD_NONBLOCK) for _ in range(20)]
        second = tn.TensorPool("1 MiB", linger=0).serve(sys.argv[1] + ".new")
        print("served", flush=True)
        sys.stdin.read()
        for event in strangers:
            try:
                print("signalled", os.eventfd_read(event))
            except BlockingIOError:
                pass
    """
    words = [sys.executable, "-c", program, path]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout.readline() == b"served\n"
        for _ in range(3):
            tn.attach_pool(f"{path}.new", timeout=SECONDS).close()
        out, _ = process.communicate(timeout=SECONDS)
    assert process.returncode == 0 and out == b""


def sockets_open():
    """The inodes."""
    found = set()
    for file in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):
            if (target := os.readlink(f"/proc/self/fd/{file}")).startswith("socket:"):
                found.add(target)
    return found


def test_a_forked_child_has_no_connection_of_a_thread_that_asks(path):
    """Else the server would not see its end, and a file that was sent over it would stay open."""
    with Other() as other:
        other.ask("server = tn.TensorPool('1 MiB', linger=0).serve(path)", path=path)
        other.stop()
        before = sockets_open()
        asking = threading.Thread(target=lambda: tn.attach_pool(path, timeout=SECONDS).close())
        asking.start()
        await_true(lambda: sockets_open() - before)
        for _ in range(20):
            child = fork.Process(target=lambda: os._exit(len(sockets_open() - before)))
            child.start()
            child.join(SECONDS)
            assert child.exitcode == 0
        assert sockets_open() - before, "the parent goes on"
        other.go_on()
        asking.join(SECONDS)
        await_true(lambda: sockets_open() == before)


def test_a_signal_handler_that_forks_harms_no_question(path):
    """The child asks again over a connection of its own."""
    with Other() as other, Other() as asking:
        other.ask("server = tn.TensorPool('1 MiB', linger=0).serve(path)", path=path)
        other.stop()
        asking.ask(
            """if True:
            import signal
            reader, writer = os.pipe()
            told = None
            def handler(*_):
                global told
                told = os.fork()
            signal.signal(signal.SIGUSR1, handler)
            """
        )
        asking.start(
            """if True:
            tn.attach_pool(path, timeout=600).close()
            if told == 0:
                os.write(writer, b"attached")
                os._exit(0)
            """,
            path=path,
        )
        assert asking.is_busy()
        os.kill(asking.pid, signal.SIGUSR1)
        children = Path(f"/proc/{asking.pid}/task/{asking.pid}/children")
        await_true(lambda: children.read_text())
        other.go_on()
        asking.answer()
        assert asking.ask("os.read(reader, 100)") == b"attached"
        asking.ask("os.waitpid(told, 0)")


def test_a_stopped_server_is_a_timeout(path):
    with Other() as other:
        other.ask("server = tn.TensorPool('1 MiB', linger=0).serve(path, backlog=1)", path=path)
        other.stop()
        for _ in range(4):  # first it does not answer, then its backlog is full
            with pytest.raises(TimeoutError, match="stopped"):
                tn.attach_pool(path, timeout=0.1)
        other.go_on()
        tn.attach_pool(path).close()


def test_ctrl_c_ends_the_wait_for_a_stopped_server(path):
    with Other() as other, Other() as waiting:
        other.ask("server = tn.TensorPool('1 MiB', linger=0).serve(path)", path=path)
        other.stop()
        waiting.start("tn.attach_pool(path, timeout=600)", path=path)
        assert waiting.is_busy()
        os.kill(waiting.pid, signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            waiting.answer()
        other.go_on()
        waiting.ask("tn.attach_pool(path).close()")


def test_other_threads_run_while_servers_are_asked(path):
    with Other() as ended, Other() as stopped, Other() as asking:
        message = ended.ask("(pool := tn.TensorPool('1 MiB', inline=0, linger=0)).dumps(np.ones(5000))")
        ended.kill()
        stopped.ask("server = tn.TensorPool('1 MiB', linger=0).serve(path)", path=path)
        asking.ask(
            """if True:
            import threading
            link = tn.attach_pool(path)
            steps = 0
            def count():
                global steps
                while True:
                    time.sleep(0.001)
                    steps += 1
            threading.Thread(target=count, daemon=True).start()
            """,
            path=path,
        )
        stopped.stop()
        told = asking.ask(
            """if True:
            before = steps
            try:
                tn.loads(message)
            except tn.MessageGone:
                told = steps - before
            """,
            message=message,
        )
        assert told is None and asking.ask("told") > 20
        asking.ask("links = [tn.attach_pool(path) for _ in range(0)]")
        stopped.go_on()


def test_a_link_is_closed_while_it_offers(pool, path):
    own = tn.TensorPool("1 MiB", linger=0)
    with pool.serve(path):
        for _ in range(200):
            link = tn.attach_pool(path)
            thread = threading.Thread(target=link.close)
            thread.start()
            try:
                link.offer(own)
            except ValueError as error:
                assert "closed" in str(error)
            thread.join()


# ------------------------------------------------------------------------------------------ descriptors

LIMIT = """if True:
    import resource
    def limit_files(n):
        "To n more than there are now; None: as many as may be."
        hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        if n is not None:
            free = os.dup(0)
            os.close(free)
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard if n is None else free + n, hard))
"""


def test_a_receiver_without_descriptors_gets_an_error(pool, path):
    with pool.serve(path), Other() as other:
        other.ask("tn.attach_pool(path).close()", path=path)
        other.ask(LIMIT)
        before = other.ask("len(os.listdir('/proc/self/fd'))")
        told = []
        for n in range(8):
            other.ask("limit_files(n)", n=n)
            try:
                other.ask("link = tn.attach_pool(path)")
                told.append("")
            except OSError as error:
                told.append(str(error))
            other.ask("limit_files(None)")
        assert told[0] and not told[-1] and all("descriptor" in text for text in told if text), told
        other.ask("link.close()")
        assert other.ask("len(os.listdir('/proc/self/fd'))") <= before + 1
        assert other.ask("int(tn.loads(data).sum())", data=pool.dumps(np.ones(1000))) == 1000


def test_a_server_without_descriptors_serves_when_it_has_some(path):
    with Other() as other:
        other.ask("pool = tn.TensorPool('1 MiB', inline=0, linger=0); server = pool.serve(path)", path=path)
        tn.attach_pool(path).close()
        other.ask(LIMIT)
        for n in range(3):
            other.ask("limit_files(n)", n=n)
            try:
                tn.attach_pool(path, timeout=0.3).close()
            except TimeoutError:
                assert n <= 1  # the connection waits
            except OSError as error:
                assert (n <= 2 and "descriptor" in str(error)) or "Too many open files" in str(error)
            other.ask("limit_files(None)")
            tn.attach_pool(path).close()


# ------------------------------------------------------------------------------------------ other users


def as_user(user, call):
    """What a call raises or returns in a forked child of this user."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.setgroups([])
            os.setgid(user)
            os.setuid(user)
            told = repr(call())
        except BaseException as error:
            told = f"{type(error).__name__}: {error}"
        os.write(writer, told.encode())
        os._exit(0)
    os.waitpid(pid, 0)
    told = os.read(reader, 65536).decode()
    os.close(reader)
    os.close(writer)
    return told


@is_root
def test_processes_of_other_users_are_refused(pool, path, folder):
    os.chmod(folder, 0o755)
    with pool.serve(path):
        assert "Permission denied" in as_user(1234, lambda: tn.attach_pool(path))
        os.chmod(path, 0o666)
        told = as_user(1234, lambda: tn.attach_pool(path))
        assert "user 0" in told and "1234" in told and told.startswith("OSError"), told
        assert "Refused" in as_user(1234, lambda: "Refused" if ask(path)[0][1] == 2 else "given")


@is_root
def test_servers_of_other_users_are_refused(path, folder):
    os.chmod(folder, 0o777)
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.setgid(1234)
        os.setuid(1234)
        listener = listening(path)
        os.write(writer, b"x")
        listener.accept()
        signal.pause()
    os.read(reader, 1)
    with pytest.raises(OSError, match="user 1234"):
        tn.attach_pool(path)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    os.close(reader)
    os.close(writer)


# ---------------------------------------------------------------------------------- what others may send


def listening(path):
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listener.bind(path)
    listener.listen(8)
    return listener


def request(verb=GET, segment=bytes(16), mark=b"TNLINK01"):
    return struct.pack("=8sII16sq24s", mark, verb, 0, segment, time.monotonic_ns(), bytes(24))


def ask(path, data=None, files=()):
    """((mark, status, files, segment, now_ns), text, how many descriptors came). None: it was closed."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as link:
        link.settimeout(SECONDS)
        link.connect(path)
        socket.send_fds(link, [request() if data is None else data], files)
        answer, given, _, _ = socket.recv_fds(link, 1024, 8)
    for file in given:
        os.close(file)
    if not answer:
        return None
    assert len(answer) == 512
    return struct.unpack("=8sII16sq", answer[:40]), answer[64:].split(b"\0")[0].decode(), len(given)


def memory_file(nbytes=4096, is_sealed=True):
    file = os.memfd_create("tenon:test", os.MFD_ALLOW_SEALING)
    os.ftruncate(file, nbytes)
    if is_sealed:
        fcntl.fcntl(file, 1033, 1 | 2 | 4)
    return file


def test_what_others_send_to_a_server_harms_nothing(pool, path):
    with pool.serve(path):
        tn.attach_pool(path).close()
        before = files_open()
        for data in (b"x", bytes(63), bytes(64), bytes(65), bytes(2000), request(mark=b"TNLINK02")):
            (_, status, files, _, _), text, given = ask(path, data)
            assert (status, files, given) == (4, 0, 0) and "version" in text
        for verb in (0, 3, 0xFFFFFFFF):
            assert ask(path, request(verb))[0][1] == 4
        unknown = os.urandom(16)
        assert ask(path, request(GET, unknown))[0][1] == 1
        assert ask(path, request(OFFER, unknown))[0][1] == 5
        own = [
            memory_file(),
            memory_file(is_sealed=False),
            memory_file(1 << 20),
            os.open("/dev/null", os.O_RDWR),
        ]
        for file in own:
            assert ask(path, request(OFFER, unknown), [file])[0][1] == 5
        assert ask(path, request(OFFER, unknown), own)[0][1] == 3
        assert ask(path, request(GET), own[:1])[2] == 1
        for file in own:
            os.close(file)
        (answer, _, given) = ask(path)
        assert answer[:3] == (b"TNLINK01", 0, 1) and given == 1
        # The memory of another pool of the same process is not given.
        own_file = memory_file()
        other = tn.TensorPool("1 MiB", linger=0)
        frozen = other.freeze(other.put(np.ones(1000)))
        message = other.dumps(frozen, opens=None, tag="rest")
        segment = segment_of(message)
        assert ask(path, request(GET, segment))[0][1] == 1
        for files in ([], [own_file]):  # the number alone, and with another file
            assert ask(path, request(OFFER, segment), files)[0][1] == 5
        os.close(own_file)
        assert ask(path, request(GET, segment))[0][1] == 1
        held = pool.dumps({"x": frozen}, tag="rest")
        assert ask(path, request(GET, segment))[0][1] == 0, "but that of an array in a message is"
        pool.revoke("rest")
        pool.stats()
        assert ask(path, request(GET, segment))[0][1] == 1
        other.revoke("rest")
        del held, frozen, other
        await_true(lambda: files_open() <= before)
        assert works(pool, path)


def segment_of(message):
    """The id of the memory of a message (MessageHead)."""
    from tenon import _core

    return _core.core_of_message(message)[32:48]


def test_connections_that_say_nothing_do_not_keep_others_waiting(pool, path):
    with pool.serve(path, backlog=100):
        silent = [socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) for _ in range(40)]
        for link in silent:
            link.connect(path)
        for _ in range(3):
            tn.attach_pool(path).close()
        for link in silent:
            link.close()


@pytest.mark.slow
def test_more_silent_connections_than_are_kept_end_after_a_while(pool, path):
    with pool.serve(path, backlog=200):
        silent = [socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) for _ in range(100)]
        for link in silent:
            link.connect(path)
        tn.attach_pool(path, timeout=SECONDS).close()
        for link in silent:
            link.close()


class Liar:
    """Answers each connection at the path."""

    def __init__(self, path, answer, files=()):
        self._listener = listening(path)
        self._answer, self._files = answer, files
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self):
        while True:
            try:
                link, _ = self._listener.accept()
            except OSError:
                return
            with link:
                asked = link.recv(1024)
                answer = self._answer(asked)
                if answer is None:
                    time.sleep(1)
                elif answer:
                    socket.send_fds(link, [answer], self._files)

    def close(self):
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join(SECONDS)


def answer_of(status=0, files=1, segment=None, now_ns=None, mark=b"TNLINK01"):
    def answer(asked):
        own = segment or bytes(range(16))
        return struct.pack(
            "=8sII16sq24s448s",
            mark,
            status,
            files,
            own,
            now_ns or time.monotonic_ns(),
            bytes(24),
            b"the text",
        )

    return answer


WRONG = {  # the answer, how many files it has, the error and a part of its text
    "a byte": (lambda _: b"x", 0, ValueError, "version"),
    "zeros": (lambda _: bytes(512), 0, ValueError, "version"),
    "too much": (lambda _: bytes(600), 0, ValueError, "version"),
    "the end": (lambda _: b"", 0, FileNotFoundError, "ended"),
    "silence": (lambda _: None, 0, TimeoutError, "stopped"),
    "no file": (answer_of(), 0, ValueError, "another answer"),
    "another file": (answer_of(), 1, ValueError, "memory"),
    "three files": (answer_of(), 3, OSError, "descriptor"),
    "another time": (answer_of(now_ns=1), 1, FileNotFoundError, "time namespace"),
    "unknown": (answer_of(1), 0, FileNotFoundError, "the text"),
    "refused": (answer_of(2), 0, OSError, "the text"),
    "no descriptors": (answer_of(3), 0, OSError, "the text"),
    "another version": (answer_of(4), 0, ValueError, "the text"),
    "an unknown status": (answer_of(77), 0, OSError, "the text"),
}


@pytest.mark.parametrize("what", WRONG)
@pytest.mark.parametrize("is_sealed", [True, False])
def test_what_a_wrong_server_answers_is_an_error(path, what, is_sealed):
    answer, files, error, text = WRONG[what]
    given = [memory_file(1 << 20, is_sealed) for _ in range(files)]
    liar = Liar(path, answer, given)
    before = files_open()
    with pytest.raises(error, match=text):
        tn.attach_pool(path, timeout=0.3)
    liar.close()
    await_true(lambda: files_open() <= before)
    for file in given:
        os.close(file)


def test_attaching_leaves_no_descriptor(pool, path):
    with pool.serve(path), Other() as other:
        for _ in range(3):
            other.ask("tn.attach_pool(path).close()", path=path)
        here, there = files_open(), other.ask("len(os.listdir('/proc/self/fd'))")
        other.ask("for _ in range(200): tn.attach_pool(path).close()")
        assert other.ask("len(os.listdir('/proc/self/fd'))") == there
        await_true(lambda: files_open() <= here)


def test_links_and_servers_stay_in_their_process(pool, path):
    with pool.serve(path) as server:
        link = tn.attach_pool(path)
        for value in (server, link):
            with pytest.raises(TypeError, match="send its path"):
                pickle.dumps(value)
        link.offer(pool)  # of the same process: nothing happens
        link.close()
        with pytest.raises(ValueError, match="closed"):
            link.offer(pool)
