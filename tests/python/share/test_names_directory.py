# SPDX-License-Identifier: Apache-2.0
"""The directory of names: which process gets a name, files of dead processes, and unusable directories."""

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import textwrap
import uuid

import pytest
from other_process import Other

import tenon as tn

VARIABLES = ("TENON_RUNTIME_DIR", "XDG_RUNTIME_DIR")
is_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root may do that")


@pytest.fixture
def name():
    return f"test-{uuid.uuid4()}"


@pytest.fixture
def directory(tmp_path, monkeypatch):
    """The directory of names of this process and of those that it starts."""
    path = tmp_path / "names"
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    monkeypatch.setenv("TENON_RUNTIME_DIR", str(path))
    return path


def python(code, *arguments, **environment):
    """The output of a program, which must succeed."""
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code), *arguments],
        env={k: v for k, v in {**os.environ, **environment}.items() if v is not None},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


# ------------------------------------------------------------------------------- where the directory is


CREATE = """
    import os, sys, tenon as tn
    a = tn.zeros(3, shared="here")
    print(tn.attach("here").data_ptr == a.data_ptr)
"""


def test_the_directory_is_the_one_that_the_environment_names(tmp_path):
    for variable, where in (("TENON_RUNTIME_DIR", "one/of"), ("XDG_RUNTIME_DIR", "")):
        base = tmp_path / variable
        base.mkdir(mode=0o700)
        if where:
            (base / "one").mkdir()
        environment = {**dict.fromkeys(VARIABLES), variable: str(base / where)}
        assert python(CREATE, **environment) == "True\n"
        made = base / where if where else base / "tenon"
        assert made.stat().st_mode & 0o7777 == 0o700


def test_without_a_runtime_directory_the_user_has_one():
    assert python(CREATE.replace("here", f"here-{os.getpid()}"), **dict.fromkeys(VARIABLES)) == "True\n"


@is_root
def test_another_user_s_runtime_directory_is_not_used(tmp_path):
    theirs = tmp_path / "theirs"
    theirs.mkdir(mode=0o700)
    os.chown(theirs, 12345, 12345)
    environment = {"TENON_RUNTIME_DIR": None, "XDG_RUNTIME_DIR": str(theirs)}
    assert python(CREATE.replace("here", f"here-{os.getpid()}"), **environment) == "True\n"
    assert not list(theirs.iterdir())


def refused(name):
    messages = []
    for attempt in (lambda: tn.zeros(3, shared=name), lambda: tn.attach(name)):
        with pytest.raises(OSError) as caught:
            attempt()
        assert not isinstance(caught.value, FileNotFoundError)
        messages.append(str(caught.value))
    assert all("TENON_RUNTIME_DIR" in message for message in messages)
    return messages[0]


def test_a_directory_that_others_may_use_is_refused(directory, name):
    directory.mkdir()
    directory.chmod(0o755)
    assert "mode 0755" in refused(name) and str(directory) in refused(name)
    directory.chmod(0o700)
    tn.zeros(3, shared=name)


@pytest.mark.parametrize("umask", [0o177, 0o277, 0o777])
def test_a_restrictive_umask_takes_no_right_from_the_user(directory, umask):
    code = """
        import os, sys, tenon as tn
        os.umask(int(sys.argv[1]))
        a = tn.zeros(3, shared="here")
        os.umask(0o022)
        print(*(oct(os.stat(path).st_mode & 0o7777) for path in (sys.argv[2], sys.argv[2] + "/name-here")))
        print(tn.attach("here").data_ptr == a.data_ptr)
    """
    assert python(code, str(umask), str(directory)) == "0o700 0o600\nTrue\n"


def test_an_own_directory_without_rights_is_mended(directory, name):
    for mode in (0o600, 0o500, 0):
        directory.mkdir(exist_ok=True)
        directory.chmod(mode)
        a = tn.zeros(3, shared=name)
        assert directory.stat().st_mode & 0o7777 == 0o700
        assert tn.attach(name).data_ptr == a.data_ptr
        del a


def test_a_symbolic_link_is_refused(directory, name, tmp_path):
    (tmp_path / "elsewhere").mkdir(mode=0o700)
    directory.symlink_to(tmp_path / "elsewhere")
    assert "symbolic link" in refused(name)


def test_a_file_in_its_place_is_refused(directory, name):
    directory.write_text("")
    assert "Not a directory" in refused(name)


@is_root
def test_the_directory_of_another_user_is_refused(directory, name):
    directory.mkdir(mode=0o700)
    os.chown(directory, 12345, 12345)
    assert "belongs to user 12345" in refused(name)


