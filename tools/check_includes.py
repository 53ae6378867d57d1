#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks the direction of includes: which layer may include which, and that there is no cycle.

    check_includes.py [ROOT]

Tests (x_test.cc and what they share, x_testing.h) may include anything; nothing includes them.
"""

import re
import sys
from pathlib import Path

import check_imports

# Folders of src, from the bottom up: each may include those before it, and the public headers.
LAYERS = ("base", "device", "sync", "exec", "memory", "array", "ipc", "data", "trace", "capi")
SEES = {layer: set(LAYERS[:i]) for i, layer in enumerate(LAYERS)}
SEES["trace"] = {"base"}

# Public header -> public headers that it may include. Everything else it needs is standard.
PUBLIC = {
    "version.h": set(),
    "dlpack.h": set(),
    "request.h": set(),
    "plugin.h": {"request.h", "version.h"},
    "plugin.hpp": {"plugin.h"},
    "core.h": {"version.h"},
    "device.h": {"core.h"},
    "feed.h": {"core.h", "request.h"},
    "share.h": {"core.h", "feed.h"},
    "trace.h": {"core.h"},
    "pool.h": {"core.h"},
    "tenon.h": {"core.h", "device.h", "feed.h", "pool.h", "share.h", "trace.h"},
    "tenon.hpp": {"version.h", "tenon.h", "dlpack.h"},
    "share.hpp": {"version.h", "tenon.h", "dlpack.h", "tenon.hpp"},
    "field.hpp": {"tenon.h", "tenon.hpp"},
    "arena.hpp": {"tenon.h", "tenon.hpp", "engine.hpp", "field.hpp", "share.hpp"},
    "channel.hpp": {"tenon.h", "tenon.hpp", "engine.hpp", "field.hpp", "share.hpp"},
    "pool.hpp": {"tenon.h", "tenon.hpp", "engine.hpp"},
    "feed.hpp": {"version.h", "tenon.h", "dlpack.h", "tenon.hpp", "field.hpp"},
    "engine.hpp": {"version.h", "tenon.h", "dlpack.h", "tenon.hpp"},
    "trace.hpp": {"version.h", "tenon.h", "dlpack.h", "tenon.hpp"},
}

# Only the bindings may include headers of Python.
PYTHON_ONLY = re.compile(r"Python\.h|nanobind/|numpy/")

INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]', re.M)
SOURCES = {".h", ".hpp", ".inc", ".c", ".cc"}


def is_test(path):
    return path.stem.endswith(("_test", "_testing"))


def includes(path):
    """Pairs (is it quoted, name) of a file."""
    return [(mark == '"', name) for mark, name in INCLUDE.findall(path.read_text())]


def sources(folder):
    return sorted(path for path in folder.rglob("*") if path.suffix in SOURCES)


def problems(root):
    for header in sources(root / "include/tenon"):
        for quoted, name in includes(header):
            if header.name not in PUBLIC:
                yield header, f"is a public header that {Path(__file__).name} does not know"
            elif name.startswith("tenon/") and name[6:] not in PUBLIC[header.name]:
                yield header, f"must not include {name}"
            elif PYTHON_ONLY.match(name) or (quoted and not name.startswith("tenon/")):
                yield header, f"may include only standard headers and tenon/, not {name}"
    for path in sources(root / "src"):
        layer = path.relative_to(root / "src").parts[0]
        if layer not in SEES:
            yield path, f"lies in {layer}, which is no layer"
        elif not is_test(path):
            yield from layer_problems(root, path, layer)
    for path in sources(root / "python/src"):
        for quoted, name in includes(path):
            if quoted and not (name.startswith("tenon/") or (path.parent / name).is_file()):
                yield path, f"may include only tenon/ and its own files, not {name}"


def layer_problems(root, path, layer):
    for quoted, name in includes(path):
        seen = name.split("/")[0]
        if PYTHON_ONLY.match(name):
            yield path, f"must not include {name}: only python/src sees Python"
        elif not quoted or seen == "tenon":
            continue
        elif not (root / "src" / name).is_file():
            yield path, f"includes {name}, which is no file under src (write the path from src)"
        elif seen != layer and seen not in SEES[layer]:
            seen_layers = [other for other in LAYERS if other in SEES[layer]]
            yield path, f"must not include {name}: {layer} sees {', '.join(seen_layers) or 'nothing'}"
        elif is_test(Path(name)):
            yield path, f"must not include {name}: it belongs to tests"


def main(root=Path(__file__).parent.parent):
    found = [f"{path.relative_to(root)} {text}" for path, text in problems(Path(root))]
    found += check_imports.include_circles(Path(root))
    print("\n".join(found) or "include direction holds")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
