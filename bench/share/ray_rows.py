# SPDX-License-Identifier: Apache-2.0
"""Ray: objects of its store, which an actor in another process gets without a copy."""

import os

import numpy as np

from .cases import ASLEEP, BIG_BYTES, FRESH, SMALL_BYTES, WARM, Contender, Peer
from .loops import now

STORE_BYTES = 1 << 30


class Ray:
    """A Ray of this process's own, and an actor pinned to the consumer's core."""

    def __init__(self, side):
        os.environ.update(RAY_USAGE_STATS_ENABLED="0", RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO="0")
        import ray

        self.ray = ray
        ray.init(
            num_cpus=2,
            object_store_memory=STORE_BYTES,
            include_dashboard=False,
            log_to_driver=False,
            logging_level="error",
            _temp_dir=os.path.join(side.scratch, "ray"),
        )

        class Reader:
            def __init__(self, core):
                import time

                os.sched_setaffinity(0, {core})
                self.now = time.perf_counter_ns

            def read(self, array):
                return array[0], self.now()

        self.reader = ray.remote(Reader).remote(side.consumer_core)
        self.source = np.ones(self.nbytes // 4, "f4")
        self.there = ray.put(self.source)

    def turn(self, n):
        return [self.exchange() for _ in range(n)]

    def read(self, reference):
        value, after = self.ray.get(self.reader.read.remote(reference))
        return value, after

    def close(self):
        self.ray.shutdown()


class OneWay(Ray):
    """Objects cannot be written again, so nothing is."""

    nbytes = SMALL_BYTES

    def exchange(self):
        before = now()
        _, after = self.read(self.there)
        return after - before


class RoundTrips(Ray):
    nbytes = BIG_BYTES

    def exchange(self):
        before = now()
        self.read(self.there)
        return now() - before


class FreshRoundTrips(Ray):
    nbytes = BIG_BYTES

    def __init__(self, side):
        super().__init__(side)
        self.count = 0

    def exchange(self):
        self.count += 1
        self.source[0] = self.count
        before = now()
        value, _ = self.read(self.ray.put(self.source))
        after = now()
        if value != self.count:
            raise AssertionError(f"array {self.count} arrived holding {value}")
        return after - before


def alone(producer):
    return Contender(producer)


PEERS = [
    Peer(
        "Ray, actor call",
        {ASLEEP: alone(OneWay), WARM: alone(RoundTrips), FRESH: alone(FreshRoundTrips)},
        ("ray",),
        is_noisy=True,
    )
]
