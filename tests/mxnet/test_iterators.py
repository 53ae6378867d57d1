# SPDX-License-Identifier: Apache-2.0
"""Iterators of tenon.io in place of those of mx.io: a training gives the same parameters, bit by bit."""

import re
from pathlib import Path

import numpy as np
import pytest
from mxnet_side import mx

import tenon as tn

pytestmark = pytest.mark.usefixtures("nothing_stays_behind")

ROOT = Path(__file__).parents[2]
ROWS, BATCH = 256, 32
numbers = np.random.default_rng(0)
DATA = numbers.standard_normal((ROWS, 16)).astype("f4")
LABEL = (DATA @ numbers.standard_normal(16) > 0).astype("f4")


def network():
    net = mx.sym.FullyConnected(mx.sym.Variable("data"), num_hidden=32, name="first")
    net = mx.sym.FullyConnected(mx.sym.Activation(net, act_type="relu"), num_hidden=2, name="second")
    return mx.sym.SoftmaxOutput(net, name="softmax")


def module_for(batches):
    mx.random.seed(1)
    np.random.seed(1)
    module = mx.mod.Module(network())
    module.bind(batches.provide_data, batches.provide_label)
    module.init_params(mx.init.Xavier())
    return module


def fit(batches):
    """What a training, a score and a prediction give."""
    module = module_for(batches)
    options = {"optimizer_params": {"learning_rate": 0.2}, "eval_metric": ["acc", "ce"]}
    module.fit(batches, batches, num_epoch=3, initializer=None, **options)
    parameters = {name: value.asnumpy() for name, value in module.get_params()[0].items()}
    return [
        *parameters.values(),
        np.array(module.score(batches, "ce")[0][1]),
        module.predict(batches).asnumpy(),
    ]


def shuffled(io):
    np.random.seed(3)
    return io.NDArrayIter(DATA, LABEL, BATCH, shuffle=True)


MAKERS = {
    "arrays of NumPy": lambda io: io.NDArrayIter(DATA, LABEL, BATCH),
    "arrays of MXNet": lambda io: io.NDArrayIter(mx.nd.array(DATA), mx.nd.array(LABEL), BATCH),
    "other dtypes": lambda io: io.NDArrayIter(DATA.astype("f8"), LABEL.astype("i8"), BATCH),
    "padded": lambda io: io.NDArrayIter(DATA, LABEL, 48),
    "discarded": lambda io: io.NDArrayIter(DATA, LABEL, 48, last_batch_handle="discard"),
    "shuffled": shuffled,
    "prefetched": lambda io: io.PrefetchingIter(io.NDArrayIter(DATA, LABEL, BATCH)),
    "prefetched by Tenon": lambda io: tn.io.PrefetchingIter(io.NDArrayIter(DATA, LABEL, BATCH)),
    "prefetched by MXNet": lambda io: mx.io.PrefetchingIter(io.NDArrayIter(DATA, LABEL, BATCH)),
    "resized": lambda io: mx.io.ResizeIter(io.NDArrayIter(DATA, LABEL, BATCH), 5),
}


def end(batches):
    """The threads of MXNet's PrefetchingIter refer to it, so it would never end them."""
    if isinstance(batches, mx.io.PrefetchingIter):
        batches.__del__()


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
def test_a_module_learns_the_same_from_an_iterator_of_tenon(make):
    iterators = [make(io) for io in (tn.io, mx.io)]
    for ours, theirs in zip(*map(fit, iterators), strict=True):
        assert ours.tobytes() == theirs.tobytes()
    for batches in iterators:
        end(batches)


def fill(batch):
    rows = slice(batch.index * BATCH, (batch.index + 1) * BATCH)
    batch.data[...], batch.softmax_label[...] = DATA[rows], LABEL[rows]


@pytest.fixture
def feed():
    schema = tn.schema(data=("f4", (BATCH, 16)), softmax_label=("f4", (BATCH,)))
    with tn.Feed(fill, schema, workers=1, batches=ROWS // BATCH) as made:
        yield made


def test_a_module_learns_the_same_from_a_feed(feed):
    for ours, theirs in zip(
        *map(fit, (tn.io.FeedIter(feed), mx.io.NDArrayIter(DATA, LABEL, BATCH))), strict=True
    ):
        assert ours.tobytes() == theirs.tobytes()


def test_the_example_of_the_page_runs(feed):
    [example] = re.findall(
        r"```python\n(batches = tn.io.FeedIter.*?)```", (ROOT / "docs/io.md").read_text(), re.S
    )
    module = module_for(tn.io.FeedIter(feed))
    module.init_optimizer()
    before = module.get_params()[0]["second_weight"].asnumpy()
    exec(example, {"tn": tn, "feed": feed, "module": module})
    assert feed.stats().batches == 3 * ROWS // BATCH
    assert (module.get_params()[0]["second_weight"].asnumpy() != before).any()
