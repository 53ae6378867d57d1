# SPDX-License-Identifier: Apache-2.0
"""A tensor pool that is served to a group: processes of several users in it exchange messages, and others get
nothing. The kernel says who is in the group, also across user namespaces."""

import contextlib
import fcntl
import grp
import json
import os
import shutil
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import namespaces
import numpy as np
import pytest
import steered
from other_process import SECONDS, Other
from test_pool_sockets import GET, OFFER, Liar, answer_of, ask, await_true, listening, memory_file, request

import tenon as tn

GROUP, OTHER_GROUP = 4242, 4343
SERVER, CLIENT, THIRD = 4201, 4202, 4203  # users

is_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root: processes of other users")


class Member(Other):
    """Another interpreter, of this user and in these groups."""

    def __init__(self, user, groups=(GROUP,)):
        super().__init__()
        self._user, self._groups = user, groups

    def __enter__(self):
        super().__enter__()
        self.ask(
            """if True:
            os.setgroups(groups)
            os.setgid(user)
            os.setuid(user)
            import ctypes
            ctypes.CDLL(None).prctl(4, 1)  # PR_SET_DUMPABLE: as a process that was started by this user
            """,
            user=self._user,
            groups=list(self._groups),
        )
        return self


@pytest.fixture
def folder():
    """Its path is short enough for sockets."""
    folder = tempfile.mkdtemp(prefix="tenon-test-")
    with contextlib.suppress(PermissionError):
        os.chown(folder, SERVER, GROUP)
    os.chmod(folder, 0o750)
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
def path(folder):
    return f"{folder}/pool"


@pytest.fixture
def server(path):
    with Member(SERVER) as server:
        server.ask("pool = tn.TensorPool('64 MiB', inline=0, idle=0, linger=0)")
        server.ask("served = pool.serve(path, group=group)", path=path, group=GROUP)
        yield server


def stats(server):
    return server.ask("pool.stats()")


def await_unused(server):
    await_true(lambda: stats(server)["used"] == 0)


# ------------------------------------------------------------------------------------------- in the group


@is_root
def test_members_of_other_users_exchange_messages(server, path):
    with Member(CLIENT) as client, Member(THIRD, [17, GROUP]) as third:
        client.ask("link = tn.attach_pool(path, group=group)", path=path, group=GROUP)
        third.ask("link = tn.attach_pool(path, group=group)", path=path, group=GROUP)
        server.ask("other = tn.TensorPool('4 MiB', inline=0, linger=0, idle=0)")
        server.ask("frozen = other.freeze(other.put(np.full(3000, 5.0)))")
        message = server.ask("pool.dumps({'x': np.arange(5000), 'y': frozen})")
        client.ask("m = tn.loads(data); m['x'] += 1", data=message)
        assert client.ask("(int(m['x'].sum()), float(np.asarray(m['y']).sum()))") == (
            sum(range(5000)) + 5000,
            15000.0,
        )
        many = server.ask("pool.dumps(np.arange(5000), opens=None, tag='rest')")
        for member in (client, third):
            for writable in (True, False):
                told = member.ask(
                    "int(tn.loads(data, writable=writable).sum())", data=many, writable=writable
                )
                assert told == sum(range(5000))
        # Back, and between two that do not know each other: three users.
        client.ask("own = tn.TensorPool('4 MiB', inline=0, linger=0, idle=0); link.offer(own)")
        for member in (server, third):
            back = client.ask("own.dumps(np.arange(6000))")
            assert member.ask("int(tn.loads(data).sum())", data=back) == sum(range(6000))
        held = client.ask("own.dumps(np.ones(100_000))")
        third.ask("held = tn.loads(data)", data=held)
        assert client.ask("own.stats()['held']") == 1
        third.kill()
        await_true(lambda: client.ask("own.stats()['used']") == 0)
        client.ask("del m")
        server.ask("del frozen; pool.revoke('rest')")
        await_unused(server)


@is_root
@pytest.mark.slow
def test_members_that_are_killed_at_any_time_leave_nothing(server, path):
    for i in range(30):
        with Member(CLIENT) as client:
            client.ask("link = tn.attach_pool(path, group=group)", path=path, group=GROUP)
            client.start(
                "held = [tn.loads(m).sum() for m in messages]; held = tn.loads(last)",
                messages=server.ask("[pool.dumps(np.ones(50_000), timeout=1.0) for _ in range(20)]"),
                last=server.ask("pool.dumps(np.ones(50_000), timeout=1.0)"),
            )
            time.sleep(i / 30 * 0.02)
            client.kill()
    await_unused(server)


