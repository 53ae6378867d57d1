# SPDX-License-Identifier: Apache-2.0
"""A worker of Dask generates, this process trains on the memory that Dask received the batches into."""

from collections import deque
from collections.abc import Iterator

import torch
from distributed import Client, LocalCluster
from remote_loop import BATCHES, make_batch, train

AHEAD = 4  # batches that are under way


def batches(client: Client) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    under_way = deque(client.submit(make_batch, index) for index in range(AHEAD))
    for index in range(AHEAD, BATCHES + AHEAD):
        data, label = under_way.popleft().result()
        if index < BATCHES:
            under_way.append(client.submit(make_batch, index))
        yield data.torch(), label.torch()


if __name__ == "__main__":
    cluster = LocalCluster(
        n_workers=1, threads_per_worker=1, processes=True, host="127.0.0.1", dashboard_address=None
    )
    # Direct to the worker: what goes through Dask's scheduler is pickled in an old form, with copies.
    with cluster, Client(cluster, direct_to_workers=True) as client:
        train(batches(client))
