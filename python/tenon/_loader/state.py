# SPDX-License-Identifier: Apache-2.0
"""The position of a `DataLoader` in an epoch: how it is saved and restored.

A state holds the states of the random generators twice: at the start of the epoch and now. Samplers, datasets
and their iterators with ``state_dict`` and ``load_state_dict`` are asked for their states. A sampler or an
iterable dataset without them is run again from the start of the epoch, with its random numbers. If its
results show that they differ from those of the first run, an error is raised.
"""

from __future__ import annotations

import contextlib
import copy
import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
import torch.utils.data
from torch.utils.data import BatchSampler
from torch.utils.data.dataloader import _DatasetKind as Kind

from .checksums import faults_of
from .generators import (
    default_generators,
    from_plain,
    global_generators,
    is_generator,
    set_generators,
    states_of,
    to_plain,
)

_UNCHANGING = (int, str, np.generic)  # indices
_HEAD = 64  # elements of a list that show whether it was shuffled


def is_stateful(thing: Any) -> bool:
    """Whether it can save its position. The weights of a module are no position."""
    try:
        if not hasattr(thing, "state_dict") or not hasattr(thing, "load_state_dict"):
            return False
    except Exception:  # of its __getattr__
        return False
    return getattr(type(thing), "state_dict", None) is not torch.nn.Module.state_dict


def state_of(thing: Any) -> Any:
    """A copy, which later steps do not change. None: it has no state."""
    if not is_stateful(thing):
        return None
    try:
        return copy.deepcopy(thing.state_dict())
    except NotImplementedError:
        return None


def restore(thing: Any, state: Any) -> None:
    if state is not None:
        thing.load_state_dict(copy.deepcopy(state))


def fetcher_state(fetcher: Any) -> dict[str, Any]:
    iterator = getattr(fetcher, "dataset_iter", None)
    return {
        "dataset": state_of(fetcher.dataset),
        "iterator": None if iterator is fetcher.dataset else state_of(iterator),
        "ended": getattr(fetcher, "ended", False),
    }


def has_place(state: dict[str, Any]) -> bool:
    """Whether the state of an iterable dataset says where it is."""
    return state["dataset"] is not None or state["iterator"] is not None or state["ended"]


def restore_fetcher(fetcher: Any, state: dict[str, Any]) -> None:
    """After its dataset, which is restored before it is iterated."""
    iterator = getattr(fetcher, "dataset_iter", None)
    restore(iterator, state["dataset"] if iterator is fetcher.dataset else state["iterator"])
    fetcher.ended = state["ended"]
    if fetcher.ended and (state["dataset"] is not None or state["iterator"] is not None):
        _end(iterator, [fetcher.dataset], [state["dataset"]])


def restore_all(things: list[Any], states: list[Any], *, is_at_end: bool) -> None:
    """Those that have states, also at the end of an iteration of the first one."""
    for thing, state in zip(things, states, strict=True):
        restore(thing, state)
    if is_at_end and any(state is not None for state in states):
        _end(iter(things[0]), things, states)


def _end(iterator: Any, things: list[Any], states: list[Any]) -> None:
    """A state at an end is either that of the end, which is taken here, or that of the next iteration."""
    for _ in iterator:
        for thing, state in zip(things, states, strict=True):
            restore(thing, state)
        return


def _generators(loader: Any) -> dict[str, Any]:
    """The global ones, the loader's and those that its samplers hold, each once."""
    found = global_generators() | default_generators()
    held = {"generator": loader.generator}
    for i, part in enumerate(_samplers(loader)):
        held |= {_name_of(part, name, i): value for name, value in _attributes(part).items()}
    for name, value in held.items():
        if is_generator(value) and not any(value is one for one in found.values()):
            found[name] = value
    return found


def _name_of(sampler: Any, attribute: str, number: int) -> str:
    return f"{type(sampler).__name__}.{attribute} ({number})"


def _make_late_generators(loader: Any, states: dict[str, Any]) -> None:
    """Of PyTorch on the CPU, which samplers make in their first epoch where an attribute is None."""
    nbytes = torch.Generator().get_state().numel()
    for i, part in enumerate(_samplers(loader)):
        for name, value in list(_attributes(part).items()):
            state = states.get(_name_of(part, name, i))
            if value is None and isinstance(state, torch.Tensor) and state.numel() == nbytes:
                setattr(part, name, torch.Generator())


def _samplers(loader: Any) -> list[Any]:
    """The sampler of the indices, and those that it wraps."""
    found = [loader._index_sampler]
    for part in found:  # which grows
        for name, value in _attributes(part).items():
            is_sampler = name in ("sampler", "batch_sampler") or isinstance(value, torch.utils.data.Sampler)
            if is_sampler and value is not None and not any(value is one for one in found):
                found.append(value)
    return found


