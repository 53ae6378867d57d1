#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs pyright on tests/typing, and on the public names of the installed package, of which at least 98 % must
have a type that is known without inference. Run it with the interpreter of the environment."""

import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
LEAST = 0.98


def pyright(*arguments):
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    command = [sys.executable, "-m", "pyright", "--outputjson", *arguments]
    # Not in the checkout: pyright would take its python/tenon for the package.
    folder = ROOT / "build"
    folder.mkdir(exist_ok=True)
    done = subprocess.run(
        command, stdout=subprocess.PIPE, text=True, check=False, cwd=folder, env={**os.environ, "PATH": path}
    )
    return json.loads(done.stdout)


def main():
    python = ("--pythonpath", sys.executable)
    found = pyright(*python, str(ROOT / "tests/typing"))
    for one in found["generalDiagnostics"]:
        print(f"{one['file']}:{one['range']['start']['line'] + 1}: {one['message']}")
    known = pyright("--verifytypes", "tenon", "--ignoreexternal")["typeCompleteness"]
    for symbol in known["symbols"]:
        if symbol["isExported"] and not symbol["isTypeKnown"]:
            print(f"{symbol['name']}: its type is not declared, or not known")
    score = known["completenessScore"]
    print(f"pyright: {found['summary']['errorCount']} errors; types known: {score:.1%} of the public names")
    return 1 if found["summary"]["errorCount"] or score < LEAST else 0


if __name__ == "__main__":
    sys.exit(main())
