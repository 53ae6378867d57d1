# SPDX-License-Identifier: Apache-2.0
"""Pinned copies by the CUDA driver itself, so that the peak does not depend on Tenon."""

import ctypes
import os
import time

ORDINAL = 0


class Driver:
    """The first device, whose context is current in this thread."""

    def __init__(self):
        self.library = ctypes.CDLL(os.environ.get("TENON_CUDA_DRIVER", "libcuda.so.1"))
        # The driver of tests/device, which copies host memory to host memory.
        self.is_fake = hasattr(self.library, "fake_cuda_configure")
        self.call("cuInit", 0)
        context = ctypes.c_void_p()
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), ORDINAL)
        self.call("cuCtxPushCurrent_v2", context)

    def call(self, name, *arguments):
        code = getattr(self.library, name)(*arguments)
        if code != 0:
            raise RuntimeError(f"{name} returned {code}")

    def name(self):
        text = ctypes.create_string_buffer(256)
        self.call("cuDeviceGetName", text, len(text), ORDINAL)
        return text.value.decode()

    def made(self, name, kind, *arguments):
        result = kind()
        self.call(name, ctypes.byref(result), *arguments)
        return result


class PinnedCopies:
    """Copies from pinned buffers to buffers on the device, in turn, on one stream."""

    def __init__(self, driver, nbytes, sources, targets):
        size = ctypes.c_size_t(nbytes)
        self.driver, self.size = driver, size
        self.sources = [
            driver.made("cuMemHostAlloc", ctypes.c_void_p, size, ctypes.c_uint(0)) for _ in range(sources)
        ]
        self.targets = [driver.made("cuMemAlloc_v2", ctypes.c_uint64, size) for _ in range(targets)]
        self.stream = driver.made("cuStreamCreate", ctypes.c_void_p, ctypes.c_uint(1))
        for source in self.sources:
            ctypes.memset(source, 0, nbytes)

    def seconds(self, n):
        """The time of n copies."""
        begin = time.perf_counter()
        for i in range(n):
            source, target = self.sources[i % len(self.sources)], self.targets[i % len(self.targets)]
            address = ctypes.c_uint64(source.value)
            self.driver.call("cuMemcpyAsync", target, address, self.size, self.stream)
        self.driver.call("cuStreamSynchronize", self.stream)
        return time.perf_counter() - begin

    def close(self):
        for source in self.sources:
            self.driver.call("cuMemFreeHost", source)
        for target in self.targets:
            self.driver.call("cuMemFree_v2", target)
        self.driver.call("cuStreamDestroy_v2", self.stream)
