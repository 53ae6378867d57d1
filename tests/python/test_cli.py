# SPDX-License-Identifier: Apache-2.0
"""The command line: `tenon config` finds the installed files, and what cannot work says why."""

import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

import tenon as tn
from tenon.__main__ import main

CLIENT = """
#include <stdio.h>
#include <tenon/tenon.h>
int main(void) { puts(tenon_version()); return 0; }
"""


def tenon(*arguments, code=0, **environment):
    done = subprocess.run(
        [sys.executable, "-m", "tenon", *arguments],
        capture_output=True,
        text=True,
        env={**os.environ, **environment},
    )
    assert done.returncode == code, done.stdout + done.stderr
    return done


def config(option):
    return tenon("config", option).stdout.removesuffix("\n")


def demo_without(module, folder, *arguments):
    """What the demo says where the module cannot be imported."""
    (folder / f"{module}.py").write_text(f"raise ImportError('no {module} here')\n")
    path = os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")])
    return tenon("demo", *arguments, code=1, PYTHONPATH=path).stderr


@pytest.mark.slow
def test_config_prints_folders_that_hold_the_files():
    assert config("--includes").startswith("-I")
    assert Path(config("--includes").removeprefix("-I"), "tenon", "tenon.h").is_file()
    assert config("--cflags") == config("--includes") == f"-I{config('--includedir')}"
    assert Path(config("--cmakedir"), "tenonConfig.cmake").is_file()
    assert Path(config("--pkgconfigdir"), "tenon.pc").is_file()
    assert Path(config("--libdir"), "libtenon.so").is_file()
    assert f"-L{config('--libdir')}" in config("--libs").split()
    assert config("--version") == tn.__version__


def test_the_version_is_printed(capsys):
    with pytest.raises(SystemExit) as ended:
        main(["--version"])
    assert ended.value.code == 0
    assert capsys.readouterr().out == f"tenon {tn.__version__}\n"


def test_config_answers_several_questions_one_a_line(capsys):
    assert main(["config", "--version", "--libdir"]) == 0
    assert capsys.readouterr().out.splitlines() == [config("--libdir"), tn.__version__]


@pytest.mark.slow
def test_a_c_program_builds_with_what_config_prints(tmp_path):
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler")
    (tmp_path / "client.c").write_text(CLIENT)
    command = [compiler, *config("--cflags").split(), "client.c", *config("--libs").split(), "-o", "client"]
    subprocess.run(command, cwd=tmp_path, check=True)
    answer = subprocess.run([tmp_path / "client"], capture_output=True, text=True, check=True)
    assert answer.stdout.strip() == tn.__version__


def test_the_script_is_installed_beside_python():
    script = Path(sysconfig.get_path("scripts"), "tenon")
    if not script.exists():
        pytest.skip("tenon is not installed as a package")
    done = subprocess.run([script, "config", "--version"], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == tn.__version__


@pytest.mark.slow
@pytest.mark.parametrize(
    "arguments", [(), ("config", "--x"), ("bake",), ("demo", "--workers", "0"), ("demo", "--framework", "x")]
)
def test_what_is_not_understood_is_status_2(arguments):
    assert "usage: tenon" in tenon(*arguments, code=2).stderr


@pytest.mark.parametrize(
    "arguments", [["ls"], ["ls", "--json"], ["gc"], ["config", "--cflags"], ["--version"]]
)
def test_a_reader_that_has_closed_the_pipe_is_no_error(arguments, lone_collector):
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(
        [sys.executable, "-m", "tenon", *arguments], stdout=writer, stderr=subprocess.PIPE, text=True
    )
    os.close(writer)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_full_disk_is_told_in_a_line():
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "tenon", "--version"], stdout=full, stderr=subprocess.PIPE, text=True
        )
    assert done.returncode == 1
    assert done.stderr == "tenon: [Errno 28] No space left on device\n"


def test_demo_without_a_compiler_says_what_to_install(tmp_path):
    message = tenon("demo", code=1, PATH=str(tmp_path), CC="").stderr
    assert "no C compiler" in message and "Traceback" not in message


def test_demo_with_a_wrong_compiler_names_it():
    message = tenon("demo", code=1, CC="/nowhere/cc -m64").stderr
    assert "/nowhere/cc -m64" in message and "Traceback" not in message


@pytest.mark.slow
def test_demo_with_a_failing_compiler_shows_its_command():
    message = tenon("demo", "--framework", "numpy", code=1, CC="false").stderr
    assert "digits.c" in message and "failed" in message and "Traceback" not in message


def test_demo_on_torch_without_torch_says_what_to_install(tmp_path):
    message = demo_without("torch", tmp_path, "--framework", "torch")
    assert "pip install 'tenon-arrays[torch]'" in message and "Traceback" not in message


LATE = ("asyncio", "json", "logging", "multiprocessing", "ssl", "subprocess", "traceback", "zipfile")


@pytest.mark.parametrize("missing", ["torch", ""])
def test_the_import_loads_no_module_that_is_seldom_needed(missing):
    block = f"sys.modules[{missing!r}] = None\n" if missing else ""  # then it loads its loader
    code = f"""
import sys, numpy
{block}before = set(sys.modules)
import tenon
print(sorted(({set(LATE)!r} & sys.modules.keys()) - before))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("[]\n", "")


def test_ls_loads_no_module_that_it_does_not_need():
    late = {*LATE, "logging", "numpy", "pathlib", "rich", "shutil", "traceback"} - {"json"}
    code = f"""
import sys
before = set(sys.modules)
from tenon.__main__ import main
main(["ls"])
print(sorted(({late!r} & sys.modules.keys()) - before), file=sys.stderr)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "[]\n")


def test_a_block_in_a_program_without_asyncio_does_not_load_it():
    code = """
import sys, tenon as tn
a = tn.zeros(3)
with a.write() as v: v[:] = 1
with a.read(): pass
tn.push(lambda x: None, a).wait()
print("asyncio" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("False\n", "")
