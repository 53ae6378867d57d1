# SPDX-License-Identifier: Apache-2.0
"""What the processes of the tests do. Everything here runs in a child of the nursery."""

import contextlib
import gc
import json
import multiprocessing
import os
import pickle
import signal
import threading
import time

import numpy as np

import tenon as tn
from tenon import _core

# ------------------------------------------------------------------------------------------ small things


def outcome(call):
    """The value of a call as text, or the name of the exception that it raises."""
    try:
        return repr(call())
    except Exception as error:
        return type(error).__name__


def error_text(call):
    """The message of the exception that a call raises."""
    try:
        call()
    except Exception as error:
        return str(error)
    return ""


def timed(call):
    """How long a call takes, and its outcome."""
    began = time.monotonic()
    result = outcome(call)
    return time.monotonic() - began, result


def opened(handle):
    """What another process has pickled."""
    return pickle.loads(handle)


def write_lease(array):
    """A lease for writing, under which half of the array was changed."""
    lease = array.lease("w")
    np.asarray(array)[: len(array) // 2] = 7
    return lease


def pickled(value):
    return pickle.dumps(value)


def race(call, at):
    """The outcome of a call that begins at a time of the monotonic clock."""
    while time.monotonic() < at:
        pass
    return outcome(call)


# ------------------------------------------------------------------------------------------ single attacks

_kept = {}


def full_array(nbytes):
    """The pickle of a shared array of ones, which this process keeps as its victim."""
    _kept["victim"] = tn.full(nbytes, 1, "uint8", shared=True)
    return pickle.dumps(_kept["victim"])


def read_for_long(say):
    """Reads zeros into the victim, all in one system call, under a lease for writing."""
    array = _kept["victim"]
    source = os.memfd_create("zeros")
    os.ftruncate(source, len(array))
    with array.write() as v:
        say(b"!")
        os.preadv(source, [memoryview(v)], 0)
        os.kill(os.getpid(), signal.SIGSTOP)  # it was not killed in time: the lease is kept


def separate_arrays(n, prefix):
    """Small arrays with a segment of memory each; prefix: of their names."""
    if prefix is not None:
        return [tn.zeros(2, "int32", shared=f"{prefix}.{i}") for i in range(n)]
    return [tn.zeros(2, "int32", shared=tn.Shared(numa_node=0)) for i in range(n)]


def overwrite_until_one_fails(arrays):
    """The outcomes of a whole overwrite of each array, from the last one on."""
    outcomes = []
    for array in reversed(arrays):
        outcomes.append(outcome(lambda array=array: array.__setitem__(..., 1)))
        if outcomes[-1] != "None":
            break
    return outcomes


def places_of(pid):
    """How many places a process has, after `tenon gc`."""
    json.loads(_core.collect_shared())
    segments = json.loads(_core.describe_shared())["segments"]
    return sum(p["pid"] == pid for s in segments for p in s["participants"] or ())


def take_and_give_back(array, timeout):
    with array[1].lease("w", timeout=timeout, on_owner_died="ignore"):
        pass


def pass_through(channel, timeout):
    """Sends an item and receives one."""
    with channel.loan(timeout=timeout) as item:
        item.x[...] = 1
    channel.recv(timeout=timeout).release()


def fork_while(action, name, n):
    """Forks n children, which wait, while a thread uses the name again and again."""
    has_ended, has_begun = threading.Event(), threading.Event()

    def use():
        while not has_ended.is_set():
            with contextlib.suppress(Exception):
                array = tn.attach(name) if action == "attach" else tn.zeros(4, shared=name)
                del array
            has_begun.set()

    thread = threading.Thread(target=use)
    thread.start()
    has_begun.wait()
    children = []
    for _ in range(n):
        child = os.fork()
        if child == 0:
            with contextlib.suppress(BaseException):
                while True:
                    signal.pause()
            os._exit(0)
        children.append(child)
        time.sleep(0.001)
    has_ended.set()
    thread.join()
    return children


def end_all(children):
    for child in children:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def send_to_a_process_that_dies(nbytes):
    """Sends an array to a process that is killed at its start, and lets go of it. Returns how many bytes of
    memory this process' shared memory still has after a second."""
    array = tn.ones(nbytes, "uint8", shared=f"tenon.chaos.sent.{os.getpid()}")
    process = multiprocessing.get_context("spawn").Process(target=len, args=(array,))
    process.start()
    process.kill()
    process.join()
    del array, process
    gc.collect()
    end = time.monotonic() + 1.0
    while (left := shared_memory_nbytes()) > nbytes // 8 and time.monotonic() < end:
        time.sleep(0.01)
    return left


def shared_memory_nbytes():
    """Memory of the files of shared arrays that this process has open."""
    total = 0
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            if os.readlink(f"/proc/self/fd/{name}").startswith("/memfd:tenon"):
                total += os.stat(f"/proc/self/fd/{name}").st_blocks * 512
    return total