FORK = """if True:
    import signal
    pids = []
    for _ in range(n):
        pid = os.fork()
        if pid == 0:
            del held
            signal.pause()
            os._exit(0)
        pids.append(pid)
    names['pids'] = pids
"""


@is_root
@pytest.mark.parametrize("asks", ["no server", "the server"])
def test_what_a_killed_member_held_is_free_though_its_children_live(server, path, asks):
    """The children open the memory anew. That of another pool, in a message of the served one, they get from
    the server during the fork, as its mode does not let them."""
    server.ask("other = tn.TensorPool('4 MiB', inline=0, linger=0, idle=0)")
    with Member(CLIENT) as client:
        client.ask("link = tn.attach_pool(path, group=group)", path=path, group=GROUP)
        if asks == "the server":
            server.ask("pool, first = other, pool; frozen = pool.freeze(pool.put(np.ones(100_000)))")
            message = server.ask("first.dumps(frozen, opens=None, tag='rest')")
            client.ask("held = tn.loads(data, writable=False)", data=message)
        else:
            client.ask("held = tn.loads(data)", data=server.ask("pool.dumps(np.ones(100_000))"))
            client.ask("link.close()")
        client.ask(FORK, n=3)
        pids = client.ask("pids")
        await_true(lambda: stats(server)["held"] == 1)
        client.kill()
        try:
            if asks == "the server":  # it had to have the message until now
                server.ask("del frozen; first.revoke('rest'); first.stats()")
            await_unused(server)
            assert all(os.path.exists(f"/proc/{pid}") for pid in pids)
        finally:
            for pid in pids:
                os.kill(pid, signal.SIGKILL)


@is_root
def test_forked_children_of_a_member_receive(server, path):
    with Member(CLIENT) as client:
        client.ask("link = tn.attach_pool(path, group=group)", path=path, group=GROUP)
        for attempt in ("before", "after"):  # it has the memory
            client.ask(
                """if True:
                reader, writer = os.pipe()
                if os.fork() == 0:
                    os.write(writer, str(int(tn.loads(data).sum())).encode())
                    os._exit(0)
                os.wait()
                """,
                data=server.ask("pool.dumps(np.ones(6000))"),
            )
            assert client.ask("os.read(reader, 10)") == b"6000", attempt
            assert client.ask("tn.loads(data).sum()", data=server.ask("pool.dumps(np.ones(10))")) == 10
    await_unused(server)


@is_root
def test_the_same_user_needs_no_group(server, path):
    with Member(SERVER, []) as other:
        other.ask("link = tn.attach_pool(path)", path=path)
        assert other.ask("int(tn.loads(data).sum())", data=server.ask("pool.dumps(np.ones(5000))")) == 5000
        other.ask("own = tn.TensorPool('4 MiB', inline=0, linger=0, idle=0); link.offer(own)")
        back = other.ask("own.dumps(np.ones(6000))")
        assert server.ask("int(tn.loads(data).sum())", data=back) == 6000
        with Member(CLIENT) as client:  # the server can give it, as it is of its user
            client.ask("link = tn.attach_pool(path, group=group)", path=path, group=GROUP)
            back = other.ask("own.dumps(np.ones(7000))")
            assert client.ask("int(tn.loads(data).sum())", data=back) == 7000


@is_root
def test_the_end_of_the_server_ends_nothing_that_is_open(server, path):
    with Member(CLIENT) as client:
        client.ask("link = tn.attach_pool(path, group=group)", path=path, group=GROUP)
        unopened = server.ask("pool.dumps(np.ones(5000))")
        client.ask("held = tn.loads(data)", data=server.ask("pool.dumps(np.ones(6000))"))
        server.kill()
        with pytest.raises(tn.MessageGone, match=r"has ended"):
            client.ask("tn.loads(data)", data=unopened)
        assert client.ask("int(held.sum())") == 6000


