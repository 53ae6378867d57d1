// SPDX-License-Identifier: Apache-2.0
//
// Which pages are in the page table of this process, for tests.
#pragma once

#include <fcntl.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>

#include "base/bytes.h"

namespace tenon::impl {

inline size_t count_mapped_pages(const void* memory, size_t nbytes) {
  const int file = open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC);
  size_t count = 0;
  for (size_t at = 0; at < nbytes; at += kPage) {
    uint64_t entry = 0;
    const size_t number = (reinterpret_cast<uintptr_t>(memory) + at) / kPage;
    if (pread(file, &entry, sizeof entry, static_cast<off_t>(number * sizeof entry)) != sizeof entry) break;
    count += entry >> 63;
  }
  close(file);
  return count;
}

}  // namespace tenon::impl