def _with_states(loader: Any) -> list[Any]:
    """A plain batch sampler is between two samples of its sampler when it is between two batches."""
    return _samplers(loader)[: 2 if type(loader._index_sampler) is BatchSampler else 1]


def _attributes(thing: Any) -> dict[str, Any]:
    return getattr(thing, "__dict__", {})


def _numbers(loader: Any) -> list[dict[str, Any]]:
    """What samplers hold that may change from epoch to epoch: numbers, tuples of them, and the heads of lists
    and arrays, which are whole if they are short."""
    found: list[dict[str, Any]] = []
    for part in _samplers(loader):
        found.append({})
        for name, value in _attributes(part).items():
            if _is_number(value):
                found[-1][name] = value
            elif value is not loader.dataset and (head := _head(value)) is not None:
                found[-1][name] = head
    return found


def _changed(loader: Any) -> list[dict[str, Any]]:
    """Numbers since the first epoch. What has not changed, as the rank, comes from the loader's arguments."""
    return [
        {name: value for name, value in part.items() if name not in first or not _same(value, first[name])}
        for part, first in zip(_numbers(loader), _numbers_at_first(loader), strict=False)
    ]


def _numbers_at_first(loader: Any) -> list[dict[str, Any]]:
    if loader._numbers_at_first is None:
        loader._numbers_at_first = _numbers(loader)
    found: list[dict[str, Any]] = loader._numbers_at_first
    return found


def _set_numbers(loader: Any, numbers: list[dict[str, Any]]) -> None:
    for part, then, now in zip(_samplers(loader), numbers, _numbers(loader), strict=False):
        for name, value in then.items():
            if _can_be_set(value) and (name not in now or not _same(value, now[name])):
                _set(part, name, value)


def _has_sampler_states(state: dict[str, Any]) -> bool:
    return any(one is not None for one in state["samplers"])


def own(index: Any) -> Any:
    """A copy of an index, which a sampler or a dataset may change later, and the index itself if it cannot be
    copied."""
    if isinstance(index, _UNCHANGING):
        return index
    if type(index) is list:
        are_plain = all(issubclass(kind, _UNCHANGING) for kind in set(map(type, index)))
        return index.copy() if are_plain else [own(one) for one in index]
    if type(index) is torch.Tensor:
        return index.clone()  # a deep copy would have all of the memory that the tensor is a part of
    try:
        return copy.deepcopy(index)
    except Exception:
        return index


def _is_number(value: Any) -> bool:
    """Whether it is a number, or a short tuple of numbers, which can be set again."""
    kinds = (int, float, str, type(None), np.generic)
    if type(value) is tuple and len(value) <= _HEAD:
        return all(isinstance(one, kinds) for one in value)
    return isinstance(value, kinds)


def _can_be_set(value: Any) -> bool:
    """Whether it is a number, or a whole list of numbers."""
    return _is_number(value) or (type(value) is list and len(value) < _HEAD and all(map(_is_number, value)))


def _set(part: Any, name: str, value: Any) -> None:
    held = getattr(part, name, None)
    if isinstance(held, torch.Tensor) and type(value) is list:
        value = torch.as_tensor(value, dtype=held.dtype, device=held.device)
    with contextlib.suppress(Exception):  # restore_samplers sees what is not set
        if isinstance(held, list | np.ndarray | torch.Tensor):
            held[:] = value
        else:
            setattr(part, name, value)


def _head(value: Any) -> list[Any] | None:
    if isinstance(value, (list, tuple)):
        return list(value[:_HEAD])
    try:
        is_list = isinstance(value, np.ndarray | torch.Tensor) and value.ndim == 1
        return value[:_HEAD].tolist() if is_list else None
    except Exception:  # of a tensor without such elements: sparse, on the meta device
        return None


def _same(one: Any, other: Any) -> bool:
    """Whether they are equal. True if they cannot be compared."""
    try:
        return bool(one == other)
    except Exception:
        try:
            return bool(np.array_equal(one, other))
        except Exception:
            return True


