# SPDX-License-Identifier: Apache-2.0
"""Batches and iterators in the form of MXNet's mx.io."""

import copy
import pickle
import threading

import native_library
import numpy as np
import pytest

import tenon as tn
from tenon.demo._copy_meter import payloads_written, why_unavailable
from tenon.io import DataBatch, DataDesc, DataIter, FeedIter, NDArrayIter

pytestmark = pytest.mark.usefixtures("nothing_stays_behind")

FILL = "int fill(float *data, int64_t *label, size_t n, uint64_t index, uint64_t epoch)"


def test_a_description_is_a_pair_with_mxnets_attributes():
    described = DataDesc("data", (64, 3, 8, 8))
    assert described == ("data", (64, 3, 8, 8)) == (described.name, described.shape)
    assert (described.dtype, described.layout) == (np.float32, "NCHW")
    assert repr(described) == "DataDesc[data,(64, 3, 8, 8),float32,NCHW]"
    assert described == DataDesc("data", (64, 3, 8, 8), "int8", None) != DataDesc("data", (64,))
    assert repr(DataDesc._make(("x", (1,)))) == "DataDesc[x,(1,),float32,NCHW]"
    for copied in (copy.copy(described), pickle.loads(pickle.dumps(described)), described._replace(name="x")):
        assert type(copied) is DataDesc and vars(copied) == vars(described)


def test_shapes_and_types_make_descriptions():
    shapes = dict(NDArrayIter({"x": np.zeros((4, 2))}, {"y": np.zeros(4)}, 2).provide_data)
    assert shapes == {"x": (2, 2)}
    made = DataDesc.get_list([("x", (2, 2)), ("y", (2,))], [("y", "int8"), ("x", "f8")])
    assert [(one, one.dtype, one.layout) for one in made] == [
        (("x", (2, 2)), "f8", "NCHW"),
        (("y", (2,)), "int8", "NCHW"),
    ]
    assert [one.dtype for one in DataDesc.get_list(shapes.items(), None)] == [np.float32]
    assert [DataDesc.get_batch_axis(layout) for layout in (None, "NCHW", "TNC", "CHW")] == [0, 0, 1, -1]


def test_a_batch_has_mxnets_fields():
    batch = DataBatch([1], [2], pad=3, index=4, bucket_key=5, provide_data=[6], provide_label=[7])
    fields = ("data", "label", "pad", "index", "bucket_key", "provide_data", "provide_label")
    assert [getattr(batch, field) for field in fields] == [[1], [2], 3, 4, 5, [6], [7]]
    assert DataBatch([]).label is None
    assert str(DataBatch([tn.ones((2, 3))])) == "DataBatch: data shapes: [(2, 3)] label shapes: None"
    with pytest.raises(TypeError, match="data is NDArray: it must be a list"):
        DataBatch(tn.zeros(3))


def test_a_feed_gives_data_batches_on_its_slots():
    fill = tn.c_function(native_library.generators(), FILL)
    fields = tn.schema(data=("f4", (4, 8)), label=("i8", (4,)))
    with tn.Feed(fill, fields, batches=3) as feed:
        stats = feed.stats()
        for epoch in range(2):
            for index, batch in enumerate(feed.databatch()):
                assert isinstance(batch, DataBatch)
                (data,), (label,) = batch.data, batch.label
                assert 0 <= data.data_ptr - stats.memory < stats.slots * stats.slot_nbytes
                assert np.asarray(label).tolist() == [epoch * 10000 + index * 100 + row for row in range(4)]
                assert (batch.pad, batch.index, batch.bucket_key) == (0, index, None)
                assert repr(batch.provide_data) == "[DataDesc[data,(4, 8),float32,NC]]"
                assert repr(batch.provide_label) == "[DataDesc[label,(4,),int64,N]]"
                assert str(batch) == "DataBatch: data shapes: [(4, 8)] label shapes: [(4,)]"


# ----------------------------------------------------------------------------------- NDArrayIter

ROWS = 1000