@is_root
def test_the_socket_and_the_memory_belong_to_the_group(server, path):
    status = os.stat(path)
    assert stat.S_ISSOCK(status.st_mode) and stat.S_IMODE(status.st_mode) == 0o660
    assert (status.st_uid, status.st_gid) == (SERVER, GROUP)
    segments = "[os.fstat(int(fd)) for fd in os.listdir('/proc/self/fd') if 'memfd:tenon' in at(fd)]"
    server.ask(
        "at = lambda fd: (lambda p: os.readlink(p) if os.path.lexists(p) else '')(f'/proc/self/fd/{fd}')"
    )
    assert {(s.st_mode & 0o7777, s.st_gid) for s in server.ask(segments)} == {(0o660, GROUP)}
    server.ask("served.close()")
    os.chmod(os.path.dirname(path), 0o770)
    for umask in (0, 0o022, 0o177, 0o777):
        for chosen, mode in ((None, 0o600), (GROUP, 0o660)):
            server.ask("os.umask(umask); served = pool.serve(path, group=chosen)", umask=umask, chosen=chosen)
            assert stat.S_IMODE(os.stat(path).st_mode) == mode
            server.ask("served.close()")
    assert os.listdir(os.path.dirname(path)) == []


@is_root
def test_a_serve_that_fails_gives_the_memory_to_nobody(path, folder):
    with Member(SERVER, [GROUP, OTHER_GROUP]) as server, listening(path):
        os.chmod(path, 0o777)
        server.ask("pool = tn.TensorPool('1 MiB', linger=0)")
        with pytest.raises(OSError, match=r"listens"):
            server.ask("pool.serve(path, group=group)", path=path, group=GROUP)
        server.ask("pool.serve(path + '.x', group=group).close()", group=OTHER_GROUP)


@is_root
def test_what_is_offered_to_one_group_is_not_given_to_another(server, path):
    server.ask("other = tn.TensorPool('1 MiB', linger=0); alone = other.serve(path + '.2')")
    with Member(SERVER, []) as private, Member(CLIENT) as client:
        private.ask("own = tn.TensorPool('1 MiB', inline=0, linger=0)")
        private.ask("tn.attach_pool(path + '.2').offer(own)", path=path)
        client.ask("link = tn.attach_pool(path, group=group)", path=path, group=GROUP)
        segment = segment_of(private.ask("own.dumps(np.ones(5000), opens=None, tag='rest')"))
        assert as_member(CLIENT, [GROUP], lambda: ask(path, request(GET, segment))[0][1]) == 1
        assert as_member(SERVER, [], lambda: ask(path, request(GET, segment))[0][1]) == 0
        private.ask("tn.attach_pool(path).offer(own)")
        assert as_member(CLIENT, [GROUP], lambda: ask(path, request(GET, segment))[0][1]) == 0
        private.ask("own.revoke('rest')")


@is_root
def test_memory_that_a_user_gave_to_one_group_is_not_sent_on_to_another(path):
    """It was given to a process that is in both."""
    with (
        Member(SERVER, [GROUP, OTHER_GROUP]) as server,
        Member(THIRD, [OTHER_GROUP]) as third,
        Member(CLIENT, [GROUP]) as client,
    ):
        os.chmod(os.path.dirname(path), 0o777)
        third.ask("pool = tn.TensorPool('1 MiB', inline=0, linger=0)")
        third.ask("served = pool.serve(path + '.2', group=group)", path=path, group=OTHER_GROUP)
        server.ask("link = tn.attach_pool(path + '.2', group=group)", path=path, group=OTHER_GROUP)
        server.ask(
            "pool = tn.TensorPool('1 MiB', inline=0, linger=0); served = pool.serve(path, group=to)", to=GROUP
        )
        third.ask("frozen = pool.freeze(pool.put(np.ones(5000)))")
        message = third.ask("pool.dumps(frozen, opens=None, tag='rest')")
        server.ask("got = tn.open(data, writable=False)", data=message)
        client.ask("link = tn.attach_pool(path, group=group)", path=path, group=GROUP)
        sent = server.ask("pool.dumps(got, opens=None, tag='rest')")
        assert server.ask("pool.stats()['used']") == 0, "it is not a copy"
        with pytest.raises((FileNotFoundError, tn.MessageGone)):
            client.ask("tn.loads(data)", data=sent)
        server.ask("pool.revoke('rest')")
        third.ask("pool.revoke('rest')")


