# SPDX-License-Identifier: Apache-2.0
"""The environment of the processes: a control group with a memory limit, and a small /dev/shm.

Both need rights that not every machine gives; where they are missing, the reason is said. A namespace alone
limits no memory, so there is no other way to try the first one.
"""

import contextlib
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import soak
from other_process import SECONDS

LIMIT = 256 << 20


def group_folder():
    """A new control group below that of this process, with a limit of LIMIT bytes of memory."""
    reasons = []
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if "memory" in controllers.split(","):
            root, limit = Path("/sys/fs/cgroup/memory"), "memory.limit_in_bytes"
        elif not controllers:
            root, limit = Path("/sys/fs/cgroup"), "memory.max"
        else:
            continue
        folder = root / path.lstrip("/") / f"tenon-test-{os.getpid()}"
        try:
            folder.mkdir()
        except OSError as error:
            reasons.append(f"{folder}: {error.strerror}")
            continue
        try:
            (folder / limit).write_text(str(LIMIT))
        except OSError as error:
            reasons.append(f"{folder / limit}: {error.strerror}")
            folder.rmdir()
            continue
        return folder
    pytest.skip(f"no control group can be made here: {'; '.join(reasons) or 'there are none'}")


@pytest.fixture
def group():
    folder = group_folder()
    yield folder
    with contextlib.suppress(FileNotFoundError):
        folder.rmdir()


def run_in(group, program):
    script = textwrap.dedent(
        r"""
        import os, re, sys, numpy as np, tenon as tn
        tn.zeros(1, shared=True)  # what a first one costs, belongs to where it came from
        with open(sys.argv[1] + "/cgroup.procs", "w") as file:
            file.write(str(os.getpid()))
        MIB = 1 << 20

        def refused(make, nbytes):
            "The error's text, if it says all that it should."
            try:
                make()
            except MemoryError as error:
                text = str(error)
                number = re.search(r"(\d{6,}) bytes", text)
                is_told = number and 0 <= int(number[1]) - nbytes <= 1 * MIB  # what it needs itself
                return (is_told and "control group" in text and "256.0 MiB" in text, text)
            return "made"
        """
    ) + textwrap.dedent(program)
    command = [sys.executable, "-c", script, str(group)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS)
    assert done.returncode == 0, (done.returncode, done.stdout + done.stderr)
    for file in ("memory.oom_control", "memory.events"):
        if (group / file).exists():
            for line in (group / file).read_text().splitlines():
                assert line.split() not in [["oom_kill", n] for n in map(str, range(1, 9))], line
    return done.stdout.splitlines()


def test_over_the_limit_of_a_control_group_is_an_error_with_the_numbers(group):
    lines = run_in(
        group,
        """
        n = 1 << 30
        print(refused(lambda: tn.zeros(n, "int8", shared=True), n))
        print(refused(lambda: tn.zeros(n, "int8", shared="limited"), n))
        channel = tn.Channel({"x": ("int8", (n,))}, slots=4)  # a slot takes memory when it is lent
        print(refused(channel.loan, n))
        objects = tn.Channel(nbytes=2 * n)
        print(refused(lambda: objects.loan(nbytes=n), n))
        print(refused(lambda: tn.Arena({"a": {"x": ("int8", (n,))}}, shared=True), n))
        a = tn.ones(32 * MIB, "int8", shared=True)  # and less goes on
        print(int(np.add.reduce(a.copy().numpy(), dtype="int64")))
        """,
    )
    assert [line.startswith("(True") for line in lines[:5]] == [True] * 5, lines
    assert lines[5] == str(32 << 20)


@pytest.mark.slow
def test_what_was_made_below_the_limit_can_be_written_to_its_end(group):
    lines = run_in(
        group,
        """
        kept = []
        answer = "made"
        while answer == "made" and len(kept) < 100:
            answer = refused(lambda: kept.append(tn.empty(16 * MIB, "int8", shared=True)), 16 * MIB)
        for a in kept:
            with a.write(overwrite=True) as v:
                v[...] = 1
        print(4 <= len(kept) <= 16 and answer[0], answer)
        kept.clear()  # the pool keeps it for later, but not when it is needed elsewhere
        channel = tn.Channel({"x": ("int8", (4 * MIB,))}, slots=400)
        loans = []
        answer = "made"
        while answer == "made" and len(loans) < 400:
            answer = refused(lambda: loans.append(channel.loan(timeout=0)), 4 * MIB)
        for value, loan in enumerate(loans):
            loan.x[...] = value % 100
            loan.send()
        print(all(int(channel.recv(timeout=0).x[-1].item()) == i % 100 for i in range(len(loans))))
        print(len(loans) >= 16 and answer[0], answer)
        """,
    )
    assert lines == [line for line in lines if line.startswith("True")] and len(lines) > 2, lines


