# SPDX-License-Identifier: Apache-2.0
"""Dask: between workers of one host. Any number of tasks may open the message of a result, for a minute."""

import numpy as np
from distributed import Client, LocalCluster, get_worker

import tenon as tn


def pool() -> tn.TensorPool:
    worker = get_worker()
    if not hasattr(worker, "tensor_pool"):
        worker.tensor_pool = tn.TensorPool("64 MiB", timeout=60)
    found: tn.TensorPool = worker.tensor_pool
    return found


def load(i: int) -> bytes:
    return pool().dumps(np.full(1 << 20, i, "f4"), opens=None)


def total(*parts: bytes) -> float:
    return float(sum(tn.loads(part, writable=False)[-1] for part in parts))


if __name__ == "__main__":
    cluster = LocalCluster(n_workers=2, threads_per_worker=1, host="127.0.0.1", dashboard_address=None)
    with cluster, Client(cluster) as client:
        parts = [client.submit(load, i, pure=False) for i in range(6)]
        assert client.submit(total, *parts).result(timeout=60) == 15.0
