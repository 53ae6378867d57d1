# SPDX-License-Identifier: Apache-2.0
"""Trains a model on batches that fill.c writes.

Build the library first, in this folder: cc -O3 -shared -fPIC fill.c -o libfill.so
"""

import torch

import tenon as tn

model = torch.nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


def train_step(x: torch.Tensor, y: torch.Tensor) -> float:
    loss = torch.nn.functional.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.item()


fill = tn.c_function(
    "./libfill.so", "int fill(float *data, int64_t *label, size_t n, uint64_t seed)", threadsafe=True
)
schema = tn.schema(data=("f4", (64, 4)), label=("i8", (64,)))

with tn.Feed(fill, schema, workers=2, batches=100) as feed:
    for x, y in feed.torch():  # the tensors are the memory that fill wrote to
        loss = train_step(x, y)
print(f"loss {loss:.4f}, accuracy {(model(x).argmax(1) == y).float().mean():.2f}")
