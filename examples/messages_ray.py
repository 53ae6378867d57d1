# SPDX-License-Identifier: Apache-2.0
"""Ray: between actors on one node. Ray carries the message; the frame stays in the pool of its sender."""

import numpy as np
import ray

import tenon as tn


@ray.remote(num_cpus=0)
class Camera:
    def __init__(self) -> None:
        self.pool = tn.TensorPool("64 MiB", timeout=60)  # a lost message ends after a minute

    def frame(self, i: int) -> bytes:
        return self.pool.dumps({"i": i, "frame": np.full((1080, 1920, 3), i, "u1")})


@ray.remote(num_cpus=0)
class Model:
    def infer(self, message: bytes) -> tuple[int, int]:
        data = tn.loads(message)  # no copy, and writable; ray.get is read-only
        return data["i"], int(data["frame"].max())


if __name__ == "__main__":
    ray.init(
        address="local",
        num_cpus=1,
        object_store_memory=100 << 20,
        include_dashboard=False,
        _node_ip_address="127.0.0.1",
        log_to_driver=False,
    )
    camera, model = Camera.remote(), Model.remote()  # type: ignore[attr-defined]
    answers = ray.get([model.infer.remote(camera.frame.remote(i)) for i in range(5)])
    assert answers == [(i, i) for i in range(5)], answers
    ray.shutdown()
