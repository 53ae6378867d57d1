#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks that the C client calls every function of tenon.h up to the section on native functions."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "tools"))
from c_header import Header

HERE = Path(__file__).parent
HEADER = HERE.parents[1] / "include/tenon/tenon.h"

array_part, _, rest = HEADER.read_text().partition("- native functions")
client = "".join(path.read_text() for path in HERE.glob("client*.c"))
functions = Header(array_part).functions
missing = [f"the C client does not call {name}" for name in functions if f"{name}(" not in client]
print("\n".join(missing) or f"{len(functions)} functions called")
sys.exit(0 if functions and rest and not missing else 1)
