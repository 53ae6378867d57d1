# SPDX-License-Identifier: Apache-2.0
"""The tests that vLLM and SGLang have for their own shared memory pass with the adapters of this folder. The
files are not part of the repository: TENON_PEER_ARENAS names a folder with them (docs/howto/arenas.md)."""

import os
import pathlib
import re
import subprocess
import sys
import textwrap

import pytest

HERE = pathlib.Path(__file__).parent
FOLDER = os.environ.get("TENON_PEER_ARENAS")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        FOLDER is None, reason="TENON_PEER_ARENAS names no folder with the files of the peers"
    ),
]

# By adapter: a text in their test files, the tests that are left out, and how many pass.
ARENA_LEFT_OUT = "test_arena_broadcast or checks_free_space or unregisters_pinned or event_gated"
CASES = {
    "vllm_object_storage": ("SingleWriterShmObjectStorage(", "", 14),
    "vllm_arena": ("ShmTensorArena(", f"arena and not ({ARENA_LEFT_OUT})", 15),
    "sglang_pointer": ("ShmPointerMMData(", "(TestShmPointerMMData or round_trips) and not discard", 4),
}


def environment(adapter):
    own = {"TENON_PEER_ADAPTER": adapter} if adapter else {}
    return {**os.environ, **own, "PYTHONPATH": str(HERE), "PYTHONDONTWRITEBYTECODE": "1"}


@pytest.mark.parametrize("kind", ["their_own", "adapter"])
@pytest.mark.parametrize("name", CASES)
def test_their_tests_pass(name, kind):
    text, chosen, passed = CASES[name]
    files = [str(file) for file in pathlib.Path(FOLDER).rglob("test_*.py") if text in file.read_text()]
    alone = ("-p", "stand_ins", "-p", "no:cacheprovider", "--noconftest", "-c", os.devnull)
    command = [sys.executable, "-m", "pytest", "-q", *alone, "--rootdir", FOLDER, "-k", chosen, *files]
    done = subprocess.run(
        command,
        cwd=FOLDER,
        env=environment(name if kind == "adapter" else None),
        capture_output=True,
        text=True,
    )
    assert re.search(rf"^{passed} passed", done.stdout, re.M) and done.returncode == 0, done.stdout


def run(adapter, program):
    """A program that has `adapter` installed."""
    whole = "import stand_ins, subprocess, sys, torch\n" + textwrap.dedent(program)
    done = subprocess.run(
        [sys.executable, "-c", whole], env=environment(adapter), capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stdout + done.stderr


# A reader of another process, which opens what it is given, says so and waits.
READER = """
def reader(program):
    whole = f"import stand_ins, sys, time, torch\\n{program}\\nprint('ready', flush=True)\\ntime.sleep(60)"
    process = subprocess.Popen([sys.executable, "-c", whole], stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "ready\\n"
    return process
"""


def test_a_killed_reader_keeps_no_slot_of_the_arena():
    run(
        "vllm_arena",
        READER
        + """
from vllm.distributed.device_communicators.shm_tensor_arena import ShmTensorArena
writer = ShmTensorArena(1, 1 << 20, 1)
t = torch.arange(1000)
idx = writer.write_tensor(t)
process = reader(f'''
from vllm.distributed.device_communicators.shm_tensor_arena import ShmTensorArena
arena = ShmTensorArena(*{writer.handle()!r}, reader_rank=0)
got = arena.get_tensor({idx}, 8000, torch.int64, (1000,))
assert torch.equal(got, torch.arange(1000))
''')
assert writer.write_tensor(t) is None
process.kill()
process.wait()
assert writer.write_tensor(t) == idx
""",
    )


def test_a_killed_reader_keeps_no_object_of_the_storage():
    run(
        "vllm_object_storage",
        READER
        + """
from vllm.distributed.device_communicators import shm_object_storage as theirs
ring = theirs.SingleWriterShmRingBuffer(1 << 20, create=True)
writer = theirs.SingleWriterShmObjectStorage(1 << 20, 1, ring)
address, number = writer.put("a", torch.arange(1000))
process = reader(f'''
from vllm.distributed.device_communicators import shm_object_storage as theirs
ring = theirs.SingleWriterShmRingBuffer(*{ring.handle()!r})
''')
writer.free_unused()
assert writer.is_cached("a")
process.kill()
process.wait()
writer.free_unused()
assert not writer.is_cached("a")
""",
    )


def test_each_rank_gets_the_tensor_of_a_pointer_and_keeps_its_writes():
    run(
        "sglang_pointer",
        """
import pickle
from sglang.srt.managers.mm_utils import ShmPointerMMData
ShmPointerMMData.ranks = 2
pointer = ShmPointerMMData(torch.arange(10000))
program = "import stand_ins, pickle, sys, torch; t = pickle.load(sys.stdin.buffer).materialize(); " \\
    "assert torch.equal(t, torch.arange(10000)); t[:] = 7; print('ok')"
for rank in range(2):
    data = pickle.dumps(pointer)
    done = subprocess.run([sys.executable, "-c", program], input=data, stdout=subprocess.PIPE)
    assert done.stdout == b"ok\\n", rank
late = pickle.loads(pickle.dumps(pointer))
assert "FileNotFoundError" in late._materialization_error
""",
    )
