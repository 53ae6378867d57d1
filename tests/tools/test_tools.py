# SPDX-License-Identifier: Apache-2.0
"""The tools that check the code: each passes a good tree and fails on a bad one."""

import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "tools"))
import c_header
import check_imports
import check_includes
import check_labels
import check_sources
import check_symbols
import run_tests
import steps
import update_stub

SPDX = "// SPDX-License-Identifier: Apache-2.0\n"


def place(root, name, text):
    """Writes a file of the tree and returns its root."""
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return root


@pytest.fixture
def tree(tmp_path):
    """A small tree in which every tool is content."""
    place(tmp_path, "include/tenon/tenon.h", SPDX + "TENON_API void tenon_one(void);\n")
    return place(tmp_path, "src/base/error.h", SPDX)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("src/array/array.h", '#include "base/error.h"\n#include "tenon/tenon.h"\n#include <vector>\n'),
        ("src/base/error_test.cc", '#include "array/array.h"\n'),
        ("python/src/array.cc", "#include <numpy/arrayobject.h>\n#include <tenon/tenon.h>\n"),
    ],
)
def test_includes_along_the_layers_pass(tree, name, text):
    assert check_includes.main(place(tree, name, text)) == 0


@pytest.mark.parametrize(
    ("name", "text", "complaint"),
    [
        ("src/base/ref.h", '#include "array/array.h"\n', "base/ref.h must not include array/array.h"),
        ("src/array/export.cc", '#include "data/feed.h"\n', "array/export.cc must not include data/feed.h"),
        ("src/array/a.cc", "#include <Python.h>\n", "only python/src sees Python"),
        ("src/array/a.cc", '#include "a.h"\n', "write the path from src"),
        ("src/array/a.cc", '#include "base/ref_test.h"\n', "belongs to tests"),
        ("src/other/a.cc", "", "is no layer"),
        ("src/device/a.cc", '#include "array/array.h"\n', "device sees base"),
        ("src/sync/wait.cc", '#include "exec/engine.h"\n', "sync sees base"),
        ("src/trace/a.cc", '#include "data/feed.h"\n', "trace sees base"),
        ("src/array/array.h", '#include "array/array.h"\n#include "array/shape.h"\n', "a circle of includes"),
        ("include/tenon/tenon.h", '#include "base/error.h"\n', "may include only standard headers"),
        ("include/tenon/dlpack.h", '#include "tenon/tenon.h"\n', "must not include tenon/tenon.h"),
        ("include/tenon/feed.h", '#include "tenon/tenon.h"\n', "must not include tenon/tenon.h"),
        ("include/tenon/new.h", "#include <stdint.h>\n", "does not know"),
        ("python/src/array.cc", '#include "array/array.h"\n', "may include only tenon/"),
    ],
)
def test_includes_against_the_layers_fail(tree, capsys, name, text, complaint):
    place(tree, "src/array/array.h", "")
    place(tree, "src/data/feed.h", "")
    place(tree, "src/exec/engine.h", "")
    place(tree, "src/array/shape.h", '#include "array/array.h"\n')
    place(tree, "src/base/ref_test.h", "")
    assert check_includes.main(place(tree, name, text)) == 1
    assert complaint in capsys.readouterr().out


PYTHON = {
    "__init__.py": "from ._core import a\nfrom . import _callbacks\nfrom ._data.feed import Feed\n",
    "_core.pyi": "",
    "_errors.py": "from . import _core\n",
    "_callbacks.py": "from ._array import text\n",
    "_array/__init__.py": "",
    "_array/text.py": "from .. import _core\nfrom .._errors import E\nimport numpy\n",
    "_data/__init__.py": "",
    "_data/feed.py": "from .._array.text import repr\nfrom . import forms\n",
    "_data/forms.py": "",
    "demo/run.py": "import tenon\nfrom tenon.io import DataBatch\n",
    "io.py": "from ._data.feed import Feed\n",
}
TEXT_PY = "python/tenon/_array/text.py"
OP_CC = "python/src/op.cc"


@pytest.fixture
def package(tree):
    for name, text in PYTHON.items():
        place(tree, f"python/tenon/{name}", text)
    return place(tree, OP_CC, 'nb::module_::import_("gc");\ncallback(Callback::kReleaseRetained)();\n')


def test_imports_along_the_packages_pass(package):
    assert check_imports.main(package) == 0


