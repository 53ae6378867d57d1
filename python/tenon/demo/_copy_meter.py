# SPDX-License-Identifier: Apache-2.0
"""Counts copies in host memory by the pages that are written.

`CopyMeter` asks the Linux kernel which pages of this process were written between `start` and `stop`. It
covers all writable memory, all threads and all kinds of writes: ``memcpy``, a vectorized loop, a system call.
So it also detects copies that a count of calls to ``memcpy`` misses.

Limits: It does not see other processes. It counts whole pages, so use payloads of many pages. It does not see
memory that is unmapped before `stop`, so keep the result of the work alive until then. A page that is written
twice counts once, so measure one batch at a time.

The mechanism is described in the kernel's documentation (admin-guide/mm/pagemap.rst and userfaultfd.rst):
userfaultfd with UFFD_FEATURE_WP_ASYNC, then the PAGEMAP_SCAN ioctl. Both need Linux 6.7; no privilege.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import gc
import mmap
import os
import platform
import statistics
import struct
import sys
from collections.abc import Callable, Iterator

__all__ = ["CopyMeter", "payloads_written", "why_unavailable"]

_SYS_USERFAULTFD = {"x86_64": 323, "aarch64": 282, "riscv64": 282}
_UFFD_USER_MODE_ONLY = 1
_UFFD_API = 0xAA
_UFFD_FEATURE_PAGEFAULT_FLAG_WP = 1 << 0
_UFFD_FEATURE_WP_HUGETLBFS_SHMEM = 1 << 12
_UFFD_FEATURE_WP_UNPOPULATED = 1 << 13
_UFFD_FEATURE_WP_ASYNC = 1 << 15
_UFFDIO_REGISTER_MODE_WP = 1 << 1

_PM_SCAN_WP_MATCHING = 1 << 0
_PAGE_IS_WRITTEN = 1 << 1
_PAGE_IS_PRESENT = 1 << 3
_PAGE_IS_SWAPPED = 1 << 4
_PAGE_IS_PFNZERO = 1 << 5


def _iowr(kind: int, number: int, layout: str) -> int:
    return 3 << 30 | struct.calcsize(layout) << 16 | kind << 8 | number


_API_LAYOUT = "=3Q"  # api, features, ioctls
_REGISTER_LAYOUT = "=4Q"  # start, length, mode, ioctls
_SCAN_LAYOUT = "=12Q"
_REGION_LAYOUT = "=3Q"  # start, end, categories
_UFFDIO_API = _iowr(0xAA, 0x3F, _API_LAYOUT)
_UFFDIO_REGISTER = _iowr(0xAA, 0x00, _REGISTER_LAYOUT)
_PAGEMAP_SCAN = _iowr(ord("f"), 16, _SCAN_LAYOUT)
_MAX_REGIONS = 1 << 16


def _open_userfaultfd() -> int:
    number = _SYS_USERFAULTFD.get(platform.machine())
    if not sys.platform.startswith("linux") or number is None:
        raise OSError(f"page-write accounting is not known for {sys.platform} on {platform.machine()}")
    syscall = ctypes.CDLL(None, use_errno=True).syscall
    fd = syscall(ctypes.c_long(number), ctypes.c_int(os.O_CLOEXEC | os.O_NONBLOCK | _UFFD_USER_MODE_ONLY))
    if fd < 0:
        code = ctypes.get_errno()
        raise OSError(code, f"userfaultfd is refused ({os.strerror(code)}); containers often forbid it")
    features = (
        _UFFD_FEATURE_PAGEFAULT_FLAG_WP
        | _UFFD_FEATURE_WP_HUGETLBFS_SHMEM
        | _UFFD_FEATURE_WP_UNPOPULATED
        | _UFFD_FEATURE_WP_ASYNC
    )
    try:
        fcntl.ioctl(fd, _UFFDIO_API, bytearray(struct.pack(_API_LAYOUT, _UFFD_API, features, 0)))
    except OSError as error:
        os.close(fd)
        raise OSError(
            error.errno,
            f"Linux {platform.release()} has no asynchronous write protection (6.7 has): {error.strerror}",
        ) from None
    return int(fd)


def _writable_ranges() -> Iterator[tuple[int, int]]:
    with open("/proc/self/maps", "rb") as maps:
        for line in maps.read().splitlines():
            addresses, permissions = line.split(None, 2)[:2]
            if permissions[1:2] == b"w":
                start, end = addresses.split(b"-")
                yield int(start, 16), int(end, 16)


def _scan_arguments(flags: int, start: int, end: int, regions: int, capacity: int) -> bytearray:
    return bytearray(
        struct.pack(
            _SCAN_LAYOUT,
            struct.calcsize(_SCAN_LAYOUT),
            flags,
            start,
            end,
            0,  # out: where the walk ended
            regions,
            capacity,
            0,  # no limit of pages
            _PAGE_IS_PFNZERO,  # inverted: reading fresh memory writes nothing
            _PAGE_IS_WRITTEN | _PAGE_IS_PFNZERO,
            _PAGE_IS_PRESENT | _PAGE_IS_SWAPPED,
            _PAGE_IS_WRITTEN,
        )
    )


def _common_nbytes(regions: list[tuple[int, int]], ranges: list[tuple[int, int]]) -> int:
    """Bytes of the regions that lie in the ranges. Both are sorted and free of overlap."""
    nbytes = 0
    position = 0
    for start, end in regions:
        while position < len(ranges) and ranges[position][1] <= start:
            position += 1
        for first, last in ranges[position:]:
            if first >= end:
                break
            nbytes += min(end, last) - max(start, first)
    return nbytes


class CopyMeter:
    """Counts the bytes of pages that this process writes between `start` and `stop`.

    Use it as a context manager, or call `close`. While it is open, the first write to a page after `start`
    costs a page fault of about a microsecond. One thread at a time may call its methods. Any thread may write
    to the counted memory. Only one meter can be open at a time.

    Raises
    ------
    OSError
        The kernel lacks the mechanism or refuses it; the message names the reason.

    Examples
    --------
    >>> with CopyMeter() as meter:                      # doctest: +SKIP
    ...     meter.start()
    ...     y = x.copy()
    ...     print(meter.stop() / x.nbytes)
    1.0
    """

    def __init__(self) -> None:
        self._unwatched: set[tuple[int, int]] = set()  # memory of devices, which cannot be watched
        self._userfaultfd = _open_userfaultfd()
        try:
            self._pagemap = os.open("/proc/self/pagemap", os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            os.close(self._userfaultfd)
            raise
        # The kernel writes its answers here. The pages of this mapping are not counted.
        self._answer = mmap.mmap(-1, _MAX_REGIONS * struct.calcsize(_REGION_LAYOUT))
        self._answer_address = ctypes.addressof(ctypes.c_char.from_buffer(self._answer))
        try:
            self.start()
        except OSError as error:
            self.close()
            raise OSError(error.errno, f"this process' memory cannot be watched: {error.strerror}") from None

    def close(self) -> None:
        """Stop watching the memory of this process. Idempotent."""
        if self._userfaultfd >= 0:
            os.close(self._userfaultfd)
            os.close(self._pagemap)
            self._userfaultfd = -1

    def __enter__(self) -> CopyMeter:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def start(self) -> None:
        """Resets the count.

        Raises
        ------
        OSError
            The kernel refuses.
        """
        ranges = [r for r in _writable_ranges() if not self._is_answer(r)]
        self._unwatched = {r for r in ranges if not self._watch(*r)}
        self._end = ranges[-1][1]
        arguments = _scan_arguments(_PM_SCAN_WP_MATCHING, 0, self._end, 0, 0)
        self._arguments = _scan_arguments(0, 0, self._end, self._answer_address, _MAX_REGIONS)
        fcntl.ioctl(self._pagemap, _PAGEMAP_SCAN, arguments)

    def stop(self) -> int:
        """Returns the bytes of the pages written since `start`, including memory that was mapped since then.

        Raises
        ------
        OSError
            The kernel refuses.
        """
        # First of all the scan: the code below writes to the interpreter's heap.
        arguments = self._arguments
        written: list[tuple[int, int]] = []
        while True:
            count = fcntl.ioctl(self._pagemap, _PAGEMAP_SCAN, arguments)
            answer = self._answer[: count * struct.calcsize(_REGION_LAYOUT)]
            written += [(start, end) for start, end, _ in struct.iter_unpack(_REGION_LAYOUT, answer)]
            if count < _MAX_REGIONS:
                break
            # From the last region on, because walk_end of the kernel is wrong after long walks.
            arguments = _scan_arguments(0, written[-1][1], self._end, self._answer_address, _MAX_REGIONS)
        watched = [r for r in _writable_ranges() if r not in self._unwatched and not self._is_answer(r)]
        return _common_nbytes(written, watched)

    def _is_answer(self, addresses: tuple[int, int]) -> bool:
        return addresses[0] <= self._answer_address < addresses[1]

    def _watch(self, start: int, end: int) -> bool:
        request = struct.pack(_REGISTER_LAYOUT, start, end - start, _UFFDIO_REGISTER_MODE_WP, 0)
        try:
            fcntl.ioctl(self._userfaultfd, _UFFDIO_REGISTER, bytearray(request))
        except OSError as error:
            if error.errno == errno.EBUSY:
                raise OSError(
                    error.errno, "another copy meter, or other user of userfaultfd, is open"
                ) from None
            return False
        return True


def why_unavailable() -> str | None:
    """The reason why page-write accounting does not work here; None if it works."""
    try:
        CopyMeter().close()
    except OSError as error:
        return str(error)
    return None


def payloads_written(
    work: Callable[[], object],
    payload_nbytes: int,
    *,
    control: Callable[[], object] | None = None,
    rounds: int = 5,
) -> float:
    """The number of payloads that one call of `work` writes to memory: the median over rounds.

    Work that fills the payload in place gives 1.0; each copy adds 1.0. The result of `work` is kept alive
    until the pages have been counted, and dropped before the next round.

    Parameters
    ----------
    work : callable
        Called `rounds` + 1 times; the first call is not counted.
    payload_nbytes : int
        The bytes of one payload. The interpreter itself writes about fifty pages in any work.
    control : callable, optional
        The same work on a very small payload. Its result is subtracted.
    rounds : int

    Raises
    ------
    OSError
        As `CopyMeter`.
    """
    idle = control or (lambda: None)
    work()
    idle()
    counts = []
    collecting = gc.isenabled()
    gc.disable()
    try:
        with CopyMeter() as meter:
            for _ in range(rounds):
                counts.append(_nbytes_written(meter, work) - (_nbytes_written(meter, idle) if control else 0))
    finally:
        if collecting:
            gc.enable()
    return statistics.median(counts) / payload_nbytes


def _nbytes_written(meter: CopyMeter, work: Callable[[], object]) -> int:
    meter.start()
    kept = work()
    nbytes = meter.stop()
    del kept
    return nbytes
