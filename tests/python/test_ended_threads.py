# SPDX-License-Identifier: Apache-2.0
"""Native functions that end their thread (pthread_exit) instead of returning."""

import os
import signal
import subprocess
import sys
import textwrap

import native_library
import pytest

import tenon as tn

pytestmark = pytest.mark.usefixtures("nothing_stays_behind")

PROTOTYPE = "int end_thread_at(int64_t *label, uint64_t index, uint64_t bad_index)"
SCHEMA = {"label": ("i8", (4,))}
PREAMBLE = f"""
import os
import tenon as tn
from tenon import _core
ending = tn.c_function(os.environ[{native_library.PATH_VARIABLE!r}], {PROTOTYPE!r})
a = tn.zeros(1, "i8")
def feed(**options):
    return tn.Feed(lambda batch: ending(batch.label, 5, 5), {SCHEMA!r}, **options)
"""


def run(program):
    environment = {**os.environ, native_library.PATH_VARIABLE: native_library.generators()}
    command = [sys.executable, "-W", "ignore::DeprecationWarning", "-c", PREAMBLE + textwrap.dedent(program)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600)
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize("processes", [False, True])
@pytest.mark.parametrize("threadsafe", [False, True])
def test_its_batch_fails_and_the_feed_goes_on(processes, threadsafe):
    ending = tn.c_function(native_library.generators(), PROTOTYPE, threadsafe=threadsafe, bad_index=3)
    options = {"workers": 2, "batches": 6, "timeout": 60.0, "processes": processes}
    with tn.Feed(ending, SCHEMA, **options) as feed:
        for _ in range(2):
            seen = []
            with pytest.raises(
                tn.OpError, match=r"'end_thread_at' failed at batch 3 .*pthread_exit"
            ) as caught:
                seen.extend(batch.index for batch in feed)
            assert caught.value.index == 3
    with tn.Feed(ending, SCHEMA, on_error="skip", **options) as feed:
        assert [batch.index for batch in feed] == [0, 1, 2, 4, 5]


def test_its_op_fails_and_others_run():
    ending = tn.c_function(native_library.generators(), PROTOTYPE)
    a = tn.zeros(1, "i8")
    for _ in range(3):
        op = tn.push(ending, tn.overwrite(a), 5, 5)
        with pytest.raises(tn.OpError, match=r"pthread_exit"):
            op.wait(600)  # a wait without an end could run it in this thread
        tn.push(ending, tn.overwrite(a), 7, 5).wait()
        assert a.tolist() == [7]
    with pytest.raises(ExceptionGroup):
        tn.waitall()


@pytest.mark.parametrize(
    "call",
    [
        "ending(a, 5, 5)",
        "tn.push(lambda x: ending(x, 5, 5), tn.overwrite(a)).wait(600)",
        "list(feed(workers=1))",
        "list(feed(workers=0))",
    ],
)
def test_a_call_from_python_ends_the_process_with_a_message(call):
    status, _out, err = run(call)
    assert status == -signal.SIGABRT
    assert "native function 'end_thread_at' did not return, because it ended its thread" in err


def test_neither_a_fork_nor_the_end_of_the_program_waits_for_an_ended_thread():
    status, out, err = run("""
        try:
            tn.push(ending, tn.overwrite(a), 5, 5).wait(600)
        except tn.OpError:
            print("failed", flush=True)
        _core.before_fork(3600.0)  # waits for the bodies that run
        _core.after_fork_in_parent()
        if os.fork() == 0:
            tn.push(ending, tn.overwrite(a), 7, 5).wait(600)
            print(a.tolist(), flush=True)
            os._exit(0)
        os.wait()
    """)
    assert (status, out) == (0, "failed\n[7]\n"), err
