# SPDX-License-Identifier: Apache-2.0
"""Other code of the process closes all file descriptors, as daemons do, and opens files of its own, which get
the numbers of Tenon's files: none of these files is read, written, locked or closed.

Each test is a separate program, because it closes its descriptors.
"""

import subprocess
import sys
import textwrap

import pytest
from other_process import SECONDS

PRELUDE = """
import gc, os, pickle, sys, time, warnings
warnings.simplefilter("ignore", DeprecationWarning)
import tenon as tn
CONTENT = b"precious" * 1000
path = sys.argv[1]

def take_numbers(end=10000):
    '''Closes all descriptors, and opens a file for each number that was taken. Returns the numbers.'''
    taken = [int(fd) for fd in os.listdir("/proc/self/fd") if 2 < int(fd) < end]
    os.closerange(3, end)
    with open(path, "wb") as file:
        file.write(CONTENT)
    numbers = []
    while not numbers or numbers[-1] < max(taken):
        numbers.append(os.open(path, os.O_RDWR))
    return numbers

def check(numbers):
    for number in numbers:
        os.fstat(number)  # it is open
    with open(path, "rb") as file:
        assert file.read() == CONTENT

def in_child(work):
    pid = os.fork()
    if pid == 0:
        try:
            work()
        except Exception as error:
            assert "closed the file descriptor" in str(error), error
            os._exit(7)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
"""


@pytest.fixture
def run(tmp_path):
    """Runs a program, which must succeed. Returns what it prints."""

    def run(program):
        script = PRELUDE + textwrap.dedent(program)
        command = [sys.executable, "-c", script, str(tmp_path / "precious")]
        done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    return run


def test_arrays_are_made_and_freed_beside_them(run):
    run("""
        kept, freed = tn.zeros(1000, shared=True), [tn.zeros(60 << 20, "u1", shared=True) for _ in range(6)]
        named = tn.zeros(3, shared=f"lost-{os.getpid()}")
        numbers = take_numbers()
        with kept.write() as v:
            v[...] = 7
        del freed, named
        gc.collect()
        status = "/proc/self/status"
        shared = lambda: next(int(line.split()[1]) for line in open(status) if line.startswith("RssShmem"))
        while shared() > 300 << 10:  # of 360 MiB, more than 256 go back to the system
            check(numbers)
        new = tn.zeros(200 << 20, "u1", shared=True)
        assert in_child(lambda: new.__setitem__(0, 1)) == 0 and new[0].item() == 1
        assert kept.tolist() == [7] * 1000
        check(numbers)
    """)


def test_a_child_gets_an_error_for_an_array_from_before(run):
    run("""
        a = tn.zeros(1000, shared=True)
        numbers = take_numbers()
        for use in (a.tolist, lambda: a.__setitem__(0, 1), lambda: tn.push(tn.fill, tn.write(a), 1).wait()):
            assert in_child(use) == 7
        a[0] = 5
        check(numbers)
    """)


def test_a_handle_is_not_opened_and_the_error_says_why(run):
    said = run("""
        import subprocess
        a = tn.zeros(1000, shared=True)
        numbers = take_numbers()
        code = "import pickle, sys, tenon; pickle.loads(bytes.fromhex(sys.argv[1])).tolist()"
        command = [sys.executable, "-c", code, pickle.dumps(a).hex()]
        print(subprocess.run(command, capture_output=True, text=True).stderr)
        check(numbers)
    """)
    assert "FileNotFoundError" in said and "closed the file descriptor" in said


def test_a_process_that_lives_is_not_taken_for_a_dead_one(run):
    """A process holds a lock of a file as long as it lives. Nobody has such locks of the other file."""
    run("""
        a = tn.zeros(1000, shared=True)
        to, back = os.pipe(), os.pipe()
        if os.fork() == 0:
            with a.write():
                os.write(back[1], b"x")
                os.read(to[0], 1)
            os._exit(0)
        os.read(back[0], 1)
        ends = [os.dup2(fd, 5000 + fd) for fd in (to[1], back[0])]
        numbers = take_numbers(5000)
        try:
            with a.write(timeout=1):
                raise AssertionError
        except TimeoutError:
            pass
        finally:
            os.write(ends[0], b"x")
        os.wait()
        check(numbers)
    """)


def test_a_trace_is_not_written_into_them(run, tmp_path):
    run(f"""
        trace = tn.trace({str(tmp_path / "trace.json")!r})
        trace.__enter__()
        tn.push(tn.fill, tn.write(tn.zeros(3)), 1).wait()
        numbers = take_numbers()
        try:
            trace.__exit__(None, None, None)
        except OSError as error:
            assert "closed its file descriptor" in str(error)
        else:
            raise AssertionError
        check(numbers)
    """)


def test_the_descriptor_of_a_channel_is_made_anew(run):
    run("""
        import select
        channel = tn.Channel({"x": ("i8", ())}, slots=2)
        lost = channel.fileno()
        numbers = take_numbers()
        with channel.loan() as item:
            item["x"][...] = 4
        check(numbers)
        assert select.select([channel.fileno()], [], [], 600)[0]
        assert channel.recv()["x"].item() == 4
        check(numbers)
    """)


@pytest.mark.slow
def test_a_feed_is_told_of_the_end_of_its_workers(run, tmp_path):
    (tmp_path / "filling.py").write_text("def fill(batch): batch.x[...] = __import__('os').getpid()")
    run(f"""
        sys.path.insert(0, {str(tmp_path)!r})
        from filling import fill
        feed = tn.Feed(fill, tn.schema(x=("i8", (2,))), batches=40, workers=1, processes="fork", slots=2)
        batches = iter(feed)
        pid = next(batches).x.numpy()[0]
        take_numbers()
        os.kill(pid, 9)
        try:
            for batch in batches:
                pass
        except tn.OpError as error:
            assert "was killed by signal 9" in str(error) and "closed the file descriptor" in str(error)
        else:
            raise AssertionError
        feed.close()
        check([])  # multiprocessing closes numbers
    """)


def test_a_server_of_the_program_keeps_its_connections(run):
    """It gets the number of the socket on which children pass handles."""
    run(
        """
        import multiprocessing, socket
        from tenon._array import passing

        def end_of_a_child():
            with socket.socket(socket.AF_UNIX) as link:
                link.settimeout(600)
                for i in range(1000):  # the thread may be about to listen anew
                    if not link.connect_ex(passing._address(os.getpid())):
                        break
                    time.sleep(0.01)
                link.shutdown(socket.SHUT_WR)
                assert link.recv(1) == b"."

        process = multiprocessing.get_context("fork").Process(target=int)
        process.start()
        process.join()
        number = passing._listener.fileno()
        os.closerange(3, 10000)
        servers = []
        while not servers or servers[-1].fileno() < number:
            servers.append(socket.create_server(("127.0.0.1", 0)))
        end_of_a_child()  # the thread looks at its number after it
        for server in servers:
            with socket.create_connection(server.getsockname()):
                time.sleep(0.01)
                server.settimeout(10)
                server.accept()[0].close()
        end_of_a_child()
        os.fstat(number)
        """
    )
