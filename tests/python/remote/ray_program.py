# SPDX-License-Identifier: Apache-2.0
"""One node of Ray on this machine, with one worker. Prints what it has found as JSON."""

import json
import os

import ray

import tenon as tn
from tenon.demo._copy_meter import payloads_written, why_unavailable

N = 4 << 20  # elements of a payload of 16 MiB


def tell(**facts):
    print(json.dumps(facts), flush=True)


@ray.remote
def make(value):
    return tn.full(N, float(value))


@ray.remote
def describe(a):
    return type(a).__name__, a.shape, a.writable, a.data_ptr % 64, float(a[0]), float(a[-1])


@ray.remote(num_returns="streaming")
def stream(n):
    for index in range(n):
        yield tn.full((4, 8), float(index)), tn.full(4, index, "int64")


@ray.remote
def write(a, values):
    a[...] = values
    return os.getpid()


def payloads(work):
    """Beside what the same work writes with an array of one element: that is Ray's own."""
    if why_unavailable() is not None:
        return None
    return payloads_written(lambda: work(big), big.nbytes, control=lambda: work(small), rounds=3)


ray.init(
    address="local",
    num_cpus=1,
    object_store_memory=300 << 20,
    include_dashboard=False,
    log_to_driver=False,
    _node_ip_address="127.0.0.1",
)
big, small = tn.full(N, 3.0), tn.full(1, 3.0)
of_numpy = {array.nbytes: array.asnumpy() for array in (big, small)}
references = {array.nbytes: ray.put(array) for array in (big, small)}

tell(
    argument=ray.get(describe.remote(big)),
    by_reference=ray.get(describe.remote(references[big.nbytes])),
    strided=ray.get(describe.remote(big[::2])),
)
tell(
    put=payloads(ray.put),
    put_numpy=payloads(lambda array: ray.put(of_numpy[array.nbytes])),
    get=payloads(lambda array: ray.get(references[array.nbytes])),
)
a = ray.get(make.remote(7))
tell(result=[a.writable, a.data_ptr % 64, float(a[0]), float(a[-1])])
del a
got = [ray.get(reference) for reference in stream.remote(5)]
tell(stream=[[x.tolist() == [[float(i)] * 8] * 4, y.tolist() == [i] * 4] for i, (x, y) in enumerate(got)])
del got
shared = tn.zeros(3, shared=True)
other = ray.get(write.remote(shared, [1, 2, 3]))
tell(shared=shared.tolist(), other_process=other != os.getpid())
ray.shutdown()