@pytest.mark.parametrize(
    ("name", "text", "complaint"),
    [
        (
            "python/tenon/_array/text.py",
            "from .._data.feed import Feed\n",
            "text.py:1 must not import tenon._data.feed",
        ),
        (TEXT_PY, "from .. import _callbacks\n", "must not import tenon._callbacks"),
        (
            "python/tenon/_array/text.py",
            "from .. import NDArray\n",
            "text.py:1 must not import tenon: _array sees",
        ),
        (
            "python/tenon/_array/text.py",
            "def f():\n    import tenon._data.feed\n",
            "text.py:2 must not import",
        ),
        (
            "python/tenon/_errors.py",
            "from ._array import text\n",
            "_errors.py:1 must not import tenon._array.text",
        ),
        ("python/tenon/_new/a.py", "", "lies in _new, which is no package"),
        (
            "python/tenon/_data/forms.py",
            "def f():\n    from .feed import Feed\n",
            "a circle of imports: tenon._data.feed, tenon._data.forms",
        ),
        (
            "python/tenon/_data/forms.py",
            "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from .feed import Feed\n",
            "a circle of imports: tenon._data.feed, tenon._data.forms",
        ),
        (
            "python/src/op.cc",
            'nb::module_::import_("tenon._array").attr("x");\n',
            "op.cc:1 imports a module of the",
        ),
        (
            "python/src/op.cc",
            '\nPyImport_ImportModule("tenon.io");\n',
            "op.cc:2 imports a module of the package",
        ),
        (
            "src/base/error.h",
            '#include "base/ref.h"\n',
            "a circle of includes: src/base/error.h, src/base/ref.h",
        ),
        (
            "include/tenon/tenon.h",
            '#include "tenon/feed.h"\n',
            "a circle of includes: include/tenon/feed.h, include/tenon/tenon.h",
        ),
    ],
)
def test_imports_against_the_packages_fail(package, capsys, name, text, complaint):
    place(package, "src/base/ref.h", "")
    if name == "src/base/error.h":
        place(package, "src/base/ref.h", '#include "base/error.h"\n')
    if name == "include/tenon/tenon.h":
        place(package, "include/tenon/feed.h", '#include "tenon/tenon.h"\n')
    assert check_imports.main(place(package, name, text)) == 1
    assert complaint in capsys.readouterr().out


PAIR = """
// pairs with: B::get, "value visible"
void put() { x_.store(1, std::memory_order_release); }
// pairs with: A::put,
// "value visible"
int get() { return x_.load(std::memory_order_acquire); }
void count() { n_.fetch_add(1, std::memory_order_relaxed); }
"""

SWAP = "bool g() { return x_.compare_exchange_weak(a,\n b,\n std::memory_order_acq_rel); }\n"


def test_labelled_atomics_pass(tree):
    assert check_labels.main(place(tree, "src/base/a.h", PAIR)) == 0


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        (PAIR + SWAP, "a.h:8: compare_exchange_weak orders memory"),
        ('// pairs with: nobody, "lonely"\n', 'label "lonely" stands only once'),
        (PAIR.replace("\nvoid put", "\n\n\n\nvoid put"), "a.h:6: store orders memory"),
        (PAIR + "void more() { n_.fetch_add(1); }\n", "fetch_add without a memory order"),
        (PAIR + "std::atomic<int> n_{0};\nint more() { return n_.load(); }\n", "load without a memory order"),
        (PAIR + "void f() { std::atomic_thread_fence(std::memory_order_acquire); }\n", "a fence"),
    ],
)
def test_unlabelled_atomics_fail(tree, capsys, text, complaint):
    assert check_labels.main(place(tree, "src/base/a.h", text)) == 1
    assert complaint in capsys.readouterr().out


def test_sources_in_form_pass(tree):
    place(tree, "src/CMakeLists.txt", "# SPDX-License-Identifier: Apache-2.0\nset(sources base/error.cc)\n")
    assert check_sources.main(place(tree, "src/base/error.cc", SPDX)) == 0


@pytest.mark.parametrize(
    ("name", "text", "complaint"),
    [
        ("src/base/a.h", "#pragma once\n", "a.h:1: no SPDX line"),
        ("src/base/a.h", SPDX + "x" * 111, "a.h:2: 111 columns"),
        ("src/base/a.h", SPDX + "\n" * 800, "split the file"),
        ("src/base/a.h", SPDX + "caf\u00e9", "not ASCII"),
        ("src/base/a.h", SPDX + "a; \n", "blanks at the end"),
        ("src/base/a_test.cc", SPDX, "stands in no CMakeLists.txt"),
    ],
)
def test_sources_out_of_form_fail(tree, capsys, name, text, complaint):
    assert check_sources.main(place(tree, name, text)) == 1
    assert complaint in capsys.readouterr().out


@pytest.fixture
def library(tmp_path):
    """A function that builds a shared library from C source."""
    compiler = shutil.which("cc") or pytest.skip("no C compiler")

    def build(source):
        (tmp_path / "l.c").write_text(source)
        subprocess.run([compiler, "-shared", "-fPIC", "l.c", "-o", "l.so"], cwd=tmp_path, check=True)
        return tmp_path / "l.so"

    return build


