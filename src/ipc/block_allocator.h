// SPDX-License-Identifier: Apache-2.0
//
// The allocator of the blocks of a segment, in its creator's process. Some memory of freed blocks is kept for
// the next arrays, because new pages cost more time than writing them.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "ipc/segment.h"

namespace tenon::impl {

// Bytes for a storage. Their memory is allocated.
struct AllocatedBlock {
  Segment* segment = nullptr;
  uint32_t block = Segment::kNone;  // kNone: there was no room
  uint64_t begin = 0;
  bool is_fresh = false;  // all bytes are zero
};

// Threads: one at a time.
class BlockAllocator {
 public:
  explicit BlockAllocator(Segment& segment);

  Segment& segment() noexcept { return segment_; }

  // Fails with kNoMemory.
  AllocatedBlock allocate(uint64_t nbytes);

  // This process has ended a use of the block, perhaps its last one.
  void note_left(uint32_t block) noexcept;
  // Frees the blocks that no process uses. Looks at all blocks that this process has left since the last
  // call. Of the blocks that other processes used at the last call, it looks at most at `most`, in turn.
  // True: other processes use some blocks.
  bool free_unused(size_t most) noexcept;
  // The same after what dead processes used was dropped. Trims the memory, but not that of a tensor pool.
  bool reclaim(size_t most = SIZE_MAX) noexcept;
  bool is_any_new() const noexcept { return !left_.empty(); }

  // Returns memory that belongs to no block to the system, except kept_nbytes of it; not from a pool whose
  // pages are pinned, which the driver would go on to use.
  void trim(uint64_t kept_nbytes) noexcept;

  // The memory that belongs to no block.
  uint64_t idle_nbytes() const noexcept;
  uint64_t used_nbytes() const noexcept { return used_nbytes_; }
  uint64_t committed_nbytes() const noexcept { return committed_nbytes_; }
  // What a block of so many bytes takes. In a tensor pool: whole pages, so that a process can map them alone.
  // If its pages are pinned: whole units, if it is larger than one.
  uint64_t footprint(uint64_t nbytes) const noexcept;
  // Calls visit(block) for each block that is not free.
  template <class Visit>
  void visit_used(Visit visit) const {
    for (uint32_t i = 0; i < used_.size(); ++i) {
      if (used_[i].nbytes != 0) visit(i);
    }
  }

 private:
  using ByBegin = std::map<uint64_t, uint64_t>;            // begin -> nbytes
  using BySize = std::set<std::pair<uint64_t, uint64_t>>;  // (nbytes, begin)
  // The nodes of a range of free bytes in both containers. Empty: there are none.
  struct Nodes {
    ByBegin::node_type by_begin;
    BySize::node_type by_size;
  };
  struct Used {
    uint64_t begin = 0;
    uint64_t nbytes = 0;  // 0: the block is free
    bool is_left = false;
    bool is_awaited = false;
    Nodes nodes;  // for the bytes when the block is freed, so that freeing needs no memory
  };
  static Nodes make_nodes();
  void add_free(Nodes nodes, uint64_t begin, uint64_t nbytes) noexcept;
  Nodes remove_free(ByBegin::iterator at) noexcept;
  void free_range(Nodes nodes, uint64_t begin, uint64_t nbytes) noexcept;
  uint64_t place(uint64_t begin, uint64_t nbytes, uint64_t wanted, uint64_t alignment) const noexcept;
  bool commit(uint64_t begin, uint64_t end);
  bool try_free(uint32_t block) noexcept;
  uint32_t free_block() const noexcept;

  Segment& segment_;
  const uint64_t unit_;     // PinnedPages; 0: the pages are not pinned
  ByBegin free_;            // free ranges; adjacent ones are joined
  BySize free_sizes_;       // the same ranges
  std::vector<Used> used_;  // by block; further blocks were never used
  // Each of the three lists holds a block at most once, and has capacity for all blocks.
  // A heap of the free blocks below used_.size(). The lowest block is used first, so that blocks_used() stays
  // small, and few blocks are looked at when a process dies.
  std::vector<uint32_t> free_blocks_;
  std::vector<uint32_t> left_;     // left since the last reclaim()
  std::vector<uint32_t> awaited_;  // left here, and in use by other processes at the last look
  size_t next_awaited_ = 0;
  std::vector<bool> is_committed_;  // of each granule
  uint64_t committed_nbytes_ = 0;
  uint64_t used_nbytes_ = 0;
};

}  // namespace tenon::impl
