# SPDX-License-Identifier: Apache-2.0
"""The functions and classes of the package that the extension calls. The extension imports no module of the
package: it gets them here, once, when the package is imported."""

from __future__ import annotations

import functools
import importlib
import os
from collections.abc import Iterable
from typing import Any

from . import _core, _errors
from ._array.fields import write_field
from ._array.share import check_on_owner_died
from ._sync import (
    bodies,
    copies,
    counts,
    endings,
    function,
    holders,
    lease,
    ops,
    pushes,
    results,
    tasks,
)


def _imported_later(module: str, name: str) -> Any:
    """A function of a module that the first call imports: it needs NumPy, or is seldom called."""
    loaded = functools.cache(lambda: importlib.import_module(module, __package__))
    return lambda *arguments: getattr(loaded(), name)(*arguments)


_core.set_callbacks(
    {
        "TenonError": _errors.TenonError,
        "LeaseConflict": _errors.LeaseConflict,
        "LeaseEscaped": _errors.LeaseEscaped,
        "DeadlockError": _errors.DeadlockError,
        "MovedError": _errors.MovedError,
        "OpError": _errors.OpError,
        "OwnerDied": _errors.OwnerDied,
        "MessageGone": _errors.MessageGone,
        "copied_error": _errors.copied,
        "op_error": ops.op_error,
        "array_repr": _imported_later("._array.text", "array_repr"),
        "array_html": _imported_later("._array.text", "array_html"),
        "array_format": _imported_later("._array.text", "array_format"),
        "reduce_array": _imported_later("._array.pickle", "reduce_array"),
        "array_ctypes": _imported_later("._array.ctypes", "ArrayCTypes"),
        "array_function": _imported_later("._array.functions", "call"),
        "to_jax": _imported_later("._array.jax", "to_jax"),
        "as_jax": _imported_later("._array.jax", "as_jax"),
        "mxnet_context": _imported_later("._array.mxnet", "context_of"),
        "as_in_mxnet_context": _imported_later("._array.mxnet", "in_context"),
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
        "check_outlived": lease.check_outlived,
        "warn_of_outlived": lease.warn_of_outlived,
        "release_retained": endings.release_retained,
        "wait_for_searches": endings.wait_for_searches,
        "certainty_of": counts.certainty_of,
        "is_one_name": counts.is_one_name,
        "call_body": bodies.call_body,
        "check_result": results.check_result,
        "where_views_are_kept": lease.where_views_are_kept,
        "end_failed_body": bodies.end_failed_body,
        "describe_outlived": bodies.describe_outlived,
        "report_unseen": ops.report_unseen,
        "op": ops.Op,
        "c_function": function.CFunction,
        "iterable": Iterable,
        "fill": copies.fill,
        "copy": copies.copy,
        "cast": copies.cast,
        "policy_of": pushes.policy_of,
        "refuse_generators": pushes.refuse_unrun,
        "promise_of": pushes.promise_of,
        "push_again": pushes.push_again,
        "drop_views": _imported_later("._sync.views", "drop_views"),
        "find_views": _imported_later("._sync.views", "find_views"),
        "report": tasks.report,
        "dumps_parts": _imported_later("._ipc.pool", "dumps_parts"),
        "loads_parts": _imported_later("._ipc.packing", "loads_parts"),
        "note_message": _imported_later("._array.passing", "note_message"),
    }
)

_core.set_package_folder(os.path.join(os.path.dirname(__file__), ""))  # so that sites are the user's