def test_exported_symbols_are_the_declared_functions(tree, library, capsys):
    header = tree / "include/tenon/tenon.h"
    assert check_symbols.main([library("void tenon_one(void) {}"), header]) == 0
    assert check_symbols.main([library("void tenon_one(void) {} int more;"), header]) == 1
    assert "more is exported" in capsys.readouterr().out
    assert check_symbols.main([library("static int one; int *tenon_two(void) { return &one; }"), header]) == 1
    assert "tenon_one is declared" in capsys.readouterr().out


def test_the_installed_library_exports_what_its_headers_declare():
    tenon = Path(sysconfig.get_path("purelib")) / "tenon"
    headers = [tenon / "include/tenon" / name for name in c_header.ABI_HEADERS]
    check = [sys.executable, check_symbols.__file__, tenon / "lib/libtenon.so.0", *headers]
    done = subprocess.run(check, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_an_old_stub_is_shown_and_a_current_one_passes(tmp_path, capsys):
    stub = tmp_path / "_core.pyi"
    assert update_stub.main(["--check"], stub, lambda: "def f() -> int: ...\n") == 1
    assert update_stub.main([], stub, lambda: "def f() -> int: ...\n") == 0
    assert update_stub.main(["--check"], stub, lambda: "def f() -> int: ...\n") == 0
    assert update_stub.main(["--check"], stub, lambda: "def f() -> str: ...\n") == 1
    assert "+def f() -> str: ..." in capsys.readouterr().out


PYTEST = """
E   AssertionError: assert 1 == 2
=========================== short test summary info ============================
SKIPPED [1] tests/python/test_a.py:3: no jax
ERROR tests/python/test_a.py::test_one - OSError: no file
FAILED tests/python/test_a.py::test_two[x] - AssertionError: assert 1 == 2
1 failed, 3 passed, 1 skipped, 1 error in 2.10s
"""
CTEST = """
      Start  9: core.Storage.Ends
 8/10 Test  #8: core.Storage.Begins ..............   Passed    0.01 sec
 9/10 Test  #9: core.Storage.Ends ................***Failed    0.02 sec
[ RUN      ] Storage.Ends
../../src/core/storage_test.cc:12: Failure
Expected equality of these values:
  drops
    Which is: 0
  1

[  FAILED  ] Storage.Ends (0 ms)
90% tests passed, 1 tests failed out of 10

The following tests FAILED:
\t  9 - core.Storage.Ends (Failed)
\t 10 - core.Storage.Hangs (Timeout)
Errors while running CTest
"""


def test_a_failed_step_names_its_tests_with_their_messages():
    assert steps.Step("", 1, None, PYTEST).failures() == [
        "ERROR tests/python/test_a.py::test_one - OSError: no file",
        "FAILED tests/python/test_a.py::test_two[x] - AssertionError: assert 1 == 2",
    ]
    assert steps.Step("", 1, None, CTEST).failures() == [
        "../../src/core/storage_test.cc:12: Failure\nExpected equality of these values:\n  drops\n"
        "    Which is: 0\n  1",
        "9 - core.Storage.Ends (Failed)",
        "10 - core.Storage.Hangs (Timeout)",
    ]
    many = "".join(f"FAILED test_{i} - x\n" for i in range(50))
    assert steps.Step("", 1, None, many).failures()[-2:] == ["FAILED test_19 - x", "and 30 more"]


@pytest.mark.slow
def test_a_message_stands_whole_in_the_summary_of_a_log(tmp_path):
    shutil.copy(Path(__file__).parents[1] / "conftest.py", tmp_path)
    place(tmp_path, "test_it.py", f"def test_it():\n    raise ValueError('{'x' * 120}')\n")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_it.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert steps.Step("", 1, None, done.stdout).failures() == [
        f"FAILED test_it.py::test_it - ValueError: {'x' * 120}"
    ]


def test_only_a_failed_fatal_step_ends_the_run():
    report = run_tests.Report()
    python = sys.executable
    report.step("test of steps, fails", python, "-c", "raise SystemExit(3)")
    report.step("test of steps, passes", python, "-c", "", fatal=True)
    with report.beside("test of steps, beside", python, "-c", "raise SystemExit(4)"):
        report.step("test of steps, passes", python, "-c", "")
    assert [line.split(",")[1] for line in report.failed] == [" fails (exit 3)", " beside (exit 4)"]
    with pytest.raises(SystemExit):
        report.step("test of steps, ends", python, "-c", "raise SystemExit(5)", fatal=True)
