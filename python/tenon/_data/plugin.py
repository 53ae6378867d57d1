# SPDX-License-Identifier: Apache-2.0
"""Plug-ins: `plugin`."""

from __future__ import annotations

import os
from typing import Any

from .._core import NativePlugin, Schema
from .._values import text_for_c
from .schema import schema


class Plugin:
    """A generator from a shared library with the table of ``tenon/plugin.h``, made by `tenon.plugin`.

    Attributes
    ----------
    path, name : str
    threadsafe : bool
        Whether several states of the plug-in may be used at the same time; otherwise one thread fills.
    config : dict
    schema : Schema or None
        The fields that the plug-in describes; None if it describes none.
    """

    def __init__(self, native: NativePlugin, path: str, config: dict[str, Any]) -> None:
        self._native = native
        self.path = path
        self.config = config
        self.name: str = native.name or os.path.basename(path)
        self.threadsafe: bool = native.threadsafe
        self.schema: Schema | None = _schema_of(native)

    def __repr__(self) -> str:
        config = "".join(f", {key}={value!r}" for key, value in self.config.items())
        return f"<tenon.plugin {self.path!r}{', threadsafe' if self.threadsafe else ''}{config}>"


def plugin(path: str | os.PathLike[str], /, **config: Any) -> Plugin:
    """Loads a generator from a shared library that was written with ``tenon/plugin.h`` or ``plugin.hpp``.

    The call loads the library and reads its fields. Each worker of a feed opens its own state before its
    first batch.

    Parameters
    ----------
    path
        The library, which is never unloaded.
    **config
        The configuration of the plug-in, passed as JSON: numbers, strings, paths, lists, dicts, None.

    Raises
    ------
    FileNotFoundError
        The library does not exist, or has no table.
    ValueError, TypeError
        The table has another ABI or missing functions; the plug-in describes invalid fields; a value of
        ``config`` cannot be converted to JSON.
    OpError
        The plug-in could not be opened; with the text of the plug-in.
    """
    import json

    library = text_for_c(os.fsdecode(path), "path")
    text = json.dumps(config, ensure_ascii=False, allow_nan=False, default=_plain)
    native = NativePlugin(library, text)
    return Plugin(native, library, config)


def _schema_of(native: NativePlugin) -> Schema | None:
    fields = native.fields
    return None if fields is None else schema(**fields)


def _plain(value: Any) -> Any:
    """The JSON value for a path or a NumPy scalar."""
    if isinstance(value, os.PathLike):
        return os.fsdecode(value)
    if getattr(value, "shape", None) == () and hasattr(value, "item"):
        return value.item()
    raise TypeError(f"a plug-in cannot be told {type(value).__name__}: its configuration is JSON")
