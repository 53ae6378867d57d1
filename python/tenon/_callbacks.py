# SPDX-License-Identifier: Apache-2.0
"""What the extension calls in Python. It imports nothing itself: it is given these functions and classes
once, when the package is imported. (Those that need NumPy, or are seldom needed, import their module when
they are called.)"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from . import _core, _errors
from ._array.fields import write_field
from ._array.share import check_on_owner_died
from ._sync import bodies, endings, holders, lease, ops

if TYPE_CHECKING:
    from ._array.ctypes import ArrayCTypes


def _array_repr(array: _core.NDArray) -> str:
    from ._array.text import array_repr

    return array_repr(array)


def _array_format(array: _core.NDArray, spec: str) -> str:
    from ._array.text import array_format

    return array_format(array, spec)


def _reduce_array(array: _core.NDArray, protocol: int) -> Any:
    from ._array.pickle import reduce_array

    return reduce_array(array, protocol)


def _array_ctypes(array: _core.NDArray) -> ArrayCTypes:
    from ._array.ctypes import ArrayCTypes

    return ArrayCTypes(array)


def _array_function(function: Any, types: Any, arguments: Any, keywords: Any) -> Any:
    from ._array.functions import call

    return call(function, types, arguments, keywords)


def _to_jax(array: _core.NDArray) -> Any:
    from ._array.jax import to_jax

    return to_jax(array)


def _drop_views(array: _core.NDArray) -> list[holders.Holder]:
    from ._sync.views import drop_views

    return drop_views(array)


def _find_views(begin: int, end: int, is_write: bool, thread: int) -> str:
    from ._sync.views import find_views

    return find_views(begin, end, is_write, thread)


_core.set_callbacks(
    {
        "TenonError": _errors.TenonError,
        "LeaseConflict": _errors.LeaseConflict,
        "LeaseEscaped": _errors.LeaseEscaped,
        "DeadlockError": _errors.DeadlockError,
        "MovedError": _errors.MovedError,
        "OpError": _errors.OpError,
        "OwnerDied": _errors.OwnerDied,
        "copied_error": _errors.copied,
        "op_error": ops.op_error,
        "array_repr": _array_repr,
        "array_format": _array_format,
        "reduce_array": _reduce_array,
        "array_ctypes": _array_ctypes,
        "array_function": _array_function,
        "to_jax": _to_jax,
        "write_field": write_field,
        "lease": lease.Lease,
        "leases": holders.leases,
        "enter_block": lease.enter_block,
        "enter_later": lease.enter_block_later,
        "nothing_later": lease.nothing_later,
        "check_on_died": check_on_owner_died,
        "give_back": lease.give_back,
        "text_of": _errors.text_of,
        "end_views": endings.end_views,
        "heed_survivors": lease.heed_survivors,
        "settle": endings.settle,
        "wait_for_searches": endings.wait_for_searches,
        "end_failed_body": bodies.end_failed_body,
        "describe_escape": bodies.describe_escape,
        "report_unseen": ops.report_unseen,
        "drop_views": _drop_views,
        "find_views": _find_views,
    }
)

_core.set_package_folder(os.path.join(os.path.dirname(__file__), ""))  # so that sites are the user's
