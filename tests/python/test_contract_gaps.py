# SPDX-License-Identifier: Apache-2.0
"""What docs/contract.md says and the library does not do yet. The random programs of test_contract_machine.py
leave it out, or allow both; a test that passes here is to move to the others, and the exception there to go.
"""

import numpy as np
import pytest

import tenon as tn


def broken(*_):
    raise RuntimeError("no data")


def leave_by_exception(a):
    with pytest.raises(ZeroDivisionError), a.write():
        raise ZeroDivisionError


@pytest.mark.xfail(strict=True, reason="a call that acts under a lease does not look for failures")
def test_a_failure_inside_of_a_lease_is_told_to_calls_under_it():
    a = tn.zeros(3)
    with a.write():
        leave_by_exception(a)
        with pytest.raises(tn.OpError):
            a.tolist()


@pytest.mark.xfail(strict=True, reason="a call that acts under a lease heals nothing")
def test_an_overwrite_under_a_lease_heals():
    a = tn.zeros(3)
    with a.write():
        leave_by_exception(a)
        a[...] = 1
    assert a.tolist() == [1] * 3


@pytest.mark.xfail(strict=True, reason="the block's view stands on the outer lease", raises=tn.OpError)
def test_a_block_that_overwrites_may_be_nested():
    a = tn.zeros(3)
    with a.write():
        leave_by_exception(a)
        with a.write(overwrite=True) as v:
            v[:] = 1
    assert a.tolist() == [1] * 3


@pytest.mark.xfail(strict=True, reason="NumPy is given a view for reading, and refuses", raises=ValueError)
def test_an_operator_in_place_under_a_lease_for_reading_is_a_conflict():
    a = tn.zeros(3)
    with a.read(), pytest.raises(tn.LeaseConflict):
        a += 1


@pytest.mark.xfail(strict=True, reason="the reason of the refusal is kept", raises=tn.LeaseConflict)
def test_a_refused_buffer_keeps_no_variables():
    a, b = tn.zeros(3), tn.zeros(3)
    tn.push(broken, tn.inout(a)).exception()

    def look():
        other = np.asarray(b)
        memoryview(a)
        return other

    with pytest.raises(tn.OpError):
        look()
    try:
        tn.push(tn.fill, tn.out(b), 1).wait()
    finally:
        memoryview(tn.zeros(1)).release()
        with pytest.raises(ExceptionGroup):
            tn.waitall()


@pytest.mark.xfail(strict=True, reason="any view that work waits for counts", raises=tn.LeaseEscaped)
def test_a_view_that_outlives_its_block_is_no_escape_where_work_waits_for_another_view_alone():
    a = tn.zeros((4, 2))
    kept = []
    x = np.asarray(a[2])
    tn.push(tn.fill, tn.out(a[2]), 1, on_conflict="wait")
    try:
        with a[0].read() as v:
            kept.append(v[:1])
    finally:
        kept.clear()
        del x
        tn.waitall()
