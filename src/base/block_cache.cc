// SPDX-License-Identifier: Apache-2.0
#include "base/block_cache.h"

#include <array>
#include <atomic>
#include <new>
#include <utility>

#include "base/prefetch.h"

namespace tenon::impl {
namespace {

// The most blocks that a thread keeps in each of its two lists, and that a batch has.
constexpr int kMostKept = 64;

struct CachedBlock {
  CachedBlock* next;        // in its batch
  CachedBlock* next_batch;  // of the first block of a batch in the common list
};

using Common = std::atomic<CachedBlock*>;

void give_to_all(Common& common, CachedBlock* first_batch, CachedBlock* last_batch) noexcept {
  CachedBlock* head = common.load(std::memory_order_relaxed);
  do {
    last_batch->next_batch = head;
    // pairs with: get_some, "a block that another thread has freed"
  } while (
      !common.compare_exchange_weak(head, first_batch, std::memory_order_release, std::memory_order_relaxed));
}

// Takes the common list, keeps the first batch and puts the rest back.
CachedBlock* get_some(Common& common) noexcept {
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
  give_to_all(common, rest, end);
  return first;
}

// The next block that the thread will take: another processor has written to it.
void fetch(const CachedBlock* block, size_t size) noexcept {
  constexpr size_t kLine = 64;
  for (size_t at = 0; at < size; at += kLine)
    prefetch_to_write(reinterpret_cast<const std::byte*>(block) + at);
}

// The blocks of one size in one thread: those that it has freed itself, and those that it took from the
// common list.
struct Kept {
  CachedBlock* freed = nullptr;
  int n_freed = 0;
  CachedBlock* got = nullptr;

  void give_freed(Common& common) noexcept {
    if (CachedBlock* const batch = std::exchange(freed, nullptr)) give_to_all(common, batch, batch);
    n_freed = 0;
  }
};

constinit std::array<Common, BlockCache::kSizes.size()> common{};

struct KeptByThread {
  std::array<Kept, BlockCache::kSizes.size()> of_size;
  bool has_begun = false;  // the end of the thread will be noted
  bool has_ended = false;

  [[gnu::noinline]] void begin() noexcept;
};

// In the first block of thread-local memory and without a destructor, so that an access is one instruction.
constinit thread_local KeptByThread kept [[gnu::tls_model("initial-exec")]];

struct KeptEnd {
  ~KeptEnd() {
    kept.has_ended = true;
    for (size_t i = 0; i < common.size(); ++i) {
      Kept& mine = kept.of_size[i];
      mine.give_freed(common[i]);
      if (mine.got != nullptr) give_to_all(common[i], mine.got, mine.got);
    }
  }
};

void KeptByThread::begin() noexcept {
  thread_local KeptEnd end;
  (void)&end;  // constructs it
  has_begun = true;
}

// Of the smallest block for the object; kSizes.size(): none is large enough.
constexpr size_t place_of(size_t size) noexcept {
  size_t place = 0;
  while (place < BlockCache::kSizes.size() && size > BlockCache::kSizes[place]) ++place;
  return place;
}

}  // namespace

void* BlockCache::take(size_t size) {
  const size_t place = place_of(size);
  if (!kMayReuse || place == kSizes.size()) return ::operator new(size);
  Kept& mine = kept.of_size[place];
  if (mine.freed != nullptr) {
    --mine.n_freed;
    return std::exchange(mine.freed, mine.freed->next);
  }
  if (!kept.has_begun) kept.begin();
  if (mine.got == nullptr) mine.got = get_some(common[place]);
  if (mine.got == nullptr) return ::operator new(kSizes[place]);
  CachedBlock* const block = std::exchange(mine.got, mine.got->next);
  if (mine.got != nullptr) fetch(mine.got, size);
  return block;
}

void BlockCache::give(void* memory, size_t size) noexcept {
  const size_t place = place_of(size);
  if (!kMayReuse || place == kSizes.size()) return ::operator delete(memory);
  auto* const block = static_cast<CachedBlock*>(memory);
  if (kept.has_ended) {
    block->next = nullptr;
    return give_to_all(common[place], block, block);
  }
  if (!kept.has_begun) [[unlikely]]
    kept.begin();
  Kept& mine = kept.of_size[place];
  block->next = std::exchange(mine.freed, block);
  if (++mine.n_freed >= kMostKept) mine.give_freed(common[place]);
}

}  // namespace tenon::impl
