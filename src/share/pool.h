// SPDX-License-Identifier: Apache-2.0
//
// Which bytes of a segment are in use, as its creator knows them. Memory that was used once stays there for
// the next array, because to take it anew costs more than to write it.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "share/segment.h"

namespace tenon::share {

// Not for several threads: its owner locks.
class Pool {
 public:
  explicit Pool(Segment& segment);

  Segment& segment() noexcept { return segment_; }

  struct Place {
    uint32_t block = Segment::kNone;
    uint64_t begin = 0;
    bool is_fresh = false;  // all bytes are zero
  };
  // Bytes for a storage, whose memory is there. kNone: there is no room. Fails with kNoMemory.
  Place allocate(uint64_t nbytes);

  // Takes back the blocks that no process uses any more, and gives memory back that is more than is to be
  // kept. True: some of the blocks that this process has left are still in use by others.
  bool reclaim();

  // Gives memory back that belongs to no block, but for so much.
  void trim(uint64_t kept_nbytes);

  // Bytes that have memory and belong to no block.
  uint64_t idle_nbytes() const noexcept;

 private:
  struct Used {
    uint64_t begin;
    uint64_t nbytes;
  };
  void free_range(uint64_t begin, uint64_t nbytes);
  bool commit(uint64_t begin, uint64_t end);

  Segment& segment_;
  std::map<uint64_t, uint64_t> free_;  // begin -> nbytes; neighbours are joined
  std::map<uint32_t, Used> used_;      // by block
  std::vector<bool> is_committed_;     // of each granule
  uint64_t committed_nbytes_ = 0;
  uint64_t used_nbytes_ = 0;
};

}  // namespace tenon::share
