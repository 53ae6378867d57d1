# SPDX-License-Identifier: Apache-2.0
"""check_kernels: passes a table alone and fails on what an inline function leaves behind."""

import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "tools"))
import check_kernels

TABLE = "namespace tenon::impl { extern const int kKernelsV3; const int kKernelsV3 = 1; }\n"
INLINE = "inline int twice(int x) { return 2 * x; }\nint (*use)(int) = twice;\n"


def compiled(tmp_path, name, text):
    source, target = tmp_path / "kernels.cc", tmp_path / name
    source.write_text(text)
    subprocess.run(["c++", "-c", source, "-o", target], check=True)
    return str(target)


def test_a_table_alone_passes(tmp_path):
    assert check_kernels.main([compiled(tmp_path, "elements_kernels_v3.cc.o", TABLE)]) == 0


@pytest.mark.parametrize(
    ("text", "complaint"), [(TABLE + INLINE, "twice(int)"), (INLINE, "defines 0 tables")]
)
def test_anything_else_fails(tmp_path, capsys, text, complaint):
    assert check_kernels.main([compiled(tmp_path, "elements_kernels_v3.cc.o", text)]) == 1
    assert complaint in capsys.readouterr().out


def test_no_kernels_at_all_fail(tmp_path):
    assert check_kernels.main([compiled(tmp_path, "elements.cc.o", INLINE)]) == 1
