# SPDX-License-Identifier: Apache-2.0
"""The calls of Python programs for whose counts the wheel is optimized (tools/wheel_profile.py): exchange
with NumPy and PyTorch, leases and channels. Ops are counted where C pushes them (tools/wheel_workload.cc)."""

import numpy as np
import torch

import tenon as tn

EXCHANGES = 100_000
LOANS = 12_500  # with as many as EXCHANGES, the imports of strided tensors take 4 % more time


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
    t, strided = torch.zeros(4, 8), torch.zeros(8, 16)[::2, ::2]
    a = tn.zeros((4, 8), "f4")
    for _ in range(EXCHANGES):
        tn.from_dlpack(t)
        tn.from_dlpack(strided)
        torch.from_dlpack(a)
        a.torch()


def lend():
    a = tn.zeros((4, 8), "f4")
    with tn.Channel({"x": ("f4", (4, 8))}) as channel:
        for i in range(LOANS):
            with a.write() as view:
                view[0] = i
            with a.read() as view:
                view[0]
            with channel.loan() as item:
                item.x[0] = i
            received = channel.recv(timeout=0)
            received.x.numpy()
            del received
            try:
                channel.recv(timeout=0)
            except TimeoutError:
                pass


if __name__ == "__main__":
    exchange()
    lend()
    exchange_with_torch()
