# SPDX-License-Identifier: Apache-2.0
"""ZeroMQ: only the message travels; the pixels stay in the pool."""

import multiprocessing
import tempfile

import zmq

import tenon as tn


def worker(address: str) -> None:
    socket = zmq.Context().socket(zmq.REP)
    socket.bind(address)
    image = tn.loads(socket.recv())["image"]  # no copy
    socket.send_pyobj(float(image.mean()))


if __name__ == "__main__":
    address = f"ipc://{tempfile.mkdtemp()}/requests"
    process = multiprocessing.get_context("spawn").Process(target=worker, args=(address,))
    process.start()
    pool, socket = tn.TensorPool("256 MiB"), zmq.Context().socket(zmq.REQ)
    socket.connect(address)
    image = pool.empty((1080, 1920, 3), "u1")  # filled in place
    image.numpy()[...] = 7
    socket.send(pool.dumps({"image": image}, receivers=process.pid))
    assert socket.recv_pyobj() == 7.0
    process.join()
