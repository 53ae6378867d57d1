#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks that libtenon.so exports exactly the functions that the headers of the C ABI declare.

check_symbols.py LIBRARY [HEADER...]
"""

import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from c_header import Header, abi_text


def exported(library):
    """The names that a shared library defines for others, without the names of its versions."""
    command = ["nm", "--dynamic", "--defined-only", "--format=posix", library]
    output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    rows = [line.split() for line in output.splitlines()]
    return {row[0].split("@")[0] for row in rows if row[1] != "A"}


def problems(library, *headers):
    text = "".join(Path(header).read_text() for header in headers) or abi_text()
    names = " and ".join(map(str, headers)) or "the C ABI"
    declared, defined = set(Header(text).functions), exported(library)
    if not declared:
        yield f"{names} declares no function"
    for name in sorted(declared - defined):
        yield f"{name} is declared in {names} and not exported by {library}"
    for name in sorted(defined - declared):
        yield f"{name} is exported by {library} and not declared in {names}"


def main(arguments):
    found = list(problems(*arguments))
    print("\n".join(found) if found else f"{arguments[0]}: exports what the headers declare")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
