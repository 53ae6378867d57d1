// SPDX-License-Identifier: Apache-2.0
//
// Hints to fetch the cache line of an address, so that several lines that are in the caches of other
// processors arrive at the same time. They have no other effect, whatever the address is.
#pragma once

namespace tenon::impl {

inline void prefetch_to_read(const void* address) noexcept { __builtin_prefetch(address); }

// Takes the line away from other processors.
inline void prefetch_to_write(const void* address) noexcept {
#if defined(__x86_64__)
  // The builtin emits this instruction only for processors that must have it; others ignore it.
  asm volatile("prefetchw %0" : : "m"(*static_cast<const char*>(address)));
#else
  __builtin_prefetch(address, 1);
#endif
}

}  // namespace tenon::impl