class Progress:
    """What the consumer has got of an epoch. It outlives the iterator and its processes. Threads: one."""

    def __init__(self, loader: Any, former: Progress | None = None) -> None:
        self.generators = _generators(loader)
        self.start = states_of(self.generators)
        self._numbers = _changed(loader)
        self._follows = former is not None  # another epoch
        self._calls = 0  # of the sampler
        self.last: Any = None  # index of the sampler, a copy
        self.yielded = 0
        self.is_finished = False
        self._has_ended = False  # the sampler
        self.sampler_iter: Any = None  # if it has a state
        self._restored: dict[str, Any] | None = None  # until the next call of the sampler

    def next_index(self, batches: Any) -> Any:
        self._restored = None
        try:
            index = next(batches._sampler_iter)
        except StopIteration:
            self._has_ended = True
            raise
        except Exception:
            self._calls += 1
            self.last = None
            raise
        self._calls += 1
        self.last = own(index)
        return index

    def iterate(self, batches: Any, iterator: Any) -> None:
        batches._sampler_iter = iterator
        self.sampler_iter = iterator if is_stateful(iterator) else None

    def state(self, loader: Any) -> dict[str, Any]:
        return {
            "loader": arguments(loader),
            "now": states_of(_generators(loader)),
            "start": self.start,
            "is_finished": self.is_finished,
            "numbers": to_plain(_changed(loader) if self.is_finished else self._numbers),
            "follows": self._follows,
            "calls": self._calls,
            "last": to_plain(self.last),
            "yielded": self.yielded,
            "has_ended": self._has_ended,
            **self._sampler_states(loader),
        }

    def _sampler_states(self, loader: Any) -> dict[str, Any]:
        """A sampler that is not called yet may not say from where it will go on."""
        if self._restored is not None:
            return {name: self._restored[name] for name in ("samplers", "sampler_iter")}
        return {
            "samplers": [state_of(one) for one in _with_states(loader)],
            "sampler_iter": state_of(self.sampler_iter),
        }

    def begins_with_state(self, loader: Any) -> bool:
        """Whether samplers may still have the state of a former epoch, perhaps one that was left, which
        their iteration may discard or go on from. After the first index they do not."""
        return self._follows and self._calls == 0 and any(is_stateful(one) for one in _with_states(loader))

    def restore_samplers(self, loader: Any, state: dict[str, Any]) -> None:
        """Before they are iterated."""
        if _has_sampler_states(state):
            is_at_end = is_before(state) or _is_at_end(loader._index_sampler, state)
            restore_all(_with_states(loader), state["samplers"], is_at_end=is_at_end)
            return
        numbers = from_plain(state["numbers"])
        for part, then, now in zip(_samplers(loader), numbers, _numbers(loader), strict=False):
            for name, value in then.items():
                if not _is_number(value) and not _same(value, now.get(name)):
                    raise cannot_go_on(
                        f"{_named(part)}.{name} was changed in an earlier epoch. The state does not hold it. "
                        f"Give {_named(part)} state_dict and load_state_dict"
                    )

    def restore_counts(self, state: dict[str, Any]) -> None:
        self._follows, self._calls = state["follows"], state["calls"]
        self.last, self.yielded = from_plain(state["last"]), state["yielded"]
        self._has_ended = state["has_ended"]

    def run_sampler(self, loader: Any, batches: Any, state: dict[str, Any]) -> None:
        """Takes the iterator of a sampler, made with the generators of the start, to its place."""
        self.restore_counts(state)
        if state["sampler_iter"] is not None or _has_sampler_states(state):
            restore(batches._sampler_iter, state["sampler_iter"])
            self._restored = state
            if _is_at_end(batches._index_sampler, state):
                self.iterate(batches, iter(()))
            return
        name = _named(batches._index_sampler)
        if type(batches._index_sampler) is BatchSampler:
            name = _named(batches._index_sampler.sampler)
        first = last = None
        for call in range(self._calls):
            try:
                last = next(batches._sampler_iter)
            except StopIteration:
                raise cannot_go_on(
                    f"{name} ended after {call} of {self._calls} indices when it was run again. The sampler "
                    "or the data are not those of the state"
                ) from None
            except Exception:  # it was raised in its place then
                last = None
            first = first or states_of(self.generators)
        if first is not None:
            self.check_draws(first, state, name)
        if not _same(last, self.last):
            raise cannot_go_on(
                f"{name} gave other indices when it was run again: {last} where the state has {self.last}. "
                "Give it state_dict and load_state_dict, or set it as it was before the loader is iterated"
            )
        if self._has_ended:
            self._run_to_end(loader, batches, state, name)

    def _run_to_end(self, loader: Any, batches: Any, state: dict[str, Any], name: str) -> None:
        """What a sampler draws at its end is in the generators of the state. What it changes is not."""
        numbers, generators = _numbers(loader), states_of(self.generators)
        for _ in batches._sampler_iter:
            raise cannot_go_on(
                f"{name} gave more than {self._calls} indices when it was run again. The sampler or the data "
                "are not those of the state"
            )
        if not _same(numbers, _numbers(loader)):
            self.check_draws(generators, state, name)

    def check_draws(self, start: dict[str, Any], state: dict[str, Any], name: str) -> None:
        """Raises if what was run again, and other code, both drew from a generator: then it had other numbers
        than in the first run."""
        for generator, after in states_of(self.generators).items():
            then = state["now"].get(generator)
            if not _same(start.get(generator), after) and not _same(after, then):
                raise cannot_go_on(
                    f"{name} and other code drew from the generator {generator} in turn, so {name} cannot be "
                    "run again with the same random numbers. Give it state_dict and load_state_dict, or a "
                    "generator of its own"
                )

    @contextlib.contextmanager
    def generators_as_at_start(self, state: dict[str, Any]) -> Iterator[None]:
        now = states_of(self.generators)
        set_generators(self.generators, state["start"])
        try:
            yield
        finally:
            set_generators(self.generators, now)
            self.start = state["start"]


