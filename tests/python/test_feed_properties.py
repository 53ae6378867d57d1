# SPDX-License-Identifier: Apache-2.0
"""Feeds, with consumers that keep and drop what they like in any order. Oracle: what was kept holds what its
batch was made with, for as long as it is kept; each batch comes once, in order, whichever worker fills it."""

import gc

import native_library
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import tenon as tn

ROWS = 4
SCHEMA = tn.schema(data=("f4", (ROWS, 8)), label=("i8", (ROWS,)))
FILL = "int fill(float *data, int64_t *label, size_t n, uint64_t index, uint64_t epoch)"


def values(epoch, index):
    label = epoch * 10_000 + index * 100 + np.arange(ROWS)
    data = epoch * 10_000 + index * 100 + 10 * np.arange(ROWS)[:, None] + np.arange(8)
    return data.astype("f4"), label


@tn.worker(SCHEMA)
def python(batches):
    for batch in batches:
        batch.data[...], batch.label[...] = values(batch.epoch, batch.index)


def native():
    return tn.c_function(native_library.generators(), FILL, threadsafe=True)


# What a consumer may keep of a batch, and how to read all of the batch's values of a field out of it.
KEEPS = {
    "batch": (lambda batch: batch, lambda kept: (kept.data.numpy(), kept.label.numpy())),
    "array": (lambda batch: batch.data, lambda kept: (kept.numpy(), None)),
    "view": (lambda batch: batch.label.numpy(), lambda kept: (None, kept)),
    "view of a view": (lambda batch: batch.data.numpy().T[:, ::-1], lambda kept: (kept[:, ::-1].T, None)),
    "capsule": (lambda batch: np.from_dlpack(batch.label), lambda kept: (None, kept)),
    "in a cycle": (lambda batch: cycle_of(batch), lambda kept: KEEPS["batch"][1](kept[0])),
}


def cycle_of(batch):
    cycle = [batch]
    cycle.append(cycle)
    return cycle


def check(kept):
    for (epoch, index), how, thing in kept:
        for seen, wanted in zip(KEEPS[how][1](thing), values(epoch, index), strict=True):
            assert seen is None or (seen == wanted).all(), (epoch, index, how)


ACTIONS = st.lists(
    st.tuples(st.sampled_from([None, *KEEPS]), st.lists(st.integers(0, 20), max_size=3)),
    min_size=1,
    max_size=40,
)


@pytest.mark.parametrize("make", [native, python], ids=["native", "python"])
@pytest.mark.parametrize(
    "processes",
    [pytest.param(False, id="threads"), pytest.param("fork", id="processes", marks=pytest.mark.slow)],
)
@settings(
    max_examples=15,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
@given(
    actions=ACTIONS,
    workers=st.integers(1, 3),
    more_slots=st.integers(1, 5),
    policy=st.sampled_from(["copy", "grow"]),
    epochs=st.integers(1, 2),
)
def test_what_is_kept_stays_as_it_is(make, processes, actions, workers, more_slots, policy, epochs):
    """`actions`: for each batch what is kept of it, and which of all that is kept is dropped then."""
    options = {"workers": workers, "slots": workers + more_slots, "on_starved": policy}
    kept = []
    with tn.Feed(make(), SCHEMA, processes=processes, batches=len(actions), **options) as feed:
        for epoch in range(epochs):
            indices = []
            for batch, (how, drops) in zip(feed, actions, strict=True):
                indices.append(batch.index)
                assert batch.epoch == epoch
                check([((epoch, batch.index), "batch", batch)])
                if how is not None:
                    kept.append(((epoch, batch.index), how, KEEPS[how][0](batch)))
                del batch
                for drop in drops:
                    if drop < len(kept):
                        del kept[drop]
                check(kept)
            assert indices == list(range(len(actions)))
        check(kept)
    check(kept)  # what was delivered outlives its feed
    kept.clear()
    gc.collect()
