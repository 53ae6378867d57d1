# SPDX-License-Identifier: Apache-2.0
"""Generators of random numbers, and values in a form that ``torch.load`` takes."""

from __future__ import annotations

import copy
import random
from typing import Any

import numpy as np
import torch


def to_plain(value: Any) -> Any:
    """A copy of types that ``torch.load`` takes, which those of NumPy are not."""
    if isinstance(value, (np.ndarray, np.generic)) and value.dtype.kind in "biufc":
        return {"numpy": value.dtype.str, "values": value.tolist()}
    if type(value) is dict:
        return {key: to_plain(one) for key, one in value.items()}
    if type(value) in (list, tuple):
        return type(value)(to_plain(one) for one in value)
    return copy.deepcopy(value)


def from_plain(value: Any) -> Any:
    if type(value) is dict:
        if value.keys() == {"numpy", "values"}:
            return np.array(value["values"], value["numpy"])[()]
        return {key: from_plain(one) for key, one in value.items()}
    if type(value) in (list, tuple):
        return type(value)(from_plain(one) for one in value)
    return copy.deepcopy(value)


def global_generators() -> dict[str, Any]:
    return {"random": random, "numpy.random": np.random, "torch": torch.default_generator}


def default_device() -> Any:
    """That of `torch.set_default_device`."""
    return torch.empty(0).device


def default_generators() -> dict[str, Any]:
    """That of the default device, from which PyTorch's samplers draw their seeds, if it is not the CPU."""
    device = default_device()
    if device.type != "cuda":
        return {}
    return {f"torch.{device.type}": torch.cuda.default_generators[device.index]}


def is_generator(value: Any) -> bool:
    """With a state."""
    kinds = (random.Random, np.random.Generator, np.random.RandomState, torch.Generator)
    return isinstance(value, kinds) and not isinstance(value, random.SystemRandom)


def states_of(generators: dict[str, Any]) -> dict[str, Any]:
    """Of types that ``torch.load`` takes."""
    return {name: _generator_state(one) for name, one in generators.items()}


def _generator_state(generator: Any) -> Any:
    if hasattr(generator, "getstate"):
        return generator.getstate()
    if isinstance(generator, torch.Generator):
        return generator.get_state()
    if hasattr(generator, "get_state"):
        return to_plain(generator.get_state(legacy=False))
    return to_plain(generator.bit_generator.state)


def set_generators(generators: dict[str, Any], states: dict[str, Any]) -> None:
    for name in generators.keys() & states.keys():
        generator, state = generators[name], states[name]
        if hasattr(generator, "setstate"):
            version, numbers, gauss = state
            generator.setstate((version, tuple(numbers), gauss))
        elif isinstance(generator, torch.Generator):
            generator.set_state(state.cpu())  # torch.load may have put it on a device
        elif hasattr(generator, "set_state"):
            generator.set_state(from_plain(state))
        else:
            generator.bit_generator.state = from_plain(state)
