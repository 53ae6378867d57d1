# SPDX-License-Identifier: Apache-2.0
"""What processes in other namespaces are told of memory that they cannot open."""

import pickle

import namespaces
import numpy as np
import pytest

import tenon as tn

OPEN = """
    import pickle, sys, tenon as tn
    try:
        {read}
        print("opened")
    except Exception as error:
        print(f"{{type(error).__name__}}: {{error}}")
"""
LOADS = OPEN.format(read="tn.loads(sys.stdin.buffer.read())")
USE = OPEN.format(read="pickle.load(sys.stdin.buffer).tolist()")


@pytest.fixture
def message():
    pool = tn.TensorPool("4 MiB", inline=0, linger=0)
    message = pool.dumps(np.ones(5000), opens=None)
    yield message
    assert tn.loads(message).sum() == 5000  # it has not ended
    pool.revoke(message=message)


def test_a_living_sender_outside_of_the_user_namespace_is_not_said_to_be_gone(message):
    (said,) = namespaces.run(LOADS, message, kinds=["user"])
    assert said.startswith("FileNotFoundError") and "user namespace" in said, said


def test_a_process_without_proc_is_not_said_to_be_on_another_machine(message):
    (said,) = namespaces.run(LOADS, message, kinds=["user", "mount"], proc=False)
    assert said.startswith("FileNotFoundError") and "no /proc here" in said and "machine" not in said, said


@pytest.mark.parametrize("opens", [1, None])
@pytest.mark.parametrize(
    ("kinds", "proc", "why"),
    [(["user"], True, "user namespace"), (["user", "mount"], False, "no /proc here")],
    ids=["user namespace", "no /proc"],
)
def test_handles_say_the_same(kinds, proc, why, opens):
    array = tn.ones(5000, shared=True)
    handle = tn.Handle(array, opens=opens)
    (said,) = namespaces.run(USE, pickle.dumps(handle), kinds=kinds, proc=proc)
    assert why in said and "gone" not in said.lower() and "no process has it" not in said, said
