# SPDX-License-Identifier: Apache-2.0
"""Gives NumPy 2 the names that `import mxnet` (1.9.1) takes from it, and that it does not have any more.

Imported before mxnet. Changes nothing of MXNet, and no name that NumPy has."""

from typing import Any

import numpy as np

VALUES: dict[str, Any] = {
    "PZERO": 0.0,
    "NZERO": -0.0,
    "PINF": np.inf,
    "NINF": -np.inf,
    "Inf": np.inf,
    "NaN": np.nan,
    "NAN": np.nan,
}
FUNCTIONS: dict[str, Any] = {
    "alltrue": np.all,
    "in1d": np.isin,
    "msort": lambda a: np.sort(a, axis=0),
    "product": np.prod,
    "round_": np.round,
    "sometrue": np.any,
    "trapz": np.trapezoid,
}
WITHOUT_SUCCESSOR = ("mirr", "npv", "pmt", "ppmt", "pv", "rate")  # MXNet offers them, and does not call them


def refuse(*_: object, **__: object) -> None:
    raise NotImplementedError("NumPy has removed this function")


for name, value in (VALUES | FUNCTIONS | dict.fromkeys(WITHOUT_SUCCESSOR, refuse)).items():
    vars(np).setdefault(name, value)
