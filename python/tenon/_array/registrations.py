# SPDX-License-Identifier: Apache-2.0
"""Tells other libraries what an NDArray is, through their registries of types: at once if they are imported,
else when they are. It imports none of them."""

from __future__ import annotations

import importlib.machinery
import sys
import types
import warnings
from collections.abc import Callable, Sequence
from typing import Any

from .. import _core
from .creation import asarray


def _register_in_torch(collate: Any) -> None:
    """So that `torch.utils.data.default_collate` stacks them, as it does NumPy's arrays."""

    def stack(arrays: Sequence[Any], *, collate_fn_map: Any = None) -> Any:
        own = map(asarray, arrays)  # only the first one is an NDArray for certain
        # Views of shared arrays would need a lease.
        in_hand = tuple(array.copy() if array.shared else array for array in own)
        tensors = _core.torch_tensors(in_hand, trust=True)  # they are only read
        return collate.collate(list(tensors), collate_fn_map=collate_fn_map)

    collate.default_collate_fn_map[_core.NDArray] = stack


def _register_in_jax(jax: Any) -> None:
    """So that `jax.jit`, `jax.grad` and `jax.device_put` take them: as trees with one leaf, a `jax.Array`."""
    jax.tree_util.register_pytree_node(
        _core.NDArray, lambda array: ((array.__jax_array__(),), None), lambda _, leaves: leaves[0]
    )


def _register_in_numba(_: Any) -> None:
    from . import numba as numba


_REGISTER: dict[str, Callable[[Any], None]] = {
    "torch.utils.data._utils.collate": _register_in_torch,
    "jax": _register_in_jax,
    "numba": _register_in_numba,
}


def _register(module: types.ModuleType) -> None:
    try:
        _REGISTER.pop(module.__name__)(module)
    except Exception as error:  # another version of it: the import goes on
        warnings.warn(
            f"{module.__name__} does not know tenon.NDArray ({type(error).__name__}: {error}): pass "
            "np.asarray(a) to it",
            RuntimeWarning,
            stacklevel=2,
        )


class _Finder:
    """Finds no module itself. It wraps the loaders of those in `_REGISTER`."""

    def find_spec(
        self, name: str, path: Any = None, target: Any = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name not in _REGISTER:
            return None
        others = (finder for finder in list(sys.meta_path) if finder is not self)
        found = (finder.find_spec(name, path, target) for finder in others)
        spec = next((spec for spec in found if spec is not None), None)
        loader: Any = None if spec is None else spec.loader
        if not hasattr(loader, "exec_module"):
            return spec
        execute = loader.exec_module

        def execute_and_register(module: types.ModuleType) -> None:
            execute(module)
            if module.__name__ in _REGISTER:
                _register(module)

        loader.exec_module = execute_and_register
        return spec


def register() -> None:
    for name in list(_REGISTER):
        module = sys.modules.get(name)
        if module is not None and not getattr(module.__spec__, "_initializing", False):
            _register(module)
    if _REGISTER:
        sys.meta_path.insert(0, _Finder())
