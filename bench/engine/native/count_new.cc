// SPDX-License-Identifier: Apache-2.0
//
// Loaded before everything else by the check that leases allocate nothing: counts what operator new is
// asked for.
#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <new>

namespace {
std::atomic<int64_t> allocations{0};
}

__attribute__((visibility("default"))) void* operator new(size_t size) {
  allocations.fetch_add(1, std::memory_order_relaxed);
  if (void* const memory = std::malloc(size != 0 ? size : 1)) return memory;
  throw std::bad_alloc();
}

__attribute__((visibility("default"))) void operator delete(void* memory) noexcept { std::free(memory); }

__attribute__((visibility("default"))) void operator delete(void* memory, size_t) noexcept {
  std::free(memory);
}

extern "C" __attribute__((visibility("default"))) int64_t count_new_allocations() {
  return allocations.load(std::memory_order_relaxed);
}
