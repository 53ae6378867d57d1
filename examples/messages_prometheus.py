# SPDX-License-Identifier: Apache-2.0
"""prometheus_client: a collector over pool.stats(). Names that end in _total are counters."""

from collections.abc import Iterator
from typing import Any

import numpy as np
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

import tenon as tn


class PoolCollector:
    def __init__(self, pool: tn.TensorPool) -> None:
        self.pool = pool

    def collect(self) -> Iterator[Any]:
        for name, value in self.pool.stats().items():
            kind = CounterMetricFamily if name.endswith("_total") else GaugeMetricFamily
            yield kind(f"tenon_pool_{name}", f"stats()[{name!r}]", value=value)


if __name__ == "__main__":
    pool, registry = tn.TensorPool("16 MiB"), CollectorRegistry()
    registry.register(PoolCollector(pool))
    message = pool.dumps(np.zeros(1 << 20, "u1"))
    assert b"tenon_pool_messages 1.0" in generate_latest(registry)
    tn.loads(message)
    assert b"tenon_pool_messages 0.0" in generate_latest(registry)
