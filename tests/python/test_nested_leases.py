# SPDX-License-Identifier: Apache-2.0
"""Failures, views and blocks inside of blocks."""

import threading

import numpy as np
import pytest

import tenon as tn


def broken(*_):
    raise RuntimeError("no data")


def leave_by_exception(a):
    with pytest.raises(ZeroDivisionError), a.write():
        raise ZeroDivisionError


def test_a_failure_inside_of_a_lease_is_told_to_calls_under_it():
    a = tn.zeros(3)
    with a.write():
        leave_by_exception(a)
        with pytest.raises(tn.OpError):
            a.tolist()


def test_an_overwrite_under_a_lease_heals():
    a = tn.zeros(3)
    with a.write():
        leave_by_exception(a)
        a[...] = 1
    assert a.tolist() == [1] * 3


def test_a_block_that_overwrites_may_be_nested():
    a = tn.zeros(3)
    with a.write():
        leave_by_exception(a)
        with a.write(overwrite=True) as v:
            v[:] = 1
    assert a.tolist() == [1] * 3


def test_an_operator_in_place_under_a_lease_for_reading_is_a_conflict():
    a = tn.zeros(3)
    with a.read(), pytest.raises(tn.LeaseConflict):
        a += 1


def test_a_refused_buffer_keeps_no_variables():
    a, b = tn.zeros(3), tn.zeros(3)
    tn.push(broken, tn.write(a)).exception()

    def look():
        other = np.asarray(b)
        memoryview(a)
        return other

    with pytest.raises(tn.OpError):
        look()
    try:
        tn.push(tn.fill, tn.overwrite(b), 1).wait()
    finally:
        memoryview(tn.zeros(1)).release()
        with pytest.raises(ExceptionGroup):
            tn.waitall()


@pytest.mark.parametrize("is_detached", [False, True])
def test_a_view_stays_under_the_outer_lease_whichever_thread_ends_the_inner_one(is_detached):
    a = tn.zeros(3)
    outer, inner = a.lease("w"), a.lease("w")
    view = np.asarray(a)
    if is_detached:
        inner.detach()
    thread = threading.Thread(target=inner.release)
    thread.start()
    thread.join()
    op = tn.push(tn.fill, tn.overwrite(a), 1)  # a view of ordinary code would be in its way
    view[:] = 7
    assert a.tolist() == [7] * 3 and not op.done()
    del view
    outer.release()
    assert op.result() is None and a.tolist() == [1] * 3


def test_a_view_that_outlives_its_block_is_no_escape_where_work_waits_for_another_view_alone():
    a = tn.zeros((4, 2))
    kept = []
    x = np.asarray(a[2])
    tn.push(tn.fill, tn.overwrite(a[2]), 1, on_conflict="wait")
    try:
        with a[0].read() as v:
            kept.append(v[:1])
    finally:
        kept.clear()
        del x
        tn.waitall()
