# SPDX-License-Identifier: Apache-2.0
"""multiprocessing.Pipe: send_bytes and recv_bytes, without a pickle."""

import multiprocessing
from multiprocessing.connection import Connection

import numpy as np

import tenon as tn


def work(end: Connection) -> None:
    pool = tn.TensorPool("64 MiB")
    frame = tn.loads(end.recv_bytes())  # writable: handed over
    frame += 1
    end.send_bytes(pool.dumps(frame))


if __name__ == "__main__":
    context = multiprocessing.get_context("spawn")
    pool, (here, there) = tn.TensorPool("64 MiB"), context.Pipe()
    process = context.Process(target=work, args=(there,))
    process.start()
    here.send_bytes(pool.dumps(np.zeros((1024, 1024), "f4"), receivers=process.pid))
    assert float(tn.loads(here.recv_bytes()).sum()) == 1024 * 1024
    process.join()
