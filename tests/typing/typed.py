# SPDX-License-Identifier: Apache-2.0
# pyright: strict, reportUnnecessaryTypeIgnoreComment=true
"""What type checkers know of the package. mypy and pyright check this file; nothing runs it. A comment that
ignores no error is an error."""

from typing import Any, assert_type

import numpy as np

import tenon as tn


def count(x: np.ndarray[Any, Any]) -> int:
    return x.size


def blocks(a: tn.NDArray) -> None:
    with a.read() as v:
        assert_type(v, np.ndarray[Any, Any])
    with a.write(overwrite=True, timeout=1) as v:
        assert_type(v, np.ndarray[Any, Any])
    with a.lease("r") as lease:
        assert_type(lease, tn.Lease)
    assert_type(a.leases(), list[tn.Holder])


async def blocks_of_tasks(a: tn.NDArray) -> None:
    async with a.write() as v:
        assert_type(v, np.ndarray[Any, Any])
    assert_type(await tn.push(count, a), int)


def results(a: tn.NDArray) -> None:
    op = tn.push(count, a)
    assert_type(op, tn.Op[int])
    assert_type(op.result(), int)


def options(a: tn.NDArray) -> None:
    a.read("nonsense")  # type: ignore[arg-type]
    a.write(on_owner_died="nonsense")  # type: ignore[arg-type]
    a.lease("nonsense")  # type: ignore[arg-type]
    tn.from_numpy(np.zeros(3), mode="nonsense")  # type: ignore[arg-type]
    tn.push(count, a, on_conflict="nonsense")  # type: ignore[arg-type]
    tn.Channel({}, mode="nonsense")  # type: ignore[arg-type]
    tn.Channel({}, when_full="nonsense")  # type: ignore[arg-type]
    tn.Feed(print, on_error="nonsense")  # type: ignore[arg-type]
    tn.Feed(print, on_starved="nonsense")  # type: ignore[arg-type]
    tn.io.NDArrayIter(a, last_batch_handle="nonsense")  # type: ignore[arg-type]
