# SPDX-License-Identifier: Apache-2.0
"""What a plain C header declares, and its layout as the compiler sees it.

Reads headers in the style of core.h and of the official dlpack.h: typedef'd structs and unions without
nesting (but for unnamed unions after __extension__), enums, integer macros, functions. Not a C parser.
"""

import re
import subprocess
import tempfile
from pathlib import Path

ABI_HEADERS = ("core.h", "device.h", "request.h", "feed.h", "share.h", "pool.h", "trace.h")


def abi_text():
    """The text of the headers of the C ABI, the one that the others include first."""
    folder = Path(__file__).parent.parent / "include/tenon"
    return "".join((folder / name).read_text() for name in ABI_HEADERS)


class Header:
    """The names that a header declares, in its order."""

    def __init__(self, text):
        code = re.sub(r"/\*.*?\*/|//[^\n]*", " ", text, flags=re.S).replace("\\\n", " ")
        code = re.sub(r"__extension__\s+union\s*\{([^{}]*)\}\s*;", r"\1", code)
        self.macros = [
            name
            for name, value in re.findall(r"^#define (\w+)[ \t]+(\S.*)$", code, flags=re.M)
            if re.fullmatch(r"[-\w()<> ]*\d[-\w()<> ]*", value)
        ]
        code = re.sub(r"^#.*$", "", code, flags=re.M)
        self.structs = {
            name: [_field_name(field) for field in body.split(";") if field.strip()]
            for body, name in re.findall(r"typedef\s+(?:struct|union)\b[^{;]*\{([^{}]*)\}\s*(\w+)\s*;", code)
        }
        self.enumerators = [
            re.match(r"\s*(\w+)", item)[1]
            for body in re.findall(r"\benum\b[^{;]*\{([^{}]*)\}", code)
            for item in body.split(",")
            if item.strip()
        ]
        self.functions = re.findall(r"TENON_API\b[^;({]*?\b(tenon_\w+)\s*\(", code)


def _field_name(field):
    pointer = re.search(r"\(\s*\*\s*(\w+)\s*\)\s*\(", field)
    return pointer[1] if pointer else re.search(r"(\w+)\s*(?:\[[^\]]*\]\s*)*$", field)[1]


def layout(headers, include, include_dir, compiler, language="c"):
    """Lines 'what name number' for every size, offset and constant that the headers (Header objects)
    name, compiled with `#include <include>` from include_dir."""
    lines = ["#include <stddef.h>", "#include <stdio.h>", f"#include <{include}>", "int main(void) {"]

    def put(what, name, expression):
        lines.append(f'  printf("{what} {name} %lld\\n", (long long)({expression}));')

    structs, constants = {}, {}
    for header in headers:
        constants |= dict.fromkeys(header.macros, "macro") | dict.fromkeys(header.enumerators, "enumerator")
        for struct, fields in header.structs.items():
            structs.setdefault(struct, {}).update(dict.fromkeys(fields))
    for struct, fields in structs.items():
        put("size", struct, f"sizeof({struct})")
        for field in fields:
            put("offset", f"{struct}.{field}", f"offsetof({struct}, {field})")
            put("size", f"{struct}.{field}", f"sizeof((({struct}*)0)->{field})")
    for name, kind in constants.items():
        put(kind, name, name)
    lines += ["  return 0;", "}", ""]
    standard = {"c": "c99", "c++": "c++20"}[language]
    with tempfile.TemporaryDirectory() as folder:
        source, program = Path(folder, "layout.src"), Path(folder, "layout")
        source.write_text("\n".join(lines))
        command = [compiler, "-x", language, f"-std={standard}", "-I", include_dir, source, "-o", program]
        subprocess.run(command, check=True)
        return subprocess.run([program], check=True, capture_output=True, text=True).stdout.splitlines()
