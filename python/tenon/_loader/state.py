# SPDX-License-Identifier: Apache-2.0
"""The place of a loader in an epoch, and the way back to it.

Samplers, datasets and their iterators may have ``state_dict`` and ``load_state_dict``, as for torchdata's
``StatefulDataLoader``. A sampler without them is run again up to its place, from the states that the random
generators had at its start.
"""

from __future__ import annotations

import contextlib
import itertools
import pickle
import random
from collections.abc import Iterator
from typing import Any

from .base import torch


def is_stateful(thing: Any) -> bool:
    return hasattr(thing, "state_dict") and hasattr(thing, "load_state_dict")


def state_of(thing: Any) -> Any:
    return thing.state_dict() if is_stateful(thing) else None


def restore(thing: Any, state: Any) -> None:
    if state is not None and is_stateful(thing):
        thing.load_state_dict(state)


def fetcher_state(fetcher: Any) -> dict[str, Any] | None:
    """None: neither the dataset nor its iterator has a state."""
    iterator = getattr(fetcher, "dataset_iter", None)
    dataset = None if fetcher.dataset is iterator else state_of(fetcher.dataset)
    rows = state_of(iterator)
    if dataset is None and rows is None:
        return None
    return {"dataset": dataset, "iterator": rows, "ended": getattr(fetcher, "ended", False)}


def restore_fetcher(fetcher: Any, state: dict[str, Any] | None) -> None:
    """After its dataset, which is restored before it is iterated."""
    if state is not None and getattr(fetcher, "dataset_iter", None) is not None:
        restore(fetcher.dataset_iter, state["iterator"])
        fetcher.ended = state["ended"]


def parts_of(sampler: Any) -> list[Any]:
    """Those that may have a state: of a batch sampler also its sampler."""
    return [sampler, getattr(sampler, "sampler", None)]


class Indices:
    """The iterator of a sampler."""

    def __init__(self, sampler: Any, iterator: Any, saved: dict[str, Any] | None = None) -> None:
        self._parts = parts_of(sampler)
        self._iterator = iterator
        self._random: dict[str, Any] | None = None  # when the first index was taken
        self._count = 0
        if saved is not None:
            for part, state in zip(self._parts, saved["parts"], strict=True):
                restore(part, state)
            self._iterator = iter(sampler)
            restore(self._iterator, saved["iterator"])
            self._random = saved["random"]
        self.is_stateful = any(map(is_stateful, [*self._parts, self._iterator]))
        if saved is not None and not self.is_stateful:
            with _random_as_in(self._random, self._generator()):
                for _ in itertools.islice(self, saved["count"]):
                    pass
                first = list(itertools.islice(self._iterator, 1))  # which may be what draws the order
            self._iterator = itertools.chain(first, self._iterator)

    def __iter__(self) -> Iterator[Any]:
        if self._random is None:
            self._random = _random_states(self._generator())
        for index in self._iterator:
            self._count += 1
            yield index

    def _generator(self) -> Any:
        found = (getattr(part, "generator", None) for part in self._parts)
        return next((one for one in found if one is not None), None)

    def mark(self) -> Any:
        """The place of the next index, for `saved`. Without a state the count alone."""
        if not self.is_stateful:
            return self._count
        return self._count, self.parts(), state_of(self._iterator)

    def parts(self) -> list[Any]:
        return [state_of(part) for part in self._parts]

    def saved(self, mark: Any) -> dict[str, Any]:
        count, parts, iterator = (mark, [None, None], None) if isinstance(mark, int) else mark
        states = self._random or _random_states(self._generator())
        return {"count": count, "parts": parts, "iterator": iterator, "random": states}


class Progress:
    """What the consumer of an iterator has got."""

    def __init__(
        self, seed: int, indices: Indices, num_workers: int, generator: Any, state: dict[str, Any] | None
    ) -> None:
        self.seed = seed
        self.indices = indices
        self.num_workers = num_workers
        self.generator = generator
        self.mark = indices.mark()
        self.taken = state["taken"] if state else 0  # answers of workers
        self.yielded = state["yielded"] if state else 0
        self.ended: set[int] = set()  # workers without a further batch, which say so again after a state
        self.workers: list[Any] = list(state["workers"]) if state else [None] * max(num_workers, 1)
        self.is_finished = False

    def state(self) -> dict[str, Any]:
        if self.is_finished:
            generator = _generator_state(self.generator)
            return {"finished": True, "generator": generator, "parts": self.indices.parts()}
        workers = [pickle.loads(one) if isinstance(one, bytes) else one for one in self.workers]
        return {
            "finished": False,
            "num_workers": self.num_workers,
            "seed": self.seed,
            "taken": self.taken,
            "yielded": self.yielded,
            "workers": workers,
            "sampler": self.indices.saved(self.mark),
        }


def _generator_state(generator: Any) -> Any:
    if generator is None:
        return None
    return generator.bit_generator.state if torch is None else generator.get_state()


def begin_after(state: dict[str, Any], sampler: Any, generator: Any) -> None:
    """For the epoch after one that has finished."""
    for part, of_part in zip(parts_of(sampler), state["parts"], strict=True):
        restore(part, of_part)
    _set_generator(generator, state["generator"])


def _set_generator(generator: Any, state: Any) -> None:
    if generator is None or state is None:
        return
    if torch is None:
        generator.bit_generator.state = state
    else:
        generator.set_state(state)


def _random_states(generator: Any) -> dict[str, Any]:
    """Of the global generators, and the sampler's; of types that ``torch.load`` takes."""
    import numpy as np

    name, key, *rest = np.random.get_state(legacy=True)
    return {
        "random": random.getstate(),
        "numpy": (name, key.tolist(), *rest),  # type: ignore[union-attr]
        "torch": None if torch is None else torch.get_rng_state(),
        "generator": _generator_state(generator),
    }


@contextlib.contextmanager
def _random_as_in(states: dict[str, Any] | None, generator: Any) -> Iterator[None]:
    """The global generators go on afterwards from where they are, the sampler's from where it gets to."""
    if states is None:
        yield
        return
    kept = _random_states(None)
    _set_generator(generator, states["generator"])
    _set_random(states)
    try:
        yield
    finally:
        _set_random(kept)


def _set_random(states: dict[str, Any]) -> None:
    import numpy as np

    random.setstate(states["random"])
    np.random.set_state(states["numpy"])
    if torch is not None:
        torch.set_rng_state(states["torch"])
