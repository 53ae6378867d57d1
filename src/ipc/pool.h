// SPDX-License-Identifier: Apache-2.0
//
// Which bytes of a segment are in use, as its creator knows them. Memory that was used once stays there for
// the next array, because to take it anew costs more than to write it.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "ipc/segment.h"

namespace tenon::impl {

// Not for several threads: its owner locks.
class Pool {
 public:
  explicit Pool(Segment& segment);

  Segment& segment() noexcept { return segment_; }

  struct Allocation {
    uint32_t block = Segment::kNone;
    uint64_t begin = 0;
    bool is_fresh = false;  // all bytes are zero
  };
  // Bytes for a storage, whose memory is there. kNone: there is no room. Fails with kNoMemory.
  Allocation allocate(uint64_t nbytes);

  // This process has ended a use of the block, perhaps its last one.
  void note_left(uint32_t block) noexcept;
  // Takes back the blocks that this process has left and no other one uses, and gives memory back that is
  // more than is to be kept. Looks at most at so many of those that were in use elsewhere before: the others
  // come next time. True: some are in use elsewhere.
  bool reclaim(size_t most = SIZE_MAX) noexcept;
  bool is_any_new() const noexcept { return !left_.empty(); }

  // Gives memory back that belongs to no block, but for so much.
  void trim(uint64_t kept_nbytes) noexcept;

  // Bytes that have memory and belong to no block.
  uint64_t idle_nbytes() const noexcept;

 private:
  using ByBegin = std::map<uint64_t, uint64_t>;            // begin -> nbytes
  using BySize = std::set<std::pair<uint64_t, uint64_t>>;  // (nbytes, begin)
  // The nodes that a stretch of free bytes has in both. Empty: there are none.
  struct Nodes {
    ByBegin::node_type by_begin;
    BySize::node_type by_size;
  };
  struct Used {
    uint64_t begin = 0;
    uint64_t nbytes = 0;  // 0: the block is free
    bool is_left = false;
    bool is_awaited = false;
    Nodes nodes;  // for the bytes when the block is free again, so that this needs no memory
  };
  static Nodes make_nodes();
  void add_free(Nodes nodes, uint64_t begin, uint64_t nbytes) noexcept;
  Nodes remove_free(ByBegin::iterator at) noexcept;
  void free_range(Nodes nodes, uint64_t begin, uint64_t nbytes) noexcept;
  bool commit(uint64_t begin, uint64_t end);
  bool try_free(uint32_t block) noexcept;
  uint32_t free_block() const noexcept;

  Segment& segment_;
  ByBegin free_;            // neighbours are joined
  BySize free_sizes_;       // the same
  std::vector<Used> used_;  // by block; those behind were never used
  // The three lists hold a block once at most, and have room for all blocks from the beginning.
  // A heap of those below used_.size(); the first ones first, so that few are looked at when a process dies.
  std::vector<uint32_t> free_blocks_;
  std::vector<uint32_t> left_;     // not looked at yet
  std::vector<uint32_t> awaited_;  // left here, and in use elsewhere when they were looked at
  size_t next_awaited_ = 0;
  std::vector<bool> is_committed_;  // of each granule
  uint64_t committed_nbytes_ = 0;
  uint64_t used_nbytes_ = 0;
};

}  // namespace tenon::impl
