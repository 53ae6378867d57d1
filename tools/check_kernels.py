#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks that object files compiled for newer processors define one table of kernels and nothing else.

    check_kernels.py OBJECT ...

An inline function that such a file emits as well may be the copy that the linker keeps for the whole
library, which then cannot run on older processors. Files of other names are ignored.
"""

import re
import subprocess
import sys
from pathlib import Path


def defined(path):
    """The symbols that an object file exports."""
    command = ["nm", "--extern-only", "--defined-only", "--demangle", "--format=posix", path]
    output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return [re.match(r"(.*?) [A-Za-z] [0-9a-f]", line)[1] for line in output.splitlines()]


def problems(paths):
    kernels = [path for path in paths if re.match(r"elements_kernels_v\d", Path(path).name)]
    if not kernels:
        yield "there is no object file elements_kernels_v*"
    for path in kernels:
        names = defined(path)
        tables = [name for name in names if re.fullmatch(r"tenon::impl::kKernelsV\d", name)]
        if len(tables) != 1:
            yield f"{path}: defines {len(tables)} tables of kernels, not 1"
        for name in set(names) - set(tables):
            yield f"{path}: defines {name}: give it internal linkage, or do not include its header"


def main(arguments):
    found = sorted(problems(arguments))
    print("\n".join(found) if found else "kernels for newer processors define their tables alone")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
