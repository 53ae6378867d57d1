# SPDX-License-Identifier: Apache-2.0
"""The calls for whose counts the profiled wheel is optimized: run by tools/profiled_wheel.py, with the
instrumented package on the path. They are those that programs make for each array, batch or op."""

import importlib.util

import numpy as np

import tenon as tn

EXCHANGES = 100_000
OPS = 2_000
HANDOVERS = 500


def exchange():
    x, strided = np.zeros((4, 8), "f4"), np.zeros((8, 16), "f4")[::2, ::2]
    a = tn.zeros((4, 8), "f4")
    for _ in range(EXCHANGES):
        tn.from_numpy(x)
        tn.from_numpy(x, mode="writable")
        tn.from_numpy(strided)
        tn.from_dlpack(x)
        tn.from_dlpack(a)
        np.asarray(a)
        np.from_dlpack(a)
        a.numpy()
        memoryview(a)
        a[1:3]
        a.reshape(8, 4)
        tn.zeros(8)


def exchange_with_torch():
    import torch

    t, strided = torch.zeros(4, 8), torch.zeros(8, 16)[::2, ::2]
    a = tn.zeros((4, 8), "f4")
    for _ in range(EXCHANGES):
        tn.from_dlpack(t)
        tn.from_dlpack(strided)
        torch.from_dlpack(a)
        a.torch()


def nothing(*_):
    pass


def leases_and_ops():
    a, others = tn.zeros(8), [tn.zeros(8) for _ in range(64)]
    for i in range(OPS):
        with a.read(), others[i % 64].write():
            pass
        a.lease("r").release()
        tn.push(nothing, a).wait()
    for workers in (1, 2):
        tn.set_engine("pool", workers)
        for i in range(OPS):
            tn.push(nothing, others[i % 32], others[i * 7 % 31], tn.inout(others[32 + i % 32]))
            tn.push(nothing, tn.inout(a))
        tn.waitall()
        for _ in range(20):
            with tn.record() as loop:
                for i in range(64):
                    tn.push(nothing, tn.inout(others[i]))
            for _ in range(50):
                loop.replay()
            tn.waitall()


def handovers():
    shared = tn.zeros((1024,), "f4", shared=True)
    channel = tn.Channel({"x": ("f4", (1024,))}, slots=4)
    for _ in range(HANDOVERS):
        with shared.write():
            pass
        loan = channel.loan()
        loan.x[0] = 1
        loan.send()
        channel.recv().x.numpy()

    def fill(batch):
        batch.x[0] = batch.index

    for options in ({}, {"workers": 2}):
        with tn.Feed(fill, {"x": ("f4", (1024,))}, batches=HANDOVERS, **options) as feed:
            for batch in feed:
                batch.x.numpy()


if __name__ == "__main__":
    exchange()
    if importlib.util.find_spec("torch"):
        exchange_with_torch()
    leases_and_ops()
    handovers()
