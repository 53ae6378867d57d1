# SPDX-License-Identifier: Apache-2.0
"""Trains a module of MXNet on batches that fill.c writes.

Build the library first, in this folder: cc -O3 -shared -fPIC fill.c -o libfill.so
MXNet 1.9.1 runs on CPython 3.11. With NumPy 2, before_mxnet.py must be imported before it.
"""

import before_mxnet  # noqa: F401
import mxnet as mx

import tenon as tn

scores = mx.sym.FullyConnected(mx.sym.Variable("data"), num_hidden=2)
module = mx.mod.Module(mx.sym.SoftmaxOutput(scores, mx.sym.Variable("label")), label_names=["label"])

fill = tn.c_function(
    "./libfill.so", "int fill(float *data, int64_t *label, size_t n, uint64_t seed)", threadsafe=True
)
schema = tn.schema(data=("f4", (64, 4)), label=("i8", (64,)))

with tn.Feed(fill, schema, workers=2, batches=100) as feed:
    batches = tn.io.FeedIter(feed)  # of DataBatches on the memory that fill wrote to
    module.fit(batches, num_epoch=2, optimizer_params={"learning_rate": 0.1})
    [(_, accuracy)] = module.score(batches, "acc")
print(f"accuracy {accuracy:.2f}")
