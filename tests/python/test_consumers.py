# SPDX-License-Identifier: Apache-2.0
"""What consumes feeds: ONNX Runtime sessions and asyncio. And what all consumers copy: nothing."""

import asyncio
import contextlib

import native_library
import numpy as np
import onnx_model
import pytest
from onnx_model import BOOL, DOUBLE, FLOAT, INT64, model, node, sequence, tensor

import tenon as tn
from tenon.demo._copy_meter import payloads_written, why_unavailable

pytestmark = pytest.mark.usefixtures("nothing_stays_behind")

ROWS = 4
FILL = "int fill(float *data, int64_t *label, size_t n, uint64_t index, uint64_t epoch)"


def feed_of(rows=ROWS, **options):
    fill = tn.c_function(native_library.generators(), FILL, threadsafe=True)
    return tn.Feed(fill, tn.schema(data=("f4", (rows, 8)), label=("i8", (rows,))), **options)


def expected(epoch, index):
    rows = epoch * 10000 + index * 100 + np.arange(ROWS)
    return (epoch * 10000 + index * 100 + 10 * np.arange(ROWS)[:, None] + np.arange(8)).astype("f4"), rows


# ---------------------------------------------------------------------------------- ONNX Runtime


@pytest.fixture
def session_of():
    ort = pytest.importorskip("onnxruntime")

    def make(nodes, inputs, outputs):
        options = ort.SessionOptions()
        options.intra_op_num_threads = 1
        options.log_severity_level = 4
        content = model(nodes, inputs, outputs)
        return ort.InferenceSession(content, options, providers=["CPUExecutionProvider"])

    return make


@pytest.fixture
def session(session_of):
    """double = data + data; high = data > label as float; the number of rows has only a name."""
    cast = onnx_model.node("Cast", ["label"], ["floats"]) + attribute_to_float()
    return session_of(
        [
            node("Add", ["data", "data"], ["double"]),
            node("Transpose", ["data"], ["columns"]),
            cast,
            node("Greater", ["columns", "floats"], ["high"]),
        ],
        {"data": tensor(FLOAT, ["n", 8]), "label": tensor(INT64, ["n"])},
        {"double": tensor(FLOAT, ["n", 8]), "high": tensor(BOOL, [8, "n"])},
    )


def attribute_to_float():
    """to=FLOAT, of a Cast."""
    field = onnx_model.field
    return field(5, 2, field(1, 2, b"to") + field(3, 0, FLOAT) + field(20, 0, 2))


def test_a_session_runs_on_the_slots(session):
    with feed_of(batches=5) as feed:
        for epoch in range(2):
            for index, (double, high) in enumerate(feed.onnxruntime(session)):
                data, label = expected(epoch, index)
                assert (double == 2 * data).all() and double.dtype == np.float32
                assert (high == (label < data.T)).all() and high.dtype == np.bool_
            assert index == 4
        assert len(feed.onnxruntime(session)) == 5


def test_outputs_can_be_chosen_and_fields_can_follow_them(session):
    with feed_of(batches=3) as feed:
        stats = feed.stats()
        for index, (high, double, label) in enumerate(
            feed.onnxruntime(session, ["high", "double"], ["label"])
        ):
            data, wanted = expected(0, index)
            assert (double == 2 * data).all() and (high == (wanted < data.T)).all()
            assert label.tolist() == wanted.tolist()
            assert 0 <= label.ctypes.data - stats.memory < stats.slots * stats.slot_nbytes
            del label
        with pytest.raises(ValueError, match=r"outputs is empty: choose some of \['double', 'high'\]"):
            feed.onnxruntime(session, [])


def test_outputs_that_are_kept_stay_as_they_are(session):
    with feed_of(batches=20, slots=2) as feed:
        kept = [double for double, _ in feed.onnxruntime(session)]
        for index, double in enumerate(kept):
            assert (double == 2 * expected(0, index)[0]).all()


def test_a_slot_is_held_until_the_run_is_over_and_not_longer(session):
    with feed_of(batches=10, slots=2, timeout=600) as feed:

        class Watching:
            def __getattr__(self, name):
                return getattr(session, name)

            def run_with_iobinding(self, binding):
                held.append(feed.stats().slots_held)
                session.run_with_iobinding(binding)

        held = []
        for _ in feed.onnxruntime(Watching()):
            assert feed.stats().slots_held == 0
        assert held == [1] * 10


