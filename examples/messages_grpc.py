# SPDX-License-Identifier: Apache-2.0
"""gRPC with bytes alone: a generic method whose serializers are the identity. On one host."""

import multiprocessing
import tempfile
from concurrent import futures

import grpc
import numpy as np

import tenon as tn


def serve(address: str) -> None:
    pool = tn.TensorPool("64 MiB")

    def classify(data: bytes, context: grpc.ServicerContext) -> bytes:
        return pool.dumps({"mean": tn.loads(data)["image"].mean(axis=(0, 1))})

    handlers = {"Classify": grpc.unary_unary_rpc_method_handler(classify)}
    server = grpc.server(futures.ThreadPoolExecutor(2))
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("vision", handlers),))
    server.add_insecure_port(address)
    server.start()
    server.wait_for_termination()


if __name__ == "__main__":
    address = f"unix:{tempfile.mkdtemp()}/vision"
    process = multiprocessing.get_context("spawn").Process(target=serve, args=(address,), daemon=True)
    process.start()
    pool = tn.TensorPool("64 MiB")
    with grpc.insecure_channel(address) as channel:
        call = channel.unary_unary("/vision/Classify")
        image = np.full((1080, 1920, 3), 7, "u1")
        answer = tn.loads(call(pool.dumps({"image": image}), wait_for_ready=True, timeout=60))
    assert answer["mean"].tolist() == [7.0, 7.0, 7.0]
    process.terminate()
    process.join()
