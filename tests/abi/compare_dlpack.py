#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compares every size, offset and constant of tenon/dlpack.h with the official dlpack/dlpack.h, as C and
as C++. What one of the headers declares, the other must declare too.

    compare_dlpack.py C_COMPILER CXX_COMPILER OFFICIAL_INCLUDE_DIR

Ends with 77 (skipped) when the folder of the official header is not given.
"""

import difflib
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "tools"))
from c_header import Header, layout

INCLUDE = Path(__file__).parents[2] / "include"


def main(c_compiler, cxx_compiler, official_dir=""):
    if not official_dir:
        print("skipped: no official dlpack.h; install the Python package apache-tvm-ffi into .venv")
        return 77
    official = Path(official_dir)
    paths = INCLUDE / "tenon/dlpack.h", official / "dlpack/dlpack.h"
    headers = [Header(path.read_text()) for path in paths]
    different = False
    for compiler, language in ((c_compiler, "c"), (cxx_compiler, "c++")):
        theirs = layout(headers, "dlpack/dlpack.h", official, compiler, language)
        ours = layout(headers, "tenon/dlpack.h", INCLUDE, compiler, language)
        difference = list(difflib.unified_diff(theirs, ours, "official", "tenon", n=0, lineterm=""))
        print("\n".join(difference) or f"{language}: {len(ours)} facts agree")
        different = different or bool(difference)
    return 1 if different else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
