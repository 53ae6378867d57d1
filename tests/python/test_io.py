# SPDX-License-Identifier: Apache-2.0
"""Batches in the form of MXNet's mx.io."""

import native_library
import numpy as np
import pytest

import tenon as tn
from tenon.io import DataBatch, DataDesc

pytestmark = pytest.mark.usefixtures("nothing_stays_behind")

FILL = "int fill(float *data, int64_t *label, size_t n, uint64_t index, uint64_t epoch)"


def test_a_description_is_a_tuple_with_mxnets_fields():
    described = DataDesc("data", (64, 3, 8, 8))
    assert described == ("data", (64, 3, 8, 8), "float32", "NCHW")
    assert (described.name, described.shape, described.dtype, described.layout) == tuple(described)


def test_a_batch_has_mxnets_fields():
    batch = DataBatch([1], [2], pad=3, index=4, bucket_key=5, provide_data=[6], provide_label=[7])
    fields = ("data", "label", "pad", "index", "bucket_key", "provide_data", "provide_label")
    assert [getattr(batch, field) for field in fields] == [[1], [2], 3, 4, 5, [6], [7]]
    assert DataBatch([]).label is None
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
                assert batch.provide_data == [("data", (4, 8), tn.float32, "NC")]
                assert batch.provide_label == [("label", (4,), tn.int64, "N")]
                assert str(batch) == "DataBatch: data shapes: [(4, 8)] label shapes: [(4,)]"
