# SPDX-License-Identifier: Apache-2.0
"""`plan`: offsets in one buffer for tensors with known first and last uses.

A pure function, which allocates no buffer. The problem, dynamic storage allocation, is NP-hard. The plan is
the best of first fit in three orders, which reaches the lower bound on the activations of common models.
"""

from __future__ import annotations

import math
import operator
from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from .._typing import DTypeLike

_Spans = Sequence[tuple[int, int, int]]  # size, first and last step
_MOST = 2**63 - 1  # bytes of a buffer


@dataclass(frozen=True)
class TensorUsage:
    """An array to place, with the first and the last step that use it, both inclusive."""

    name: str
    dtype: DTypeLike
    shape: int | tuple[int, ...]
    first: int
    last: int


@dataclass(frozen=True, repr=False)
class Plan:
    """The offsets of tensors in one buffer. Made by `plan`.

    Attributes
    ----------
    offsets : dict of str to int
        In bytes, by name, in the order of the tensors; multiples of `alignment`.
    nbytes : int
        The size of the buffer: the peak.
    lower_bound : int
        The largest number of bytes in use at one step. No plan needs less; some sets of tensors need more.
    total : int
        The sum of the sizes of all tensors.
    steps : int
        The number of steps from the first use to the last use of all tensors.
    is_optimal : bool
        True: `nbytes` equals the lower bound, so no plan is smaller. False: unknown.
    alignment : int
        Sizes in `nbytes`, `lower_bound` and `total` are rounded up to a multiple of it.
    tensors : dict of str to (int, int, int)
        The planned tensors: bytes, first and last use.
    """

    offsets: dict[str, int]
    nbytes: int
    lower_bound: int
    total: int
    steps: int
    is_optimal: bool
    alignment: int
    tensors: dict[str, tuple[int, int, int]] = field(hash=False)

    def __repr__(self) -> str:
        saved = 1 - self.nbytes / self.total if self.total else 0.0
        above = self.nbytes / self.lower_bound - 1 if self.lower_bound else 0.0
        verdict = "optimal" if self.is_optimal else f"at most {above:.1%} above the optimum"
        return (
            f"Plan({len(self.offsets)} tensors over {self.steps} steps: {self.nbytes:,} bytes "
            f"instead of {self.total:,}, {saved:.1%} saved; {verdict})"
        )

    def check(self) -> None:
        """Raises ValueError with names if two tensors share bytes at one step, or one exceeds the buffer."""
        for name, (nbytes, _, _) in self.tensors.items():
            offset = self.offsets.get(name)
            if offset is None:
                raise ValueError(f"tensor {name!r} has no offset")
            if offset < 0 or offset % self.alignment or offset + nbytes > self.nbytes:
                raise ValueError(
                    f"tensor {name!r} of {nbytes} bytes at offset {offset} does not lie in {self.nbytes} "
                    f"bytes at a multiple of {self.alignment}"
                )
        # First uses come before last uses at equal steps. The live tensors are sorted and do not overlap, so
        # only the neighbours of a new one need a check.
        spans = [(name, *span) for name, span in self.tensors.items() if span[0]]
        events = [(first, 0, name, nbytes) for name, nbytes, first, _ in spans]
        events += [(last, 1, name, nbytes) for name, nbytes, _, last in spans]
        live: list[tuple[int, int, str]] = []
        for step, is_death, name, nbytes in sorted(events):
            begin = self.offsets[name]
            item = (begin, begin + nbytes, name)
            at = bisect_left(live, item)
            if is_death:
                del live[at]
                continue
            for other_begin, other_end, other in live[max(at - 1, 0) : at + 1]:
                if other_begin < begin + nbytes and begin < other_end:
                    raise ValueError(
                        f"tensors {other!r} and {name!r} both live at step {step} and share bytes "
                        f"{max(begin, other_begin)} to {min(begin + nbytes, other_end) - 1}"
                    )
            live.insert(at, item)


