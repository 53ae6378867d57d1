# SPDX-License-Identifier: Apache-2.0
"""What a feed needs to continue at a saved position."""

from __future__ import annotations

import reprlib
import zlib
from collections.abc import Mapping
from typing import Any

from .._core import NativeFeed, Schema
from .._sync.function import CFunction
from .._values import count
from .plugin import Plugin
from .workers import HOW_TO_RESUME

_STATE = "a state is what state_dict() of a feed has returned, a dict with 'epoch' and 'next'"


def _numbers_of(state: Any) -> tuple[int, int]:
    """The epoch and the next batch of a state. Raises TypeError or ValueError for what is no state."""
    if not isinstance(state, Mapping):
        raise TypeError(f"state is {reprlib.repr(state)}: {_STATE}")
    needed = ["epoch", "next"] + (["worker", "ranks"] if "states" in state else [])
    for key in needed:
        if key not in state:
            raise ValueError(f"state has no {key!r}, only the keys {list(state)}: {_STATE}")
    return count(state["epoch"], "epoch of the state"), count(state["next"], "next of the state")


def identity(schema: Schema, batches: int | None, seed: int, shuffle: bool) -> dict[str, Any]:
    """What a state holds about the feed that it is of."""
    fields = [(name, dtype.name, *shape) for name, dtype, shape in schema.fields]
    own = {"seed": seed, "batches": batches, "schema": f"{zlib.crc32(repr(fields).encode()):08x}"}
    return own | {"shuffle": seed} if shuffle else own


def _order_of(state: Mapping[str, Any]) -> str:
    return (
        f"the order of shuffle and seed {state['shuffle']}"
        if "shuffle" in state
        else "the order of the index"
    )


def _check_identity(state: Mapping[str, Any], own: dict[str, Any]) -> None:
    """Raises ValueError for a state of a feed that delivers other batches. What it does not have is not
    checked, except the order."""
    if state.get("shuffle") != own.get("shuffle"):
        raise ValueError(
            f"the state has {_order_of(state)}, and this feed has another order, {_order_of(own)}"
        )
    for key, text in (("seed", "seed"), ("batches", "batches"), ("schema", "a schema with the checksum")):
        if key in state and state[key] != own[key]:
            raise ValueError(
                f"the state is of a feed with {text} {state[key]!r}, and this feed has {own[key]!r}: it "
                "would deliver other batches"
            )


def check_state(state: Any, own: dict[str, Any]) -> tuple[int, int]:
    """The epoch and the next batch of a state of a feed with this identity. Raises TypeError or ValueError
    for other objects."""
    epoch, place = _numbers_of(state)
    _check_identity(state, own)
    if own["batches"] is not None and place > own["batches"]:
        raise ValueError(f"state is {state}: an epoch has {own['batches']} batches")
    return epoch, place


def check_can_resume(native: NativeFeed, generator: Any, state: dict[str, Any], is_start: bool) -> None:
    """For a position without states. A Python function is checked at each batch that it fills."""
    where = f"batch {state['next']} of epoch {state['epoch']}"
    if native.has_state:
        if is_start:
            return  # each worker restores its first state
        raise ValueError(
            f"the feed cannot continue at {where}: its generator has a state, and the position has no "
            "states. Load what state_dict() of a feed with this generator has returned"
        )
    if "states" in state:
        raise ValueError(
            f"the feed cannot continue at {where}: the position has states, and this feed's "
            "generator has none"
        )
    if state.get("indexed") is False:
        raise ValueError(
            f"the feed cannot continue at {where}: its generator has filled batches without batch.index and "
            f"batch.seed, so they depend on those before. {HOW_TO_RESUME}"
        )
    if native.is_indexed:
        return
    if isinstance(generator, CFunction):
        raise ValueError(
            f"the feed cannot continue at {where}: {generator.name!r} has no parameter index or seed, so a "
            "batch may depend on those before. Give it one of them, and compute the batch from it"
        )
    if isinstance(generator, Plugin):
        raise ValueError(
            f"the feed cannot continue at {where}: plug-in {generator.name!r} does not say whether a batch "
            "depends on those before. If it computes each batch from index or seed, set "
            "TENON_PLUGIN_IS_INDEXED in the flags of its table (is_indexed = true in C++); else give it "
            "save and restore"
        )


def resume(native: NativeFeed, state: dict[str, Any], ranks: tuple[int, int]) -> None:
    """Continues at a position with states."""
    for key in ("states", "ranks"):
        if not isinstance(state[key], (list, tuple)):
            raise TypeError(f"{key} of the state is {reprlib.repr(state[key])}: it must be a list")
    states = list(state["states"])
    if len(state["ranks"]) != 2:
        raise ValueError(f"ranks of the state is {state['ranks']!r}: it must be a rank and a world_size")
    if tuple(state["ranks"]) != ranks:
        raise ValueError(
            f"the state is of rank {state['ranks'][0]} of {state['ranks'][1]}, and this feed is "
            f"rank {ranks[0]} of {ranks[1]}: a generator that has a state continues only with "
            "the same rank and world_size"
        )
    workers = max(native.statistics()["workers"], 1)  # 0: the consumer is the one
    if len(states) != workers:
        raise ValueError(
            f"the state is of {len(states)} workers, and this feed has {workers}: each worker continues with "
            f"its own state, so make the feed with workers={len(states)}"
        )
    for one in states:
        if one is not None and not isinstance(one, bytes):
            raise TypeError(f"states of the state has {type(one).__name__}: it must be bytes or None")
    worker = count(state["worker"], "worker of the state", 0, workers - 1)
    native.resume(state["epoch"], state["next"], worker, states)
