# SPDX-License-Identifier: Apache-2.0
"""multiprocessing.Queue: a message is bytes, so the queue copies some hundred of them."""

import multiprocessing
from typing import Any

import numpy as np

import tenon as tn


def work(tasks: Any, results: Any) -> None:
    pool = tn.TensorPool("64 MiB")
    for data in iter(tasks.get, None):
        results.put(pool.dumps({"double": tn.loads(data)["x"] * 2}))


if __name__ == "__main__":
    context = multiprocessing.get_context("spawn")
    tasks, results, pool = context.Queue(), context.Queue(), tn.TensorPool("64 MiB")
    process = context.Process(target=work, args=(tasks, results))
    process.start()
    for i in range(4):
        tasks.put(pool.dumps({"x": np.full(1 << 20, i, "f4")}))
    assert [float(tn.loads(results.get())["double"][-1]) for _ in range(4)] == [0.0, 2.0, 4.0, 6.0]
    tasks.put(None)
    process.join()
