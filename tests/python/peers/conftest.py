# SPDX-License-Identifier: Apache-2.0
from leak_check import nothing_stays_behind, pytest_runtest_makereport  # noqa: F401
