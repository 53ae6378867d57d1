# SPDX-License-Identifier: Apache-2.0
"""``tenon doctor``: what this machine and this process allow, in one screen.

Each check reads what the kernel says, or tries what a program would do. Nothing is changed, and what is made
for a trial is gone afterwards.
"""

from __future__ import annotations

import importlib.metadata
import os
import platform
import re
import resource
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from .. import _core
from .._array.creation import zeros
from .._array.share import attach

_FEW_DESCRIPTORS = 1024
_LITTLE = 256 << 20
_TRIAL_SECONDS = 30.0


class Finding(NamedTuple):
    state: str  # "ok", "note" or "problem"
    what: str
    text: str


def findings() -> list[Finding]:
    """What each check has found. A check that fails is a finding itself."""
    found: list[Finding] = []
    for check in _CHECKS:
        try:
            found += check()
        except Exception as error:
            found.append(Finding("problem", check.__name__[1:].replace("_", " "), str(error)))
    return found


def listing(found: list[Finding]) -> str:
    width = max(len(finding.what) for finding in found)
    lines = [f"{finding.state:<8} {finding.what:<{width}}  {finding.text}" for finding in found]
    problems = sum(finding.state == "problem" for finding in found)
    end = f"{problems} problem{'' if problems == 1 else 's'}" if problems else "no problems"
    return "\n".join([*lines, end])


def _versions() -> Iterator[Finding]:
    names = ("numpy", "torch", "jax", "ml_dtypes", "mxnet")
    others = [f"{name} {version}" for name in names if (version := _version_of(name))]
    python = f"{platform.python_implementation()} {platform.python_version()}"
    yield Finding("ok", "versions", ", ".join([f"tenon {_core.__version__}", python, *others]))


def _version_of(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _kernel() -> Iterator[Finding]:
    cores = len(os.sched_getaffinity(0))
    yield Finding("ok", "kernel", f"Linux {platform.release()}, {platform.machine()}, {cores} cores")


def _memory() -> Iterator[Finding]:
    available = _meminfo("MemAvailable")
    limits = [f"{_size(available)} of {_size(_meminfo('MemTotal'))} available"]
    limit = _group_limit()
    if limit is not None:
        limits.append(f"the control group allows {_size(limit[1])} and has {_size(limit[0])}")
        available = min(available, limit[1] - limit[0])
    addresses = resource.getrlimit(resource.RLIMIT_AS)[0]
    if addresses != resource.RLIM_INFINITY:
        limits.append(f"ulimit -v allows {_size(addresses)} of addresses")
    if _text("/proc/sys/vm/overcommit_memory") == "2":
        limits.append("vm.overcommit_memory is 2, so reserved addresses count as memory")
    yield Finding("note" if available < _LITTLE else "ok", "memory", "; ".join(limits))


def _group_limit() -> tuple[int, int] | None:
    """(used, allowed) bytes of the control group with the least room; None: there is no limit."""
    path = next((line[3:] for line in _text("/proc/self/cgroup").splitlines() if line.startswith("0::")), "/")
    found = []
    folder = Path("/sys/fs/cgroup") / path.strip("/")
    for group in (folder, *folder.parents):
        allowed, used = _text(group / "memory.max"), _text(group / "memory.current")
        if allowed.isdecimal() and used.isdecimal():
            found.append((int(used), int(allowed)))
        if group == Path("/sys/fs/cgroup"):
            break
    return min(found, key=lambda group: group[1] - group[0], default=None)


def _files() -> Iterator[Finding]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    state = "note" if soft <= _FEW_DESCRIPTORS else "ok"
    advice = "; a named array takes two, a channel three: ulimit -n" if state == "note" else ""
    yield Finding(state, "descriptors", f"{soft} of this process, at most {hard}{advice}")


def _locked() -> Iterator[Finding]:
    soft = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]
    yield Finding("ok", "locked memory", "no limit" if soft == resource.RLIM_INFINITY else _size(soft))


def _pages() -> Iterator[Finding]:
    total, free = _meminfo("HugePages_Total", 1), _meminfo("HugePages_Free", 1)
    size = _size(_meminfo("Hugepagesize"))
    if total:
        yield Finding("ok", "huge pages", f"{free} of {total} pages of {size} free")
    else:
        yield Finding("ok", "huge pages", "none reserved (vm.nr_hugepages): tn.Shared(huge_pages=True) fails")


