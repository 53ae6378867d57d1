# SPDX-License-Identifier: Apache-2.0
"""For every test: surroundings that do not depend on how the run was started, and what earlier modules have
imported is set aside for the garbage collector.

Many tests ask it whether anything stayed behind; it would walk through PyTorch and JAX each time.
"""

import fcntl
import gc
import os
import resource
import signal
import sys

import pytest
from hypothesis import HealthCheck, settings

LEAST_FILES = 1024
LOG_COLUMNS = 200  # room for the messages of failures in the summary at the end
# Ignored by Python itself, or by nohup on purpose.
MAY_BE_IGNORED = {signal.SIGPIPE, signal.SIGXFSZ, signal.SIGHUP}


def use_default_signals():
    """A shell starts what runs in the background with SIGINT and SIGQUIT ignored, and every child inherits
    that, and the signals that are blocked."""
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    for number in signal.valid_signals() - MAY_BE_IGNORED:
        if signal.getsignal(number) is signal.SIG_IGN:
            is_interrupt = number == signal.SIGINT
            signal.signal(number, signal.default_int_handler if is_interrupt else signal.SIG_DFL)


def allow_files():
    few, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    if few != resource.RLIM_INFINITY and few < LEAST_FILES:
        enough = LEAST_FILES if most == resource.RLIM_INFINITY else min(LEAST_FILES, most)
        resource.setrlimit(resource.RLIMIT_NOFILE, (enough, most))


use_default_signals()
allow_files()
os.umask(0o022)


def pytest_configure(config):
    """The same examples in each run, at any speed: a run does not fail by chance. Others are looked for with
    --hypothesis-seed, and in the long form."""
    is_search = os.environ.get("TENON_SOAK") == "1" or config.getoption("--hypothesis-seed") is not None
    settings.register_profile(
        "tenon",
        deadline=None,
        derandomize=not is_search,
        database=None,
        print_blob=True,
        suppress_health_check=[HealthCheck.too_slow],
    )
    settings.load_profile("tenon")


def pytest_collection_modifyitems(items):
    """With TENON_COUNTS=strict, variables of some functions do not count (docs/dev/counting.md)."""
    if os.environ.get("TENON_COUNTS") == "strict":
        for item in items:
            if item.get_closest_marker("names_count"):
                item.add_marker(pytest.mark.skip("with TENON_COUNTS=strict the memory stays held for longer"))


def pytest_sessionstart(session):
    if session.config.pluginmanager.has_plugin("terminalreporter") and not sys.stdout.isatty():
        session.config.get_terminal_writer().fullwidth = LOG_COLUMNS


@pytest.fixture(autouse=True, scope="module")
def set_aside_what_is_imported():
    gc.collect()
    gc.freeze()


@pytest.fixture
def lone_collector(tmp_path_factory):
    """Keeps other tests from collecting what dead processes held, which works on all memory of the user."""
    with open(tmp_path_factory.getbasetemp().parent / "collects.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        try:
            yield
        finally:
            fcntl.flock(lock, fcntl.LOCK_UN)  # a child of the test may have the file open, too
