// SPDX-License-Identifier: Apache-2.0
#include "memory/control_blocks.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdlib>
#include <new>
#include <utility>

#include "base/block_cache.h"
#include "base/bytes.h"

namespace tenon::impl {
namespace {

constexpr size_t kLargestChunk = 8 * kHugePage;

}  // namespace

void* ControlBlocks::take() {
  if (!kMayReuse) return ::operator new(nbytes_, std::align_val_t(alignment_));
  if (Unused* const block = given_) {
    given_ = block->next;
    return block;
  }
  if (static_cast<size_t>(end_ - next_) < nbytes_) add_chunk();
  return std::exchange(next_, next_ + nbytes_);
}

void ControlBlocks::give(void* block) noexcept {
  if (!kMayReuse) return ::operator delete(block, std::align_val_t(alignment_));
  given_ = new (block) Unused{given_};
}

void ControlBlocks::add_chunk() {
  void* chunk = nullptr;
  bool is_huge = false;
  while (true) {
    is_huge = chunk_nbytes_ >= kHugePage;
    chunk = std::aligned_alloc(is_huge ? kHugePage : kAlignment, chunk_nbytes_);
    if (chunk != nullptr) break;
    if (chunk_nbytes_ <= kFirstChunk) throw std::bad_alloc();
    chunk_nbytes_ /= 2;  // there may be memory for a smaller one
  }
  // Only advice: the memory works without huge pages, too.
  if (is_huge) (void)madvise(chunk, chunk_nbytes_, MADV_HUGEPAGE);
  next_ = static_cast<std::byte*>(chunk);
  end_ = next_ + chunk_nbytes_;
  chunk_nbytes_ = std::min(2 * chunk_nbytes_, kLargestChunk);
}

}  // namespace tenon::impl
