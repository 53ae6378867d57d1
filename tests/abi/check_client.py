#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks that the C client calls every function of the C ABI but those on native functions and
feeds."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "tools"))
from c_header import Header, abi_text

HERE = Path(__file__).parent

array_part, _, rest = abi_text().partition("- native functions")
# The feeds have tests of their own; what follows them in the file is called again.
_, _, after_feeds = rest.partition("TENON_SHARE_H_")
client = "".join(path.read_text() for path in HERE.glob("client*.c"))
functions = Header(array_part + after_feeds).functions
missing = [f"the C client does not call {name}" for name in functions if f"{name}(" not in client]
print("\n".join(missing) or f"{len(functions)} functions called")
sys.exit(0 if functions and rest and not missing else 1)
