# SPDX-License-Identifier: Apache-2.0
"""The activations of torch models: their sizes and lifetimes in a run on the CPU, and a run in a plan."""

import torch
from torch import fx, nn
from torch.nn import functional as F


class Residual(nn.Module):
    """Two convolutions beside a skip connection, as in ResNet-18."""

    def __init__(self, inputs, outputs, stride):
        super().__init__()
        self.first = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.first_norm = nn.BatchNorm2d(outputs)
        self.second = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.second_norm = nn.BatchNorm2d(outputs)
        self.skip = None
        if stride != 1 or inputs != outputs:
            self.skip = nn.Sequential(
                nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs)
            )

    def forward(self, x):
        y = F.relu(self.first_norm(self.first(x)))
        y = self.second_norm(self.second(y))
        return F.relu(y + (x if self.skip is None else self.skip(x)))


def resnet18(width=64, classes=1000):
    layers = [nn.Conv2d(3, width, 7, 2, 3, bias=False), nn.BatchNorm2d(width), nn.ReLU()]
    layers.append(nn.MaxPool2d(3, 2, 1))
    inputs = width
    for stage in range(4):
        outputs = width << stage
        layers += [Residual(inputs, outputs, 1 if stage == 0 else 2), Residual(outputs, outputs, 1)]
        inputs = outputs
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, classes)).eval()


class Encoder(nn.Module):
    """A block of a transformer, norm first, with the attention written out."""

    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norm, self.mlp_norm = nn.LayerNorm(width), nn.LayerNorm(width)
        self.q, self.k, self.v = (nn.Linear(width, width) for _ in range(3))
        self.out = nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        y = self.norm(x)
        q, k, v = (f(y).unflatten(-1, (self.heads, -1)).transpose(1, 2) for f in (self.q, self.k, self.v))
        scores = torch.softmax(q @ k.transpose(2, 3) * (q.shape[-1] ** -0.5), -1)
        x = x + self.out((scores @ v).transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.mlp_norm(x))))


def transformer(layers=6, width=256, heads=8):
    return nn.Sequential(*(Encoder(width, heads) for _ in range(layers)), nn.LayerNorm(width)).eval()


class _Run(fx.Interpreter):
    """Runs a traced model node by node. Steps count nodes."""

    def __init__(self, model):
        super().__init__(fx.symbolic_trace(model))
        self.step_of = {node: step for step, node in enumerate(self.module.graph.nodes)}

    def run_node(self, node):
        result = super().run_node(node)
        if isinstance(result, torch.Tensor) and node.op not in ("placeholder", "get_attr", "output"):
            return self.made(node, result)
        return result


class Recorder(_Run):
    """Finds the memory that each node makes or uses: afterwards `tensors` has (nbytes, first, last) by node.

    A node whose result lies in the memory of another (a view, or the same tensor) only keeps that one alive.
    """

    def record(self, *args):
        self.tensors, self.owners, self.kept = {}, {}, []
        with torch.no_grad():
            self.own_inputs = {x.untyped_storage().data_ptr() for x in args}
            return self.run(*args)

    def made(self, node, result):
        storage = result.untyped_storage().data_ptr()
        if storage in self.own_inputs:
            return result
        self.kept.append(result)  # so that no address is used twice
        owner = self.owners.setdefault(storage, node.name)
        step = self.step_of[node]
        last = max((self.step_of[user] for user in node.users), default=step)
        nbytes, first, before = self.tensors.get(owner, (result.untyped_storage().nbytes(), step, step))
        self.tensors[owner] = (nbytes, first, max(before, last))
        return result


def record(model, *args):
    """(nbytes, first, last) of each activation, by node."""
    recorder = Recorder(model)
    recorder.record(*args)
    return recorder.tensors


class Planned(_Run):
    """Runs a model with every activation in one buffer, at the offsets of a plan.

    Dead memory is overwritten at once, so that the result is wrong if code reads it later.
    """

    def __init__(self, model, plan, buffer):
        super().__init__(model)
        self.plan, self.buffer = plan, buffer
        self.dying = {}
        for name, (nbytes, _, last) in plan.tensors.items():
            self.dying.setdefault(last, []).append((plan.offsets[name], nbytes))
        assert buffer.numel() == plan.nbytes

    def run_node(self, node):
        result = super().run_node(node)
        if node.op != "output":
            for offset, nbytes in self.dying.get(self.step_of[node], ()):
                self.buffer[offset : offset + nbytes] = 0xFF
        return result

    def made(self, node, result):
        if node.name not in self.plan.offsets:
            return result  # a view of one that lies in the buffer
        assert result.is_contiguous()
        offset, nbytes = self.plan.offsets[node.name], self.plan.tensors[node.name][0]
        place = self.buffer[offset : offset + nbytes].view(result.dtype).view(result.shape)
        return place.copy_(result)
