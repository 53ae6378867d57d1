# SPDX-License-Identifier: Apache-2.0
"""Markdown for docs/benchmarks.md: tables, a description of the machine, and the section of one workload."""

import os
import platform
import sys
import sysconfig
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version


@dataclass
class Section:
    """The results of one workload."""

    text: str
    ratios: dict[str, float] = field(default_factory=dict)  # Tenon's time divided by a peer's, by row


def table(header, rows):
    """A table whose first column is text and whose other columns are numbers, aligned in the source too."""
    lines = [header, *[[str(cell) for cell in row] for row in rows]]
    widths = [max(len(row[i]) for row in lines) for i in range(len(header))]

    def line(row):
        cells = [cell.rjust(widths[i]) if i else cell.ljust(widths[i]) for i, cell in enumerate(row)]
        return f"| {' | '.join(cells)} |"

    rule = ["-" * w if i == 0 else "-" * (w - 1) + ":" for i, w in enumerate(widths)]
    return "\n".join([line(header), f"| {' | '.join(rule)} |", *map(line, lines[1:])])


def nanoseconds(value):
    return f"{value:.1f}" if value < 100 else f"{value:.0f}"


def plural(n, word, ending):
    return f"{n} {word}{'' if n == 1 else ending}"


def processor():
    with open("/proc/cpuinfo") as lines:
        facts = dict(line.split(":", 1) for line in lines if ":" in line)
    facts = {name.strip(): value.strip() for name, value in facts.items()}
    model = facts.get("model name", platform.machine())
    family = ", ".join(f"{name} {facts[name]}" for name in ("cpu family", "model") if name in facts)
    return f"{model} ({family})" if family else model


def is_virtual():
    with open("/proc/cpuinfo") as lines:
        return any(line.startswith("flags") and " hypervisor" in line for line in lines)


def machine():
    kind = "virtual machine" if is_virtual() else "machine"
    return f"{processor()}, {kind} with {os.cpu_count()} cores, {platform.system()} {platform.release()}"


def python():
    is_optimised = "--enable-optimizations" in (sysconfig.get_config_var("CONFIG_ARGS") or "")
    build = f"built {'with' if is_optimised else 'without'} `--enable-optimizations`"
    return f"{platform.python_implementation()} {platform.python_version()} ({build})"


def versions(packages):
    def one(package):
        try:
            return f"{package} {version(package)}"
        except PackageNotFoundError:
            return f"{package} (not installed)"

    return ", ".join([python(), *map(one, packages)])


def replace_section(path, name, text):
    """Puts text between the markers of a section; everything else in the file stays."""
    begin, end = f"<!-- {name}: begin -->", f"<!-- {name}: end -->"
    page = path.read_text()
    if page.count(begin) != 1 or page.count(end) != 1:
        sys.exit(f"{path} needs the lines '{begin}' and '{end}' once each, around the results of {name}")
    before, rest = page.split(begin)
    after = rest.split(end)[1]
    path.write_text(f"{before}{begin}\n{text.strip()}\n{end}{after}")
