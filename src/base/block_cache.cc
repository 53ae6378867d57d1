// SPDX-License-Identifier: Apache-2.0
#include "base/block_cache.h"

#include <atomic>
#include <new>
#include <utility>

namespace tenon::impl {
namespace {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kMayReuse = false;  // so that the sanitizer sees a use after free
#else
constexpr bool kMayReuse = true;
#endif

// The most blocks that a thread keeps in each of its two lists, and that a batch has.
constexpr int kMostKept = 64;

struct CachedBlock {
  CachedBlock* next;        // in its batch
  CachedBlock* next_batch;  // of the first block of a batch in the common list
};

constinit std::atomic<CachedBlock*> common{nullptr};

void give_to_all(CachedBlock* first_batch, CachedBlock* last_batch) noexcept {
  CachedBlock* head = common.load(std::memory_order_relaxed);
  do {
    last_batch->next_batch = head;
    // pairs with: get_some, "a block that another thread has freed"
  } while (
      !common.compare_exchange_weak(head, first_batch, std::memory_order_release, std::memory_order_relaxed));
}

// Takes the common list, keeps the first batch and puts the rest back.
CachedBlock* get_some() noexcept {
  // pairs with: give_to_all, "a block that another thread has freed"
  CachedBlock* const first = common.exchange(nullptr, std::memory_order_acquire);
  CachedBlock* const rest = first != nullptr ? first->next_batch : nullptr;
  CachedBlock* none = nullptr;
  // pairs with: get_some, "a block that another thread has freed"
  if (rest == nullptr ||
      common.compare_exchange_strong(none, rest, std::memory_order_release, std::memory_order_relaxed)) {
    return first;
  }
  CachedBlock* end = rest;
  while (end->next_batch != nullptr) end = end->next_batch;
  give_to_all(rest, end);
  return first;
}

// The blocks of one thread: those that it has freed itself, and those that it took from the common list.
struct Kept {
  CachedBlock* freed = nullptr;
  int n_freed = 0;
  CachedBlock* got = nullptr;
  bool has_begun = false;  // the end of the thread will be noted
  bool has_ended = false;

  void give_freed() noexcept {
    if (CachedBlock* const batch = std::exchange(freed, nullptr)) give_to_all(batch, batch);
    n_freed = 0;
  }
  [[gnu::noinline]] void begin() noexcept;
};

// In the first block of thread-local memory and without a destructor, so that an access is one instruction.
constinit thread_local Kept kept [[gnu::tls_model("initial-exec")]];

struct KeptEnd {
  ~KeptEnd() {
    kept.has_ended = true;
    kept.give_freed();
    if (kept.got != nullptr) give_to_all(kept.got, kept.got);
  }
};

void Kept::begin() noexcept {
  thread_local KeptEnd end;
  (void)&end;  // constructs it
  has_begun = true;
}

}  // namespace

void* BlockCache::take(size_t size) {
  if (!kMayReuse || size > kBlock) return ::operator new(size);
  Kept& mine = kept;
  if (mine.freed != nullptr) {
    --mine.n_freed;
    return std::exchange(mine.freed, mine.freed->next);
  }
  if (!mine.has_begun) mine.begin();
  if (mine.got == nullptr) mine.got = get_some();
  if (mine.got == nullptr) return ::operator new(kBlock);
  return std::exchange(mine.got, mine.got->next);
}

void BlockCache::give(void* memory, size_t size) noexcept {
  if (!kMayReuse || size > kBlock) return ::operator delete(memory);
  auto* const block = static_cast<CachedBlock*>(memory);
  Kept& mine = kept;
  if (mine.has_ended) {
    block->next = nullptr;
    return give_to_all(block, block);
  }
  if (!mine.has_begun) [[unlikely]]
    mine.begin();
  block->next = std::exchange(mine.freed, block);
  if (++mine.n_freed >= kMostKept) mine.give_freed();
}

}  // namespace tenon::impl
