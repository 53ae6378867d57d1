// SPDX-License-Identifier: Apache-2.0
//
// Memory for Tenon's own arrays: aligned for every framework (JAX copies what is not aligned to 64 bytes),
// and backed by huge pages where they pay, because page faults cost more than copies.
#pragma once

#include <cstddef>

namespace tenon::impl::heap {

struct Allocation {
  std::byte* data;  // aligned to 64 bytes, to 4096 from 1 MiB on
  void* owner;      // for release
};

// Fails with Error kNoMemory, which names the size.
Allocation allocate(size_t nbytes, bool is_zeroed);

// A Deleter.
void release(void* owner);

}  // namespace tenon::impl::heap
