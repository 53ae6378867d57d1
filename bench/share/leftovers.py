# SPDX-License-Identifier: Apache-2.0
"""Cleans up after a run, also after an interrupted one: processes, names in shared memory, temporary
files."""

import ctypes
import os
import re
import secrets
import shutil
import signal
import tempfile
import time
from pathlib import Path

PR_SET_CHILD_SUBREAPER = 36
SHARED_NAMES = Path("/dev/shm")
BOOST_MAP = re.compile(r"bip\.gmem\.map\.(\d+)_")
SECONDS = 10
TRACKER_SECONDS = 5


def parents():
    """The parent of each process of the machine."""
    found = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                stat = (folder / "stat").read_text()
            except OSError:
                continue
            found[int(folder.name)] = int(stat.rsplit(")", 1)[1].split()[1])
    return found


def descendants(root):
    by_process, found = parents(), {root}
    while more := {pid for pid, parent in by_process.items() if parent in found} - found:
        found |= more
    return found - {root}


def is_tracker(pid):
    try:
        return b"resource_tracker" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False


class Traceless:
    """A scope: `prefix` for names and `scratch`, a folder. At its end, everything that was started in it is
    removed.

    Processes whose parents have ended become children of this one meanwhile, so that all can be found.
    Raises KeyboardInterrupt on SIGTERM. Main thread; one at a time.
    """

    def __enter__(self):
        # Short: paths of sockets are limited.
        self.prefix = f"tenon-{os.getpid()}-{secrets.token_hex(2)}"
        self.scratch = tempfile.mkdtemp(prefix="tenon-")
        self.before = descendants(os.getpid())
        self.names_before = set(os.listdir(SHARED_NAMES))
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1)
        self.on_term = signal.signal(signal.SIGTERM, signal.default_int_handler)
        return self

    def __exit__(self, *_):
        on_int = signal.signal(signal.SIGINT, signal.SIG_IGN)
        self.end_processes()
        self.remove_names()
        shutil.rmtree(self.scratch, ignore_errors=True)
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 0)
        signal.signal(signal.SIGTERM, self.on_term)
        signal.signal(signal.SIGINT, on_int)

    def end_processes(self):
        """Kills all but the trackers of multiprocessing, which then remove its semaphores and end."""
        began = time.monotonic()
        while left := descendants(os.getpid()) - self.before:
            seconds = time.monotonic() - began
            if seconds > SECONDS:
                break
            for pid in left:
                try:
                    if seconds > TRACKER_SECONDS or not is_tracker(pid):
                        os.kill(pid, signal.SIGKILL)
                    os.waitpid(pid, os.WNOHANG)
                except (ProcessLookupError, ChildProcessError):
                    pass
            time.sleep(0.01)

    def remove_names(self):
        try:
            pids = (Path(self.scratch) / "pids").read_text().split()
        except OSError:
            pids = []
        beginnings = (self.prefix, *(f"torch_{pid}_" for pid in pids))
        for path in SHARED_NAMES.iterdir():
            if path.name.startswith(beginnings) or self.is_map_of_the_dead(path.name):
                path.unlink(missing_ok=True)

    def is_map_of_the_dead(self, name):
        """Files that Boost keeps for a process with a lock, and that the next process would remove."""
        found = BOOST_MAP.match(name)
        return found and name not in self.names_before and not Path("/proc", found[1]).exists()
