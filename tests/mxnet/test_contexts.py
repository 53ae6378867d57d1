# SPDX-License-Identifier: Apache-2.0
"""What scripts for MXNet ask of an array besides its elements, and of an iterator besides its batches."""

import subprocess
import sys

import pytest
from mxnet_side import EXAMPLES, address_of, mx

import tenon as tn

pytestmark = pytest.mark.usefixtures("nothing_stays_behind")


def fill(batch):
    batch.data[...], batch.softmax_label[...] = batch.index, batch.index % 2


@pytest.fixture
def feed():
    schema = tn.schema(data=("f4", (32, 16)), softmax_label=("f4", (32,)))
    with tn.Feed(fill, schema, workers=1, batches=8) as made:
        yield made


def test_iterators_are_those_of_mxnet_once_it_is_imported(feed):
    class Own(tn.io.DataIter):
        pass

    for batches in (Own(), tn.io.FeedIter(feed), tn.io.NDArrayIter([[1.0]])):
        assert isinstance(batches, mx.io.DataIter)


def test_a_class_of_the_program_that_derives_from_both_is_left_alone():
    program = """
import before_mxnet, tenon as tn, mxnet as mx
class Both(mx.io.DataIter, tn.io.DataIter): pass
assert isinstance(Both(), tn.io.DataIter) and len(list(tn.io.NDArrayIter([[1.0]]))) == 1
"""
    command = [sys.executable, "-W", "ignore", "-c", program]
    subprocess.run(command, cwd=EXAMPLES, check=True, timeout=600)


def test_a_block_of_gluon_takes_an_array_in_its_context(feed):
    net, loss = mx.gluon.nn.Dense(2), mx.gluon.loss.SoftmaxCrossEntropyLoss()
    net.initialize(mx.init.One())
    context = mx.cpu()
    for batch in tn.io.FeedIter(feed):
        assert batch.data[0].context == context
        data, label = (one.as_in_context(context) for one in batch.data + batch.label)
        assert address_of(data) == batch.data[0].data_ptr
        expected = loss(net(mx.nd.array(batch.data[0].asnumpy())), mx.nd.array(batch.label[0].asnumpy()))
        assert (loss(net(data), label).asnumpy() == expected.asnumpy()).all()
        [parts] = mx.gluon.utils.split_and_load(batch.data[0], [context])
        assert parts.asnumpy().tolist() == batch.data[0].tolist()
        metric = mx.metric.Perplexity(None)
        metric.update(batch.label, [mx.nd.softmax(net(data))])
        assert metric.get()[1] > 0
        del batch, data, label  # their slots


def test_an_array_without_gaps_is_taken_where_it_lies():
    """MXNet looks at the strides of axes of length 1, too."""
    a = tn.arange(24, dtype="f4").reshape(1, 4, 6)
    for part in (a[:, 0], a[:, :1, :1], a[0, :1, :1].T, a[:, ::4]):
        m = part.as_in_context(mx.cpu())
        assert address_of(m) == part.data_ptr
        assert m.asnumpy().tolist() == part.tolist()


def test_contexts_and_scalars_are_those_of_mxnet():
    a = tn.ones((2, 3))
    m = a.as_in_context(mx.cpu())
    m[:] = 2
    m.wait_to_read()
    assert a.tolist() == [[2.0] * 3] * 2
    assert a[:, 1].as_in_context(mx.cpu()).asnumpy().tolist() == [2, 2]  # with gaps: a copy
    assert a.readonly().as_in_context(mx.cpu(1)).context == mx.cpu(1)
    assert a[0, :1].asscalar() == a[0, :1].as_in_context(mx.cpu()).asscalar() == 2
    for array in (a, m):
        with pytest.raises(ValueError):
            array.asscalar()
