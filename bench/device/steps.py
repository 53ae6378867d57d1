# SPDX-License-Identifier: Apache-2.0
"""Training steps on a GPU, on batches that already lie there and on batches of loaders.

The loaders fill whole batches in as many worker processes or threads, with the same value in each element."""

import itertools
import os
import time
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec

import numpy as np

import tenon as tn

WORKERS = max(1, min(4, (os.cpu_count() or 1) // 2))
MODULUS = 1024
RESIDENT = "batches on the device"
TENON = "tenon.Feed"
LOADER = "DataLoader, pin_memory, non_blocking"
SPDL = "SPDL, transfer_tensor"
WARM_UP = 5  # steps before a turn, of batches that were loaded during the turns of others
CHECKED = 3


def take_turns(contenders, rounds, measure):
    """Name -> measure(contender) for each round. Each round begins with another one."""
    found, names = {name: [] for name in contenders}, list(contenders)
    for i in range(rounds):
        first = i % len(names)
        for name in names[first:] + names[:first]:
            found[name].append(measure(contenders[name]))
    return found


def torch_with_cuda():
    """PyTorch, or None and the reason."""
    if find_spec("torch") is None:
        return None, "PyTorch is not installed"
    import torch

    if not torch.cuda.is_available():
        return None, f"PyTorch {torch.__version__} sees no CUDA device"
    return torch, None


def fill(batch):
    batch.data[...] = batch.index % MODULUS
    batch.label[...] = batch.index


def filled(torch, fields, index):
    """A batch in fresh tensors."""
    (_, shape), (_, rows) = fields["data"], fields["label"]
    return torch.full(shape, float(index % MODULUS)), torch.full(rows, index)


class Model:
    """One training step, which takes longer than the copy of its batch."""

    def __init__(self, torch):
        nn = torch.nn
        layers = [nn.Conv2d(3, 64, 7, 2, 3), nn.ReLU()]
        for _ in range(3):
            layers += [nn.Conv2d(64, 64, 3, padding=1), nn.ReLU()]
        self.model = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10)).cuda()
        self.optimizer = torch.optim.SGD(self.model.parameters(), 1e-6)

    def step(self, data, label):
        scores = self.model(data * (1 / MODULUS))
        loss = (scores.square().mean(1) * (label % 2)).mean()
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)


def resident(torch, fields):
    batches = [[field.cuda() for field in filled(torch, fields, index)] for index in range(4)]
    yield from itertools.cycle(batches)


def of_feed(fields):
    feed = tn.Feed(fill, tn.schema(**fields), workers=WORKERS, slots=WORKERS + 4, processes="fork")
    with feed:
        yield from feed.torch(device="cuda:0")


def loader(torch, fields, workers):
    class Batches(torch.utils.data.IterableDataset):
        def __iter__(self):
            worker = torch.utils.data.get_worker_info()
            first, step = (worker.id, worker.num_workers) if worker else (0, 1)
            for index in itertools.count(first, step):
                yield filled(torch, fields, index)

    context = {"multiprocessing_context": "fork"} if workers else {}
    return torch.utils.data.DataLoader(
        Batches(), batch_size=None, num_workers=workers, pin_memory=True, **context
    )


def of_loader(torch, fields):
    for batch in loader(torch, fields, WORKERS):
        yield [field.to("cuda", non_blocking=True) for field in batch]


def of_spdl(torch, fields):
    import spdl.io
    from spdl.pipeline import PipelineBuilder

    transfer = getattr(spdl.io, "transfer_tensor_h2d", None) or spdl.io.transfer_tensor
    builder = PipelineBuilder().add_source(itertools.count())
    builder.pipe(lambda index: filled(torch, fields, index), concurrency=WORKERS, output_order="input")
    builder.pipe(transfer, executor=ThreadPoolExecutor(1))
    pipeline = builder.add_sink(3).build(num_threads=WORKERS)
    with pipeline.auto_stop():
        yield from pipeline


def check(name, index, batch):
    data, label = (field.cpu().numpy() for field in batch)
    if not (np.all(data == index % MODULUS) and np.all(label == index)):
        raise AssertionError(f"{name}: batch {index} arrived with wrong elements")


def measure(torch, fields, rounds, turn_seconds):
    """Name -> seconds per step, one for each round; what is left out."""
    torch.backends.cudnn.benchmark = True
    # Those that fork come first.
    sources = {TENON: of_feed(fields), LOADER: of_loader(torch, fields), RESIDENT: resident(torch, fields)}
    notes = ["DALI is left out: this workload has no contender for it."]
    if find_spec("spdl"):
        sources[SPDL] = of_spdl(torch, fields)
    else:
        notes.append("SPDL is left out: it is not installed.")
    for name, batches in sources.items():
        for index in range(CHECKED):
            check(name, index, next(batches))
    model = Model(torch)

    def seconds(batches, n):
        torch.cuda.synchronize()
        begin = time.perf_counter()
        for batch in itertools.islice(batches, n):
            model.step(*batch)
        del batch
        torch.cuda.synchronize()
        return (time.perf_counter() - begin) / n

    for batches in sources.values():
        seconds(batches, WARM_UP)
    n = max(10, int(turn_seconds / seconds(sources[RESIDENT], 10)))

    def turn(batches):
        seconds(batches, WARM_UP)
        return seconds(batches, n)

    try:
        return take_turns(sources, rounds, turn), notes
    finally:
        for batches in sources.values():
            batches.close()
