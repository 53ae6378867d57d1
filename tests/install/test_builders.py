# SPDX-License-Identifier: Apache-2.0
"""Projects of other people, each with the tool that it uses, against the wheel and against a prefix."""

import glob
import os
import re
import shutil
import subprocess

import pytest
from installed import HERE, ROOT, compile_c, config, run

pytestmark = pytest.mark.slow


@pytest.fixture(params=["wheel", "prefix"])
def installed(request):
    """The folder with include/ and lib/."""
    if request.param == "prefix":
        return os.fspath(request.getfixturevalue("prefix"))
    return os.path.dirname(config("--libdir"))


def needs(*programs):
    for program in programs:
        if shutil.which(program) is None:
            pytest.skip(f"no {program}")


def surroundings(installed):
    """The variables with which pkg-config, CMake and the loader find an installation, and no other one."""
    lib = os.path.join(installed, "lib")
    return {
        **os.environ,
        "PKG_CONFIG_PATH": os.path.join(lib, "pkgconfig"),
        "CMAKE_PREFIX_PATH": installed,
        "LD_LIBRARY_PATH": lib,
        "CGO_LDFLAGS_ALLOW": "-Wl,-rpath,.*",
    }


def build_with_cmake(source, build, environment, *options):
    run("cmake", "-S", HERE / source, "-B", build, "-G", "Ninja", *options, env=environment)
    run("cmake", "--build", build, env=environment)
    assert "100% tests passed" in run("ctest", "--test-dir", build)


@pytest.mark.parametrize("source", ["client", "plain"])
def test_cmake_finds_it(installed, tmp_path, source):
    needs("cmake", "ninja")
    build_with_cmake(source, tmp_path, surroundings(installed))


def test_a_project_that_fetches_it_builds_it_as_a_part(fetched):
    assert "100% tests passed" in run("ctest", "--test-dir", fetched)


def test_a_project_that_fetches_it_does_not_install_it_unless_it_says_so(tmp_path):
    needs("cmake", "ninja")
    run("cmake", "-S", HERE / "fetch", "-B", tmp_path / "build", "-G", "Ninja")
    run("cmake", "--install", tmp_path / "build", "--prefix", tmp_path / "prefix")
    assert not (tmp_path / "prefix/include").exists()


@pytest.mark.parametrize("how", ["pkg-config", "cmake"])
def test_meson_finds_it(installed, tmp_path, how):
    needs("meson", "ninja", "pkg-config" if how == "pkg-config" else "cmake")
    environment = surroundings(installed)
    run("meson", "setup", tmp_path, HERE / "meson", f"-Dhow={how}", env=environment)
    run("meson", "compile", "-C", tmp_path, env=environment)
    run("meson", "test", "-C", tmp_path, env=environment)


def pkg_config(environment):
    return run("pkg-config", "--cflags", "--libs", "tenon", env=environment).split()


def test_a_c_program_builds_with_pkg_config(installed, tmp_path):
    needs("pkg-config")
    environment = surroundings(installed)
    client = compile_c(HERE / "client/client.c", tmp_path / "client", *pkg_config(environment))
    assert run(client, env=environment) == "C: 48 bytes\n"


def test_a_program_that_is_built_with_the_wheels_pkg_config_finds_the_library_by_itself(tmp_path):
    needs("pkg-config")
    environment = surroundings(os.path.dirname(config("--libdir")))
    client = compile_c(HERE / "client/client.c", tmp_path / "client", *pkg_config(environment))
    assert run(client) == "C: 48 bytes\n"


def test_rust_calls_what_bindgen_makes_of_the_header(installed, tmp_path):
    needs("bindgen", "rustc")
    # Not **: folders of LLVM have links to the folders that they are in.
    folders = ("/usr/lib", "/usr/lib/*", "/usr/lib/llvm-*/lib")
    patterns = ("libclang.so*", "libclang-[0-9]*")
    found = any(glob.glob(f"{folder}/{pattern}") for folder in folders for pattern in patterns)
    if not found and "LIBCLANG_PATH" not in os.environ:
        pytest.skip("no libclang, which bindgen opens")
    environment = surroundings(installed)
    header = os.path.join(installed, "include/tenon/tenon.h")
    options = ["--no-prepend-enum-name", "-o", tmp_path / "bindings.rs"]
    options += ["--allowlist-function", "tenon_.*", "--allowlist-type", "tenon_.*"]
    builtin = run("cc", "-print-file-name=include").strip()  # libclang may be there without stddef.h
    run("bindgen", header, *options, "--", f"-I{installed}/include", f"-I{builtin}")
    assert "await:" not in (tmp_path / "bindings.rs").read_text()
    _, program = re.findall(r"```rust\n(.*?)```", (ROOT / "docs/howto/rust.md").read_text(), re.S)
    (tmp_path / "program.rs").write_text(program)
    libraries = ["-L", os.path.join(installed, "lib"), "-l", "dylib=tenon"]
    run("rustc", "--edition", "2021", *libraries, "-o", tmp_path / "client", tmp_path / "program.rs")
    assert run(tmp_path / "client", env=environment) == "24 bytes\n"


def test_go_calls_it_through_cgo(installed, tmp_path):
    needs("go", "pkg-config")
    environment = surroundings(installed) | {"GOCACHE": os.fspath(tmp_path / "cache")}
    [program] = re.findall(r"```go\n(.*?)```", (ROOT / "docs/howto/go.md").read_text(), re.S)
    (tmp_path / "make.go").write_text(program)
    assert run("go", "run", tmp_path / "make.go", env=environment) == "[0 0 0 0 0 7]\n"


def test_an_old_standard_is_a_clear_error(installed, tmp_path):
    command = ["c++", "-std=c++17", f"-I{installed}/include", "-fsyntax-only", "-x", "c++", "-"]
    done = subprocess.run(command, input="#include <tenon/tenon.hpp>", capture_output=True, text=True)
    assert done.returncode != 0 and "needs C++20" in done.stderr


def test_another_platform_is_a_clear_error(tmp_path):
    needs("cmake", "ninja")
    command = ["cmake", "-S", HERE.parents[1], "-B", tmp_path, "-G", "Ninja", "-DCMAKE_SYSTEM_NAME=FreeBSD"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode != 0 and "supports Linux on x86-64 and AArch64" in " ".join(done.stderr.split())