def counting(rows=ROWS):
    """Row i is all i // 100, and so is its label."""
    label = (np.arange(rows) // 100).astype("f4")
    return np.repeat(label, 4).reshape(rows, 2, 2), label


def as_numpy(x):
    return x


def as_tenon(x):
    return tn.array(x)


def values(batches):
    return [[np.array(array) for array in batch.data + batch.label] for batch in batches]


@pytest.mark.parametrize("convert", [as_numpy, as_tenon])
@pytest.mark.parametrize(
    ("handle", "batches", "zeros", "eights"),
    [("pad", 8, 124, 100), ("discard", 7, 100, 96), ("roll_over", 7, 100, 96), ("keep", 8, 100, 100)],
)
def test_each_way_of_handling_the_last_batch_delivers_its_rows(convert, handle, batches, zeros, eights):
    data, label = counting()
    iterator = NDArrayIter(convert(data), convert(label), 128, last_batch_handle=handle)
    labels, count = [], 0
    for batch in iterator:
        count += 1
        (got,), (wanted,) = batch.data, batch.label
        assert (np.asarray(got)[:, 0, 0] == np.asarray(wanted)).all()
        labels += wanted.tolist()
    assert count == batches
    assert (labels.count(0), labels.count(8)) == (zeros, eights)


def test_rows_that_roll_over_begin_the_next_epoch():
    data, label = counting()
    padded = list(NDArrayIter(data, label, 128))[-1]
    assert padded.pad == 24
    iterator = NDArrayIter(data, label, 128, last_batch_handle="roll_over")
    list(iterator)
    iterator.reset()
    first = next(iterator)
    assert values([first])[0][0].tolist() == values([padded])[0][0].tolist()
    assert first.pad == 0  # no row of it was delivered before
    assert [len(values(iterator)), iterator.reset(), len(list(iterator))] == [7, None, 8]


@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("rows", [3, 5, 10, 23])
def test_rolling_over_delivers_each_row_once_an_epoch_also_when_the_batch_is_larger(shuffle, rows):
    batch_size = 7
    iterator = NDArrayIter(np.arange(rows), None, batch_size, shuffle, "roll_over")
    epochs, stream = 14, []
    for _ in range(epochs):
        for batch in iterator:
            assert batch.data[0].shape == (batch_size,)
            stream += batch.data[0].tolist()
        iterator.reset()
        iterator.reset()  # before the first batch: keeps what rolled over
    delivered = epochs * rows // batch_size * batch_size
    assert len(stream) == delivered
    whole = delivered // rows
    for epoch in range(whole):
        assert sorted(stream[epoch * rows : (epoch + 1) * rows]) == list(range(rows))


def test_a_reset_within_an_epoch_and_a_hard_reset_carry_nothing():
    iterator = NDArrayIter(np.arange(10), None, 4, last_batch_handle="roll_over")
    next(iterator)
    iterator.reset()
    assert next(iterator).data[0].tolist() == [0, 1, 2, 3]
    list(iterator)
    iterator.hard_reset()
    assert next(iterator).data[0].tolist() == [0, 1, 2, 3]


def test_more_rows_in_a_batch_than_there_are_are_filled_up_over_and_over():
    (batch,) = NDArrayIter(np.arange(10), None, 205)
    assert batch.data[0].tolist() == [*range(10)] * 20 + [*range(5)]
    assert batch.pad == 195
    assert [b.data[0].shape for b in NDArrayIter(np.arange(10), None, 205, last_batch_handle="keep")] == [
        (10,)
    ]
    assert list(NDArrayIter(np.arange(10), None, 205, last_batch_handle="discard")) == []
    assert list(NDArrayIter(np.zeros((0, 2)), None, 4)) == []


def test_whole_numbers_of_batches_are_alike_for_all():
    x = np.arange(12)
    for handle in ("pad", "discard", "roll_over", "keep"):
        iterator = NDArrayIter(x, x, 4, last_batch_handle=handle)
        for _ in range(3):
            assert [(b.data[0].tolist(), b.pad) for b in iterator] == [
                ([k, k + 1, k + 2, k + 3], 0) for k in (0, 4, 8)
            ]
            iterator.reset()
        del iterator


def test_shuffling_permutes_the_rows_and_not_the_data():
    data, label = counting(50)
    data = data + np.arange(50)[:, None, None].astype("f4")
    before = data.copy()
    iterator = NDArrayIter({"x": data}, {"y": label}, 1, shuffle=True)
    given, orders = iterator.idx, []
    for _ in range(3):
        orders.append(iterator.idx.tolist())
        for row, batch in zip(iterator.idx, iterator, strict=True):
            assert batch.data[0][0].tolist() == before[row].tolist()
            assert batch.label[0].tolist() == [label[row]]
        iterator.reset()
    assert (data == before).all()
    assert given.tolist() == orders[0]  # the caller's, and not permuted any more
    assert len({tuple(order) for order in orders}) == 3
    assert all(sorted(order) == list(range(50)) for order in orders)


def test_the_order_follows_from_numpys_seed():
    orders = []
    for _ in range(2):
        np.random.seed(7)
        orders.append(NDArrayIter(np.arange(100), None, 10, shuffle=True).idx.tolist())
    assert orders[0] == orders[1] != list(range(100))


def test_every_epoch_of_a_seed_has_the_order_of_mxnet():
    """It shuffles its numbers again for each epoch, and takes the rows of the last epoch by them."""
    np.random.seed(7)
    iterator, orders = NDArrayIter(np.arange(40), None, 10, shuffle=True), []
    for _ in range(4):
        orders.append([row for batch in iterator for row in batch.data[0].tolist()])
        iterator.reset()
    np.random.seed(7)
    numbers, rows, wanted = np.arange(40), np.arange(40), []
    for _ in range(4):
        np.random.shuffle(numbers)
        rows = rows[numbers]
        wanted.append(rows.tolist())
    assert orders == wanted


def test_sparse_arrays_are_refused_by_that_name():
    scipy_sparse = pytest.importorskip("scipy.sparse")
    with pytest.raises(
        TypeError, match=r"csr_matrix is no array.*a sparse array: pass x.toarray\(\)"
    ) as error:
        NDArrayIter({"rows": scipy_sparse.csr_matrix(np.eye(3))})
    assert "'rows'" in error.value.__notes__[0]
    torch = pytest.importorskip("torch")
    with pytest.raises(BufferError, match="sparse_coo") as error:
        NDArrayIter({"rows": torch.eye(3).to_sparse()})
    assert "'rows'" in error.value.__notes__[0]


def test_names_of_single_arrays_lists_and_dicts():
    x, y = np.zeros((6, 2, 3)), np.zeros(6, "i8")

    def described(data, label=None, **names):
        iterator = NDArrayIter(data, label, 3, **names)
        batch = next(iterator)
        assert [array.shape for array in batch.data] == [d.shape for d in iterator.provide_data]
        assert [array.dtype for array in batch.label] == [d.dtype for d in iterator.provide_label]
        return [d.name for d in iterator.provide_data], [d.name for d in iterator.provide_label]

    assert described(x) == (["data"], [])
    assert described([x], [y]) == (["data"], ["softmax_label"])
    assert described([x, x], [y, y]) == (["_0_data", "_1_data"], ["_0_softmax_label", "_1_softmax_label"])
    assert described([x, x], y, data_name="d", label_name="l") == (["_0_d", "_1_d"], ["l"])
    assert described({"b": x, "a": x}, {"z": y}) == (["a", "b"], ["z"])
    assert described([x] * 12)[0] == [f"_{i}_data" for i in range(12)]
    assert repr(NDArrayIter(x, y, 3).provide_data) == "[DataDesc[data,(3, 2, 3),float64,NCH]]"


@pytest.mark.parametrize("handle", ["pad", "discard", "roll_over", "keep"])
def test_batches_of_rows_that_follow_each_other_are_views_and_others_are_gathered(handle):
    x = tn.array(np.arange(20, dtype="f4").reshape(10, 2))

    def is_view(array):
        return x.data_ptr <= array.data_ptr < x.data_ptr + x.nbytes

    iterator = NDArrayIter(x, None, 4, last_batch_handle=handle)
    views = [is_view(batch.data[0]) for batch in iterator]
    assert views == {"pad": [True, True, False], "keep": [True, True, True]}.get(handle, [True, True])
    iterator.reset()
    assert [is_view(b.data[0]) for b in iterator][:3] == {"roll_over": [False, True, True]}.get(handle, views)
    assert not any(is_view(b.data[0]) for b in NDArrayIter(x, None, 4, True, handle))
    iterator.reset()
    list(iterator)[1].data[0][0, 0] = -1
    assert -1 in np.asarray(x)


def test_gathered_rows_are_right_for_any_strides_and_dtypes():
    whole = np.arange(240).reshape(10, 6, 4)
    for dtype in ("f4", "u1", "c16", "?", "f2"):
        for x in (
            whole.astype(dtype),
            whole.astype(dtype)[:, ::2, ::-1],
            whole.astype(dtype).T,
            whole[:, 0, 0],
        ):
            wanted = x.copy()
            iterator = NDArrayIter(x, None, 4, shuffle=True)
            got = np.concatenate([np.asarray(b.data[0]) for b in iterator])[: len(wanted)]
            assert (got == wanted[iterator.idx]).all()
            assert x.base is None or not x.flags.writeable  # lent
            del iterator
    import ml_dtypes

    x = np.arange(10).astype(ml_dtypes.bfloat16)
    (batch,) = NDArrayIter(x, None, 15)
    assert batch.data[0].dtype == tn.bfloat16
    assert batch.data[0].tolist() == [*range(10), *range(5)]


def test_a_numpy_array_is_lent_and_comes_back_writable():
    x = np.zeros((4, 2))
    iterator = NDArrayIter(x, None, 2)
    batch = next(iterator)
    with pytest.raises(ValueError, match="read-only"):
        x[0] = 1
    batch.data[0][...] = 5
    assert x[:2].tolist() == [[5, 5], [5, 5]]
    del iterator, batch
    x[0] = 1


def test_a_mapped_file_is_not_read_at_construction(tmp_path):
    np.save(tmp_path / "x.npy", np.arange(20).reshape(10, 2))
    x = np.load(tmp_path / "x.npy", mmap_mode="r")
    batch = next(NDArrayIter(x, None, 4))
    assert not batch.data[0].writable
    assert batch.data[0].data_ptr == x.ctypes.data
    assert batch.data[0].tolist() == x[:4].tolist()


def test_shared_arrays_are_data_too():
    x = tn.zeros((6, 2), "i4", shared=True)
    x[...] = np.arange(12).reshape(6, 2)
    first, second = NDArrayIter(x, None, 4)
    assert first.data[0].shared and not second.data[0].shared
    assert second.data[0].tolist() == [[8, 9], [10, 11], [0, 1], [2, 3]]


def test_gathering_waits_for_ops_on_the_data():
    x = tn.zeros(6, "i8")
    iterator = NDArrayIter(x, None, 4)
    first = next(iterator)
    started, go = threading.Event(), threading.Event()

    def body(v):
        started.set()
        go.wait(600)
        v[...] = 3

    op = tn.push(body, tn.write(x))
    started.wait(600)
    threading.Timer(0.1, go.set).start()
    assert next(iterator).data[0].tolist() == [3] * 4
    op.wait()
    assert first.data[0].tolist() == [3] * 4


def test_what_is_wrong_with_arguments_is_said():
    x, y = np.zeros((4, 2)), np.zeros(3)
    with pytest.raises(ValueError, match=r"different numbers of rows: {'data': 4, 'softmax_label': 3}"):
        NDArrayIter(x, y)
    with pytest.raises(ValueError, match="last_batch_handle is 'cut': it must be one of"):
        NDArrayIter(x, last_batch_handle="cut")
    with pytest.raises(ValueError, match="batch_size is 0: it must be at least 1"):
        NDArrayIter(x, batch_size=0)
    for nothing in (None, [], {}):
        with pytest.raises(ValueError, match="there are no data"):
            NDArrayIter(nothing)
    with pytest.raises(ValueError, match="'data' is an array without axes"):
        NDArrayIter(np.array(3.0))
    with pytest.raises(TypeError) as caught:
        NDArrayIter({"words": np.array(["a"])})
    assert caught.value.__notes__ == ["This was 'words' of the data for an NDArrayIter."]


@pytest.mark.parametrize("handle", ["pad", "discard", "roll_over", "keep"])
def test_an_iterator_can_be_asked_step_by_step(handle):
    iterator = NDArrayIter(np.arange(5), np.arange(5), 3, last_batch_handle=handle)
    for _ in range(2):
        with pytest.raises(ValueError, match="no current batch"):
            iterator.getdata()
        assert iterator.iter_next()
        assert (iterator.getpad(), iterator.getindex()) == (0, None)
        assert iterator.getdata()[0].tolist() == iterator.getlabel()[0].tolist() == [0, 1, 2]
        assert iterator.iter_next() == (handle in ("pad", "keep"))
        if handle == "pad":
            assert (iterator.getdata()[0].tolist(), iterator.getpad()) == ([3, 4, 0], 1)
        elif handle == "keep":
            assert (iterator.getdata()[0].tolist(), iterator.getpad()) == ([3, 4], 0)
        for _ in range(3):
            assert not iterator.iter_next()
            with pytest.raises(ValueError, match="no current batch"):
                iterator.getdata()
            with pytest.raises(StopIteration):
                next(iterator)
        iterator.hard_reset()


# --------------------------------------------------------------------------- DataIter and FeedIter


def test_a_subclass_of_dataiter_needs_iter_next_and_getdata():
    class Countdown(DataIter):
        def __init__(self):
            super().__init__(2)
            self.reset()

        def reset(self):
            self.left = 3

        def iter_next(self):
            self.left -= 1
            return self.left >= 0

        def getdata(self):
            return [tn.full(2, float(self.left))]

    iterator = Countdown()
    for _ in range(2):
        assert [batch.data[0].tolist() for batch in iterator] == [[2, 2], [1, 1], [0, 0]]
        assert list(iterator) == []
        iterator.reset()
    batch = next(iterator)
    assert (batch.label, batch.pad, batch.index) == (None, 0, None)
    with pytest.raises(NotImplementedError, match=r"DataIter has no iter_next\(\)"):
        next(DataIter())


def feed_of(batches=3, **options):
    fill = tn.c_function(native_library.generators(), FILL)
    return tn.Feed(fill, tn.schema(data=("f4", (4, 8)), label=("i8", (4,))), batches=batches, **options)


def test_a_feed_is_an_iterator_of_its_epochs():
    with feed_of() as feed:
        stats = feed.stats()
        iterator = FeedIter(feed)
        assert iterator.batch_size == 4
        assert repr(iterator.provide_data) == "[DataDesc[data,(4, 8),float32,NC]]"
        assert repr(iterator.provide_label) == "[DataDesc[label,(4,),int64,N]]"
        for epoch in range(3):
            iterator.reset()  # as scripts do that begin each epoch with it: no epoch is lost
            for index, batch in enumerate(iterator):
                assert 0 <= batch.data[0].data_ptr - stats.memory < stats.slots * stats.slot_nbytes
                assert batch.label[0][0].item() == epoch * 10000 + index * 100
                assert (batch.index, batch.pad) == (index, 0)
            assert index == 2
            assert list(iterator) == []
        next(iterator, None)
        iterator.reset()
        assert iterator.iter_next() and iterator.getindex() == 0
        assert iterator.getdata()[0].shape == (4, 8) and iterator.getlabel()[0].shape == (4,)
        iterator.reset()
        with pytest.raises(ValueError, match="no current batch"):
            iterator.getdata()


def test_the_slot_of_a_batch_is_free_when_the_batch_is_gone():
    with feed_of(None, slots=2, timeout=600) as feed:
        iterator = FeedIter(feed)
        for index in range(20):
            batch = next(iterator)
            assert batch.index == index
            assert feed.stats().slots_held == 1
            del batch


def test_views_and_padded_batches_of_an_iterator_copy_what_they_say():
    if why_unavailable():
        pytest.skip(why_unavailable())
    payload, batches = 16 << 20, 4
    x = tn.zeros((batches, payload // 4))

    def written(**options):
        def an_epoch():
            kept = []
            for batch in NDArrayIter(x, None, 1, **options):
                kept += batch.data
                assert float(np.asarray(batch.data[0])[0, 0]) == 0
            return kept

        return payloads_written(an_epoch, batches * payload, control=lambda: None, rounds=3)

    assert written() == pytest.approx(0, abs=0.02)
    assert written(shuffle=True) == pytest.approx(1, abs=0.02)
