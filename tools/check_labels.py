#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks that atomic operations which order memory name their partner.

    check_labels.py [ROOT]

An operation with an order other than relaxed has, at most three lines above its first line, a comment
    // pairs with: Class::method, "what becomes visible"
and each such label occurs at least twice. Orders are always written, and fences are not used (the
ThreadSanitizer does not follow them). Tests are not checked."""

import re
import sys
from collections import Counter
from pathlib import Path

LINES_ABOVE = 3
LABEL = re.compile(r'pairs with:[^"\n]*(?:\n\s*//[^"\n]*)?"([^"\n]+)"')
OPERATION = re.compile(
    r"(?:\.|->)(load|store|exchange|fetch_\w+|compare_exchange_\w+|test_and_set|clear|wait)\s*\("
)
CERTAIN = re.compile(r"fetch_\w+|compare_exchange_\w+|test_and_set")
ORDER = re.compile(r"memory_order(?:_|::)(\w+)")
SUFFIXES = {".h", ".hpp", ".inc", ".c", ".cc"}
FOLDERS = ("src", "include", "python/src")


def arguments(code, start):
    """The text up to the parenthesis that closes the one before start."""
    depth = 1
    for end in range(start, len(code)):
        depth += {"(": 1, ")": -1}.get(code[end], 0)
        if depth == 0:
            return code[start:end]
    return code[start:]


def without_comments(text):
    """The same text, as long in every line, with blanks for comments."""
    return re.sub(r"//[^\n]*|/\*.*?\*/", lambda m: re.sub(r"[^\n]", " ", m[0]), text, flags=re.S)


def file_problems(text):
    """Pairs (line number, problem)."""
    code, lines = without_comments(text), text.split("\n")
    for match in OPERATION.finditer(code):
        number = code.count("\n", 0, match.start()) + 1
        orders = ORDER.findall(arguments(code, match.end()))
        if not orders and (CERTAIN.fullmatch(match[1]) or is_atomic_by_use(match[1], code, match.end())):
            yield number, f"{match[1]} without a memory order: write the one that is meant"
        elif set(orders) - {"relaxed"}:
            above = "\n".join(lines[max(0, number - 1 - LINES_ABOVE) : number])
            if not LABEL.search(above):
                yield number, f'{match[1]} orders memory and has no `pairs with: X, "label"` above it'
    for match in re.finditer(r"atomic_(?:thread|signal)_fence", code):
        yield code.count("\n", 0, match.start()) + 1, "a fence: put the order on the operation"


def is_atomic_by_use(name, code, start):
    """load() and store(x) of something that this file declares as std::atomic."""
    receiver = re.search(r"(\w+)(?:\[[^\]]*\])?(?:\.|->)\w+\s*\($", code[:start])
    declared = re.search(rf"std::atomic(?:_\w+)?(?:<[^;]*?>)?\s+{receiver[1]}\b", code) if receiver else None
    return name in ("load", "store", "exchange") and declared is not None


def problems(root):
    counts, places = Counter(), {}
    for folder in FOLDERS:
        for path in sorted(path for path in (root / folder).rglob("*") if path.suffix in SUFFIXES):
            if path.stem.endswith(("_test", "_testing")):
                continue
            text = path.read_text()
            name = path.relative_to(root)
            for number, problem in file_problems(text):
                yield f"{name}:{number}: {problem}"
            for match in LABEL.finditer(text):
                counts[match[1]] += 1
                places[match[1]] = f"{name}:{text.count(chr(10), 0, match.start()) + 1}"
    for label, count in counts.items():
        if count < 2:
            yield f'{places[label]}: label "{label}" stands only once: its partner is missing'


def main(root=Path(__file__).parent.parent):
    found = list(problems(Path(root)))
    print("\n".join(found) or "paired atomics are labelled")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
