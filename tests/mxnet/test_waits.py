# SPDX-License-Identifier: Apache-2.0
"""MXNet runs ops later, when no Python object may refer to their arrays any more. Each way in which it uses a
batch of a feed keeps the slot until its op has read it.

Each test queues a use of batch 0 behind a closed gate, drops the batch, and lets the worker fill all slots
that are free. Then the gate opens, and the result must be that of batch 0."""

import gc
import re
from pathlib import Path

import pytest
from mxnet_side import address_of, as_mxnet, closed_gate, mx

import tenon as tn

pytestmark = pytest.mark.usefixtures("nothing_stays_behind")

SHAPE = (8, 16)
BATCHES = 6


class Net(mx.gluon.HybridBlock):
    def __init__(self):
        super().__init__()
        self.dense = mx.gluon.nn.Dense(4, in_units=SHAPE[1])

    def hybrid_forward(self, F, x, zero):
        return self.dense(F.broadcast_add(x, zero))


def net(**options):
    made = Net()
    made.initialize(mx.init.One())
    if options:
        made.hybridize(**options)
    made(mx.nd.ones(SHAPE), mx.nd.zeros((1, 1))).wait_to_read()
    return made


class Add(mx.operator.CustomOp):
    def forward(self, is_train, req, in_data, out_data, aux):
        self.assign(out_data[0], req[0], mx.nd.broadcast_add(*in_data))


@mx.operator.register("tenon_test_add")
class AddProperties(mx.operator.CustomOpProp):
    def list_arguments(self):
        return ["x", "zero"]

    def infer_shape(self, in_shape):
        return in_shape, [in_shape[0]], []

    def create_operator(self, *_):
        return Add()


def module():
    data, zero = mx.sym.Variable("data"), mx.sym.Variable("zero")
    symbol = mx.sym.FullyConnected(mx.sym.broadcast_add(data, zero), num_hidden=4, name="dense")
    made = mx.mod.Module(symbol, data_names=("data", "zero"), label_names=None)
    made.bind([("data", SHAPE), ("zero", (SHAPE[0], 1))], for_training=False)
    made.init_params(mx.init.One())
    return made


def after(zero):
    """Zeros that are ready after the gate."""
    return mx.nd.broadcast_add(mx.nd.zeros(SHAPE), zero)


def copied(x, zero):
    out = after(zero)
    x.copyto(out)
    return out


def assigned(x, zero):
    out = after(zero)
    out[:] = x
    return out


def forward(x, zero):
    made = module()
    rows = mx.nd.broadcast_add(mx.nd.zeros((SHAPE[0], 1)), zero)
    made.forward(mx.io.DataBatch([x, rows]), is_train=False)
    return made.get_outputs()[0]


def gradient(made):
    def use(x, zero):
        with mx.autograd.record():
            made(x, zero).sum().backward()
        return made.dense.weight.grad().copy()

    return use


def pushed(x, store):
    store.push("x", x)
    out = mx.nd.zeros(SHAPE)
    store.pull("x", out=out)
    return out


def store_of(value):
    store = mx.kv.create("local")
    store.init("x", value)
    return store


USES = {
    "op": lambda x, zero: mx.nd.broadcast_add(x, zero),
    "copyto": copied,
    "assignment": assigned,
    "slice": lambda x, zero: mx.nd.broadcast_add(x[2:6], zero),
    "reshape": lambda x, zero: mx.nd.broadcast_add(x.reshape((-1,)).reshape(SHAPE), zero),
    "numpy": lambda x, zero: mx.nd.broadcast_add(x.as_np_ndarray().as_nd_ndarray(), zero),
    "module": forward,
    "block": net(),
    "block, hybrid": net(static_alloc=False),
    "block, static": net(static_alloc=True, static_shape=True),
    "gradient": gradient(net()),
    "gradient, hybrid": gradient(net(static_alloc=False)),
    "gradient, static": gradient(net(static_alloc=True, static_shape=True)),
    "custom op": lambda x, zero: mx.nd.Custom(x, zero, op_type="tenon_test_add"),
    "store": lambda x, zero: pushed(mx.nd.broadcast_add(x, zero), store_of(mx.nd.zeros(SHAPE))),
    "store, direct": lambda x, zero: pushed(x, store_of(after(zero))),
}


def fill(batch):
    batch.data[...] = batch.index + 1


@pytest.mark.parametrize("use", USES.values(), ids=USES)
def test_a_slot_is_filled_again_after_mxnet_has_read_it(use):
    expected = use(mx.nd.ones(SHAPE), mx.nd.zeros((1, 1))).asnumpy()
    schema = {"data": ("f4", SHAPE)}
    with (
        tn.Feed(fill, schema, slots=3, workers=1, batches=BATCHES) as feed,
        closed_gate() as (zero, open_gate),
    ):
        batches = iter(feed)
        first = next(batches).data
        address = first.data_ptr
        lent = as_mxnet(first)
        assert address_of(lent) == address
        del first
        result = use(lent, zero)
        del lent
        gc.collect()
        seen = {next(batches).data.data_ptr for _ in range(3)}
        assert address not in seen
        open_gate()
        assert (result.asnumpy() == expected).all()
        assert [batch.index for batch in batches] == [4, 5]


def test_a_push_does_not_overwrite_what_mxnet_has_not_read():
    a = tn.zeros((1, 4))
    with closed_gate() as (zero, open_gate):
        result = mx.nd.broadcast_add(as_mxnet(a), zero)
        with pytest.raises(tn.LeaseConflict):
            tn.push(tn.fill, tn.overwrite(a), 5)
        op = tn.push(tn.fill, tn.overwrite(a), 5, on_conflict="wait")
        assert not op.done()
        open_gate()
        op.wait()
    assert (result.asnumpy().tolist(), a.tolist()) == ([[0.0] * 4], [[5.0] * 4])


def test_the_example_of_the_page_waits_for_mxnet():
    page = (Path(__file__).parents[2] / "docs/howto/from_mxnet.md").read_text()
    [example] = re.findall(r"```python\n(a = tn.zeros.*?)```", page, re.S)
    names = {"tn": tn, "mx": mx}
    exec(example, names)
    assert (names["y"].asnumpy().tolist(), names["a"].tolist()) == ([0.0] * 4, [5.0] * 4)