def test_what_does_not_fit_is_said_before_the_first_batch(session_of):
    def add(name="data", element=FLOAT, shape=("n", 8)):
        return session_of([node("Add", [name, name], ["y"])], {name: tensor(element, shape)},
                          {"y": tensor(element, shape)})  # fmt: skip

    with feed_of(batches=1) as feed:
        for session, message in [
            (add("x"), r"the model's input 'x' is no field of the feed, which has \['data', 'label'\]"),
            (add(element=DOUBLE), "field 'data' is float32, and the model's input is float64"),
            (add(shape=(4, 9)), r"field 'data' has the shape \(4, 8\), and the model's input \[4, 9\]"),
            (add(shape=("n", 8, 1)), r"has the shape \(4, 8\), and the model's input \['n', 8, 1\]"),
        ]:
            with pytest.raises(ValueError, match=message):
                feed.onnxruntime(session)
        for fits in (add(shape=("n", "m")), add(shape=(4, 8)), add(shape=None)):
            ((y,),) = feed.onnxruntime(fits)
            assert y.shape == (4, 8)
        with pytest.raises(ValueError, match=r"outputs has 'z', and the model's outputs are \['y'\]"):
            feed.onnxruntime(add(), ["z"])
        with pytest.raises(
            ValueError, match=r"fields has 'lable', and the feed's fields are \['data', 'label'\]"
        ):
            feed.onnxruntime(add(), fields=["lable"])
        kind = tensor(FLOAT, ("n", 8))
        listing = session_of(
            [node("SequenceConstruct", ["data"], ["s"]), node("Neg", ["data"], ["y"])],
            {"data": kind}, {"s": sequence(kind), "y": kind},
        )  # fmt: skip
        with pytest.raises(
            ValueError, match=r"output 's' is a seq\(tensor\(float\)\): name tensors of numbers"
        ):
            feed.onnxruntime(listing)
        ((y,),) = feed.onnxruntime(listing, ["y"])
        assert y[0, 1] < 0


def test_an_error_of_the_run_is_raised_at_its_place_and_ends_the_epoch(session_of):
    ort = pytest.importorskip("onnxruntime")
    state = pytest.importorskip("onnxruntime.capi.onnxruntime_pybind11_state")
    same = tensor(FLOAT, ["n", "n"])  # that both lengths are one is not looked at before the run
    session = session_of([node("MatMul", ["data", "data"], ["y"])], {"data": same}, {"y": same})
    assert ort.__name__ == "onnxruntime"
    with feed_of(batches=3) as feed:
        with pytest.raises((state.Fail, state.InvalidArgument, RuntimeError)):
            list(feed.onnxruntime(session))
        assert [batch.index for batch in feed] == [0, 1, 2]


# --------------------------------------------------------------------------------------- copies


def look(arrays):
    return [(array, float(array.max())) for array in arrays]


def consumer_of(kind, feed, context, session_of):
    """A function that reads all of an epoch, and returns the arrays with what it has found."""
    if kind == "databatch":
        return lambda: [look(map(np.asarray, batch.data + batch.label)) for batch in feed.databatch()]
    if kind == "asyncio":
        loop = context.enter_context(contextlib.closing(asyncio.new_event_loop()))

        async def collect():
            return [look(arrays) async for arrays in feed.numpy()]

        return lambda: loop.run_until_complete(collect())
    if kind == "onnxruntime":
        kinds = {"data": tensor(FLOAT, ["n", 8])}, {"y": tensor(FLOAT, [1, 1])}
        session = session_of([node("ReduceMax", ["data"], ["y"])], *kinds)
        return lambda: [look(arrays) for arrays in feed.onnxruntime(session, fields=["label"])]
    pytest.importorskip(kind)
    return lambda: [look(arrays) for arrays in getattr(feed, kind)()]


@pytest.mark.slow
@pytest.mark.skipif(why_unavailable() is not None, reason=str(why_unavailable()))
@pytest.mark.parametrize("kind", ["numpy", "torch", "jax", "onnxruntime", "databatch", "asyncio"])
def test_consumers_copy_nothing(kind, session_of):
    """An epoch of one batch writes as many pages with a consumer that reads all of it as with none. What a
    framework writes for itself is that of an epoch with a small batch."""
    rows = 1 << 21
    payload = rows * (8 * 4 + 8)
    with (
        feed_of(rows, batches=1, slots=2) as feed,
        feed_of(batches=1) as small,
        contextlib.ExitStack() as context,
    ):
        if kind == "jax":
            context.enter_context(pytest.importorskip("jax").enable_x64(True))
        consume = consumer_of(kind, feed, context, session_of)
        consume_small = consumer_of(kind, small, context, session_of)
        control = lambda: (list(feed), consume_small())  # noqa: E731
        copied = payloads_written(consume, payload, control=control, rounds=5)
    assert copied == pytest.approx(0, abs=0.02)
