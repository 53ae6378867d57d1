# SPDX-License-Identifier: Apache-2.0
"""Dask with one worker process on this machine. Prints what it has found as JSON."""

import functools
import json
import os

import numpy as np
from distributed import Client, LocalCluster
from distributed.protocol import deserialize, serialize

import tenon as tn
from tenon._array import pickle as _pickle
from tenon.demo._copy_meter import payloads_written, why_unavailable

N = 4 << 20  # elements of a payload of 16 MiB: small enough for the heap, which the meter sees wholly


def tell(**facts):
    print(json.dumps(facts), flush=True)


def make(n, seed):
    a = tn.empty(n)
    a[...] = np.random.default_rng(seed).random(n, dtype="f4")
    return a


def make_numpy(n, seed):
    return np.random.default_rng(seed).random(n, dtype="f4")


def describe(a):
    return type(a).__name__, a.shape, a.writable, a.data_ptr % 16, float(a[0])


def write(a, values):
    a[...] = values
    return os.getpid()


def payloads(work):
    if why_unavailable() is not None:
        return None
    return payloads_written(work, 4 * N, rounds=5)


def frames_are_the_array():
    a = make(N, 0)
    header, frames = serialize(a)
    addresses = [np.frombuffer(frame, "u1").ctypes.data for frame in frames if len(memoryview(frame)) > 0]
    back = deserialize(header, frames)
    tell(
        sent_in_place=a.data_ptr in addresses,
        received_in_place=back.data_ptr == a.data_ptr,
        round_trip=payloads(lambda: deserialize(*serialize(a))),
    )


def landings(receive):
    """Whether arrays of some sizes lie where Dask received their elements."""
    rebuild, landed = _pickle.rebuild_array, []

    @functools.wraps(rebuild)
    def look(content, dtype, shape):
        array = rebuild(content, dtype, shape)
        landed.append(array.data_ptr == np.frombuffer(content, "u1").ctypes.data)
        return array

    _pickle.rebuild_array = look
    for n in (10, 100, 1_000, 10_000, 100_000, 1_000_000):
        receive(n)
    _pickle.rebuild_array = rebuild
    return landed


def through_workers(client):
    array, numbers = client.submit(make, N, 1), client.submit(make_numpy, N, 1)
    a = client.gather(array)
    tell(
        result=describe(a),
        same=bool((np.asarray(a) == client.gather(numbers)).all()),
        argument=client.submit(describe, a).result(),
        gathered=payloads(lambda: client.gather(array)),
        gathered_numpy=payloads(lambda: client.gather(numbers)),
    )
    tell(landed=landings(lambda n: client.submit(make, n, 2).result()))
    through_scheduler = client.gather(array, direct=False)
    tell(through_scheduler=bool((np.asarray(through_scheduler) == np.asarray(a)).all()))
    shared = tn.zeros(3, shared=True)
    other = client.submit(write, shared, [1, 2, 3]).result()
    tell(shared=shared.tolist(), other_process=other != os.getpid())


if __name__ == "__main__":
    frames_are_the_array()
    cluster = LocalCluster(
        n_workers=1, threads_per_worker=1, processes=True, host="127.0.0.1", dashboard_address=None
    )
    with cluster, Client(cluster, direct_to_workers=True) as client:
        through_workers(client)
