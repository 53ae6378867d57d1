# SPDX-License-Identifier: Apache-2.0
"""A C program (tests/native/arena_peer.c) and this one share an arena by its name."""

import contextlib
import os
import subprocess
import sys
import time

import native_library
import pytest

import tenon as tn

LAYOUTS = {"features": {"A": ("f4", (1000,))}, "counts": {"D": ("i4", (500,))}}
NAME = f"tenon.test.arena.c.{os.getpid()}"


@pytest.fixture(scope="module")
def program():
    path = native_library.folder() / "arena_peer"
    config = [sys.executable, "-m", "tenon", "config"]
    includes, libdir = (
        subprocess.run([*config, what], capture_output=True, text=True, check=True).stdout.strip()
        for what in ("--includes", "--libdir")
    )
    command = [os.environ.get("CC", "cc"), "-std=c99", "-pedantic", "-Wall", "-Wextra", "-Werror"]
    command += [*includes.split(), str(native_library.SOURCES / "arena_peer.c"), "-o", str(path)]
    subprocess.run([*command, f"-L{libdir}", f"-Wl,-rpath,{libdir}", "-ltenon"], check=True)
    return str(path)


@contextlib.contextmanager
def running(*command):
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
    ) as peer:
        try:
            yield peer
        finally:
            peer.kill()


def tell(peer, letter):
    peer.stdin.write(letter + "\n")
    return peer.stdout.readline().strip()


@pytest.mark.parametrize("maker", ["C", "Python"])
def test_a_c_program_and_a_python_program_share_an_arena_by_name(program, maker):
    arena = tn.Arena(LAYOUTS, shared=NAME) if maker == "Python" else None
    with running(program, NAME, *(["create"] if maker == "C" else [])) as peer:
        assert peer.stdout.readline() == "has 2 layouts of 4000 bytes\n"
        if arena is None:
            arena = tn.Arena.attach(NAME)
        assert arena.layouts == {
            layout: {name: (tn.dtype(dtype), shape) for name, (dtype, shape) in fields.items()}
            for layout, fields in LAYOUTS.items()
        }
        with arena.use("features") as f:
            f.A[:] = 2
        assert tell(peer, "f") == "done f"
        with arena.use("features", "r") as f:
            assert f.A.tolist() == [3] * 1000
        assert tell(peer, "c") == "done c"
        assert (arena.active, arena.generation) == ("counts", 2)
        with arena.use("counts", "r") as f:
            assert f.D.tolist() == [3000] * 500
        # No other process uses the layout that it holds. It prints the elements that it finds.
        assert tell(peer, "h") == "holds"
        with pytest.raises(TimeoutError, match=f"process {peer.pid} "):
            arena.use("features", timeout=0.1).__enter__()
        assert tell(peer, "c").startswith("error ")
        assert peer.wait(60) == 1
    with arena.use("features", timeout=600) as f:
        f.A[:] = 1


def test_the_death_of_a_c_program_that_writes_is_told(program):
    arena = tn.Arena(LAYOUTS, shared=NAME + ".killed")
    with running(program, NAME + ".killed") as peer:
        peer.stdout.readline()
        assert tell(peer, "h") == "holds"
        peer.kill()
        with pytest.raises(tn.OwnerDied) as caught:
            arena.use("counts", "r").__enter__()
        assert caught.value.pid == peer.pid
        with arena.use("counts", "r", on_owner_died="ignore") as f:
            assert f.D.shape == (500,)


def test_an_arena_of_a_c_program_lives_on_without_it(program):
    name = NAME + ".left"
    with running(program, name, "create") as peer:
        peer.stdout.readline()
        arena = tn.Arena.attach(name)
        with arena.use("features") as f:
            f.A[:] = 5
        assert tell(peer, "c") == "done c"
    with arena.use("counts", "r") as f:
        assert f.D[0] == 5000
    del arena
    deadline = time.monotonic() + 600
    with pytest.raises(FileNotFoundError):
        while time.monotonic() < deadline:
            tn.Arena.attach(name)
            time.sleep(0.01)