@is_root
def test_ls_shows_the_pool_of_another_user(server, path):
    server.ask("pool.dumps(np.ones(5000), tag='rest')")
    with Member(CLIENT) as client:
        client.ask("link = tn.attach_pool(path, group=group)", path=path, group=GROUP)
        client.ask("held = tn.loads(data)", data=server.ask("pool.dumps(np.ones(100))"))
        found = json.loads(client.ask("tn._core.describe_shared()"))["segments"]
        (pool,) = [s for s in found if s["kind"] == "tensor pool"]
        assert not pool.get("damage") and [m["tag"] for m in pool["messages"]] == ["rest"]


# --------------------------------------------------------------------------------------- not in the group


@is_root
def test_who_is_not_in_the_group_gets_nothing(server, path, folder):
    message = server.ask("pool.dumps(np.ones(5000), tag='rest')")
    os.chmod(folder, 0o755)
    with Member(THIRD, [OTHER_GROUP]) as stranger:
        for group in (GROUP, 65534, 2**32 - 2):
            with pytest.raises(ValueError, match=r"not in the group|stands for groups"):
                stranger.ask("tn.attach_pool(path, group=group)", path=path, group=group)
        for group in (None, OTHER_GROUP):
            with pytest.raises(OSError, match=r"Permission denied"):
                stranger.ask("tn.attach_pool(path, group=group)", path=path, group=group)
        os.chmod(path, 0o666)
        for group, text in ((None, "serve the pool to a group of both"), (OTHER_GROUP, "not in the group")):
            with pytest.raises(OSError, match=rf"user {SERVER}.*{text}"):
                stranger.ask("tn.attach_pool(path, group=group)", path=path, group=group)
        with pytest.raises(FileNotFoundError, match=r"group= of pool.serve"):
            stranger.ask("tn.loads(data)", data=message)
        stranger.ask("own = tn.TensorPool('1 MiB', linger=0)")
        with pytest.raises(ValueError, match=r"not in the group"):
            stranger.ask("own.serve(path + '.x', group=group)", group=GROUP)
    # As a program that says nothing of what the kernel says of it.
    assert as_member(THIRD, [OTHER_GROUP], lambda: ask(path)[0][1]) == 2
    assert "not in that group" in as_member(THIRD, [OTHER_GROUP], lambda: ask(path)[1])
    given = as_member(THIRD, [OTHER_GROUP], lambda: ask(path, request(OFFER), [memory_file()])[0][1])
    assert given == 2
    assert as_member(THIRD, [GROUP], lambda: ask(path)[0][1]) == 0
    assert as_member(GROUP, [], lambda: ask(path)[0][1]) == 0, "the effective group"
    assert as_member(GROUP + 1, [], lambda: ask(path)[0][1]) == 2
    assert as_member(THIRD, [*range(5000, 5300), GROUP], lambda: ask(path)[0][1]) == 0
    # Root is no exception.
    assert ask(path)[0][1] == 2
    with pytest.raises(OSError, match=rf"user {SERVER}"):
        tn.attach_pool(path)