def plan(
    tensors: Mapping[str, tuple[Any, int, int]] | Iterable[TensorUsage],
    alignment: int = 64,
) -> Plan:
    """Places tensors in one buffer with a small peak. Tensors in use at the same step share no bytes.

    The same tensors in the same order give the same plan. The plan is the best of first fit in three orders:
    by size, by first use, and by size times lifetime. 10,000 tensors take some seconds.

    Parameters
    ----------
    tensors : mapping or iterable of TensorUsage
        For each name ``(what, first, last)``. ``what`` is a number of bytes or ``(dtype, shape)``; ``first``
        and ``last`` are the steps of the first and the last use, both inclusive.
    alignment : int
        The alignment of every offset; a power of two. Sizes are rounded up to it.

    Raises
    ------
    ValueError
        No tensors, a repeated name, a negative size, a last use before the first, an alignment that is not a
        power of two.
    TypeError
        A name that is not a string, a size or step that is not an integer, an unknown dtype.

    Examples
    --------
    >>> from tenon._ipc.planner import plan
    >>> plan({"a": (("f4", (256,)), 0, 1), "b": (1024, 1, 2), "c": (1024, 2, 3)}).offsets
    {'a': 0, 'b': 1024, 'c': 0}
    """
    alignment = _integer(alignment, "alignment")
    if alignment < 1 or alignment & (alignment - 1):
        raise ValueError(f"alignment is {alignment}: it must be a power of two")
    if alignment > _MOST:
        raise ValueError(f"alignment is {alignment}: it must be at most 2**62")
    spans = _spans(tensors)
    if not spans:
        raise ValueError("there are no tensors to plan: give at least one")

    # Tensors without bytes get the offset 0.
    names = [name for name, (nbytes, _, _) in spans.items() if nbytes]
    units = [(-(-spans[name][0] // alignment), *spans[name][1:]) for name in names]
    packed, peak, bound = _packed(units)
    if peak * alignment > _MOST:
        raise ValueError(
            f"the plan needs {peak * alignment:,} bytes: no buffer has more than {_MOST:,} (2**63 - 1)"
        )
    offsets = dict.fromkeys(spans, 0) | {name: at * alignment for name, at in zip(names, packed)}
    found = Plan(
        offsets=offsets,
        nbytes=peak * alignment,
        lower_bound=bound * alignment,
        total=sum(size for size, _, _ in units) * alignment,
        steps=max(last for _, _, last in spans.values()) - min(first for _, first, _ in spans.values()) + 1,
        is_optimal=peak == bound,
        alignment=alignment,
        tensors=spans,
    )
    found.check()
    return found


def _packed(spans: _Spans) -> tuple[list[int], int, int]:
    """The best offsets of `first_fit` over `first_fit_orders`, their peak, and the lower bound."""
    bound = most_live(spans)
    best: list[int] = []
    least = 0
    for order in first_fit_orders(spans):
        offsets = first_fit(spans, order)
        peak = max((at + size for at, (size, _, _) in zip(offsets, spans)), default=0)
        if not best or peak < least:
            best, least = offsets, peak
        if least == bound:
            break
    return best, least, bound


def most_live(spans: _Spans) -> int:
    """The largest sum of sizes that live at one step."""
    # At equal steps first uses come before last uses, because both are inclusive.
    events = [(first, -size) for size, first, _ in spans] + [(last, size) for size, _, last in spans]
    live = most = 0
    for _, change in sorted(events):
        live -= change
        most = max(most, live)
    return most


def first_fit_orders(spans: _Spans) -> Iterator[list[int]]:
    """By size, by size times lifetime, by first use. Ties are broken by the other criteria."""
    size = [size for size, _, _ in spans]
    first = [first for _, first, _ in spans]
    length = [last - first + 1 for _, first, last in spans]
    yield sorted(range(len(spans)), key=lambda i: (-size[i], -length[i], first[i]))
    yield sorted(range(len(spans)), key=lambda i: (-size[i] * length[i], first[i]))
    yield sorted(range(len(spans)), key=lambda i: (first[i], -size[i]))


def first_fit(spans: _Spans, order: Sequence[int]) -> list[int]:
    """Each tensor at the lowest offset where it fits among those before it in the order."""
    offsets = [0] * len(spans)
    placed: list[tuple[int, int, int, int]] = []  # (offset, end, first, last), by offset
    for i in order:
        size, first, last = spans[i]
        at = 0
        for offset, end, born, died in placed:
            if born <= last and died >= first:
                if offset - at >= size:
                    break
                if end > at:
                    at = end
        offsets[i] = at
        insort(placed, (at, at + size, first, last))
    return offsets


def _spans(
    tensors: Mapping[str, tuple[Any, int, int]] | Iterable[TensorUsage],
) -> dict[str, tuple[int, int, int]]:
    spans: dict[str, tuple[int, int, int]] = {}
    for name, what, first, last in _items(tensors):
        if not isinstance(name, str):
            raise TypeError(f"the name of a tensor is {name!r}: it must be a str")
        if name in spans:
            raise ValueError(f"there are two tensors named {name!r}: names must differ")
        first, last = _integer(first, f"first use of {name!r}"), _integer(last, f"last use of {name!r}")
        if last < first:
            raise ValueError(
                f"tensor {name!r} is last used at step {last}, before its first use at step {first}"
            )
        nbytes = _nbytes(name, what)
        if nbytes > _MOST:
            raise ValueError(
                f"tensor {name!r} has {nbytes:,} bytes: no buffer has more than {_MOST:,} (2**63 - 1)"
            )
        spans[name] = (nbytes, first, last)
    return spans


def _items(tensors: Any) -> Iterable[tuple[Any, Any, Any, Any]]:
    if isinstance(tensors, Mapping):
        for name, item in tensors.items():
            if not isinstance(item, tuple | list) or len(item) != 3:
                raise TypeError(f"tensor {name!r} is {item!r}: give (nbytes or (dtype, shape), first, last)")
            yield (name, *item)
        return
    for item in tensors:
        if not isinstance(item, TensorUsage):
            raise TypeError(
                f"{item!r} is no TensorUsage(name, dtype, shape, ...): give these, or a mapping of names"
            )
        yield item.name, (item.dtype, item.shape), item.first, item.last


def _nbytes(name: str, what: Any) -> int:
    if not isinstance(what, tuple | list):
        nbytes = _integer(what, f"size of {name!r}")
        if nbytes < 0:
            raise ValueError(f"tensor {name!r} has {nbytes} bytes: a size must be at least 0")
        return nbytes
    if len(what) != 2:
        raise TypeError(f"tensor {name!r} is {what!r}: give its number of bytes or (dtype, shape)")
    from .._core import dtype  # here, because sizes in bytes do not need the extension

    element = dtype(what[0])
    shape = what[1] if isinstance(what[1], tuple | list) else (what[1],)
    lengths = [_integer(length, f"a length of {name!r}") for length in shape]
    if any(length < 0 for length in lengths):
        raise ValueError(f"tensor {name!r} has shape {tuple(lengths)}: a length must be at least 0")
    return -(-math.prod(lengths) * element.bits * element.lanes // 8)


def _integer(value: Any, what: str) -> int:
    try:
        return operator.index(value)
    except TypeError:
        raise TypeError(f"{what} is {value!r}: it must be an integer") from None
