# SPDX-License-Identifier: Apache-2.0
"""A worker of Ray generates, this process trains on arrays that lie in Ray's object store."""

from collections.abc import Iterator

import ray
import torch
from remote_loop import BATCHES, make_batch, train

import tenon as tn


@ray.remote(num_returns="streaming")
def generate_batches() -> Iterator[tuple[tn.NDArray, tn.NDArray]]:
    for index in range(BATCHES):
        yield make_batch(index)


def batches() -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    references: ray.ObjectRefGenerator = generate_batches.remote()
    for reference in references:
        data, label = ray.get(reference)
        # Objects of the store are read-only, which torch cannot say: trust is the promise not to write.
        yield data.torch(trust=True), label.torch(trust=True)


if __name__ == "__main__":
    ray.init(
        address="local",
        num_cpus=1,
        object_store_memory=100 << 20,
        include_dashboard=False,
        _node_ip_address="127.0.0.1",
    )
    train(batches())
    ray.shutdown()