def _temporary() -> Iterator[Finding]:
    try:
        shm = os.statvfs("/dev/shm")
    except OSError:
        yield Finding("ok", "/dev/shm", "does not exist; arrays do not need it")
        return
    size, free = shm.f_blocks * shm.f_frsize, shm.f_bavail * shm.f_frsize
    text = f"{_size(free)} of {_size(size)} free; arrays of Tenon are not there, those of PyTorch are"
    yield Finding("note" if free < _LITTLE else "ok", "/dev/shm", text)


def _namespaces() -> Iterator[Finding]:
    names = {kind: os.readlink(f"/proc/self/ns/{kind}") for kind in ("pid", "user", "ipc")}
    inside = "a namespace of its own" if _is_inside() else "the host"
    text = f"processes of {inside}: " + ", ".join(names.values())
    yield Finding("ok", "namespaces", f"{text}; user {os.getuid()}")


def _is_inside() -> bool:
    """Whether the PID namespace is that of a container: process 1 is no kernel's init then, or has another
    number of levels."""
    levels = re.search(r"^NSpid:\s+(.*)$", _text("/proc/self/status"), re.M)
    return bool(levels and len(levels[1].split()) > 1) or not _text("/proc/2/comm").startswith("kthreadd")


def _names() -> Iterator[Finding]:
    name = f"doctor-{os.getpid()}"
    array = zeros(1, "i4", shared=name)
    attach(name)
    try:
        attach(f"{name}-none")
    except FileNotFoundError as error:
        folder = re.search(r"\(by '(.*)/[^/]*'\)", str(error))
        yield Finding("ok", "names", f"are files in {folder[1]}" if folder else "work")
    del array


def _processes() -> Iterator[Finding]:
    import pickle
    import subprocess

    array = zeros(2, "i4", shared=True)
    code = (
        "import pickle, sys, tenon as tn\n"
        "a = pickle.loads(bytes.fromhex(sys.argv[1]))\n"
        "with a.write() as v: v += 1\n"
        "print('opened')\n"
    )
    handle = pickle.dumps(array).hex()
    tried = subprocess.run(
        [sys.executable, "-c", code, handle], capture_output=True, text=True, timeout=_TRIAL_SECONDS
    )
    if tried.returncode == 0 and array.tolist() == [1, 1]:
        yield Finding("ok", "processes", "another interpreter has opened a shared array and written to it")
    else:
        reason = tried.stderr.strip().splitlines() or ["it printed nothing"]
        yield Finding("problem", "processes", f"another interpreter cannot open a shared array: {reason[-1]}")


def _libraries() -> Iterator[Finding]:
    lines = _text("/proc/self/maps").splitlines()
    paths = {line.split(maxsplit=5)[5] for line in lines if "/libtenon" in line}
    state = "problem" if len(paths) > 1 else "ok"
    yield Finding(state, "library", ", ".join(sorted(paths)) or "is a part of the extension")


def _device() -> Iterator[Finding]:
    import ctypes

    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        yield Finding("ok", "CUDA", "no driver: arrays on GPUs and pinned memory are not available")
    else:
        yield Finding("ok", "CUDA", "there is a driver")


def _variables() -> Iterator[Finding]:
    found = [f"{name}={value}" for name, value in sorted(os.environ.items()) if name.startswith("TENON_")]
    yield Finding("note" if found else "ok", "environment", ", ".join(found) or "no variable TENON_*")


def _leftovers() -> Iterator[Finding]:
    import json

    seen = json.loads(_core.describe_shared())
    segments = seen.get("segments", [])
    dead = sum(
        place.get("state") == "dead" for segment in segments for place in segment.get("participants", [])
    )
    text = f"{len(segments)} segments of this user"
    if dead:
        yield Finding("note", "shared memory", f"{text}, {dead} places of dead processes: tenon gc")
    else:
        yield Finding("ok", "shared memory", f"{text}: tenon ls")


_CHECKS: tuple[Callable[[], Iterator[Finding]], ...] = (
    _versions,
    _libraries,
    _kernel,
    _memory,
    _files,
    _locked,
    _pages,
    _temporary,
    _namespaces,
    _names,
    _processes,
    _device,
    _variables,
    _leftovers,
)


def _meminfo(name: str, unit: int = 1024) -> int:
    found = re.search(rf"^{name}:\s+(\d+)", _text("/proc/meminfo"), re.M)
    return int(found[1]) * unit if found else 0


def _text(path: str | Path) -> str:
    """Of a file of the kernel; "" if it cannot be read."""
    try:
        return Path(path).read_text().strip()
    except OSError:
        return ""


def _size(nbytes: int) -> str:
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(nbytes) < 1024:
            return f"{nbytes:.4g} {unit}"
        nbytes /= 1024  # type: ignore[assignment]
    return f"{nbytes:.4g} TiB"
