# SPDX-License-Identifier: Apache-2.0
"""Sets of tensors to plan, made from seeds: (nbytes, first, last) by name.

Where the way of making a set gives a plan with it, `best_known` is that plan's peak; otherwise it is None.
"""

import csv
import random
from dataclasses import dataclass

UNIT = 64  # all sizes are multiples of it, so that alignment to it costs nothing


@dataclass(frozen=True)
class Case:
    name: str
    tensors: dict
    best_known: int | None = None


def named(spans):
    """spans: an iterable of (units, first, last)."""
    return {f"t{i}": (units * UNIT, first, last) for i, (units, first, last) in enumerate(spans)}


def random_intervals(n, seed, steps=None, longest=0.1):
    """Lifetimes of any length up to a share of all steps, sizes over three decades."""
    draw = random.Random(seed)
    steps = steps or n
    spans = []
    for _ in range(n):
        length = draw.randint(1, max(1, int(longest * steps)))
        first = draw.randrange(steps)
        spans.append((int(10 ** draw.uniform(0, 3)), first, min(steps - 1, first + length)))
    return Case(f"random intervals, {n}", named(spans))


def nested(depth, seed):
    """Each tensor lives within the one before, as in a recursion; some die early on the way out."""
    draw = random.Random(seed)
    spans, first, last = [], 0, 4 * depth
    for _ in range(depth):
        spans.append((draw.randint(1, 500), first, last))
        spans.append((draw.randint(1, 500), first, first + draw.randint(0, last - first)))
        first += draw.randint(1, 2)
        last -= draw.randint(1, 2)
    return Case(f"nested, {2 * depth}", named(spans))


def cnn(blocks, seed, training=False):
    """A chain with skip connections; in training each tensor lives until its gradient is made."""
    draw = random.Random(seed)
    end = 4 * blocks + 1
    spans, step, units = [], 0, 4096
    for block in range(blocks):
        if block and block % 4 == 0:
            units = max(8, units // 2)
        width = units * draw.choice((1, 2, 4)) // 2
        for k, (size, uses) in enumerate(((units, 3), (width, 1), (width, 1), (units, 1))):
            first = step + k
            spans.append((size, first, 2 * end - first if training else first + uses))
            if training:  # the gradient of it, made on the way back
                spans.append((size, 2 * end - first - 1, 2 * end - first + uses))
        step += 4
    return Case(f"CNN with skips, {'training' if training else 'inference'}, {len(spans)}", named(spans))


def transformer(layers, seed, training=False):
    """Blocks of attention and MLP; in training every activation lives until the way back."""
    draw = random.Random(seed)
    width = 48 * draw.randint(4, 8)
    heads = draw.choice((4, 8, 12))
    spans, step = [], 0
    steps = 12 * layers
    # (units, step within the block, last use within the block)
    block = (
        (width, 0, 8),  # the residual stream
        (width, 0, 3),  # its norm
        (width, 1, 4),
        (width, 2, 4),
        (width, 3, 6),  # q, k, v
        (heads * width // 2, 4, 5),  # scores
        (heads * width // 2, 5, 6),  # their softmax
        (width, 6, 7),
        (width, 7, 8),  # the projection
        (width, 8, 12),  # the residual stream after attention
        (width, 8, 9),
        (4 * width, 9, 10),  # the MLP
        (4 * width, 10, 11),
        (width, 11, 12),
    )
    for _ in range(layers):
        for units, first, last in block:
            spans.append((units, step + first, 2 * steps - step - first if training else step + last))
            if training:
                back = 2 * steps - step
                spans.append((units, back - last, back - first))
        step += 12
    return Case(f"transformer, {'training' if training else 'inference'}, {len(spans)}", named(spans))


def replacing(n, seed, full=64):
    """A buffer that is full at every step, where a few tensors give way to others of the same sum.

    Whether all of them fit without a hole is not known: for some it is impossible.
    """
    draw = random.Random(seed)
    spans, live, step = [], [], 0

    def fill(room):
        while room:
            units = draw.randint(1, min(room, full // 2))
            live.append((units, step))
            room -= units

    fill(full)
    while len(spans) + len(live) < n:
        step += 1
        dead = draw.sample(live, min(len(live), draw.randint(1, 3)))
        for units, first in dead:
            live.remove((units, first))
            spans.append((units, first, step - 1))
        fill(sum(units for units, _ in dead))
    spans += [(units, first, step) for units, first in live]
    return Case(f"always full, {len(spans)}", named(spans))


def tiling(n, seed, steps=None, height=None, slack=0.0):
    """A rectangle of steps and bytes, cut into n tensors at random: packed without a hole, the hardest kind.

    With slack, that share of the tensors is taken out again.
    """
    draw = random.Random(seed)
    steps, height = steps or 4 * n, height or 64 * n
    pieces = [(0, steps, 0, height)]  # steps from, to, bytes from, to
    while len(pieces) < n:
        # The largest of a few at random, so that sizes vary without many slivers.
        at = max(draw.choices(range(len(pieces)), k=4), key=lambda i: _area(pieces[i]))
        left, right, low, high = pieces.pop(at)
        wide, tall = (right - left) / steps, (high - low) / height
        if right - left > 1 and (high - low < 2 or draw.random() < wide / (wide + tall)):
            cut = draw.randint(left + 1, right - 1)
            pieces += [(left, cut, low, high), (cut, right, low, high)]
        elif high - low > 1:
            cut = draw.randint(low + 1, high - 1)
            pieces += [(left, right, low, cut), (left, right, cut, high)]
        else:
            pieces.append((left, right, low, high))
    draw.shuffle(pieces)
    kept = pieces[: len(pieces) - int(slack * len(pieces))]
    spans = [(high - low, left, right - 1) for left, right, low, high in kept]
    holes = f", {slack:.0%} taken out" if slack else ""
    return Case(f"tiling{holes}, {len(spans)}", named(spans), height * UNIT)


def _area(piece):
    left, right, low, high = piece
    return (right - left) * (high - low)


def from_csv(path, best_known=None):
    """A file with the columns id, lower, upper (exclusive), size: the form of MiniMalloc's cases."""
    with open(path) as file:
        rows = list(csv.DictReader(file))
    tensors = {row["id"]: (int(row["size"]), int(row["lower"]), int(row["upper"]) - 1) for row in rows}
    return Case(f"{path}, {len(rows)}", tensors, best_known)
