# SPDX-License-Identifier: Apache-2.0
"""Tensors through a queue of multiprocessing, by both of torch's ways to share memory."""

import numpy as np

from .cases import ASLEEP, FRESH, TOUCHED, WARM, Peer
from .loops import contenders
from .stock_rows import Answered, Answering, queue


def shared_tensor(nbytes):
    import torch

    return torch.zeros(nbytes // 4).share_memory_()


class TensorSender(Answered):
    strategy = ""

    def __init__(self, side, nbytes):
        import torch.multiprocessing

        torch.set_num_threads(1)
        torch.multiprocessing.set_sharing_strategy(self.strategy)
        self.link, self.put = side.link, side.shared.put
        self.tensor = shared_tensor(nbytes)
        self.array = self.tensor.numpy()

    def send(self):
        self.put(self.tensor)

    def send_fresh(self, source):
        import torch

        # As a loader's worker does it: straight into shared memory, without a copy on the way.
        storage = torch.UntypedStorage._new_shared(source.nbytes)
        tensor = torch.empty(0).set_(storage, 0, (source.size,))
        np.copyto(tensor.numpy(), source)
        self.put(tensor)
        return tensor


class TensorReceiver(Answering):
    strategy = ""

    def __init__(self, side, nbytes):
        import torch.multiprocessing

        torch.set_num_threads(1)
        torch.multiprocessing.set_sharing_strategy(self.strategy)
        self.link, self.get = side.link, side.shared.get

    def receive(self):
        return self.get().numpy()


class DescriptorSender(TensorSender):
    strategy = "file_descriptor"


class DescriptorReceiver(TensorReceiver):
    strategy = "file_descriptor"


class FileSender(TensorSender):
    strategy = "file_system"


class FileReceiver(TensorReceiver):
    strategy = "file_system"


CASES = (ASLEEP, WARM, TOUCHED, FRESH)
NEEDS = ("torch",)
PEERS = [
    Peer("torch, file_descriptor", contenders(DescriptorSender, DescriptorReceiver, queue, CASES), NEEDS),
    Peer("torch, file_system", contenders(FileSender, FileReceiver, queue, CASES), NEEDS),
]
