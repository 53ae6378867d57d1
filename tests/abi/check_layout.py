#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks the C ABI and the one of plug-ins against frozen.txt: every size and offset of a public struct,
every constant and every function. A line may be added with a new minor ABI version, and a struct that begins
with struct_size may grow at its end; any other line that changes or goes is a new major version.

    check_layout.py COMPILER            compare
    check_layout.py COMPILER --update   write frozen.txt anew
"""

import difflib
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "tools"))
from c_header import Header, abi_text, layout

ROOT = Path(__file__).parents[2]
FROZEN = Path(__file__).parent / "frozen.txt"


def main(compiler, mode=""):
    header = Header(abi_text())
    plugin = Header((ROOT / "include/tenon/plugin.h").read_text())
    present = layout([header], "tenon/tenon.h", ROOT / "include", compiler)
    present += layout([plugin], "tenon/plugin.h", ROOT / "include", compiler)
    present += [f"function {name}" for name in header.functions]
    if mode == "--update":
        FROZEN.write_text("\n".join(present) + "\n")
        return 0
    frozen = FROZEN.read_text().splitlines()
    difference = list(difflib.unified_diff(frozen, present, "frozen.txt", "tenon.h", n=0, lineterm=""))
    print("\n".join(difference) or f"{len(frozen)} frozen facts hold")
    return 1 if difference else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
