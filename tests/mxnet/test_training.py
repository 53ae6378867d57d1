# SPDX-License-Identifier: Apache-2.0
"""MXNet's training loops on memory that a C function has filled."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from mxnet_side import address_of, as_mxnet, mx

import tenon as tn

pytestmark = pytest.mark.usefixtures("nothing_stays_behind")

ROOT = Path(__file__).parents[2]
ROWS, COLUMNS, BATCHES = 64, 4, 100
PROTOTYPE = "int fill(float *data, int64_t *label, size_t n, uint64_t seed)"


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    """examples/fill.c, which writes rows of two classes."""
    path = tmp_path_factory.mktemp("native") / "libfill.so"
    command = [os.environ.get("CC", "cc"), "-O2", "-shared", "-fPIC", ROOT / "examples/fill.c", "-o", path]
    subprocess.run(command, check=True)
    return path


@pytest.fixture
def feed(library):
    fill = tn.c_function(library, PROTOTYPE, threadsafe=True)
    schema = tn.schema(data=("f4", (ROWS, COLUMNS)), label=("i8", (ROWS,)))
    with tn.Feed(fill, schema, workers=2, batches=BATCHES) as made:
        yield made


def mxnet_batches(feed):
    """DataBatches of MXNet on the slots of the feed."""
    memory = feed.stats()
    for batch in feed.databatch():
        data, label = map(as_mxnet, batch.data + batch.label)
        assert 0 <= address_of(data) - memory.memory < memory.slots * memory.slot_nbytes
        yield mx.io.DataBatch([data], [label], batch.pad, batch.index)


def network():
    net = mx.sym.FullyConnected(mx.sym.Variable("data"), num_hidden=2, name="dense")
    return mx.sym.SoftmaxOutput(net, mx.sym.Variable("label"), name="softmax")


def test_a_module_is_trained_on_the_slots_of_a_feed(feed):
    module = mx.mod.Module(network(), label_names=["label"])
    module.bind([("data", (ROWS, COLUMNS))], [("label", (ROWS,))])
    module.init_params(mx.init.Xavier())
    module.init_optimizer(optimizer_params={"learning_rate": 0.1})
    metric = mx.metric.Accuracy()
    for index, batch in enumerate(mxnet_batches(feed)):
        assert batch.index == index
        if index == BATCHES // 2:
            metric.reset()
        module.forward_backward(batch)
        module.update()
        module.update_metric(metric, batch.label)
    assert (index, metric.get()[1]) == (BATCHES - 1, 1.0)


@pytest.mark.parametrize("options", [None, {}, {"static_alloc": True, "static_shape": True}])
def test_a_block_of_gluon_is_trained_on_the_slots_of_a_feed(feed, options):
    net = mx.gluon.nn.Dense(2)
    net.initialize(mx.init.Xavier())
    if options is not None:
        net.hybridize(**options)
    trainer = mx.gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.1})
    loss_of, metric = mx.gluon.loss.SoftmaxCrossEntropyLoss(), mx.metric.Accuracy()
    for index, batch in enumerate(mxnet_batches(feed)):
        if index == BATCHES // 2:
            metric.reset()
        [data], [label] = batch.data, batch.label
        with mx.autograd.record():
            scores = net(data)
            loss_of(scores, label).backward()
        trainer.step(ROWS)
        metric.update(label, scores)
    assert (index, metric.get()[1]) == (BATCHES - 1, 1.0)


def test_the_example_runs(library):
    command = [sys.executable, "-W", "ignore", str(ROOT / "examples/mxnet_train.py")]
    done = subprocess.run(command, cwd=library.parent, capture_output=True, text=True, timeout=600)
    assert (done.returncode, done.stdout) == (0, "accuracy 1.00\n"), done.stderr
