# SPDX-License-Identifier: Apache-2.0
"""A feed whose generator receives: messages from elsewhere land in its slots, ahead of the loop that trains.

mpirun -n 2 python remote_feed.py       rank 1 generates, rank 0 trains
python remote_feed.py                   the same over sockets, from a process that this one starts
"""

import multiprocessing
import os
import socket
import threading
from typing import Any

import numpy as np
from remote_loop import BATCHES, COLUMNS, ROWS, generate, train

import tenon as tn

SCHEMA = tn.schema(data=("f4", (ROWS, COLUMNS)), label=("i8", (ROWS,)))


@tn.worker(SCHEMA)
def from_rank(batches: Any, comm: Any, source: int) -> None:
    for batch in batches:
        for array in batch:
            comm.Recv(array, source=source, tag=batch.index)


def send_to_rank(comm: Any, dest: int) -> None:
    data, label = np.empty((ROWS, COLUMNS), "f4"), np.empty(ROWS, "i8")
    for index in range(BATCHES):
        generate(data, label, index)
        comm.Send(data, dest=dest, tag=index)
        comm.Send(label, dest=dest, tag=index)


@tn.worker(SCHEMA)
def from_socket(batches: Any, port: int) -> None:
    """Asks for the batch that is to be filled: each worker has a connection of its own."""
    with socket.create_connection(("127.0.0.1", port)) as link:
        for batch in batches:
            link.sendall(batch.index.to_bytes(8, "little"))
            for array in batch:
                receive_into(link, array)


def receive_into(link: socket.socket, array: np.ndarray) -> None:
    rest = array.data.cast("B")
    while rest:
        n = link.recv_into(rest)
        if n == 0:
            raise ConnectionError("the sender has closed the connection")
        rest = rest[n:]


def answer(link: socket.socket) -> None:
    data, label = np.empty((ROWS, COLUMNS), "f4"), np.empty(ROWS, "i8")
    with link, link.makefile("rb") as asked:
        while number := asked.read(8):
            generate(data, label, int.from_bytes(number, "little"))
            link.sendall(data.data)
            link.sendall(label.data)


def send_to_sockets(listener: socket.socket, workers: int) -> None:
    threads = [threading.Thread(target=answer, args=(listener.accept()[0],)) for _ in range(workers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def over_mpi() -> None:
    from mpi4py import MPI

    comm = MPI.COMM_WORLD
    if comm.rank == 0:
        with tn.Feed(from_rank(comm, 1), batches=BATCHES) as feed:
            train(feed.torch())
    elif comm.rank == 1:
        send_to_rank(comm, 0)


def over_sockets(workers: int = 2) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        sender = multiprocessing.get_context("fork").Process(target=send_to_sockets, args=(listener, workers))
        sender.start()
        port = listener.getsockname()[1]
        with tn.Feed(from_socket(port), batches=BATCHES, workers=workers) as feed:
            train(feed.torch())
        sender.join()


if __name__ == "__main__":
    if "OMPI_COMM_WORLD_RANK" in os.environ or "PMI_RANK" in os.environ:
        over_mpi()
    else:
        over_sockets()
