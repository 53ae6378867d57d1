# SPDX-License-Identifier: Apache-2.0
"""Rank 1 sends batches, rank 0 has a feed whose worker receives them into its slots. 0 prints what it has
found as JSON."""

import json

import numpy as np
from mpi4py import MPI

import tenon as tn
from tenon.demo._copy_meter import CopyMeter, why_unavailable

N = 8 << 20  # elements of a batch of 32 MiB
EPOCHS, BATCHES = 4, 6
comm = MPI.COMM_WORLD
schema = tn.schema(data=("f4", (8, N // 8)))


@tn.worker(schema)
def received(batches):
    for batch in batches:
        comm.Recv(batch.data, source=1, tag=batch.index)


def send(batches):
    data = np.empty((8, N // 8), "f4")
    for index in range(batches):
        data[...] = index
        comm.Send(data, dest=0, tag=index)


def facts():
    found = {"values": [], "in_slots": True, "written": None}
    with tn.Feed(received(), batches=BATCHES, slots=3) as feed:
        now = feed.stats()
        for batch in feed:
            found["values"].append([float(batch.data[0, 0]), float(batch.data[7, -1])])
            found["in_slots"] &= (batch.data.data_ptr - now.memory) % now.slot_nbytes == 0
    if why_unavailable() is not None:
        return found
    with tn.Feed(received(), batches=1, slots=2) as feed, CopyMeter() as meter:
        for _ in range(EPOCHS):  # the first ones make MPI's own buffers
            comm.Barrier()
            meter.start()
            for batch in feed:
                nbytes = batch.data.nbytes
            found["written"] = meter.stop() / nbytes
            del batch
    return found


if comm.rank == 0:
    print(json.dumps({**facts(), "measures": why_unavailable() is None}), flush=True)
    comm.send(None, 1)
else:
    send(BATCHES)
    if why_unavailable() is None:
        for _ in range(EPOCHS):
            comm.Barrier()
            send(1)
    comm.recv(source=0)