def as_member(user, groups, call):
    """What a call returns in a forked child of this user in these groups."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.setgroups(groups)
            os.setgid(user)
            os.setuid(user)
            told = call()
        except BaseException as error:
            told = f"{type(error).__name__}: {error}"
        os.write(writer, json.dumps(told).encode())
        os._exit(0)
    os.waitpid(pid, 0)
    told = os.read(reader, 65536)
    os.close(reader)
    os.close(writer)
    return json.loads(told)


@is_root
def test_the_groups_of_a_connection_are_those_at_its_begin(server, path):
    def run(before, after):
        os.seteuid(0)
        os.setgroups(before)
        os.setegid(THIRD)
        os.seteuid(THIRD)
        try:
            return asked(after)
        finally:
            os.seteuid(0)

    def asked(after):
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as link:
            link.settimeout(SECONDS)
            link.connect(path)
            os.seteuid(0)
            os.setgroups(after)
            os.seteuid(THIRD)
            link.send(request(GET))
            answer, given, _, _ = socket.recv_fds(link, 1024, 8)
        return answer[8] == 0 and len(given) == 1

    os.chmod(path, 0o666)
    os.chmod(os.path.dirname(path), 0o755)
    assert in_child(lambda: run([GROUP], [])) is True
    assert in_child(lambda: run([], [GROUP])) is False


def in_child(call):
    return as_member(0, [], call)


@is_root
def test_a_server_that_is_not_in_the_group_is_refused(path, folder):
    os.chmod(folder, 0o777)
    for groups, is_refused in (([OTHER_GROUP], True), ([GROUP], False)):
        with Member(THIRD, groups) as other:
            other.ask(
                """if True:
                import socket
                listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
                listener.bind(path)
                listener.listen(8)
                os.chmod(path, 0o666)
                """,
                path=path,
            )
            with Member(CLIENT) as client:
                with pytest.raises(OSError if is_refused else TimeoutError) as raised:
                    client.ask("tn.attach_pool(path, timeout=0.2, group=group)", path=path, group=GROUP)
                assert (f"user {THIRD}" in str(raised.value)) == is_refused
        os.unlink(path)


@is_root
def test_a_server_that_has_changed_its_user_serves_nobody(path, folder):
    os.chmod(folder, 0o777)
    with Member(0, [GROUP]) as server:
        server.ask("pool, other = (tn.TensorPool('1 MiB', linger=0) for _ in range(2))")
        server.ask("served = pool.serve(path, group=group)", path=path, group=GROUP)
        with Member(CLIENT) as client:
            client.ask("tn.attach_pool(path, group=group).close()", path=path, group=GROUP)
            server.ask("os.setuid(user)", user=THIRD)
            with pytest.raises(OSError, match=r"changed its user"):
                client.ask("tn.attach_pool(path, group=group)")
        with pytest.raises(OSError, match=r"changed its user since"):
            server.ask("other.serve(path + '.x', group=group)")
    assert os.listdir(folder) == ["pool"], "what was begun is removed"


# ---------------------------------------------------------------------------------------------- the option


@is_root
def test_a_pool_has_one_group(server, path):
    with Member(SERVER, [GROUP, OTHER_GROUP]) as server, Member(CLIENT, [GROUP, OTHER_GROUP]) as client:
        server.ask("pool = tn.TensorPool('1 MiB', linger=0); other = tn.TensorPool('1 MiB', linger=0)")
        server.ask("first = pool.serve(path + '.1', group=group)", path=path, group=GROUP)
        server.ask("again = pool.serve(path + '.2', group=group)")
        server.ask("alone = pool.serve(path + '.3')")
        for code in (
            "pool.serve(path + '.4', group=other_group)",
            "tn.attach_pool(path + '.5', group=other_group).offer(pool)",
        ):
            server.ask("third = other.serve(path + '.5', group=other_group)", other_group=OTHER_GROUP)
            with pytest.raises(ValueError, match=rf"{GROUP}.*{OTHER_GROUP}.*another pool"):
                server.ask(code)
            server.ask("third.close()")
        assert not os.path.exists(f"{path}.4")
        client.ask("tn.attach_pool(path + '.1', group=group).close()", path=path, group=GROUP)
        with pytest.raises(OSError, match=r"Permission denied"):
            client.ask("tn.attach_pool(path + '.3', group=group)")


def test_a_group_is_named_by_its_name_or_number(path):
    pool = tn.TensorPool("1 MiB", linger=0)
    number = os.getegid()
    for group in (number, np.int64(number), grp.getgrgid(number).gr_name):
        with pool.serve(path, group=group):
            assert os.stat(path).st_gid == number
            tn.attach_pool(path, group=group).close()


@pytest.mark.parametrize(
    ("group", "error", "text"),
    [
        ("no-such-group", ValueError, "'no-such-group'.*number"),
        ("", ValueError, "''"),
        ("a\0b", ValueError, "group"),
        (-1, ValueError, "group is -1"),
        (2**32 - 1, ValueError, "group is 4294967295"),
        (2**32 - 2, ValueError, "not in the group"),
        (65534, ValueError, "stands for"),
        (True, TypeError, "group"),
        (1.5, TypeError, "group"),
        (b"root", TypeError, "group"),
    ],
)
def test_what_names_no_group_of_the_process_is_an_error(path, group, error, text):
    pool = tn.TensorPool("1 MiB", linger=0)
    for call in (pool.serve, tn.attach_pool):
        with pytest.raises(error, match=text):
            call(path, group=group)
    assert not os.path.exists(path)


# ------------------------------------------------------------------------------------- what others may send


def segment_of(message):
    return tn._core.core_of_message(message)[32:48]


@is_root
def test_a_member_offers_only_memory_that_is_given_to_the_group(server, path):
    os.chmod(os.path.dirname(path), 0o755)
    some = bytes(range(16))

    def offered(make):
        def call():
            file = make()
            (_, status, _, _, _), text, _ = ask(path, request(OFFER, some), [file])
            return status, text

        return as_member(CLIENT, [GROUP], call)

    def given(mode=0o660, **options):
        file = memory_file(1 << 20, **options)
        os.chown(file, -1, GROUP)
        os.chmod(file, mode)
        return file

    def fifo():
        name = f"/tmp/tenon-test-{os.getpid()}.fifo"
        os.mkfifo(name)
        file = os.open(name, os.O_RDWR)
        os.chown(file, -1, GROUP)
        os.chmod(file, 0o660)
        os.unlink(name)
        return file

    def huge():
        file = os.memfd_create("tenon:test", os.MFD_ALLOW_SEALING | os.MFD_HUGETLB)
        os.ftruncate(file, 4 << 20)
        fcntl.fcntl(file, 1033, 1 | 2 | 4)
        os.chown(file, -1, GROUP)
        os.chmod(file, 0o660)
        return file

    server.ask("tn.attach_pool(path).close()")
    before = server.ask("len(os.listdir('/proc/self/fd'))")
    for make, text in (
        (lambda: memory_file(1 << 20), "nor one that its owner has given to group"),
        (lambda: given(0o600), "nor one"),
        (lambda: given(0o640), "nor one"),
        (lambda: given(is_sealed=False), "not a memory file"),
        (fifo, "not a memory file"),
        (given, "no shared memory that Tenon can use"),
        (huge, "huge pages"),
    ):
        told = offered(make)
        if make is huge and isinstance(told, str):
            continue  # the system makes no such file
        assert told[0] == 5 and text in told[1], told
    await_true(lambda: server.ask("len(os.listdir('/proc/self/fd'))") == before)
    assert as_member(CLIENT, [GROUP], lambda: ask(path)[0][1]) == 0


@is_root
def test_a_member_offers_only_so_many_pools_and_so_much(server, path):
    with Member(CLIENT) as client:
        client.ask("link = tn.attach_pool(path, group=group)", path=path, group=GROUP)
        client.ask("pools = [tn.TensorPool('1 MiB', linger=0) for _ in range(65)]")
        client.ask("for pool in pools[:64]: link.offer(pool)")
        with pytest.raises(OSError, match=r"64 pools of user"):
            client.ask("link.offer(pools[64])")
        client.ask("link.offer(pools[0])")
    with Member(THIRD) as third:
        third.ask("link = tn.attach_pool(path, group=group)", path=path, group=GROUP)
        third.ask("link.offer(tn.TensorPool('1 MiB', linger=0))")
        with pytest.raises(OSError, match=r"memory of the machine"):
            third.ask("link.offer(tn.TensorPool(1 << 46, linger=0))")


@is_root
def test_a_member_gives_only_memory_of_its_user_or_the_group(path, folder):
    os.chmod(folder, 0o777)
    files = {}
    for name, user, group, mode, is_sealed, is_accepted in (
        ("its own", THIRD, 0, 0o600, True, True),
        ("of the group", SERVER, GROUP, 0o660, True, True),
        ("of another group", SERVER, OTHER_GROUP, 0o660, True, False),
        ("of another user", SERVER, GROUP, 0o600, True, False),
        ("of root", 0, 0, 0o666, True, False),
        ("not sealed", THIRD, 0, 0o600, False, True),
    ):
        file = files[name] = memory_file(1 << 20, is_sealed)
        os.chown(file, user, group)
        os.chmod(file, mode)
        reader, writer = os.pipe()
        pid = os.fork()
        if pid == 0:
            try:
                os.setgroups([GROUP])
                os.setgid(THIRD)
                os.setuid(THIRD)
                Liar(path, answer_of(), [file])
                os.chmod(path, 0o660)
                os.chown(path, -1, GROUP)
                os.write(writer, b"x")
                signal.pause()
            finally:
                os._exit(1)
        try:
            os.close(writer)
            assert os.read(reader, 1) == b"x"
            text = "Tenon" if is_accepted else "neither of its user nor given to the group"
            told = as_member(CLIENT, [GROUP], lambda: tn.attach_pool(path, group=GROUP) and "")
            assert told.startswith("ValueError") and text in told, (name, told)
        finally:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        os.unlink(path)
        for end in (file, reader):
            os.close(end)


# ------------------------------------------------------------------------------------------ user namespaces


class Mapped(Other):
    """Another interpreter of root in a user namespace with these groups: (number there, number here)."""

    def __init__(self, groups, mapped):
        namespaces.skip_unless_possible(("user",))
        ours, theirs = socket.socketpair()
        words = ["setpriv", "--groups", ",".join(map(str, groups)), "unshare", "--user"]
        self.process = subprocess.Popen(
            [*words, sys.executable, "-P", steered.__file__, str(theirs.fileno())],
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
        )
        theirs.close()
        own = os.readlink("/proc/self/ns/user")
        await_true(lambda: os.readlink(f"/proc/{self.process.pid}/ns/user") != own)
        for kind, lines in (("uid", [(0, 0)]), ("gid", mapped)):
            text = "".join(f"{there} {here} 1\n" for there, here in lines)
            Path(f"/proc/{self.process.pid}/{kind}_map").write_text(text)
        steered.Steered.__init__(self, self.process.pid, ours)


@is_root
@pytest.mark.parametrize("is_server", [False, True])
def test_a_group_is_known_by_the_number_of_the_namespace(server, path, is_server):
    with Mapped([GROUP], [(0, 0), (44, GROUP)]) as inside:
        outside = server
        if is_server:
            server.ask("served.close()")
            os.chmod(os.path.dirname(path), 0o777)
            inside.ask("pool = tn.TensorPool('64 MiB', inline=0, idle=0, linger=0)")
            inside.ask("served = pool.serve(path, group=44)", path=path)
            assert os.stat(path).st_gid == GROUP
            outside.ask("link = tn.attach_pool(path, group=group)", path=path, group=GROUP)
        else:
            with pytest.raises(ValueError, match=r"not in the group"):
                inside.ask("link = tn.attach_pool(path, group=group)", path=path, group=GROUP)
            inside.ask("link = tn.attach_pool(path, group=44)", path=path)
        sender, receiver = (inside, outside) if is_server else (outside, inside)
        receiver.ask("m = tn.loads(data); m += 1", data=sender.ask("pool.dumps(np.arange(5000))"))
        assert receiver.ask("int(m.sum())") == sum(range(5000)) + 5000
        receiver.ask("own = tn.TensorPool('4 MiB', inline=0, linger=0, idle=0); link.offer(own)")
        back = receiver.ask("own.dumps(np.arange(6000))")
        assert sender.ask("int(tn.loads(data).sum())", data=back) == sum(range(6000))
        with Member(THIRD) as third:
            third.ask("link = tn.attach_pool(path, group=group)", path=path, group=GROUP)
            back = receiver.ask("own.dumps(np.arange(7000))")
            assert third.ask("int(tn.loads(data).sum())", data=back) == sum(range(7000))
        receiver.ask("held = m; del m")
        receiver.ask(FORK, n=2)
        pids = receiver.ask("[int(pid) for pid in pids]")
        receiver.kill()
        try:
            await_unused(sender)
        finally:
            for pid in pids:
                os.kill(pid, signal.SIGKILL)


@is_root
def test_groups_without_a_number_are_nobodys(server, path):
    """The number that stands for them is that of each of them."""
    os.chmod(os.path.dirname(path), 0o755)
    os.chmod(path, 0o666)
    with Mapped([GROUP], [(0, 0)]) as inside:
        assert inside.ask("65534 in os.getgroups()")
        for group in (GROUP, 65534):
            with pytest.raises(ValueError, match=r"not in the group|stands for"):
                inside.ask("tn.attach_pool(path, group=group)", path=path, group=group)
        for group in (None, 0):
            with pytest.raises(OSError, match=r"user 65534 .which has no number"):
                inside.ask("tn.attach_pool(path, group=group)", path=path, group=group)
    # The same number on both sides, of different groups.
    with (
        Mapped([OTHER_GROUP], [(0, 0), (GROUP, OTHER_GROUP)]) as inside,
        pytest.raises(OSError, match=r"user 65534.*not in the group"),
    ):
        inside.ask("tn.attach_pool(path, group=group)", path=path, group=GROUP)


@is_root
def test_a_number_of_unmapped_groups_serves_nobody(path, folder):
    with Member(SERVER, [65534, GROUP]) as server:
        server.ask("pool = tn.TensorPool('1 MiB', linger=0)")
        with pytest.raises(ValueError, match=r"stands for"):
            server.ask("pool.serve(path, group=65534)", path=path)
        assert os.listdir(folder) == []