def test_a_missing_parent_is_said(directory, name, monkeypatch):
    monkeypatch.setenv("TENON_RUNTIME_DIR", str(directory / "not" / "there"))
    with pytest.raises(OSError, match=r"No such file .*TENON_RUNTIME_DIR"):
        tn.zeros(3, shared=name)
    with pytest.raises(FileNotFoundError, match=str(directory)):
        tn.attach(name)
    monkeypatch.delenv("TENON_RUNTIME_DIR")
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(directory / "gone"))
    assert "XDG_RUNTIME_DIR" in refused(name)


@is_root
def test_a_read_only_directory_is_said(name, tmp_path):
    code = """
        import ctypes, os, sys, tenon as tn
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.unshare(0x00020000) or libc.mount(None, b"/", None, 0x44000, None):
            print("skip"); sys.exit()
        path = sys.argv[1].encode()
        if libc.mount(b"none", path, b"tmpfs", 1, None):
            print("skip"); sys.exit()
        try:
            tn.zeros(3, shared="x")
        except OSError as error:
            print(error)
    """
    said = python(code, str(tmp_path), TENON_RUNTIME_DIR=str(tmp_path / "tenon"))
    if said == "skip\n":
        pytest.skip("no mount namespace")
    assert "Read-only file system" in said and "TENON_RUNTIME_DIR" in said


# --------------------------------------------------------------- who can take a name, and find it


def test_a_socket_of_the_abstract_namespace_is_in_nobody_s_way(name):
    import socket

    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as squatter:
        squatter.bind(f"\0tenon/{os.geteuid()}/{name}")
        a = tn.zeros(3, shared=name)
        assert tn.attach(name).data_ptr == a.data_ptr


RACE = """
    import ctypes, sys, tenon as tn
    if sys.argv[2] == "apart":
        if ctypes.CDLL(None).unshare(0x40000000):  # a network namespace of its own
            print("skip", flush=True)
            sys.exit()
    tn.zeros(1, shared=True)
    print("ready", flush=True)
    sys.stdin.readline()
    made, kept = [], []
    for i in range(100):
        try:
            kept.append(tn.full(3, 1, "int8", shared=f"{sys.argv[1]}-{i}"))
            made.append(i)
        except ValueError:
            kept.append(tn.attach(f"{sys.argv[1]}-{i}"))
    print(*made, flush=True)
    sys.stdin.readline()
"""


@pytest.mark.parametrize("where", ["together", "apart"])
def test_of_processes_that_race_for_many_names_one_gets_each(name, where, directory):
    racers = [
        subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(RACE), name, where],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(2)
    ]
    try:
        if "skip\n" in [racer.stdout.readline() for racer in racers]:
            pytest.skip("no network namespace")
        for racer in racers:
            racer.stdin.write("\n")
            racer.stdin.flush()
        made = [[int(i) for i in racer.stdout.readline().split()] for racer in racers]
        assert sorted(made[0] + made[1]) == list(range(100))
    finally:
        for racer in racers:
            racer.kill()
            racer.wait(30)
            racer.stdin.close()
            racer.stdout.close()


@is_root
def test_an_array_of_another_pid_namespace_is_said_to_be_there(name, directory):
    code = """
        import os, sys, tenon as tn
        a = tn.zeros(3, shared=sys.argv[1])
        print("made", flush=True)
        sys.stdin.readline()
    """
    program = textwrap.dedent(code)
    try:
        other = subprocess.Popen(
            [*"unshare --pid --fork --kill-child --mount-proc".split(), sys.executable, "-c", program, name],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
    except FileNotFoundError:
        pytest.skip("no unshare(1)")
    with other:
        if other.stdout.readline() != "made\n":
            pytest.skip("no PID namespace")
        with pytest.raises(FileNotFoundError, match="another PID namespace"):
            tn.attach(name)
        with pytest.raises(ValueError, match="another PID namespace"):
            tn.zeros(3, shared=name)
        other.stdin.close()
    a = tn.ones(3, shared=name)
    assert tn.attach(name).data_ptr == a.data_ptr


def test_a_name_is_found_without_a_look_through_all_processes(name, directory):
    """The process that attaches cannot list directories, /proc included."""
    code = """
        import ctypes, errno, os, platform, struct, sys, tenon as tn
        getdents64 = {"x86_64": 217, "aarch64": 61}.get(platform.machine())
        program = b"".join(struct.pack("HBBI", *line) for line in (
            (0x20, 0, 0, 0),                          # the number of the call
            (0x15, 0, 1, getdents64 or 0),            # if it is this one:
            (0x06, 0, 0, 0x00050000 | errno.EPERM),   # refuse it
            (0x06, 0, 0, 0x7FFF0000),
        ))
        class Program(ctypes.Structure):
            _fields_ = [("n", ctypes.c_ushort), ("lines", ctypes.c_char_p)]
        libc = ctypes.CDLL(None)
        if getdents64 is None or libc.prctl(38, 1, 0, 0, 0) or libc.prctl(
            22, 2, ctypes.byref(Program(4, program))
        ):
            print("skip")
            sys.exit()
        try:
            os.listdir("/proc")
        except PermissionError:
            print(tn.attach(sys.argv[1]).tolist())
    """
    a = tn.full(3, 7, shared=name)
    said = python(code, name)
    if said == "skip\n":
        pytest.skip("no seccomp")
    assert said == f"{a.tolist()}\n"


def test_every_process_that_has_it_can_be_found_by_the_name(name, directory):
    """The creator ends, then the second process. The third one has attached, the fourth was only forked."""
    with Other() as maker, Other() as second:
        maker.ask("a = tn.full(3, 7, shared=name)", name=name)
        second.ask("a = tn.attach(name)", name=name)
        maker.kill()
        a = tn.attach(name)
        assert a.tolist() == [7] * 3
        del a
        second.ask(
            """
import os, warnings
warnings.simplefilter("ignore", DeprecationWarning)
ends = os.pipe()
child = os.fork()
if child == 0:
    os.close(ends[1])
    os.read(ends[0], 1)
    os._exit(0)
"""
        )
        child = second.ask("child")
        with open(f"/proc/{second.pid}/fd/{second.ask('ends[1]')}", "w"):
            second.kill()
            with Other() as third:
                assert third.ask("tn.attach(name).tolist()", name=name) == [7] * 3
        with contextlib.suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL)


