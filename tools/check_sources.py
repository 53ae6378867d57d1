#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks the form of source files: licence line, line length, file length, plain ASCII. Also that a list of
the build contains each C++ file, so that no test is forgotten, and that one file counts references.

    check_sources.py [ROOT]
"""

import re
import sys
from pathlib import Path

FOLDERS = ("include", "src", "python", "tests", "bench", "examples", "tools", "cmake", "docs")
CODE = {".h", ".hpp", ".inc", ".c", ".cc", ".py", ".pyi", ".cmake", ".txt", ".sh"}
COMPILED = {".c", ".cc"}
LONGEST_LINE = 110
LONGEST_FILE = 800
GENERATED = {"_core.pyi"}  # by tools/update_stub.py
COUNTS = re.compile(r"\b(?:Py_REFCNT|getrefcount|ob_refcnt)\b|PyUnstable_Object_IsUnique")
COUNTING = {"python/src/counts.h", "python/tenon/_sync/counts.py"}  # docs/dev/counting.md
BUILT_BY_PYTEST = {("tests", "python"), ("tests", "native")}


def file_problems(text):
    lines = text.split("\n")
    if not any("SPDX-License-Identifier: Apache-2.0" in line for line in lines[:3]):
        yield 1, "no SPDX line at the head"
    if len(lines) > LONGEST_FILE:
        yield len(lines), f"{len(lines)} lines: split the file (at most {LONGEST_FILE})"
    for number, line in enumerate(lines, 1):
        if len(line) > LONGEST_LINE:
            yield number, f"{len(line)} columns (at most {LONGEST_LINE})"
        if not line.isascii():
            yield number, f"not ASCII: {re.sub('[ -~]', '', line)!r}"
        if line != line.rstrip():
            yield number, "blanks at the end"


def problems(root):
    files = [path for folder in FOLDERS for path in sorted((root / folder).rglob("*")) if path.suffix in CODE]
    files = [path for path in files if path.suffix != ".txt" or path.name == "CMakeLists.txt"]
    lists = "".join(path.read_text() for path in root.rglob("CMakeLists.txt") if "build" not in path.parts)
    for path in files:
        name = path.relative_to(root)
        text = path.read_text()
        if text and path.name not in GENERATED:
            for number, problem in file_problems(text):
                yield f"{name}:{number}: {problem}"
        if name.parts[0] == "python" and str(name) not in COUNTING and COUNTS.search(text):
            yield f"{name}: counts references: only {' and '.join(sorted(COUNTING))} may"
        in_build = name.parts[0] in ("src", "tests", "bench") or name.parts[:2] == ("python", "src")
        in_build = in_build and name.parts[:2] not in BUILT_BY_PYTEST
        if in_build and path.suffix in COMPILED and path.name not in lists:
            yield f"{name}: stands in no CMakeLists.txt"


def main(root=Path(__file__).parent.parent):
    found = list(problems(Path(root)))
    print("\n".join(found) or "source files are in form")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