def cannot_go_on(reason: str) -> ValueError:
    return ValueError(f"the loader cannot go on from the state: {reason}")


def _named(thing: Any) -> str:
    return type(thing).__name__


def _is_at_end(sampler: Any, state: dict[str, Any]) -> bool:
    """Whether the sampler has ended. A smaller batch is the last one."""
    is_known = type(sampler) is BatchSampler and state["last"] is not None
    return bool(state["has_ended"] or (is_known and len(state["last"]) < sampler.batch_size))


def is_before(state: dict[str, Any]) -> bool:
    """Whether what is iterated in the epoch may still have the state of the end of the one before."""
    return bool(state["follows"]) and state["calls"] == 0


def arguments(loader: Any) -> dict[str, Any]:
    """The arguments on which the meaning of a state depends."""
    return {
        "num_workers": loader.num_workers,
        "batch_size": loader.batch_size,
        "drop_last": bool(loader.drop_last),
        "persistent_workers": loader.persistent_workers,
        "iterable": loader._dataset_kind == Kind.Iterable,
    }


def new_state(loader: Any) -> dict[str, Any]:
    """Before the first epoch."""
    return {
        "loader": arguments(loader),
        "now": states_of(_generators(loader)),
        "numbers": to_plain(_changed(loader)),
        "samplers": [],
    }


def load(loader: Any, state: dict[str, Any]) -> None:
    """Checks a state, and sets the generators and the numbers of samplers to it. What the program sets after
    that, as the epoch of a `DistributedSampler`, holds."""
    if not {"loader", "now", "checksums"} <= state.keys():
        raise ValueError(f"the state has the keys {list(state)}: it is not of a tenon.DataLoader")
    if faults := faults_of(state):
        raise ValueError(f"the state is damaged: {'; '.join(faults)}. Load what state_dict() has returned")
    for name, own in arguments(loader).items():
        then = state["loader"].get(name)
        if then != own:
            raise ValueError(f"the state is of a loader with {name}={then}, but this one has {name}={own}")
    needed = state["start"] if _is_inside(state) else state["now"]
    _make_late_generators(loader, needed)
    generators = _generators(loader)
    for name in needed:
        if name not in generators:
            raise ValueError(
                f"the state has the generator {name}, and this loader has none of this name. Make the loader "
                "and its samplers as before, with the same torch.set_default_device; a sampler makes its "
                "generator in __init__, or has the attribute None until then"
            )
    set_generators(generators, state["now"])
    for numbers in (_numbers_at_first(loader), from_plain(state["numbers"])):
        own_states = itertools.chain(state["samplers"], itertools.repeat(None))
        _set_numbers(loader, [one if own is None else {} for one, own in zip(numbers, own_states)])


def _is_inside(state: dict[str, Any]) -> bool:
    """Whether the epoch has begun and has not ended. Then the sampler is run again."""
    return "start" in state and not state["is_finished"]


def begin(loader: Any, make: Any, state: dict[str, Any] | None) -> Any:
    """An iterator of a new epoch, or one that goes on from a state."""
    progress = make.make_progress(loader, loader._progress)
    if state is None or "start" not in state:
        batches = make(loader, progress)
    else:
        numbers = _numbers(loader)
        is_over = state["is_finished"] and not loader.persistent_workers
        with progress.generators_as_at_start(state):
            progress.restore_samplers(loader, state)
            progress.restore_dataset(loader, state)
            batches = None if is_over else make(loader, progress, state)
            if state["is_finished"] and batches is not None:
                batches.go_to_end()
                _set_numbers(loader, numbers)  # of samplers that were iterated
                progress.restore_samplers(loader, state)
        if batches is None:
            batches = make(loader, make.make_progress(loader, progress))
        elif state["is_finished"]:
            batches._reset(loader)
    loader._progress = batches.progress
    return batches
