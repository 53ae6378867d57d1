# SPDX-License-Identifier: Apache-2.0
"""A front end that decodes images, and two workers with a small model, in processes of their own. Over ZeroMQ
(or pipes of multiprocessing, without pyzmq) travels only a message. The pixels stay in a pool of tensors.

python serving.py              300 requests
python serving.py --chaos      the same, while workers are killed
python serving.py --stop       the same, while workers are stopped (SIGSTOP)
python serving.py --old        SharedMemory by hand instead of the pool
"""

import argparse
import importlib
import io
import itertools
import multiprocessing
import os
import pickle
import random
import signal
import tempfile
import time
from dataclasses import dataclass, field
from multiprocessing.shared_memory import SharedMemory
from typing import Any

import numpy as np

import tenon as tn

try:
    zmq: Any = importlib.import_module("zmq")
except ImportError:
    zmq = None

SHAPE = (512, 512, 3)
IMAGES = 16
AHEAD = 4  # requests of a worker at a time
MOST_LIFE = 60
SPAWN = multiprocessing.get_context("spawn")
WEIGHTS = np.random.default_rng(0).standard_normal((SHAPE[1] * 3, 10), "f4")


def classify(pixels: np.ndarray) -> tuple[int, int]:
    """The class, and a checksum that shows whether these were the pixels of the request."""
    features = pixels.mean(axis=0, dtype="f4").reshape(-1)
    return int(np.argmax(features @ WEIGHTS)), int(pixels.sum(dtype="i8"))


class PoolWay:
    def __init__(self) -> None:
        self.pool = tn.TensorPool("256 MiB")

    def message(self, request: int, pixels: np.ndarray, worker: int) -> bytes:
        """Ends with the worker, whenever that is."""
        array = self.pool.empty(SHAPE, "u1")
        array[...] = pixels
        return self.pool.dumps({"request": request, "pixels": array}, receivers=worker, tag=request)

    def used_nbytes(self) -> int:
        return self.pool.stats()["used"]


def answer(data: bytes) -> Any:
    message = tn.loads(data, writable=False)
    return message["request"], classify(np.asarray(message["pixels"]))


class OldWay:
    """A new SharedMemory for each request, which the worker removes: if it lives."""

    def __init__(self) -> None:
        self.names: list[str] = []

    def message(self, request: int, pixels: np.ndarray, _: int) -> bytes:
        memory = SharedMemory(create=True, size=pixels.nbytes)
        np.copyto(np.ndarray(SHAPE, "u1", memory.buf), pixels)
        memory.close()
        self.names.append(memory.name)
        return pickle.dumps({"request": request, "pixels": memory.name})

    def used_nbytes(self) -> int:
        self.names = [name for name in self.names if os.path.exists(f"/dev/shm/{name}")]
        return len(self.names) * int(np.prod(SHAPE))


def answer_old(data: bytes) -> Any:
    message = pickle.loads(data)
    memory = SharedMemory(message["pixels"])
    try:
        return message["request"], classify(np.ndarray(SHAPE, "u1", memory.buf))
    finally:
        memory.close()
        memory.unlink()


class ZeroMQ:
    """A PAIR with the methods of a Connection."""

    def __init__(self, address: str, is_worker: bool) -> None:
        self.socket: Any = zmq.Context.instance().socket(zmq.PAIR)
        self.socket.linger = 0
        (self.socket.bind if is_worker else self.socket.connect)(address)
        self.send_bytes, self.recv_bytes = self.socket.send, self.socket.recv

    def poll(self, seconds: float) -> bool:
        return bool(self.socket.poll(1000 * seconds))


def work(way: str, link: Any) -> None:
    if isinstance(link, str):
        link = ZeroMQ(link, is_worker=True)
    while data := link.recv_bytes():
        link.send_bytes(pickle.dumps((answer_old if way == "old" else answer)(data)))


@dataclass
class Worker:
    process: Any
    link: Any
    pending: dict[int, int] = field(default_factory=dict)  # request -> its image
    life: int = field(default_factory=lambda: random.randrange(1, MOST_LIFE))  # answers until it is killed
    since: float = 0.0  # when it gave the last answer, or got a request without having another one