# ------------------------------------------------------------------------------------- what the dead leave


def files(directory):
    return sorted(path.name for path in directory.iterdir())


def test_what_a_killed_process_leaves_is_in_nobody_s_way(name, directory):
    for i in range(3):
        with Other() as maker:
            maker.ask("a = tn.full(3, i, 'int8', shared=name)", name=name, i=i)
            assert files(directory) == [f"name-{name}"]
            maker.kill()
        assert files(directory) == [f"name-{name}"]
    with pytest.raises(FileNotFoundError, match=name):
        tn.attach(name)
    assert files(directory) == []


@pytest.mark.parametrize("way", ["create", "attach", "gc"])
def test_what_dead_processes_leave_is_removed_by_the_next_one(name, directory, way, lone_collector):
    with Other() as maker:
        maker.ask("a = [tn.zeros(3, shared=f'{name}-{i}') for i in range(5)]", name=name)
        maker.kill()
    assert len(files(directory)) == 5
    with Other() as next_one:
        if way == "create":
            next_one.ask("a = tn.zeros(3, shared='another')")
            assert files(directory) == ["name-another"]
        elif way == "attach":
            with pytest.raises(FileNotFoundError):
                next_one.ask("tn.attach('another')")
            assert files(directory) == []
        else:
            next_one.ask("from tenon import _core; _core.collect_shared()")
            assert files(directory) == []


def test_a_process_that_ends_in_order_leaves_no_file(name, directory):
    assert python(CREATE.replace("here", name)) == "True\n"
    assert files(directory) == []


def test_an_array_that_is_let_go_of_leaves_no_file(name, directory):
    a = tn.zeros(3, shared=name)
    assert files(directory) == [f"name-{name}"]
    del a
    for _ in range(6000):
        if not files(directory):
            return
        ctypes.CDLL(None).usleep(10_000)
    pytest.fail(f"{files(directory)} is left")


def test_a_forked_child_that_has_ended_keeps_no_name(name, directory):
    code = """
        import os, sys, time, tenon as tn
        a = tn.zeros(3, shared=sys.argv[1])
        if os.fork() == 0:
            os._exit(0)
        os.wait()
        tn.zeros(3, shared=f"{sys.argv[1]}-another")
        del a
        for _ in range(300):  # longer than until the next sweep
            if not os.listdir(os.environ["TENON_RUNTIME_DIR"]):
                break
            time.sleep(0.01)
        print(os.listdir(os.environ["TENON_RUNTIME_DIR"]))
    """
    assert python(code, name) == "[]\n"


@pytest.mark.parametrize("content", [b"", b"x" * 1000, b"\0" * 1000])
def test_a_damaged_file_that_nobody_keeps_is_replaced(name, directory, content):
    tn.zeros(1, shared="first")
    (directory / f"name-{name}").write_bytes(content)
    with pytest.raises(FileNotFoundError):
        tn.attach(name)
    (directory / f"name-{name}").write_bytes(content)
    a = tn.ones(3, shared=name)
    assert tn.attach(name).data_ptr == a.data_ptr


def test_a_damaged_file_of_a_name_in_use_is_said(name, directory, other):
    a = tn.zeros(3, shared=name)
    path = directory / f"name-{name}"
    with path.open("r+b") as file:
        file.write(b"x" * 1000)
    for attempt in ("tn.attach(name)", "tn.zeros(3, shared=name)"):
        with pytest.raises(ValueError, match=str(path)):
            other.ask(attempt, name=name)
    del a
