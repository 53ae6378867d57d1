# SPDX-License-Identifier: Apache-2.0
"""What the processes of test_pool.py do with tensor pools. The elements of every array follow from its seed,
so a process that has an array can tell whether some of them have changed. All of this runs in children of the
nursery; each has one pool."""

import contextlib
import ctypes
import gc
import os
import struct
import time

import numpy as np
from denials import die_with_parent
from oracle import Violation
from steered import SECONDS

import tenon as tn
from tenon import _core

_STEPS = np.arange(1 << 20, dtype="uint64") * np.uint64(0x9E3779B97F4A7C15)

pool = None
arrays = {}  # of the pool, not sent
views = {}  # what messages were opened to: lists of arrays
got_room = 0.0  # when send_some() had memory for its first array
_ghost = None  # a forked child: its number, and the pipe that ends it
_sockets = None  # the folder of the sockets of pools, if each process is in a user namespace of its own
_links = {}  # to the processes of these numbers
_server = None


def words(n, seed):
    return _STEPS[:n] + np.uint64(seed)


def contain(sockets):
    """Puts this process into namespaces of its own, in which the system refuses it the files of the others:
    it gets their memory at sockets in this folder. Returns why the system refuses that, or ""."""
    global _sockets
    user, group = os.getuid(), os.getgid()
    new_user, new_ipc, new_net = 0x10000000, 0x08000000, 0x40000000
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(new_user | new_ipc | new_net) != 0:
        return os.strerror(ctypes.get_errno())
    maps = {"setgroups": "deny", "uid_map": f"{user} {user} 1", "gid_map": f"{group} {group} 1"}
    for name, text in maps.items():
        with open(f"/proc/self/{name}", "w") as file:
            file.write(text)
    die_with_parent()
    _sockets = sockets
    return ""


def begin(budget, **options):
    global pool, _server
    pool = tn.TensorPool(budget, inline=2048, idle=0, linger=0, **options)
    if _sockets is not None:
        _server = pool.serve(f"{_sockets}/{os.getpid()}")


def _link_to_sender(message):
    (pid,) = struct.unpack_from("=I", _core.core_of_message(message), 52)  # MessageHead
    if pid != os.getpid() and pid not in _links:
        with contextlib.suppress(FileNotFoundError):  # it has ended
            _links[pid] = tn.attach_pool(f"{_sockets}/{pid}", timeout=SECONDS)


def _check(array, seed):
    if not np.array_equal(np.asarray(array), words(array.shape[0], seed)):
        raise Violation(f"{array.shape[0]} words of seed {seed} have changed")


def _when_full(call):
    """The result, or "full"."""
    try:
        return call()
    except MemoryError:
        return "full"


def make(key, n, seed, is_put):
    def call():
        if is_put:
            arrays[key] = pool.put(words(n, seed), when_full="raise")
        else:
            array = pool.empty(n, "uint64", when_full="raise")
            array.numpy()[...] = words(n, seed)
            arrays[key] = array
        return "made"

    return _when_full(call)


def freeze(key):
    arrays[key] = pool.freeze(arrays[key])


def send(lent=(), on=(), copied=(), is_handle=False, timeout=None, when_full="raise", **limits):
    """(message or "full", the times before and after). lent: keys of arrays, on: (key, number) of views that
    are sent on, copied: (n, seed)."""
    parts = [arrays[key] for key in lent] + [views[key][number] for key, number in on]
    parts += [words(n, seed) for n, seed in copied]
    limits |= {"timeout": timeout, "when_full": when_full}
    began = time.monotonic()
    if is_handle:
        message = _when_full(lambda: pool.handle(parts[0], **limits))
    else:
        message = _when_full(lambda: pool.dumps(parts, **limits))
    return message, began, time.monotonic()


def send_with_a_view(key):
    view = arrays[key].numpy()
    try:
        pool.dumps({"x": arrays[key]})
    except tn.LeaseEscaped:
        return len(view)
    raise Violation("an array with a view was sent")


def load(key, message, seeds, is_writable, is_handle=False):
    """("" or why the message has gone, the times before and after)."""
    if _sockets is not None:
        _link_to_sender(message)
    began = time.monotonic()
    try:
        value = (tn.open if is_handle else tn.loads)(message, writable=is_writable)
    except tn.MessageGone as gone:
        return gone.reason, began, time.monotonic()
    ended = time.monotonic()
    views[key] = [value] if is_handle else value
    look(key, seeds)
    return "", began, ended


def look(key, seeds):
    for array, seed in zip(views[key], seeds, strict=True):
        _check(array, seed)


def forget(key):
    del arrays[key]


def drop(key):
    del views[key]


def write(key, seed):
    for array in views[key]:
        np.asarray(array)[...] = words(array.shape[0], seed)


def fork(seeds):
    """A child that keeps what this process has opened until end_fork(). seeds: of the views that no other
    process writes."""
    global _ghost
    here, there = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(there)
        if os.read(here, 1):
            for key in seeds:
                look(key, seeds[key])
        os._exit(0)
    os.close(here)
    _ghost = pid, there
    return pid


def end_fork():
    pid, pipe = _ghost
    os.write(pipe, b".")
    os.close(pipe)
    if os.waitpid(pid, 0)[1] != 0:
        raise Violation("a forked child has lost what it had")


def stats():
    return time.monotonic(), pool.stats(), time.monotonic()


def drop_all():
    arrays.clear()
    views.clear()
    gc.collect()


def send_some(n, words_each, seed, **limits):
    """Messages of one array each, made in place."""
    global got_room
    messages = []
    for i in range(n):
        array = pool.empty(words_each, "uint64")
        if i == 0:
            got_room = time.monotonic()
        array.numpy()[...] = words(words_each, seed + i)
        messages.append(pool.dumps(array, **limits))
    return messages


def load_some(messages, seed, key=None, is_writable=False):
    """Why each message could not be opened, or "". With a key it keeps the arrays."""
    reasons = []
    for i, message in enumerate(messages):
        reason, _, _ = load("passing" if key is None else (key, i), message, [seed + i], is_writable, True)
        reasons.append(reason)
    views.pop("passing", None)
    return reasons