def in_small_shm(program, size="1m"):
    unshare = ["unshare", "--mount"] if os.geteuid() == 0 else ["unshare", "--mount", "--map-root-user"]
    mount = f"mount -t tmpfs -o size={size} tmpfs /dev/shm"
    try:
        tried = subprocess.run([*unshare, "sh", "-c", mount], capture_output=True, text=True, timeout=SECONDS)
    except FileNotFoundError:
        pytest.skip("there is no program `unshare`")
    if tried.returncode != 0:
        pytest.skip(f"no mount namespace can be made here: {tried.stderr.strip()}")
    command = [
        *unshare,
        "sh",
        "-c",
        f'{mount} && exec "$0" -c "$1"',
        sys.executable,
        textwrap.dedent(program),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS)
    assert done.returncode == 0, (done.returncode, done.stdout + done.stderr)
    return done.stdout.splitlines()


@pytest.mark.slow
def test_a_small_dev_shm_limits_nothing():
    lines = in_small_shm("""
        import os, pickle, subprocess, sys, numpy as np, tenon as tn
        MIB = 1 << 20
        size = os.statvfs("/dev/shm")
        print(size.f_blocks * size.f_frsize == MIB)
        array = tn.zeros(64 * MIB, "int8", shared=True)
        channel = tn.Channel({"x": ("int8", (16 * MIB,))}, slots=4)
        layouts = {"bytes": {"x": ("int8", (64 * MIB,))}, "words": {"y": ("int32", (16 * MIB,))}}
        arena = tn.Arena(layouts, shared=True)
        with array.write() as v:
            v[...] = 1
        for value in range(4):
            with channel.loan(timeout=0) as item:
                item.x[...] = value
        with arena.use("words") as words:
            words.y[...] = 7
        program = '''if True:
            import pickle, sys, numpy as np, tenon as tn
            array, channel, arena = pickle.load(sys.stdin.buffer)
            with array.read() as v:
                print(int(np.add.reduce(np.asarray(v), dtype="int64")))
            print([int(channel.recv(timeout=600).x[-1].item()) for _ in range(4)])
            with arena.use("words", "r") as words:
                print(int(words.y[-1].item()))
            with arena.use("bytes") as bytes:
                bytes.x[...] = 3
            array[-1] = 9
        '''
        data = pickle.dumps((array, channel, arena))
        done = subprocess.run([sys.executable, "-c", program], input=data, capture_output=True, timeout=600)
        print((done.stdout + done.stderr).decode(), end="")
        print(array.tolist()[-1], arena.active)
    """)
    assert lines == ["True", str(64 << 20), "[0, 1, 2, 3]", "7", "9 bytes"], lines


@pytest.mark.slow
def test_tensor_pools_need_no_dev_shm_few_descriptors_and_no_rights():
    """A pool of 8 GiB sends large arrays, and 300 small pools one each."""
    lines = in_small_shm(
        f"n = {soak.times(2000, 100)}"
        + textwrap.dedent("""
            import ctypes, multiprocessing, os, resource, numpy as np, tenon as tn
            import multiprocessing.connection, tenon._ipc.packing
            resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))
            if os.geteuid() == 0:
                try:
                    os.setgroups([])
                    os.setgid(65534)
                    os.setuid(65534)
                    ctypes.CDLL(None).prctl(4, 1, 0, 0, 0)  # PR_SET_DUMPABLE: as if it had been started so
                except OSError:  # root of this namespace only
                    pass
            here, there = multiprocessing.Pipe()
            if os.fork() == 0:
                here.close()
                while True:
                    try:
                        x = tn.loads(there.recv_bytes())
                    except EOFError:
                        os._exit(0)
                    there.send((x.shape, float(x[0]), float(x[-1])))
                    del x
            there.close()
            def send(pool, x):
                here.send_bytes(pool.dumps(x))
                assert here.recv() == (x.shape, x[0], x[-1])
            pool = tn.TensorPool("8 GiB", linger=0)
            x = np.zeros(23_000_000 // 4, "float32")
            for i in range(n):
                x[0] = x[-1] = i
                send(pool, x)
            print("large", pool.stats()["used"])
            for i in range(300):
                send(tn.TensorPool("1 MiB", inline=0, idle=0, linger=0), np.full(1000, i))
            print("small", os.statvfs("/dev/shm").f_blocks * os.statvfs("/dev/shm").f_frsize >> 20)
        """),
        "64m",
    )
    assert lines == ["large 0", "small 64"]