@dataclass
class FrontEnd:
    way: str
    folder: str
    images: list[bytes]
    expected: list[tuple[int, int]]
    patience: float  # seconds without an answer, after which a worker with requests is killed
    workers: list[Worker] = field(default_factory=list)
    numbers: Any = field(default_factory=itertools.count)
    answered: int = 0
    failed: int = 0
    wrong: int = 0
    most_nbytes: int = 0

    def begin(self) -> None:
        self.memory = OldWay() if self.way == "old" else PoolWay()
        self.workers = [self.new_worker() for _ in range(2)]

    def new_worker(self) -> Worker:
        if zmq:
            theirs: Any = f"ipc://{self.folder}/{next(self.numbers)}"
            ours: Any = ZeroMQ(theirs, is_worker=False)
        else:
            ours, theirs = SPAWN.Pipe()
        process = SPAWN.Process(target=work, args=(self.way, theirs), daemon=True)
        process.start()
        if not zmq:
            theirs.close()
        return Worker(process, ours)

    def send(self, worker: Worker, request: int) -> None:
        image = request % IMAGES
        worker.since = worker.since if worker.pending else time.monotonic()
        worker.pending[request] = image
        data = self.memory.message(request, decoded(self.images[image]), worker.process.pid)
        worker.link.send_bytes(data)

    def collect(self, worker: Worker) -> None:
        while worker.link.poll(0.001):
            request, found = pickle.loads(worker.link.recv_bytes())
            image = worker.pending.pop(request)
            self.answered += 1
            worker.life -= 1
            worker.since = time.monotonic()
            self.wrong += found != self.expected[image]

    def step(self, requests: Any) -> None:
        """Answers are taken, requests are sent; those of a worker that has ended fail, and it gets a
        successor."""
        for i, worker in enumerate(self.workers):
            try:
                is_alive = worker.process.is_alive()
                self.collect(worker)
                if worker.pending and time.monotonic() - worker.since > self.patience:
                    worker.process.kill()  # it is stopped, or does not end
                    is_alive = False
                while is_alive and len(worker.pending) < AHEAD and (request := next(requests, -1)) >= 0:
                    self.send(worker, request)
            except (OSError, EOFError):
                is_alive = False
            if not is_alive:
                self.failed += len(worker.pending)
                worker.process.join()
                self.workers[i] = self.new_worker()
        self.most_nbytes = max(self.most_nbytes, self.memory.used_nbytes())

    def run(self, n: int, chaos: signal.Signals | None) -> None:
        requests, kills = iter(range(n)), 0
        while self.answered + self.failed < n:
            self.step(requests)
            for worker in self.workers:
                if chaos and worker.life <= 0 and worker.process.is_alive():
                    os.kill(worker.process.pid, chaos)
                    worker.life = MOST_LIFE
                    kills += 1
        for worker in self.workers:
            worker.link.send_bytes(b"")
            worker.process.join(self.patience)
            worker.process.kill()
            worker.process.join()
        deadline = time.monotonic() + 1
        while self.memory.used_nbytes() and time.monotonic() < deadline:
            time.sleep(0.01)
        done = "stopped" if chaos == signal.SIGSTOP else "killed"
        print(
            f"{n} requests, {kills} workers {done}: {self.answered} answered, {self.failed} failed, "
            f"{self.wrong} wrong; at most {self.most_nbytes >> 10} KiB of shared memory, at the end "
            f"{self.memory.used_nbytes() >> 10} KiB"
        )


def encoded(pixels: np.ndarray) -> bytes:
    """A JPEG; without Pillow, NumPy's format."""
    file = io.BytesIO()
    try:
        from PIL import Image

        Image.fromarray(pixels).save(file, "JPEG")
    except ImportError:
        np.save(file, pixels)
    return file.getvalue()


def decoded(data: bytes) -> np.ndarray:
    if data.startswith(b"\x93NUMPY"):
        pixels: np.ndarray = np.load(io.BytesIO(data))
        return pixels
    from PIL import Image

    return np.asarray(Image.open(io.BytesIO(data)))


def main() -> None:
    parser = argparse.ArgumentParser(description="A front end and two workers")
    parser.add_argument("--requests", type=int, default=300)
    parser.add_argument("--chaos", action="store_true", help="kill workers")
    parser.add_argument("--stop", action="store_true", help="stop workers")
    parser.add_argument("--patience", type=float, default=30, help="seconds without an answer")
    parser.add_argument("--old", action="store_true", help="SharedMemory by hand")
    options = parser.parse_args()
    random_ = np.random.default_rng(1)
    rough = random_.integers(0, 256, (IMAGES, 8, 8, 3), "u1")
    images = [encoded(image.repeat(64, 0).repeat(64, 1)) for image in rough]
    expected = [classify(decoded(image)) for image in images]
    with tempfile.TemporaryDirectory() as folder:
        front = FrontEnd("old" if options.old else "pool", folder, images, expected, options.patience)
        front.begin()
        chaos = signal.SIGSTOP if options.stop else signal.SIGKILL if options.chaos else None
        front.run(options.requests, chaos)


if __name__ == "__main__":
    main()
