#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks the imports of the Python package and of the extension: they go in one direction and have no cycle.

    check_imports.py [ROOT]

Imports inside of functions and under `if TYPE_CHECKING:` count as those of the module. The extension imports
no module of the package by its name (python/src/callbacks.h). It also finds cycles of C++ includes.
check_includes.py checks the direction between folders."""

import ast
import re
import sys
from pathlib import Path

# Package of python/tenon -> packages that it may import, besides itself and the modules that are in no
# package.
SEES = {
    "_array": set(),
    "_sync": {"_array"},
    "_ipc": {"_array", "_sync"},
    "_data": {"_array", "_sync", "_ipc"},
    "_loader": {"_array", "_sync", "_ipc", "_data"},
    "_tools": {"_array", "_sync", "_ipc", "_data"},
    "demo": {"_array", "_sync", "_ipc", "_data", "_loader", "_tools"},
}

# Modules in no package that packages may import. The others (__init__, __main__, _callbacks, io) may import
# all.
BASE = {"_answers", "_core", "_errors", "_signatures", "_typing", "_values"}

# Packages that import `tenon` itself, as users do.
USERS = {"demo"}

BY_NAME = re.compile(r'import_\s*\(\s*"tenon[."]|PyImport_ImportModule\w*\s*\(\s*"tenon[."]')
INCLUDE = re.compile(r'^\s*#\s*include\s*"([^"]+)"', re.M)
SOURCES = {".h", ".hpp", ".inc", ".c", ".cc"}


def module_name(path, package):
    parts = ("tenon", *path.relative_to(package).with_suffix("").parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imported(node, name, is_package, modules):
    """The modules of the package that a statement imports, without the packages that lead there."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names if alias.name in modules]
    base = node.module or ""
    if node.level:
        parts = name.split(".")
        parts = parts[: len(parts) - node.level + (1 if is_package else 0)]
        base = ".".join([*parts, *([node.module] if node.module else [])])
    if base not in modules:
        return []
    found = [f"{base}.{alias.name}" for alias in node.names if f"{base}.{alias.name}" in modules]
    return found if len(found) == len(node.names) else [*found, base]


def graph_of_package(package):
    """Module -> modules that it imports, with the line: {name: {name: line}}; and the path of each."""
    paths = {module_name(path, package): path for path in sorted(package.rglob("*.py"))}
    if (package / "_core.pyi").exists():
        paths["tenon._core"] = package / "_core.pyi"
    graph = {}
    for name, path in paths.items():
        edges = graph.setdefault(name, {})
        if path.suffix == ".pyi":
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import | ast.ImportFrom):
                for goal in imported(node, name, path.name == "__init__.py", paths):
                    if goal != name:
                        edges.setdefault(goal, node.lineno)
    return graph, paths


def circles(graph):
    """Sets of nodes that lead back to themselves (Tarjan's components of more than one node)."""
    order, low, stack, found = {}, {}, [], []

    def visit(node):
        order[node] = low[node] = len(order)
        stack.append(node)
        for goal in graph.get(node, ()):
            if goal not in order:
                visit(goal)
                low[node] = min(low[node], low[goal])
            elif goal in stack:
                low[node] = min(low[node], order[goal])
        if low[node] == order[node]:
            at = stack.index(node)
            part = stack[at:]
            del stack[at:]
            if len(part) > 1:
                found.append(sorted(part))

    for node in graph:
        if node not in order:
            visit(node)
    return sorted(found)


def is_seen(here, goal):
    """Whether a module of the package `here` may import the module."""
    parts = goal.split(".")
    if len(parts) == 1:
        return here in USERS
    if parts[1] in SEES:
        return parts[1] == here or parts[1] in SEES[here]
    return parts[1] in BASE or here in USERS


def python_problems(root):
    package = root / "python/tenon"
    graph, paths = graph_of_package(package)
    for name, goals in graph.items():
        parts = paths[name].relative_to(package).parts
        here = parts[0]
        if len(parts) == 1:
            if Path(here).stem not in BASE:
                continue
            for goal, line in goals.items():
                if goal.split(".")[1:2] and goal.split(".")[1] not in BASE:
                    yield f"{paths[name].relative_to(root)}:{line} must not import {goal}: packages import it"
        elif here not in SEES:
            yield f"{paths[name].relative_to(root)} lies in {here}, which is no package of check_imports.py"
        else:
            for goal, line in goals.items():
                if not is_seen(here, goal):
                    yield f"{paths[name].relative_to(root)}:{line} must not import {goal}: {here} sees " + (
                        ", ".join(sorted(SEES[here] | BASE))
                    )
    for circle in circles(graph):
        yield f"python/tenon: a circle of imports: {', '.join(circle)}"


def include_circles(root):
    graph = {}
    for folder in ("src", "python/src"):
        base = root / folder
        for path in sorted(base.rglob("*")):
            if path.suffix in SOURCES:
                names = INCLUDE.findall(path.read_text())
                graph[str(path)] = [str(base / name) for name in names if (base / name).is_file()]
    include = root / "include"
    for path in sorted(include.rglob("*")):
        if path.suffix in SOURCES:
            graph[str(path)] = [str(include / name) for name in INCLUDE.findall(path.read_text())]
    for circle in circles(graph):
        names = ", ".join(str(Path(path).relative_to(root)) for path in circle)
        yield f"a circle of includes: {names}"


def extension_problems(root):
    for path in sorted((root / "python/src").rglob("*")):
        if path.suffix in SOURCES:
            for line, text in enumerate(path.read_text().splitlines(), 1):
                if BY_NAME.search(text):
                    where = path.relative_to(root)
                    yield f"{where}:{line} imports a module of the package by its name: use callbacks.h"


def main(root=Path(__file__).parent.parent):
    found = [*python_problems(Path(root)), *extension_problems(Path(root)), *include_circles(Path(root))]
    print("\n".join(found) or "imports go one way")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
