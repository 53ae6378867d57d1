// SPDX-License-Identifier: Apache-2.0
#include "base/fork_mark.h"

#include <sys/mman.h>
#include <unistd.h>

#include <atomic>

namespace tenon::impl {
namespace {

using WipedCount = std::atomic<uint64_t>;

// Counts the marks of this process and its ancestors: a forked child continues the count of its parent.
std::atomic<uint64_t> generations{0};

// Null where the kernel cannot clear a page on fork. Never unmapped.
WipedCount* wiped_page() noexcept {
  static WipedCount* const page = [] {
    const auto size = static_cast<size_t>(sysconf(_SC_PAGESIZE));
    void* memory = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) return static_cast<WipedCount*>(nullptr);
    if (madvise(memory, size, MADV_WIPEONFORK) != 0) {
      munmap(memory, size);
      return static_cast<WipedCount*>(nullptr);
    }
    return static_cast<WipedCount*>(memory);
  }();
  return page;
}

}  // namespace

uint64_t ForkMark::current() noexcept {
  WipedCount* const page = wiped_page();
  if (page == nullptr) return static_cast<uint64_t>(getpid());
  uint64_t mark = page->load(std::memory_order_relaxed);
  if (mark != 0) return mark;
  // The first call in this process. A thread that loses the race takes the mark of the other one.
  const uint64_t next = generations.fetch_add(1, std::memory_order_relaxed) + 1;
  return page->compare_exchange_strong(mark, next, std::memory_order_relaxed) ? next : mark;
}

}  // namespace tenon::impl
