# SPDX-License-Identifier: Apache-2.0
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "peers"))

from leak_check import nothing_stays_behind, pytest_runtest_makereport  # noqa: F401
